"""The kinds of a world model: their fields in words, and which fields refer to other things."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_rl.explore.entities.fields import described, words_for_relation
from mcp_rl.explore.entities.nouns import plural
from mcp_rl.explore.entities.parameters import may_be_id_of
from mcp_rl.explore.entities.world_model import EntityKind, Reference
from mcp_rl.explore.words import words_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from mcp_rl.explore.entities.things import Draft
    from mcp_rl.explore.entities.world_model import Entity, EntityField
    from mcp_rl.toolserver.tools.listing import Tool

_DEEPEST, _MOST_DESCRIBED = 5, 60
"""Depth of an output schema, and fields of one object in it, whose descriptions are read."""


def described_fields(
    draft: Draft, values: Mapping[str, Sequence[Any]], abouts: Mapping[str, str], known: Collection[str]
) -> Iterator[tuple[str, EntityField]]:
    """Yield the fields of a kind by their names; `known` are the words that the server uses."""
    keys = frozenset(map(str, values.get(draft.key, ())))
    for name, held in values.items():
        about, is_key = abouts.get(name, ""), name == draft.key
        yield name, described(name, held, draft.noun, is_key=is_key, about=about, known=known, keys=keys)


def single_kinds(singles: Sequence[Entity], abouts: Mapping[str, str], known: Collection[str]) -> dict[str, EntityKind]:
    """Return the kinds of records that stand alone."""
    return {
        one.kind: EntityKind(
            name=one.kind,
            plural=plural(one.kind),
            key="",
            fields={
                name: described(name, [fact.value], one.kind, is_key=False, about=abouts.get(name, ""), known=known)
                for name, fact in one.facts.items()
            },
            complete=True,
            single=True,
        )
        for one in singles
    }


def references_between(
    kinds: Mapping[str, EntityKind], entities: Sequence[Entity], beyond: set[Any]
) -> Iterator[Reference]:
    """Yield the fields whose values are keys of a kind, apart from those `beyond`."""
    keys: dict[str, set[Any]] = {}
    for entity in entities:
        keys.setdefault(entity.kind, set()).add(entity.key)
    for noun, kind in kinds.items():
        values = values_of(entities, noun)
        for name, described_field in kind.fields.items():
            if name == kind.key or described_field.kind not in ("text", "list", "number"):
                continue
            single = {one for value in values[name] for one in (value if isinstance(value, list) else [value])} - beyond
            if not single:
                continue
            if all(one.facts[name].value == one.key for one in entities if one.kind == noun and name in one.facts):
                continue  # another name of the thing itself
            said = words_of(name.rpartition(".")[2]).split(" ")
            for other, theirs in sorted(keys.items(), key=lambda one: one[0] not in said):
                unnamed = said[-1] == "id" and not keys.keys() & set(said) and may_be_id_of(name, other, list(single))
                named = other in said or unnamed
                if single <= theirs and (named or all(isinstance(one, str) for one in single)):
                    yield Reference(kind=noun, field=name, to=other)
                    break


def values_of(entities: Sequence[Entity], noun: str) -> dict[str, list[Any]]:
    """Return the values of the fields of a kind, by the fields' names."""
    found: dict[str, list[Any]] = {}
    for entity in entities:
        if entity.kind == noun:
            for name, fact in entity.facts.items():
                found.setdefault(name, []).append(fact.value)
    return found


def with_relations(kinds: Mapping[str, EntityKind], references: Sequence[Reference]) -> dict[str, EntityKind]:
    """Return the kinds with nouns for those fields that a verb names."""
    said = {(one.kind, one.field): one.to for one in references}
    found = {}
    for noun, kind in kinds.items():
        fields: dict[str, EntityField] = {}
        for name, about in kind.fields.items():
            words = words_for_relation(about.words, said[noun, name]) if (noun, name) in said else about.words
            taken = {other.words for other in (*kind.fields.values(), *fields.values())}
            if words not in taken:
                about = about.model_copy(update={"words": words})
            if (noun, name) in said and about.kind == "number":  # a key is no amount
                about = about.model_copy(update={"kind": "text"})
            fields[name] = about
        found[noun] = kind.model_copy(update={"fields": fields})
    return found


def descriptions_of(tools: Iterable[Tool]) -> dict[str, str]:
    """Return what the output schemas of tools say of fields, by the fields' names."""
    found: dict[str, str] = {}

    def walk(schema: Any, depth: int) -> None:
        if not isinstance(schema, dict) or depth > _DEEPEST:
            return
        properties = schema.get("properties")
        for name, inner in list(properties.items())[:_MOST_DESCRIBED] if isinstance(properties, dict) else ():
            if isinstance(inner, dict) and isinstance(inner.get("description"), str):
                found.setdefault(str(name), inner["description"][:300])
            walk(inner, depth + 1)
        walk(schema.get("items"), depth + 1)

    for tool in tools:
        walk(tool.output_schema, 0)
    return found
