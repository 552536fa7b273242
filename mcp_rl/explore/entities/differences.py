"""What a changing call did: the things that listings show before and after it, and the arguments that explain it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mcp_rl.explore.entities.nouns import singular
from mcp_rl.explore.entities.parameters import ToolParameter
from mcp_rl.explore.entities.world_model import Effect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mcp_rl.explore.entities.things import Things
    from mcp_rl.explore.entities.world_model import EntityField, EntityKind, WorldModel


@dataclass(frozen=True)
class Leaf:
    """A single value in arguments."""

    path: tuple[str | int, ...]
    value: Any

    @property
    def parameter(self) -> str:
        """The parameter's name, such as `title`, or `entities[].name` inside a list of objects."""
        said = ""
        for part in self.path:
            said += "[]" if isinstance(part, int) else f".{part}" if said else part
        return said.removesuffix("[]")

    @property
    def name(self) -> str:
        return next((part for part in reversed(self.path) if isinstance(part, str)), "")

    def parameter_in(self, parameters: Mapping[str, ToolParameter]) -> ToolParameter:
        """Return the parameter that it is a value of."""
        if len(self.path) == 1 and self.name in parameters:
            return parameters[self.name]
        name = singular(self.name) if self.path and isinstance(self.path[-1], int) else self.name
        return ToolParameter(name, "string" if isinstance(self.value, str) else "integer", True, "")


@dataclass(frozen=True)
class SeenState:
    """The things that some looks show: kind to key to fields."""

    kinds: Mapping[str, Mapping[Any, Mapping[str, Any]]]

    @classmethod
    def of(cls, things: Things, trusted: Mapping[tuple[str, str], list[str]]) -> SeenState:
        """Return what things tell, with the values of the tools that are trusted about a kind and a field."""
        found: dict[str, dict[Any, dict[str, Any]]] = {}
        for noun, draft in things.drafts.items():
            for key, told in draft.things.items() if not draft.within else ():  # rows change with their page
                values = found.setdefault(noun, {}).setdefault(key, {})
                for name, one in told.items():
                    value = one.value(trusted.get((noun, name)) or list(one.by_tool))
                    if value is not None:
                        values[name] = value[0]
        return cls(found)


def compared(
    old: SeenState, new: SeenState, leaves: Sequence[Leaf], world: WorldModel
) -> Iterator[tuple[Effect, Leaf | None]]:
    """Yield the effects that explain the difference between two states, without tool and example, each with the value
    that names the thing. None does if other things are gone too: that call did not do this alone."""
    referred = {reference.to: reference.kind for reference in world.references}
    renames = _renames(old, new, leaves)
    if any(
        _loses_others(old.kinds.get(noun, {}), new.kinds.get(noun, {}), leaves, renames=renames)
        for noun, kind in world.kinds.items()
        if kind.complete and noun not in referred  # a tag comes and goes with its notes
    ):
        return
    changed = [
        effect
        for noun in old.kinds
        if noun in world.kinds
        for effect in _changes(noun, old, new, leaves, world.kinds[noun].fields)
    ]
    yield from changed
    moved = {noun for noun in world.kinds if old.kinds.get(noun, {}).keys() != new.kinds.get(noun, {}).keys()}
    moved |= {effect.kind for effect, _ in changed}
    for noun, kind in world.kinds.items():
        before, after = old.kinds.get(noun, {}), new.kinds.get(noun, {})
        made = [key for key in after if key not in before]
        gone = [key for key in before if key not in after]
        if not kind.complete or referred.get(noun, noun) in moved - {noun}:  # a tag comes and goes with its notes
            continue
        if len(made) == 1 and len(gone) == 1:
            old_leaf, new_leaf = _leaf_of(before[gone[0]], leaves), _leaf_with(made[0], leaves)
            if old_leaf is not None and new_leaf is not None:
                does = Effect(
                    tool="", does="sets", kind=noun, field=kind.key, keyed_by=old_leaf.parameter,
                    valued_by={new_leaf.parameter: kind.key},
                )  # fmt: skip
                yield does, old_leaf
                continue
        if renames:  # what is in a folder goes where the folder goes
            continue
        for key in made[:1]:
            own = _leaf_with(key, leaves)
            valued = {
                leaf.parameter: name
                for leaf in leaves
                for name, value in after[key].items()
                if (value == leaf.value or (isinstance(value, list) and leaf.value in value))
                and (own is None or _together(leaf, own))
            }
            if valued or own is not None:
                does = Effect(
                    tool="", does="creates", kind=noun, keyed_by=own.parameter if own is not None else None,
                    valued_by=valued, copies=_copied(after[key], before, leaves, kind),
                )  # fmt: skip
                yield does, own
        for key in gone[:1]:
            own = _leaf_of(before[key], leaves)
            if own is not None:
                yield Effect(tool="", does="removes", kind=noun, keyed_by=own.parameter), own


def _renames(old: SeenState, new: SeenState, leaves: Sequence[Leaf]) -> bool:
    """Return whether a thing that the arguments name is gone, and another that they name is there."""
    return any(
        _leaf_of(before[key], leaves) is not None
        for noun, before in old.kinds.items()
        for key in before
        if key not in new.kinds.get(noun, {})
    ) and any(
        _leaf_with(key, leaves) is not None
        for noun, after in new.kinds.items()
        for key in after
        if key not in old.kinds.get(noun, {})
    )


def _loses_others(
    before: Mapping[Any, Mapping[str, Any]],
    after: Mapping[Any, Mapping[str, Any]],
    leaves: Sequence[Leaf],
    *,
    renames: bool,
) -> bool:
    """Return whether things are gone that the arguments do not name, that are not in a folder that they name, and that,
    where it was renamed, are not there under another name."""
    folders = tuple(f"{leaf.value}/" for leaf in leaves if isinstance(leaf.value, str) and leaf.value)
    gone = [key for key in before if key not in after and not str(key).startswith(folders)]
    made = sum(key not in before for key in after) if renames else 0
    return sum(_leaf_of(before[key], leaves) is None for key in gone) > made


def _copied(
    made: Mapping[str, Any], before: Mapping[Any, Mapping[str, Any]], leaves: Iterable[Leaf], kind: EntityKind
) -> dict[str, str]:
    """Return the arguments that name another thing of the kind from which a new one has a value: a branch begins at
    the commit of another."""
    found: dict[str, str] = {}
    for leaf in leaves:
        other = before.get(leaf.value, {}) if isinstance(leaf.value, str | int) else {}
        for name, value in other.items():
            if name != kind.key and name in kind.fields and isinstance(value, str) and made.get(name) == value:
                found.setdefault(leaf.parameter, name)
    return found


def _together(one: Leaf, other: Leaf) -> bool:
    """Return whether two values may belong together: not if they are from different objects of one list."""
    for first, second in zip(one.path[:-1], other.path[:-1], strict=False):
        if first != second:
            return isinstance(first, str)
    return True


def narrowed(arguments: dict[str, Any], own: Leaf | None) -> dict[str, Any]:
    """Reduce arguments to one thing: of several objects in a list, keep the one that holds its name."""
    path = own.path if own is not None else ()
    at = next((at for at, part in enumerate(path) if isinstance(part, int)), None)
    if at is None or at + 1 == len(path):
        return arguments
    listed: Any = arguments
    for part in path[:at]:
        listed = listed[part]
    return dict(replaced(arguments, path[:at], [listed[path[at]]]))


def _changes(
    noun: str, old: SeenState, new: SeenState, leaves: Sequence[Leaf], fields: Mapping[str, EntityField]
) -> Iterator[tuple[Effect, Leaf | None]]:
    for key, before in old.kinds[noun].items():
        after = new.kinds.get(noun, {}).get(key)
        own = _leaf_of(before, leaves)
        if after is None or own is None:
            continue
        others = [leaf for leaf in leaves if leaf.parameter != own.parameter and _together(leaf, own)]
        explained = False
        for name in after:
            was, now = before.get(name), after[name]
            if was == now or name not in fields:
                continue
            for leaf in others:
                valued = {leaf.parameter: name}
                does = _difference(was, now, leaf.value)
                if does is not None:
                    explained = True
                    yield (
                        Effect(tool="", does=does, kind=noun, field=name, keyed_by=own.parameter, valued_by=valued),
                        own,
                    )
        name_set = None if explained else _fixed(before, after, fields)
        if name_set is not None:
            value = after[name_set]
            yield Effect(tool="", does="sets", kind=noun, field=name_set, keyed_by=own.parameter, value=value), own


def _fixed(before: Mapping[str, Any], after: Mapping[str, Any], fields: Mapping[str, EntityField]) -> str | None:
    """Return the flag, or else the first short text, that a call changed without an argument for it."""
    changed = [name for name in after if name in before and before[name] != after[name] and name in fields]
    flags = [name for name in changed if fields[name].kind == "flag"]
    return next(iter(flags or [name for name in changed if fields[name].kind == "text"]), None)


def _difference(was: Any, now: Any, value: Any) -> Literal["sets", "adds", "takes"] | None:
    """Return what a value did to a field: "sets", "adds" or "takes"; None if it is not the cause."""
    if isinstance(was, list) or isinstance(now, list):
        before = was if isinstance(was, list) else [] if was is None else [was]
        after = now if isinstance(now, list) else [now]
        if value in after and value not in before:
            return "adds"
        return "takes" if value in before and value not in after else None
    return "sets" if now == value and type(now) is type(value) else None


def _leaf_of(thing: Mapping[str, Any], leaves: Iterable[Leaf]) -> Leaf | None:
    """Return the value in the arguments that names a thing: its key, or another text of it."""
    values = [value for value in thing.values() if isinstance(value, str | int) and not isinstance(value, bool)]
    return next((leaf for leaf in leaves if leaf.value in values and isinstance(leaf.value, str | int)), None)


def _leaf_with(value: Any, leaves: Iterable[Leaf]) -> Leaf | None:
    return next((leaf for leaf in leaves if leaf.value == value), None)


def leaves_in(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[Leaf]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves_in(inner, (*path, name))
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from leaves_in(inner, (*path, at))
    else:
        yield Leaf(path, value)


def replaced(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    """Return a value with another one at this path."""
    if not path:
        return new
    first, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {name: replaced(inner, rest, new) if name == first else inner for name, inner in value.items()}
    return [replaced(inner, rest, new) if at == first else inner for at, inner in enumerate(value)]
