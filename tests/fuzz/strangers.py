"""Input that a stranger might send: JSON of every kind, hostile JSON Schemas, listings, results and frames.

Beside small values there are large ones that are cheap to describe: a text repeated, a chain, a nest, a wide object.
"""

import copy
import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from mcp_rl.toolserver.tools.budgets import json_size

DATA = Path(__file__).parents[1] / "data" / "mcp-tools"
REAL = [tool for path in sorted(DATA.glob("*.json")) for tool in json.loads(path.read_text())["tools"]]
"""Tools of well-known servers, as they list them."""
LARGEST = 2**20
"""Size of a generated value; `found.py` has larger ones."""
HOW_MANY = st.sampled_from([0, 1, 2, 3, 7, 40, 300, 3000])
HOW_LONG = st.sampled_from([1, 2, 30, 1000, 70_000])
BOUNDS = st.one_of(
    st.integers(-3, 12),
    st.sampled_from([2**31, 2**63, 10**12, 10**15, 10**400, -(10**400), 1e308, -1e308, 5e-324, 0.1, 1e400, -0.0, True]),
    st.floats(),
    st.just("7"),
    st.none(),
)
"""Values in the place of a number."""
PATTERNS = st.sampled_from(
    [
        "^[a-z]+$", "(((a{900}){900}){900})", "^" + r"(\w*" * 60 + ")" * 60 + "!$", "(a+)+$", r"(x+x+)+y", "[",
        r"\p{L}+", r"^(?:[^\\]|\\.)*$", "(" * 500 + ")" * 500, "a{0,65535}" * 40, "(?<name>a)", r"\1", "a|" * 5000,
        "(.*)(.*)(.*)(.*)(.*)!", "[" + "a-z" * 3000 + "]", r"\d{4}-\d{2}", "", "\0", "(?i)x", "^$", "[^\\W\\d]{3,}",
        "(?:(?:(?:(?:a?){50}){50}){50}){50}", "[\\d\\D]", "[^\\w\\W]", "[^a-zA-Z0-9_.-]", "\\u00e9{2}", "(?#", "a**",
        "(?=a)b", "{",
    ]
)  # fmt: skip
NAMES = st.one_of(
    st.sampled_from(
        ["a", "n", "path", "date", "limit", "url", "", "type", "properties", "$ref", "a.b", "a/b", "~", "é" * 50, "x[]",
         "maxResults", "token", "\0", "\u202e", "__proto__", "id"]
    ),
    st.text(max_size=6),
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=20),
    st.builds(lambda part, times: (part * times)[:300_000], st.text(min_size=1, max_size=8), HOW_LONG),
    st.sampled_from(
        [("must be one of: " + "a, ", 300), ("between ", 500), ("=1", 25_000), ("/", 100_000), ("a/", 50_000),
         ("- ", 50_000), ("'", 4001), ("e.g. ", 2000), ("1e999", 1), ("9", 5000), ("[", 50_000), ('{"a":', 50_000),
         ("NaN", 1), ("token ", 20_000), ("12:00:00 ", 20_000), ("-\n", 50_000), ("minimum xxxx", 400),
         ("<tool_call>", 5000), ("one of a or ", 900), ("\u202e\x1b[31m", 1), ("```", 30_000), ("http://", 20_000),
         ("a://", 20_000), ("$", 5000), ('"\\ud800"', 1)]
    ).map(lambda repeated: repeated[0] * repeated[1]),  # a strategy's representation has all that is sampled from
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.just(10**400), st.just(-(10**4000))
)


def _room(value: Any, times: int) -> int:
    """Return how often a value may be repeated, since what is repeated may be repeated again."""
    return min(times, LARGEST // max(1, json_size(value, LARGEST)))


def _wide(name: str, value: Any, times: int) -> dict[str, Any]:
    return {f"{name}{number}": value for number in range(_room(value, times))}


def _many(value: Any, times: int) -> list[Any]:
    return [value] * _room(value, times)


def _nested(value: Any, depth: int, key: str | None) -> Any:
    for _ in range(min(depth, 190)):
        value = [value] if key is None else {key: value}
    return value


def _larger(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(values, max_size=4),
        st.dictionaries(NAMES, values, max_size=4),
        st.builds(_many, values, HOW_MANY),
        st.builds(_wide, NAMES, values, HOW_MANY),
        st.builds(_nested, values, HOW_MANY, st.one_of(st.none(), NAMES)),
        HOW_MANY.map(lambda times: [{"a": number} for number in range(times)]),
    )


VALUES = st.recursive(st.one_of(SCALARS, TEXTS), _larger, max_leaves=8)
"""Any JSON value, and such that Python's reader of JSON accepts beside it: NaN, infinities, half a surrogate pair."""


def _schema_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, max_size=3)
    named = st.dictionaries(NAMES, inner, max_size=3)
    many = st.builds(_wide, NAMES, inner, HOW_MANY)
    lists = st.one_of(some, st.builds(_many, inner, HOW_MANY), VALUES)
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": st.one_of(
            st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null", "any", "", 7, {}]),
            st.lists(st.sampled_from(["object", "string", "null", "integer", 3]), max_size=3),
        ),
        "properties": st.one_of(named, many, VALUES),
        "patternProperties": st.one_of(st.dictionaries(PATTERNS, inner, max_size=2), VALUES),
        "additionalProperties": inner,
        "unevaluatedProperties": inner,
        "unevaluatedItems": inner,
        "propertyNames": inner,
        "dependentSchemas": named,
        "dependencies": st.one_of(named, VALUES),
        "dependentRequired": st.one_of(st.dictionaries(NAMES, st.lists(NAMES, max_size=2), max_size=2), VALUES),
        "required": st.one_of(st.lists(NAMES, max_size=3), many.map(list), VALUES),
        "items": st.one_of(inner, some),
        "additionalItems": inner,
        "prefixItems": lists,
        "contains": inner,
        "minContains": BOUNDS,
        "uniqueItems": st.one_of(st.booleans(), VALUES),
        "allOf": lists,
        "anyOf": lists,
        "oneOf": lists,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "enum": st.one_of(st.lists(SCALARS, max_size=3), VALUES),
        "const": VALUES,
        "default": VALUES,
        "examples": VALUES,
        "description": st.one_of(TEXTS, VALUES),
        "title": st.one_of(NAMES, VALUES),
        "pattern": st.one_of(PATTERNS, VALUES),
        "format": st.one_of(st.sampled_from(["date", "uuid", "regex", "uri", "email", "x"]), VALUES),
        "$defs": named,
        "definitions": named,
        "$ref": st.one_of(
            st.sampled_from(
                ["#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#a", "x:", "http://[", "#/%", "https://e.org/s", "",
                 "#/$defs/a/" * 3000, "urn:x", "#/properties/0", "file:///etc/passwd", "#//"]
            ),
            VALUES,
        ),
        "$dynamicRef": st.sampled_from(["#", "#a", "#/$defs/a"]),
        "$recursiveRef": st.just("#"),
        "$id": st.sampled_from(["", "x", "http://[", "https://e.org/s", "#", 7, "\0"]),
        "$anchor": st.sampled_from(["a", "", 7]),
        "$dynamicAnchor": st.sampled_from(["a", "", 7]),
        "$schema": st.sampled_from(
            ["https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2019-09/schema",
             "http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-06/schema#",
             "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-03/schema#", "x", 7, [], "http://["]
        ),
        **dict.fromkeys(
            ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minimum", "maximum",
             "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "divisibleBy"],
            BOUNDS,
        ),
    }  # fmt: skip
    chosen = st.lists(st.sampled_from(sorted(keywords)), max_size=5, unique=True)
    return chosen.flatmap(lambda names: st.fixed_dictionaries({name: keywords[name] for name in names}))


def _layers(keyword: str, times: int, depth: int) -> dict[str, Any]:
    layers = {f"L{n}": {keyword: [{"$ref": f"#/$defs/L{n + 1}"}] * times} for n in range(depth)}
    return {"properties": {"n": {"$ref": "#/$defs/L0"}}, "$defs": {**layers, f"L{depth}": {}}}


def _chain(depth: int, last: Any) -> dict[str, Any]:
    chain = {f"R{n}": {"$ref": f"#/$defs/R{n + 1}"} for n in range(depth)}
    return {"properties": {"n": {"$ref": "#/$defs/R0"}}, "required": ["n"], "$defs": {**chain, f"R{depth}": last}}


def _often(times: int, size: int) -> dict[str, Any]:
    return {"properties": _wide("p", {"$ref": "#/$defs/Large"}, times), "$defs": {"Large": {"enum": ["x" * size]}}}


SCHEMAS = st.recursive(
    st.one_of(st.booleans(), st.just({}), st.sampled_from([tool["inputSchema"] for tool in REAL]), VALUES),
    _schema_of,
    max_leaves=6,
)
"""Any JSON Schema, and much that is none."""
OBJECT_SCHEMAS = st.one_of(
    _schema_of(SCHEMAS),
    st.builds(_layers, st.sampled_from(["allOf", "anyOf", "oneOf", "prefixItems"]), st.integers(1, 4), HOW_MANY),
    st.builds(_chain, HOW_MANY, SCHEMAS),
    st.builds(_often, HOW_MANY, HOW_LONG),
    st.builds(
        lambda value, required: {"properties": {"n": value}, "required": ["n"] if required else []},
        _schema_of(SCHEMAS),
        st.booleans(),
    ),
)
"""Schemas of tools, which are objects."""


@st.composite
def mutated(draw: st.DrawFn, originals: list[Any], values: st.SearchStrategy[Any] = VALUES) -> Any:
    """A value from a list, with up to three places in it replaced, removed or repeated."""
    value = copy.deepcopy(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(0, 3))):
        inside = [value]
        for _ in range(draw(st.integers(0, 6))):
            below = inside[-1].values() if isinstance(inside[-1], dict) else inside[-1]
            nodes = [node for node in below if isinstance(node, dict | list) and node]
            if not nodes:
                break
            inside.append(draw(st.sampled_from(nodes)))
        node = inside[-1]
        if not isinstance(node, dict | list) or not node:
            continue
        at = draw(st.sampled_from(list(node) if isinstance(node, dict) else range(len(node))))
        match draw(st.sampled_from(["replace", "remove", "rename"])):
            case "replace":
                node[at] = draw(values)
            case "remove":
                del node[at]
            case "rename" if isinstance(node, dict):
                node[draw(NAMES)] = node.pop(at)
    return value


TOOLS = st.one_of(
    mutated(REAL, st.one_of(SCHEMAS, VALUES)),
    st.fixed_dictionaries(
        {"name": st.one_of(NAMES, TEXTS), "inputSchema": OBJECT_SCHEMAS},
        optional={
            "description": st.one_of(TEXTS, VALUES),
            "outputSchema": st.one_of(OBJECT_SCHEMAS, VALUES),
            "annotations": VALUES,
            "title": VALUES,
        },
    ),
    VALUES,
)
BLOCKS = st.one_of(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "image", "audio", "resource_link", "resource", "x", 7, None])},
        optional={
            "text": st.one_of(TEXTS, VALUES),
            "data": VALUES,
            "mimeType": VALUES,
            "uri": VALUES,
            "name": VALUES,
            "description": VALUES,
            "resource": st.one_of(VALUES, st.fixed_dictionaries({"uri": VALUES, "text": VALUES, "blob": VALUES})),
        },
    ),
    VALUES,
)
RESULTS = st.fixed_dictionaries(
    {},
    optional={
        "content": st.one_of(st.lists(BLOCKS, max_size=3), VALUES),
        "structuredContent": VALUES,
        "isError": st.one_of(st.booleans(), VALUES),
    },
)
"""Results of `tools/call`, good and bad."""
PAGES = st.lists(
    st.fixed_dictionaries(
        {"tools": st.one_of(st.lists(TOOLS, max_size=3), VALUES)},
        optional={"nextCursor": st.one_of(st.text(max_size=3), TEXTS, VALUES)},
    ),
    min_size=1,
    max_size=4,
)
ENTRIES = st.one_of(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional=dict.fromkeys(
                ["uri", "name", "description", "mimeType", "uriTemplate", "arguments", "text", "blob", "role",
                 "content"],
                st.one_of(VALUES, TEXTS),
            ),
        ),
        max_size=3,
    ),
    VALUES,
)  # fmt: skip
"""Listings and contents beside those of tools."""
