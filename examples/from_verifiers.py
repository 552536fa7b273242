"""From verifiers: a taskset with its reward, evaluated before and after. `python examples/from_verifiers.py [STEPS]`.

A task is a scenario, a toolset a server, `@vf.reward` a verifier, and the trainer is here rather than in prime-rl.
"""

import asyncio
import sys

import mcp_rl as rl

SERVER = "{bundled}/servers/python/mcp_calculator/server.py"
TOOLSET = rl.StdioServer(command="{python}", args=(SERVER, "--transport", "stdio"))


def task(a: int, b: int) -> rl.McpScenario:
    answer = rl.Verifier(kind="exact_match", expected=a - b)
    return rl.McpScenario(task_description=f"What is {a} minus {b}?", server_params=TOOLSET, verifier=answer)


async def exact_match(trajectory: rl.Trajectory, task: rl.McpScenario) -> float:
    return float(str(task.verifier.expected) in (trajectory.final_answer or "").rstrip(".").split())


async def play(model: rl.TrainableModel, tasks: list[rl.McpScenario], times: int = 8) -> list[rl.TrajectoryGroup]:
    groups = [rl.TrajectoryGroup(rl.rollout(model, task) for _ in range(times)) for task in tasks]
    return [await rl.verify_group(g, {"exact_match": exact_match}) for g in await rl.gather_trajectory_groups(groups)]


async def main(steps: int) -> None:
    model = rl.TrainableModel(name="subtraction", project="from-verifiers", base_model="mcp-rl/tiny")
    async with rl.LocalBackend() as backend, rl.Sessions():
        await model.register(backend)
        for step in range(await model.get_step(), steps + 1):
            if step in (0, steps):
                tested = await play(model, [task(a, 11) for a in range(13, 97, 7)], times=2)
                rewards = [reward for group in tested for reward in group.rewards]
                print(f"step {step}: mean reward on held-out tasks {sum(rewards) / len(rewards):.2f}")
            if step < steps:
                await backend.train(model, await play(model, [task(40 + step, b) for b in (2, 5, 12, 33)]))


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
