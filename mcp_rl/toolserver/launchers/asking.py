"""Asks launchers: runs them with a probe in place of the server, under the watchdog and a deadline."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from mcp_rl.errors import ServerError
from mcp_rl.system.notices import notice
from mcp_rl.system.processes.process_log import opened_log
from mcp_rl.system.processes.spawn import end_process, open_watched

if TYPE_CHECKING:
    from collections.abc import Sequence

_SECONDS = 300.0
"""Time for a launcher to fetch a package."""
_QUIET_SECONDS = 5.0
"""Time after which the user is told what is waited for: with the package at hand, a launcher needs about one second."""
_OFFLINE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET_TIMEOUT|ENOTCACHED"
    r"|dns error|error sending request|client error \(Connect\)|tcp connect error|Network connectivity is disabled"
    r"|Failed to establish a new connection|ConnectionRefused|FailedToOpenSocket|NameResolutionError"
    r"|Cannot connect to proxy",
    re.IGNORECASE,
)
_NO_PYTHON = re.compile(r"Failed to download `?\S*/cpython-(\d+\.\d+)")
"""uv's word for an interpreter that it could not fetch; that does not come from the registry."""
_ANSWER = "MCP_RL_PROBE"
"""Variable that tells a probe the file for its answer."""


@dataclass(frozen=True)
class Ran:
    """The end of a launcher that was run with a probe."""

    answer: str
    """The probe's answer; empty if the launcher did not start it."""
    said: str
    """The last lines of the launcher's output."""
    failed: bool

    @property
    def offline(self) -> bool:
        """True if it failed because the network or the registry cannot be reached."""
        return self.failed and bool(_OFFLINE.search(self.said))


@dataclass(frozen=True)
class Asking:
    """A server and the launcher that is asked about it. `server` begins errors, such as "The server NAME"."""

    server: str
    environment: dict[str, str]
    """The environment of the launcher: the server's, and the variables that say how packages are fetched."""
    cwd: str | None

    @property
    def path(self) -> str:
        return self.environment.get("PATH", os.defpath)

    @property
    def folder(self) -> Path:
        return Path(self.cwd or ".").resolve()

    async def run(
        self, words: Sequence[str], *, fetches: str, scratch: Path, also: dict[str, str] | None = None
    ) -> Ran:
        """Run a launcher that `fetches` a package; tell the user after a while. Raises ServerError past the deadline.

        `scratch` is a folder for the answer and the log; `also` are further variables.
        """
        answer, log = scratch / "answer", scratch / "log"
        answer.unlink(missing_ok=True)
        with opened_log(log) as output:
            process = await open_watched(
                words,
                stdin="null",
                stdout=output.file,
                stderr=output.file,
                env=self.environment | {_ANSWER: str(answer)} | (also or {}),
                cwd=self.cwd,
            )
            try:
                with anyio.move_on_after(_QUIET_SECONDS) as quiet:
                    await process.wait()
                if quiet.cancelled_caught:
                    notice(f"{Path(words[0]).name} fetches {fetches}.")
                    with anyio.fail_after(_SECONDS):
                        await process.wait()
            except TimeoutError:
                raise ServerError(
                    f"{self.server} cannot start: {Path(words[0]).name} did not fetch {fetches} within {_SECONDS:g} s."
                ) from None
            finally:
                await end_process(process)
            said = output.tail(40, 8000)
        found = answer.read_text(encoding="utf-8", errors="surrogateescape") if answer.is_file() else ""
        return Ran(found, said, process.returncode != 0)

    async def run_or_offline(
        self, words: Sequence[str], *, fetches: str, also: dict[str, str], offline: dict[str, str]
    ) -> Ran:
        """Run a launcher, and if the registry cannot be reached once more with the variables `offline`.

        Raises ServerError if the package is not at hand then either.
        """
        with tempfile.TemporaryDirectory(prefix="mcp-rl-") as folder:
            scratch = Path(folder)
            ran = await self.run(words, fetches=fetches, scratch=scratch, also=also)
            if not ran.offline:
                return ran
            again = await self.run(words, fetches=fetches, scratch=scratch, also=also | offline)
            if again.failed:
                launcher, nowhere = Path(words[0]).name, "and no copy of it is on this machine"
                if found := _NO_PYTHON.search(ran.said):
                    raise self.refused(f"{launcher} cannot download Python {found[1]}, {nowhere}; install it")
                raise self.refused(
                    f"{launcher} cannot fetch {fetches}, since the registry cannot be reached, {nowhere}"
                )
            notice(f"The registry of {fetches} cannot be reached; the copy on this machine is used.")
            return again

    def refused(self, what: str) -> ServerError:
        """Return the error for a package that cannot be started."""
        return ServerError(f"{self.server} cannot start: {what}.")
