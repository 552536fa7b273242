"""The configuration of a run, with presets for other base models and for judges."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, model_validator

from mcp_rl.config.contradictions import contradictions
from mcp_rl.config.presets import defaults_for, kind_of
from mcp_rl.config.run_settings import TINY, RunSettings

if TYPE_CHECKING:
    from pathlib import Path


class RunConfig(RunSettings):
    """All settings of a run, completed by the presets of its base model and checked against each other."""

    @model_validator(mode="before")
    @classmethod
    def _fill_in_presets(cls, given: Any) -> Any:
        """Fill in values that were not given from the presets of the base model and of the judge, if there is one."""
        if not isinstance(given, Mapping):
            return given
        judge = given.get("judge")
        judged = JUDGE_PRESET if isinstance(judge, Mapping) and judge.get("model") else {}
        return _merged(_merged(preset_for(str(given.get("base_model", TINY)), given), judged), given)

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        for complaint in contradictions(self):
            raise ValueError(complaint)
        if not self.name:
            object.__setattr__(self, "name", run_name(self))
        return self

    @property
    def run_dir(self) -> Path:
        """`<output_dir>/<project>/models/<name>`."""
        return self.output_dir / self.project / "models" / self.name


JUDGE_PRESET: dict[str, Any] = {"train": {"scale_by_std": False}}
"""Values for a run with a judge, whose scores are rarely equal and often close."""


def preset_for(base_model: str, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the values that differ from the defaults for this base model, and for a run with the `given` settings.

    The defaults suit `mcp-rl/tiny`; `presets.py` has those of other models.
    """
    return {} if base_model == TINY else defaults_for(kind_of(base_model, given))


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping):
            if isinstance(value, BaseModel):
                value = value.model_dump(exclude_unset=True)
            value = _merged(below, value) if isinstance(value, Mapping) else value
        merged[key] = value
    return merged


def run_name(config: RunConfig) -> str:
    """Return a name made from server, base model and, unless it is 0, the seed: the same command finds the same run."""
    parts = [*map(_folder_name, config.server), _folder_name(config.base_model.removeprefix("mcp-rl/"))]
    return "-".join([*parts, f"seed{config.seed}"] if config.seed else parts)


_LAUNCHERS = r"npx|bunx|pnpx|uvx|uv tool run|pipx run|python[\d.]*"
_FLAGS = "-y|--yes|-q|--quiet|-p|--package|--from|--spec|-m"
"""A launcher's options that stand before the package or name it."""


def _folder_name(text: str) -> str:
    """Return the text itself if it can name a folder, else its readable part and a hash that keeps names apart.

    The readable part of a launcher's command is the launcher and the package; that of any other its words up to the
    first option or address, without variables; that of a URL its host and path, without segments that look random. The
    rest may hold a secret.
    """
    if re.fullmatch(r"[A-Za-z0-9][\w.-]{0,59}", text):
        return text
    place = re.sub(r"^https?://([^/?#]*@)?|[?#].*|/(?=[^/]*\d)[\w=-]{32,}", "", text)
    place = re.sub(
        rf"^(?:\S*/)?({_LAUNCHERS})(?:\s+(?:{_FLAGS})(?=[\s=]))*[\s=]+([^\s-]\S*).*", r"\1 \2", place, flags=re.DOTALL
    )
    telling = re.sub(r"\s-.*|\s\S*://.*|(^|\s)[\w-]+=\S*", "", place, flags=re.DOTALL)
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", telling).strip("-.")[:40].strip("-.")
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
