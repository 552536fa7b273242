"""Measure the speed-up of several learners: an update of a batch by one process and by several, wall-clock.

    OMP_NUM_THREADS=1 python -m benchmarks.learners --processes 1,2 --out benchmarks/results/learners.json
    python -m benchmarks.learners --gpus 0,1,2,3 --base-model Qwen/Qwen2.5-3B-Instruct     # 1, 2 and 4 of them

The episodes are random: groups share a system prompt, and each group its own request. The numbers of processes take
turns, so that disturbances hit all of them. Each is a learner as in a run: from scored groups to new weights, with its
checks, clipping and optimiser.

The parts of an update's time are those of the first process: its own forward and backward passes; waiting for the other
processes (`waiting`: uneven shares, or a machine that is not equally fast for all); and the extra work of several:
gradients summed, counts exchanged and bits compared. The rest is mainly the optimiser. `speedup` is that of the
medians; on a shared machine, the fastest updates are the undisturbed ones.
"""

import argparse
import functools
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import torch
from torch import Tensor
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from mcp_rl.backends.hosts import LearnerHost, LocalSettings
from mcp_rl.backends.processes.distributed import make_learner_host
from mcp_rl.backends.processes.in_process import InProcessLearner
from mcp_rl.config import PlacementConfig, TrainConfig
from mcp_rl.learning.forward.tree import split_evenly
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.parallel import Ranks
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.tiny import weights_path
from mcp_rl.trajectory import Segment, Trajectory, TrajectoryGroup

Json = dict[str, Any]


def make_base(folder: Path, *, hidden: int, layers: int) -> str:
    """Write a random Qwen2 with the built-in vocabulary into a folder; return its path."""
    tokenizer: Any = AutoTokenizer.from_pretrained(weights_path())
    heads = hidden // 32
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4),
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def make_groups(groups: int, size: int, *, prompt: int, sampled: int, step: int) -> list[TrajectoryGroup]:
    """Return groups of random tokens below 900; all share half of each prompt, a group the other half."""
    draw = random.Random(step)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(900) for _ in range(count)]

    system = tokens(prompt // 2)
    found = []
    for number in range(groups):
        request = tokens(prompt - len(system))
        trajectories = []
        for _ in range(size):
            segment = Segment()
            segment.observe(system + request)
            turn = tokens(sampled)
            segment.act(turn, [-7.0] * len(turn), step)
            trajectories.append(Trajectory(scenario_id=f"s{number}", segments=[segment], reward=draw.random()))
        scenario = McpScenario(id=f"s{number}", task_description="t", server_params=StdioServer(command="x"))
        found.append(TrajectoryGroup(scenario=scenario, trajectories=trajectories))
    return found


async def set_logprobs(host: LearnerHost, groups: list[TrajectoryGroup]) -> None:
    """Set the log-probabilities that an exact sampler would have recorded."""
    segments = [trajectory.segments[0] for group in groups for trajectory in group]
    for segment, found in zip(segments, await host.token_logprobs([s.tokens for s in segments]), strict=True):
        pairs = zip(segment.sampled, [0.0, *found], strict=True)
        segment.logprobs = [value if sampled else 0.0 for sampled, value in pairs]


class Watch:
    """Seconds that the first process spends in each joint operation of the ranks, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside = False
        for owner, name in ((Ranks, "total"), (Ranks, "sum_gradients"), (Ranks, "check_equal"), (Ranks, "gather")):
            self._time(owner, name)
        self._time(Tensor, "backward")
        self._time(Learner, "logprobs")

    def _time(self, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        @functools.wraps(real)
        def timed(*given: Any, **more: Any) -> Any:
            if self._inside:
                return real(*given, **more)
            self._inside, began = True, time.perf_counter()
            try:
                return real(*given, **more)
            finally:
                self._inside = False
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

        setattr(owner, name, timed)

    def parts(self, whole: float) -> dict[str, float]:
        """Return the parts of an update that took `whole` seconds. A rank's first request after its last backward pass
        is the sum of the losses, so the time in it is mostly waiting."""
        taken = self.seconds.get
        found = {
            "own_passes": taken("logprobs", 0.0) + taken("backward", 0.0),
            "waiting": taken("total", 0.0),
            "summing_gradients": taken("sum_gradients", 0.0),
            "counts_and_comparisons": taken("gather", 0.0) + taken("check_equal", 0.0),
        }
        return found | {"rest": whole - sum(found.values())}


def shares(learner: Learner) -> list[int]:
    """Return the forward tokens of each process, as if the last batch were one minibatch."""
    count = learner.ranks.size if learner.ranks else 1
    every = split_evenly([sample.tokens for sample in learner.batch], count)
    return [
        sum(packed.flat_tokens for _, packed in learner.parts([learner.batch[i] for i in share])) for share in every
    ]


async def measure(arguments: argparse.Namespace, folder: Path) -> Json:
    """Return the seconds of an update for each number of processes, and further figures."""
    base = arguments.base_model or make_base(folder / "base", hidden=arguments.hidden, layers=arguments.layers)
    train = TrainConfig(learning_rate=1e-5, epochs=1, method=arguments.method)
    gpus = [int(gpu) for gpu in arguments.gpus.split(",")] if arguments.gpus else []
    given = [1, 2, 4, 8] if gpus else [int(count) for count in arguments.processes.split(",")]
    counts = [count for count in given if not gpus or count <= len(gpus)]
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    processor: dict[int, list[float]] = {count: [] for count in counts}
    metrics: dict[int, Json] = {}
    parts: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    tokens: dict[int, list[int]] = {}
    watch = Watch()
    for turn in range(arguments.rounds):
        for count in counts:
            placement = PlacementConfig(learner_processes=count)
            if gpus:
                placement = PlacementConfig(learner_gpus=tuple(gpus[:count]))
            run = folder / f"run{turn}-{count}"
            settings = LocalSettings(base_model=base, run=run, title="b/b", train=train, placement=placement)
            host: InProcessLearner = make_learner_host(settings)
            try:
                await host.open()
                for step in range(arguments.repeats + 1):
                    batch = make_groups(
                        arguments.groups, arguments.size, prompt=arguments.prompt, sampled=arguments.sampled, step=step
                    )
                    await set_logprobs(host, batch)
                    began = time.process_time()
                    watch.seconds.clear()
                    metrics[count] = await host.update(batch, train)
                    if step:  # the first one allocates and compiles
                        processor[count].append(time.process_time() - began)
                        seconds[count].append(metrics[count]["update_seconds"])
                        parts[count].append(watch.parts(seconds[count][-1]))
                tokens[count] = shares(host.learner)
            finally:
                await host.close()
    return {
        "machine": platform.machine(),
        "threads_per_process": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "batch": {name: getattr(arguments, name) for name in ("groups", "size", "prompt", "sampled", "method")},
        "base_model": arguments.base_model or f"random Qwen2, hidden {arguments.hidden}, {arguments.layers} layers",
        "update_seconds": {str(count): round(median(values), 4) for count, values in seconds.items()},
        "all_update_seconds": {str(count): [round(v, 4) for v in values] for count, values in seconds.items()},
        "speedup": {
            str(count): round(median(seconds[counts[0]]) / median(values), 3) for count, values in seconds.items()
        },
        "speedup_of_the_fastest": {
            str(count): round(min(seconds[counts[0]]) / min(values), 3) for count, values in seconds.items()
        },
        "processor_seconds_of_the_first": {str(count): round(median(v), 4) for count, v in processor.items()},
        "parts_of_the_first": {
            str(count): {name: round(median(part[name] for part in found), 4) for name in found[0]}
            for count, found in parts.items()
        },
        "tokens_of_each_share": {str(count): found for count, found in tokens.items()},
        "load_in_the_end": os.getloadavg()[0],
        "forward_tokens": {str(count): found["forward_tokens"] for count, found in metrics.items()},
        "loss": {str(count): found["loss"] for count, found in metrics.items()},
    }


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", default="1,2", help="numbers of processes on CPUs")
    parser.add_argument("--gpus", help="GPUs, such as 0,1,2,3; 1, 2, 4 and 8 of them are used, as far as given")
    parser.add_argument("--base-model")
    parser.add_argument("--method", choices=("lora", "full"), default="lora")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=200)
    parser.add_argument("--sampled", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=4, help="timed updates, after a warm-up")
    parser.add_argument("--rounds", type=int, default=2, help="rounds over the numbers of processes")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args(given)
    with tempfile.TemporaryDirectory() as folder:
        found = json.dumps(anyio.run(measure, arguments, Path(folder)), indent=1)
    if arguments.out:
        arguments.out.write_text(found + "\n")
    print(found, file=sys.stdout if not arguments.out else sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
