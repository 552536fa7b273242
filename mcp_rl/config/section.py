"""The base class of every section of the configuration, and the role that a setting plays in a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """Settings that belong together: frozen, without unknown keys. A field's docstring says why it has its default."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _read_none(cls, given: Any) -> Any:
        """Read the word "none" as None for a setting that may be None and is not a text: TOML has no null."""
        if not isinstance(given, Mapping):
            return given
        return {name: None if value == "none" and cls._may_be_none(name) else value for name, value in given.items()}

    @classmethod
    def _may_be_none(cls, name: str) -> bool:
        field = cls.model_fields.get(name)
        types = get_args(field.annotation) if field else ()
        return type(None) in types and str not in types


@dataclass(frozen=True)
class Role:
    """The role that a setting plays in a run, as `Annotated[int, Role(…)]` on its field.

    On the field of a section it holds for the whole section. A fact that is None is the section's, else that of
    `UNMARKED`, the common case.
    """

    identity: bool | None = None
    """Part of the identity: a run continues only with the same value. False if it may change between sessions, or if
    the identity holds it in another form."""
    carried: bool | None = None
    """Kept in model.json if it is not at its default, so that forks go on with it. Never for a possible secret."""
    fixed: str | None = None
    """Reason why a fork cannot change it; empty if it can."""
    measured: bool | None = None
    """An evaluation depends on it, so evaluations before and after a change cannot be compared."""
    replay: bool | None = None
    """A replay can change it: the recorded episodes do not depend on it."""
    same_policy: bool | None = None
    """Another value changes the weights of a replay in their last bits at most, so its episodes stay on-policy."""
    sft: bool | None = None
    """Has a meaning in supervised fine-tuning."""

    def within(self, section: Role) -> Role:
        """This setting, with what it leaves open filled in from its section."""
        said: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        return Role(**{name: getattr(section, name) if fact is None else fact for name, fact in said.items()})


UNMARKED = Role(identity=True, carried=False, fixed="", measured=False, replay=False, same_policy=False, sft=False)
LIVE = Role(identity=False)
"""May change between two sessions of one run."""
CARRIED = Role(identity=False, carried=True)
"""May change between two sessions of one run, and forks go on with it."""
