"""A whole run with a judge: real server, model and learner, and a loopback judge that knows the right answers."""

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.judge_server import fenced, scores, serve
from mcp_rl.config import RunConfig
from mcp_rl.runs.train import run_training
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall, Verifier, scenario_lines

SCENARIOS = [
    McpScenario(
        task_description=f"add {number} and 1",
        server_params=StdioServer(command="server"),
        verifier=Verifier(kind="number", expected=number + 1),
        reference=(ToolCall(tool="add", arguments={"a": number, "b": 1}),),
        split="val" if number % 2 else "train",
    )
    for number in range(2, 10)
]


def last_number_is_the_sum(prompt: str, ids: list[str]) -> str:
    """Score as the verifier does: by the sum, from a tool, at the end of the last message."""
    found = re.search(r"add (\d+) and 1", prompt)
    assert found is not None
    due = float(found[1]) + 1

    def score(record: str) -> float:
        last = json.loads(record.splitlines()[-1])
        numbers = re.findall(r"-?\d+(?:\.\d+)?", last.get("content") or "")
        called = '"role": "tool"' in record or '"role":"tool"' in record
        return 0.9 if last["role"] == "assistant" and called and numbers and float(numbers[-1]) == due else 0.1

    return scores({id: score(record) for id, record in fenced(prompt).items()})


async def test_a_judged_run_reports_agreement_with_the_verifier(tmp_path: Path) -> None:
    (tmp_path / "scenarios.jsonl").write_text(scenario_lines(SCENARIOS))
    with serve(last_number_is_the_sum) as server:
        config = RunConfig(
            server="mcp_calculator",
            name="judged",
            output_dir=tmp_path,
            steps=1,
            scenarios={"file": tmp_path / "scenarios.jsonl"},
            rollout={"groups_per_step": 4, "group_size": 6, "max_turns": 3},
            train={"learning_rate": 1e-6},
            evaluation={"samples": 3},
            judge={"model": "openai/judge", "base_url": server.url},
        )
        report = await run_training(config, console=Console(file=StringIO()))
    judged = json.loads((config.run_dir / "report.json").read_text())["details"]["judge"]
    assert judged == report.details["judge"]
    assert set(judged["agreement"]) == {"before", "after"}
    for agreed in judged["agreement"].values():
        assert agreed["judge"] == "openai/judge" and agreed["groups"] > 0 and agreed["pairs"] > 0
        assert agreed["agreement"] == pytest.approx(1.0)
        assert agreed["rank_correlation"] == pytest.approx(1.0)
    steps = [json.loads(line) for line in (config.run_dir / "history.jsonl").read_text().splitlines()]
    trained = [step for step in steps if step["split"] == "train"]
    assert [step["groups_useful"] > 0 for step in trained] == [True]
    for step in trained:
        assert step["judge_pairwise_agreement"] == pytest.approx(1.0)
        assert step["judge_rank_correlation"] == pytest.approx(1.0)
    assert judged["spent"]["calls"] == len(server.requests)
