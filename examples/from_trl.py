"""For those who come from TRL: Python functions as tools, a reward function, a data set.

    python examples/from_trl.py [STEPS]

GRPOTrainer(model, reward_funcs=correct, tools=[multiply, add], train_dataset=rows, args=GRPOConfig(num_generations=8))
becomes the loop below. This file is its own tool server: started with --serve, it offers the functions over MCP.
"""

import asyncio
import random
import sys

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

import mcp_rl as rl


def multiply(a: float, b: float) -> float:
    """Multiply two numbers: a * b."""
    return a * b


def add(a: float, b: float) -> float:
    """Add two numbers: a + b."""
    return a + b


def correct(trajectory: rl.Trajectory, scenario: rl.McpScenario) -> float:
    """The reward, 0 to 1: the answer names the row's number."""
    assert scenario.verifier is not None
    return float(str(scenario.verifier.expected) in (trajectory.final_answer or ""))


def row(numbers: random.Random) -> rl.McpScenario:
    a, b = numbers.randint(2, 99), numbers.randint(2, 99)
    tools = rl.StdioServer(command="{python}", args=(__file__, "--serve"))
    expected = rl.Verifier(kind="correct", expected=a * b)
    return rl.McpScenario(task_description=f"What is {a} times {b}?", server_params=tools, verifier=expected)


async def train(steps: int) -> None:
    numbers = random.Random(0)
    model = rl.TrainableModel(name="calculator", project="from-trl", base_model="mcp-rl/tiny")
    async with rl.LocalBackend() as backend, rl.Sessions():
        await model.register(backend)
        for _ in range(await model.get_step(), steps):
            rows = [row(numbers) for _ in range(4)]
            groups = await rl.gather_trajectory_groups(
                (rl.TrajectoryGroup(rl.rollout(model, task) for _ in range(8)) for task in rows),
                after_each=lambda group: rl.verify_group(group, {"correct": correct}),
                max_exceptions=0.1,
            )
            result = await backend.train(model, groups)
            await model.log(groups, split="train", step=result.step, metrics=result.metrics)
            print(f"step {result.step}: mean reward {sum(r for g in groups for r in g.rewards) / 32:.2f}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        server = MCPServer("calculator")
        for tool in (multiply, add):  # nothing to reset between episodes, so that all share one process
            server.add_tool(tool, annotations=ToolAnnotations(read_only_hint=True))
        server.run()
    else:
        asyncio.run(train(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
