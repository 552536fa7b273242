"""The bundled calculator: its arithmetic, its errors, and its plugin's phrases and samplers."""

import importlib
import json
import random
import string
import sys
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_rl.plugins.manager import load_plugins
from mcp_rl.scenario import SseServer, StdioServer
from mcp_rl.toolserver.bundled import bundled_root


@pytest.fixture(scope="module")
def calculator():
    folder = str(bundled_root() / "servers/python/mcp_calculator")
    sys.path.insert(0, folder)
    try:
        yield importlib.import_module("server")
    finally:
        sys.path.remove(folder)
        for name in ("server", "arithmetic", "expression"):
            sys.modules.pop(name, None)


def two(a, b):
    return {"a": a, "b": b}


def expression(text):
    return {"expression": text}


@pytest.mark.parametrize(
    ("tool", "arguments", "result"),
    [
        ("add", two(0.1, 0.2), "0.3"),
        ("add", two(2, 3), "5"),
        ("add", two(2.0, 3), "5"),
        ("add", two(10**40, 1), "1" + "0" * 39 + "1"),
        ("subtract", two(0.3, 0.1), "0.2"),
        ("subtract", two(1, 1), "0"),
        ("multiply", two(1.5, -2), "-3"),
        ("multiply", two(1e-7, 1e-7), "1e-14"),
        ("divide", two(7, 2), "3.5"),
        ("divide", two(1, 3), "0.3333333333"),
        ("divide", two(-2, 3), "-0.6666666667"),
        ("divide", two(1, 1024), "0.0009765625"),
        ("divide", two(10**14, 3), "33333333333333"),
        ("divide", two(2 * 10**18, 3), "666666666666666667"),
        ("power", {"base": 2, "exponent": 10}, "1024"),
        ("power", {"base": 2, "exponent": -2}, "0.25"),
        ("power", {"base": 2, "exponent": 0.5}, "1.414213562"),
        ("power", {"base": 0, "exponent": 0}, "1"),
        ("power", {"base": -2, "exponent": 3}, "-8"),
        ("power", {"base": 1, "exponent": 1000}, "1"),
        ("square_root", {"number": 144}, "12"),
        ("square_root", {"number": 0.25}, "0.5"),
        ("square_root", {"number": 2}, "1.414213562"),
        ("evaluate", expression("(2 + 3) * 4 - 6 / 4"), "18.5"),
        ("evaluate", expression("0.1 + 0.2"), "0.3"),
        ("evaluate", expression("0.12345678901234567890 * 10**20"), "12345678901234567890"),
        ("evaluate", expression("-7 // 2 + 7 % 3"), "-3"),
        ("evaluate", expression("sqrt(2) * sqrt(2)"), "2"),
        ("evaluate", expression("8 ** (1/3)"), "2"),
        ("evaluate", expression("abs(-3) \N{MULTIPLICATION SIGN} 2"), "6"),
        ("evaluate", expression("+".join("1" * 100)), "100"),
    ],
)
def test_results_are_exact_and_short(calculator, tool, arguments, result):
    assert calculator.compute(tool, arguments) == result


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("divide", two(1, 0), "Division by zero"),
        ("power", {"base": 0, "exponent": -1}, "Division by zero"),
        ("evaluate", expression("1 % 0"), "Division by zero"),
        ("power", {"base": 10, "exponent": 200}, "Overflow"),
        ("power", {"base": 0.1, "exponent": 200}, "Underflow"),
        ("multiply", two(1e60, 1e60), "Overflow"),
        ("add", two(10**5000, 1), "Overflow"),
        ("evaluate", expression("1e999999999"), "Overflow"),
        ("evaluate", expression("1e-999999999"), "Underflow"),
        ("evaluate", expression("1.5e99999999999999999999"), "Cannot read"),
        ("power", {"base": 2, "exponent": 10**9}, "exponent is too large"),
        ("evaluate", expression("9**9**9**9"), "exponent is too large"),
        ("power", {"base": -2, "exponent": 0.5}, "Not a real number"),
        ("square_root", {"number": -1}, "Not a real number"),
        ("add", two(float("inf"), 1), "not a finite number"),
        ("add", two(float("nan"), 1), "not a finite number"),
        ("add", two("1", 1), "a must be a number, not '1'"),
        ("add", two(True, 1), "a must be a number"),
        ("add", two(None, 1), "a must be a number"),
        ("add", {"a": 1}, "argument b is missing"),
        ("add", {"a": 1, "b": 2, "c": 3}, "no argument c"),
        ("evaluate", {"expression": 5}, "must be a string"),
        ("evaluate", expression(""), "is empty"),
        ("evaluate", expression("2 +"), "Cannot read the expression"),
        ("evaluate", expression("1" * 201), "too long"),
        ("evaluate", expression("-" * 150 + "1"), "nested too deeply"),
        ("evaluate", expression("(" * 150 + "1"), "Cannot read"),
        ("evaluate", expression("2 ^ 3"), "write ** instead of ^"),
        ("evaluate", expression("__import__('os').system('true')"), "Not allowed"),
        ("evaluate", expression("().__class__"), "Not allowed"),
        ("evaluate", expression("[x for x in (1,)]"), "Not allowed"),
        ("evaluate", expression("1 if True else 2"), "Not allowed"),
        ("evaluate", expression("sqrt(1, 2)"), "Not allowed"),
        ("evaluate", expression("'a' * 9"), "Not allowed"),
        ("evaluate", expression("1j"), "Not allowed"),
        ("evaluate", expression("1\x00"), "Cannot read"),
        ("modulo", two(1, 2), "no tool modulo"),
    ],
)
def test_what_cannot_be_computed_is_said_in_words(calculator, tool, arguments, words):
    with pytest.raises(calculator.arithmetic.CalculatorError, match=None) as error:
        calculator.compute(tool, arguments)
    assert words in str(error.value)


THOUSANDTHS = st.integers(-(10**9), 10**9).map(lambda n: Decimal(n) / 1000)


@given(a=THOUSANDTHS, b=THOUSANDTHS)
def test_decimals_are_exact_up_to_fifteen_digits(calculator, a, b):
    for tool, expected in (("add", a + b), ("multiply", a * b)):
        text = calculator.compute(tool, two(float(a), float(b)))
        if len(expected.normalize().as_tuple().digits) <= 15:
            assert Decimal(text) == expected
        else:
            assert abs(Decimal(text) - expected) <= abs(expected) / 10**9


@given(text=st.text(alphabet=string.digits + "+-*/%().e sqrtab_[]{}:,'", max_size=40))
def test_any_text_is_evaluated_or_refused_in_words(calculator, text):
    try:
        float(calculator.compute("evaluate", expression(text)))
    except calculator.arithmetic.CalculatorError as error:
        assert str(error)


def test_its_schemas_waste_no_bytes(calculator):
    text = json.dumps(
        [op.tool.model_dump(by_alias=True, exclude_none=True)["inputSchema"] for op in calculator.OPERATIONS.values()]
    )
    assert "title" not in text
    assert len(text) < 1000


@pytest.fixture(scope="module")
def server():
    return load_plugins().server("mcp_calculator")


def test_every_tool_has_phrases_with_all_its_arguments(calculator, server):
    for name, operation in calculator.OPERATIONS.items():
        phrases = server.phrases[name]
        assert 8 <= len(set(phrases)) == len(phrases) <= 12
        for phrase in phrases:
            fields = {field for _, field, _, _ in string.Formatter().parse(phrase) if field}
            assert fields == operation.properties.keys(), phrase
    orders = {phrase.index("{a}") < phrase.index("{b}") for phrase in server.phrases["subtract"]}
    assert orders == {True, False}


def test_sampled_arguments_can_be_computed_and_vary(calculator, server):
    generator = random.Random(0)
    for name in calculator.OPERATIONS:
        drawn = [server.argument_samplers[name](generator) for _ in range(200)]
        results = [calculator.compute(name, arguments) for arguments in drawn]
        assert len({json.dumps(arguments) for arguments in drawn}) > 100 or name == "power"
        assert max(map(len, results)) <= 14
    values = [server.argument_samplers["add"](generator)["a"] for _ in range(300)]
    assert any(value < 0 for value in values)
    assert any(isinstance(value, float) and value != int(value) for value in values)
    assert max(values) > 999


def test_samples_depend_on_the_seed_alone(server):
    for sampler in server.argument_samplers.values():
        assert [sampler(random.Random(5)) for _ in range(3)] == [sampler(random.Random(5)) for _ in range(3)]


def test_the_configuration_for_the_inspector_names_its_servers():
    config = json.loads((bundled_root() / "config.json").read_text())["mcpServers"]
    everything = {key: value for key, value in config["everything"].items() if key != "type"}
    assert SseServer(transport=config["everything"]["type"], **everything).url == "http://localhost:8001/sse"
    calculator = {key: value for key, value in config["mcp_calculator"].items() if key != "type"}
    params = StdioServer(transport=config["mcp_calculator"]["type"], **calculator)
    assert all((bundled_root() / script).is_file() for script in params.args[:2])
