"""From TRL: a Python function as a tool, a reward function, rows of data. `python examples/from_trl.py [STEPS]`."""

import asyncio
import sys

import mcp_rl as rl


def multiply(a: float, b: float) -> float:
    """Multiply two numbers: a * b."""
    return a * b


def correct(trajectory: rl.Trajectory, row: rl.McpScenario) -> float:
    return float(str(row.verifier.expected) in (trajectory.final_answer or ""))


def row(a: int, b: int) -> rl.McpScenario:
    tools, check = rl.python_tools(multiply, read_only=True), rl.Verifier(kind="correct", expected=a * b)
    return rl.McpScenario(task_description=f"What is {a} times {b}?", server_params=tools, verifier=check)


async def train(steps: int) -> None:
    model = rl.TrainableModel(name="calculator", project="from-trl", base_model="mcp-rl/tiny")
    async with rl.LocalBackend() as backend, rl.Sessions():
        await model.register(backend)
        for step in range(await model.get_step(), steps):
            groups = [rl.TrajectoryGroup(rl.rollout(model, row(12 + step, b)) for _ in range(8)) for b in (3, 7, 25)]
            played = await rl.gather_trajectory_groups(groups)
            scored = [await rl.verify_group(group, {"correct": correct}) for group in played]
            result = await backend.train(model, scored)
            print(f"step {result.step}: mean reward {sum(r for g in scored for r in g.rewards) / 24:.2f}")


if __name__ == "__main__":
    asyncio.run(train(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
