"""A plain loop over OpenAI's client, streamed, with tools of its own."""

import json
import operator
import os

from openai import OpenAI

TOOLS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv}
NUMBERS = {"a": {"type": "number"}, "b": {"type": "number"}}
PARAMETERS = {"type": "object", "properties": NUMBERS, "required": ["a", "b"]}
SCHEMAS = [
    {"type": "function", "function": {"name": name, "description": tool.__doc__, "parameters": PARAMETERS}}
    for name, tool in TOOLS.items()
]


def result(call) -> str:
    try:
        given = json.loads(call.function.arguments)
        return str(TOOLS[call.function.name](given["a"], given["b"]))
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        return f"Error: {error!r}"


client, messages = OpenAI(), [{"role": "user", "content": os.environ["MCP_RL_TASK"]}]
while True:
    with client.chat.completions.stream(model="any", messages=messages, tools=SCHEMAS) as stream:
        said = stream.get_final_completion().choices[0].message
    messages.append(said.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
    if not said.tool_calls:
        break
    for call in said.tool_calls:
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result(call)})
print(said.content)
