"""`servers check` finds each seeded defect and no other, and passes a sound server."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from mcp_rl.cli import main
from mcp_rl.cli.printing.check_tables import print_report
from mcp_rl.errors import ServerError
from mcp_rl.explore.check import trials
from mcp_rl.explore.check.caller import running
from mcp_rl.explore.check.findings import CheckReport, Level
from mcp_rl.explore.check.fitness import CheckOptions, check_fitness
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.scenario import StdioServer
from mcp_rl.toolserver.tool_server import ToolServer

SCRIPT = Path(__file__).with_name("seeded_server.py")
QUICK = {"call": 3.0}


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the wait that tells a clock by its changed result."""
    monkeypatch.setattr(trials, "CLOCK_TICK", 0.05)


def seeded(*defects: str, script: Path = SCRIPT, **fields: Any) -> ToolServer:
    fields = {"isolation": "reset", "reset_tool": "reset", "deadlines": QUICK} | fields
    params = StdioServer(command="{python}", args=(str(script), *defects))
    return ToolServer("seeded", "Seeded.", {"stdio": params}, **fields)


async def checked(server: ToolServer, **wanted: Any) -> CheckReport:
    params = server.params("stdio")
    assert isinstance(params, StdioServer)
    report = await check_fitness(server, params, CheckOptions(**{"calls": 2} | wanted))
    assert not [process for process in running() if "seeded" in " ".join(process.cmdline())]
    return report


def found(report: CheckReport, level: Level = Level.PROBLEM) -> dict[str, str]:
    return {finding.check: finding.what for finding in report.findings if finding.level is level}


async def test_a_server_without_a_defect_passes_every_check() -> None:
    report = await checked(seeded())
    noted = set(found(report, Level.NOTE))
    assert found(report) == {}
    assert noted <= {"concurrency"}, "and that only where the machine has no processor free"
    assert noted | set(found(report, Level.OK)) == {
        "schemas", "annotations", "determinism", "concurrency", "calls", "results", "unicode", "mistakes", "reset",
        "isolation", "shutdown",
    }  # fmt: skip
    assert set(report.seconds) == {"connect", "list", "reset", "close"}
    assert {tool.name: tool.worked for tool in report.tools} == {
        "list_items": 2, "count_items": 2, "echo": 2, "put_item": 2, "reset": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("defect", "where", "words"),
    [
        ("does not reset", "reset", "After an episode that called put_item, the next one does not begin"),
        ("wrong annotations", "annotations", "delete_item is annotated as read-only, and its name says"),
        ("sneaky", "annotations", "peek only looks things up"),
        ("invalid output", "results", "A result of count_items does not match its outputSchema: count"),
        ("slow pattern", "results", "A result of find_word does not match its outputSchema: word: 'aaaa"),
        ("leaks", "processes", "Calls of echo left"),
        (
            "dies on bad input",
            "mistakes",
            "4 of 5 wrong calls got no answer, the first: echo {}: The server seeded exited",
        ),
        ("mojibake", "unicode", "echo returns"),
        ("mixes up", "concurrency", "With 8 calls in flight at once"),
        ("silent", "calls", "find_answer gave no answer to {}"),
    ],
)
async def test_a_defect_is_found_and_no_other(defect: str, where: str, words: str) -> None:
    deadlines = QUICK if defect != "silent" else {"call": 0.6}
    problems = found(await checked(seeded(defect, deadlines=deadlines)))
    assert list(problems) == [where]
    assert words in problems[where]


@pytest.mark.parametrize(
    ("defect", "where", "words"),
    [
        ("clock", "determinism", "get_time: two equal calls had different results"),
        (
            "noisy",
            "stdout",
            "standard output were not JSON-RPC, the first 'DEBUG: got \\x1b[31msomething'",
        ),
        ("lingers", "shutdown", "The server did not exit within"),
        ("destroys", "calls", "Not called: wipe. Reason: it may destroy something outside the server."),
    ],
)
async def test_harmless_faults_are_noted(defect: str, where: str, words: str) -> None:
    report = await checked(seeded(defect))
    assert found(report) == {}
    assert words in found(report, Level.NOTE)[where]


async def test_bad_schemas_are_named_tool_by_tool() -> None:
    report = await checked(seeded("bad schema"))
    sentences = [finding.what for finding in report.problems]
    assert [finding.check for finding in report.problems] == ["schemas", "schemas"]
    assert "'empty' was left out" in sentences[0]
    assert "inputSchema of odd is not valid JSON Schema" in sentences[1]


async def test_undeclared_state_is_a_problem_and_stays_untouched() -> None:
    report = await checked(seeded("no annotations", isolation=None, reset_tool=None))
    problems = [finding for finding in report.problems if finding.check == "isolation"]
    assert "No isolation is declared" in problems[0].what
    assert "--reset-tool reset" in problems[0].do
    assert {tool.name for tool in report.tools if tool.calls} == {"list_items", "count_items", "echo"}


async def test_changing_tools_need_a_declaration_or_call_all() -> None:
    undeclared = seeded(isolation=None, reset_tool=None)
    report = await checked(undeclared)
    assert report.isolation == "per-rollout"
    assert {tool.name for tool in report.tools if tool.not_called} == {"put_item", "reset"}
    report = await checked(undeclared, call_all=True)
    assert found(report) == {} and {tool.name for tool in report.tools if tool.calls} >= {"put_item", "reset"}


async def test_state_that_is_shared_is_seen_in_the_next_episode() -> None:
    problems = found(await checked(seeded(isolation="shared", reset_tool=None)))
    assert list(problems) == ["isolation"]
    assert "After an episode that called put_item" in problems["isolation"]


async def test_a_tool_that_counts_its_calls_is_told_from_a_clock() -> None:
    on_shared = found(await checked(seeded("remembers", isolation="shared", reset_tool=None)))
    assert "its result depends on earlier calls" in on_shared["annotations"]
    report = await checked(seeded("remembers", "clock"))
    remembering = [f for f in report.findings if f.check == "annotations" and f.level is not Level.OK]
    assert [(f.level, f.tools) for f in remembering] == [(Level.NOTE, ("next_number",))]
    assert {f.check: f.tools for f in report.findings}["determinism"] == ("get_time", "next_number")


async def test_state_outside_the_rollouts_process_is_seen(tmp_path: Path) -> None:
    script = shutil.copy(SCRIPT, tmp_path)
    own = {"isolation": "per-rollout", "reset_tool": None, "sandbox": "off"}
    server = seeded("a file beside the script", script=Path(script), **own)
    problems = found(await checked(server))
    assert list(problems) == ["isolation"]
    assert "the next one does not begin as the first one did" in problems["isolation"]


async def test_a_reset_that_cannot_be_called_is_a_problem() -> None:
    assert "The server has no tool rest to reset it with" in found(await checked(seeded(reset_tool="rest")))["reset"]


async def test_a_server_that_cannot_be_used_at_all_is_an_error() -> None:
    server = ToolServer("none", "None.", {"stdio": StdioServer(command="{python}", args=("-c", "raise SystemExit"))})
    params = server.params("stdio")
    assert isinstance(params, StdioServer)
    with pytest.raises(ServerError, match="exited at start"):
        await check_fitness(server, params, CheckOptions())


async def test_hostile_text_has_no_effect_on_a_terminal() -> None:
    report = await checked(seeded("hostile", "noisy"))
    shown = io.StringIO()
    console = Console(force_terminal=True, color_system=None, width=90, file=shown)
    print_report(report, console)
    text = shown.getvalue()
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text
    assert "[bold]look\\x1b[2J" in text


def test_the_command_ends_with_1_on_a_problem(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plugin = tmp_path / "seeded_plugin.py"
    plugin.write_text(
        "from mcp_rl.plugins.hookspecs import hookimpl\nfrom mcp_rl.toolserver.tool_server import ToolServer\n"
        "from mcp_rl.scenario import StdioServer\n\n\n@hookimpl\ndef register_servers(register):\n"
        f"    params = StdioServer(command='{{python}}', args=({str(SCRIPT)!r}, 'invalid output'))\n"
        "    register(ToolServer('seeded', 'Seeded.', {'stdio': params}, isolation='reset', reset_tool='reset'))\n"
    )
    arguments = ["servers", "check", "seeded", "--plugin", str(plugin), "--calls", "1"]
    before = set(psutil.Process().children())  # of other tests in this process
    assert main([*arguments, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["fit"] is False
    assert [f["check"] for f in report["findings"] if f["level"] == "problem"] == ["results"]
    assert main(arguments) == 1
    out = capsys.readouterr().out
    assert out.rstrip().endswith("Training on seeded would trip over 1 problem.")
    assert set(psutil.Process().children()) <= before


def test_the_bundled_notebook_is_fit_to_train_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert load_plugins().servers["mcp_notes"]
    assert main(["servers", "check", "mcp_notes", "--calls", "2"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("mcp_notes is fit to train on.")


def test_the_bundled_calculator_is_fit_to_train_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["servers", "check", "mcp_calculator", "--transport", "stdio", "--calls", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["fit"] is True and report["isolation"] == "shared"
