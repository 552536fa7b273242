"""The plugin: scenarios of all levels from a database, their reference solutions on the live server, and rewards."""

import json
import shutil
from pathlib import Path

import pytest

from mcp_rl.cli import main
from mcp_rl.errors import ScenarioError
from mcp_rl.plugins.manager import Plugins, load_plugins
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.rewards.verifier import verify
from mcp_rl.scenario import McpScenario
from mcp_rl.trajectory import CallRecord, StopReason, Trajectory


@pytest.fixture
def plugins(small_database: Path, monkeypatch: pytest.MonkeyPatch) -> Plugins:
    monkeypatch.setenv("MCP_RL_EMAIL_DB", str(small_database))
    return load_plugins()


def scenarios(plugins: Plugins, count: int, levels: str, unsolvable: float = 0.0) -> list[McpScenario]:
    server = plugins.servers["mcp_email_search"]
    recipe = Recipe(count, levels=levels, unsolvable=unsolvable, without_tools=0.0)
    return list(plugins.scenario_sources["email_search"](None, server=server, params=server.params(), recipe=recipe))


def played(plugins: Plugins, scenario: McpScenario, *calls: tuple[str, dict, str], last: str | None = None):
    """Score an episode of these calls, which ends with a message if `last` is given."""
    records = [
        CallRecord(turn=turn, name=tool, tool=tool, arguments=arguments, result=result)
        for turn, (tool, arguments, result) in enumerate(calls)
    ]
    handed_in = next((c.arguments["answer"] for c in records if c.tool == "return_final_answer" and c.arguments), None)
    trajectory = Trajectory(
        scenario_id=scenario.id, calls=records, submission=handed_in,
        messages=[{"role": "assistant", "content": last}] if last is not None else [],
        stop_reason=StopReason.ANSWERED if handed_in or last else StopReason.MAX_TURNS,
    )  # fmt: skip
    verify(trajectory, scenario, plugins.verifiers)
    return trajectory


def test_levels_and_questions_without_an_answer_are_as_many_as_asked_for(plugins: Plugins) -> None:
    made = scenarios(plugins, 40, "spelled=0.5,told=0.5", unsolvable=0.1)
    levels = [s.level for s in made if "unsolvable" not in s.tags]
    assert (levels.count("spelled"), levels.count("told"), len(made)) == (18, 18, 40)
    for scenario in made:
        keywords = scenario.reference[0].arguments["keywords"]
        assert (f"'{keywords}'" in scenario.task_description) == (scenario.level == "spelled")
        assert (scenario.initial_state or {})["query_date"] in scenario.task_description or scenario.level == "spelled"
    assert {s.level for s in scenarios(plugins, 40, "mixed")} == {"spelled", "told", "looked-up"}


def test_a_better_answer_has_a_higher_reward(plugins: Plugins) -> None:
    scenario = next(s for s in scenarios(plugins, 30, "told") if s.verifier and s.verifier.options["compare"] == "text")
    assert scenario.verifier is not None
    (source,) = scenario.verifier.expected["message_ids"]
    right = scenario.verifier.expected["answer"]
    search = ("search_inbox", {"keywords": "x"}, f"text: …\nmessage_id: {source}")
    missed = ("search_inbox", {"keywords": "y"}, "No mail was found.")

    def answer(text: str, *ids: str):
        return ("return_final_answer", {"answer": text, "reference_message_ids": list(ids)}, "Handed in.")

    best = [
        played(plugins, scenario, search, answer(right, f"<{source}>")),
        played(plugins, scenario, search, answer(right, "7@a.example")),
        played(plugins, scenario, search, last=right),
        played(plugins, scenario, search, answer("I don't know", source)),
        played(plugins, scenario, missed, answer("I don't know")),
        played(plugins, scenario, search, answer("Zeppelin", source)),
        played(plugins, scenario, search, answer("Zeppelin")),
        played(plugins, scenario, search, last="Zeppelin"),
        played(plugins, scenario, missed, answer("Zeppelin")),
    ]
    rewards = [one.reward for one in best]
    assert rewards == sorted(rewards, key=lambda reward: -(reward or 0)) and len(set(rewards)) == len(rewards)
    assert [one.success for one in best] == [True] + [False] * 8
    many = [f"{n}@a.example" for n in range(9)]
    assert played(plugins, scenario, search, answer(right, source, *many)).reward == 0.7
    assert played(plugins, scenario, search).reward == rewards[7]


def test_a_question_without_an_answer_wants_a_search_and_a_no(plugins: Plugins) -> None:
    scenario = next(s for s in scenarios(plugins, 20, "told", unsolvable=0.1) if "unsolvable" in s.tags)
    search = ("search_inbox", {"keywords": "x"}, "No mail was found.")

    def answer(text: str):
        return ("return_final_answer", {"answer": text, "reference_message_ids": []}, "Handed in.")

    assert played(plugins, scenario, search, answer("I don't know.")).success
    assert played(plugins, scenario, answer("I don't know.")).reward == 0.0
    assert played(plugins, scenario, search, answer("Oslo")).reward == 0.0
    # what a tool says and a model repeats is no answer of its own
    assert played(plugins, scenario, search, last="There is no mail 'x' here").reward == 0.0


@pytest.mark.parametrize(
    ("answer", "said", "right"),
    [
        ("1,250", "It costs 1250 dollars.", True),
        ("2001-05-14", "on May 14, 2001", True),
        ("Phillip Allen", "phillip allen", True),
        ("The meeting with Enron Canada was moved to Thursday at the Houston office", "It moved to Thursday, to the "
         "Houston office: the meeting with Enron Canada", True),
        ("The meeting with Enron Canada was moved to Thursday at the Houston office", "It was moved", False),
    ],
)  # fmt: skip
def test_answers_of_the_users_own_questions_are_compared_by_what_they_are(
    answer: str, said: str, right: bool, small_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mail.db"
    shutil.copyfile(small_database, path)
    monkeypatch.setenv("MCP_RL_EMAIL_DB", str(path))
    plugins = load_plugins()
    row = next(row for row in map(dict, _questions(path)) if row["answer"])
    ids = json.loads(row["message_ids"])
    asked = {key: row[key] for key in ("question", "inbox_address", "query_date")} | {
        "answer": answer,
        "message_ids": ids,
    }
    (tmp_path / "q.jsonl").write_text(json.dumps(asked))
    from build_db import main as build

    assert build(["--questions", str(tmp_path / "q.jsonl"), "--database", str(path)]) == 0
    (scenario,) = scenarios(plugins, 10, "spelled")
    assert scenario.level == "told" and scenario.reference[0].tool == "read_email"
    handed_in = ("return_final_answer", {"answer": said, "reference_message_ids": ids}, "Handed in.")
    read = ("read_email", {"message_id": ids[0]}, "…")
    assert played(plugins, scenario, read, handed_in).success is right


def _questions(path: Path):
    from mail_database import MailDatabase

    return MailDatabase(path).questions()


def test_a_half_built_database_is_not_replaced_by_a_made_up_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCP_RL_EMAIL_DB", str(tmp_path / "mail.db"))
    (tmp_path / "mail.db.partial").touch()
    with pytest.raises(ScenarioError, match="is only half-built; go on with"):
        scenarios(load_plugins(), 10, "told")


def test_a_first_command_builds_a_small_company_and_its_references_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("MCP_RL_EMAIL_DB", str(tmp_path / "new" / "mail.db"))
    file = tmp_path / "s.jsonl"
    few = ["--count", "12", "--levels", "mixed", "--unsolvable", "0.1"]
    assert main(["generate", "--server", "mcp_email_search", *few, "--out", str(file)]) == 0
    assert "building one of a made-up company" in capfd.readouterr().err
    monkeypatch.chdir(tmp_path)
    models = ["--model", "scripted:reference", "--model", "scripted:refuse"]
    file.write_text(file.read_text().replace('"split": "train"', '"split": "val"'))
    told = ["evaluate", "--server", "mcp_email_search", "--scenarios", str(file), *models, "--greedy", "--json"]
    assert main(told) == 0
    report = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert [model["result"]["greedy"]["success"] for model in report["models"]] == [1.0, 0.0]
