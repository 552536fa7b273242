"""A conversation with a model on a terminal, as it happens; in a pipe, plain lines.

Whatever a model or a server wrote is made visible first, so that nothing in it has an effect on the terminal.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.status import Status
from rich.text import Text

from mcp_rl.system.visible import count, shortened, visible
from mcp_rl.trajectory import StopReason

if TYPE_CHECKING:
    from mcp_rl.inference.chat.calls import ParsedCall
    from mcp_rl.rollouts.speaker import SaidTurn
    from mcp_rl.runs.chat import ChatJob
    from mcp_rl.toolserver.session import Session
    from mcp_rl.trajectory import CallRecord, Trajectory

_MOST_LINES = 12
"""LineReader of a result that are shown; the model reads all of it."""
_LONG_VALUE = 200
_YOU = ("you ❯ ", "bold green")  # noqa: RUF001  a prompt
_MODEL = ("model ❯ ", "bold magenta")  # noqa: RUF001
_LIMITS = {
    StopReason.MAX_TURNS: "the limit of turns",
    StopReason.MAX_TURN_TOKENS: "the limit of tokens in a turn",
    StopReason.MAX_TOKENS: "the limit of tokens in an answer",
    StopReason.MAX_TOOL_CALLS: "the limit of tool calls",
    StopReason.CONTEXT_FULL: "the end of the model's context; the conversation begins anew",
    StopReason.TIMEOUT: "the limit of time; the conversation begins anew",
}


class LineReader:
    """The lines of a file descriptor, read without a thread, so that Ctrl-C always ends the wait."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._held = b""
        self._ended = False

    async def next(self) -> str | None:
        """Return the next line without its end; None after the last one."""
        while b"\n" not in self._held and not self._ended:
            with suppress(PermissionError):  # a regular file can always be read
                await anyio.wait_readable(self._descriptor)
            part = os.read(self._descriptor, 65536)
            self._held += part
            self._ended = not part
        line, _, self._held = self._held.partition(b"\n")
        return None if self._ended and not line and not self._held else line.decode(errors="replace")


class TerminalView:
    """Shows a conversation on stdout, and reads the user's questions from stdin."""

    def __init__(self) -> None:
        self._typed, self._shown = sys.stdin.isatty(), sys.stdout.isatty()
        wide: dict[str, Any] = {} if self._shown else {"width": 100_000, "color_system": None}
        self._console = Console(highlight=False, **wide)
        self._lines = LineReader(sys.stdin.fileno())
        self._live: Live | Status | None = None

    @contextmanager
    def closing(self) -> Iterator["TerminalView"]:
        """Leave the terminal as it was found, whatever ends the conversation."""
        try:
            yield self
        finally:
            self._stop_live()

    def loading(self, name: str) -> None:
        if self._shown:
            self._live = self._console.status(Text(f"Loading {visible(name)} …", style="dim"))
            self._live.start()

    def note(self, sentence: str) -> None:
        self._print(Text(visible(sentence), style="dim"))

    def greet(self, job: "ChatJob", session: "Session") -> None:
        self._stop_live()
        tools = ", ".join(session.schemas.to_server)
        head = Text.assemble(
            (visible(job.model.label), "bold cyan"),
            f" with {count(len(session.schemas.openai), 'tool')} of ",
            (visible(job.server.name), "bold"),
        )
        head.append(f"\n{shortened(tools, 400)}", style="dim")
        if self._typed:
            anew = "" if job.remembers else " Each question begins a new conversation."
            head.append(f"\nType a question; Ctrl-D ends.{anew}", style="dim")
        self._print(Panel.fit(head, border_style="dim") if self._shown else head)
        kept = job.trained.tools
        if kept and kept.tools != session.schemas.openai:
            self._print(Text("These tools differ from those of the training.", style="yellow"))

    async def question(self) -> str | None:
        while True:
            if self._typed:
                self._console.print()
                self._console.print(Text.assemble(_YOU), end="")
            line = await self._lines.next()
            if line is None:
                if self._typed:
                    self._console.print()
                return None
            if line.strip():
                break
        if not self._typed:
            self._console.print()
            self._print(Text.assemble(_YOU, visible(line)))
        return line.strip()

    def sampling(self, text: str) -> None:
        if not self._shown:
            return
        shown = Text.assemble(_MODEL, (visible(text.strip(), lines=True), "dim"))
        if not isinstance(self._live, Live):
            self._live = Live(shown, console=self._console, transient=True, refresh_per_second=30)
            self._live.start()
        else:
            self._live.update(shown)

    def said(self, turn: "SaidTurn") -> None:
        self._stop_live()
        content, calls = turn.parsed.content.strip(), turn.parsed.calls
        if content or not calls:
            words = Text(visible(content, lines=True)) if content else Text("(no text)", style="dim")
            self._print(Text.assemble(_MODEL, words))
        for call in calls:
            self._print(_call(call, turn.text))

    def results(self, calls: Sequence["CallRecord"]) -> None:
        for call in calls:
            if call.result or call.sent:
                name = f"{visible(call.name)}: " if len(calls) > 1 else ""
                self._print(_result(call, name))

    def ended(self, trajectory: "Trajectory") -> None:
        self._stop_live()
        if trajectory.stop_reason is StopReason.FAULT:
            said = f"A fault ended the answer, and the conversation begins anew: {trajectory.fault}"
            self._print(Text(visible(said), style="red"))
        elif reason := _LIMITS.get(trajectory.stop_reason):
            self._print(Text(f"The answer reached {reason}.", style="yellow"))
        elif trajectory.submission is not None:
            words = visible(trajectory.submission, lines=True)
            self._print(Text.assemble(_MODEL, words))

    def _print(self, shown: Text | Panel) -> None:
        self._console.print(shown, soft_wrap=not self._shown)
        sys.stdout.flush()

    def _stop_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _call(call: "ParsedCall", turn: str) -> Text:
    """Show a call as Python would write it; one that cannot be read, as the model wrote it."""
    if call.arguments is None:
        said = shortened(turn, 2 * _LONG_VALUE)
        return Text.assemble(("  → ", "cyan"), (f"a call that cannot be read: {said}", "red"))
    shown = Text.assemble(("  → ", "cyan"), (visible(call.name), "bold cyan"), "(")
    for number, (name, value) in enumerate(call.arguments.items()):
        written = shortened(json.dumps(value, ensure_ascii=False), _LONG_VALUE)
        shown.append(f"{', ' if number else ''}{visible(name)}=", style="dim")
        shown.append(written)
    return shown.append(")")


def _result(call: "CallRecord", name: str) -> Text:
    lines = visible(call.result, lines=True).strip("\n").split("\n")
    more = len(lines) - _MOST_LINES
    text = "\n    ".join(lines[:_MOST_LINES])
    style = "red" if call.is_error else "green"
    shown = Text.assemble((f"  ← {name}", style), (text, style))
    return shown.append(f"\n    … {count(more, 'more line')}", style="dim") if more > 0 else shown
