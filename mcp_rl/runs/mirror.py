"""A copy of a run at any address that fsspec reaches, so that it goes on where its folder is lost.

The copy is always that of one whole step: every file lies there under its name and its digest, and `snapshot.json`,
which is written last, says which of them are the run. The copying is done beside the run, from hard links that were
made when the step was whole.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from mcp_rl.errors import ConfigError, RunDirectoryError
from mcp_rl.run_directory import RunDirectory, lock_run, remove_run, typed_errors
from mcp_rl.system.boundary import first_line
from mcp_rl.system.redaction import without_secrets
from mcp_rl.system.seals import file_digest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

T = TypeVar("T")
SNAPSHOT = "snapshot.json"
OWNER = "owner.json"
FILES = "files"
_ANSWER_SECONDS = 60.0
"""Time for the address to answer at the beginning; the libraries behind it try again for minutes."""
_CLOSE_SECONDS, _INTERRUPTED_CLOSE_SECONDS = 900.0, 30.0
"""Longest wait for the last copy at the end, after a complete run and after one that was broken off."""
_TELL_SECONDS = 2.0
"""Time at the end after which the user is told what is waited for."""
_REPLACED = {"checkpoints", "tensors", "trajectories"}
"""Folders whose files are replaced and never appended to, so that a hard link keeps their content."""
_NOT_COPIED = {"live", "adapters"}
"""Folders of the present process: its state, and the policies that vLLM samples."""


class Snapshot(BaseModel):
    """The files of a run at one step."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int
    begun: str
    """Digest of the run's model.json, which is written once."""
    files: dict[str, str]
    """Digests of all files, by their paths in the run."""

    @field_validator("files")
    @classmethod
    def _stay_inside(cls, files: dict[str, str]) -> dict[str, str]:
        for name, digest in files.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not name or not digest.isalnum():
                raise ValueError(f"{name!r} is no file of a run")
        return files

    def places(self) -> set[str]:
        """Return where the files lie, below the copy's folder."""
        return {_place(name, digest) for name, digest in self.files.items()}


def _place(name: str, digest: str) -> str:
    return f"{FILES}/{name}.{digest[:16]}"


@asynccontextmanager
async def mirrored(
    url: str | None, project: str, run: Path, *, fresh: bool, say: Callable[[str], None]
) -> AsyncIterator[Callable[[], None]]:
    """Keep a copy of the run below `url` until the end; yields what is to be called when a step is whole.

    The run is first taken from there if it is further than the folder here, or if there is none; `fresh` removes the
    copy. Raises ConfigError if the address cannot be used, RunDirectoryError if another run lies there, and from the
    yielded function if another command has taken the copy over.
    """
    if url is None:
        yield lambda: None
        return
    mirror = Mirror(f"{url.rstrip('/')}/{project}/{run.name}", run, say)
    with lock_run(run):
        await asyncio.wrap_future(_beside(functools.partial(mirror.begin, fresh=fresh)))
    longest = _INTERRUPTED_CLOSE_SECONDS
    try:
        yield mirror.keep
        longest = _CLOSE_SECONDS
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(mirror.close, longest)


class Mirror:
    """The copy of one run."""

    def __init__(self, url: str, run: Path, say: Callable[[str], None]) -> None:
        self._run, self._say = run, say
        self._named = without_secrets(url)
        self._url = url
        self._token = secrets.token_hex(16)
        self._staging = run.with_name(f".{run.name}.mirror")
        self._fetched = run.with_name(f".{run.name}.fetched")
        self._fs: Any = None
        self._root = ""
        self._there: Snapshot | None = None
        self._digests: dict[tuple[int, int, int], str] = {}
        """Digests by inode, size and time of change."""
        self._changed = threading.Condition()
        self._next: Path | None = None
        self._busy = False
        self._over = False
        self._failed = False
        self._stop: RunDirectoryError | None = None

    def begin(self, *, fresh: bool) -> None:
        """Find out what is there, take over the copy, and fetch the run if it is further than here."""
        self._there = self._in_time(self._look)
        begun = file_digest(self._run / "model.json")
        there = None if fresh else self._there
        if there is not None and begun is not None and begun != there.begun:
            raise RunDirectoryError(
                f"The run in {self._run} and the one at {self._named} were begun apart: choose another --name or "
                "another mirror, or start over with --fresh."
            )
        self._in_time(functools.partial(self._claim, fresh))
        for left in (self._staging, self._fetched):
            shutil.rmtree(left, ignore_errors=True)
        if there is not None and (begun is None or there.step > RunDirectory(self._run).state().step):
            self._fetch(there)
            begun = there.begun
        threading.Thread(target=self._copying, name="mirror", daemon=True).start()
        if begun is not None and not fresh:
            self.keep()

    def _in_time(self, work: Callable[[], T]) -> T:
        """Return what `work` on the address returns. Raises ConfigError if it fails, or takes too long."""
        try:
            return _beside(work).result(_ANSWER_SECONDS)
        except RunDirectoryError:
            raise
        except Exception as error:  # the libraries behind fsspec raise whatever they like
            why = f"nothing answered in {_ANSWER_SECONDS:.0f} s" if isinstance(error, TimeoutError) else _reason(error)
            raise ConfigError(f"The copy of the run cannot be kept at mirror={self._named}: {why}.") from error

    def _look(self) -> Snapshot | None:
        from fsspec.core import url_to_fs

        self._fs, self._root = url_to_fs(self._url)
        return self._read()

    def _claim(self, fresh: bool) -> None:
        """Take over the copy, which ends another command that keeps it."""
        self._fs.makedirs(self._root, exist_ok=True)
        owner = {"token": self._token, "host": socket.gethostname(), "pid": os.getpid(), "unix_seconds": time.time()}
        self._fs.pipe_file(f"{self._root}/{OWNER}", json.dumps(owner).encode())
        if fresh and self._there is not None:
            self._fs.rm_file(f"{self._root}/{SNAPSHOT}")
            self._there = None

    def _below(self, path: str) -> str:
        return path[path.rindex(f"{self._root.lstrip('/')}/") + len(self._root.lstrip("/")) + 1 :]

    def _read(self) -> Snapshot | None:
        try:
            content = self._fs.cat_file(f"{self._root}/{SNAPSHOT}")
        except FileNotFoundError:
            return None
        try:
            return Snapshot.model_validate_json(content)
        except ValidationError as error:
            raise RunDirectoryError(
                f"{self._named}/{SNAPSHOT} was not written by this version: choose another mirror, or start over with "
                "--fresh."
            ) from error

    def _fetch(self, there: Snapshot) -> None:
        """Replace the run's folder by the copy."""
        self._say(f"The run is taken from {self._named}, where it is at step {there.step}.")
        with typed_errors(self._run):
            self._fetched.mkdir(parents=True, mode=0o700)
            try:
                for name, digest in there.files.items():
                    self._fetch_file(self._fetched / name, name, digest)
                remove_run(self._run)
                self._fetched.rename(self._run)
            finally:
                shutil.rmtree(self._fetched, ignore_errors=True)

    def _fetch_file(self, target: Path, name: str, digest: str) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._fs.get_file(f"{self._root}/{_place(name, digest)}", str(target))
        except Exception as error:
            raise RunDirectoryError(f"{name} cannot be read from {self._named}: {_reason(error)}.") from error
        if file_digest(target) != digest:
            raise RunDirectoryError(
                f"{name} at {self._named} is damaged: its content is not that of its digest. Start over with --fresh, "
                "or take another copy."
            )

    def keep(self) -> None:
        """Copy the run as it is now, beside the run. Raises RunDirectoryError if another command took the copy over."""
        if self._stop is not None:
            raise self._stop
        folder = self._snapshot()
        with self._changed:
            stale, self._next = self._next, folder
            self._changed.notify_all()
        if stale is not None:
            shutil.rmtree(stale, ignore_errors=True)

    def _snapshot(self) -> Path:
        """Return a folder with the run's files of now."""
        with typed_errors(self._staging):
            self._staging.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder = Path(tempfile.mkdtemp(dir=self._staging))
            for place, below, names in os.walk(self._run):
                below[:] = [name for name in below if name not in _NOT_COPIED]
                for path in (Path(place, name) for name in names):
                    if path.suffix != ".tmp" and not path.is_symlink():
                        with suppress(FileNotFoundError):  # trackers and servers write and remove files meanwhile
                            self._add(path, folder / path.relative_to(self._run))
        return folder

    def _add(self, path: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.relative_to(self._run).parts[0] in _REPLACED:
            try:
                os.link(path, target)
                return
            except FileNotFoundError:
                raise
            except OSError:  # a file system without hard links
                pass
        shutil.copy2(path, target)

    def _copying(self) -> None:
        """Copy what `keep` left, the newest only, until the end."""
        while True:
            with self._changed:
                while self._next is None and not self._over:
                    self._changed.wait()
                folder, self._next = self._next, None
                self._busy = folder is not None
            if folder is None:
                return
            try:
                self._copy(folder)
                if self._failed:
                    self._say(f"The copy at {self._named} is whole again.")
                self._failed = False
            except RunDirectoryError as stop:
                self._stop = stop
            except Exception as error:
                if not self._failed:
                    self._say(
                        f"The copy at {self._named} cannot be written ({_reason(error)}); the run goes on, and it is "
                        "tried again after the next saved step."
                    )
                self._failed = True
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _copy(self, folder: Path) -> None:
        files = {
            path.relative_to(folder).as_posix(): self._digest(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        if "model.json" not in files:
            return
        state = json.loads((folder / "state.json").read_bytes()) if "state.json" in files else {}
        snapshot = Snapshot(step=state.get("step", 0), begun=files["model.json"], files=files)
        if snapshot == self._there:
            return
        known = set() if self._there is None else self._there.places()
        for name, digest in files.items():
            place = _place(name, digest)
            if place not in known:
                self._fs.makedirs(f"{self._root}/{PurePosixPath(place).parent}", exist_ok=True)
                self._fs.put_file(str(folder / name), f"{self._root}/{place}")
        self._check_owner()
        written = f"{self._root}/{SNAPSHOT}.{self._token}"
        self._fs.pipe_file(written, snapshot.model_dump_json(indent=1).encode())
        self._fs.mv(written, f"{self._root}/{SNAPSHOT}")
        self._there = snapshot
        self._check_owner()  # else what follows could remove files of the newer owner's snapshot
        self._remove_others(snapshot.places())

    def _digest(self, path: Path) -> str:
        status = path.stat()
        key = status.st_ino, status.st_size, status.st_mtime_ns
        if key not in self._digests:
            self._digests[key] = file_digest(path) or ""
        return self._digests[key]

    def _check_owner(self) -> None:
        """Raise RunDirectoryError if another command has begun to write this copy."""
        owner = json.loads(self._fs.cat_file(f"{self._root}/{OWNER}"))
        if owner.get("token") != self._token:
            raise RunDirectoryError(
                f"Another command (host {str(owner.get('host'))[:100]}, pid {owner.get('pid')}) has taken over the run "
                f"at {self._named}, so this one ends; what it learned is in {self._run}."
            )

    def _remove_others(self, places: set[str]) -> None:
        """Remove the files of earlier snapshots, and what a kill left of a copy."""
        with suppress(Exception):  # the next copy tries again
            for path in self._fs.find(f"{self._root}/{FILES}"):
                if self._below(path) not in places:
                    self._fs.rm_file(path)

    def close(self, longest: float) -> None:
        """Copy what the run is at its end, and wait for it, so many seconds at most."""
        if self._stop is None:
            with suppress(RunDirectoryError):
                self.keep()
        with self._changed:
            self._over = True
            self._changed.notify_all()
            in_time = self._changed.wait_for(self._is_idle, min(longest, _TELL_SECONDS))
            if not in_time:
                self._say(f"Waiting for the copy at {self._named}, {longest:.0f} s at most.")
                in_time = self._changed.wait_for(self._is_idle, longest)
        shutil.rmtree(self._staging, ignore_errors=True)
        if self._failed or not in_time:
            self._say(f"The copy at {self._named} is not up to date: the same command brings it there.")

    def _is_idle(self) -> bool:
        return self._next is None and not self._busy


def _reason(error: BaseException) -> str:
    return without_secrets(first_line(error)).rstrip(".") or type(error).__name__


def _beside(work: Callable[[], T]) -> Future[T]:
    """Begin `work` in a thread that the end of the process does not wait for."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer
