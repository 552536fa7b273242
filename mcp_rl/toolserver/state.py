"""Findings about a server's state: where calls leave traces, and the calls that fill its world.

`explore/measuring/measure.py` measures them; they are kept with a run and in the user's cache.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Base64Bytes, BaseModel, ConfigDict

from mcp_rl.scenario import ToolCall
from mcp_rl.system.threads import crowding
from mcp_rl.system.visible import shortened

if TYPE_CHECKING:
    from mcp_rl.config import Isolation

_LONG_CALL = 100
Kept = Literal["nothing", "files", "process", "elsewhere", "unsure"]
"""The place where a server keeps what its calls change."""

_ISOLATION: dict[Kept, Isolation] = {
    "nothing": "shared",
    "files": "layer",
    "process": "per-rollout",
    "unsure": "per-rollout",
    "elsewhere": "shared",
}
_SAID: dict[Kept, str] = {
    "nothing": "no call leaves a trace that another one sees",
    "files": "what it keeps lies in files, which it reads again",
    "process": "what it keeps lies in its process",
    "unsure": "it could not be told where it keeps what its calls change",
    "elsewhere": "what it keeps lies out of reach, so that only its reading tools are called",
}


def calls_in_flight(call_seconds: float, most: int, deadline: float) -> int:
    """Return the number of concurrent calls, at most `most`, that a server which answers one at a time handles within
    the deadline; `call_seconds` is what a call takes, 0 where it was not measured. On a busy machine there are fewer.
    """
    return max(1, min(most, int(deadline / (4 * call_seconds * crowding())))) if call_seconds else most


class FatalCall(BaseModel):
    """A call that its server does not survive, or never answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tool: str
    arguments: dict[str, Any] = {}
    did: Literal["ended", "stopped answering", "gave no answer"] = "ended"
    """The server's process ended, it answers no call any more, or it answers this call never."""

    def sentence(self, server: str) -> str:
        """Return what it did, as a sentence that names the tool and the call."""
        given = shortened(json.dumps(self.arguments, ensure_ascii=False), _LONG_CALL)
        return f"The tool {self.tool} is left out: the server {server} {self.did} when {self.tool} {given} was called."


class MeasuredState(BaseModel):
    """The state of one server, as calls on copies of it showed it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kept: Kept
    listing: str
    """Hash of the tool schemas that it was measured with."""
    changing: tuple[str, ...] = ()
    """Tools whose calls were seen to change something."""
    reading: tuple[str, ...] = ()
    """Tools that seem to read, and whose calls worked and changed nothing that any call shows."""
    shown_by: tuple[str, ...] = ()
    """Tools that show the changes."""
    unfit: tuple[str, ...] = ()
    """Tools of which no task can be made: they take too long, or answer differently in each process."""
    slow: tuple[str, ...] = ()
    """Those of them that take too long."""
    fatal: tuple[FatalCall, ...] = ()
    """A call of each tool that ended the server. These tools are not offered, and the listing's hash is without them.
    """
    began_empty: bool = False
    start_seconds: float = 0.0
    """Seconds until a new process answers."""
    call_seconds: float = 0.0
    """Seconds that a call of the median tool takes."""
    setup: tuple[ToolCall, ...] = ()
    """Calls that fill the server before any episode; none where the user's data is the world."""
    written: Base64Bytes = b""
    """The files that the calls of `setup` wrote, as an archive (`Layer.packed`), where the state is kept in files.

    Unpacked into the layer of each new process in place of making the calls, so that random ids stay the same. Empty
    where the calls are made instead.
    """

    @property
    def isolation(self) -> Isolation:
        """The isolation that episodes need."""
        return _ISOLATION[self.kept]

    @property
    def filled_anew(self) -> bool:
        """True if each process is filled by calls, and so may give things other ids."""
        return bool(self.setup) and self.kept == "process"

    @property
    def reason(self) -> str:
        """The reason for the isolation, in words."""
        return f"measured, since {self.finding}"

    @property
    def finding(self) -> str:
        """The finding as a clause."""
        said = _SAID[self.kept]
        if self.kept in ("files", "process", "elsewhere") and self.changing:
            several = f" and {len(self.changing) - 1} more" if len(self.changing) > 1 else ""
            said += f" ({self.changing[0]}{several}, shown by {', '.join(self.shown_by[:2]) or 'their own answers'})"
        if self.setup:
            said += f"; it begins empty and is filled by {len(self.setup)} calls of its own tools"
        return said
