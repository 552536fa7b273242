"""`mcp-rl chat`: questions, calls and answers, in a pipe and on a terminal."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from mcp_rl.backends.samplers.policies import LocalPolicies
from mcp_rl.cli import main
from mcp_rl.cli.printing.chat import LineReader, TerminalView
from mcp_rl.config import RunConfig
from mcp_rl.inference.chat.dialects.hermes import parse_completion
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.plugins.resolve import resolve_servers
from mcp_rl.rollouts.rollout import play_leased
from mcp_rl.rollouts.speaker import PolicySetting, SaidTurn
from mcp_rl.runs.chat import ChatJob, prepare, run_chat
from mcp_rl.runs.report import chat_command
from mcp_rl.runs.train import _server_words
from mcp_rl.scenario import McpScenario
from mcp_rl.toolserver.pool import open_sessions
from mcp_rl.toolserver.session import Session
from mcp_rl.trajectory import CallRecord, StopReason, Trajectory

ROOT = Path(__file__).resolve().parents[3]
CALCULATOR = ROOT / "servers" / "python" / "mcp_calculator" / "server.py"
Captured = pytest.CaptureFixture[str]


class Recorded:
    """A view that asks given questions and keeps what it is shown."""

    def __init__(self, *questions: str) -> None:
        self.questions = list(questions)
        self.turns: list[str] = []
        self.slices: list[str] = []
        self.calls: list[CallRecord] = []
        self.answers: list[Trajectory] = []

    def note(self, sentence: str) -> None: ...

    def greet(self, job: ChatJob, session: Session) -> None: ...

    async def question(self) -> str | None:
        return self.questions.pop(0) if self.questions else None

    def sampling(self, text: str) -> None:
        self.slices.append(text)

    def said(self, turn: SaidTurn) -> None:
        self.turns.append(turn.text)

    def results(self, calls: Sequence[CallRecord]) -> None:
        self.calls += calls

    def ended(self, trajectory: Trajectory) -> None:
        self.answers.append(trajectory)


def tiny(project: Path, **options: Any) -> ChatJob:
    return prepare("mcp-rl/tiny", {"server": ("mcp_calculator",), "transport": "stdio"}, project=project, **options)


async def test_an_answer_is_the_rollout_of_the_question(tmp_path: Path) -> None:
    view, job = Recorded("Add 3 and 4.", "Add 3 and 4."), tiny(tmp_path)
    assert await run_chat(job, view)
    assert [call.result for call in view.calls] == ["7", "7"]
    assert view.answers[0].messages == view.answers[1].messages  # each question begins anew
    assert any(view.turns[0].startswith(part) and part != view.turns[0] for part in view.slices)
    scenario = McpScenario(task_description="Add 3 and 4.", server_params=job.server.params("stdio"))
    async with LocalPolicies("mcp-rl/tiny") as policies, open_sessions(job.server, job.config.tools) as sessions:
        await policies.use(None, 0)
        alone = await play_leased(
            lambda session: PolicySetting(policies.engine, policies.chat, session),
            sessions,
            scenario,
            seed=0,
            temperature=0.0,
            limits=job.limits,
        )
    assert view.answers[0].messages == alone.messages


async def test_a_conversation_goes_on_with_all_that_was_said(tmp_path: Path) -> None:
    view = Recorded("Add 3 and 4.", "Add 3 and 4.")
    assert await run_chat(tiny(tmp_path, remember=True), view)
    first, second = view.answers
    assert first.stop_reason is StopReason.ANSWERED
    assert second.messages[0]["content"] == "Add 3 and 4."
    assert second.messages[1:] != first.messages[1:]  # the model read the first question and its answer too


def test_a_pipe_gets_plain_lines(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"\nAdd 3 and 4.\nAdd 5 and 4.")
    os.close(writing)
    monkeypatch.chdir(tmp_path)
    with os.fdopen(reading) as asked:
        monkeypatch.setattr("sys.stdin", asked)
        code = main(["chat", "mcp-rl/tiny", "--server", "mcp_calculator"])
    said = capsys.readouterr()
    assert code == 0, said.err
    assert "\x1b" not in said.out
    assert said.out.startswith("mcp-rl/tiny with 7 tools of mcp_calculator\n")
    for numbers, result in (("a=3, b=4", "7"), ("a=5, b=4", "9")):
        assert f"  → add({numbers})\n  ← {result}\nmodel ❯ " in said.out  # noqa: RUF001


def test_ctrl_c_on_a_terminal_leaves_nothing_running(tmp_path: Path) -> None:
    terminal, theirs = pty.openpty()
    words = [sys.executable, "-m", "mcp_rl", "chat", "mcp-rl/tiny", "--server", "mcp_calculator"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "90"}
    with subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, env=environment, start_new_session=True
    ) as process:
        os.close(theirs)
        try:
            assert "Ctrl-D ends" in read_until(terminal, "you ")
            os.write(terminal, b"Add 3 and 4.\n")
            assert "← " in read_until(terminal, "you ❯ \x1b[0m")  # noqa: RUF001
            started = psutil.Process(process.pid).children(recursive=True)
            assert started
            process.send_signal(signal.SIGINT)
            said = read_until(terminal, None)
            process.wait(timeout=60)
        finally:
            process.kill()
    os.close(terminal)
    assert "Traceback" not in said and process.returncode == 0
    assert psutil.wait_procs(started, timeout=20)[1] == []


def read_until(terminal: int, text: str | None) -> str:
    """Read from a terminal until a text has come, or to the end."""
    said, end = "", time.monotonic() + 120
    while text is None or text not in said:
        assert time.monotonic() < end, said
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                said += os.read(terminal, 65536).decode(errors="replace")
            except OSError:
                break
    return said


def test_hostile_text_has_no_effect_on_a_terminal(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.stdin", (tmp_path / "none").open("w+"))
    view, hostile = TerminalView(), "\x1b[2Jx\x07\u202e[red]y"
    text = f"<tool_call>\n{json.dumps({'name': hostile, 'arguments': {hostile: hostile}})}\n</tool_call>{hostile}"
    view.said(SaidTurn(parse_completion(text), text))
    view.said(SaidTurn(parse_completion("<tool_call>{\x1b]0;z</tool_call>"), "<tool_call>{\x1b]0;z</tool_call>"))
    view.results([CallRecord(turn=0, name=hostile, tool=None, arguments={}, sent=True, result=f"{hostile}\n" * 40)])
    view.ended(Trajectory(scenario_id="s", stop_reason=StopReason.FAULT, fault=hostile))
    view.note(hostile)
    printed = capsys.readouterr().out
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", printed)
    assert "\\x1b[2Jx\\x07" in printed and "[red]y" in printed and "more lines" in printed


async def test_lines_of_any_input_are_read(tmp_path: Path) -> None:
    (tmp_path / "asked").write_bytes(b"one\ntwo \xff\nthree")
    with (tmp_path / "asked").open("rb") as file:
        lines = LineReader(file.fileno())
        assert [await lines.next() for _ in range(4)] == ["one", "two \ufffd", "three", None]
    reading, writing = os.pipe()
    lines = LineReader(reading)
    with anyio.move_on_after(0.1) as scope:
        await lines.next()
    assert scope.cancelled_caught
    os.write(writing, b"late\n")
    assert await lines.next() == "late"
    os.close(writing)
    assert await lines.next() is None
    os.close(reading)


def test_a_run_is_asked_with_its_own_server_and_limits(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = prepare("first@2", {"server": None}, project=run.parents[1])
    assert (job.server.name, job.config.transport) == ("mcp_calculator", "stdio")
    assert (job.limits.max_turn_tokens, job.limits.max_tokens, job.model.step) == (6, 12, 2)
    assert job.remembers and job.system_prompt is None
    assert prepare("first", {"server": ("mcp_notes",)}, project=run.parents[1]).server.name == "mcp_notes"
    assert chat_command(run) == f"To talk to it: mcp-rl chat {run}"


def test_impossible_commands_are_one_sentence(copied: Path, capsys: Captured) -> None:
    out = ("--output-dir", str(copied.parents[2]))

    def refused(*words: str) -> str:
        assert main(["chat", *words, *out]) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1
        return said.err

    assert "did you mean 'first'" in refused("frist")
    assert "tells of no server" in refused("mcp-rl/tiny")
    assert "scripted:reference has no weights" in refused("scripted:reference")
    about = json.loads((copied / "model.json").read_text())
    about["identity"]["settings"]["server.address"] = "0123456789abcdef"
    about["command"].pop("server", None)
    (copied / "model.json").write_text(json.dumps(about))
    assert "does not record: add it with --server" in refused("first")
    assert "with the --server of this command" in str(chat_command(copied))
    about["command"]["server"] = [str(CALCULATOR)]
    (copied / "model.json").write_text(json.dumps(about))
    assert prepare("first", {}, project=copied.parents[1]).server.origin == "script"


def test_a_server_without_secrets_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def words(*server: str) -> list[str] | None:
        config = RunConfig(server=server)
        return _server_words(config, resolve_servers(server, plugins=load_plugins(())))

    monkeypatch.chdir(CALCULATOR.parent)
    assert words("mcp_calculator") is None  # the identity holds the name
    assert words("server.py") == [str(CALCULATOR)]
    assert words("python server.py --transport stdio") == ["python server.py --transport stdio"]
    assert words("python server.py --api-key sesame") is None
    assert words("https://example.org/mcp?api_key=sesame") is None
    assert words("https://example.org/mcp", "mcp_notes") == ["https://example.org/mcp", "mcp_notes"]
