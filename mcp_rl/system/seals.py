"""Seals: `seal.json` holds the SHA-256 of the files of a folder, so that damage and edits are noticed.

New digests are announced in the seal before their files are written. So a kill at any moment leaves files that are as
before or as announced, and never one that looks damaged. The history, which only grows, is a chain (`chain.py`): the
seal holds the digest that one of its lines must bear. No key is needed to seal, so whoever can write to the folder can
seal it anew: a signature over the seal is what they cannot make (docs/verify.md).
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import RunDirectoryError
from mcp_rl.system.chain import ChainBroken, ChainedLine, digest_of, follow_chain, inside, last_digest, whole_lines
from mcp_rl.system.durable import write_atomically

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

SEAL = "seal.json"
HISTORY = "history.jsonl"
"""The file of a sealed folder that is a chain."""
_CHECKPOINTS, _MANIFEST = "checkpoints/", "/manifest.json"
_FORMAT = 1
_TAIL = 1 << 18
"""Bytes that are read of the history's end; a line has a few thousand."""
_MOST_LOOKS = 20
"""Looks at a folder that its owner is writing to."""


@dataclass(frozen=True)
class Seal:
    """The digests of a folder's files, by their paths in the folder."""

    files: Mapping[str, str] = field(default_factory=dict)
    announced: Mapping[str, str] = field(default_factory=dict)
    """Digests of files that are being written: each has this one or that in `files`."""

    @property
    def digest(self) -> str:
        """Digest of everything that is sealed."""
        return digest_of(json.dumps([_FORMAT, dict(self.files), dict(self.announced)], sort_keys=True).encode())

    @property
    def names(self) -> list[str]:
        return sorted({*self.files, *self.announced})

    def accepts(self, name: str, found: str | None) -> bool:
        """Return whether a file may have this digest; None stands for a file that is not there."""
        return found in (self.files.get(name), self.announced.get(name, self.files.get(name)))

    def announcing(self, digests: Mapping[str, str]) -> Seal:
        """Return the seal to write before files with these digests are written."""
        return replace(self, announced={**self.announced, **digests})

    def knowing(self, digests: Mapping[str, str], gone: Collection[str] = ()) -> Seal:
        """Return the seal with the digests of files that are there, and without the files that are `gone`."""
        kept = {name: digest for name, digest in {**self.files, **digests}.items() if name not in gone}
        return Seal(kept, {name: digest for name, digest in self.announced.items() if name not in {*digests, *gone}})

    def settled(self, folder: Path) -> Seal:
        """Return the seal in which announced files have the digest that they turn out to have."""
        written = {name: new for name, new in self.announced.items() if self._is_written(folder / name, name, new)}
        return Seal({**self.files, **written}, {})

    def _is_written(self, path: Path, name: str, new: str) -> bool:
        if name != HISTORY:
            return file_digest(path) == new
        digests = _digests_borne(path)  # lines may have followed
        return new in digests and self.files.get(name, "") not in digests - {""}

    def write(self, folder: Path) -> None:
        """Write seal.json. Raises OSError."""
        content = {"format": _FORMAT, "files": dict(sorted(self.files.items()))}
        content |= {"announced": dict(self.announced), "digest": self.digest}
        write_atomically(folder / SEAL, (json.dumps(content, indent=2) + "\n").encode())


def read_seal(folder: Path) -> Seal | None:
    """Read the seal of a folder; None if it has none. Raises RunDirectoryError if the seal itself is damaged."""
    path = folder / SEAL
    try:
        content = json.loads(path.read_bytes())
        seal = Seal(_digests(content["files"]), _digests(content["announced"]))
        if content["format"] != _FORMAT or content["digest"] != seal.digest or len(content) != 4:
            raise ValueError
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunDirectoryError(f"Cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise damaged(folder, SEAL, "has changed since it was written") from None
    return seal


def damaged(folder: Path, name: str, problem: str) -> RunDirectoryError:
    """Return the error about a file that is not as it was written."""
    return RunDirectoryError(
        f"{folder / name} {problem}: put back a good copy of it, or remove {folder / SEAL} to go on with results that "
        "can no longer be verified."
    )


def unsealed(folder: Path) -> str:
    """Return the sentence about a folder without a seal."""
    return f"{folder} cannot be verified: it has no {SEAL}, because an earlier version made it or the file was removed."


def file_digest(path: Path, name: str | None = None) -> str | None:
    """Return the SHA-256 of a file, None if it is not there; for the history, the digest that its last line bears."""
    try:
        with path.open("rb") as file:
            if (name or path.name) == HISTORY:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - _TAIL))
                return last_digest(file.read())
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RunDirectoryError(f"Cannot read {path}: {error.strerror or error}.") from error


def last_line(path: Path) -> dict[str, Any]:
    """Return the last whole line of a history, unchecked; empty without one."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL))
            line = json.loads(file.read().split(b"\n")[-2])
    except (OSError, ValueError, IndexError):
        return {}
    return line if isinstance(line, dict) else {}


def checkpoint_entry(step: int) -> str:
    """Return the name of a step's checkpoint in the seal: that of its manifest, which has all digests."""
    return f"{_CHECKPOINTS}{step:04d}{_MANIFEST}"


def checkpoint_step(name: str) -> int:
    """Return the step of a checkpoint by its name in the seal; -1 for the name of another file."""
    step = name.removeprefix(_CHECKPOINTS).removesuffix(_MANIFEST)
    return int(step) if step.isdecimal() and checkpoint_entry(int(step)) == name else -1


def _digests_borne(history: Path) -> set[str]:
    """Return the digests that lines of a history bear, unchecked, and that of an empty one."""
    content = history.read_bytes() if history.exists() else b""
    return {"", *(last_digest(line) for _, line in whole_lines(content))}


@dataclass(frozen=True)
class Sealed:
    """A folder whose files were found to be as they were written."""

    seal: Seal
    lines: list[ChainedLine]
    """The history."""
    files: list[str]
    """The files that were compared with their digests."""

    @property
    def episodes(self) -> set[str]:
        """Files that lines of the history wrote."""
        return {name for line in self.lines for name in line.wrote}


def check_sealed(folder: Path, *, episodes: bool = True, remade: Collection[str] = ()) -> Sealed | None:
    """Compare the files of a folder with their digests; None if the folder has no seal.

    `episodes` False leaves out the files that lines of the history wrote, which are large; files in `remade` may be
    missing. The folder's owner may be writing to it. Raises RunDirectoryError for the first file that has changed.
    """
    for look in range(_MOST_LOOKS):
        seal, head = read_seal(folder), file_digest(folder / HISTORY)
        if seal is None:
            return None
        try:
            return _compare(folder, seal, episodes, remade)
        except RunDirectoryError:
            if look + 1 == _MOST_LOOKS or (read_seal(folder), file_digest(folder / HISTORY)) == (seal, head):
                raise
    raise AssertionError


def check_kinds(folder: Path) -> None:
    """Raise RunDirectoryError for anything in a folder that is read without end, such as a pipe or a device.

    Links to files and folders elsewhere may be the user's own.
    """
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)  # noqa: PTH118 (thousands of files)
            try:
                mode = os.stat(path).st_mode  # noqa: PTH116
            except OSError:  # gone by now, or a link to nowhere: whoever reads it says so
                continue
            # A temporary file is written over and never read: only a pipe would hold its writer.
            if not (stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and name.endswith(".tmp"))):
                raise RunDirectoryError(f"{path} is not a file but a pipe, a socket or a device: remove it.")


def seal_files(folder: Path, names: Iterable[str]) -> None:
    """Seal files that are all written already. Raises OSError."""
    found = {name: file_digest(folder / name) for name in names}
    Seal({name: digest for name, digest in found.items() if digest}).write(folder)


def _compare(folder: Path, seal: Seal, episodes: bool, remade: Collection[str]) -> Sealed:
    lines = _history(folder, seal)
    compared = [name for name in seal.names if name != HISTORY and checkpoint_step(name) < 0]
    for name in compared:
        found = file_digest(folder / name)
        if not seal.accepts(name, found) and not (found is None and name in remade):
            raise damaged(folder, name, _change(folder / name, found))
    if episodes:
        for line in lines:
            for name, known in line.wrote.items():
                if (found := file_digest(folder / name)) != known:
                    told = _change(folder / name, found)
                    raise damaged(folder, name, f"(written with line {line.number} of {HISTORY}) {told}")
                compared.append(name)
    return Sealed(seal, lines, [*compared, *([HISTORY] if lines else [])])


def _history(folder: Path, seal: Seal) -> list[ChainedLine]:
    """Follow the history to its end, which may be beyond the line that the seal knows."""
    path = folder / HISTORY
    try:
        lines = follow_chain(path.read_bytes()) if path.exists() else []
    except OSError as error:
        raise RunDirectoryError(f"Cannot read {path}: {error.strerror or error}.") from error
    except ChainBroken as broken:
        raise damaged(folder, f"{HISTORY}, line {broken.number}", broken.problem) from None
    known = {"", *(line.digest for line in lines)}
    if not known & {seal.files.get(HISTORY, ""), seal.announced.get(HISTORY, seal.files.get(HISTORY, ""))}:
        raise damaged(folder, f"{HISTORY}, line {len(lines) + 1}", "and what follows it are missing")
    return lines


def _change(path: Path, found: str | None) -> str:
    """Say what happened to a file, with the first line that is not JSON any more."""
    if found is None:
        return "is gone"
    lines = path.read_bytes().split(b"\n") if path.suffix == ".jsonl" else []
    bad = next((number for number, line in enumerate(lines, 1) if line.strip() and not _is_json(line)), None)
    return "has changed since it was written" + (f" (line {bad} is not JSON)" if bad else "")


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _digests(content: Any) -> dict[str, str]:
    if not all(isinstance(part, str) for pair in content.items() for part in pair) or not all(map(inside, content)):
        raise ValueError
    return dict(content)
