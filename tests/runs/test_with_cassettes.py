"""Commands with cassettes: the same job again, with no server at all.

At replay the servers' scripts are gone, and starting a process, opening a port and connecting to one are noticed.
"""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers import AutoTokenizer

from mcp_rl.cli import main
from mcp_rl.config import RunConfig
from mcp_rl.errors import CassetteMiss
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.scripted import ScriptedEngine
from mcp_rl.rollouts.gather import GroupPlan, gather_groups
from mcp_rl.rollouts.player import Player
from mcp_rl.runs.train import run_training
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.tiny import weights_path
from mcp_rl.toolserver.cassette import Cassette
from mcp_rl.toolserver.pool import Sessions

PLUGIN = """
from mcp_rl.plugins.hookspecs import hookimpl
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.scenario import Launch, StdioServer

@hookimpl
def register_servers(register):
    calc = StdioServer(command="{{python}}", args=({script!r},))
    register(ToolServer("calc", "A calculator.", {{"stdio": calc}}))
    notes = StdioServer(command="node", args=({script!r} + ".mjs", "--transport", "stdio"))
    register(ToolServer("notes", "A notebook.", {{"stdio": notes}}, isolation="reset", reset_tool="reset_notes"))
"""
CALCULATOR = "import runpy, sys; sys.path.insert(0, {folder!r}); runpy.run_path({script!r}, run_name='__main__')\n"
ROOT = Path(__file__).resolve().parents[2]
SMALL: dict[str, Any] = {
    "scenarios": {"count": 16, "val": 6},
    "rollout": {"groups_per_step": 3, "group_size": 4},
    "evaluation": {"samples": 1},
}
NOTES_ALONE = '{"cassette": 1}\n{"server": "notes", "schema": "x", "info": {}, "warnings": [], "tools": []}\n'
_watched: list[str] | None = None


def _notice(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched is not None and event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec", "socket.bind"):
        _watched.append(f"{event} {arguments}")
    if _watched is not None and event == "socket.connect":
        _watched.append(f"{event} {arguments[1]}")


sys.addaudithook(_notice)


@contextmanager
def nothing_started() -> Iterator[None]:
    global _watched
    _watched = []
    try:
        yield
        assert _watched == []
    finally:
        _watched = None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, and a plugin with two servers whose scripts can be taken away."""
    monkeypatch.chdir(tmp_path)
    script = ROOT / "servers" / "python" / "mcp_calculator" / "server.py"
    (tmp_path / "server").write_text(CALCULATOR.format(folder=str(script.parent), script=str(script)))
    notes = (ROOT / "servers" / "node" / "mcp_notes" / "mcp_notes.mjs").as_uri()
    (tmp_path / "server.mjs").write_text(f'process.argv[1] = new URL("{notes}").pathname;\nawait import("{notes}");\n')
    (tmp_path / "servers.py").write_text(PLUGIN.format(script=str(tmp_path / "server")))
    return tmp_path


def take_servers_away(folder: Path) -> None:
    (folder / "server").unlink()
    (folder / "server.mjs").unlink()


def run(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Run a command; return the exit code and its stderr."""
    capfd.readouterr()
    code = main([words[0], "--plugin", "servers.py", *words[1:]])
    return code, capfd.readouterr().err


def without_seconds(path: Path) -> str:
    return re.sub(r'seconds": ?(?:\[\[.*?\]\]|\[.*?\]|[0-9.e-]+)', 'seconds": 0', path.read_text())


async def test_a_replayed_training_run_is_the_same_to_the_byte(folder: Path) -> None:
    async def train(name: str, **tools: Path) -> Path:
        fields: dict[str, Any] = {"server": "calc", "plugins": [str(folder / "servers.py")], "tools": tools, **SMALL}
        config = RunConfig(name=name, steps=2, **fields)
        await run_training(config, console=Console(quiet=True))
        return config.run_dir

    live = await train("live", record=folder / "calls.jsonl")
    take_servers_away(folder)
    with nothing_started():
        again = await train("again", replay=folder / "calls.jsonl")
    files = sorted(path.relative_to(live) for path in live.rglob("trajectories/**/*.jsonl"))
    assert len(files) == 4
    for file in (*files, Path("train.jsonl"), Path("val.jsonl")):
        assert without_seconds(live / file) == without_seconds(again / file)
    adapters = [(run / "checkpoints/0002/adapter_model.safetensors").read_bytes() for run in (live, again)]
    assert adapters[0] == adapters[1]


def test_scenarios_of_a_server_with_a_state_are_the_same(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ("generate", "--server", "notes", "--count", "8")
    assert run(capfd, *words, "--out", "live.jsonl", "--record", "calls.jsonl")[0] == 0
    take_servers_away(folder)
    with nothing_started():
        assert run(capfd, *words, "--out", "again.jsonl", "--replay", "calls.jsonl")[0] == 0
    assert (folder / "again.jsonl").read_text() == (folder / "live.jsonl").read_text()
    tools = {line.get("call") for line in map(json.loads, (folder / "calls.jsonl").read_text().split("\n")[1:-1])}
    assert {"reset_notes", "create_note"} <= tools


def test_an_unrecorded_call_ends_the_command(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(capfd, "generate", "--server", "calc", "--count", "4", "--record", "calls.jsonl")[0] == 0
    take_servers_away(folder)
    code, said = run(
        capfd, "generate", "--server", "calc", "--count", "4", "--seed", "7", "--replay", "calls.jsonl", "--out", "o"
    )
    assert code == 2
    assert re.fullmatch(
        r"The cassette calls\.jsonl does not hold the call \w+\(\{.*\}\) of the server calc: .*\n", said
    )
    assert "--record calls.jsonl" in said
    assert not (folder / "o").exists()


async def test_an_unrecorded_call_ends_a_batch_of_rollouts(folder: Path) -> None:
    """An unrecorded call also ends a batch if it is one of several calls that a turn makes at once."""
    said = "".join(f'<tool_call>\n{{"name": "look", "arguments": {{"at": {at}}}}}\n</tool_call>\n' for at in (1, 2))
    schema = {"type": "object", "properties": {"at": {"type": "integer"}}}
    listed = {"name": "look", "input_schema": schema, "annotations": {"readOnlyHint": True}}
    header = {"server": "server", "schema": "0123456789abcdef", "info": {}, "warnings": [], "tools": [listed]}
    (folder / "calls.jsonl").write_text(f'{{"cassette": 1}}\n{json.dumps(header)}\n')
    chat = ChatFormat(AutoTokenizer.from_pretrained(weights_path()))
    scenario = McpScenario(task_description="Look.", server_params=StdioServer(command="/none"))
    engine = ScriptedEngine(lambda text, seed, turn: said, chat)
    async with Sessions(cassette=Cassette.replaying(folder / "calls.jsonl")) as sessions:
        player = Player(engine, chat, sessions)
        plan = GroupPlan(scenario, [lambda attempt: player.play(scenario, attempt)])
        with pytest.raises(CassetteMiss, match=r'look\(\{"at":1\}\)'):
            await gather_groups([plan], max_exceptions=1.0)


@pytest.mark.parametrize(
    "words",
    [
        ("generate", "--server", "calc", "--count", "4", "--out", "made.jsonl"),
        ("train", "--server", "calc", "--steps", "1"),
        ("evaluate", "--server", "notes", "--server", "calc", "--model", "scripted:reference"),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize(
    ("content", "option", "said"),
    [
        ("no cassette\n", "--replay", "calls.jsonl is not a cassette"),
        ("no cassette\n", "--record", "calls.jsonl is not a cassette"),
        (None, "--replay", "Cannot read the cassette calls.jsonl: no such file or directory."),
        (None, "--record=none/calls.jsonl", "Cannot record into none/calls.jsonl: "),
        (NOTES_ALONE, "--replay", "holds no calls of the server 'calc' (its servers: notes);"),
    ],
    ids=["not one", "not one to write", "no file", "no folder", "another server's"],
)
def test_a_useless_cassette_is_refused_before_the_start(
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    content: str | None,
    option: str,
    said: str,
) -> None:
    if content is not None:
        (folder / "calls.jsonl").write_text(content)
    before = set(folder.iterdir())
    with nothing_started():
        code, stderr = run(capfd, *words, *([option] if "=" in option else [option, "calls.jsonl"]))
    assert (code, stderr.count("\n")) == (2, 1)
    assert said in stderr
    assert set(folder.iterdir()) - {folder / "__pycache__"} == before
