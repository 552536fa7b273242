"""The reward that an agent program gives its episode: one number from 0 to 1, in a file or by a request.

A request that gives no such number is refused, and so is a second one. The file is read when the program has ended;
anything but one number in it is a fault of the program, and so is a file beside a request.
"""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

from mcp_rl.errors import ServerFault
from mcp_rl.inference.openai_api.refusals import Refusal
from mcp_rl.inference.openai_api.service import HttpReply

if TYPE_CHECKING:
    from pathlib import Path

_LONGEST = 100
"""Bytes of a file with a number."""


class GivenReward:
    """The reward of one episode."""

    def __init__(self) -> None:
        self._asked: float | None = None

    async def take(self, body: bytes) -> HttpReply:
        """Answer a request that gives the reward. Raises Refusal."""
        try:
            given = json.loads(body)["reward"]
            if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1:
                raise ValueError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise Refusal('Give the reward as {"reward": NUMBER}, from 0 to 1.', param="reward") from None
        if self._asked is not None:
            message = f"The episode has its reward already, {self._asked:g}; the first one counts."
            raise Refusal(message, status=409, param="reward", headers={"x-should-retry": "false"})
        self._asked = float(given)
        return HttpReply(body={"reward": self._asked})

    def of(self, file: Path) -> float | None:
        """Return the reward, or None if the program gave none. Raises ServerFault."""
        text = _text(file)
        if text is None:
            return self._asked
        if self._asked is not None:
            raise ServerFault("The agent program gave two rewards: one by a request, and one in MCP_RL_REWARD_FILE.")
        try:
            found = float(text)
        except ValueError:
            found = -1.0
        if not 0 <= found <= 1:  # also NaN
            raise ServerFault(
                f"The agent program wrote {text[:_LONGEST]!r} as its reward; a number from 0 to 1 is needed."
            )
        return found


def _text(file: Path) -> str | None:
    """Read a short text; return None if there is no file. What is no plain file has the text of its kind."""
    try:
        opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error.strerror)
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            return "no plain file"
        return os.read(opened, _LONGEST + 1).decode(errors="replace").strip()
    finally:
        os.close(opened)
