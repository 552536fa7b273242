"""Verifiers of structured answers (JSON, sets, regular expressions), of refusals, and of final states."""

import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_verifier import call, scenario, success, trajectory

from mcp_rl.errors import ScenarioError
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.rewards.json_values import NoJson, first_difference, json_in, same_json
from mcp_rl.rewards.verifier import check_verifiers
from mcp_rl.trajectory import CallRecord, Trajectory

KINDS = load_plugins().verifiers


def holds(answer: str, kind: str, expected: Any, **options: Any) -> bool | None:
    return success(trajectory(answer, call()), scenario(kind, expected, **options))


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("$50,000, $100,000", True),
        ("The presets are 50000 and 100000.", True),
        ('["50,000", 100000]', True),
        ("$50,000, $100,000 and $250,000", False),
        ("$50,000", False),
        ("€50,000 and €100,000", False),
        ("-$50,000, $100,000", False),
        ('["€50,000", "$100,000"]', False),
    ],
)
def test_items_that_are_amounts_may_be_spelled_otherwise(answer: str, right: bool) -> None:
    assert holds(answer, "set", ["$50,000", "$100,000"]) is right


def test_amounts_without_a_sign_and_of_two_currencies() -> None:
    assert holds("50,000 and $100,000", "set", ["50000", "100000"]) is True
    assert holds("1,200.5 and 7", "set", ["1200.5", "7"]) is True
    assert holds('["$50"]', "set", ["$50", "€50"]) is False
    assert holds('["$50", "€50"]', "set", ["$50", "€50"]) is True


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ('{"name": "Kim", "age": 42}', True),
        ('Here it is:\n```json\n{"age": 42.0, "name": "Kim", "more": [1]}\n```\nAnything else?', True),
        ('First {"age": 1}, or rather {"name": "Kim", "age": 42}.', True),
        ('{"name": "Kim", "age": 42} … no, {"name": "Kim", "age": 1}', False),
        ('{"name": "kim", "age": 42}', False),
        ('{"name": "Kim"}', False),
        ('{"name": "Kim", "age": "42"}', False),
        ('[{"name": "Kim", "age": 42}]', False),
        ("Kim is 42.", False),
        ('{"name": "Kim", "age": 4', False),
        ("", False),
    ],
)
def test_json_must_hold_what_was_expected(answer: str, right: bool) -> None:
    assert holds(answer, "json", {"name": "Kim", "age": 42}) is right


def test_json_options_and_other_values() -> None:
    assert holds('{"a": 1, "b": 2}', "json", {"a": 1}, exact=True) is False
    assert holds('{"a": 1.0}', "json", {"a": 1}, exact=True) is True
    assert holds('{"a": 1.04}', "json", {"a": 1}, tolerance=0.05) is True
    assert holds("[1, 2, 3]", "json", [1, 2]) is False and holds("[1, 2]", "json", [1, 2]) is True
    assert holds('{"a": {"b": [{"c": 1, "d": 2}]}}', "json", {"a": {"b": [{"c": 1}]}}) is True
    assert holds("true", "json", True) is True and holds("1", "json", True) is False
    assert holds("NaN", "json", 1) is False


values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(values, values)
def test_containing_and_equality_agree(one: Any, other: Any) -> None:
    assert same_json(one, one) and first_difference(one, one) is None
    if same_json(one, other):
        assert first_difference(one, other) is None
    if isinstance(one, dict):
        assert first_difference({**one, "another": 1}, one) is None


@pytest.mark.parametrize("hostile", ["[" * 100_000, '{"a":' * 50_000, "```" * 30_000, "{}" * 50_000, '"' * 99_999])
def test_hostile_json_is_read_or_given_up_in_time(hostile: str) -> None:
    began = time.process_time()
    with suppress(NoJson):
        json_in(hostile)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ('["b.txt", "a.txt", "Rock and Roll.mp3"]', True),
        ("The files are: a.txt, b.txt and Rock and Roll.mp3.", True),
        ("- a.txt\n- b.txt\n- Rock and Roll.mp3", True),
        ("1. `a.txt`\n2. `b.txt`\n3. `Rock and Roll.mp3`", True),
        ("There are three files:\n\n* **A.TXT**\n* b.txt\n* Rock and Roll.mp3\n", True),
        ("a.txt, b.txt", False),
        ("a.txt, b.txt, c.txt, Rock and Roll.mp3", False),
        ('["a.txt", "b.txt", "Rock and Roll.mp3", "c.txt"]', False),
        ("c.txt, a.txt, b.txt, Rock and Roll.mp3", False),
        ("aa.txt, b.txt, Rock and Roll.mp3", False),
        ("", False),
    ],
)
def test_a_set_is_listed_in_any_order_and_nothing_else(answer: str, right: bool) -> None:
    assert holds(answer, "set", ["a.txt", "b.txt", "Rock and Roll.mp3"]) is right


def test_sets_of_numbers_and_other_items_that_are_allowed() -> None:
    assert holds("[3, 1.0, 2]", "set", [1, 2, 3]) is True and holds("1, 2 and 3", "set", [1, 2, 3]) is True
    assert holds("1, 2 and -3", "set", [1, 2, 3]) is False and holds("1, 2, 3.5", "set", [1, 2, 3]) is False
    assert holds("a, b, c", "set", ["a", "b"], extra=1) is True
    assert holds("a, b, c, d", "set", ["a", "b"], extra=1) is False


def test_a_regular_expression_is_searched_or_must_match_all() -> None:
    assert holds("It is 2026-11-21, I think.", "regex", r"\b\d{4}-\d\d-\d\d\b") is True
    assert holds("It is 2026-11-21.", "regex", r"\d{4}-\d\d-\d\d", full=True) is False
    assert holds("2026-11-21\n", "regex", r"\d{4}-\d\d-\d\d", full=True) is True
    assert holds("DONE", "regex", "done") is False and holds("DONE", "regex", "done", ignore_case=True) is True


@pytest.mark.parametrize("expression", [r"(a+)+$", r"(a|aa)+$", r"(.*a){20}$", r"(a*)*b", r"^(\w+\s?)*!$"])
def test_no_expression_makes_an_answer_expensive(expression: str) -> None:
    began = time.process_time()
    holds("a" * 100_000 + " -", "regex", expression)
    assert time.process_time() - began < 2


def test_forms_that_cannot_be_checked_are_refused_before_a_run() -> None:
    for kind, expected in (
        ("json", None),
        ("set", []),
        ("set", "a"),
        ("set", [["a"]]),
        ("regex", ""),
        ("regex", "(a"),
        ("regex", r"(?=look)ahead"),
        ("regex", r"(a)\1"),
        ("state", []),
        ("state", [{"tool": "read"}]),
        ("state", [{"arguments": {}}]),
        ("state", [{"tool": "read", "arguments": 3, "result": 1}]),
    ):
        with pytest.raises(ScenarioError, match=r"expects|reads"):
            check_verifiers([scenario(kind, expected)], KINDS)
    with pytest.raises(ScenarioError, match="option reads"):
        check_verifiers([scenario("number", 1, reads="all")], KINDS)
    check_verifiers([scenario("none", None), scenario("state", [{"tool": "read", "is_error": True}])], KINDS)


def left_behind(*reads: CallRecord) -> Trajectory:
    made = trajectory("Done.", call())
    made.final_state = list(reads)
    return made


def read(result: str, structured: Any = None, *, is_error: bool = False) -> CallRecord:
    return CallRecord(
        turn=2, name="read", tool="read", arguments={}, result=result, structured=structured, is_error=is_error
    )


@pytest.mark.parametrize(
    ("expected", "seen", "right"),
    [
        ("two\nlines", read("two  \nlines\n"), True),
        ("two lines", read("two\nlines"), False),
        ("text", read("", {"result": "text"}), True),
        ([1, 2], read("[1, 2.0]"), True),
        ([1, 2], read("", {"result": [1, 2]}), True),
        ({"a": 1}, read("", {"a": 1, "b": 2}), False),
        ({"result": 1}, read("", {"result": 1}), True),
        ({"a": 1}, read("no JSON"), False),
        (3, read("3"), True),
        (True, read("true"), True),
        ("text", read("text", is_error=True), False),
    ],
)
def test_a_read_is_compared_as_text_or_as_json(expected: Any, seen: CallRecord, right: bool) -> None:
    task = scenario("state", [{"tool": "read", "arguments": {}, "result": expected}])
    assert success(left_behind(seen), task) is right


def test_options_of_the_final_state() -> None:
    wanted = [{"tool": "read", "result": {"a": 1}}]
    more = read("", {"a": 1, "at": "noon"})
    assert success(left_behind(more), scenario("state", wanted, subset=True)) is True
    silent = left_behind(read("", {"a": 1}))
    silent.messages[-1]["content"] = " "
    assert success(silent, scenario("state", wanted)) is False
    assert success(silent, scenario("state", wanted, require_answer=False)) is True


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("I cannot do that: there is no tool for it.", True),
        ("Sorry, I can\u2019t send mail.", True),
        ("That isn't possible with the tools I have.", True),
        ("None of my tools can book flights.", True),
        ("Done, the mail is sent.", False),
        ("", False),
    ],
)
def test_a_refusal_says_that_it_cannot_be_done(answer: str, right: bool) -> None:
    assert success(trajectory(answer), scenario("none", None)) is right


def test_a_refusal_changes_nothing() -> None:
    task = scenario("none", None, harmless=["look"])
    assert success(trajectory("I cannot.", call("look")), task) is True
    assert success(trajectory("I cannot.", call("write", is_error=True)), task) is True
    assert success(trajectory("I cannot.", call("write")), task) is False
    own_words = scenario("none", None, says=["nicht möglich"])
    assert success(trajectory("Das ist NICHT möglich."), own_words) is True
    assert success(trajectory("I cannot."), own_words) is False
