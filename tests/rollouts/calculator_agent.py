"""An agent program as a user would write it: OpenAI's client, streamed, and the tools of an MCP address."""

import asyncio
import json
import os
from typing import Any

from mcp import Client
from openai import AsyncOpenAI


async def main() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": os.environ["MCP_RL_TASK"]}]
    async with AsyncOpenAI() as model, Client(os.environ["MCP_RL_MCP_URL"]) as server:
        tools = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description, "parameters": t.input_schema},
            }
            for t in (await server.list_tools()).tools
        ]
        while True:
            messages.append(said := await turn(model, messages=messages, tools=tools))
            if "tool_calls" not in said:
                print("This program is done.", said["content"], sep="\n")
                return
            for call in said["tool_calls"]:
                answer = await result(server, call["function"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": answer})


async def turn(model: AsyncOpenAI, **asked: Any) -> dict[str, Any]:
    """Put a turn together from the chunks of a stream."""
    content, calls = "", {}
    stream = await model.chat.completions.create(model="gpt-4.1-mini", temperature=0.2, top_p=0.9, stream=True, **asked)
    async for chunk in stream:
        delta = chunk.choices[0].delta
        content += delta.content or ""
        for part in delta.tool_calls or ():
            call = calls.setdefault(part.index, {"type": "function", "function": {"name": "", "arguments": ""}})
            call["id"] = part.id or call["id"]
            call["function"]["name"] += part.function.name or ""
            call["function"]["arguments"] += part.function.arguments or ""
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls.values())} if calls else {})}


async def result(server: Client, function: dict[str, str]) -> str:
    try:
        arguments = json.loads(function["arguments"])
    except ValueError as error:
        return f"The arguments are not valid JSON: {error}."
    called = await server.call_tool(function["name"], arguments)
    return "\n".join(part.text for part in called.content)


asyncio.run(main())
