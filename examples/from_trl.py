"""From TRL: a Python function as a tool, a reward function, rows of data. Run `python examples/from_trl.py [STEPS]`.

GRPOTrainer(model, reward_funcs=correct, tools=[multiply], train_dataset=rows).train() becomes `train` below.
"""

import asyncio
import sys

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

import mcp_rl as rl


def multiply(a: float, b: float) -> float:
    """Multiply two numbers: a * b."""
    return a * b


def correct(trajectory: rl.Trajectory, row: rl.McpScenario) -> float:
    return float(str(row.verifier.expected) in (trajectory.final_answer or ""))


TOOLS = rl.StdioServer(command="{python}", args=(__file__, "serve"))  # this file, as an MCP server


def row(a: int, b: int) -> rl.McpScenario:
    expected = rl.Verifier(kind="correct", expected=a * b)
    return rl.McpScenario(task_description=f"What is {a} times {b}?", server_params=TOOLS, verifier=expected)


async def train(steps: int) -> None:
    model = rl.TrainableModel(name="calculator", project="from-trl", base_model="mcp-rl/tiny")
    async with rl.LocalBackend() as backend, rl.Sessions():
        await model.register(backend)
        for step in range(await model.get_step(), steps):
            rows = [row(12 + step, b) for b in (3, 7, 25)]
            tries = (rl.TrajectoryGroup(rl.rollout(model, task) for _ in range(8)) for task in rows)
            groups = await rl.gather_trajectory_groups(
                tries, after_each=lambda g: rl.verify_group(g, {"correct": correct})
            )
            result = await backend.train(model, groups)
            print(f"step {result.step}: mean reward {sum(r for g in groups for r in g.rewards) / 24:.2f}")


if sys.argv[1:] == ["serve"]:
    server = MCPServer("calculator")
    server.add_tool(multiply, annotations=ToolAnnotations(read_only_hint=True))  # so all episodes share one process
    server.run()
else:
    asyncio.run(train(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
