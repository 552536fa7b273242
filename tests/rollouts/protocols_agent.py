"""An agent program without any package: `protocols_agent.py responses|continued|messages`, with the tools of the MCP
address. `continued` sends only what is new, and the id of the response before."""

import http.client
import json
import os
import sys
from typing import Any
from urllib.parse import urlsplit

WAY = sys.argv[1]
KEY = os.environ["ANTHROPIC_API_KEY" if WAY == "messages" else "OPENAI_API_KEY"]
MCP = urlsplit(os.environ["MCP_RL_MCP_URL"])
HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    **({"x-api-key": KEY} if WAY == "messages" else {"Authorization": f"Bearer {KEY}"}),
}


def main() -> None:
    task, tools = os.environ["MCP_RL_TASK"], mcp("tools/list")["tools"]
    print(messages(task, tools) if WAY == "messages" else responses(task, tools))


def responses(task: str, tools: list[dict[str, Any]]) -> str:
    schemas = [
        {"type": "function", "name": t["name"], "description": t["description"], "parameters": t["inputSchema"]}
        for t in tools
    ]
    history: list[Any] = [{"role": "user", "content": task}]
    more: dict[str, Any] = {}
    while True:
        output = post("/v1/responses", {"model": "gpt-5", "input": history, "tools": schemas, **more})
        calls = [item for item in output["output"] if item["type"] == "function_call"]
        if not calls:
            return str(output["output"][-1]["content"][0]["text"])
        results = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": call_tool(call["name"], read(call))}
            for call in calls
        ]
        history = results if WAY == "continued" else [*history, *output["output"], *results]
        more = {"previous_response_id": output["id"]} if WAY == "continued" else {}


def messages(task: str, tools: list[dict[str, Any]]) -> str:
    schemas = [{"name": t["name"], "description": t["description"], "input_schema": t["inputSchema"]} for t in tools]
    history: list[Any] = [{"role": "user", "content": task}]
    while True:
        asked = {"model": "claude", "max_tokens": 500, "messages": history, "tools": schemas}
        said = post("/v1/messages", asked)["content"]
        calls = [block for block in said if block["type"] == "tool_use"]
        if not calls:
            return str(said[-1]["text"])
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": call_tool(call["name"], call["input"])}
            for call in calls
        ]
        history += [{"role": "assistant", "content": said}, {"role": "user", "content": results}]


def read(call: dict[str, Any]) -> Any:
    return json.loads(call["arguments"])


def call_tool(name: str, arguments: Any) -> str:
    return "\n".join(part["text"] for part in mcp("tools/call", name=name, arguments=arguments)["content"])


def mcp(method: str, **params: Any) -> Any:
    return post(MCP.path, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})["result"]


def post(path: str, body: dict[str, Any]) -> Any:
    connection = http.client.HTTPConnection(str(MCP.hostname), MCP.port)
    connection.request("POST", path, json.dumps(body), HEADERS)
    return json.load(connection.getresponse())


main()
