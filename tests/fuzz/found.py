"""Input that once held the event loop, took all memory, or raised what no user understands."""

from typing import Any

from strangers import _chain, _layers, _nested, _often

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def _needed(schema: Any, **beside: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"n": schema}, "required": ["n"], **beside}


OBJECTS = [{"a": number} for number in range(3000)]
ANCHORS = {f"a{number}": {"$anchor": f"x{number}"} for number in range(2000)}
FOUND: dict[str, list[Any]] = {
    "schemas": [
        (_needed({"$schema": DIALECT, "pattern": "(a+)+$"}), [{"n": "a" * 30 + "!"}]),  # was matched by Python's `re`
        (_needed({"uniqueItems": True}), [{"n": OBJECTS}]),  # each item was compared with each
        (_needed({"enum": OBJECTS}, **{"$schema": "http://json-schema.org/draft-04/schema#"}), [{"n": 1}]),
        (_needed({"pattern": "(?i)" + "[a-z]" * 40_000}), [{"n": "a"}]),  # was parsed by Python's `re`
        (_needed({"pattern": "^" + r"(\w*" * 60 + ")" * 60 + "!$"}), [{"n": "a" * 1000}]),
        (_needed({"items": {"$ref": "#x0"}}, **{"$defs": ANCHORS}), [{"n": [1] * 5000}]),  # each searched the whole
        ({"properties": {f"p{n}": {"$ref": f"#x{n}"} for n in range(2000)}, "$defs": ANCHORS}, [{"p1": 1}]),
        ({"properties": {f"p{n}": {} for n in range(3800)}}, [{}]),
        (_layers("oneOf", 2, 40), [{"n": 1}]),
        (_layers("allOf", 2, 40) | {"unevaluatedProperties": False}, [{"n": 1}]),
        (_chain(3000, {}), [{"n": 1}]),
        (_often(15_000, 1000), [{"p1": 1}]),
        (_needed({"minLength": 10**15}), []),
        (_needed({"type": "object", "minProperties": 10**12}), []),
        (_needed({"pattern": "(((a{900}){900}){900})"}), []),
        (_needed({"allOf": [True], "properties": True, "enum": 5, "anyOf": [3], "oneOf": [True]}), [{"n": 1}]),
        (_needed({"minimum": 10**400, "multipleOf": 0}), [{"n": 5.5}]),
        (_needed({"anyOf": [True, False, {"type": []}]}), [{"n": _nested(1, 150, "x")}]),
    ],
    "listings": [
        ([{"tools": [{"name": f"t{n}", "inputSchema": _layers("allOf", 2, 40)} for n in range(20)]}], [{"tools": []}]),
        ([{"tools": [{"name": "t", "inputSchema": {"x": "y" * 2**23}, "description": "z. " * 10**6}]}], [{}]),
    ],
    "results": [
        ({"content": [{"type": "resource", "resource": [1]}]}, {}),
        ({"content": [{"type": "text", "text": "9" * 400}], "structuredContent": [10**400]}, {"n": 10**400}),
    ],
    "texts": [("9" * 400, {}), ('{"result": ' + "9" * 4000 + "}", {"n": 10**400}), ("1e999", {})],
    "offered": [([{"uri": "x", "name": 7}], [{"resource": 5, "role": [], "content": []}], {"arguments": [1]})],
    "questions": [
        ({"requestedSchema": {"properties": {}, "required": [[]]}}, [], {}),  # looked up what has no hash
        ({}, [{"resultType": "task", "taskId": "1", "status": "working", "pollIntervalMs": 10**400}], {}),
        ({}, [{"resultType": "task", "taskId": "1", "status": "working", "pollIntervalMs": float("nan")}], {}),
    ],
    "templates": [
        (
            "{% set n = namespace(x=[1]) %}{% for a in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
            "inside",
        ),
        ("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}", "before"),
        ("{{ 'x' * 10 ** 10 }}", "after"),
    ],
    "lines": [[b"9" * 5000 + b"\n"], [b"[" * 300_000 + b"\n"], [b'{"jsonrpc":"2.0","id":' + b"9" * 4000 + b"}\n"]],
}
