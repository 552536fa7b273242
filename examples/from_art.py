"""From ART: gather, score, train, log; `rollout` asks and calls tools. `python examples/from_art.py [STEPS]`."""

import asyncio
import sys

import mcp_rl as art

CALCULATOR = art.resolve_server("mcp_calculator").params()  # or a URL, a script, a command that speaks MCP


def scenario(a: int, b: int) -> art.McpScenario:
    check = art.Verifier(kind="number", expected=a * b)
    return art.McpScenario(task_description=f"What is {a} times {b}?", server_params=CALCULATOR, verifier=check)


async def main(steps: int) -> None:
    model = art.TrainableModel(name="agent-001", project="from-art", base_model="mcp-rl/tiny")
    async with art.LocalBackend() as backend, art.Sessions():
        await model.register(backend)
        for step in range(await model.get_step(), steps):
            groups = await art.gather_trajectory_groups(
                (art.TrajectoryGroup(art.rollout(model, scenario(12 + step, b)) for _ in range(8)) for b in (3, 7, 25)),
                after_each=art.verify_group,  # or a function of yours, or art.ruler_score_group
            )
            result = await backend.train(model, groups, art.TrainConfig(learning_rate=1e-3))
            await model.log(groups, split="train", step=result.step, metrics=result.metrics)
            print(f"step {result.step}: mean reward {sum(r for g in groups for r in g.rewards) / 24:.2f}")


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
