"""A run on disk: one folder that holds everything about it, owned by one process at a time.

Whatever is there is whole: files appear by write-to-temporary, fsync, rename. A step happened when `state.json` says
so; what a killed process left of a later step is removed when the run is continued.
"""

import errno
import fcntl
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcp_rl.config import RunConfig, config_keys, flat_values
from mcp_rl.durable import sync_file, write_atomically
from mcp_rl.errors import RunDirectoryError
from mcp_rl.scenario import McpScenario, read_scenarios, scenario_lines
from mcp_rl.trajectory import TrajectoryGroup

_Model = TypeVar("_Model", bound=BaseModel)


class RunIdentity(BaseModel):
    """What a run was made for. A run can only be continued where all of it is the same."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    server: str
    base_model: str
    base_revision: str = ""
    """Hash of the base model's weights, or the revision that was loaded."""
    seed: int
    schema_hash: str
    scenarios_hash: str
    settings: dict[str, Any] = {}
    """The settings that change what is learned, flat: dotted name to value."""

    def differences(self, other: "RunIdentity") -> list[str]:
        """What `other` has that this one has not, each as `name (was A, is B)`."""
        return [f"{name} (was {was!r}, is {now!r})" for name, was, now in self._different(other)]

    def difference(self, other: "RunIdentity") -> str | None:
        """The end of a sentence that says that a run `cannot be continued`: why, and what to do. None where it can."""
        if not (found := self._different(other)):
            return None
        differing = "; ".join(self.differences(other))
        advice = ["start over with --fresh", "choose another name with --name"]
        keys = list(dict.fromkeys(_setting(name) for name, *_ in found))
        options = {} if "replay.of" in self.settings else _OPTIONS  # `mcp-rl replay` takes settings alone
        words = [_typed(key, self._value(key), options) for key in keys]
        if None not in words:
            add = [word for word in words if word]
            leave = [key for key, word in zip(keys, words, strict=True) if word == ""]
            how = [*([f"add {' '.join(add)}"] if add else []), *([f"leave out {', '.join(leave)}"] if leave else [])]
            advice.insert(0, f"to go on with it, {' and '.join(how)}")
        said = f"{', '.join(advice[:-1])}, or {advice[-1]}"
        return f"because it was made with another {differing}. {said[0].upper()}{said[1:]}."

    def _value(self, key: str) -> Any:
        """Of a setting, or of a part of the identity; a table's entries stand there one by one."""
        flat = self._flat()
        entries = {name.removeprefix(f"{key}."): value for name, value in flat.items() if name.startswith(f"{key}.")}
        return entries or flat.get(key)

    def _different(self, other: "RunIdentity") -> list[tuple[str, Any, Any]]:
        """Name, what it is here and what it is there. A setting that one of them does not know, since it came with a
        later version of the package or is no part of an identity any more, was at its default."""
        defaults = flat_values(RunConfig(server=("any",), base_model=self.base_model))
        mine, theirs = self._flat(), other._flat()
        names = [name for name in dict.fromkeys([*mine, *theirs]) if name not in _NO_LONGER]
        for flat in (mine, theirs):
            flat |= {name: defaults[name] for name in names if name in defaults and name not in flat}
        return [(name, mine.get(name), theirs.get(name)) for name in names if mine.get(name) != theirs.get(name)]

    def _flat(self) -> dict[str, Any]:
        fields = self.model_dump(mode="json")
        return {**{k: v for k, v in fields.items() if k != "settings"}, **fields["settings"]}


_OPTIONS = {
    "seed": "--seed",
    "base_model": "--base-model",
    "held_out": "--held-out",
    "batch_size": "--batch-size",
    "epochs": "--epochs",
}


_NO_LONGER = frozenset(
    f"unsloth.{name}"
    for name in (
        "use", "dtype", "max_seq_length", "full_finetuning", "token", "device_map", "trust_remote_code",
        "use_gradient_checkpointing", "fast_inference", "gpu_memory_utilization", "float8_kv_cache", "max_lora_rank",
        "disable_log_stats",
    )
)  # fmt: skip
"""Settings that were part of an identity once, and make no other run: earlier versions wrote them down."""


def _setting(name: str) -> str:
    """The setting that a flat name is, or is an entry of."""
    return next((key for key, _ in config_keys() if name.startswith(f"{key}.")), name)


def _typed(name: str, value: Any, options: Mapping[str, str]) -> str | None:
    """The word of a command that makes this part of an identity what it was: "" to leave the setting out, None where no
    word does."""
    if name in options:
        return shlex.join([options[name], str(value)])
    if name == "judge.rubric" and isinstance(value, str) and re.fullmatch(r"[0-9a-f]{16}", value):
        return None  # the hash of a file
    if name in ("server", "init") or name not in {
        key for key, _ in config_keys()
    }:  # names and hashes of something else
        return None
    if value is None:
        return ""
    if isinstance(value, dict):
        entries = ", ".join(f"{json.dumps(key)} = {json.dumps(entry)}" for key, entry in value.items())
        return shlex.quote(f"{name}={{{entries}}}")
    plain = isinstance(value, str) and re.fullmatch(r"(?!(true|false|inf|nan)$)[A-Za-z][\w./-]*", value)
    return shlex.quote(f"{name}={value if plain else json.dumps(value, ensure_ascii=False)}")


class RunState(BaseModel):
    """Where a run stands. Written after everything else of a step, so it never points at something half written."""

    model_config = ConfigDict(extra="forbid")

    step: int = 0
    """Of the newest whole checkpoint."""
    progress: "StepProgress" = Field(default_factory=lambda: StepProgress())
    threads: int | None = None
    """Threads that torch uses; results are bit-identical only with the same number."""
    before: dict[str, Any] | None = None
    """The base model's evaluation, as JSON."""
    after: dict[str, Any] | None = None
    """The evaluation of the newest step that was evaluated."""
    after_step: int | None = None


class StepProgress(BaseModel):
    """What belongs to a step besides the weights; kept in its checkpoint too, so that the two never differ."""

    model_config = ConfigDict(extra="forbid")

    seconds: float = 0.0
    """Wall-clock time up to this step, all sessions together."""
    rollouts: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    faults: int = 0
    curriculum: dict[str, Any] = {}
    """Which scenarios come next."""


@dataclass
class RunDirectory:
    """An open run directory, locked for this process. Made by `open_run`."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def judge(self) -> Path:
        """Requests to judges and their verdicts."""
        return self.path / "judge"

    @property
    def report(self) -> Path:
        return self.path / "report.json"

    # -- identity and state

    def identity(self) -> RunIdentity | None:
        """What the run was made for; None where it is new."""
        content = self.read_json("model.json")
        if content is not None and "sft" in content and "identity" not in content:
            raise RunDirectoryError(
                f"The run in {self.path} is of supervised fine-tuning, so it cannot be continued on a tool server: "
                f"choose another name with --name, and add --init {self.path} to begin with what it learned."
            )
        return None if content is None else self._validated(RunIdentity, content.get("identity"), "model.json")

    def begin(self, identity: RunIdentity, about: dict[str, Any]) -> None:
        """Write model.json. `about` is for people and tools: names, paths, versions; never a secret."""
        self.write_json("model.json", {**about, "identity": identity.model_dump(mode="json")})

    def check(self, identity: RunIdentity) -> None:
        """Raises RunDirectoryError, one sentence with what differs, where the run was made for something else."""
        mine = self.identity()
        if mine is None:
            return
        if difference := mine.difference(identity):
            raise RunDirectoryError(f"The run in {self.path} cannot be continued, {difference}")
        self.check_checkpoints()

    def check_checkpoints(self) -> None:
        """Raises RunDirectoryError where the run has taken steps and there is no checkpoint of any."""
        if (step := self.state().step) and not any(self.checkpoints.glob("*[0-9]*")):
            raise RunDirectoryError(
                f"The run in {self.path} is at step {step}, but its checkpoints are gone: put a copy of one into "
                f"{self.checkpoints}, or start over with --fresh."
            )

    def state(self) -> RunState:
        content = self.read_json("state.json")
        return RunState() if content is None else self._validated(RunState, content, "state.json")

    def save_state(self, state: RunState) -> None:
        self.write_json("state.json", state.model_dump(mode="json"))

    # -- the parts of a step

    def append_history(self, line: dict[str, Any]) -> None:
        """Add a line; it has a "step", and goes again where that step turns out not to be whole.

        An evaluation that is made again, since a kill came before the state was written, replaces what it was.
        """
        if line.get("split") == "val":
            about = (line["step"], "val")
            self._keep_history(lambda known: (known["step"], known.get("split")) != about)
        with typed_errors(self.path), (self.path / "history.jsonl").open("ab") as file:
            file.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
            sync_file(file)

    def history(self) -> list[dict[str, Any]]:
        """All lines; one that was cut off by a kill is left out. Raises RunDirectoryError for one that is no JSON."""
        path = self.path / "history.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        return [_history_line(path, number, line) for number, line in enumerate(lines, 1) if line.endswith(b"\n")]

    def save_trajectories(self, split: str, step: int, groups: Iterable[TrajectoryGroup]) -> Path:
        """One group per line under trajectories/<split>/<step>.jsonl."""
        path = self.path / "trajectories" / split / f"{step:04d}.jsonl"
        self._write(path, "".join(group.model_dump_json() + "\n" for group in groups))
        return path

    def trajectories(self, split: str, step: int) -> list[TrajectoryGroup]:
        """The groups of a split and step; empty where none were saved."""
        path = self.path / "trajectories" / split / f"{step:04d}.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [TrajectoryGroup.model_validate_json(line) for line in lines]

    def save_scenarios(self, split: str, scenarios: Iterable[McpScenario]) -> None:
        self._write(self.path / f"{split}.jsonl", scenario_lines(scenarios))

    def save_lines(self, name: str, lines: Iterable[BaseModel]) -> None:
        """A file of JSON Lines beside the state."""
        self._write(self.path / name, "".join(line.model_dump_json() + "\n" for line in lines))

    def scenarios(self, split: str) -> list[McpScenario] | None:
        """The run's own scenarios of a split; None where none were saved yet."""
        path = self.path / f"{split}.jsonl"
        return read_scenarios(path) if path.exists() else None

    def discard_after(self, step: int) -> None:
        """Remove what a killed process left of steps that are not whole. Checkpoints look after themselves."""
        with typed_errors(self.path):
            for path in (self.path / "trajectories").glob("*/*.jsonl"):
                if path.stem.isdigit() and int(path.stem) > step:
                    path.unlink()
            for path in self.path.rglob("*.tmp"):
                if path.is_file():
                    path.unlink(missing_ok=True)
        self._keep_history(lambda line: bool(line["step"] <= step))

    def _keep_history(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        path = self.path / "history.jsonl"
        kept = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in self.history() if wanted(line))
        if path.exists() and path.read_bytes() != kept.encode():
            self._write(path, kept)

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        self._write(self.path / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    # -- reading and writing

    def _write(self, path: Path, text: str) -> None:
        with typed_errors(path):
            write_atomically(path, text.encode())

    def read_json(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        if not path.exists():
            return None
        with typed_errors(path):
            try:
                content = json.loads(path.read_bytes())
            except ValueError as error:
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


def _history_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except ValueError:
        content = None
    if not isinstance(content, dict) or "step" not in content:
        raise RunDirectoryError(
            f"{path}, line {number}, is damaged: mend or remove that line to go on, or start over with --fresh."
        )
    return content


@contextmanager
def open_run(path: Path, *, fresh: bool = False, needed: Iterable[Path | None] = ()) -> Iterator[RunDirectory]:
    """Create or open the run in `path` and hold its lock until the end.

    `fresh` moves an earlier run aside and removes it, once the lock is held. Raises RunDirectoryError where another
    process has it (its pid is named), where the folder cannot be written, or where `fresh` would remove a file or a
    folder that is `needed`.
    """
    for place in filter(None, needed) if fresh else ():
        if place.expanduser().resolve().is_relative_to(path.resolve()):
            raise RunDirectoryError(
                f"--fresh would remove {place}, which is needed here: choose another name than {path.name}."
            )
    with lock_run(path):
        if fresh:
            _remove(path)
        with typed_errors(path):
            for folder in (path, path / "checkpoints", path / "logs", path / "trajectories"):
                folder.mkdir(exist_ok=True)
        yield RunDirectory(path)


def _remove(path: Path) -> None:
    """Remove a run in two moves, so that a kill in between never leaves half a run under its name."""
    doomed = path.with_name(f".{path.name}.removed")
    with typed_errors(path):
        for _ in range(2):  # what an earlier kill left, then this run
            shutil.rmtree(doomed, ignore_errors=True)
            if path.exists():
                path.rename(doomed)


@contextmanager
def lock_run(path: Path) -> Iterator[None]:
    """Hold a run's exclusive lock, which the kernel drops with the process, however it dies. The run need not exist.

    Raises RunDirectoryError where another process has it.
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
    """What the file system refuses, as one sentence."""
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
