"""A server that reckons: one tool takes an expression, one converts a time of day, one is no calculator."""

import ast
import json
import operator
import sys
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

sys.path.insert(0, str(Path(__file__).parents[1]))
from by_hand import Refused, serve, tool

TOOLS = [
    tool("work_out", "Work out an arithmetic expression.", expression="string"),
    tool(
        "shift_clock", "Tell a time of day in another time zone.",
        source_timezone="string", time="string", target_timezone="string",
    ),
    tool("check_sum", "Return a sum for checking, which is no sum.", a="integer", b="integer"),
]  # fmt: skip
OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}  # fmt: skip


def work_out(expression: str) -> str:
    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        return getattr(node, "value", None)

    return f"Result: {value(ast.parse(expression, mode='eval').body)}"


def shift_clock(source_timezone: str, time: str, target_timezone: str) -> str:
    here = datetime.fromisoformat(f"2026-05-04T{time}").replace(tzinfo=ZoneInfo(source_timezone))
    return json.dumps({"target": here.astimezone(ZoneInfo(target_timezone)).isoformat()})


def check_sum(a: int, b: int) -> str:
    return str(a * 7 % (b + 1))


def call(name: str, given: dict[str, Any]) -> str:
    try:
        return {"work_out": work_out, "shift_clock": shift_clock, "check_sum": check_sum}[name](**given)
    except Exception as error:
        raise Refused(f"Error executing tool {name}: {error}") from error


if __name__ == "__main__":
    serve("reckoning", TOOLS, call)
