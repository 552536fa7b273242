"""For those who come from verifiers: a taskset with its reward, evaluated, trained, evaluated again.

    python examples/from_verifiers.py [STEPS]

A task is a scenario, a toolset a server, `@vf.reward` a verifier, and the trainer is here rather than in prime-rl.
"""

import asyncio
import random
import sys
from collections.abc import Iterator

import mcp_rl as rl

SERVER = "{bundled}/servers/python/mcp_calculator/server.py"
TOOLSET = rl.StdioServer(command="{python}", args=(SERVER, "--transport", "stdio"))


def load(seed: int) -> Iterator[rl.McpScenario]:
    """Yield tasks without end, as Taskset.load does."""
    numbers = random.Random(seed)
    while True:
        a, b = numbers.randint(2, 99), numbers.randint(2, 99)
        answer = rl.Verifier(kind="exact_match", expected=a - b)
        yield rl.McpScenario(task_description=f"What is {a} minus {b}?", server_params=TOOLSET, verifier=answer)


async def exact_match(trajectory: rl.Trajectory, task: rl.McpScenario) -> float:
    """Reward a trajectory (a trace) whose last reply has the answer."""
    assert task.verifier is not None
    return float(str(task.verifier.expected) in (trajectory.final_answer or "").rstrip(".").split())


async def play(model: rl.TrainableModel, tasks: list[rl.McpScenario], times: int) -> list[rl.TrajectoryGroup]:
    groups = (rl.TrajectoryGroup(rl.rollout(model, task) for _ in range(times)) for task in tasks)
    return await rl.gather_trajectory_groups(
        groups, after_each=lambda group: rl.verify_group(group, {"exact_match": exact_match}), max_exceptions=0.1
    )


async def main(steps: int) -> None:
    train, held_out = load(seed=0), load(seed=1)
    tested = [next(held_out) for _ in range(12)]
    model = rl.TrainableModel(name="subtraction", project="from-verifiers", base_model="mcp-rl/tiny")
    async with rl.LocalBackend() as backend, rl.Sessions():
        await model.register(backend)
        for step in range(await model.get_step(), steps + 1):
            if step in (0, steps):
                rewards = [reward for group in await play(model, tested, 2) for reward in group.rewards]
                print(f"step {step}: mean reward on held-out tasks {sum(rewards) / len(rewards):.2f}")
            if step < steps:
                await backend.train(model, await play(model, [next(train) for _ in range(4)], 8))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
