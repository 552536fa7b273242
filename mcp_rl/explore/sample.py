"""Arguments for a tool, drawn from its JSON Schema.

Drawn arguments always validate against the schema: they are built from the common keywords, checked, and drawn again
where another keyword (`not`, `if`, `dependentRequired` …) refuses them. Whatever a schema says, drawing ends within a
budget and raises nothing.
"""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp_rl.explore import plausible
from mcp_rl.explore.meant import meant
from mcp_rl.explore.pattern import string_matching
from mcp_rl.explore.values_seen import GIVEN, LEFT_OUT
from mcp_rl.explore.words import noun_of, words_of
from mcp_rl.toolserver.tools.budgets import LARGEST_DRAWN, MOST_DRAWING_STEPS, Budget, OverBudget, json_size
from mcp_rl.toolserver.tools.validation import Checker, compiled_pattern

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

    from mcp_rl.explore.values_seen import ValuePool
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.toolserver.tools.listing import Tool

log = logging.getLogger(__name__)

Schema = Any
"""A JSON Schema: an object, or a boolean."""
_TRIES = 40
_DEEPEST = 6
_READ = 10_000
"""Characters of a description that are read for examples and hints."""
_MOST_BESIDE = 20
"""Parameters of a tool whose names tell what it is about."""
_LONGEST_NAME = 200
"""Characters of a parameter's name that are read for hints."""
_SHARE_OF_NEEDED = 0.9
"""Probability of an optional property that an error said must be given."""
_TAKES_ANY = 0.6
"""Share of calls with any words that work, above which a parameter needs no value that was shown."""
_REMARKS = re.compile(r"key:(?:messages?|msg|reasons?|remarks?|warnings?|errors?|problems?|issues?|suggestions?)")
"""Names of what a server says about a call: no values for anything else."""
_PATH_NAME = re.compile(r"path|file|dir|folder|source|destination|location", re.IGNORECASE)


@dataclass
class Draw:
    """Arguments for one call, with the (slot, source) of each free string."""

    arguments: dict[str, Any]
    choices: list[tuple[str, str]] = field(default_factory=list)


class Sampler:
    """Draws arguments for one tool."""

    _optional_share = 0.35
    """Probability of an optional property."""

    def __init__(
        self,
        tool: str,
        schema: Schema,
        pool: ValuePool,
        custom: Callable[[random.Random], dict[str, Any]] | None = None,
    ) -> None:
        """`custom` is a plugin's own sampler for this tool, which replaces the schema."""
        self._tool = tool
        self._schema = schema if isinstance(schema, dict) else {}
        self._pool = pool
        self._custom = custom
        properties = self._schema.get("properties")
        beside = list(properties)[:_MOST_BESIDE] if isinstance(properties, dict) else []
        self._about = words_of(" ".join([tool, *(name for name in beside if isinstance(name, str))])[:_READ])
        self._checker = Checker(self._schema)
        self._choices: list[tuple[str, str]] = []
        self._steps = Budget(MOST_DRAWING_STEPS)
        self.problem: str | None = None
        """Why the newest draw gave nothing, as the rest of a sentence after "since"; None if it gave arguments."""

    def draw(self, random: random.Random) -> Draw | None:
        """Return arguments that validate, or None after 40 failed tries; `problem` says why, and a warning, once."""
        before, self.problem = self.problem, None
        self._steps = Budget(MOST_DRAWING_STEPS)
        if self._custom is None and (mended := self._pool.mended(self._tool)) is not None and self.valid(mended):
            return Draw(mended)
        for attempt in range(_TRIES):
            self._choices = []
            # Late tries draw only required properties: optional ones are the usual reason for refusal.
            arguments = self._custom(random) if self._custom is not None else self._drawn(random, attempt < _TRIES // 2)
            if isinstance(arguments, dict) and self.valid(arguments):
                self.problem = None
                return Draw(arguments, self._choices)
        self.problem = self.problem or f"none of {_TRIES} draws fits its schema"
        if self.problem != before:
            log.warning("No arguments can be drawn for %s, since %s.", self._tool[:80], self.problem)
        return None

    def valid(self, arguments: dict[str, Any]) -> bool:
        """Return whether the tool's schema accepts these arguments; True where the schema cannot be evaluated."""
        return self._checker.accepts(arguments)

    def lists(self, parameter: str) -> bool:
        """Return whether the schema lists the values of this parameter."""
        return bool(_as_dict(_as_dict(self._schema.get("properties")).get(parameter)).get("enum"))

    def _drawn(self, random: random.Random, optional: bool) -> dict[str, Any] | None:
        """Return arguments that may be invalid; None if the schema is malformed or asks for too much."""
        try:
            arguments = self._object(self._resolved(self._schema), self._tool, 0, random, optional)
            if json_size(arguments, LARGEST_DRAWN) > LARGEST_DRAWN:
                raise OverBudget
        except OverBudget:
            self.problem = "its schema asks for arguments that are too large or too complex"
        except Exception as error:  # a stranger's schema may raise anything
            log.debug("Cannot draw arguments for %s: %r", self._tool[:80], error)
            self.problem = "its schema is malformed"
        else:
            return arguments
        return None

    def _value(self, schema: Schema, slot: str, depth: int, random: random.Random) -> Any:
        self._steps.spend()
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return random.choice(schema["enum"])
        if schema.get("examples") and random.random() < 0.4:
            return random.choice(schema["examples"])
        if schema.get("default") is not None and random.random() < 0.2:
            return schema["default"]
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                options = [option for option in schema[key] if not _is_null(option)] or schema[key]
                stricter = [option for option in options if str(_as_dict(option).get("type")) in _STRICTER]
                if {"type": "string"} in options and stricter and random.random() < _AS_MEANT:
                    options = stricter
                chosen = random.choice(options if random.random() < 0.95 else schema[key])
                rest = {name: value for name, value in schema.items() if name != key}
                return self._value(_merged(rest, self._resolved(chosen)), slot, depth, random)
        return self._typed(schema, slot, depth, random)

    def _typed(self, schema: dict[str, Any], slot: str, depth: int, random: random.Random) -> Any:
        kind = _kind(schema, random)
        if kind == "object":
            return self._object(schema, slot, depth, random)
        if kind == "array":
            return self._array(schema, slot, depth, random)
        if kind == "string":
            return self._string(schema, slot, random)
        if kind == "boolean":
            return random.random() < 0.5
        if kind in ("integer", "number"):
            counts = plausible.counts_something(parameter_of(slot))
            lowest = {"minimum", "exclusiveMinimum"} & schema.keys()
            starts_at_one = counts and not lowest and _bounds(schema)[1] >= 1
            bounds = {**schema, "minimum": 1} if starts_at_one else schema
            part, hinted = plausible.clock_or_calendar(parameter_of(slot)), self._pool.bounds(slot)
            if part is not None and (*_bounds(schema), hinted.low, hinted.high) == (-math.inf, math.inf) * 2:
                bounds = {**schema, "minimum": part[0], "maximum": part[1]}
            if part is None and not counts and (amount := self._amount(bounds, slot, kind, random)) is not None:
                return amount
            if hinted.low > _bounds(bounds)[0]:
                bounds = {**bounds, "minimum": hinted.low}
            if hinted.high < _bounds(bounds)[1]:
                bounds = {**bounds, "maximum": hinted.high}
            return number(
                bounds, random, whole=kind == "integer" or part is not None or (counts and random.random() < 0.95)
            )
        return None

    def _amount(self, schema: dict[str, Any], slot: str, kind: str, random: random.Random) -> float | None:
        """Return a number that suits the parameter's name and its bounds, or None."""
        found = plausible.amount(parameter_of(slot), random, whole=kind == "integer")
        if found is None or "multipleOf" in schema or random.random() > _AS_MEANT:
            return None
        (low, high), hinted = _bounds(schema), self._pool.bounds(slot)
        return found if max(low, hinted.low) <= found <= min(high, hinted.high) else None

    def _object(
        self, schema: dict[str, Any], slot: str, depth: int, random: random.Random, optional: bool = True
    ) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        required = schema.get("required") or []
        result: dict[str, Any] = {}
        self._steps.spend((len(properties) + len(required)) // 16)
        required = dict.fromkeys(name for name in required if isinstance(name, str))
        for name in [*properties, *(name for name in required if name not in properties)]:
            if name not in required:
                inner = f"{slot}.{name}"
                share = self._optional_share * self._pool.odds(inner) if optional and depth < _DEEPEST else 0.0
                share = _SHARE_OF_NEEDED if depth == 0 and self._pool.needs(self._tool, name) else share
                given = random.random() < share
                self._choices.append((inner, GIVEN if given else LEFT_OUT))
                if not given:
                    continue
            value = self._value(properties.get(name, {}), f"{slot}.{name}", depth + 1, random)
            if value is not None or name in required:  # null, where nothing need be given, says nothing
                result[name] = value
        extra = schema.get("additionalProperties", not properties)
        least = max(schema.get("minProperties", 0), int(depth > 0 and not properties and bool(extra)))
        if least > MOST_DRAWING_STEPS:
            raise OverBudget
        for _ in range(20 * least):
            if len(result) >= least:
                break
            name = self._string({"type": "string", **_as_dict(schema.get("propertyNames"))}, f"{slot}.*", random)
            result[name] = self._value(extra, f"{slot}.{name}", depth + 1, random)
        return result

    def _array(self, schema: dict[str, Any], slot: str, depth: int, random: random.Random) -> list[Any]:
        least = int(schema.get("minItems", 0))
        most = int(schema.get("maxItems", max(least, 1) + 3))
        length = random.randint(max(least, min(1, most)), min(most, max(least, 1) + 3)) if depth < _DEEPEST else least
        prefix = schema.get("prefixItems") or []
        items = schema.get("items", {})
        if isinstance(items, list):  # draft 7 and older
            prefix, items = items, schema.get("additionalItems", {})
        if items is False:
            length = min(length, len(prefix))
        result: list[Any] = []
        for _ in range(_TRIES):
            if len(result) >= max(length, len(prefix) if least else 0):
                break
            item = prefix[len(result)] if len(result) < len(prefix) else items
            value = self._value(item, f"{slot}[]", depth + 1, random)
            if not schema.get("uniqueItems") or value not in result:
                result.append(value)
        return result

    def _string(self, schema: dict[str, Any], slot: str, random: random.Random) -> str:
        least, most = int(schema.get("minLength", 0)), int(schema.get("maxLength", 2**31))
        if least > LARGEST_DRAWN:
            raise OverBudget
        self._steps.spend(1 + least // 16)
        value: str | None = None
        if self._pool["start"] and plausible.takes_address(parameter_of(slot), schema):
            value = random.choice(self._pool.pages)
        elif "pattern" in schema:
            value = self._known_matching(schema["pattern"], slot, random)
            value = value or string_matching(schema["pattern"], random, self._steps)
        elif "format" in schema:
            value = plausible.of_format(schema["format"], random)
        if value is None:
            value = self._free_string(schema, slot, random)
        while len(value) < least:
            value += ("" if not value or least - len(value) == 1 else " ") + random.choice(plausible.WORDS)
        return value[:most]

    def _known_matching(self, pattern: str, slot: str, random: random.Random) -> str | None:
        """Return a value seen under this name, or a word, that the pattern allows, or None."""
        parameter = parameter_of(slot)
        compiled = compiled_pattern(pattern)
        if compiled is None:
            return None
        seen = [v for kind in self._pool.kinds if self._same_key(kind, parameter) for v in self._pool[kind]]
        for candidates in (seen, self._pool.shown, plausible.WORDS):
            candidate = random.choice(candidates) if candidates and random.random() < 0.5 else ""
            if candidate and compiled.search(candidate):
                return candidate
        return None

    def _same_key(self, kind: str, parameter: str) -> bool:
        """Return whether values of this kind fit the parameter by name: `tags` holds values for `tag`."""
        names = (parameter, parameter.replace(" ", ""), parameter.split(" ")[-1], noun_of(parameter))
        key = kind.removeprefix("key:")
        return key in names or (key.endswith("s") and key[:-1] in names)

    def _free_string(self, schema: dict[str, Any], slot: str, random: random.Random) -> str:
        parameter = parameter_of(slot)
        description = str(schema.get("description", ""))[:_READ]
        examples = plausible.quoted_examples(description)
        special = meant(parameter, description, self._about, random)
        hinted = special or plausible.hinted(parameter, description, random)
        only = special or plausible.is_narrow(parameter, description)
        sources = {"word": 0.3, "sentence": 0.1} if only else {"word": 1.0, "sentence": 1.0}
        if examples:
            sources["example"] = 2.0
        if hinted is not None:
            sources["hint"] = 4.0
        any_text = ("word", "sentence")
        takes_any = max(self._pool.success_rate(slot, source) for source in any_text) >= _TAKES_ANY
        # A path is no text to remember or to look for: it is tried where a text failed.
        takes_paths = not takes_any and any(self._pool.was_tried(slot, source) for source in any_text)
        for kind in self._pool.kinds:
            same_key = kind.startswith("key:") and self._same_key(kind, parameter)
            path_like = kind.startswith("path:") and _PATH_NAME.search(parameter) is not None
            strange = kind.startswith("path:") and not (path_like or takes_paths)
            if not same_key and (strange or _REMARKS.fullmatch(kind)):
                continue
            uri_like = kind == "uri" and re.search(r"\bur[il]\b|link", parameter) is not None
            # The other kinds share a small weight, so that one talkative result does not drown the words.
            # Few values weigh less than many: they would come again and again.
            known = len(self._pool[kind])
            sources[kind] = (
                4.0 * known / (known + 3) if same_key or path_like or uri_like else 0.4 / len(self._pool.kinds)
            )
        is_path = _PATH_NAME.search(parameter) is not None
        endings = (self._pool.endings(parameter) or plausible.file_endings(description)) if is_path else ()
        files = [path for path in self._pool["path:file"] if path.lower().endswith(endings)] if endings else []
        if files:
            sources["files"] = 8.0
        asked = self._pool.asked(parameter, description)
        if not (takes_any or examples or special):
            sources |= {"asked": 8.0 * min(1.0, max(asked.values()))} if asked else {}
            sources |= {"shown": 0.5} if self._pool.shown else {}
        offered = self._pool.offered(slot)
        if offered:
            sources["offered"] = 6.0
        source = self._pool.choose(slot, sources, random)
        self._choices.append((slot, source))
        if source == "word":
            return plausible.word(random)
        if source == "sentence":
            return plausible.sentence(random)
        if source == "hint" and hinted is not None:
            return hinted
        if source == "files":
            return random.choice(files)
        if source == "offered":
            return random.choice(offered)
        if source == "asked":
            return random.choices(list(asked), [score**2 for score in asked.values()])[0]
        if source == "shown":
            return random.choice(self._pool.shown)
        return random.choice(examples if source == "example" else self._pool[source])

    def _resolved(self, schema: Schema) -> dict[str, Any]:
        """Return the schema with `$ref` followed (inside the document) and `allOf` merged."""
        found: dict[str, Any] = _as_dict(schema)
        for _ in range(20):
            self._steps.spend((len(found) + len(_as_dict(found.get("properties")))) // 16)
            if "$ref" in found:
                target = _at(self._schema, found["$ref"])
                found = _merged({name: value for name, value in found.items() if name != "$ref"}, target)
            elif found.get("allOf"):
                first, *others = found["allOf"]
                rest = {name: value for name, value in found.items() if name != "allOf"}
                if others:
                    rest["allOf"] = others
                found = _merged(rest, _as_dict(first))
            else:
                break
        return found


def samplers(tools: Iterable[Tool], pool: ValuePool, server: ToolServer) -> dict[str, Sampler]:
    """Return a sampler for each tool by its name: the plugin's own, else one that draws from the schema."""
    own = server.argument_samplers
    return {tool.name: Sampler(tool.name, tool.input_schema, pool, own.get(tool.name)) for tool in tools}


def number(schema: dict[str, Any], random: random.Random, *, whole: bool) -> int | float:
    """Return a number inside the schema's bounds, small and round where they allow it."""
    low, high = _bounds(schema)
    step = schema.get("multipleOf")
    if step:
        first = math.ceil(low / step) if low > -math.inf else (math.floor(high / step) - 50 if high < math.inf else 0)
        last = math.floor(high / step) if high < math.inf else first + 50
        value = random.randint(first, max(first, min(last, first + 1000))) * step
        return int(value) if whole else value
    if not whole and random.random() < 0.25:
        value = round(_magnitude(low, high, random) + random.random(), random.choice([1, 1, 2]))
        return value if low <= value <= high else _between(low, high, random)
    value = _magnitude(
        math.ceil(low) if low > -math.inf else low, math.floor(high) if high < math.inf else high, random
    )
    return value if low <= value <= high else _between(low, high, random)


def _bounds(schema: dict[str, Any]) -> tuple[float, float]:
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    below, above = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if below is True:  # draft 4
        low = math.nextafter(low, math.inf)
    elif below is not None and below is not False:
        low = max(low, math.nextafter(below, math.inf))
    if above is True:
        high = math.nextafter(high, -math.inf)
    elif above is not None and above is not False:
        high = min(high, math.nextafter(above, -math.inf))
    return low, high


def _magnitude(low: float, high: float, random: random.Random) -> int:
    """Return an integer of a size that people use: 12s and 100s rather than 2**31."""
    scale = random.choices([12, 100, 1000], [4, 5, 1])[0]
    if low > -math.inf and high < math.inf and high - low <= 1000:
        return random.randint(int(low), int(max(low, high)))
    if low > -math.inf and not low < 0 < high:
        return int(low) + random.randint(0, scale)
    if high < math.inf and high <= 0:
        return int(high) - random.randint(0, scale)
    value = random.randint(0, scale)
    return -value if random.random() < 0.1 and -value >= low else value


def _between(low: float, high: float, random: random.Random) -> float:
    low = low if low > -math.inf else high - 100
    value = random.uniform(low, high if high < math.inf else low + 100)
    return round(value, 2) if low <= round(value, 2) <= high else value


_STRICTER = frozenset({"boolean", "integer", "number"})
"""Types beside which a schema allows a text only as another spelling of the same value."""
_AS_MEANT = 0.9
"""Share of draws that take the stricter type where a schema allows both."""


def _kind(schema: dict[str, Any], random: random.Random) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        names = [name for name in kind if name != "null"] or ["null"]
        stricter = [name for name in names if str(name) in _STRICTER]
        kind = random.choice(stricter if stricter and random.random() < _AS_MEANT else names)
    if kind is not None:
        return str(kind)
    for keyword, implied in (
        ("properties", "object"), ("additionalProperties", "object"), ("items", "array"), ("prefixItems", "array"),
        ("minimum", "number"), ("maximum", "number"), ("exclusiveMinimum", "number"), ("multipleOf", "number"),
    ):  # fmt: skip
        if keyword in schema:
            return implied
    return "string"


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    merged = {**other, **one}
    if "properties" in one and "properties" in other:
        merged["properties"] = {**other["properties"], **one["properties"]}
    if "required" in one and "required" in other:
        merged["required"] = list(dict.fromkeys([*other["required"], *one["required"]]))
    for keyword, pick in (("minimum", max), ("maximum", min), ("minLength", max), ("maxLength", min)):
        if keyword in one and keyword in other:
            merged[keyword] = pick(one[keyword], other[keyword])
    return merged


def _at(document: dict[str, Any], reference: str) -> dict[str, Any]:
    node: Any = document
    for part in reference.removeprefix("#").strip("/").split("/") if reference.startswith("#") else ["\0"]:
        part = part.replace("~1", "/").replace("~0", "~")
        if part:
            node = node.get(part, {}) if isinstance(node, dict) else {}
    return _as_dict(node)


def _as_dict(schema: Schema) -> dict[str, Any]:
    return schema if isinstance(schema, dict) else {}


def _is_null(schema: Schema) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"


def parameter_of(slot: str) -> str:
    """Return the words of a slot's parameter: "max results" for `search.maxResults[]`."""
    return words_of(slot.rsplit(".", 1)[-1].replace("[]", "")[:_LONGEST_NAME])
