"""`mcp-rl evaluate` and `mcp-rl export-trajectories` as commands."""

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_rl.cli import main
from mcp_rl.evaluation.result import EvaluationReport
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall, Verifier, scenario_lines
from mcp_rl.trajectory import TrajectoryGroup
from tests.cassettes import recorded_calls
from tests.evaluation.chat_server import call, serve

CALCULATOR = StdioServer(
    command="{python}", args=("{bundled}/servers/python/mcp_calculator/server.py", "--transport", "stdio")
)
Captured = pytest.CaptureFixture[str]


def scenario(a: int, **fields: Any) -> McpScenario:
    about: dict[str, Any] = {
        "task_description": f"Add {a} and 1.",
        "server_params": CALCULATOR,
        "server": "mcp_calculator",
        "verifier": Verifier(kind="number", expected=a + 1),
        "reference": (ToolCall(tool="add", arguments={"a": a, "b": 1}),),
    }
    return McpScenario(**{**about, **fields})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with six scenarios, one of them marked for training."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    scenarios = [scenario(a) for a in range(5)] + [scenario(9, split="train")]
    (tmp_path / "some.jsonl").write_text(scenario_lines(scenarios))
    return tmp_path


def evaluate(*words: str) -> int:
    return main(["evaluate", "--server", "mcp_calculator", "--transport", "stdio", *words])


def evaluate_replayed(*words: str) -> int:
    """Evaluate with the calculator's recorded answers, for models that make the same calls on every machine."""
    return evaluate(*recorded_calls("calculator"), *words)


def adds_up_to_2(body: dict[str, Any], number: int) -> dict[str, Any]:
    """Answer correctly for the smaller numbers alone."""
    messages = body["messages"]
    if not messages[0]["content"].startswith("Add"):  # the small request before all episodes
        return {"content": "ready"}
    a = int(messages[0]["content"].split()[1])
    if messages[-1]["role"] == "tool":
        return {"content": f"The result is {messages[-1]['content']}."}
    return call("add", {"a": a, "b": 1 if a < 3 else 2})


def test_models_of_every_kind_play_the_same_scenarios(here: Path, capsys: Captured) -> None:
    with serve(adds_up_to_2) as server:
        words = ["--model", "mcp-rl/tiny", "--model", f"openai/mine@{server.url}", "--model", "scripted:reference"]
        assert evaluate(*words, "--scenarios", "some.jsonl", "--samples", "2", "--name", "first", "--json") == 0
    out, err = capsys.readouterr()
    printed = json.loads(out)
    folder = here / ".mcp_rl" / "default" / "evaluations" / "first"
    report = EvaluationReport.model_validate_json((folder / "report.json").read_bytes())
    assert [(m.model, m.kind) for m in report.models] == [
        ("mcp-rl/tiny", "base"), ("openai/mine", "chat"), ("scripted:reference", "scripted")
    ]  # fmt: skip
    tiny, chat, reference = report.models
    assert report.scenarios == 5 and "those 1 marked for training left out" in report.scenarios_from
    assert tiny.result.greedy is not None and chat.result.greedy is None
    assert chat.result.sampled is not None and reference.result.sampled is not None
    assert (chat.result.sampled.success, reference.result.sampled.success) == (0.6, 1.0)
    assert chat.result.sampled.pass_hat == {1: 0.6, 2: 0.6}
    assert chat.result.sampled.prompt_tokens == 2000 and chat.result.sampled.cost_per_1000 is None
    assert len(report.comparisons) == 3 + 1
    pair = next(c for c in report.comparisons if (c.model, c.against) == ("scripted:reference", "openai/mine"))
    assert (pair.difference, pair.wins, pair.losses) == (pytest.approx(0.4), 2, 0)
    assert printed["models"][1]["result"]["sampled"]["success"] == 0.6 and "outcomes" not in printed["models"][0]
    for model in report.models:
        lines = (folder / model.episodes).read_text().splitlines()
        groups = [TrajectoryGroup.model_validate_json(line) for line in lines]
        assert [group.scenario.id for group in groups] == [scenario(a).id for a in range(5)]
        assert {len(group) for group in groups} == {2 if model.kind == "chat" else 3}
    written = (folder / "report.md").read_text()
    assert "openai/mine" in written and "| pass@1 |" in written
    assert "pass@1" in err and "scripted:reference" in err


def test_the_same_seed_gives_the_same_episodes(here: Path) -> None:
    def words(name: str) -> list[str]:
        return ["--model", "mcp-rl/tiny", "--scenarios", "some.jsonl", "--count", "3", "--samples", "2", "--name", name]

    assert evaluate(*words("a")) == evaluate(*words("b")) == 0
    folders = [here / ".mcp_rl" / "default" / "evaluations" / name for name in ("a", "b")]
    results = [json.loads((folder / "report.json").read_text())["models"][0]["result"] for folder in folders]
    assert results[0]["outcomes"] == results[1]["outcomes"] and results[0]["scenarios"] == 3
    episodes = [(folder / "episodes" / "mcp-rl-tiny.jsonl").read_text().splitlines() for folder in folders]
    tokens = [[[t["segments"] for t in json.loads(line)["trajectories"]] for line in lines] for lines in episodes]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--model mcp-rl/tiny"),
        (["--model", "calc"], "There is no model 'calc'"),
        (["--model", "calc@3"], "There is no run 'calc'"),
        (["--model", "openai/gpt-4.1-mini"], "OPENAI_API_KEY"),
        (["--model", "scripted:reference", "--model", "scripted:reference"], "twice"),
        (["--model", "scripted:reference", "--scenarios", "none.jsonl"], "none.jsonl"),
        (["--model", "scripted:reference", "--scenarios", "others.jsonl"], "was made for the server 'mcp_notes'"),
        (["--model", "scripted:reference", "--scenarios", "training.jsonl"], "marked for training"),
        (["--model", "scripted:reference", "--scenarios", "some.jsonl", "--name", "a/b"], "'a/b'"),
        (["--model", "scripted:reference", "--base-url", "http://127.0.0.1:9/v1"], "none of the models"),
        (["--model", "scripted:reference", "--samples", "0"], "--samples"),
        (["--model", "scripted:reference", "rollout.max_turn=3"], "'rollout.max_turns'"),
        (["--model", "scripted:reference", "--judge-model", "openai/gpt-4.1-mini"], "OPENAI_API_KEY"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_starts(
    words: list[str], said: str, here: Path, capsys: Captured
) -> None:
    (here / "others.jsonl").write_text(scenario_lines([scenario(1, server="mcp_notes")]))
    (here / "training.jsonl").write_text(scenario_lines([scenario(1, split="train")]))
    before = set(here.iterdir())
    assert evaluate(*words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and said in err, err
    assert set(here.iterdir()) == before


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"server": "mcp_notes"}, "was trained on the server 'mcp_notes', not on 'mcp_calculator'"),
        ({"schema_hash": "0123456789abcdef"}, "was trained on other tool schemas of mcp_calculator"),
    ],
)
def test_a_run_of_another_server_or_other_tools_is_refused(
    about: dict[str, str], said: str, here: Path, capsys: Captured
) -> None:
    run = here / ".mcp_rl" / "default" / "models" / "calc"
    run.mkdir(parents=True)
    identity = {"server": "mcp_calculator", "base_model": "mcp-rl/tiny", "seed": 0, "schema_hash": "x"}
    content = {"base_model": "mcp-rl/tiny", "identity": {**identity, "scenarios_hash": "x", **about}}
    (run / "model.json").write_text(json.dumps(content))
    assert evaluate_replayed("--model", "calc@0", "--scenarios", "some.jsonl") == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
    assert not list(here.rglob("*.jsonl.tmp")) and not list(here.rglob("episodes"))


def test_a_chat_model_that_refuses_its_key_costs_no_episode(here: Path, capsys: Captured) -> None:
    from tests.evaluation.chat_server import failure

    with serve(lambda body, number: failure(401, "Incorrect API key provided")) as server:
        words = ["--model", "openai/mine", "--base-url", server.url, "--scenarios", "some.jsonl"]
        assert evaluate_replayed(*words) == 2
        assert len(server.requests) == 1
    assert "Incorrect API key" in capsys.readouterr().err
    assert not list(here.rglob("episodes"))


def test_episodes_are_exported_as_openai_messages(here: Path, capsys: Captured) -> None:
    words = ["--model", "scripted:reference", "--model", "scripted:refuse", "--scenarios", "some.jsonl"]
    assert evaluate_replayed(*words, "--samples", "1", "--no-greedy", "--name", "e") == 0
    folder = ".mcp_rl/default/evaluations/e"
    assert main(["export-trajectories", folder, "--out", "all.jsonl"]) == 0
    assert main(["export-trajectories", folder, "--out", "good.jsonl", "--only-successful"]) == 0
    every, good = ([json.loads(line) for line in Path(name).read_text().splitlines()] for name in
                   ("all.jsonl", "good.jsonl"))  # fmt: skip
    assert (len(every), len(good)) == (10, 5)
    assert {line["metadata"]["model"] for line in good} == {"scripted:reference"}
    first = good[0]["messages"]
    assert [message["role"] for message in first] == ["user", "assistant", "tool", "assistant"]
    assert first[1]["tool_calls"][0]["id"] == first[2]["tool_call_id"] and "name" not in first[2]
    assert "add" in [tool["function"]["name"] for tool in good[0]["tools"]]
    capsys.readouterr()
    refused = f"{folder}/episodes/scripted-refuse.jsonl"
    assert main(["export-trajectories", refused, "--out", "x", "--only-successful"]) == 2
    assert main(["export-trajectories", "nowhere", "--out", "x"]) == 2
    assert main(["export-trajectories", "some.jsonl", "--out", "x"]) == 2
    assert capsys.readouterr().err.count("\n") == 3 and not Path("x").exists()


def test_episodes_are_exported_as_logs_of_inspect(here: Path) -> None:
    log = pytest.importorskip("inspect_ai.log")
    words = ["--model", "scripted:reference", "--scenarios", "some.jsonl", "--samples", "2", "--name", "e"]
    assert evaluate_replayed(*words) == 0
    folder = ".mcp_rl/default/evaluations/e"
    assert main(["export-trajectories", folder, "--format", "inspect", "--out", "logs"]) == 0
    read = log.read_eval_log("logs/scripted-reference.eval")
    assert read.results.scores[0].metrics["accuracy"].value == 1.0
    assert (len(read.samples), read.eval.model, read.eval.config.epochs) == (15, "scripted:reference", 3)
    sample = next(sample for sample in read.samples if sample.id == scenario(0).id)
    assert [message.role for message in sample.messages] == ["user", "assistant", "tool", "assistant"]
    assert sample.messages[1].tool_calls[0].arguments == {"a": 0, "b": 1}
    assert sample.scores["success"].value == "C" and sample.target == "1"
