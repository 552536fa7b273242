"""From verifiers: a taskset, a reward, evaluation before and after. `python examples/from_verifiers.py [STEPS]`."""

import asyncio
import sys

import mcp_rl as rl

TOOLSET = rl.resolve_server("mcp_calculator").params()


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
                reward = sum(reward for group in tested for reward in group.rewards) / 24
                print(f"step {step}: mean reward on held-out tasks {reward:.2f}")
            if step < steps:
                await backend.train(model, await play(model, [task(40 + step, b) for b in (2, 5, 12, 33)]))


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
