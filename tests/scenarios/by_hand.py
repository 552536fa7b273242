"""A hand-written MCP server on stdio, for tests that start many servers: importing the SDK takes a second in each.

`python -S SCRIPT` runs a script that uses only this module and the standard library.
"""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

JSON = dict[str, Any]


class Refused(Exception):
    """An error of a tool, in words for the model."""


def tool(
    name: str, description: str, annotations: JSON | None = None, /, *, output: str = "", **arguments: str
) -> JSON:
    """Return a tool with these required arguments, name to type; `output` is the type of its structured result."""
    listed: JSON = {"name": name, "description": description, "inputSchema": schema(arguments)}
    if annotations:
        listed["annotations"] = annotations
    return {**listed, "outputSchema": schema({"result": output})} if output else listed


def schema(types: dict[str, str]) -> JSON:
    properties = {name: {"type": type} for name, type in types.items()}
    return {"type": "object", "properties": properties, "required": list(properties)}


def serve(
    name: str, tools: Sequence[JSON], call: Callable[[str, JSON], object], resources: Sequence[JSON] = ()
) -> None:
    """Serve until standard input ends. A call that returns None is never answered."""
    structured = {tool["name"] for tool in tools if "outputSchema" in tool}

    def answer(method: str, params: JSON) -> JSON | None:
        match method:
            case "initialize":
                offered = {"tools": {}, **({"resources": {}} if resources else {})}
                about = {"name": name, "version": "1"}
                return {"protocolVersion": params["protocolVersion"], "capabilities": offered, "serverInfo": about}
            case "tools/list":
                return {"tools": list(tools)}
            case "resources/list":
                return {"resources": list(resources)}
            case "resources/templates/list":
                return {"resourceTemplates": []}
            case "ping":
                return {}
            case "tools/call":
                return called(params["name"], params.get("arguments") or {})
        raise NotImplementedError(method)

    def called(tool: str, arguments: JSON) -> JSON | None:
        try:
            result = call(tool, arguments)
        except Refused as refused:
            return {"content": [{"type": "text", "text": str(refused)}], "isError": True}
        if result is None:
            return None
        if isinstance(result, list) and result and isinstance(result[0], dict) and "mimeType" in result[0]:
            return {"content": result}
        if isinstance(result, dict):
            return {"content": [{"type": "text", "text": json.dumps(result)}], "structuredContent": result}
        found: JSON = {"content": [{"type": "text", "text": str(result)}]}
        return {**found, "structuredContent": {"result": result}} if tool in structured else found

    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        reply: JSON = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            result = answer(message["method"], message.get("params") or {})
        except NotImplementedError as error:
            reply["error"] = {"code": -32601, "message": f"There is no method {error}."}
        else:
            if result is None:
                continue
            reply["result"] = result
        print(json.dumps(reply), flush=True)
