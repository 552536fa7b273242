"""The world behind a server, as its own calls tell it.

A world model holds kinds of things (notes, files, commits), the things themselves with their values, and for each
value the calls that show it. It knows which argument takes which field, which fields refer to other things, and which
calls change what. It says nothing that no call said.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue

FieldKind = Literal["text", "prose", "number", "time", "flag", "list"]
"""Kind of a field: a short text, a long text, a number, a date or time, a boolean, or a list of short texts."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EntityField(_Part):
    """A field of a kind."""

    name: str
    """The name in results, such as `modified_at`."""
    words: str
    """A noun phrase without article, such as "modification time"."""
    kind: FieldKind
    unit: str = ""
    """The unit of its numbers, where a name or a description says it."""


class EntityKind(_Part):
    """A kind of thing."""

    name: str
    """A singular noun, such as "note"."""
    plural: str
    key: str
    """The name of the field that tells one thing of the kind from another; empty for a kind with one thing alone."""
    fields: dict[str, EntityField]
    complete: bool
    """True if a listing shows every thing of the kind; of rows, if those of every thing that has some were read."""
    within: str = ""
    """For the rows of tables: the field that refers to the thing, such as a page, on which a row stands.

    Rows on different pages may have the same name, so only the pair tells them apart.
    """
    single: bool = False
    """True where there is one thing of the kind and no other: the configuration of the server. It has no key."""


class Observation(_Part):
    """A call that was made at the beginning of an episode, and its result."""

    tool: str
    arguments: dict[str, JsonValue]
    text: str
    lists: str | None = None
    """The kind that it lists completely; None where it lists none, or only some."""


class Fact(_Part):
    """A value of a thing."""

    value: JsonValue
    shown_by: tuple[int, ...]
    """Indices of the observations that show it, each of them alone."""


class Entity(_Part):
    """A thing."""

    kind: str
    key: str | int | float
    facts: dict[str, Fact]
    """By the names of the fields, the key among them."""


class ArgumentSlot(_Part):
    """An argument that takes values of a field."""

    tool: str
    parameter: str
    kind: str
    field: str


class Reference(_Part):
    """A field whose values are keys of a kind: the owner of a project is a person."""

    kind: str
    field: str
    to: str
    """The name of the other kind."""


class Effect(_Part):
    """Measured effect of a changing call on things."""

    tool: str
    does: Literal["creates", "removes", "sets", "adds", "takes"]
    """`adds` and `takes` are for lists: a tag is added to a note or taken from it."""
    kind: str
    field: str | None = None
    """The field that is set, added to or taken from; None where a whole thing is created or removed."""
    keyed_by: str | None = None
    """The parameter that names the thing; None where a new thing gets its key from the server."""
    valued_by: dict[str, str] = {}
    """Parameters that give values, with the names of the fields that take them."""
    value: JsonValue = None
    """The value that a field is always set to, where no argument gives it: staging a file, choosing a branch."""
    copies: dict[str, str] = {}
    """Parameters that name another thing of the kind, with the field that a new thing has from it."""
    example: dict[str, JsonValue] = {}
    """Arguments of a call that worked."""
    statement: str = ""
    """The SQL statement of the change, with `{field}` for each value; empty if each value has an argument of its own.
    """


class WorldModel(_Part):
    """The world behind a server."""

    server: str
    kinds: dict[str, EntityKind]
    entities: tuple[Entity, ...]
    observations: tuple[Observation, ...]
    slots: tuple[ArgumentSlot, ...]
    references: tuple[Reference, ...] = ()
    effects: tuple[Effect, ...] = ()

    def of_kind(self, kind: str) -> list[Entity]:
        """Return the things of a kind, in the order in which they were seen."""
        return [entity for entity in self.entities if entity.kind == kind]
