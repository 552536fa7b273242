"""Tasks that change a state, made for stateful servers and played on them."""

import shutil
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_rl.evaluation.scripted import SCRIPTS, ScriptedSetting
from mcp_rl.inference.chat.calls import ParsedCall
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.rewards.verifier import verify
from mcp_rl.rollouts.agents.demonstrating import Said, Script
from mcp_rl.rollouts.player import SettingPlayer
from mcp_rl.rollouts.speaker import Limits
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall, scenario_lines
from mcp_rl.scenarios.broken import BrokenScenario, broken_scenarios
from mcp_rl.scenarios.explored import explored_scenarios
from mcp_rl.scenarios.split import overlap, split
from mcp_rl.scenarios.stateful import Proposal, Walks
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.session import Session
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.trajectory import Trajectory

RECIPE = Recipe(40, seed=2)
CHANGING = {"write_note", "create_note", "append_to_note", "replace_text", "rename_note", "delete_note", "tag_note"}


def notes_server() -> ToolServer:
    script = str(Path(__file__).with_name("notes_server.py"))
    params = {"stdio": StdioServer(command=sys.executable, args=(script,))}
    return ToolServer("notes", "Notes.", params, isolation="reset", reset_tool="start_over", instances=2)


async def explored(server: ToolServer, recipe: Recipe = RECIPE) -> list[McpScenario]:
    async with Sessions(server=server) as sessions:
        return await explored_scenarios(sessions, server=server, params=server.params("stdio"), recipe=recipe)


async def findings(server: ToolServer, scenarios: Sequence[McpScenario]) -> list[BrokenScenario]:
    async with Sessions(server=server) as sessions:
        return await broken_scenarios(sessions, server.params("stdio"), scenarios)


async def passes(server: ToolServer, played: Sequence[tuple[McpScenario, Script]]) -> list[bool]:
    """Play each script and return whether the scenario's verifier accepts it."""
    verifiers = load_plugins().verifiers
    limits = Limits(max_turns=8)

    async with Sessions(server=server) as sessions:
        results: list[bool] = [False] * len(played)

        async def one(index: int, scenario: McpScenario, script: Script) -> None:
            def finish(scenario: McpScenario, trajectory: Trajectory) -> None:
                verify(trajectory, scenario, verifiers)

            player = SettingPlayer(
                lambda session: ScriptedSetting(script, session), sessions, limits=limits, finish=finish
            )
            trajectory = await player.play(scenario, seed=0)
            assert trajectory.fault is None, trajectory.fault
            results[index] = bool(trajectory.success)

        async with anyio.create_task_group() as tasks:
            for index, (scenario, script) in enumerate(played):
                tasks.start_soon(one, index, scenario, script)
    return results


def leaving_out(step: int) -> Script:
    """Return a script of the reference solution without one of its calls."""

    def script(scenario: McpScenario, session: Session) -> list[Said]:
        names = session.schemas.to_openai
        calls = [c for index, c in enumerate(scenario.reference) if index != step]
        return [*(("", [ParsedCall(names[c.tool], dict(c.arguments))]) for c in calls), ("It is done.", [])]

    return script


@pytest.fixture(scope="module", params=["notes", "mcp_notes"])
def server(request: pytest.FixtureRequest) -> ToolServer:
    if request.param == "notes":
        return notes_server()
    if shutil.which("node") is None:
        pytest.skip("needs Node.js")
    return replace(load_plugins().server("mcp_notes"), instances=2)  # not as many as the machine can bear


@pytest.fixture(scope="module")
def scenarios(server: ToolServer) -> list[McpScenario]:
    return anyio.run(explored, server)


def changing(scenarios: Sequence[McpScenario]) -> list[McpScenario]:
    return [s for s in scenarios if s.verifier is not None and s.verifier.kind == "state"]


def test_tasks_of_all_lengths_change_the_state_and_hold(server: ToolServer, scenarios: list[McpScenario]) -> None:
    assert len(scenarios) == RECIPE.count
    lengths = Counter(len(s.reference) for s in changing(scenarios))
    assert len(lengths) >= 3 and max(lengths) >= 3
    assert sum(lengths.values()) >= 16
    assert anyio.run(findings, server, scenarios) == []


def test_the_reset_tool_is_no_part_of_any_task(server: ToolServer, scenarios: list[McpScenario]) -> None:
    assert server.reset_tool not in {call.tool for s in scenarios for call in s.reference}


def test_the_same_seed_gives_the_same_tasks(server: ToolServer, scenarios: list[McpScenario]) -> None:
    assert scenario_lines(anyio.run(explored, server)) == scenario_lines(scenarios)


def test_no_arguments_are_drawn_for_too_many_of_a_kind_nor_in_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    propose, move = Walks._proposal, Walks._move
    drawn: list[str] = []
    full: list[str] = []

    def proposed(self: Walks, steps: int, tool: str, most_alike: float) -> Proposal | None:
        assert threading.current_thread() is not threading.main_thread()
        before, enough = len(drawn), steps == 1 and self._alike[self._kind([tool])] >= most_alike
        found = propose(self, steps, tool, most_alike)
        if enough:
            full.append(tool)
            assert found is None and len(drawn) == before
        return found

    def moved(self: Walks, name: str, *earlier: Any) -> Any:
        drawn.append(name)
        return move(self, name, *earlier)

    monkeypatch.setattr(Walks, "_proposal", proposed)
    monkeypatch.setattr(Walks, "_move", moved)
    anyio.run(explored, notes_server(), Recipe(120, seed=2, max_steps=1))
    assert drawn and full


def test_the_reference_is_accepted_and_doing_nothing_is_not(server: ToolServer, scenarios: list[McpScenario]) -> None:
    solved = anyio.run(passes, server, [(s, SCRIPTS["reference"]) for s in scenarios])
    assert all(solved)
    refused = anyio.run(passes, server, [(s, SCRIPTS["refuse"]) for s in scenarios])
    assert [s.tags for s, passed in zip(scenarios, refused, strict=True) if passed and "unsolvable" not in s.tags] == []


def test_no_changing_step_can_be_left_out(server: ToolServer, scenarios: list[McpScenario]) -> None:
    shorter = [
        (s, leaving_out(step))
        for s in changing(scenarios)
        for step, call in enumerate(s.reference)
        if call.tool in CHANGING
    ]
    assert len(shorter) > 25
    assert not any(anyio.run(passes, server, shorter))


def test_a_changed_final_state_is_found(server: ToolServer, scenarios: list[McpScenario]) -> None:
    one = changing(scenarios)[0]
    assert one.verifier is not None
    other = one.model_copy(
        update={"verifier": one.verifier.model_copy(update={"expected": [
            {**read, "result": "something else"} if isinstance(read, dict) and "result" in read else read
            for read in one.verifier.expected  # type: ignore[union-attr]
        ]})}
    )  # fmt: skip
    found = anyio.run(findings, server, [other])
    assert [finding.id for finding in found] == [one.id] and "another result was recorded" in found[0].problem


def test_a_refused_call_that_now_succeeds_is_found(server: ToolServer, scenarios: list[McpScenario]) -> None:
    refused = next(s for s in scenarios if s.verifier and s.verifier.kind == "none" and s.verifier.expected)
    assert refused.verifier is not None
    works = next(s.reference[0] for s in scenarios if len(s.reference) == 1 and s.reference[0].tool not in CHANGING)
    expected = [{**ToolCall(tool=works.tool, arguments=works.arguments).model_dump(), "is_error": True}]
    changed = refused.model_copy(update={"verifier": refused.verifier.model_copy(update={"expected": expected})})
    found = anyio.run(findings, server, [refused, changed])
    assert len(found) == 1 and "now succeeds" in found[0].problem


def test_splits_share_no_call(scenarios: list[McpScenario]) -> None:
    train, val = split(scenarios, val_share=0.25, seed=0)
    assert val and not overlap(train, val)
