"""Questions about calls of tools that compute: stated and asked for in the words of parameters and results."""

import json
import math
import re
import sys
from collections import Counter
from datetime import UTC, datetime
from math import factorial
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_rl.explore.answer import read_answer
from mcp_rl.explore.outcome import Outcome
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.scenarios.broken import broken_scenarios
from mcp_rl.scenarios.explored import explored_scenarios
from mcp_rl.scenarios.goals.function_words import (
    conversion,
    is_sensible,
    noun_of,
    noun_of_operation,
    of_its_input,
    parts_asked,
    said_arguments,
    stands_plainly,
)
from mcp_rl.scenarios.goals.task import accepted
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.toolserver.tools.listing import Tool

SCRIPT = Path(__file__).with_name("loan_server.py")
METRES = {"m": 1, "km": 1000, "mile": 1609.344, "miles": 1609.344}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[McpScenario]:
    async def make() -> list[McpScenario]:
        params = StdioServer(command=sys.executable, args=("-S", str(SCRIPT)))
        server = ToolServer("loans", "Computes.", {"stdio": params}, isolation="shared", sandbox="off")
        async with Sessions(server=server) as sessions:
            recipe = Recipe(90, unsolvable=0, without_tools=0, seed=3, levels="told=0.6,worked-out=0.4")
            made = await explored_scenarios(sessions, server=server, params=params, recipe=recipe)
            assert await broken_scenarios(sessions, params, made) == []
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return anyio.run(make)


def test_calls_become_questions_in_the_words_of_parameters_and_results(tasks: list[McpScenario]) -> None:
    assert Counter(task.level for task in tasks) == {"told": 54, "worked-out": 36}
    told = [task for task in tasks if task.level == "told"]
    tools = Counter(task.reference[0].tool for task in told)
    assert tools["loan_summary"] >= 5 and tools["fact"] >= 5 and tools["length_in"] >= 5
    assert tools["less"] >= 1 and tools["sum_up"] >= 1  # word problems
    assert not {"echo", "lot", "savings_plan", "pension_plan"} & tools.keys()
    for task in tasks:
        assert not re.search(r"loan.summary|length.in|\bfact\b|execution|currency|result", task.task_description)
    proofs = [task.proof for task in tasks if task.proof is not None]
    assert len(proofs) == 90 and all(proof.executed == 2 for proof in proofs)
    assert sum(proof.guess for proof in proofs) < 0.1 * 90


def test_each_answer_is_right_and_another_is_not(tasks: list[McpScenario]) -> None:
    for task in tasks:
        if task.level != "told":
            continue
        call, text, wanted = task.reference[0], task.task_description, answer_of(task)
        given: Any = call.arguments
        match call.tool:
            case "loan_summary":
                assert f"{given['principal']}" in text and f"{given['annual_rate_pct']:.12g}%" in text
                assert f"{given['term_years']} year" in text
                rate, months = given["annual_rate_pct"] / 1200, 12 * given["term_years"]
                monthly = given["principal"] * rate / (1 - (1 + rate) ** -months)
                right = monthly if "monthly payment" in text else monthly * months - given["principal"]
                assert wanted == pytest.approx(round(right, 2))
            case "fact":
                assert f"the factorial of {given['n']}" in text
                assert wanted == factorial(given["n"])
            case "length_in":
                found = re.search(r"([\d.-]+) (m|km|miles?)\b.* in (m|km|miles?)\?", text)
                assert found is not None
                assert wanted == pytest.approx(float(found[1]) * METRES[found[2]] / METRES[found[3]])
            case _:
                continue
        assert accepted(task.verifier, f"It is {wanted}.", task.reference)
        assert not accepted(task.verifier, f"It is {wanted * 1.5 + 1}.", task.reference)


def test_comparisons_need_both_calls(tasks: list[McpScenario]) -> None:
    pairs = [task for task in tasks if task.level == "worked-out" and "case" in task.task_description]
    assert len(pairs) >= 5
    for task in pairs:
        assert len(task.reference) == 2 and task.verifier is not None
        expected: Any = task.verifier.expected
        other = "second" if expected[0] == "first" else "first"
        assert accepted(task.verifier, f"The {expected[0]}, by {expected[1]}.", task.reference)
        assert not accepted(task.verifier, f"The {other}, by {expected[1]}.", task.reference)


def answer_of(task: McpScenario) -> float:
    assert task.verifier is not None and isinstance(task.verifier.expected, int | float)
    return task.verifier.expected


def outcome(text: str, **arguments: Any) -> Outcome:
    return Outcome("t", arguments, text, read_answer(text, arguments))


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ('{"area": 12.5, "radius": 2}', {"radius": 2}, {"area": 12.5}),
        ("Gross Profit: $85.20\nRevenue: $88.40\nPrice/Unit: $93.10", {"revenue": 88.4},
         {"gross profit": 85.2, "price per unit": 93.1}),
        ('{"result": {"value": 7, "operation": "sqrt"}}', {"number": 49}, {"": 7}),
        ('{"word": "river", "reversed": "revir"}', {"word": "river"}, {"reversed": "revir"}),
        ('{"term": "1 years (12 months)"}', {"term_years": 1}, {}),
        ("5.0 km = 5000 m", {"value": 5, "to_unit": "m"}, {"": 5000}),
        ('{"count": "42"}', {"n": 3}, {"count": 42}),
        ('{"items": [{"size": 3}]}', {"n": 1}, {}),
        ('{"bsa_m2": 1.4}', {"n": 1}, {}),
        ('{"area": 3, "at": "2026-05-04T10:00:00Z"}', {"n": 1}, {}),
    ],
)  # fmt: skip
def test_a_part_is_asked_for_if_it_is_new_and_has_a_name(
    text: str, arguments: dict[str, Any], words: dict[str, Any]
) -> None:
    parts = list(parts_asked(outcome(text, **arguments)))
    assert {part.words: part.value for part in parts if part.words or not isinstance(part.value, str)} == words


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"principal": 1000, "annual_rate_pct": 4.5, "term_years": 30},
         "the principal is 1000, the annual rate is 4.5% and the term is 30 years"),
        ({"params": {"fixed_costs": 10, "term_years": 1}}, "the fixed costs are 10 and the term is 1 year"),
        ({"principal": 5, "years": 3}, "the principal is 5 and the number of years is 3"),
        ({"data": [3, 4.0, 9]}, "the data are 3, 4 and 9"),
        ({"a": 2, "text": "two words"}, "a is 2 and the text is 'two words'"),
        ({"xqz": 3}, None),
        ({"from_unit": "km"}, None),
    ],
)  # fmt: skip
def test_arguments_are_stated_in_the_words_of_their_names(arguments: dict[str, Any], said: str | None) -> None:
    assert said_arguments(arguments) == said


@pytest.mark.parametrize(
    ("arguments", "sensible"),
    [
        ({"weight_kg": 70, "height_cm": 181}, True),
        ({"weight_kg": 3, "height_cm": 181}, False),
        ({"principal": -5}, False),
        ({"temperature": -5}, True),
        ({"revenue": 88.123456789}, False),
        ({"x": 1e-9}, False),
        ({"x": math.inf}, False),
        ({"method": "a quiet child finds the blue boat"}, False),
        ({"text": "a quiet child finds the blue boat"}, True),
        ({"method": "straight_line"}, True),
        ({"filing_status": "river"}, True),
        ({"unit": "/tmp/x"}, False),
        ({"show_schedule": True}, False),
        ({}, False),
    ],
)
def test_people_would_ask_with_these_values(arguments: dict[str, Any], sensible: bool) -> None:
    schema = {"type": "object", "properties": {"filing_status": {"enum": ["river"]}}}
    assert is_sensible(Tool("t", "", schema), arguments) is sensible


@pytest.mark.parametrize(
    ("description", "noun"),
    [
        ("Calculate the area of a circle given its radius.", "area of a circle"),
        ("Calculate square root of a number", "square root of a number"),
        ("Returns the greatest common divisor of two integers", "greatest common divisor of two integers"),
        ("Add two numbers", ""),
        ("Plans a loan.", ""),
    ],
)
def test_a_description_says_what_a_tool_gives(description: str, noun: str) -> None:
    assert noun_of(Tool("t", description, {})) == noun


def test_a_noun_takes_the_values_in() -> None:
    assert of_its_input("square root of a number", {"number": 9}) == "the square root of 9"
    assert of_its_input("greatest common divisor of two integers", {"params": {"a": 12, "b": 18}}) == (
        "the greatest common divisor of 12 and 18"
    )
    assert of_its_input("median of a list of numbers", {"numbers": [3, 1, 2]}) == "the median of 3, 1 and 2"
    assert of_its_input("length of the text", {"text": "two words"}) == "the length of 'two words'"
    assert of_its_input("area of a circle", {"radius": 2}) is None
    assert of_its_input("square root of a number", {"number": 9, "root": 3}) is None
    assert of_its_input("sum of two numbers", {"a": 9, "b": 3, "precision": 2}) is None
    assert of_its_input("power of a number", {"number": 2, "mode": "fast"}) is None


@pytest.mark.parametrize(
    ("arguments", "noun"),
    [
        ({"data": [3, 4.0, 9], "operation": "stdev"}, "the standard deviation of 3, 4 and 9"),
        ({"a": 12, "b": 18, "op": "gcd"}, "the greatest common divisor of 12 and 18"),
        ({"x": 9, "function": "sqrt"}, "the square root of 9"),
        ({"data": [3], "operation": "mean"}, None),
        ({"data": [3, 4], "operation": "mean", "decimals": 2}, None),
        ({"data": [3, 4], "operation": "sqrt"}, None),
        ({"data": [3, 4], "operation": "kurtosis"}, None),
        ({"text": "two words", "operation": "sum"}, None),
        ({"data": [3, 4]}, None),
    ],
)
def test_the_operation_that_a_call_names_is_a_noun(arguments: dict[str, Any], noun: str | None) -> None:
    assert noun_of_operation(arguments) == noun


def test_what_holds_the_date_of_today_is_not_asked_for() -> None:
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    assert not list(parts_asked(outcome(f'{{"date": "{today}", "day_of_week": "Friday"}}', zone="Asia/Tokyo")))
    [part] = parts_asked(outcome('{"next_working_day": "2016-12-28"}', date="2016-12-27"))
    assert (part.words, part.value) == ("next working day", "2016-12-28")
    [part] = parts_asked(outcome('{"working_days": 12}', date="2016-12-27"))
    assert (part.words, part.unit, part.value) == ("working days", "", 12)


@pytest.mark.parametrize(
    ("text", "value", "plain"),
    [
        ('{"area": 12.0}', 12.0, True),
        ("Markup: 99.5%", 99.5, True),
        ("Profit: $85.20", 85.2, False),
        ("Profit: 1,835.00", 1835, False),
        ("3 m = 300.5 cm", 300, False),
    ],
)
def test_a_number_may_stand_plainly(text: str, value: float, plain: bool) -> None:
    assert stands_plainly(text, value) is plain


def test_a_conversion_is_asked_as_one() -> None:
    assert conversion({"value": 5, "from_unit": "mile", "to_unit": "km"}) == ("5 miles", "km")
    assert conversion({"value": 1, "from_unit": "mile", "to_unit": "inch", "unit_type": "length"}) == (
        "1 mile", "inches",
    )  # fmt: skip
    assert conversion({"value": 5, "from_unit": "km", "to_unit": "km"}) is None
    assert conversion({"value": 5, "from_unit": "km", "to_unit": "m", "digits": 3}) is None
    assert json.dumps(conversion({"start": 5, "end": 7})) == "null"
