import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema.validators import validator_for

from mcp_rl.explore.pattern import string_matching
from mcp_rl.explore.plausible import listed
from mcp_rl.explore.sample import Sampler
from mcp_rl.explore.values_seen import ValuePool
from mcp_rl.toolserver.tools.listing import read_tool
from mcp_rl.toolserver.tools.schema import ToolSchemas

LISTINGS = sorted((Path(__file__).parents[1] / "data" / "mcp-tools").glob("*.json"))


def draws(schema: Any, times: int = 30, seed: int = 0) -> list[dict[str, Any]]:
    sampler, source = Sampler("tool", schema, ValuePool()), random.Random(seed)
    found = [sampler.draw(source) for _ in range(times)]
    return [draw.arguments for draw in found if draw is not None]


def values(schema: dict[str, Any], times: int = 30) -> list[Any]:
    wrapped = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    return [arguments["x"] for arguments in draws(wrapped, times)]


def small(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(strategy, min_size=1, max_size=3)


integers = st.tuples(st.integers(-5000, 5000), st.integers(0, 5000)).map(
    lambda p: {"type": "integer", "minimum": p[0], "maximum": p[0] + p[1]}
)
numbers = st.one_of(
    st.just({"type": "number"}),
    st.floats(-1e6, 1e6).map(lambda low: {"type": "number", "minimum": low}),
    st.floats(-1e6, 1e6).map(lambda high: {"type": "number", "exclusiveMaximum": high}),
    st.integers(1, 50).map(lambda step: {"type": "number", "multipleOf": step}),
    st.tuples(st.floats(0, 1), st.floats(0.1, 1)).map(
        lambda p: {"type": "number", "minimum": p[0], "maximum": p[0] + p[1]}
    ),
)
strings = st.one_of(
    st.tuples(st.integers(0, 40), st.integers(0, 30)).map(
        lambda p: {"type": "string", "minLength": p[0], "maxLength": p[0] + p[1]}
    ),
    st.sampled_from(["[A-Z]{2,4}-\\d+", "^(red|green)\\s?light$", "^\\+?[0-9]{3}$", "^[^aeiou]+$", "x.y?z*"]).map(
        lambda pattern: {"type": "string", "pattern": pattern}
    ),
    small(st.text(max_size=8)).map(lambda options: {"enum": options}),
)
scalars = st.one_of(integers, numbers, strings, st.just({"type": "boolean"}), st.just({"type": ["integer", "null"]}))


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(inner, st.integers(0, 3), st.integers(0, 3)).map(
            lambda p: {"type": "array", "items": p[0], "minItems": p[1], "maxItems": p[1] + p[2]}
        ),
        st.lists(inner, min_size=1, max_size=2).map(lambda some: {"anyOf": [*some, {"type": "null"}]}),
        objects(inner),
    )


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.text("abcdefgh", min_size=1, max_size=4)
    return st.dictionaries(names, inner, max_size=4).flatmap(
        lambda properties: st.sets(st.sampled_from(sorted(properties) or ["-"])).map(
            lambda required: {
                "type": "object",
                "properties": properties,
                "required": sorted(required & properties.keys()),
                "additionalProperties": False,
            }
        )
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(objects(st.recursive(scalars, containers, max_leaves=6)), st.integers(0, 99))
def test_draws_from_random_schemas_validate(schema: Any, seed: int) -> None:
    found = draws(schema, times=3, seed=seed)
    assert found
    for arguments in found:
        validator_for(schema)(schema).validate(arguments)


@pytest.mark.parametrize("bound", [{"exclusiveMaximum": 0.5}, {"maximum": -3}, {"exclusiveMaximum": 1}])
def test_a_count_that_must_stay_below_one_is_drawn_all_the_same(bound: dict[str, float]) -> None:
    schema = {"type": "object", "properties": {"limit": {"type": "number", **bound}}, "required": ["limit"]}
    assert len(draws(schema, times=5)) == 5


@pytest.mark.parametrize("path", LISTINGS, ids=lambda path: path.stem)
def test_tools_of_real_listings_get_valid_varied_arguments(path: Path) -> None:
    for tool in json.loads(path.read_text())["tools"]:
        schema = tool["inputSchema"]
        found = draws(schema, times=20)
        assert len(found) == 20, tool["name"]
        for arguments in found:
            validator_for(schema)(schema).validate(arguments)
        if schema.get("required"):
            assert len({json.dumps(arguments, sort_keys=True) for arguments in found}) > 1, tool["name"]


def test_listings_are_there() -> None:
    assert len(LISTINGS) >= 4


@pytest.mark.parametrize(
    "pattern", ["^[a-f0-9]{8}$", "(ab|cd)+e?", "\\d{4}-\\d{2}", "^[^x]y$", "[\\w.]+@\\w+\\.com", "(a)\\1", "^\\S+ \\D$"]
)
def test_strings_from_patterns_match_them(pattern: str) -> None:
    for seed in range(20):
        text = string_matching(pattern, random.Random(seed))
        assert text is not None and re.search(pattern, text), text


def test_a_pattern_that_python_cannot_read_gives_none() -> None:
    assert string_matching("[[:alpha:", random.Random(0)) is None


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("date", r"\d{4}-\d\d-\d\d"),
        ("email", r"\w+@[\w.]+"),
        ("uuid", r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
        ("ipv4", r"\d+(\.\d+){3}"),
        ("uri", r"https://\S+"),
        ("date-time", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"),
    ],
)
def test_formats_are_met(name: str, shape: str) -> None:
    for value in values({"type": "string", "format": name}):
        assert re.fullmatch(shape, value), value


def test_references_and_all_of_are_followed() -> None:
    schema = {
        "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
        "type": "object",
        "properties": {"at": {"allOf": [{"$ref": "#/$defs/Point"}, {"description": "where"}]}},
        "required": ["at"],
    }
    assert all(isinstance(arguments["at"]["x"], int) for arguments in draws(schema))


def test_a_schema_that_refers_to_itself_ends() -> None:
    node: dict[str, Any] = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
        "required": ["name", "children"],
    }
    schema = {"$defs": {"Node": node}, **node}
    assert len(draws(schema)) == 30


def test_a_schema_that_nothing_can_meet_gives_none() -> None:
    impossible = {"type": "object", "properties": {"x": {"type": "string", "not": {}}}, "required": ["x"]}
    assert Sampler("tool", impossible, ValuePool()).draw(random.Random(0)) is None


COSTLY: list[dict[str, Any]] = [
    {"type": "string", "minLength": 10**15},
    {"type": "object", "minProperties": 10**12},
    {"type": "array", "minItems": 10**12},
    {"type": "string", "pattern": "(((a{900}){900}){900})"},
    {"type": "string", "pattern": "(){4000000000}"},
    {"type": "string", "pattern": "(aaaaaaaa)" + "".join(f"(\\{n}\\{n}\\{n})" for n in range(1, 60))},
    {"type": "string", "pattern": "[a-z]" * 10_000},
    {"type": "array", "items": {"const": "x" * 10_000}, "minItems": 30},
    {"$ref": "#"},
    {"anyOf": [{"$ref": "#/properties/x"}]},
    {"enum": 5},
]


@pytest.mark.parametrize("part", COSTLY)
def test_a_schema_that_asks_for_too_much_gives_a_reason(part: Any, caplog: pytest.LogCaptureFixture) -> None:
    schema = {"type": "object", "properties": {"x": part}, "required": ["x"]}
    sampler, began = Sampler("tool", schema, ValuePool()), time.process_time()
    for seed in range(3):
        assert sampler.draw(random.Random(seed)) is None
    assert time.process_time() - began < 3
    assert sampler.problem is not None and len(caplog.records) == 1 and sampler.problem in caplog.text


def test_a_pattern_that_backtracks_is_matched_in_linear_time() -> None:
    pattern = "^" + r"(\w*" * 60 + ")" * 60 + "!$"
    began = time.process_time()
    values({"type": "string", "pattern": pattern}, times=20)
    assert time.process_time() - began < 3


def test_a_result_with_nothing_but_dates_leaves_values_to_draw() -> None:
    pool = ValuePool()
    pool.observe({}, json.dumps({"timezone_now": "2026-11-22T10:00:00+00:00"}))
    assert not pool.kinds
    schema = {"type": "object", "properties": {"timezone": {"type": "string"}}, "required": ["timezone"]}
    for seed in range(50):
        assert Sampler("tool", schema, pool).draw(random.Random(seed)) is not None


@pytest.mark.parametrize(
    "form", [{"type": ["boolean", "string"]}, {"anyOf": [{"type": "boolean"}, {"type": "string"}]}]
)
def test_a_text_is_seldom_drawn_beside_a_stricter_type(form: dict[str, Any]) -> None:
    assert sum(isinstance(value, bool) for value in values(form, 60)) > 45


def test_an_optional_argument_is_left_out_rather_than_null() -> None:
    nullable = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    schema = {"type": "object", "properties": {"may": nullable, "must": nullable}, "required": ["must"]}
    sampler = Sampler("tool", schema, ValuePool())
    drawn = [draw.arguments for seed in range(200) if (draw := sampler.draw(random.Random(seed)))]
    assert any("may" in arguments for arguments in drawn) and not any(
        arguments.get("may", "") is None for arguments in drawn
    )
    assert all("must" in arguments for arguments in drawn) and any(arguments["must"] is None for arguments in drawn)


KEYWORDS = (
    "type", "properties", "required", "items", "prefixItems", "enum", "const", "anyOf", "oneOf", "allOf", "not", "$ref",
    "minimum", "maximum", "multipleOf", "exclusiveMinimum", "minLength", "maxLength", "pattern", "format", "default",
    "examples", "minItems", "maxItems", "uniqueItems", "additionalProperties", "minProperties", "propertyNames",
    "description", "$schema", "$id", "$defs", "if", "then", "dependentRequired", "patternProperties",
)  # fmt: skip
atoms = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**16), st.floats(), st.sampled_from(
        ["object", "string", "integer", "array", "#", "#/properties/a", "[", "(a+)+$", "date", "a", ""]
    )
)  # fmt: skip
anything = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(KEYWORDS), st.just("a")), inner, max_size=4),
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(st.sampled_from(KEYWORDS), anything, max_size=5), anything, st.integers(0, 99))
def test_no_schema_makes_drawing_or_checking_raise(schema: dict[str, Any], inner: Any, seed: int) -> None:
    for hostile in (schema, {"type": "object", "properties": {"a": inner}, "required": ["a"]}):
        sampler = Sampler("tool", hostile, ValuePool())
        draw = sampler.draw(random.Random(seed))
        assert (draw is None) == (sampler.problem is not None)
        try:
            tool = read_tool({"name": "tool", "inputSchema": hostile})
        except ValueError:
            continue
        ToolSchemas([tool]).validate("tool", {"a": 1})


def test_examples_in_a_description_are_used() -> None:
    found = values({"type": "string", "description": "An IATA code (e.g. 'ZRH', 'LHR')"}, times=60)
    assert {"ZRH", "LHR"} <= set(found)


def test_time_zones_dates_and_times_follow_descriptions() -> None:
    zones = values({"type": "string", "description": "IANA timezone name"}, times=40)
    times = values({"type": "string", "description": "24-hour format (HH:MM)"}, times=40)
    assert sum("/" in zone for zone in zones) > 15
    assert sum(bool(re.fullmatch(r"\d\d:\d\d", time)) for time in times) > 15


def test_parameters_that_count_get_whole_positive_numbers() -> None:
    schema = {"type": "object", "properties": {"maxResults": {"type": "number"}}, "required": ["maxResults"]}
    found = [arguments["maxResults"] for arguments in draws(schema, times=100)]
    assert min(found) >= 1
    assert sum(isinstance(value, int) for value in found) > 80


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("annual_rate_pct", 0.5, 20), ("term_years", 1, 30), ("grossSalary", 1000, 90000), ("price_per_unit", 5, 900),
     ("weight_kg", 45, 110), ("age", 18, 80)],
)  # fmt: skip
def test_amounts_suit_their_names(name: str, low: float, high: float) -> None:
    for kind in ("integer", "number"):
        drawn = drawn_numbers({"type": kind}, name)
        assert sum(low <= value <= high for value in drawn) > 0.85 * len(drawn)
        assert kind == "number" or all(isinstance(value, int) for value in drawn)
    assert all(0 < value <= 3 for value in drawn_numbers({"type": "number", "exclusiveMinimum": 0, "maximum": 3}, name))


def drawn_numbers(schema: dict[str, Any], name: str) -> list[float]:
    sampler = Sampler("t", {"type": "object", "properties": {name: schema}, "required": [name]}, ValuePool())
    draws = [sampler.draw(random.Random(seed)) for seed in range(200)]
    return [draw.arguments[name] for draw in draws if draw is not None]


def test_a_source_that_works_is_drawn_more_and_more_often() -> None:
    pool, source = ValuePool(), random.Random(0)
    pool.observe({}, "Folder /data holds /data/a.txt and /data/b.txt")
    schema = {"type": "object", "properties": {"target": {"type": "string"}}, "required": ["target"]}
    sampler = Sampler("open", schema, pool)

    def share_of_files() -> float:
        hits = 0
        for _ in range(200):
            draw = sampler.draw(source)
            assert draw is not None
            good = draw.arguments["target"] in ("/data/a.txt", "/data/b.txt")
            pool.credit(draw.choices, good)
            hits += good
        return hits / 200

    first = share_of_files()
    assert share_of_files() > max(0.5, first)


def test_a_file_of_the_kind_that_is_spoken_of_is_drawn_most() -> None:
    pool, source = ValuePool(), random.Random(0)
    for name in ("a.log", "b.xlsx", "c.csv"):
        pool.observe_path(f"/data/{name}")
    path = {"type": "string", "description": "Absolute path to the Excel file"}
    sampler = Sampler("read", {"type": "object", "properties": {"filePath": path}, "required": ["filePath"]}, pool)
    drawn = [made.arguments["filePath"] for _ in range(100) if (made := sampler.draw(source))]
    assert drawn.count("/data/b.xlsx") > 40 > drawn.count("/data/c.csv")


@pytest.mark.parametrize(("works", "drawn"), [(True, False), (False, True)])
def test_a_path_is_tried_as_a_text_only_where_texts_fail(works: bool, drawn: bool) -> None:
    pool, source = ValuePool(), random.Random(0)
    pool.observe_path("/data/home")
    schema = {"type": "object", "properties": {"thought": {"type": "string"}}, "required": ["thought"]}
    sampler = Sampler("think", schema, pool)
    draws = [made for _ in range(20) if (made := sampler.draw(source))]
    assert all(made.arguments["thought"] != "/data/home" for made in draws), "texts come first"
    for made in draws:
        pool.credit(made.choices, works)
    draws = [made for _ in range(100) if (made := sampler.draw(source))]
    assert drawn == any(made.arguments["thought"] == "/data/home" for made in draws)


def test_a_command_gets_harmless_ones() -> None:
    schema = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    first_words = {str(arguments["command"]).split()[0] for arguments in draws(schema, times=60)}
    assert {"pwd", "ls", "echo", "expr"} <= first_words


def test_listed_names_become_paths_in_the_listed_folder() -> None:
    pool = ValuePool()
    pool.observe({"path": "/data"}, "[FILE] notes.txt\n[DIR] old")
    assert "/data/notes.txt" in pool["path:file"]
    assert "/data/old" in pool["path:folder"]


def test_a_parameter_that_takes_one_value_with_several_tools_is_constant_until_another_works() -> None:
    pool = ValuePool()
    for tool in ("log", "show", "diff"):
        pool.observe_attempt(tool, {"repo_path": "/repo", "count": 3}, worked=True)
    assert pool.constant("repo path") is None, "nothing else was tried"
    for number in range(16):
        pool.observe_attempt("log", {"repo_path": f"word {number}"}, worked=False)
    assert pool.constant("repo path") == "/repo" and pool.constant("count") is None
    pool.observe_attempt("log", {"repo_path": "/other"}, worked=True)
    assert pool.constant("repo path") is None


@pytest.mark.parametrize(
    ("description", "choices"),
    [
        ("Create a new issue, todo, or diary entry.", ["issue", "todo", "diary"]),
        ("Status (pending, in-progress, done)", ["pending", "in-progress", "done"]),
        ("Priority: low, medium, high", ["low", "medium", "high"]),
        ("one of low/medium/high", ["low", "medium", "high"]),
        ("Task status - todo | doing | done", ["todo", "doing", "done"]),
        ("read or write", ["read", "write"]),
        ("The city, and/or the country, in which somebody was born and lives today", []),
        ("A word", []),
    ],
)
def test_choices_that_a_description_lists_are_found(description: str, choices: list[str]) -> None:
    assert listed(description) == choices


def test_years_and_dates_are_those_of_a_calendar() -> None:
    text, integer = {"type": "string"}, {"type": "integer"}
    properties = {
        "year": integer,
        "startMonth": integer,
        "end_date": text,
        "day": {**text, "description": "The day (YYYY-MM-DD)."},
    }
    found = draws({"type": "object", "properties": properties, "required": list(properties)}, times=100)
    assert all(2015 <= one["year"] <= 2030 and 1 <= one["startMonth"] <= 12 for one in found)
    for name in ("end_date", "day"):
        dates = [one[name] for one in found if re.fullmatch(r"\d{4}-\d\d-\d\d", one[name])]
        assert len(dates) > 85
    assert any(year < 2015 for year in values({"type": "integer", "minimum": 1900, "maximum": 1950}))
    bounded = {"year": {"type": "integer", "minimum": 1900, "maximum": 1950}}
    assert all(1900 <= one["year"] <= 1950 for one in draws({"properties": bounded, "required": ["year"]}))
    low = {"year": {"type": "integer", "maximum": 1950}, "years": {"type": "integer"}}
    assert len(draws({"properties": low, "required": list(low)})) == 30


def test_a_country_is_given_by_its_name_or_its_code_as_its_description_says() -> None:
    code = {"type": "string", "description": "ISO 3166-1 alpha-2 code of the country."}
    name = {"type": "string", "description": "Where the client lives."}
    properties = {"country": {"type": "string"}, "home_country": code, "other_country": name}
    found = draws({"type": "object", "properties": properties, "required": list(properties)}, times=100)

    def shares(parameter: str) -> tuple[int, int]:
        names = sum(one[parameter] in ("Norway", "Peru", "Japan", "Kenya", "Canada", "France") for one in found)
        return names, sum(re.fullmatch("[A-Z]{2}", one[parameter]) is not None for one in found)

    (names, codes), (no_names, only_codes), (only_names, no_codes) = map(shares, properties)
    assert min(names, codes) > 10 and min(only_names, only_codes) > 25 and no_names == no_codes == 0


def test_bounds_that_errors_teach_count_more_than_the_calendar() -> None:
    schema = {"type": "object", "properties": {"year": {"type": "number"}}, "required": ["year"]}
    pool, source = ValuePool(), random.Random(0)
    assert all(draw["year"] > 1 and draw["year"] == int(draw["year"]) for draw in draws(schema))
    pool.observe_error("films", {"year": 2020}, "year must be between 1950 and 2010")
    found = [Sampler("films", schema, pool).draw(source) for _ in range(20)]
    assert all(draw is not None and 1950 <= draw.arguments["year"] <= 2010 for draw in found)


def test_a_country_name_that_is_told_from_its_code_is_a_name() -> None:
    told = {"type": "string", "description": "Country name, not the ISO code"}
    found = draws({"type": "object", "properties": {"country_name": told}, "required": ["country_name"]})
    assert len(found) == 30 and not any(re.fullmatch("[A-Z]{2}", one["country_name"]) for one in found)


def test_a_search_that_may_name_a_date_takes_words() -> None:
    told = {"type": "string", "description": "Words to look for, such as notes created after YYYY-MM-DD."}
    found = draws({"type": "object", "properties": {"query": told}, "required": ["query"]}, times=100)
    assert sum(re.fullmatch(r"\d{4}-\d\d-\d\d", one["query"]) is None for one in found) > 20


def test_what_a_server_says_about_a_call_is_no_value_for_another_parameter() -> None:
    pool, said = ValuePool(), "length must be 15 characters"
    pool.observe(
        {}, json.dumps({"valid": False, "reason": said, "town": "Lima", "more": "See https://a.example/x\nBye"})
    )
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in ("code", "reason")}}
    sampler, source = Sampler("tool", schema | {"required": ["code", "reason"]}, pool), random.Random(0)
    drawn = [draw.arguments for _ in range(300) if (draw := sampler.draw(source)) is not None]
    codes = {one["code"] for one in drawn}
    assert said not in codes and {"Lima", "https://a.example/x"} < codes
    assert said in {one["reason"] for one in drawn}
