"""The Hermes format described in the system prompt, for models whose templates show no tools or whose calls cannot be
parsed.

The system prompt lists the tools in the wording of Qwen2.5's template; calls are text of the assistant, and results
text of the user. So any template that renders a plain conversation will do.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp_rl.inference.chat.dialects.hermes import CLOSE, OPEN

if TYPE_CHECKING:
    from collections.abc import Sequence

Message = dict[str, Any]

_TOLD = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def in_prompt(messages: Sequence[Message], tools: Sequence[dict[str, Any]], *, system: bool = True) -> list[Message]:
    """Convert messages to plain text ones that say the same. `system`: whether the template has a system role."""
    told: list[Message] = []
    for message in messages:
        role, content = str(message["role"]), str(message.get("content") or "")
        if role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
        elif role == "assistant":
            content = "\n".join(filter(None, [content, *map(_call, message.get("tool_calls") or ())]))
        if role == "user" and told and told[-1]["role"] == "user":
            told[-1]["content"] += f"\n{content}"
        else:
            told.append({"role": role, "content": content})
    if tools:
        if not told or told[0]["role"] != "system":
            told.insert(0, {"role": "system", "content": ""})
        about = _TOLD.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        told[0]["content"] = "\n\n".join(filter(None, [told[0]["content"], about]))
    if not system and len(told) > 1 and told[0]["role"] == "system" and told[1]["role"] == "user":
        first = told.pop(0)["content"]
        told[0]["content"] = f"{first}\n\n{told[0]['content']}"
    return told


def _call(call: Message) -> str:
    function = call["function"]
    body = json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
    return f"{OPEN}\n{body}\n{CLOSE}"
