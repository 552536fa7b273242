"""The output of `mcp-rl servers inspect --world` on a terminal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.text import Text

from mcp_rl.cli.printing.terminal import add_row, table
from mcp_rl.explore.entities.nouns import with_article
from mcp_rl.system.visible import count, shortened, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from mcp_rl.explore.entities.builder import BuiltWorld
    from mcp_rl.explore.entities.world_model import Effect, EntityKind, Fact, Reference, WorldModel

_LONG = 90
_DOES = {
    "creates": "creates {kind}",
    "removes": "removes {kind}",
    "sets": "sets the {field} of {kind}",
    "adds": "adds to the {field} of {kind}",
    "takes": "takes from the {field} of {kind}",
}


def print_world(built: BuiltWorld, console: Console) -> None:
    """Print the kinds of things behind a server, with an example of each field, and the calls that show or change them.

    Everything that a server wrote is shown, and has no effect on the terminal.
    """
    world = built.model
    head = Text(visible(world.server), style="bold")
    made = f"{count(len(world.entities), 'thing')} of {count(len(world.kinds), 'kind')}"
    head.append(f": {made}, shown by {count(len(world.observations), 'call')}", style="default")
    console.print(head)
    for remark in built.remarks:
        console.print(Text(visible(remark), style="yellow"))
    for kind in world.kinds.values():
        _print_kind(kind, world, console)
    _print_lines("Arguments", [_slot(one, world) for one in _slots(world)], console)
    _print_lines(
        "References",
        [_reference(one, world) for one in world.references],
        console,
    )
    _print_lines("Effects", [_effect(one, world) for one in world.effects], console)


def _print_kind(kind: EntityKind, world: WorldModel, console: Console) -> None:
    things = world.of_kind(kind.name)
    console.print()
    shown = next((seen for seen in world.observations if seen.lists == kind.name), None)
    head = Text(visible(f"{len(things):,} {kind.name if len(things) == 1 else kind.plural}"), style="bold cyan")
    if shown is not None:
        head.append(visible(f", all shown by {_call(shown.tool, shown.arguments)}"), style="default")
    else:
        head.append(", and perhaps more" if not kind.complete else "", style="default")
    console.print(head)
    fields = table("  field", "holds", "known of", "shown by", "example")
    for name, described in kind.fields.items():
        facts = [fact for thing in things if (fact := thing.facts.get(name)) is not None]
        holds = f"{described.kind} in {described.unit}" if described.unit else described.kind
        label = f"  {described.words}" if described.words == name else f"  {described.words} ({name})"
        key = ", the key" if name == kind.key else ""
        tools = list(dict.fromkeys(world.observations[at].tool for fact in facts for at in fact.shown_by))
        more = f" and {len(tools) - 1} more" if len(tools) > 1 else ""
        example = _value(_telling(facts).value) if facts else ""
        add_row(fields, label, f"{holds}{key}", str(len(facts)), f"{''.join(tools[:1])}{more}", example,
                styles=("cyan",))  # fmt: skip
    console.print(fields)


def _telling(facts: Sequence[Fact]) -> Fact:
    """Return the first fact that says something: a list with entries, if there is one."""
    return next((fact for fact in facts if fact.value not in ([], "", False, 0)), facts[0])


def _slots(world: WorldModel) -> list[tuple[str, str, str, str]]:
    return [(one.tool, one.parameter, one.kind, one.field) for one in world.slots]


def _slot(slot: tuple[str, str, str, str], world: WorldModel) -> str:
    tool, parameter, kind, field = slot
    return f"{tool} takes the {world.kinds[kind].fields[field].words} of {with_article(kind)} as {parameter}"


def _reference(one: Reference, world: WorldModel) -> str:
    field = world.kinds[one.kind].fields[one.field]
    is_what = f"are {world.kinds[one.to].plural}" if field.kind == "list" else f"is {with_article(one.to)}"
    return f"the {field.words} of {with_article(one.kind)} {is_what}"


def _effect(effect: Effect, world: WorldModel) -> str:
    kind = world.kinds.get(effect.kind)
    field = kind.fields[effect.field].words if kind is not None and effect.field in kind.fields else effect.field
    said = _DOES[effect.does].format(kind=with_article(effect.kind), field=field or "value")
    named = f", named by {effect.keyed_by}" if effect.keyed_by else ""
    part = "one of the" if effect.does in ("adds", "takes") else "the"
    valued = ", ".join(f"{parameter} is {part} {name}" for parameter, name in effect.valued_by.items())
    fixed = "" if effect.value is None else f" to {_value(effect.value)}"
    copied = "".join(f"; {parameter} names another with its {name}" for parameter, name in effect.copies.items())
    return f"{effect.tool} {said}{fixed}{named}{'; ' + valued if valued else ''}{copied}"


def _print_lines(title: str, lines: Sequence[str], console: Console) -> None:
    if lines:
        console.print()
        console.print(Text(title, style="bold"))
        for line in lines:
            console.print(Text("  " + visible(line)))


def _call(tool: str, arguments: dict[str, Any]) -> str:
    return f"{tool} {shortened(json.dumps(arguments, ensure_ascii=False), _LONG)}" if arguments else tool


def _value(value: Any) -> str:
    return shortened(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), _LONG)
