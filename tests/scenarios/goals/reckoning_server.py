"""A server that reckons: one tool takes an expression, one converts a time of day, one is no calculator."""

import ast
import operator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from mcp.server.mcpserver import MCPServer

server = MCPServer("reckoning")
OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}  # fmt: skip


@server.tool()
def work_out(expression: str) -> str:
    """Work out an arithmetic expression."""

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        return getattr(node, "value", None)

    return f"Result: {value(ast.parse(expression, mode='eval').body)}"


@server.tool()
def shift_clock(source_timezone: str, time: str, target_timezone: str) -> dict[str, str]:
    """Tell a time of day in another time zone."""
    here = datetime.fromisoformat(f"2026-05-04T{time}").replace(tzinfo=ZoneInfo(source_timezone))
    return {"target": here.astimezone(ZoneInfo(target_timezone)).isoformat()}


@server.tool()
def check_sum(a: int, b: int) -> str:
    """Return a sum for checking, which is no sum."""
    return str(a * 7 % (b + 1))


if __name__ == "__main__":
    server.run()
