"""pydantic-ai."""

import os

from pydantic_ai import Agent

agent = Agent("openai-chat:any")


@agent.tool_plain
def add(a: float, b: float) -> float:
    """Add two numbers: a + b."""
    return a + b


@agent.tool_plain
def subtract(a: float, b: float) -> float:
    """Subtract b from a: a - b."""
    return a - b


@agent.tool_plain
def multiply(a: float, b: float) -> float:
    """Multiply two numbers: a * b."""
    return a * b


@agent.tool_plain
def divide(a: float, b: float) -> float:
    """Divide a by b: a / b."""
    return a / b


print(agent.run_sync(os.environ["MCP_RL_TASK"]).output)
