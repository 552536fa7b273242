import json
import math

import pytest

from mcp_rl.explore.hints import NUMBERS, Bounds, alternatives, bounds, wants_number
from mcp_rl.explore.values_seen import ValuePool


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("colour must be one of: red, green or blue.", ["red", "green", "blue"]),
        ("Unknown note n99; known are n1, n2, n3.", ["n1", "n2", "n3"]),
        ("Input should be 'metric' or 'imperial'", ["metric", "imperial"]),
        ("Unknown shelf 'x'. Available shelves: top, middle", ["top", "middle"]),
        ("Invalid timezone: 'No time zone found with key velvet'", []),
        ("There is no book x.", []),
    ],
)
def test_values_that_an_error_offers_are_read(text: str, offered: list[str]) -> None:
    assert alternatives(text) == offered


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("limit must be between 1 and 100", Bounds(1, 100)),
        ("Must be a finite positive integer.", Bounds(1, math.inf)),
        ("Too large: at most 50 allowed", Bounds(-math.inf, 50)),
        ("Input should be less than or equal to 10", Bounds(-math.inf, 10)),
        ("value must be >= 3", Bounds(3, math.inf)),
        ("cannot be done", None),
    ],
)
def test_ranges_that_an_error_names_are_read(text: str, told: Bounds | None) -> None:
    assert bounds(text) == told


def test_errors_teach_the_pool_about_their_parameter() -> None:
    pool = ValuePool()
    pool.observe_error("paint", {"colour": "mauve", "coats": 2}, "Unknown colour mauve; known are red, green.")
    pool.observe_error("paint", {"colour": "red", "coats": 12}, "coats must be between 1 and 4")
    assert pool.offered("paint.colour") == ["red", "green"] and pool.offered("paint.coats") == []
    assert pool.bounds("paint.coats") == Bounds(1, 4)


def test_an_error_in_json_offers_the_values_that_it_lists() -> None:
    pool = ValuePool()
    said = {"error": "unknown action: walk", "available_actions": ["create", "find"], "seen": ["a", "b"]}
    pool.observe_error("memory", {"action": "walk", "text": "Plan"}, json.dumps(said, indent=1))
    pool.observe_error("paint", {"colour": "mauve"}, json.dumps({"ok": False, "error": {"choices": ["red"]}}))
    assert pool.offered("memory.action") == ["create", "find"] and pool.offered("memory.text") == []
    assert pool.offered("paint.colour") == ["red"]


def test_a_range_that_holds_the_value_is_about_something_else() -> None:
    pool = ValuePool()
    pool.observe_error("paint", {"coats": 2}, "coats 2: the wall must be between 1 and 4 metres high")
    assert pool.bounds("paint.coats") == Bounds()


def test_a_refused_call_is_mended_once_with_a_value_that_its_error_offers() -> None:
    pool = ValuePool()
    pool.observe_error("paint", {"colour": "mauve", "coats": 2}, "Unknown colour mauve; known are red, green.")
    mended = pool.mended("paint")
    assert mended is not None and mended["colour"] in ("red", "green") and mended["coats"] == 2
    assert pool.mended("paint") is None


def test_an_error_that_blames_two_arguments_mends_nothing() -> None:
    pool = ValuePool()
    pool.observe_error("mix", {"one": "mauve", "other": "taupe"}, "No mauve with taupe; known are red, green.")
    assert pool.mended("mix") is None


@pytest.mark.parametrize(
    "said",
    [
        "Error executing tool addition: invalid literal for int() with base 10: 'winter'",
        "could not convert string to float: 'winter'",
        "invalid digit found in string",
        'strconv.Atoi: parsing "winter": invalid syntax',
        'For input string: "winter"',
        "The input string 'winter' was not in a correct format.",
        "winter is not a valid number",
        "first must be an integer",
        "Expected a number, got winter",
    ],
)
def test_a_text_that_should_be_a_number_becomes_one(said: str) -> None:
    pool = ValuePool()
    pool.observe_error("add", {"first": "winter", "second": "winter"}, said)
    assert pool.offered("add.first") == NUMBERS
    pool.observe_error("double", {"first": "winter"}, said)
    assert pool.offered("double.first") == NUMBERS
    assert pool.offered("rename.first") == [], "elsewhere it may be any text"
    if "winter" in said:
        assert pool.mended("double") == {"first": "3"}, "a call is made again with it at once"
    pool.observe_error("double", {"first": "3"}, "3 is not allowed: must be one of 4, 8")
    assert pool.offered("double.first") == ["4", "8"]


@pytest.mark.parametrize(
    "said", ["Unknown number of coats", "No such item: winter", "limit exceeded", "winter as told"]
)
def test_other_errors_want_no_number(said: str) -> None:
    assert not wants_number(said)
