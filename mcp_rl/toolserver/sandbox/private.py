"""The fallback without a sandbox: a private home, a temporary folder and copies of the files that a server is given.

A copy stands for the working directory, and for each file and folder that an argument or a variable names, as long as
all of them are small. Programs are not copied, since they find their parts beside them.
"""

from __future__ import annotations

import logging
import os
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_rl.errors import ServerError
from mcp_rl.scenario import StdioServer
from mcp_rl.toolserver.sandbox.copied_paths import CopiedPaths

if TYPE_CHECKING:
    from mcp_rl.scenario import Launch, OneServer

log = logging.getLogger(__name__)

_MOST_BYTES, _MOST_FILES = 2**25, 1000
_PROGRAMS = {".bat", ".cjs", ".class", ".cmd", ".exe", ".jar", ".js", ".mjs", ".php", ".py", ".rb", ".sh", ".ts"}
_CACHES = {"npm_config_cache": ".npm", "UV_CACHE_DIR": ".cache/uv"}
"""Variables that say where launchers keep what they download, and the places in the home that they stand for."""


def privately(params: OneServer, folder: Path, *, server: str, why: str) -> tuple[OneServer, CopiedPaths]:
    """Return the parameters of a server with everything that is named in them in `folder`, and the paths of the copies;
    say what is not covered.

    The folder is the server's own temporary folder, which is removed when its process ends. Raises ServerError if the
    copies do not fit on the disk.
    """
    launch = params if isinstance(params, StdioServer) else params.launch
    assert launch is not None
    try:
        copies = _Copies(folder, Path(launch.cwd or ".").resolve())
        fields = {
            "args": tuple(map(copies.named_in, launch.args)),
            "env": {name: copies.named_in(value) for name, value in launch.env.items()} | _home(launch, folder),
            "cwd": str(copies.cwd),
        }
    except OSError as error:
        if "No space left on device" not in str(error):  # shutil.Error lists what went wrong, and has no errno
            raise
        raise ServerError(
            f"{server} needs copies of the files that it is pointed at, since {why}, and the disk under "
            f"{folder.parent} is full; make room there, or set TMPDIR to a folder on another disk."
        ) from error
    _say_once(server, why, copies.too_large())
    if isinstance(params, StdioServer):
        return params.model_copy(update=fields), copies.paths
    return params.model_copy(update={"launch": launch.model_copy(update=fields)}), copies.paths


def _home(launch: Launch, folder: Path) -> dict[str, str]:
    """Return a home of the server's own, with the launchers' downloads in their old places."""
    if "HOME" in launch.env:
        return {}
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    caches = {name: str(Path.home() / place) for name, place in _CACHES.items() if (Path.home() / place).is_dir()}
    return {"HOME": str(home)} | {name: path for name, path in caches.items() if name not in launch.env}


class _Copies:
    """Copies of files and folders, up to a limit for all of them together."""

    def __init__(self, folder: Path, cwd: Path) -> None:
        self._folder = folder
        self._bytes, self._files = _MOST_BYTES, _MOST_FILES
        self._made: dict[Path, Path] = {folder.resolve(): folder}
        self._left: list[Path] = []
        self._was = cwd
        self.cwd = self._copied(cwd)
        """The working directory, or its copy."""

    def named_in(self, word: str) -> str:
        """Return a word of a command line with the path in it, also after `=`, replaced by that of a copy."""
        option, equals, text = word.rpartition("=") if word.startswith("-") else ("", "", word)
        path = Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises for unknown users
        try:
            if not text or not (self._was / path).exists() or _is_program(self._was / path):
                return word
        except (OSError, ValueError):
            return word
        if not path.is_absolute() and self.cwd != self._was:
            return word  # it names the copy already
        return f"{option}{equals}{self._copied((self._was / path).resolve())}"

    @property
    def paths(self) -> CopiedPaths:
        """The copies by the paths of the originals."""
        made = {str(path): str(copy) for path, copy in self._made.items() if copy != self._folder}
        return CopiedPaths(made)

    def too_large(self) -> tuple[str, ...]:
        """Return the paths that were not copied, since they are too large."""
        return tuple(map(str, self._left))

    def _copied(self, path: Path) -> Path:
        for above in (path, *path.parents):
            if above in self._made:
                return self._made[above] / path.relative_to(above)
        if not self._room_for(path):
            self._left.append(path)
            return path
        target = self._folder / "copies" / str(len(self._made)) / (path.name or "root")
        target.parent.mkdir(parents=True)
        if path.is_dir():
            shutil.copytree(path, target, symlinks=True, ignore_dangling_symlinks=True)
        else:
            shutil.copy2(path, target)
        self._made[path] = target
        return target

    def _room_for(self, path: Path) -> bool:
        size, files = 0, 0
        inside = path.rglob("*") if path.is_dir() else [path]
        with suppress(OSError):
            for file in inside:
                size, files = size + file.lstat().st_size, files + 1
                if size > self._bytes or files > self._files:
                    return False
            self._bytes, self._files = self._bytes - size, self._files - files
            return True
        return False


def _is_program(path: Path) -> bool:
    return path.is_file() and (path.suffix in _PROGRAMS or os.access(path, os.X_OK))


@cache
def _say_once(server: str, why: str, too_large: tuple[str, ...]) -> None:
    but = f" except for {', '.join(too_large[:3])}, which it can change," if too_large else ""
    log.warning(
        "%s runs without a sandbox, since %s: it gets a home, a temporary folder and copies of the files that it is "
        "pointed at,%s but what it writes anywhere else stays (--sandbox off turns this off).", server, why, but,
    )  # fmt: skip
