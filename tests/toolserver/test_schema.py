"""Tool schemas as the model reads them, and the sentences about invalid arguments."""

import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_rl.toolserver.tools.listing import Tool, list_tools, pages, read_tool
from mcp_rl.toolserver.tools.schema import ToolSchemas, inlined, openai_names

LISTINGS = sorted((Path(__file__).parents[1] / "data/mcp-tools").glob("*.json"))


def listing(path):
    return [read_tool(entry) for entry in json.loads(path.read_text())["tools"]]


def tool(schema, name="tool"):
    return Tool(name, "Does something.", schema)


def check(schema, arguments):
    return ToolSchemas([tool(schema)]).validate("tool", arguments)


def strings_in(value):
    if isinstance(value, dict):
        return {text for key, below in value.items() for text in {key} | strings_in(below)}
    if isinstance(value, list):
        return {text for below in value for text in strings_in(below)}
    return {json.dumps(value)}


@pytest.mark.parametrize("path", LISTINGS, ids=lambda path: path.stem)
def test_real_listings_lose_nothing_but_noise(path):
    tools = listing(path)
    schemas = ToolSchemas(tools)
    assert [function["function"]["name"] for function in schemas.openai] == sorted(t.name for t in tools)
    for original in tools:
        function = next(f["function"] for f in schemas.openai if f["function"]["name"] == original.name)
        assert function["description"] == original.description
        lost = strings_in(original.input_schema) - strings_in(function["parameters"])
        noise = {"$schema", "title", json.dumps(original.input_schema.get("$schema"))}
        assert all(text in noise or "Arguments" in text or text.strip('"').istitle() for text in lost), lost


@pytest.mark.parametrize("path", LISTINGS, ids=lambda path: path.stem)
def test_bytes_and_hash_ignore_the_order_of_the_listing(path):
    tools = listing(path)
    shuffled = random.Random(0).sample(tools, len(tools))
    first, second = ToolSchemas(tools), ToolSchemas(shuffled)
    assert json.dumps(first.openai) == json.dumps(second.openai)
    assert first.hash == second.hash


def test_the_hash_depends_on_every_word():
    one = ToolSchemas([tool({"type": "object", "properties": {"a": {"type": "number"}}})])
    other = ToolSchemas([tool({"type": "object", "properties": {"a": {"type": "integer"}}})])
    assert one.hash != other.hash
    assert re.fullmatch(r"[0-9a-f]{16}", one.hash)


def test_references_are_replaced_and_words_beside_them_win():
    schema = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/Point", "description": "Where."}},
        "$defs": {
            "Point": {"type": "object", "description": "A point.", "properties": {"x": {"$ref": "#/$defs/X"}}},
            "X": {"type": "number", "minimum": 0},
        },
    }
    assert inlined(schema) == {
        "type": "object",
        "properties": {
            "at": {"type": "object", "description": "Where.", "properties": {"x": {"type": "number", "minimum": 0}}}
        },
    }


def test_rules_beside_a_reference_that_differ_are_both_kept():
    schema = {"properties": {"n": {"$ref": "#/$defs/N", "minimum": 5}}, "$defs": {"N": {"minimum": 0}}}
    assert inlined(schema)["properties"]["n"] == {"minimum": 5, "allOf": [{"minimum": 0}]}


def test_a_reference_into_itself_ends():
    tree = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}
    schema = {"type": "object", "properties": {"tree": {"$ref": "#/$defs/Tree"}}, "$defs": {"Tree": tree}}
    inner = inlined(schema)["properties"]["tree"]["properties"]["children"]
    assert inner == {"type": "array", "items": {}}
    assert inlined({"type": "object", "properties": {"self": {"$ref": "#"}}})["properties"]["self"] == {}


def test_definitions_that_grow_exponentially_end():
    layers = {f"L{n}": {"properties": {key: {"$ref": f"#/$defs/L{n + 1}"} for key in "abcd"}} for n in range(30)}
    schema = {"type": "object", "properties": {"top": {"$ref": "#/$defs/L0"}}, "$defs": layers}
    assert len(json.dumps(inlined(schema))) < 5_000_000


def test_a_definition_referred_to_often_ends():
    properties = {f"p{n}": {"$ref": "#/$defs/Large"} for n in range(15_000)}
    large = {"enum": ["x" * 200_000], "description": "y" * 1000}
    assert len(json.dumps(inlined({"properties": properties, "$defs": {"Large": large}}))) < 5_000_000


def test_many_tools_share_a_budget_of_expansion():
    large = {"type": "object", "$defs": {"L": {"enum": ["x" * 300_000]}}}
    schema = large | {"properties": {f"p{n}": {"$ref": "#/$defs/L"} for n in range(8)}}
    tools = [Tool(f"t{n}", "", schema) for n in range(60)]
    assert len(json.dumps(ToolSchemas(tools).openai)) < 40_000_000


def test_a_chain_of_references_ends_with_one_warning(caplog):
    chain = {f"R{n}": {"$ref": f"#/$defs/R{n + 1}"} for n in range(3000)} | {"R3000": {"type": "string"}}
    schemas = ToolSchemas([Tool("chained", "", {"properties": {"x": {"$ref": "#/$defs/R0"}}, "$defs": chain})])
    assert schemas.openai[0]["function"]["parameters"]["properties"] == {"x": {}}
    assert schemas.validate("chained", {"x": "a"}) is None
    assert len(caplog.records) == 2 and "expand too far" in caplog.text and "too complex" in caplog.text


def test_a_schema_that_takes_exponential_time_is_not_checked(caplog):
    layers = {f"L{n}": {"allOf": [{"$ref": f"#/$defs/L{n + 1}"}] * 2} for n in range(40)} | {"L40": {}}
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/L0"}}, "$defs": layers}
    schemas = ToolSchemas([Tool("exponential", "", schema)])
    caplog.clear()
    began = time.process_time()
    for _ in range(3):
        assert schemas.validate("exponential", {"x": 1}) is None
    assert time.process_time() - began < 5
    assert [record.message for record in caplog.records] == [
        "Arguments of exponential are not checked, since its schema takes too many steps to check."
    ]


def test_a_schema_of_megabytes_is_not_checked(caplog):
    schema = {"type": "object", "properties": {f"p{n}": {"minimum": 1} for n in range(100_000)}}
    schemas = ToolSchemas([Tool("vast", "", schema)])
    assert schemas.validate("vast", {"p1": 0}) is None
    assert len(caplog.records) == 1 and "longer than 256 kB" in caplog.text


@pytest.mark.parametrize(
    "part", [{"$schema": 7}, {"$id": []}, {"$ref": "#/x/0"}, {"allOf": 3, "$ref": "#/$defs/a", "title": "t"}]
)
def test_a_malformed_schema_is_shown_and_accepts_anything(part):
    schema = {"type": "object", "properties": {"x": part}, "$defs": {"a": {"title": "other", "allOf": 1}}, **part}
    schemas = ToolSchemas([Tool("malformed", "", schema)])
    assert schemas.openai[0]["function"]["name"] == "malformed"
    assert schemas.validate("malformed", {"x": 1}) is None


@pytest.mark.parametrize("part", [{"properties": [1]}, {"required": 5}, {"required": [{}]}])
def test_an_input_schema_of_the_wrong_shape_is_left_out(part):
    with pytest.raises(ValueError, match="its inputSchema"):
        read_tool({"name": "t", "inputSchema": {"type": "object", **part}})


async def test_a_listing_is_read_up_to_its_budget():
    asked = 0

    async def ask(method: str, params: dict) -> dict:
        nonlocal asked
        asked += 1
        return {"resources": [{"uri": f"{asked}" + "x" * 2**20}], "nextCursor": f"{asked}"}

    *_, (_, remark) = [page async for page in pages(ask, "resources/list")]
    assert asked < 40 and remark is not None and "too long" in remark


async def test_a_cursor_of_megabytes_is_not_sent_back():
    async def ask(method: str, params: dict) -> dict:
        assert not params
        return {"tools": [], "nextCursor": "x" * 15 * 2**20}

    _, warnings = await list_tools(ask)
    assert len(warnings) == 1 and "too long" in warnings[0]


def test_names_and_data_that_look_like_keywords_stay():
    schema = {
        "type": "object",
        "properties": {
            "$ref": {"type": "string"},
            "title": {"type": "string", "title": "Heading"},
            "definitions": {"enum": [{"$ref": "#/x"}], "default": {"$schema": 1}},
        },
    }
    assert inlined(schema) == schema


def test_titles_go_only_where_they_repeat_the_name():
    schema = {
        "type": "object",
        "title": "get_current_timeArguments",
        "properties": {
            "time_zone": {"type": "string", "title": "Time Zone"},
            "unit": {"type": "string", "title": "Unit of length"},
        },
    }
    result = inlined(schema, "get_current_time")
    assert "title" not in result
    assert "title" not in result["properties"]["time_zone"]
    assert result["properties"]["unit"]["title"] == "Unit of length"


def test_a_tool_without_parameters_still_has_an_object_schema():
    function = ToolSchemas([tool({"type": "object"})]).openai[0]["function"]
    assert function["parameters"] == {"type": "object", "properties": {}}


@given(st.sets(st.text(max_size=80), min_size=1, max_size=20))
def test_names_are_valid_unique_and_independent_of_the_order(names):
    ordered = sorted(names)
    mapped = openai_names(ordered)
    assert len(set(mapped.values())) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in mapped.values())
    assert openai_names(reversed(ordered)) == mapped
    assert all(mapped[name] == name for name in names if re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name))


def test_the_maps_lead_back_to_the_server():
    schemas = ToolSchemas([tool({"type": "object"}, name) for name in ("files/read", "files.read", "files_read")])
    assert schemas.to_openai == {"files.read": "files_read_2", "files/read": "files_read_3", "files_read": "files_read"}
    assert schemas.to_server["files_read_3"] == "files/read"
    assert schemas.tool("files_read_2").name == "files.read"


TWO = {
    "type": "object",
    "properties": {
        "a": {"type": "number", "minimum": 0, "maximum": 10},
        "unit": {"type": "string", "enum": ["m", "ft"]},
        "points": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer"}}}},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "either": {"type": ["string", "null"]},
    },
    "required": ["a"],
}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"a": 1}, None),
        ({"a": 1, "maybe": None, "either": None, "points": [{"x": 1}]}, None),
        ({}, "Missing argument 'a'."),
        ({"b": 1}, "Missing argument 'a'; there is no argument 'b'."),
        ({"a": "1"}, "Argument 'a' must be a number, not \"1\"."),
        ({"a": True}, "Argument 'a' must be a number, not true."),
        ({"a": 11}, "Argument 'a' must be at most 10, not 11."),
        ({"a": 1, "unit": "km"}, 'Argument \'unit\' must be one of "m", "ft", not "km".'),
        ({"a": 1, "either": 5}, "Argument 'either' must be a string or null, not 5."),
        ({"a": 1, "maybe": 5}, "Argument 'maybe' must be a string or null, not 5."),
        ({"a": 1, "points": [{"x": 1}, {"x": "y"}]}, "Argument 'points[1].x' must be an integer, not \"y\"."),
        ({"a": float("nan")}, "Argument 'a' must be a finite number."),
        ([1], "The arguments of tool must be a JSON object, not [1]."),
    ],
)
def test_a_complaint_is_one_sentence_that_names_the_argument(arguments, sentence):
    assert check(TWO, arguments) == sentence


def test_unknown_arguments_are_refused_if_the_schema_does():
    closed = TWO | {"additionalProperties": False}
    assert check(TWO, {"a": 1, "c": 2}) is None
    assert check(closed, {"a": 1, "c": 2}) == (
        "Unknown argument 'c'; the arguments are a, unit, points, maybe, either."
    )


def test_an_unknown_tool_gets_the_list_of_tools():
    assert ToolSchemas([tool({"type": "object"})]).validate("toll", {}) == (
        "There is no tool 'toll'. The tools are: tool."
    )


def test_validation_follows_references_and_the_dialect():
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"pair": {"$ref": "#/definitions/Pair"}},
        "definitions": {"Pair": {"type": "array", "items": [{"type": "integer"}, {"type": "string"}]}},
    }
    assert check(schema, {"pair": [1, "x"]}) is None
    assert check(schema, {"pair": ["x", "y"]}) == "Argument 'pair[0]' must be an integer, not \"x\"."


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "strong"}}},
        {"type": "object", "properties": {"a": {"$ref": "https://example.org/elsewhere.json"}}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}},
        {"type": "object", "properties": {"a": {"required": True}}},
    ],
)
def test_a_schema_that_cannot_be_checked_is_left_to_the_server(schema):
    assert check(schema, {"a": "x"}) is None


@pytest.mark.parametrize(
    "properties",
    [
        {"properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}},
        {"patternProperties": {"^(t+)+$": {"type": "string"}}, "additionalProperties": False},
    ],
)
def test_no_pattern_of_a_server_takes_long_to_match(properties: dict[str, Any]) -> None:
    schemas = ToolSchemas([Tool("say", "", {"type": "object", **properties})])
    began = time.perf_counter()
    assert schemas.validate("say", {"text": "a" * 60 + "!", "t" * 60 + "!": "x"}) is not None
    assert time.perf_counter() - began < 5


def test_patterns_decide_as_the_specification_says() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "string", "pattern": "[0-9]{2}$"}, "ahead": {"pattern": "^(?=x)"}},
        "patternProperties": {"^n_": {"type": "number"}},
        "additionalProperties": {"type": "boolean"},
    }
    schemas = ToolSchemas([Tool("t", "", schema)])
    assert schemas.validate("t", {"id": "a12", "n_x": 1, "other": True, "ahead": "y"}) is None
    for wrong in ({"id": "a1"}, {"n_x": "one"}, {"other": "text"}):
        assert schemas.validate("t", wrong) is not None
    closed = ToolSchemas([Tool("t", "", {**schema, "additionalProperties": False})])
    assert closed.validate("t", {"n_x": 1}) is None
    assert "other" in (closed.validate("t", {"other": 1}) or "")
