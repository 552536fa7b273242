"""The order of scenarios: none is skipped, solved ones come seldom, and the state continues it exactly."""

import hashlib
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mcp_rl.config import CurriculumConfig, RunConfig
from mcp_rl.errors import RunDirectoryError, ScenarioError
from mcp_rl.evaluation.difficulty import DIFFICULTY, DifficultyPool, read_difficulty, with_difficulty
from mcp_rl.run_directory import RunDirectory
from mcp_rl.runs.steps.curriculum import Curriculum
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.trajectory import StopReason, Trajectory, TrajectoryGroup

SERVER = StdioServer(command="true")
SCENARIOS = [McpScenario(task_description=f"Task {i}", server_params=SERVER, id=f"s{i}") for i in range(20)]


def outcome(scenario: McpScenario, solved: int, of: int = 4) -> TrajectoryGroup:
    tries = [Trajectory(scenario_id=scenario.id, success=i < solved, reward=float(i < solved)) for i in range(of)]
    return TrajectoryGroup(scenario=scenario, trajectories=tries)


def epoch(curriculum: Curriculum, solved: dict[str, int], size: int = 5) -> list[str]:
    """Take and play one epoch; return the ids in order."""
    taken: list[str] = []
    while not taken or curriculum.state["waiting"]:
        step = curriculum.take(min(size, len(curriculum.state["waiting"]) or size))
        curriculum.learned([outcome(s, solved[s.id]) for s in step])
        taken += [s.id for s in step]
    return taken


def test_the_first_epoch_has_every_scenario_once() -> None:
    curriculum = Curriculum(SCENARIOS, seed=1)
    assert sorted(epoch(curriculum, dict.fromkeys((s.id for s in SCENARIOS), 2))) == sorted(s.id for s in SCENARIOS)


def test_later_epochs_repeat_a_share_of_solved_scenarios() -> None:
    solved = {s.id: (4 if i < 12 else 0 if i < 15 else 2) for i, s in enumerate(SCENARIOS)}
    curriculum = Curriculum(SCENARIOS, seed=1)
    epoch(curriculum, solved)
    second = epoch(curriculum, solved)
    assert len(second) == len(set(second)) == 8 + 12 * CurriculumConfig().solved_share
    assert {name for name in solved if solved[name] < 4} <= set(second)
    assert set(epoch(curriculum, solved)) != set(second)


def test_if_all_are_solved_all_come_again() -> None:
    curriculum = Curriculum(SCENARIOS, seed=1)
    everything = dict.fromkeys((s.id for s in SCENARIOS), 4)
    epoch(curriculum, everything)
    assert len(epoch(curriculum, everything)) == len(SCENARIOS)


def test_a_step_never_has_a_scenario_twice() -> None:
    curriculum = Curriculum(SCENARIOS[:7], seed=3)
    for _ in range(10):
        step = curriculum.take(5)
        assert len({s.id for s in step}) == 5
    assert len(curriculum.take(9)) == 7


def test_a_step_is_full_even_if_nearly_all_is_solved() -> None:
    curriculum = Curriculum(SCENARIOS[:8], seed=3)
    solved = dict.fromkeys((s.id for s in SCENARIOS), 4) | {"s0": 2}
    for _ in range(12):
        step = curriculum.take(7)
        assert len({s.id for s in step}) == 7
        curriculum.learned([outcome(s, solved[s.id]) for s in step])


def test_the_state_continues_exactly() -> None:
    whole, first = Curriculum(SCENARIOS, seed=2), Curriculum(SCENARIOS, seed=2)
    for curriculum in (whole, first):
        curriculum.learned([outcome(s, i % 5) for i, s in enumerate(curriculum.take(13))])
    second = Curriculum(SCENARIOS, seed=2, state=json.loads(json.dumps(first.state)))
    for _ in range(6):
        ids = [s.id for s in whole.take(4)]
        assert [s.id for s in second.take(4)] == ids
        for curriculum in (whole, second):
            curriculum.learned([outcome(s, 4) for s in SCENARIOS if s.id in ids])


def test_the_default_order_is_pinned() -> None:
    """The built-in model's run was tuned with this very order."""
    curriculum = Curriculum([SCENARIOS[0].model_copy(update={"id": f"s{i}"}) for i in range(40)], seed=7)
    seen: list[str] = []
    for step in range(60):
        taken = curriculum.take(6)
        seen += [s.id for s in taken]
        curriculum.learned([outcome(s, (int(s.id[1:]) * 7 + step) % 5) for s in taken], step)
    assert hashlib.sha256(" ".join(seen).encode()).hexdigest().startswith("b6a5dfa1875dc079")


def test_pools_follow_the_last_visit() -> None:
    curriculum = Curriculum(SCENARIOS[:4], seed=0)
    assert curriculum.pools() == {
        DifficultyPool.UNSEEN: 4,
        DifficultyPool.TOO_HARD: 0,
        DifficultyPool.RIGHT: 0,
        DifficultyPool.SOLVED: 0,
    }
    curriculum.learned([outcome(s, solved) for s, solved in zip(SCENARIOS, (0, 2, 4), strict=False)], step=3)
    assert curriculum.pools() == dict.fromkeys(DifficultyPool, 1)
    curriculum.learned([outcome(SCENARIOS[0], 8, of=8)], step=5)
    found = curriculum.measured("s0")
    assert found is not None and curriculum.pool("s0") is DifficultyPool.SOLVED
    assert (found.pass_rate, found.step, found.visits, found.passed_ever, found.of_ever) == (1.0, 5, 2, 8, 12)


def test_levels_that_are_solved_or_too_hard_wait_for_those_between() -> None:
    levels = ["spelled", "told", "worked-out"]
    some = [one.model_copy(update={"level": levels[at % 3]}) for at, one in enumerate(SCENARIOS)]
    solved = {one.id: {"spelled": 4, "told": 2, "worked-out": 0}[one.level] for one in some}
    level = {one.id: one.level for one in some}
    curriculum = Curriculum(some, seed=3)
    order = epoch(curriculum, solved, size=3)
    assert sorted(order) == sorted(solved), "each comes once"
    assert curriculum.level_pool("spelled") is DifficultyPool.SOLVED
    assert curriculum.level_pool("worked-out") is DifficultyPool.TOO_HARD
    assert curriculum.level_pool("brought-about") is DifficultyPool.UNSEEN
    places = [at for at, name in enumerate(order) if level[name] == "told"]
    plain = epoch(Curriculum(some, seed=3, config=CurriculumConfig(level_share=1.0)), solved, size=3)
    assert sum(places) < sum(at for at, name in enumerate(plain) if level[name] == "told")
    halfway = Curriculum(some, seed=3)
    for _ in range(4):
        step = halfway.take(3)
        halfway.learned([outcome(s, solved[s.id]) for s in step])
    again = Curriculum(some, seed=3, state=json.loads(json.dumps(halfway.state)))
    assert [one.id for one in again.take(5)] == [one.id for one in halfway.take(5)]


def test_faults_and_rollouts_without_a_verdict_measure_nothing() -> None:
    broken = [
        Trajectory(scenario_id="s0", success=False, stop_reason=StopReason.FAULT),
        Trajectory(scenario_id="s0", reward=0.7),
    ]
    curriculum = Curriculum(SCENARIOS[:1], seed=0)
    curriculum.learned([TrajectoryGroup(scenario=SCENARIOS[0], trajectories=broken)])
    assert curriculum.pool("s0") is DifficultyPool.UNSEEN


def test_thresholds_decide_the_pools() -> None:
    curriculum = Curriculum(SCENARIOS, seed=0, config=CurriculumConfig(solved_at=0.75, too_hard_at=0.25))
    curriculum.learned([outcome(s, i) for i, s in enumerate(SCENARIOS[:5])])
    pools = [curriculum.pool(s.id) for s in SCENARIOS[:5]]
    assert pools == [
        DifficultyPool.TOO_HARD,
        DifficultyPool.TOO_HARD,
        DifficultyPool.RIGHT,
        DifficultyPool.SOLVED,
        DifficultyPool.SOLVED,
    ]
    with pytest.raises(ValidationError, match="too hard and solved at the same time"):
        RunConfig(server="x", curriculum=CurriculumConfig(solved_at=0.5, too_hard_at=0.5))


shares = st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0])
RATES = st.lists(st.integers(0, 4), min_size=1, max_size=25)


@settings(deadline=None, max_examples=60)
@given(RATES, shares, shares, st.integers(0, 2**32))
def test_an_epoch_has_each_pool_at_its_share_and_nothing_twice(
    rates: list[int], solved: float, hard: float, seed: int
) -> None:
    scenarios = [SCENARIOS[0].model_copy(update={"id": f"s{i}"}) for i in range(len(rates))]
    curriculum = Curriculum(scenarios, seed, config=CurriculumConfig(solved_share=solved, too_hard_share=hard))
    assert len(curriculum.take(len(scenarios))) == len(scenarios)
    curriculum.learned([outcome(s, rate) for s, rate in zip(scenarios, rates, strict=True)])
    pools = curriculum.pools()
    taken = curriculum.take(1) + [s for _ in range(len(curriculum.state["waiting"])) for s in curriculum.take(1)]
    ids = [s.id for s in taken]
    assert len(set(ids)) == len(ids)
    due = {
        DifficultyPool.RIGHT: pools[DifficultyPool.RIGHT],
        DifficultyPool.SOLVED: math.ceil(solved * pools[DifficultyPool.SOLVED]),
        DifficultyPool.TOO_HARD: math.ceil(hard * pools[DifficultyPool.TOO_HARD]),
        DifficultyPool.UNSEEN: 0,
    }
    if pools[DifficultyPool.SOLVED] == len(scenarios) or not sum(due.values()):
        due = pools
    assert {pool: [curriculum.pool(id) for id in ids].count(pool) for pool in DifficultyPool} == due


@settings(deadline=None, max_examples=25)
@given(RATES, st.integers(1, 9), st.integers(0, 2**32))
def test_every_scenario_is_visited_again_and_again(rates: list[int], size: int, seed: int) -> None:
    scenarios = [SCENARIOS[0].model_copy(update={"id": f"s{i}"}) for i in range(len(rates))]
    curriculum = Curriculum(scenarios, seed)
    for step in range(40 * len(rates) // size + 40):
        curriculum.learned([outcome(s, rates[int(s.id[1:])]) for s in curriculum.take(size)], step)
    visits = [found.visits for s in scenarios if (found := curriculum.measured(s.id))]
    assert len(visits) == len(scenarios) and min(visits) >= 2


@settings(deadline=None, max_examples=25)
@given(RATES, st.integers(1, 9), st.lists(st.integers(0, 29), max_size=4), st.integers(0, 2**32))
def test_a_continued_curriculum_takes_the_same_scenarios(
    rates: list[int], size: int, kills: list[int], seed: int
) -> None:
    scenarios = [SCENARIOS[0].model_copy(update={"id": f"s{i}"}) for i in range(len(rates))]
    whole, broken = Curriculum(scenarios, seed), Curriculum(scenarios, seed)
    for step in range(30):
        taken = whole.take(size)
        assert broken.take(size) == taken
        groups = [outcome(s, (rates[int(s.id[1:])] + step // 9) % 5) for s in taken]
        whole.learned(groups, step)
        broken.learned(groups, step)
        if step in kills:
            broken = Curriculum(scenarios, seed, json.loads(json.dumps(broken.state)))
    assert broken.state == whole.state


def test_difficulty_is_written_and_fills_scenarios(tmp_path: Path) -> None:
    curriculum = Curriculum(SCENARIOS[:3], seed=0)
    curriculum.learned([outcome(SCENARIOS[0], 1), outcome(SCENARIOS[1], 4)], step=2)
    run = RunDirectory(tmp_path)
    difficulty = curriculum.difficulty({"outcomes": {"s5": [1.0, 0.0], "s6": []}})
    run.write_files({DIFFICULTY: "".join(line.model_dump_json() + "\n" for line in difficulty)})
    lines = [json.loads(line) for line in (tmp_path / DIFFICULTY).read_text().splitlines()]
    assert [(line["id"], line["split"], line["pool"]) for line in lines] == [
        ("s0", "train", "right"), ("s1", "train", "solved"), ("s2", "train", "unseen"),
        ("s5", "val", "right"), ("s6", "val", "unseen"),
    ]  # fmt: skip
    assert read_difficulty(tmp_path) == {"s0": 0.25, "s1": 1.0, "s5": 0.5}
    known = SCENARIOS[1].model_copy(update={"difficulty": 0.9})
    filled = with_difficulty([SCENARIOS[0], known, SCENARIOS[2]], read_difficulty(tmp_path))
    assert [s.difficulty for s in filled] == [0.75, 0.9, None]


def test_a_damaged_difficulty_file_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / DIFFICULTY).write_text('{"id": "a", "split": "val", "pool": "right", "pass_rate": 3}\n')
    with pytest.raises(ScenarioError, match=r"difficulty.jsonl, line 1: .*less than or equal to 1"):
        read_difficulty(tmp_path)
    assert read_difficulty(tmp_path / "elsewhere") == {}


def test_a_missing_scenario_of_a_continued_run_is_named() -> None:
    first = Curriculum(SCENARIOS, seed=2)
    first.take(1)
    left = [scenario for scenario in SCENARIOS if scenario.id != first.state["waiting"][0]]
    with pytest.raises(RunDirectoryError, match="restore the file"):
        Curriculum(left, seed=2, state=first.state)
