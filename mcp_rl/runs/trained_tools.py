"""The tools and the system prompt that a model saw in training, kept in its run and in every export of it.

`tools.json` is the list that OpenAI's `tools` takes. `system_prompt.txt` exists only if there was a system prompt.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_rl.config import RunConfig
from mcp_rl.errors import RunDirectoryError
from mcp_rl.run_directory import typed_errors
from mcp_rl.runs.export.staging import EXPORT
from mcp_rl.system.durable import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcp_rl.evaluation.models import ModelSpec
    from mcp_rl.run_directory import RunDirectory
    from mcp_rl.scenario import McpScenario
    from mcp_rl.toolserver.session import Session

TOOLS, SYSTEM_PROMPT = "tools.json", "system_prompt.txt"
_MAX_TURN_TOKENS = "rollout.max_turn_tokens"


@dataclass(frozen=True)
class TrainedTools:
    """OpenAI's function schemas and the system prompt, exactly as the model saw them in training."""

    tools: list[dict[str, Any]]
    system_prompt: str | None = None

    @staticmethod
    def of_session(
        session: Session, scenarios: Iterable[McpScenario], system_prompt: str | None = None
    ) -> TrainedTools:
        """Return what the rollouts of these scenarios show: the session's tools, and the tool that takes the answer if
        every scenario has the same one."""
        submits = {scenario.verifier.submit_tool if scenario.verifier else None for scenario in scenarios}
        name = submits.pop() if len(submits) == 1 else None
        return TrainedTools((session.offering(name) if name else session).schemas.openai, system_prompt)

    @staticmethod
    def read(folder: Path) -> TrainedTools | None:
        """Read the files of a run or an export; None if there are none. Raises RunDirectoryError."""
        place, prompt = folder / TOOLS, folder / SYSTEM_PROMPT
        if not place.is_file():
            return None
        try:
            tools = json.loads(place.read_bytes())
            said = prompt.read_text(encoding="utf-8") if prompt.is_file() else None
        except (OSError, ValueError) as error:
            raise RunDirectoryError(f"Cannot read {place}: {error}.") from error
        if not isinstance(tools, list):
            raise RunDirectoryError(f"{place} is not a list of OpenAI's function schemas.")
        return TrainedTools(tools, said)

    @staticmethod
    def carry(source: Path, run: RunDirectory) -> None:
        """Copy the files of one run to another; do nothing if there are none. Raises RunDirectoryError."""
        if (found := TrainedTools.read(source)) is not None:
            found.keep(run)

    def keep(self, run: RunDirectory) -> None:
        """Write the files into a run. Raises RunDirectoryError."""
        run.write_files(self._texts())

    def write(self, folder: Path) -> None:
        """Write the files into an export. Raises RunDirectoryError."""
        with typed_errors(folder):
            for name, text in self._texts().items():
                write_atomically(folder / name, text.encode())

    def _texts(self) -> dict[str, str]:
        prompt = {SYSTEM_PROMPT: self.system_prompt} if self.system_prompt else {}
        return {TOOLS: as_json(self.tools) + "\n", **prompt}


def as_json(tools: list[dict[str, Any]]) -> str:
    """Return the text of tools.json; `mcp-rl servers inspect --format openai` prints the same."""
    return json.dumps(tools, indent=2, ensure_ascii=False)


def missing_sentence(run: RunDirectory, server: str) -> str:
    """Return the sentence about a run without tools.json."""
    return (
        f"The run {run.path.name} keeps no {TOOLS}, since an earlier version made it: "
        f"`mcp-rl servers inspect {server} --format openai` prints the tools of its server."
    )


@dataclass(frozen=True)
class Trained:
    """A model's training, as its folder tells it; all defaults for a base model."""

    tools: TrainedTools | None = None
    server: str | None = None
    """Name of the server; several are joined by `+`."""
    max_turn_tokens: int | None = None
    """Most tokens that a turn could have."""
    base_model: str | None = None
    """Name of an export's base; None if it has no name."""
    missing: str | None = None
    """A sentence about a run that keeps no tools."""

    @staticmethod
    def of(model: ModelSpec) -> Trained:
        """Read a run, or the folder of an export. Raises RunDirectoryError."""
        if model.run is not None:
            return Trained.of_run(model.run)
        folder = model.checkpoint or Path(model.name).expanduser()
        if not folder.is_dir():
            return Trained()
        about = _manifest(folder)
        known = {name: about.get(name) for name in ("server", "max_turn_tokens", "base_model")}
        return Trained(TrainedTools.read(folder), **known)

    @staticmethod
    def of_run(run: RunDirectory) -> Trained:
        """Read a run. Raises RunDirectoryError."""
        tools = TrainedTools.read(run.path)
        identity = run.identity() if "identity" in (run.read_json("model.json") or {}) else None
        if identity is None:
            return Trained(tools)
        missing = None if tools else missing_sentence(run, identity.server)
        return Trained(tools, identity.server, identity.settings.get(_MAX_TURN_TOKENS), missing=missing)


def turn_limit(model: ModelSpec, trained: Trained) -> int:
    """Return most tokens of a turn: as many as in training, else the default for the base model."""
    if trained.max_turn_tokens is not None:
        return int(trained.max_turn_tokens)
    return RunConfig(server=("any",), base_model=model.name).rollout.max_turn_tokens


def _manifest(folder: Path) -> dict[str, Any]:
    """Return the part of an export's manifest that describes it; empty for another folder."""
    try:
        about = json.loads((folder / "manifest.json").read_bytes()).get(EXPORT)
    except (OSError, ValueError, AttributeError):
        return {}
    return about if isinstance(about, dict) else {}
