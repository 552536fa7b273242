"""LangGraph, with the tools of an MCP server."""

import asyncio
import os

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_openai import ChatOpenAI


async def main() -> None:
    servers = MultiServerMCPClient({"calc": {"transport": "streamable_http", "url": os.environ["MCP_RL_MCP_URL"]}})
    agent = create_agent(ChatOpenAI(model="any"), await servers.get_tools())
    task = {"role": "user", "content": os.environ["MCP_RL_TASK"]}
    print((await agent.ainvoke({"messages": [task]}))["messages"][-1].text)


asyncio.run(main())
