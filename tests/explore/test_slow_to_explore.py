"""Servers whose calls or starts take long get fewer calls while tasks are made."""

import math
import os
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from mcp_rl.config import ToolsConfig
from mcp_rl.explore import pace
from mcp_rl.explore.entities import builder
from mcp_rl.explore.entities.builder import world_of
from mcp_rl.explore.entities.caller import Answered, CallBudget, WorldCaller
from mcp_rl.explore.first_contact import understood
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall, Verifier
from mcp_rl.scenarios import broken
from mcp_rl.scenarios.generate import Generated, GenerateRequest, generate
from mcp_rl.scenarios.goals import twice
from mcp_rl.scenarios.goals.twice import Twice
from mcp_rl.system.notices import noticed_by
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.state import MeasuredState, calls_in_flight
from mcp_rl.toolserver.tool_server import ToolServer

SCENARIOS = Path(__file__).parents[1] / "scenarios"


def server(name: str) -> ToolServer:
    command = StdioServer(command=sys.executable, args=("-S", str(SCENARIOS / f"{name}_server.py")))
    return ToolServer(name, "", {"stdio": command})


def test_a_start_counts_where_each_episode_has_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "cpu_limit", lambda: 4)
    slow = replace(server("notes"), measured=MeasuredState(kept="process", listing="", start_seconds=2.0))
    assert pace.episodes_within(slow, 10.0) == 10.0
    assert pace.calls_within(slow, 10.0) == math.inf
    in_files = replace(slow, measured=MeasuredState(kept="files", listing="", start_seconds=2.0, call_seconds=0.5))
    assert pace.episodes_within(in_files, 10.0) == math.inf
    assert pace.calls_within(in_files, 10.0) == 20.0
    assert pace.calls_within(server("notes"), 10.0) == pace.episodes_within(server("notes"), 10.0) == math.inf


def made(name: str, recipe: Recipe, **measured: float) -> tuple[Generated, list[str]]:
    async def make() -> Generated:
        known = await understood(server(name), None, ToolsConfig())
        assert known.measured is not None
        slow = replace(known, measured=known.measured.model_copy(update=measured))
        return await generate(slow, GenerateRequest(recipe))

    said: list[str] = []
    with noticed_by(said.append):
        return anyio.run(make), said


def test_first_calls_of_a_server_that_starts_slowly_are_few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    generated, said = made("tally", Recipe(count=160, seed=1, levels="spelled"), start_seconds=600.0)
    calls = {str(call) for one in generated.scenarios if one.reference for call in one.reference}
    assert 20 <= len(calls) <= 90
    assert "is slow, so its spelled-out tasks are made of only" in " ".join(said)


SLOW = """
import sys, time
sys.path.insert(0, sys.argv[1])
from by_hand import serve, tool

def call(name, given):
    time.sleep(5.0 if given["word"] == "never" else 0.3)
    return "It says " + given["word"]

serve("slow", [tool("say", "Says a word.", word="string")], call)
"""


def said(word: str, params: StdioServer) -> McpScenario:
    return McpScenario(
        task_description=f"Say {word}.",
        server_params=params,
        reference=(ToolCall(tool="say", arguments={"word": word}),),
        verifier=Verifier(kind="text", expected=f"It says {word}"),
        reference_answer=f"It says {word}",
    )


async def test_a_scenario_without_an_answer_is_not_said_to_be_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(broken, "_DEADLINE", 1.0)
    (tmp_path / "slow.py").write_text(SLOW)
    params = StdioServer(command=sys.executable, args=("-S", str(tmp_path / "slow.py"), str(SCENARIOS)))
    wrong = said("two", params).model_copy(update={"reference_answer": "It says 2"})
    async with Sessions() as sessions:
        found = await broken.broken_scenarios(sessions, params, [said("one", params), said("never", params), wrong])
    assert [(one.unanswered, one.problem.split(" ")[0]) for one in found] == [(True, "The"), (False, "The")]
    assert "did not answer" in found[0].problem and "'It says 2' was recorded" in found[1].problem


async def test_proofs_and_checks_make_as_many_calls_at_once_as_a_slow_server_answers_in_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(broken, "_DEADLINE", 2.0)
    monkeypatch.setattr(twice, "_DEADLINE", 2.0)
    (tmp_path / "slow.py").write_text(SLOW)
    params = StdioServer(command=sys.executable, args=("-S", str(tmp_path / "slow.py"), str(SCENARIOS)))
    scenarios = [said(str(number), params) for number in range(12)]
    slow = ToolServer("slow", "", {"stdio": params}, isolation="shared")
    measured = MeasuredState(kept="nothing", listing="", call_seconds=0.3)
    calls = [("say", {"word": str(number)}) for number in range(12)]
    async with Sessions() as sessions:
        for server, all_known in ((replace(slow, measured=measured), True), (slow, False)):
            known = Twice(sessions, params, server)
            await known.make(calls)
            assert all(known[call] for call in calls) is all_known
        assert await broken.broken_scenarios(sessions, params, scenarios, call_seconds=0.3) == []
        assert await broken.broken_scenarios(sessions, params, scenarios) == [], "late ones are played again, alone"


PAGES = """
import sys, time
sys.path.insert(0, sys.argv[1])
from by_hand import Refused, serve, tool

def load(name, given):
    time.sleep(float(sys.argv[2]))
    page = given["url"].rpartition("/")[2]
    if page and not page.isdecimal():
        raise Refused("There is no such page.")
    if page:
        return f"Number: {page}\\n\\n[Back](/)"
    return "\\n".join(f"* [Page {number}](/{number})" for number in range(12))

LOAD = tool("load", "Load a page of the web.", url="string")
LOAD["inputSchema"]["properties"]["url"]["description"] = "Address of the page"
serve("pages", [LOAD], load)
"""


def pages_read(tmp_path: Path, seconds: float) -> int:
    """Return the number of pages in the world of a site whose server takes so long for each call."""
    (tmp_path / "pages.py").write_text(PAGES)
    params = StdioServer(command=sys.executable, args=("-S", str(tmp_path / "pages.py"), str(SCENARIOS), str(seconds)))
    measured = MeasuredState(kept="nothing", listing="")  # by calls that failed at once
    slow = ToolServer("pages", "", {"stdio": params}, isolation="shared", measured=measured, start=("http://a.test/",))

    async def look() -> int:
        built = await world_of(slow, None, ToolsConfig())
        return len({one.text for one in built.model.observations if one.arguments["url"] != "http://a.test/"})

    return anyio.run(look)


def test_all_pages_of_a_slow_server_are_read_however_its_calls_were_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(builder, "_SECONDS", 0.3)
    assert pages_read(tmp_path, 0.1) == 12


async def test_no_more_calls_are_in_flight_than_a_slow_server_answers_in_time(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    params = StdioServer(command=sys.executable, args=("-S", str(tmp_path / "slow.py"), str(SCENARIOS)))
    async with Sessions() as sessions, sessions.lease(params) as lease:
        caller = WorldCaller(lease.session.connection, CallBudget.of(20, 30.0), 1.0, 8)
        assert all(await caller.all(("say", {"word": str(number)}) for number in range(8)))


def test_the_first_calls_of_a_budget_may_take_longer() -> None:
    budget = CallBudget.of(10, -1.0, first=2, first_seconds=60.0)
    assert [budget.take() for _ in range(3)] == [True, True, False]
    assert budget.spent


async def test_what_was_the_same_in_two_episodes_is_not_asked_again(tmp_path: Path) -> None:
    async with Sessions() as sessions:
        known = Twice(sessions, StdioServer(command="no-such-command"))
        known.known([Answered("say", {"word": "a"}, "It says a")])
        await known.make([("say", {"word": "a"})])
        assert known["say", {"word": "a"}] == "It says a"


def test_changes_are_few_where_each_play_starts_a_slow_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    generated, said = made("board", Recipe(count=60, seed=1, levels="told=0.5,brought-about=0.5"), start_seconds=600.0)
    assert 0 < sum("changes" in one.tags for one in generated.scenarios) <= 12
    assert "few changes were tried" in " ".join(said)


def test_a_slow_server_gets_fewer_calls_at_once_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for load, calls in ((0.5, 8), (2.0, 4)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load * (os.cpu_count() or 1), 0.0, 0.0))
        assert calls_in_flight(1.0, 16, 32.0) == calls


def test_a_slow_server_has_more_time_for_a_call_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def deadline(call_seconds: float) -> float:
        measured = MeasuredState(kept="nothing", listing="", call_seconds=call_seconds)
        params = {"stdio": StdioServer(command="x")}
        return pace.call_deadline(ToolServer("slow", "", params, isolation="shared", measured=measured))

    for load, slow in ((0.5, 8.0), (3.0, 24.0), (9.0, 30.0)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load * (os.cpu_count() or 1), 0.0, 0.0))
        assert (deadline(0.01), deadline(0.5)) == (4.0, slow)


@pytest.mark.parametrize(("load", "seconds"), [(0.5, 10.0), (3.0, 30.0)])
def test_a_budget_has_as_many_seconds_as_the_machine_is_busy(
    load: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load * (os.cpu_count() or 1), 0.0, 0.0))
    budget = CallBudget.of(20, 10.0)
    assert budget.until - budget.began == pytest.approx(seconds)
