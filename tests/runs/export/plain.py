"""Load exported folders as their model cards say, and let them call the calculator, without mcp_rl.

    python plain.py SERVER FOLDER…

Prints JSON: for each folder its calls with their results, and the logits of a few tokens.
"""

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

REQUESTS = [
    "With a = 43 and b = 5, what is the result of multiply?",
    "Use add with a = 3 and b = 4.",
]


def card_of(folder: str) -> str:
    return (Path(folder) / "README.md").read_text(encoding="utf-8")


async def main(server: str, folders: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    command = StdioServerParameters(command=sys.executable, args=[server, "--transport", "stdio"])
    async with stdio_client(command) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        listed = (await session.list_tools()).tools
        tools = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description, "parameters": t.input_schema},
            }
            for t in listed
        ]
        for folder in folders:
            os.chdir(folder)
            names: dict[str, Any] = {}
            code = re.findall(r"```python\n(.*?)```", card_of(folder), re.DOTALL)[0]
            exec(code.partition("\ntools = ")[0], names)  # loads the model
            model, tokenizer = names["model"], names["tokenizer"]
            calls = []
            for request in REQUESTS:
                inputs = tokenizer.apply_chat_template(
                    [{"role": "user", "content": request}],
                    tools=tools,
                    add_generation_prompt=True,
                    return_tensors="pt",
                    return_dict=True,
                )
                said = model.generate(**inputs, max_new_tokens=40, do_sample=False)
                text = tokenizer.decode(said[0, inputs["input_ids"].shape[1] :])
                for body in re.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL):
                    asked = json.loads(body)
                    answer = await session.call_tool(asked["name"], asked["arguments"])
                    calls.append(
                        [asked["name"], asked["arguments"], getattr(answer.content[0], "text", None), answer.is_error]
                    )
            with torch.no_grad():
                logits = model.double()(input_ids=torch.arange(20, 60)[None]).logits[0]
            found[folder] = {"calls": calls, "ends": text.endswith(tokenizer.eos_token), "logits": logits.tolist()}
    return {"folders": found, "modules": sorted(name for name in sys.modules if name.split(".")[0] == "mcp_rl")}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], sys.argv[2:]))))
