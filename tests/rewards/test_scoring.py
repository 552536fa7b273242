"""Rewards of a run: parts and weights, shaping, judges that cost, disagree, waver or go down."""

import asyncio
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import ValidationError
from starlette.responses import JSONResponse
from test_ruler import SCENARIO, group

from benchmarks.judge_faults import by_answer, every, status, too_few
from benchmarks.judge_server import JudgeServer, fenced, scores, serve
from mcp_rl.config import JudgeConfig, RewardConfig, RunConfig
from mcp_rl.errors import ConfigError, JudgeBarred, JudgeError, JudgeStop, VerifierError
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.rewards.panel import agreement
from mcp_rl.rewards.scoring import Scoring, check_rewards
from mcp_rl.rewards.verdict import Verdict
from mcp_rl.rollouts.gather import GroupPlan, gather_groups
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall, Verifier
from mcp_rl.trajectory import CallRecord, Segment, StopReason, Trajectory, TrajectoryGroup

KINDS = load_plugins().verifiers
SEVEN = McpScenario(
    task_description="Add 3 and 4.",
    server_params=StdioServer(command="server"),
    verifier=Verifier(kind="number", expected=7),
    reference=(ToolCall(tool="add", arguments={"a": 3, "b": 4}),),
)


def made(answer: str, *, turns: int = 2, errors: int = 0, tokens: int = 0) -> Trajectory:
    calls = [CallRecord(turn=0, name="add", tool="add", arguments={})]
    calls += [CallRecord(turn=0, name="add", tool="add", arguments={}, is_error=True)] * errors
    segment = Segment(tokens=[1] * tokens, sampled=[True] * tokens, logprobs=[-1.0] * tokens, versions=[0] * tokens)
    messages = [{"role": "user", "content": "Add."}, {"role": "assistant", "content": answer}]
    return Trajectory(scenario_id="s", messages=messages, calls=calls, turns=turns, segments=[segment])


def judged_by(server: JudgeServer, **fields: Any) -> JudgeConfig:
    return JudgeConfig(**{"model": "openai/judge", "base_url": server.url, "retries": 0, "repeat": 0.0, **fields})


# -- parts and weights


async def test_by_default_the_verifier_alone_scores_at_once() -> None:
    scoring = Scoring(JudgeConfig(), KINDS)
    trajectory = made("7")
    assert scoring.rollout(SEVEN, trajectory) is None
    assert (trajectory.reward, trajectory.metrics, scoring.at_once) == (1.0, {"verifier": 1.0}, True)
    assert scoring.take_metrics() == {} and scoring.spent is None


async def test_a_users_part_is_weighed_in_and_may_be_asynchronous() -> None:
    async def slowly(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
        await asyncio.sleep(0.01)
        return Verdict(0.5, "so so", {"length": 3.0})

    rewards = {"polite": slowly, "short": lambda trajectory, scenario: True}
    weights = RewardConfig(weights={"verifier": 0.5, "polite": 0.3, "short": 0.2})
    scoring = Scoring(JudgeConfig(), KINDS, weights, rewards)
    trajectory = made("8")
    waiting = scoring.rollout(SEVEN, trajectory)
    assert waiting is not None
    await waiting
    assert trajectory.reward == pytest.approx(0.5 * 0 + 0.3 * 0.5 + 0.2 * 1)
    assert trajectory.metrics == {"verifier": 0.0, "polite": 0.5, "short": 1.0, "length": 3.0}
    assert trajectory.success is False and trajectory.explanation.startswith("The final message says 8")


async def test_a_verifier_may_be_asynchronous_and_give_a_number() -> None:
    async def half(trajectory: Trajectory, scenario: McpScenario) -> float:
        return 0.5

    trajectory, scenario = made("x"), SEVEN.model_copy(update={"verifier": Verifier(kind="half")})
    waiting = Scoring(JudgeConfig(), {**KINDS, "half": half}).rollout(scenario, trajectory)
    assert waiting is not None
    await waiting
    assert (trajectory.reward, trajectory.success) == (0.5, False)


@pytest.mark.parametrize("kind", ["raises", "raises later", "gives words", "gives too much"])
async def test_a_verifier_that_fails_is_named_and_scores_nothing(kind: str) -> None:
    async def later(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
        raise KeyError("what")

    functions: dict[str, Callable[..., Any]] = {
        "raises": lambda trajectory, scenario: 1 / 0,
        "raises later": later,
        "gives words": lambda trajectory, scenario: "good",
        "gives too much": lambda trajectory, scenario: 2,
    }
    trajectory, scenario = made("x"), SEVEN.model_copy(update={"verifier": Verifier(kind=kind)})
    with pytest.raises(VerifierError, match=f"The verifier '{kind}'"):
        waiting = Scoring(JudgeConfig(), functions).rollout(scenario, trajectory)
        if waiting is not None:
            await waiting
    assert trajectory.reward is None


async def test_faults_stay_unscored_whatever_the_parts() -> None:
    def never(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
        raise AssertionError("a fault was scored")

    weights = {"verifier": 0.5, "own": 0.5}
    scoring = Scoring(JudgeConfig(), KINDS, RewardConfig(weights=weights, turn_cost=0.1), {"own": never})
    trajectory = made("7")
    trajectory.stop_reason = StopReason.FAULT
    assert scoring.rollout(SEVEN, trajectory) is None
    assert trajectory.reward is None and trajectory.metrics == {}


def test_shaping_reduces_successes_only() -> None:
    costs = RewardConfig(turn_cost=0.1, error_cost=0.05, token_cost=0.01, shaping_limit=0.4)
    scoring = Scoring(JudgeConfig(), KINDS, costs)
    best, longer, failed, worst = (
        made("7"),
        made("7", turns=3, errors=1, tokens=200),
        made("8", turns=3, errors=1),
        made("7", turns=30),
    )
    for trajectory in (best, longer, failed, worst):
        assert scoring.rollout(SEVEN, trajectory) is None
    assert (best.reward, best.metrics["efficiency"]) == (1.0, 0.0)
    assert longer.reward == pytest.approx(1 - 0.1 - 0.05 - 0.02) and longer.success is True
    assert longer.metrics == {"verifier": 1.0, "efficiency": pytest.approx(-0.17)}
    assert (failed.reward, failed.metrics["efficiency"]) == (0.0, pytest.approx(-0.15))
    assert worst.reward == pytest.approx(0.6), "the loss is limited"


def test_a_long_episode_loses_softly_also_where_it_failed() -> None:
    scoring = Scoring(JudgeConfig(), KINDS, RewardConfig(overlong_from=300, overlong_span=200, shaping_limit=0.4))
    played = [made("7", tokens=300), made("7", tokens=400), made("8", tokens=400), made("7", tokens=999)]
    for trajectory in played:
        assert scoring.rollout(SEVEN, trajectory) is None
    assert [trajectory.reward for trajectory in played] == pytest.approx([1.0, 0.8, -0.2, 0.6])


async def test_verifier_and_judge_are_mixed_and_both_stay_visible() -> None:
    with serve(every(0.5)) as server:
        scoring = Scoring(
            judged_by(server), KINDS, RewardConfig(weights={"verifier": 0.6, "ruler": 0.4}, error_cost=0.1)
        )
        asked = TrajectoryGroup(scenario=SEVEN, trajectories=[made("7"), made("8", errors=2)])
        for trajectory in asked:
            assert scoring.rollout(SEVEN, trajectory) is None
        await scoring.group(asked)
    assert [t.reward for t in asked] == [pytest.approx(0.8), pytest.approx(0.2)]
    assert asked.trajectories[0].metrics == {"verifier": 1.0, "ruler": 0.5, "efficiency": 0.0}
    assert asked.trajectories[1].metrics["efficiency"] == pytest.approx(-0.2)


# -- what is refused before anything starts


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"judge": {"model": "openai/x", "max_cost": 0}}, "allows no verdict"),
        ({"judge": {"model": "openai/x", "max_cost": -1}}, "allows no verdict"),
        ({"judge": {"max_cost": 1}}, "judge.max_cost is set but judge.model is not"),
        ({"judge": {"panel": ["openai/x"]}}, "judge.panel is set but judge.model is not"),
        ({"judge": {"rubric_file": "x.txt"}}, "judge.rubric_file is set but judge.model is not"),
        ({"judge": {"model": "openai/x", "rubric": "a", "rubric_file": "b"}}, "both set"),
        ({"reward": {"weights": {"verifier": 0.5}}}, "add up to 1, not 0.5"),
        ({"reward": {"weights": {"verifier": 2.0, "short": -1.0}}}, "above 0"),
        ({"reward": {"weights": {"ruler": 1.0}}}, "names ruler but judge.model is not"),
        ({"judge": {"model": "openai/x"}, "reward": {"weights": {"verifier": 1.0}}}, "has no ruler"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        RunConfig(server="x", **fields)


def test_judges_that_cannot_be_asked_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    nothing = RewardConfig()
    with pytest.raises(ConfigError, match="needs OPENAI_API_KEY"):
        check_rewards(JudgeConfig(model="openai/gpt-4.1-mini"), nothing, {})
    local = {"base_url": "http://127.0.0.1:9/v1"}
    with pytest.raises(ConfigError, match="LiteLLM does not know the judge"):
        check_rewards(JudgeConfig(model="openai/x", panel=("no-such-model",), **local), nothing, {})
    with pytest.raises(ConfigError, match=r"Cannot read the judge's rubric .*missing.txt: No such file"):
        check_rewards(JudgeConfig(model="openai/x", rubric_file=tmp_path / "missing.txt", **local), nothing, {})
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(ConfigError, match="is empty"):
        check_rewards(JudgeConfig(model="openai/x", rubric_file=tmp_path / "empty.txt", **local), nothing, {})
    with pytest.raises(ConfigError, match=r"no price .* judge.price"):
        check_rewards(JudgeConfig(model="openai/unpriced", max_cost=1.0, **local), nothing, {})
    with pytest.raises(ConfigError, match="'shorter', which no plugin registers"):
        check_rewards(JudgeConfig(), RewardConfig(weights={"verifier": 0.5, "shorter": 0.5}), {})
    check_rewards(JudgeConfig(model="openai/priced", max_cost=1.0, price=(1.0, 2.0), **local), nothing, {})


async def test_the_rubric_comes_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "rubric.txt").write_text("Be kind above all.\n")
    with serve(by_answer) as server:
        await Scoring(judged_by(server, rubric_file=tmp_path / "rubric.txt"), KINDS).group(group("good", "bad"))
    assert "Be kind above all." in server.requests[0]["messages"][0]["content"]


# -- several judges, and the same one twice


def by_model(**marks: list[float]) -> Callable[[JudgeServer], Any]:
    """Let each model score the answers "0", "1", … by its marks."""

    def reply(server: JudgeServer) -> Any:
        def answer(prompt: str, ids: list[str]) -> str:
            model = server.requests[-1]["model"]
            last = {id: int(json.loads(text.splitlines()[-1])["content"]) for id, text in fenced(prompt).items()}
            return scores({id: marks[model][last[id]] for id in ids})

        return answer

    return reply


async def test_several_judges_are_averaged_and_their_agreement_told() -> None:
    with serve(every(0.0)) as server:
        server.replies = [by_model(one=[1.0, 0.5, 0.0], two=[0.6, 0.8, 0.1])(server)]
        scoring = Scoring(judged_by(server, model="openai/one", panel=("openai/two",)), KINDS)
        asked = await scoring.group(group("0", "1", "2"))
    assert asked.rewards == [pytest.approx(0.8), pytest.approx(0.65), pytest.approx(0.05)]
    assert asked.trajectories[0].metrics == {
        "ruler": pytest.approx(0.8),
        "ruler_openai/one": 1.0,
        "ruler_openai/two": 0.6,
    }
    assert asked.metadata["judge"]["agreement"] == pytest.approx(2 / 3)
    assert scoring.take_metrics()["judge_agreement"] == pytest.approx(2 / 3)
    assert {request["model"] for request in server.requests} == {"one", "two"}


def test_agreement_is_the_share_of_pairs_in_the_same_order() -> None:
    assert agreement([1, 2, 3], [0.1, 0.2, 0.3]) == 1 and agreement([1, 2, 3], [3, 2, 1]) == 0
    assert agreement([1, 2], [1, 1]) == 0.5 and agreement([1, 1], [2, 2]) == 1 and agreement([1], [2]) == 1


async def test_groups_judged_twice_measure_the_judges_noise() -> None:
    seen: dict[str, int] = {}

    def wavering(prompt: str, ids: list[str]) -> str:
        task = re.findall(r"Task \d+", prompt)[0]
        seen[task] = seen.get(task, 0) + 1
        return scores(dict.fromkeys(ids, 0.4 if seen[task] == 1 else 0.6))

    with serve(wavering) as server:
        scoring = Scoring(judged_by(server, repeat=0.5), KINDS)
        groups = [group("a", f"b {number}") for number in range(24)]
        for number, asked in enumerate(groups):
            asked.scenario = SCENARIO.model_copy(update={"task_description": f"Task {number}"})
            await scoring.group(asked)
        twice = [asked for asked in groups if "noise" in asked.metadata["judge"]]
        assert 5 <= len(twice) <= 19 and len(server.requests) == 24 + len(twice)
        assert all(asked.metadata["judge"]["noise"] == pytest.approx(0.2) for asked in twice)
        assert all(asked.rewards == [pytest.approx(0.5)] * 2 for asked in twice)
        assert scoring.take_metrics()["judge_noise"] == pytest.approx(0.2)


# -- what it costs


async def test_requests_are_on_disk_and_a_limit_spans_sessions(tmp_path: Path) -> None:
    with serve(too_few, by_answer) as server:
        # 100 prompt and 10 completion tokens a request: 0.0012 dollars
        config = judged_by(server, model="openai/dear", retries=2, price=(10.0, 20.0), max_cost=0.0061)
        check_rewards(config, RewardConfig(), {})
        scoring = Scoring(config, KINDS, folder=tmp_path)
        await scoring.group(group("good", "bad 1"))
        await scoring.group(group("good", "bad 2"))
        assert scoring.spent is not None and scoring.spent.cost_usd == pytest.approx(3 * 0.0012)
        metrics = scoring.take_metrics()
        assert metrics["judge_calls"] == 3 and metrics["judge_refused"] == 1 and metrics["judge_tokens"] == 330
        assert metrics["judge_cost_usd"] == pytest.approx(0.0036) and metrics["judge_seconds"] > 0

        with (tmp_path / "calls.jsonl").open("a") as file:
            file.write('{"model": "openai/de')  # a kill in the middle of a line
        again = Scoring(config, KINDS, folder=tmp_path)
        assert again.spent is not None and again.spent.cost_usd == pytest.approx(3 * 0.0012)
        with pytest.raises(JudgeBarred, match=r"cost limit of \$0.0061.*--max-judge-cost"):
            for number in range(3, 9):
                await again.group(group("good", f"bad {number}"))
        assert again.spent.cost_usd <= 0.0061
        third = Scoring(config, KINDS, folder=tmp_path)
        assert third.spent is not None and third.spent.cost_usd == pytest.approx(again.spent.cost_usd)
    lines = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()[:3]]
    assert [line["problem"] is None for line in lines] == [False, True, True]
    assert all(line["cost_usd"] == pytest.approx(0.0012) and line["seconds"] > 0 for line in lines)


async def test_a_replayed_group_costs_nothing_and_looks_new(tmp_path: Path) -> None:
    told = []
    with serve(by_answer) as server:
        for _ in range(2):
            scoring = Scoring(judged_by(server, repeat=1.0), KINDS, folder=tmp_path)
            asked = await scoring.group(group("good", "bad"))
            assert asked.rewards == [1.0, 0.0]
            judge = asked.metadata["judge"]
            assert all(request.pop("unix_seconds") for request in judge["requests"])
            told.append((scoring.take_metrics(), judge))
        assert len(server.requests) == 2
        assert told[0] == told[1] and told[0][0]["judge_calls"] == 2 and told[0][1]["cached"] is False
        assert scoring.spent is not None and scoring.spent.calls == 2
        alike = group("good", "bad")
        for number, trajectory in enumerate(alike, 1):
            trajectory.seed = number  # other rollouts that say the same
        await scoring.group(alike)
        assert len(server.requests) == 2
        assert scoring.take_metrics()["judge_cached"] == 1.0


# -- a judge that is down


async def test_a_judge_that_comes_back_is_waited_for_by_everyone() -> None:
    said: list[str] = []
    first: list[float] = []

    def returns(prompt: str, ids: list[str]) -> Any:
        first.append(time.monotonic())
        if time.monotonic() < first[0] + 0.3:
            return JSONResponse({"error": {"message": "overloaded"}}, status_code=503)
        return by_answer(prompt, ids)

    with serve(returns) as server:
        scoring = Scoring(judged_by(server, patience=3.0), KINDS, say=said.append)
        groups = [group("good", f"bad {number}") for number in range(6)]
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for asked in groups:
                    tasks.start_soon(scoring.group, asked)
    assert all(asked.rewards == [1.0, 0.0] for asked in groups)
    assert len(said) == 2 and "Everything waits" in said[0] and "answers again" in said[1]
    assert len(server.requests) <= 6 + 3 + 6, "nobody hammers a judge that is down"


async def test_a_judge_that_stays_down_stops_all_and_keeps_verdicts(tmp_path: Path) -> None:
    healthy = 3

    def dies(prompt: str, ids: list[str]) -> Any:
        if len(server.requests) > healthy:
            return JSONResponse({"error": {"message": "gone"}}, status_code=500)
        return by_answer(prompt, ids)

    def plan(number: int) -> GroupPlan:
        async def member(attempt: int) -> Trajectory:
            return group(f"good {number}").trajectories[0]

        async def worse(attempt: int) -> Trajectory:
            return group(f"bad {number}").trajectories[0]

        return GroupPlan(SCENARIO.model_copy(update={"id": f"s{number}"}), [member, worse])

    with serve(dies) as server:
        scoring = Scoring(judged_by(server, patience=0.2, concurrency=1), KINDS, folder=tmp_path)
        with anyio.fail_after(20), pytest.raises(JudgeStop, match="last whole step is kept"):
            await gather_groups(list(map(plan, range(6))), after_each=scoring.group, max_exceptions=1.0)
        healthy, before = 10_000, len(server.requests)
        again = Scoring(judged_by(server), KINDS, folder=tmp_path)
        groups = await gather_groups(list(map(plan, range(6))), after_each=again.group)
        assert len(server.requests) - before == 3, "the three verdicts that had come are not asked for again"
    assert all(asked.rewards == [1.0, 0.0] for asked in groups)


@pytest.mark.parametrize("code", [401, 403, 404])
async def test_a_judge_that_refuses_key_or_model_stops_all(code: int) -> None:
    with serve(status(code)) as server:
        asked = group("good", "bad")
        with pytest.raises(JudgeBarred) as caught:
            await Scoring(judged_by(server), KINDS).group(asked)
    assert caught.value.exit_code == 2 and len(server.requests) == 1
    assert [t.reward for t in asked] == [None, None]


async def test_a_group_that_the_judge_cannot_read_is_left_out() -> None:
    with serve(status(400, "the prompt is too long"), by_answer) as server:
        scoring = Scoring(judged_by(server), KINDS)
        asked = group("good", "bad")
        with pytest.raises(JudgeError) as caught:
            await scoring.group(asked)
        assert not isinstance(caught.value, JudgeStop) and [t.reward for t in asked] == [None, None]
        assert (await scoring.group(group("good", "bad"))).rewards == [1.0, 0.0]


# -- before and after


async def test_before_and_after_are_judged_side_by_side() -> None:
    scenarios = [SCENARIO.model_copy(update={"id": f"s{number}"}) for number in range(4)]

    def evaluated(*answers: str) -> list[TrajectoryGroup]:
        groups = [group(answer, "bad, sampled") for answer in answers]
        for scenario, made in zip(scenarios, groups, strict=True):
            made.scenario = scenario
        return groups

    before = evaluated("bad 1", "fair 2", "good 3", "good 4")
    after = evaluated("good 1", "good 2", "good 3", "fair 4")
    after[3].trajectories[0].reward = 0.25
    with serve(by_answer) as server:
        compared = await Scoring(judged_by(server), KINDS).compare(before, after)
        assert sorted(len(fenced(prompt)) for prompt in server.prompts) == [1, 2, 2, 2]  # one pair is alike
    assert compared == {
        "judge_before": pytest.approx(2.5 / 4),
        "judge_after": pytest.approx(3.5 / 4),
        "judge_better": 0.5,
        "judge_worse": 0.25,
        "judge_compared": 4.0,
    }
    assert after[3].trajectories[0].reward == 0.25 and after[0].trajectories[0].metrics == {}
    assert await Scoring(JudgeConfig(), KINDS).compare(before, after) == {}
