"""The calls that show an answer: the least of them, other ways, and whether one call alone states it."""

from __future__ import annotations

import itertools
import json
import posixpath
import re
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.answer import call_key
from mcp_rl.explore.entities.statements import WHOLE_TABLE
from mcp_rl.explore.entities.world_model import Observation
from mcp_rl.rewards.json_values import leaves
from mcp_rl.scenarios.goals.program import Evaluated, FactName, Unanswerable, kind_of, parts_of
from mcp_rl.scenarios.goals.values import shown

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic import JsonValue

    from mcp_rl.explore.entities.world_model import WorldModel

    Call = tuple[str, Mapping[str, JsonValue]]

MOST_LOOKUPS = 14
"""Most calls of a solution."""
_EXACT = 2
"""Number of calls that can be chosen freely up to which the least way is searched for exactly."""
_MOST_CANDIDATES = 40


class Lookups:
    """The observations of a world, by what they show."""

    def __init__(self, world: WorldModel) -> None:
        self._world = world
        # A call that lists several kinds is an observation of each, and is made once.
        first = same_calls(world)
        self._shown_by: dict[FactName, tuple[int, ...]] = {
            (entity.kind, str(entity.key), name): tuple(dict.fromkeys(first[index] for index in fact.shown_by))
            for entity in world.entities
            for name, fact in entity.facts.items()
        }
        self._parts = {
            kind: [tuple(first[index] for index in part) for part in parts_of(world, kind)] for kind in world.kinds
        }
        self._slots: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
        for slot in world.slots:
            self._slots[slot.tool, slot.parameter].append((slot.kind, slot.field))
        named = {(slot.kind, slot.field) for slot in world.slots}
        self._values = {
            fact.value
            for one in world.entities
            for name, fact in one.facts.items()
            if (one.kind, name) in named and _is_scalar(fact.value)
        }
        """What names things in calls; an argument that names none is where the server begins."""
        self._texts = sorted({one for one in self._values if isinstance(one, str) and len(one) > 1})
        self._named_in: dict[str, tuple[str, ...]] = {}
        self._of_value = {
            (one.kind, name, str(fact.value)): one for one in world.entities for name, fact in one.facts.items()
        }

    def least(self, evaluated: Evaluated, given: Sequence[JsonValue]) -> list[int]:
        """Return a least list of observations that together show all that the program looked at, in a possible order.

        `given` are the values in the request. Raises Unanswerable where there is no such list of reasonable length.
        """
        return self._in_order(self._cover(self._needs(evaluated)), given)

    def another(self, evaluated: Evaluated, given: Sequence[JsonValue], random: random.Random) -> list[int] | None:
        """Return another list of such observations, drawn at random; None where none was found."""
        chosen: list[int] = []
        for shown_by in random.sample(needs := self._needs(evaluated), len(needs)):
            if not set(shown_by) & set(chosen):
                chosen.append(random.choice(list(shown_by)))
        try:
            return self._in_order(chosen, given)
        except Unanswerable:
            return None

    def to_choose(self, evaluated: Evaluated, given: Sequence[JsonValue]) -> list[int]:
        """Return a least list of observations that show which things are chosen, and their keys."""
        made = self.least(evaluated, given) if evaluated.facts or evaluated.kinds else []
        texts = [self._world.observations[index].text for index in made]
        named = {str(value) for value in given}
        kind = kind_of(evaluated.program)
        entities = [one for one in self._world.of_kind(kind) if str(one.key) in evaluated.chosen]
        for entity in entities:
            if any(str(fact.value) in named for fact in entity.facts.values() if not isinstance(fact.value, list)):
                continue
            if not any(_word_in(str(entity.key), text) for text in texts):
                made = [*made, *[index for index in self._parts[kind][0][:1] if index not in made]]
                break
        return made

    def to_know(self, made: Sequence[int], calls: Sequence[Call], given: Sequence[JsonValue]) -> list[int]:
        """Add to observations those that reveal the arguments of these calls. Raises Unanswerable if none do."""
        found = list(made)
        for tool, arguments in calls:
            wanted = Observation(tool=tool, arguments=dict(arguments), text="")
            texts = [self._world.observations[index].text for index in found]
            if not self._arguments_known(wanted, given, texts):
                found.append(self._that_tells(wanted, given, texts, found))
        return found

    def fields_of(self, tool: str, parameter: str, kind: str) -> list[str]:
        """Return the fields of a kind whose values a parameter takes."""
        return [name for found, name in self._slots.get((tool, parameter), []) if found == kind]

    def stated(self, answer: JsonValue, given: Sequence[JsonValue]) -> int | None:
        """Return an observation that states the answer, among those whose arguments are given; None without one."""
        for index, seen in enumerate(self._world.observations):
            if self._arguments_known(seen, given, []) and states(seen.text, answer, given):
                return index
        return None

    def lists_just(self, names: Sequence[str], others: Sequence[str], given: Sequence[JsonValue]) -> int | None:
        """Return an observation that names these things and none of the others, as `stated` does; None without one."""
        for index, seen in enumerate(self._world.observations):
            if not self._arguments_known(seen, given, []) or not all(_word_in(name, seen.text) for name in names):
                continue
            if not any(_word_in(name, seen.text) for name in others):
                return index
        return None

    def _needs(self, evaluated: Evaluated) -> list[tuple[int, ...]]:
        """Return for each thing that must be seen the observations that show it."""
        needs = [part for kind in evaluated.kinds for part in self._parts[kind]]
        needs += [self._shown_by.get(fact, ()) for fact in evaluated.facts]
        if not all(needs):
            raise Unanswerable("no call shows a part of it")
        distinct = list(dict.fromkeys(needs))
        # What shows a smaller set of alternatives shows the larger ones that contain it.
        return [one for one in distinct if not any(set(other) < set(one) for other in distinct)]

    def _cover(self, needs: Sequence[tuple[int, ...]]) -> list[int]:
        """Return few observations that meet all needs: the fewest, where at most two of them can be chosen freely."""
        chosen = list(dict.fromkeys(need[0] for need in needs if len(need) == 1))
        left = [need for need in needs if not set(need) & set(chosen)]
        candidates = list(dict.fromkeys(index for need in left for index in need))
        for size in range(_EXACT + 1) if len(candidates) <= _MOST_CANDIDATES else ():
            for more in itertools.combinations(candidates, size):
                if all(set(need) & set(more) for need in left):
                    return [*chosen, *more]
        while left:
            best = max(candidates, key=lambda index: sum(index in need for need in left))
            chosen.append(best)
            left = [need for need in left if best not in need]
        return chosen

    def _in_order(self, chosen: Sequence[int], given: Sequence[JsonValue]) -> list[int]:
        """Order observations so that each argument is known before it is used; add what shows such an argument."""
        left, ordered = list(dict.fromkeys(chosen)), list[int]()
        while left:
            if len(left) + len(ordered) > MOST_LOOKUPS:
                raise Unanswerable(f"it takes more than {MOST_LOOKUPS} calls")
            texts = [self._world.observations[index].text for index in ordered]
            known = (one for one in left if self._arguments_known(self._world.observations[one], given, texts))
            ready = next(known, None)
            if ready is None:
                ordered.append(self._that_tells(self._world.observations[left[0]], given, texts, ordered))
            else:
                ordered.append(ready)
                left.remove(ready)
        return ordered

    def _that_tells(
        self, wanted: Observation, given: Sequence[JsonValue], texts: Sequence[str], made: Sequence[int]
    ) -> int:
        """Return a possible observation that makes the arguments of another one known."""
        for index, seen in enumerate(self._world.observations):
            possible = index not in made and self._arguments_known(seen, given, texts)
            if possible and self._arguments_known(wanted, given, [*texts, seen.text]):
                return index
        raise Unanswerable("an argument cannot be found")

    def calls(self, chosen: Sequence[int], given: Sequence[JsonValue]) -> list[tuple[str, dict[str, JsonValue]]]:
        """Return the calls of these observations; things are named as in the request where a tool takes that."""
        return [(seen.tool, self._as_given(seen, given)) for seen in (self._world.observations[i] for i in chosen)]

    def _as_given(self, seen: Observation, given: Sequence[JsonValue]) -> dict[str, JsonValue]:
        return {name: self._given_name(seen.tool, name, value, given) for name, value in seen.arguments.items()}

    def _given_name(self, tool: str, parameter: str, value: JsonValue, given: Sequence[JsonValue]) -> JsonValue:
        """Return another value of the same thing that the parameter takes too and the request gives, else the value."""
        slots = self._slots.get((tool, parameter), [])
        for kind, name in slots if value not in given else ():
            entity = self._of_value.get((kind, name, str(value)))
            for other_kind, other in slots if entity else ():
                fact = entity.facts.get(other) if entity and other_kind == kind else None
                if fact is not None and fact.value in given:
                    return fact.value
        return value

    def _arguments_known(self, seen: Observation, given: Sequence[JsonValue], texts: Sequence[str]) -> bool:
        needed = [
            leaf
            for name, value in self._as_given(seen, given).items()
            if (seen.tool, name) in self._slots
            for leaf in leaves(value)
            if isinstance(leaf, str | int | float) and not isinstance(leaf, bool)
        ]
        needed += [name for value in seen.arguments.values() for name in self._in_query(value)]
        return all(self._is_known(leaf, given, texts) for leaf in needed)

    def _in_query(self, value: JsonValue) -> Sequence[str]:
        """Return the names of things in a statement of SQL, such as that of a table."""
        if not isinstance(value, str) or not _QUERY.match(value):
            return ()
        if value not in self._named_in:
            self._named_in[value] = tuple(name for name in self._texts if _word_in(name, value))
        return self._named_in[value]

    def table_read_by(self, index: int) -> str | None:
        """Return the name of the table that an observation reads whole, where tools show it as a name; else None."""
        for value in self._world.observations[index].arguments.values():
            whole = WHOLE_TABLE.fullmatch(value) if isinstance(value, str) else None
            if whole and whole[1] in self._values:
                return whole[1]
        return None

    def page_shown_by(self, index: int) -> str | None:
        """Return the address of the page that an observation shows, where other pages lead to it; else None."""
        values = self._world.observations[index].arguments.values()
        return next((v for v in values if isinstance(v, str) and "://" in v and v in self._values), None)

    def _is_known(self, value: str | int | float, given: Sequence[JsonValue], texts: Sequence[str]) -> bool:
        """Return whether a value is known from the request or from results, a path also by its folder and its name."""
        if value not in self._values or any(str(value) == str(one) for one in given):
            return True
        if any(_word_in(str(value), text) for text in texts):
            return True
        folder, name = posixpath.split(str(value).rstrip("/"))
        if not folder.strip("/") or not name:
            return False
        named = name in map(str, given) or any(_word_in(name, text) for text in texts)
        return named and self._is_known(folder, given, texts)


_QUERY = re.compile(r"(?i)\s*(?:select|with|insert|update|delete)\s")


def same_calls(world: WorldModel) -> list[int]:
    """Return for each observation the index of the first one of the same call."""
    seen: dict[str, int] = {}
    return [
        seen.setdefault(call_key(one.tool, dict(one.arguments)), index) for index, one in enumerate(world.observations)
    ]


def _is_scalar(value: JsonValue) -> bool:
    return isinstance(value, str | int | float)


@lru_cache(maxsize=200_000)
def _word_in(word: str, text: str) -> bool:
    if word not in text:
        escaped = json.dumps(word, ensure_ascii=False)[1:-1]
        if escaped == word or escaped not in text:
            return False
        word = escaped
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None


def states(text: str, answer: JsonValue, given: Sequence[JsonValue]) -> bool:
    """Return whether a result states the answer beside all values of the request.

    Where the request gives no value, only a part of the result that stands alone counts: an item of a list says nothing
    of its being the largest.
    """
    parts = [shown(part) for part in (answer if isinstance(answer, list) else [answer])]
    return any(
        all(_in_record(part, record) for part in parts)
        and (all(_in_record(shown(value), record) for value in given) if given else not listed)
        for record, listed in records(text)
    )


def records(text: str) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the records of a result: the values of each JSON object, or each line; and whether it is one of several."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict | list):
        yield from _of_json(found, listed=False)
        return
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines:
        yield (line,), len(lines) > 1
    if 1 < len(lines) <= 20:  # key-value lines are one record
        yield tuple(lines), sum(":" in line for line in lines) < len(lines) - 1


def _of_json(value: Any, *, listed: bool) -> Iterator[tuple[tuple[str, ...], bool]]:
    if isinstance(value, list):
        if value and not any(isinstance(one, dict | list) for one in value):
            yield tuple(map(shown, value)), True
        for one in value:
            if isinstance(one, dict | list):
                yield from _of_json(one, listed=listed or len(value) > 1)
    elif isinstance(value, dict):
        own: list[str] = []
        for inner in value.values():
            if isinstance(inner, dict) or (isinstance(inner, list) and any(isinstance(i, dict | list) for i in inner)):
                yield from _of_json(inner, listed=listed)
            elif isinstance(inner, list):
                own += map(shown, inner)
            elif inner is not None:
                own.append(shown(inner))
        yield tuple(own), listed


def _in_record(part: str, record: Sequence[str]) -> bool:
    folded = part.casefold().strip()
    if not folded:
        return True
    # A number counts where it stands alone; a text also inside a longer one.
    if re.fullmatch(r"-?\d+(?:\.\d+)?", folded):
        return any(re.search(rf"(?<![\w.-]){re.escape(folded)}(?![\w.-]|\.\d)", one.casefold()) for one in record)
    return any(folded in one.casefold() for one in record)
