"""A whole run whose episodes an agent program plays: real server, model and learner, by Anthropic's Messages."""

import json
import sys
from io import StringIO
from pathlib import Path

import anyio
import pytest
from rich.console import Console

from mcp_rl.cli import main
from mcp_rl.config import RunConfig
from mcp_rl.runs.train import run_training
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall, Verifier, scenario_lines

FUNCTION = """
import json, urllib.request
async def play(episode):
    headers = {"Authorization": f"Bearer {episode.api_key}", "Content-Type": "application/json"}
    body = {"model": episode.model, "messages": [{"role": "user", "content": episode.task}]}
    request = urllib.request.Request(f"{episode.base_url}/chat/completions", json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
"""
AGENT = Path(__file__).parents[1] / "rollouts/protocols_agent.py"


def scenario(number: int) -> McpScenario:
    return McpScenario(
        task_description=f"Increase {number} by 7.",
        server_params=StdioServer(command="server"),
        verifier=Verifier(kind="number", expected=number + 7),
        reference=(ToolCall(tool="add", arguments={"a": number, "b": 7}),),
        split="train" if number % 2 else "val",
    )


async def test_a_run_learns_from_what_a_program_samples(tmp_path: Path) -> None:
    (tmp_path / "scenarios.jsonl").write_text(scenario_lines([scenario(11), scenario(13), scenario(12)]))
    config = RunConfig(
        server="mcp_calculator",
        name="agent",
        output_dir=tmp_path,
        steps=1,
        scenarios={"file": tmp_path / "scenarios.jsonl"},
        rollout={
            "agent": f"{sys.executable} -I -S {AGENT} messages",
            "groups_per_step": 2,
            "group_size": 3,
            "probes": 0,
        },
        evaluation={"samples": 1, "greedy": False},
    )
    shown = StringIO()
    report = await run_training(config, console=Console(file=shown, width=400))
    [step] = [line for line in map(json.loads, (config.run_dir / "history.jsonl").open()) if line["split"] == "train"]
    assert report.train.faults == 0 and report.train.rollouts == 6
    assert step["trajectories_trained"] > 0
    assert step["logprob_difference_max"] < 1e-3  # the learner sees what was sampled
    assert step["tools_seconds"] > step["sampling_seconds"]  # the program's own time is named
    assert shown.getvalue().count("answers to every name") == 1
    (tmp_path / "agent.py").write_text(FUNCTION)
    said = await anyio.run_process(
        [
            *(sys.executable, "-m", "mcp_rl", "evaluate", "--server", "mcp_calculator", "--output-dir", str(tmp_path)),
            *("--agent", f"{tmp_path}/agent.py:play", "--model", "mcp-rl/tiny", "--model", "agent"),
            *("--scenarios", str(tmp_path / "scenarios.jsonl"), "--samples", "2", "--no-greedy", "--json"),
        ]
    )
    compared = json.loads(said.stdout)
    assert [model["model"] for model in compared["models"]] == ["mcp-rl/tiny", "agent@1"]
    assert len(compared["comparisons"]) == 1


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ("no-such-program --fast", "The agent's command 'no-such-program' cannot be run: check its name and PATH."),
        ("python my_agnt.py", "The agent's program 'my_agnt.py' does not exist in "),
        ("python 'my_agent.py", "is not a command: No closing quotation."),
        ("", "The agent is an empty command"),
        ("my_agnt.py:play", "The agent's file 'my_agnt.py' cannot be read: No such file"),
        ("agent.py:paly", "The agent's file 'agent.py' has no function 'paly'; there are: play."),
        ("no_such_module:play", "The agent's module 'no_such_module' is neither in "),
    ],
)
def test_an_agent_that_cannot_be_started_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], agent: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text("async def play(task): ...")
    for command in (["train"], ["evaluate", "--model", "mcp-rl/tiny"]):
        assert main([*command, "--server", "mcp_calculator", "--agent", agent]) == 2
        assert said in capsys.readouterr().err


def test_an_agent_program_cannot_ask_a_remote_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["evaluate", "--server", "mcp_calculator", "--model", "scripted:refuse", "--agent", sys.executable]
    assert main(command) == 2
    assert "scripted:refuse is not: leave --agent out" in capsys.readouterr().err
