"""A plugin that offers a part of every kind."""

import json
from pathlib import Path

from mcp_rl import McpScenario, StdioServer, ToolCall, ToolServer, Verifier, hookimpl
from mcp_rl.rewards.verdict import Verdict


@hookimpl
def register_servers(register):
    params = StdioServer(command="{python}", args=(str(Path(__file__).with_name("server.py")),))
    register(ToolServer("echo", "Says it again.", {"stdio": params}))


@hookimpl
def register_scenario_sources(register):
    register("doubles", doubles)


async def doubles(sessions, *, server, params, recipe):
    session = await sessions.get(params)
    made = []
    for number in range(recipe.seed, recipe.seed + recipe.count):
        result = await session.connection.call("double", {"number": number})
        made.append(
            McpScenario(
                task_description=f"What is twice {number}?",
                server_params=params,
                server=server.name,
                verifier=Verifier(kind="echo_number", expected=result.structured["result"]),
                reference=(ToolCall(tool="double", arguments={"number": number}),),
            )
        )
    return made


@hookimpl
def register_verifiers(register):
    register("echo_number", echo_number)


def echo_number(trajectory, scenario):
    return str(scenario.verifier.expected) in (trajectory.final_answer or "").split()


@hookimpl
def register_rewards(register):
    register("echo_turns", echo_turns)


async def echo_turns(trajectory, scenario):
    return Verdict(1 / (1 + trajectory.turns), "Fewer turns are better.")


@hookimpl
def register_backends(register):
    register("echo_local", echo_local)


def echo_local(config):
    from mcp_rl import LocalBackend

    return LocalBackend(config=config.train, seed=config.seed, temperature=config.rollout.temperature, keep=1)


@hookimpl
def register_trackers(register):
    register("echo_lines", Lines)


class Lines:
    """Lines of JSON in the run's folder."""

    def __init__(self, folder, config):
        self.file = (folder / "echo.jsonl").open("a")
        self.write({"started": config.name})

    def log(self, split, step, metrics):
        self.write({"split": split, "step": step, "metrics": metrics})
        if split == "train":
            raise OSError("nobody listens")

    def close(self):
        self.write({"closed": True})
        self.file.close()

    def write(self, line):
        print(json.dumps(line), file=self.file, flush=True)


SEEN = Path("seen.jsonl")


@hookimpl
def rollout_finished(scenario, trajectory):
    with SEEN.open("a") as file:
        print(json.dumps({"rollout": scenario.id, "metrics": trajectory.metrics}), file=file)


@hookimpl
def step_finished(step, metrics):
    with SEEN.open("a") as file:
        print(json.dumps({"step": step, "reward": metrics["reward"]}), file=file)


@hookimpl
def checkpoint_saved(path):
    with SEEN.open("a") as file:
        print(json.dumps({"checkpoint": path.name, "whole": (path / "adapter_config.json").is_file()}), file=file)
    raise RuntimeError("no room for another copy")
