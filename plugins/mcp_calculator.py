"""Offers the bundled calculator, with phrases that ask for each tool and samplers of plausible arguments."""

import random
from collections.abc import Callable
from typing import Any

from mcp_rl.plugins.hookspecs import hookimpl
from mcp_rl.toolserver.tool_server import ToolServer

Number = int | float

PHRASES = {
    "add": [
        "What is {a} plus {b}?",
        "Add {a} and {b}.",
        "Add {b} to {a}.",
        "What do {a} and {b} come to together?",
        "I have {a} and get {b} more. How many do I have now?",
        "What is the sum of {a} and {b}?",
        "Increase {a} by {b}.",
        "{a} + {b} = ?",
        "Please total {a} and {b}.",
        "How much is {b} on top of {a}?",
    ],
    "subtract": [
        "What is {a} minus {b}?",
        "Take {b} away from {a}.",
        "Subtract {b} from {a}.",
        "What is the difference when {b} is taken from {a}?",
        "I had {a} and spent {b}. What is left?",
        "Reduce {a} by {b}.",
        "{a} - {b} = ?",
        "How much is {a} less {b}?",
        "Start at {a} and go down by {b}. Where do you end?",
        "What must be added to {b} to get {a}?",
    ],
    "multiply": [
        "What is {a} times {b}?",
        "Multiply {a} by {b}.",
        "What is the product of {a} and {b}?",
        "{a} * {b} = ?",
        "How much are {a} lots of {b}?",
        "Multiply {a} and {b} together.",
        "A rectangle measures {a} by {b}. What is its area?",
        "Scale {a} by a factor of {b}.",
        "One costs {b}. What do {a} of them cost?",
        "Please work out {a} multiplied by {b}.",
    ],
    "divide": [
        "What is {a} divided by {b}?",
        "Divide {a} by {b}.",
        "How many times does {b} go into {a}?",
        "{a} / {b} = ?",
        "Split {a} into {b} equal parts. How big is each?",
        "What is the quotient of {a} and {b}?",
        "Share {a} equally among {b}.",
        "What is {a} over {b}?",
        "How many groups of {b} are there in {a}?",
        "What times {b} makes {a}?",
    ],
    "power": [
        "What is {base} to the power of {exponent}?",
        "Raise {base} to the power {exponent}.",
        "{base} ** {exponent} = ?",
        "What is {base} raised to {exponent}?",
        "Compute {base}^{exponent}.",
        "Take the power with base {base} and exponent {exponent}.",
        "With exponent {exponent}, what does the base {base} give?",
        "What is power {exponent} of {base}?",
        "Multiply {base} by itself so that it appears {exponent} times.",
    ],
    "square_root": [
        "What is the square root of {number}?",
        "Find the root of {number}.",
        "Which number times itself is {number}?",
        "sqrt({number}) = ?",
        "A square has an area of {number}. How long is its side?",
        "Take the square root of {number}.",
        "Work out the square root for {number}.",
        "What positive number squared gives {number}?",
    ],
    "evaluate": [
        "What is {expression}?",
        "Evaluate {expression}.",
        "Work out {expression}.",
        "{expression} = ?",
        "Calculate {expression} for me.",
        "What does {expression} come to?",
        "Compute the value of {expression}.",
        "Please solve {expression}.",
        "How much is {expression}?",
    ],
}


def number(random: random.Random) -> Number:
    """Return a number of up to four digits; one in six is a decimal, one in six negative."""
    value: Number = random.randrange(1, 10 ** random.choice((1, 2, 2, 3, 3, 4)))
    if random.random() < 1 / 6:
        value = float(f"{value // 10}.{random.randrange(1, 10)}")
    return -value if random.random() < 1 / 6 else value


def two(random: random.Random) -> dict[str, Any]:
    return {"a": number(random), "b": number(random)}


def factors(random: random.Random) -> dict[str, Any]:
    """Return two factors with a product of at most six digits in most cases, so that the answer stays short."""
    return {"a": number(random), "b": random.randrange(2, 100) if random.random() < 0.8 else number(random)}


def division(random: random.Random) -> dict[str, Any]:
    """Return a division whose result is mostly whole, sometimes a short decimal, rarely an endless one."""
    kind = random.random()
    if kind < 0.65:
        divisor = random.randrange(2, 100)
        return {"a": divisor * random.randrange(2, 200), "b": divisor}
    if kind < 0.9:
        return {"a": random.randrange(1, 1000), "b": random.choice((2, 4, 5, 8, 10, 20, 25))}
    return {"a": random.randrange(1, 1000), "b": random.randrange(3, 100)}


def powers(random: random.Random) -> dict[str, Any]:
    exponent = random.randrange(2, 7)
    return {"base": random.randrange(2, {2: 100, 3: 30}.get(exponent, 10)), "exponent": exponent}


def squares(random: random.Random) -> dict[str, Any]:
    """Return a number; three in four are perfect squares."""
    return {"number": random.randrange(2, 400) ** 2 if random.random() < 0.75 else random.randrange(2, 5000)}


def expressions(random: random.Random) -> dict[str, Any]:
    """Return an expression of two or three operators, often with parentheses."""
    terms = [str(random.randrange(2, random.choice((10, 100)))) for _ in range(random.choice((3, 3, 4)))]
    operators = [random.choice("+-*") for _ in terms[1:]]
    if random.random() < 0.7:
        first = random.randrange(len(terms) - 1)
        terms[first], terms[first + 1] = "(" + terms[first], terms[first + 1] + ")"
    words = [terms[0]]
    for sign, term in zip(operators, terms[1:], strict=True):
        words += [sign, term]
    return {"expression": " ".join(words)}


SAMPLERS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "add": two,
    "subtract": two,
    "multiply": factors,
    "divide": division,
    "power": powers,
    "square_root": squares,
    "evaluate": expressions,
}


@hookimpl
def register_servers(register: Callable[[ToolServer], None]) -> None:
    register(
        ToolServer.from_script(
            "mcp_calculator",
            "Exact arithmetic: add, subtract, multiply, divide, power, square root, expressions.",
            "{bundled}/servers/python/mcp_calculator/server.py",
            phrases=PHRASES,
            argument_samplers=SAMPLERS,
        )
    )
