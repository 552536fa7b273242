"""A run on disk: one folder that holds everything about the run, owned by one process at a time.

Every file is complete: files appear by write-to-temporary, fsync, rename. A step counts once `state.json` says so; what
a killed process left of a later step is removed when the run continues. Every file that is written here is sealed
(`system/seals.py`): `check_whole` compares it with its digest.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcp_rl.config.identity import RunIdentity
from mcp_rl.errors import RunDirectoryError
from mcp_rl.scenario import McpScenario, read_scenarios, scenario_lines
from mcp_rl.system.chain import LINK, ChainBroken, ChainedLine, digest_of, follow_chain, linked, relinked
from mcp_rl.system.durable import sync_file, write_atomically
from mcp_rl.system.seals import (
    HISTORY,
    SEAL,
    Seal,
    check_kinds,
    check_sealed,
    checkpoint_entry,
    checkpoint_step,
    damaged,
    file_digest,
    read_seal,
    unsealed,
)
from mcp_rl.trajectory import TrajectoryGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)
_Model = TypeVar("_Model", bound=BaseModel)
REMADE = ("report.json", "difficulty.jsonl")
"""Files that a run makes again from others, so that they may be missing."""


class RunState(BaseModel):
    """The progress of a run. Written after everything else of a step, so that it never refers to incomplete files."""

    model_config = ConfigDict(extra="forbid")

    step: int = 0
    """Step of the newest whole checkpoint."""
    progress: "StepProgress" = Field(default_factory=lambda: StepProgress())
    threads: int | None = None
    """Threads that torch uses; results are bit-identical only with the same number."""
    update_threads: int | None = None
    """Threads that torch uses in an update; None in runs of earlier versions, which used `threads`."""
    before: dict[str, Any] | None = None
    """The base model's evaluation, as JSON."""
    sft_steps: int | None = None
    """First steps that imitate reference solutions; None until that is decided."""
    after: dict[str, Any] | None = None
    """The evaluation of the newest step that was evaluated."""
    after_step: int | None = None
    forecast: dict[str, Any] | None = None
    """The pace, cost and memory that were expected before the first step, as JSON."""


class StepProgress(BaseModel):
    """The totals and the curriculum of a step; kept in its checkpoint too, so that they match the weights."""

    model_config = ConfigDict(extra="forbid")

    seconds: float = 0.0
    """Wall-clock time up to this step, over all sessions."""
    rollouts: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    faults: int = 0
    curriculum: dict[str, Any] = {}
    """State of the curriculum: which scenarios come next."""


@dataclass
class RunDirectory:
    """An open run directory, locked for this process. Made by `open_run`.

    Raises RunDirectoryError if something in it is no file, and could be read without end.
    """

    path: Path
    seals: bool = True
    """False if a new run gets no seal, because it is made from a run that has none."""
    on_state: Callable[[], None] = field(default=lambda: None, repr=False)
    """Called when state.json was written, and everything on disk is that of one step."""
    _wrote: dict[tuple[str, int], dict[str, str]] = field(default_factory=dict, repr=False)
    """For each split and step the digests of the files that its line of the history will hold."""

    def __post_init__(self) -> None:
        check_kinds(self.path)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def judge(self) -> Path:
        """Folder of requests to judges and to models that play users, and of verdicts."""
        return self.path / "judge"

    @property
    def report(self) -> Path:
        return self.path / "report.json"

    # -- identity and state

    def identity(self) -> RunIdentity | None:
        """Return the run's identity; None if the run is new."""
        content = self.read_json("model.json")
        if content is not None and "sft" in content and "identity" not in content:
            raise RunDirectoryError(
                f"The run in {self.path} is of supervised fine-tuning, so it cannot be continued on a tool server: "
                f"choose another name with --name, and add --init {self.path} to start from its weights."
            )
        return None if content is None else self._validated(RunIdentity, content.get("identity"), "model.json")

    def begin(self, identity: RunIdentity, about: dict[str, Any]) -> None:
        """Write model.json. `about` is for people and tools: names, paths, versions; never a secret."""
        self.write_json("model.json", {**about, "identity": identity.model_dump(mode="json")})

    def states(self) -> dict[str, Any] | None:
        """Return what was measured of the servers' states when the run began, by their names; None for older runs."""
        return self.read_json("servers.json")

    def save_states(self, states: Mapping[str, Any]) -> None:
        """Write servers.json: the same state, and the same calls that fill a server, hold for the whole run."""
        self.write_json("servers.json", dict(states))

    def check(self, identity: RunIdentity) -> None:
        """Raise RunDirectoryError, with the differences, if the run was made with another identity."""
        mine = self.identity()
        if mine is None:
            return
        if difference := mine.difference(identity):
            raise RunDirectoryError(f"The run in {self.path} cannot be continued, {difference}")
        self.check_checkpoints()

    def check_checkpoints(self) -> None:
        """Raise RunDirectoryError if the run has taken steps and no checkpoint is left."""
        if (step := self.state().step) and not any(self.checkpoints.glob("*[0-9]*")):
            raise RunDirectoryError(
                f"The run in {self.path} is at step {step}, but its checkpoints are gone: put a copy of one into "
                f"{self.checkpoints}, or start over with --fresh."
            )

    def state(self) -> RunState:
        content = self.read_json("state.json")
        return RunState() if content is None else self._validated(RunState, content, "state.json")

    def save_state(
        self, state: RunState, lines: Mapping[str, Iterable[BaseModel]] | None = None, *, saved: bool = False
    ) -> None:
        """Write state.json, then the JSON Lines files in `lines` that follow from it.

        Seals the checkpoint of the state's step: the first time, and again if it was just `saved`.
        """
        files = {"state.json": _json_text(state.model_dump(mode="json"))}
        files |= {name: "".join(line.model_dump_json() + "\n" for line in each) for name, each in (lines or {}).items()}
        self.write_files(files, checkpoint=state.step, saved=saved)
        self.on_state()

    # -- the parts of a step

    def append_history(self, line: dict[str, Any]) -> None:
        """Append a line; it has a "step", and is removed if that step turns out incomplete.

        An evaluation that is repeated, because a kill came before the state was written, replaces its earlier line.
        """
        if line.get("split") in ("val", "val_subset"):
            self.forget_line(line["step"], line["split"])
        path = self.path / HISTORY
        if self._seal() is None:
            text = (json.dumps(line, ensure_ascii=False) + "\n").encode()
        else:
            wrote = self._wrote.pop((line.get("split", ""), line["step"]), {})
            text, _ = linked(line, wrote, file_digest(path) or "")
            if file_digest(self.path / SEAL) is None:
                self._write_seal(Seal())
        with typed_errors(self.path), path.open("ab") as file:
            file.write(text)
            sync_file(file)

    def forget_line(self, step: int, split: str) -> None:
        """Remove the line of a step and split from the history, if it has one."""
        self._keep_history(lambda known: (known["step"], known.get("split")) != (step, split))

    def history(self) -> list[dict[str, Any]]:
        """Return all lines but a last one that a kill cut off. Raises RunDirectoryError for a line that is not JSON."""
        return [line for _, line in _history_lines(self.path / HISTORY)]

    def save_trajectories(self, split: str, step: int, groups: Iterable[TrajectoryGroup]) -> Path:
        """Write one group per line to trajectories/<split>/<step>.jsonl; return the file.

        The line that `append_history` writes for this split and step holds the file's digest.
        """
        name = f"trajectories/{split}/{step:04d}.jsonl"
        path = self.path / name
        content = "".join(group.model_dump_json() + "\n" for group in groups).encode()
        if path.exists():
            self.forget_line(step, split)  # it holds the digest of the file that goes
        with typed_errors(path):
            write_atomically(path, content)
        self._wrote[split, step] = {name: digest_of(content)}
        return path

    def trajectories(self, split: str, step: int) -> list[TrajectoryGroup]:
        """Return the groups of a split and step; empty if none were saved."""
        path = self.path / "trajectories" / split / f"{step:04d}.jsonl"
        return list(read_groups(path)) if path.exists() else []

    def save_scenarios(self, split: str, scenarios: Iterable[McpScenario]) -> None:
        self.write_files({f"{split}.jsonl": scenario_lines(scenarios)})

    def scenarios(self, split: str) -> list[McpScenario] | None:
        """Return the run's own scenarios of a split; None if none were saved yet."""
        path = self.path / f"{split}.jsonl"
        return read_scenarios(path) if path.exists() else None

    def discard_after(self, step: int) -> None:
        """Remove what a killed process left of incomplete steps, apart from checkpoints, which check themselves."""
        self._keep_history(lambda line: bool(line["step"] <= step))
        with typed_errors(self.path):
            for path in (self.path / "trajectories").glob("*/*.jsonl"):
                if path.stem.isdigit() and int(path.stem) > step:
                    path.unlink()
            for path in self.path.rglob("*.tmp"):
                if path.is_file():
                    path.unlink(missing_ok=True)

    def copy_history(self, other: RunDirectory, step: int) -> None:
        """Take over the lines of another run's history up to a step. Raises RunDirectoryError if one cannot be read."""
        read_history(other.path)
        path = other.path / HISTORY
        lines = other._chained() if other._seal() else [ChainedLine(n, line) for n, line in _history_lines(path)]
        self._write_history([line for line in lines if line.fields["step"] <= step])

    def _keep_history(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        path = self.path / HISTORY
        sealed = self._seal() is not None
        lines = self._chained() if sealed else [ChainedLine(n, line) for n, line in _history_lines(path)]
        self._write_history([line for line in lines if wanted(line.fields)])

    def _write_history(self, lines: Sequence[ChainedLine]) -> None:
        path = self.path / HISTORY
        sealed = self._seal() is not None
        kept, head = relinked(lines) if sealed else (b"".join(_plain(line.fields) for line in lines), "")
        if (path.read_bytes() if path.exists() else b"") == kept:
            return
        if (seal := self._seal()) is not None:
            self._write_seal(seal.settled(self.path).announcing({HISTORY: head}))
        with typed_errors(path):
            write_atomically(path, kept)

    def _chained(self) -> list[ChainedLine]:
        """Return the lines of a sealed run's history."""
        path = self.path / HISTORY
        try:
            return follow_chain(path.read_bytes()) if path.exists() else []
        except ChainBroken as broken:
            raise damaged(self.path, f"{HISTORY}, line {broken.number}", broken.problem) from None

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        self.write_files({name: _json_text(content)})

    # -- sealing

    def check_whole(self, *, episodes: bool = True, remade: Iterable[str] = REMADE) -> list[str]:
        """Compare every file of the run with its digest, and return sentences about what cannot be compared.

        Checkpoints check themselves. `episodes` False leaves out the episodes, which are large; files in `remade` may
        be missing. A run in progress can be checked too. Raises RunDirectoryError for a file that has changed.
        """
        sealed = check_sealed(self.path, episodes=episodes, remade=tuple(remade))
        if sealed is None:
            return [unsealed(self.path)] if self._begun else []
        gone = [name for name in remade if name in sealed.seal.files and not (self.path / name).exists()]
        return [f"{self.path / name} is gone." for name in gone]

    def recorded_episodes(self) -> set[str] | None:
        """Return the files of episodes that lines of the history vouch for, by their paths in the run; None for a run
        without digests."""
        if read_seal(self.path) is None:
            return None
        return {name for line in self._chained() for name in line.wrote}

    def take_up(self) -> list[str]:
        """Check a run that is to go on, and return sentences about what cannot be checked or is made again.

        Raises RunDirectoryError for a file that has changed.
        """
        made_again = ("state.json", *REMADE)
        found = self.check_whole(remade=made_again)
        self.settle(forget=made_again)
        return found

    def settle(self, *, forget: Iterable[str] = ()) -> None:
        """Write the digests that files turn out to have after a kill or at the end, and forget those of lost files."""
        if (seal := read_seal(self.path)) is None:
            return
        gone = [name for name in forget if not (self.path / name).exists()]
        settled = seal.settled(self.path).knowing({}, gone)
        if settled != seal:
            self._write_seal(settled)

    def write_files(self, files: Mapping[str, str], *, checkpoint: int | None = None, saved: bool = False) -> None:
        """Write files, given by their paths in the run, in this order, and seal them. Other files of a run, such as one
        about its server, are written by this too."""
        contents = {name: text.encode() for name, text in files.items()}
        if (seal := self._seal()) is not None:
            digests = {name: digest_of(content) for name, content in contents.items()}
            seal = self._with_checkpoint(seal.settled(self.path), checkpoint, saved)
            self._write_seal(seal.announcing(digests))
        for name, content in contents.items():
            with typed_errors(self.path / name):
                write_atomically(self.path / name, content)

    def _with_checkpoint(self, seal: Seal, step: int | None, saved: bool) -> Seal:
        """Return the seal with the history and the checkpoint of a step, and without checkpoints that are gone."""
        known = {HISTORY: head} if (head := file_digest(self.path / HISTORY)) else {}
        gone = [name for name in seal.files if checkpoint_step(name) >= 0 and not (self.path / name).exists()]
        steps = [] if step is None else [step]
        if steps and not any(checkpoint_step(name) >= 0 for name in seal.files):  # a program saved some by itself
            steps += [int(path.name) for path in self.checkpoints.glob("[0-9]*") if path.name.isdigit()]
        for name in map(checkpoint_entry, steps):
            found = file_digest(self.path / name) if saved or name not in seal.files else None
            known |= {name: found} if found else {}
        return seal.knowing(known, gone)

    def _seal(self) -> Seal | None:
        """Return the run's seal, an empty one for a new run; None for a run that an earlier version began."""
        if (seal := read_seal(self.path)) is not None:
            return seal
        return Seal() if self.seals and not self._begun else None

    @property
    def _begun(self) -> bool:
        return any((self.path / name).exists() for name in ("model.json", "state.json", HISTORY))

    def _write_seal(self, seal: Seal) -> None:
        with typed_errors(self.path):
            seal.write(self.path)

    # -- reading and writing

    def read_json(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        if not path.exists():
            return None
        with typed_errors(path):
            try:
                content = json.loads(path.read_bytes())
            except (ValueError, RecursionError) as error:
                raise RunDirectoryError(f"{path} is not JSON ({error}); start over with --fresh.") from error
        if not isinstance(content, dict):
            raise RunDirectoryError(f"{path} is not a JSON object; start over with --fresh.")
        return content

    def _validated(self, model: type[_Model], content: Any, name: str) -> _Model:
        try:
            return model.model_validate(content)
        except ValidationError as error:
            raise RunDirectoryError(
                f"{self.path / name} was not written by this version ({error.errors()[0]['msg']}); start over with "
                "--fresh, or choose another name with --name."
            ) from error


def _json_text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _plain(line: Mapping[str, Any]) -> bytes:
    return (json.dumps(line, ensure_ascii=False) + "\n").encode()


def _history_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the complete lines of a history.jsonl with their numbers; nothing if the file does not exist."""
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise RunDirectoryError(f"Cannot read {path}: {error.strerror or error}.") from error
    for number, text in enumerate(content.splitlines(keepends=True), 1):
        if text.endswith(b"\n") and text.strip():
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                raise _damaged(path, number, "is not JSON") from None
            if not isinstance(line, dict) or "step" not in line:
                raise _damaged(path, number, "has no step and split")
            line.pop(LINK, None)
            yield number, line


def _is_number(value: Any) -> bool:
    """Return whether this is a number that a float holds, or nothing."""
    return value is None or (isinstance(value, int | float) and not (isinstance(value, int) and abs(value) > 2**1000))


def _is_interval(value: Any) -> bool:
    ends = value if isinstance(value, list) else []
    return value is None or (len(ends) == 2 and None not in ends and all(map(_is_number, ends)))


@contextmanager
def readable(folder: Path) -> Iterator[None]:
    """Raise RunDirectoryError, as one sentence, where the files of a run hold something else than we write."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        log.debug("Cannot read %s", folder, exc_info=True)
        said = " ".join(str(error).split())[:200]
        raise RunDirectoryError(
            f"The files in {folder} are damaged, or were not written by this version ({type(error).__name__}: {said})."
        ) from error


def _damaged(path: Path, number: int, problem: str) -> RunDirectoryError:
    return RunDirectoryError(f"{path}, line {number} {problem}: mend or remove that line.")


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's history.jsonl by step, training before evaluation. Takes no lock.

    A step that was taken again has its newest line. Raises RunDirectoryError for a file or line that cannot be read.
    """
    path = folder / "history.jsonl"
    newest: dict[tuple[int, str], dict[str, Any]] = {}
    for number, line in _history_lines(path):
        if not (isinstance(line["step"], int) and isinstance(line.get("split"), str)):
            raise _damaged(path, number, "has no step and split")
        for name, value in line.items():
            if name != "split" and not (_is_interval(value) if name.endswith("ci95") else _is_number(value)):
                what = "a text" if isinstance(value, str) else "something"
                raise _damaged(path, number, f"has {what} in place of a number under {name!r}")
        newest[line["step"], line["split"]] = line
    return [newest[key] for key in sorted(newest)]


def read_groups(path: Path, most_bytes: int | None = None) -> Iterator[TrajectoryGroup]:
    """Yield the groups of an episode file in order, at least one, until `most_bytes` are read. Takes no lock.

    Raises RunDirectoryError for a file or line that cannot be read.
    """
    taken = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _group(line, path, number)
                taken += len(line)
                if most_bytes is not None and taken > most_bytes:
                    return
    except OSError as error:
        raise RunDirectoryError(f"The episodes in {path} cannot be read: {error.strerror or error}.") from error


def _group(line: bytes, path: Path, number: int) -> TrajectoryGroup:
    try:
        return TrajectoryGroup.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ": ".join([f"line {number}", *([".".join(map(str, first["loc"]))] if first["loc"] else [])])
        raise RunDirectoryError(f"The episodes in {path} cannot be read: {where}: {first['msg']}.") from error


@contextmanager
def open_run(path: Path, *, fresh: bool = False, needed: Iterable[Path | None] = ()) -> Iterator[RunDirectory]:
    """Create or open the run in `path` and hold its lock until the end.

    `fresh` moves an earlier run aside and removes it, once the lock is held. Raises RunDirectoryError if another
    process holds the lock (with its pid), if the folder cannot be written, or if `fresh` would remove a file or folder
    that is `needed`.
    """
    for place in filter(None, needed) if fresh else ():
        if place.expanduser().resolve().is_relative_to(path.resolve()):
            raise RunDirectoryError(
                f"--fresh would remove {place}, which is needed here: choose another name than {path.name}."
            )
    with lock_run(path):
        if fresh:
            remove_run(path)
        with typed_errors(path):
            for folder in (path, path / "checkpoints", path / "logs", path / "trajectories"):
                folder.mkdir(mode=0o700, exist_ok=True)  # episodes and logs may hold private data
        run = RunDirectory(path)
        try:
            yield run
        finally:
            with suppress(RunDirectoryError):
                run.settle()


def remove_run(path: Path) -> None:
    """Remove a run by renaming it first, so that a kill never leaves half a run under its name."""
    doomed = path.with_name(f".{path.name}.removed")
    with typed_errors(path):
        for _ in range(2):  # what an earlier kill left, then this run
            shutil.rmtree(doomed, ignore_errors=True)
            if path.exists():
                path.rename(doomed)


@contextmanager
def lock_run(path: Path) -> Iterator[None]:
    """Hold a run's exclusive lock, which the kernel releases when the process ends. The run need not exist.

    Raises RunDirectoryError if another process holds it.
    """
    lock = path.with_name(f".{path.name}.lock")
    with typed_errors(lock):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("a+")
    with file:
        with typed_errors(lock):
            _take(file, path)
        yield


def _take(file: IO[str], run: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        raise RunDirectoryError(
            f"Another process (pid {owner}) is using the run in {run}; wait for it, stop it, or choose another name "
            "with --name."
        ) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()


@contextmanager
def typed_errors(path: Path) -> Iterator[None]:
    """Raise RunDirectoryError, as one sentence, for an OSError."""
    try:
        yield
    except OSError as error:
        reason = {
            errno.ENOSPC: "the disk is full",
            errno.EDQUOT: "the disk quota is used up",
            errno.EACCES: "there is no permission to write there",
            errno.EPERM: "there is no permission to write there",
            errno.EROFS: "the file system is read-only",
        }.get(error.errno or 0, error.strerror or str(error))
        raise RunDirectoryError(f"Cannot write {error.filename or path}: {reason}.") from error
