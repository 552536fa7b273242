"""For those who come from ART: its loop of gather, score, train and log.

    python examples/from_art.py [STEPS]

What differs is the rollout: yours asks the model in a loop and calls the tools; here `rollout` does both, on the server
that the scenario names. docs/coming_from.md has the words side by side.
"""

import asyncio
import random
import sys

import mcp_rl as art

SERVER = "{bundled}/servers/python/mcp_calculator/server.py"
CALCULATOR = art.StdioServer(command="{python}", args=(SERVER, "--transport", "stdio"))


def scenario(a: int, b: int) -> art.McpScenario:
    check = art.Verifier(kind="number", expected=a * b)
    return art.McpScenario(task_description=f"What is {a} times {b}?", server_params=CALCULATOR, verifier=check)


async def main(steps: int) -> None:
    numbers = random.Random(0)
    model = art.TrainableModel(name="agent-001", project="from-art", base_model="mcp-rl/tiny")
    async with art.LocalBackend() as backend, art.Sessions():
        await model.register(backend)
        for _ in range(await model.get_step(), steps):
            batch = [scenario(numbers.randint(2, 99), numbers.randint(2, 99)) for _ in range(4)]
            groups = await art.gather_trajectory_groups(
                (art.TrajectoryGroup(art.rollout(model, task) for _ in range(8)) for task in batch),
                after_each=art.verify_group,  # or a function of yours, or art.ruler_score_group
                max_exceptions=0.1,
            )
            result = await backend.train(model, groups, art.TrainConfig(learning_rate=1e-3))
            await model.log(groups, split="train", step=result.step, metrics=result.metrics)
            print(f"step {result.step}: mean reward {sum(r for g in groups for r in g.rewards) / 32:.2f}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
