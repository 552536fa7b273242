"""openai-agents, which asks by Responses."""

import asyncio
import os

from agents import Agent, Runner, set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp

set_tracing_disabled(True)


async def main() -> None:
    async with MCPServerStreamableHttp({"url": os.environ["MCP_RL_MCP_URL"]}) as server:
        agent = Agent(name="Calculator", model="any", mcp_servers=[server])
        print((await Runner.run(agent, os.environ["MCP_RL_TASK"])).final_output)


asyncio.run(main())
