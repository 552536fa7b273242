"""smolagents, whose agent hands its answer in with a call of its own tool, final_answer."""

import os

from smolagents import OpenAIModel, ToolCallingAgent, ToolCollection

model = OpenAIModel("any", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
server = {"url": os.environ["MCP_RL_MCP_URL"], "transport": "streamable-http"}
with ToolCollection.from_mcp(server, trust_remote_code=True) as tools:
    agent = ToolCallingAgent([*tools.tools], model, max_steps=3, verbosity_level=0)
    print(agent.run(os.environ["MCP_RL_TASK"]))
