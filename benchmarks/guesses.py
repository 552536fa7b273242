"""Sampling with and without guesses of the next ids (`mcp_rl.inference.drafts`), on the episodes of a run.

    mcp-rl train --server SERVER --steps 20
    python -m benchmarks.guesses .mcp_rl/default/models/NAME

Each recorded episode of the last training step is sampled again under the newest checkpoint: its prompt and its tools'
results are given, its turns are sampled. So lengths, waves and repetitions are those of training; the server's time is
left out. Seeds differ from round to round, rounds alternate, and the first is not counted. Both contenders must sample
the same ids with the same log-probabilities.
"""

import argparse
import json
import os
import statistics
import time
from itertools import groupby
from pathlib import Path

import anyio
import torch
from peft import PeftModel

from mcp_rl.backends.base.base_model import load_base
from mcp_rl.config import TINY
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.local import LocalEngine
from mcp_rl.learning.adapter import merged_weights
from mcp_rl.run_directory import RunDirectory
from mcp_rl.trajectory import Trajectory

Turns = list[tuple[list[int], int]]
"""For each turn the given ids, and the number of ids that were sampled."""
Sampled = list[tuple[list[int], list[float]]]


def turns(trajectory: Trajectory) -> Turns:
    """Return the turns of an episode's first conversation."""
    found: Turns = []
    given: list[int] = []
    segment = trajectory.segments[0]
    for sampled, part in groupby(zip(segment.tokens, segment.sampled, strict=True), key=lambda pair: pair[1]):
        ids = [token for token, _ in part]
        if sampled:
            found.append((given, len(ids)))
        else:
            given = ids
    return found


async def play(engine: LocalEngine, episodes: list[Turns], limit: int, most: int, seed: int) -> list[Sampled]:
    """Sample all episodes, `most` at once."""
    room = anyio.CapacityLimiter(most)
    played: list[Sampled] = [[] for _ in episodes]

    async def one(number: int) -> None:
        async with room, engine.episode(seed=seed + number) as episode:
            for given, _ in episodes[number]:
                turn = await episode.generate(given, Sampling(max_tokens=limit))
                played[number].append((turn.token_ids, turn.logprobs))

    async with anyio.create_task_group() as tasks:
        for number in range(len(episodes)):
            tasks.start_soon(one, number)
    return played


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run of the built-in model")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 24, 64])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    run = RunDirectory(options.run)
    step = max((int(path.name) for path in options.run.glob("checkpoints/*") if path.name.isdigit()), default=0)
    if not step:
        parser.error(f"{options.run} is no run with a checkpoint: train one, or give the folder of another.")
    episodes = [turns(t) for group in run.trajectories("train", step) for t in group if t.segments and t.turns]
    model, tokenizer = load_base(TINY)
    stops = [int(tokenizer.convert_tokens_to_ids("<|im_end|>"))]
    limit = max(count for episode in episodes for _, count in episode)
    adapted = PeftModel.from_pretrained(load_base(TINY)[0], str(options.run / "checkpoints" / f"{step:04}"))
    weights = merged_weights(adapted)
    figures = []
    for most in options.at_once:
        speeds: dict[bool, list[float]] = {False: [], True: []}
        passes: dict[bool, float] = {}
        with_guesses, without = (LocalEngine(model, stop_token_ids=stops, guess=guess) for guess in (True, False))
        async with with_guesses, without:
            for number in range(options.rounds + 1):
                played = []
                for engine in (without, with_guesses):
                    await engine.load_policy(weights, number + 1)
                    tokens, steps = engine.stats.decoded_tokens, engine.stats.steps
                    began = time.perf_counter()
                    played.append(await play(engine, episodes, limit, most, 10_000 * number))
                    seconds, guessing = time.perf_counter() - began, engine is with_guesses
                    speeds[guessing].append((engine.stats.decoded_tokens - tokens) / seconds)
                    passes[guessing] = (engine.stats.decoded_tokens - tokens) / max(engine.stats.steps - steps, 1)
                if played[0] != played[1]:
                    raise SystemExit("Guesses changed what was sampled.")
            medians = {guessing: statistics.median(values[1:]) for guessing, values in speeds.items()}
            figures.append(
                {
                    "at_once": most,
                    "tokens_per_second": {"with": round(medians[True]), "without": round(medians[False])},
                    "ratio": round(medians[True] / medians[False], 2),
                    "tokens_per_pass": {"with": round(passes[True], 1), "without": round(passes[False], 1)},
                    "accepted": round(
                        with_guesses.stats.accepted_tokens / max(with_guesses.stats.guessed_tokens, 1), 2
                    ),
                }
            )
    settings = {"episodes": len(episodes), "step": step, "rounds": options.rounds, "cores": os.cpu_count()}
    print(json.dumps({"date": time.strftime("%Y-%m-%d"), "settings": settings, "figures": figures}, indent=2))


if __name__ == "__main__":
    anyio.run(main)
