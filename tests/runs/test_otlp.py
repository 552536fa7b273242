"""A run as traces, received by a collector on loopback: real times, ids that stay, no texts unless asked for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mcp_rl.config import RunConfig
from mcp_rl.errors import NotDelivered
from mcp_rl.run_directory import read_groups
from mcp_rl.runs.trackers.otlp import OpenTelemetryTraces
from mcp_rl.runs.train import run_training
from tests.runs.collector import Collector, attributes, collecting
from tests.runs.judged_episode import SECRET, judged_episode

SMALL: dict[str, Any] = {
    "scenarios": {"count": 12, "val": 3},
    "rollout": {"groups_per_step": 2, "group_size": 2, "max_turns": 2, "max_turn_tokens": 24},
    "evaluation": {"samples": 1, "greedy": False},
    "train": {"epochs": 1},
}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        yield collector


def inside(inner: Any, outer: Any) -> bool:
    return bool(
        outer.start_time_unix_nano <= inner.start_time_unix_nano <= inner.end_time_unix_nano <= outer.end_time_unix_nano
    )


async def test_a_run_is_traced_without_its_texts(collector: Collector, tmp_path: Path) -> None:
    config = RunConfig(
        server="mcp_calculator", trackers="otlp", name="traced", steps=1, output_dir=tmp_path / "runs", **SMALL
    )
    await run_training(config, console=Console(quiet=True))
    run = config.run_dir
    groups = {
        (split, step): list(read_groups(run / f"trajectories/{split}/{step:04d}.jsonl"))
        for split, step in (("val", 0), ("train", 1), ("val", 1))
    }
    played = [t for each in groups.values() for group in each for t in group]
    episodes = collector.roots("invoke_agent traced")
    assert len(episodes) == len(played) and len({span.trace_id for span in episodes}) == len(episodes)
    assert collector.resource["service.name"] == "mcp-rl"
    assert collector.resource["deployment.environment.name"] == "test"
    (step,) = collector.roots("train step")
    (update,) = collector.below(step)
    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    (line,) = [line for line in history if line["split"] == "train"]
    assert update.name == "update" and inside(update, step) and attributes(step)["mcp_rl.reward"] == line["reward"]
    seconds = (update.end_time_unix_nano - update.start_time_unix_nano) / 1e9
    assert 0 < seconds <= line["updating_seconds"] + 0.1
    turns = calls = 0
    for root in episodes:
        assert [link.trace_id for link in root.links] == [
            one.trace_id
            for one in (*collector.roots("train step"), *collector.roots("evaluation"))
            if attributes(one)["mcp_rl.step"] == attributes(root)["mcp_rl.step"]
            and attributes(one)["mcp_rl.split"] == attributes(root)["mcp_rl.split"]
        ]
        for span in collector.below(root):
            assert span.trace_id == root.trace_id and inside(span, root)
            turns += attributes(span)["gen_ai.operation.name"] == "chat"
            calls += attributes(span)["gen_ai.operation.name"] == "execute_tool"
    assert turns == sum(t.turns for t in played) and calls == sum(len(t.calls) for t in played)
    update_began = update.start_time_unix_nano
    trained = [span for span in episodes if attributes(span)["mcp_rl.split"] == "train"]
    assert all(span.end_time_unix_nano <= update_began for span in trained)
    task = groups["train", 1][0].scenario.task_description.encode()
    assert not any(task in body or b"messages" in body or b"call.arguments" in body for body in collector.bodies)


def test_the_conventions_are_followed_and_secrets_never_sent(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", SECRET)
    config = RunConfig(server="x", name="run", tracking={"texts": True})
    for _ in range(2):  # two sessions of one run
        tracker = OpenTelemetryTraces(tmp_path, config)
        tracker.log("train", 4, {"reward": 0.25})
        tracker.log_trajectories("train", 4, [judged_episode()], (1013.0, 1014.0))
        tracker.close()
    assert len({span.span_id for span in collector.spans}) * 2 == len(collector.spans), "spans keep their ids"
    del collector.spans[len(collector.spans) // 2 :]
    (root,), (step,) = collector.roots("invoke_agent run"), collector.roots("train step")
    told = attributes(root)
    assert told["gen_ai.operation.name"] == "invoke_agent" and told["gen_ai.agent.name"] == "run"
    assert (told["gen_ai.response.model"], told["mcp_rl.stop_reason"]) == ("run@3", "answered")
    names = [(span.name, span.kind, attributes(span).get("error.type")) for span in collector.below(root)]
    assert names == [
        ("chat run", 1, None),
        ("execute_tool unknown", 3, "refused"),
        ("chat run", 1, None),
        ("execute_tool add", 3, None),
        ("chat run", 1, None),
        ("execute_tool get", 3, None),
    ]
    chats = [attributes(span) for span in collector.below(root) if span.name == "chat run"]
    tokens = [(chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) for chat in chats]
    assert tokens == [(2, 2), (5, 1), (8, 1)]
    assert json.loads(chats[2]["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "Done."}]}
    ]
    asked = json.loads(chats[2]["gen_ai.input.messages"])
    assert [message["role"] for message in asked] == ["user", "assistant", "tool", "assistant", "tool"]
    assert asked[-1]["parts"] == [{"type": "tool_call_response", "id": "call_1", "response": "${A_TOKEN}!"}]
    (add,) = [attributes(span) for span in collector.below(root) if span.name == "execute_tool add"]
    assert (add["mcp.method.name"], add["gen_ai.tool.call.id"]) == ("tools/call", "call_1")
    assert json.loads(add["gen_ai.tool.call.arguments"]) == {"a": "${A_TOKEN}"}
    (verdict,) = root.events
    assert verdict.name == "gen_ai.evaluation.result"
    assert attributes(verdict) == {
        "gen_ai.evaluation.name": "reward",
        "gen_ai.evaluation.score.value": 0.25,
        "gen_ai.evaluation.score.label": "fail",
        "gen_ai.evaluation.explanation": "Half of it.",
    }
    judged, update = collector.below(step)
    assert (judged.name, update.name) == ("chat openai/judge", "update")
    assert attributes(judged)["gen_ai.provider.name"] == "openai" and judged.links[0].trace_id == root.trace_id
    assert not any(SECRET.encode() in body for body in collector.bodies)


def test_a_collector_that_refuses_is_tried_again(collector: Collector, tmp_path: Path) -> None:
    collector.status = 400
    tracker = OpenTelemetryTraces(tmp_path, RunConfig(server="x", name="run"))
    with pytest.raises(NotDelivered, match=f"{collector.url} does not take spans"):
        tracker.log_trajectories("train", 1, [judged_episode()], None)
    collector.status = 200
    tracker.log_trajectories("train", 1, [judged_episode()], None)
    tracker.close()
    assert len(collector.roots("invoke_agent")) == 1
