"""A calculator as an MCP server: `server.py --transport stdio|sse|streamable-http --host HOST --port PORT`.

All arithmetic is exact, on fractions: 0.1 + 0.2 is 0.3. A fractional result of more than 15 digits is rounded to 10
significant digits; whole numbers are never rounded. Anything that cannot be computed is a tool error in words.
"""

import gc

gc.disable()  # nothing that is imported is freed, and looking for it would be a fifth of the start

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import arithmetic
from expression import evaluate
from loopback import HOSTS, serve
from mcp.server import MCPServer
from mcp.types import CallToolResult, TextContent, Tool, ToolAnnotations

gc.freeze()
gc.enable()

NUMBER = {"type": "number"}
TWO = {"a": NUMBER, "b": NUMBER}


@dataclass(frozen=True)
class Operation:
    """A tool: its description for the model and its function."""

    name: str
    description: str
    properties: dict[str, dict[str, Any]]
    compute: Callable[..., Fraction]

    @property
    def tool(self) -> Tool:
        return Tool(
            name=self.name,
            description=self.description,
            input_schema={"type": "object", "properties": self.properties, "required": list(self.properties)},
            output_schema={"type": "object", "properties": {"result": NUMBER}, "required": ["result"]},
            annotations=ToolAnnotations(
                read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
            ),
        )


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("add", "Add two numbers: a + b.", TWO, lambda a, b: a + b),
        Operation("subtract", "Subtract b from a: a - b.", TWO, lambda a, b: a - b),
        Operation("multiply", "Multiply two numbers: a * b.", TWO, lambda a, b: a * b),
        Operation("divide", "Divide a by b: a / b.", TWO, arithmetic.divide),
        Operation(
            "power", "Raise base to exponent: base ** exponent.", {"base": NUMBER, "exponent": NUMBER}, arithmetic.power
        ),
        Operation("square_root", "Square root of a number.", {"number": NUMBER}, arithmetic.square_root),
        Operation(
            "evaluate",
            "Evaluate an expression of numbers, + - * / // % **, parentheses, sqrt() and abs().",
            {"expression": {"type": "string", "description": "For example (2 + 3) * 4"}},
            evaluate,
        ),
    )
}


class Calculator(MCPServer[Any]):
    """Lists and calls the operations. The schemas are hand-written, since the model reads every byte of them."""

    async def list_tools(self) -> list[Tool]:
        return [operation.tool for operation in OPERATIONS.values()]

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> CallToolResult:
        try:
            result = compute(name, arguments)
        except arithmetic.CalculatorError as error:
            return CallToolResult(content=[TextContent(type="text", text=str(error))], is_error=True)
        return CallToolResult(
            content=[TextContent(type="text", text=result)], structured_content={"result": arithmetic.as_json(result)}
        )


def compute(name: str, arguments: dict[str, Any]) -> str:
    """Return the result as text. Raises CalculatorError with a message for the model."""
    if name not in OPERATIONS:
        raise arithmetic.CalculatorError(f"There is no tool {name}.")
    operation = OPERATIONS[name]
    for argument in arguments:
        if argument not in operation.properties:
            raise arithmetic.CalculatorError(f"{name} has no argument {argument}.")
    values = {}
    for argument, schema in operation.properties.items():
        if argument not in arguments:
            raise arithmetic.CalculatorError(f"The argument {argument} is missing.")
        value = arguments[argument]
        values[argument] = arithmetic.exact(argument, value) if schema is NUMBER else value
    return arithmetic.as_text(operation.compute(**values))


def main() -> None:
    parser = argparse.ArgumentParser(description="A calculator that speaks MCP.")
    parser.add_argument("--transport", choices=["stdio", "sse", "streamable-http"], default="stdio")
    parser.add_argument("--host", choices=HOSTS, default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001)
    options = parser.parse_args()
    server = Calculator(
        "mcp_calculator",
        instructions="Exact arithmetic. Results that are no short decimals are rounded to 10 significant digits.",
        version="1.0.0",
        log_level="WARNING",
        subscriptions=False,
    )
    match options.transport:
        case "stdio":
            server.run("stdio")
        case "sse":
            serve(server.sse_app(host=options.host), options.host, options.port)
        case _:
            serve(server.streamable_http_app(host=options.host, json_response=True), options.host, options.port)


if __name__ == "__main__":
    main()
