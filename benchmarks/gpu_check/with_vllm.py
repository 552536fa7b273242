"""Check vLLM beside the learner: adapters swapped under load, one GPU shared by sleep and by split."""

import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import anyio
import numpy as np

from benchmarks.gpu_check.device_memory import used_gb
from benchmarks.gpu_check.models import base_folder, move_adapter
from benchmarks.gpu_check.setting import Failed, Figures, Setting, Skipped, check
from mcp_rl.backends.plan.gpus import read_gpus

SLOWEST_SWAP_MS = 100.0
"""Aim of a swap: the median time of the load alone, at most."""
MOST_DIFFERENT = 0.1
"""Largest mean absolute difference of log-probabilities in nats, in 16 bits."""
SERVER_SHARE = 0.4
"""vLLM's share of the device's memory."""
LEAST_ASLEEP = 0.6
"""Least share of its memory that vLLM gives back asleep."""
VARIABLE = "MCP_RL_VLLM_PYTHON"
Turn = tuple[list[int], Any, int]
"""Prompt, completion, and the version that was current when it was asked for."""


@dataclass
class Pair:
    """A learner and vLLM on one device."""

    learner: Any
    sampler: Any
    turns: list[Turn] = field(default_factory=list)
    """The latest batch."""

    async def sample(self, *, episodes: int, prompt: int, tokens: int, seed: int) -> list[Turn]:
        """Sample a turn of each episode."""
        from mcp_rl.inference.engine import Sampling

        found: dict[int, Turn] = {}
        draw = np.random.default_rng(seed)
        ids = [int(token) for token in draw.integers(3, 2000, prompt)]

        async def one(number: int) -> None:
            engine = self.sampler.engine
            async with engine.episode(seed=seed * 1000 + number) as episode:
                asked = engine.version
                said = await episode.generate(ids, Sampling(max_tokens=tokens))
                found[number] = ids, said, asked

        async with anyio.create_task_group() as tasks:
            for number in range(episodes):
                tasks.start_soon(one, number)
        return [found[number] for number in range(episodes)]

    async def swap(self, step: int) -> None:
        """Change the adapter, and give it to vLLM as this version."""
        move_adapter(self.learner.learner.parameters, seed=step)
        await self.sampler.take(self.learner, step)

    async def differences(self, turns: Sequence[Turn]) -> list[float]:
        """Return the difference of log-probabilities, learner minus vLLM, in nats, of each sampled token."""
        sequences = [[*ids, *said.token_ids] for ids, said, _ in turns]
        ours = await self.learner.token_logprobs(sequences)
        return [
            own - theirs
            for (ids, said, _), logprobs in zip(turns, ours, strict=True)
            for own, theirs in zip(logprobs[len(ids) - 1 :], said.logprobs, strict=True)
        ]


@asynccontextmanager
async def paired(
    setting: Setting, sharing: Literal["sleep", "split"], offload: Literal["host", "keep"] = "keep"
) -> AsyncIterator[Pair]:
    """Open a learner and vLLM. Raises Skipped if vLLM is not installed."""
    from mcp_rl.backends.base.base_model import load_tokenizer
    from mcp_rl.backends.processes.in_process import InProcessLearner
    from mcp_rl.backends.samplers.vllm_sampler import VllmSampler
    from mcp_rl.inference.chat.chat_format import ChatFormat

    python = vllm_python(setting)
    with tempfile.TemporaryDirectory() as place:
        folder = base_folder(setting.half, setting, Path(place) / "base")
        os.environ.pop("PYTORCH_ALLOC_CONF", None)  # torch has read it by now, and vLLM's sleep does not work with it
        settings = local_settings(setting, folder, Path(place) / "run", python, sharing, offload)
        learner, sampler = InProcessLearner(settings), VllmSampler(settings)
        try:
            await learner.open()
            move_adapter(learner.learner.parameters)
            await sampler.open(learner, ChatFormat(load_tokenizer(str(folder))))
            yield Pair(learner, sampler)
        finally:
            with anyio.CancelScope(shield=True):
                await sampler.close()
                await learner.close()


def local_settings(
    setting: Setting,
    folder: Path,
    run: Path,
    python: Path | None,
    sharing: Literal["sleep", "split"] = "sleep",
    offload: Literal["host", "keep"] = "keep",
) -> Any:
    """Return the settings that a run gives to its backend."""
    from mcp_rl.backends.hosts import LocalSettings
    from mcp_rl.config import EngineConfig, TrainConfig, UnslothConfig

    engine = EngineConfig(
        kind="vllm" if python is not None else "local",
        python=python,
        sharing=sharing,
        memory_share=None if setting.dry_run else SERVER_SHARE,
        max_rows=setting.episodes,
    )
    train = TrainConfig(
        activation_checkpointing=not setting.dry_run,
        epochs=1,
        max_staleness=int(sharing == "split"),
        offload_while_sampling=offload,
    )
    options = UnslothConfig(use=False, load_in_4bit=False, dtype="float32" if setting.dry_run else "bfloat16")
    context = 1024 if setting.dry_run else 8192
    run.mkdir(parents=True, exist_ok=True)
    return LocalSettings(
        base_model=str(folder),
        run=run,
        title="gpu/check",
        train=train,
        engine=engine,
        unsloth=options,
        max_context=context,
    )


def vllm_python(setting: Setting) -> Path | None:
    """Return the Python that has vLLM. Raises Skipped without one."""
    from mcp_rl.errors import ConfigError
    from mcp_rl.inference.vllm.installed import find_vllm

    named = os.environ.get(VARIABLE)
    if setting.dry_run and not named:
        raise Skipped(f"{VARIABLE} names no Python that has vLLM")
    try:
        vllm = find_vllm(Path(named) if named else None)
    except ConfigError as error:
        raise Skipped(str(error)) from error
    return Path(vllm.python)


@check
def vllm_swaps(setting: Setting) -> Figures:
    """Adapters swapped in vLLM while it samples: time, agreement with the learner, stale turns."""
    return run_async(_swaps, setting, needs_vllm=True)


async def _swaps(setting: Setting) -> Figures:
    turns: list[Turn] = []
    times: list[Any] = []
    async with paired(setting, "split") as pair:
        await pair.swap(1)
        began = time.perf_counter()
        quiet = await pair.sample(episodes=setting.episodes, prompt=setting.prompt // 4, tokens=setting.sampled, seed=1)
        seconds = time.perf_counter() - began
        differences = await pair.differences(quiet)
        done = False

        async def load() -> None:
            seed = 2
            while not done:
                turns.extend(await pair.sample(episodes=setting.episodes, prompt=32, tokens=setting.sampled, seed=seed))
                seed += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load)
            for step in range(2, 2 + setting.swaps):
                await pair.swap(step)
                times.append(pair.sampler.swap)
            done = True
        last = await pair.sample(episodes=setting.episodes, prompt=32, tokens=setting.sampled, seed=9999)
        differences += await pair.differences(last)
    ms = {part: sorted(1000 * getattr(swap, part) for swap in times) for part in ("write", "load", "probe")}
    stale = sum(said.version < asked for _, said, asked in turns)
    found = {
        "swaps": len(times),
        "turns_under_load": len(turns),
        "stale": stale,
        **{f"{part}_ms": values[len(values) // 2] for part, values in ms.items()},
        **{f"{part}_ms_most": values[-1] for part, values in ms.items()},
        "sampled_tokens_per_second": sum(len(said.token_ids) for _, said, _ in quiet) / seconds,
        "logprob_difference_mean": fmean(map(abs, differences)),
        "logprob_difference_max": max(map(abs, differences)),
        "ratio_mean": float(np.exp(differences).mean()),
    }
    if stale:
        raise Failed(f"{stale} turns were sampled by an older policy than the one that was current", found)
    if not found["logprob_difference_mean"] < MOST_DIFFERENT:
        raise Failed("vLLM and the learner disagree by more than rounding leaves", found)
    if not setting.dry_run and found["load_ms"] > SLOWEST_SWAP_MS:
        raise Failed(f"a swap takes {found['load_ms']:.0f} ms, and the aim is {SLOWEST_SWAP_MS:.0f}", found)
    return found


@check
def sharing_by_sleep(setting: Setting) -> Figures:
    """Learner and vLLM on one GPU, each asleep while the other works: the share of a step in which neither works."""
    return run_async(_sleeping, setting, needs_vllm=True)


@check
def sharing_by_rest(setting: Setting) -> Figures:
    """The same with the learner in the machine's memory while vLLM samples."""
    return run_async(_resting, setting, needs_vllm=True)


async def _resting(setting: Setting) -> Figures:
    return await _sleeping(setting, "host")


async def _sleeping(setting: Setting, offload: Literal["host", "keep"] = "keep") -> Figures:
    names = ("sample", "rest", "update", "prepare", "leave", "wake", "swap")
    parts: dict[str, list[float]] = {name: [] for name in names}
    memory: dict[str, float | None] = {}
    async with paired(setting, "sleep", offload) as pair:
        for step in range(1, 2 + setting.cycles):
            for name, work in _cycle(setting, pair, step):
                began = time.perf_counter()
                await work()
                parts[name].append(time.perf_counter() - began)
                memory[f"after_{name}_gb"] = used_gb()
    gpus = read_gpus()
    return step_figures(parts, {"share_gb": SERVER_SHARE * gpus[0].memory / 1e9 if gpus else None, **memory}, setting)


def _cycle(setting: Setting, pair: Pair, step: int) -> list[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
    """Return the parts of a step, in their order."""

    async def sample() -> None:
        pair.turns = await pair.sample(
            episodes=setting.episodes, prompt=setting.prompt // 4, tokens=setting.sampled, seed=step
        )

    async def update() -> None:
        await _update(pair, pair.turns)

    async def swap() -> None:
        await pair.sampler.take(pair.learner, pair.learner.step)

    async def prepare() -> None:
        await pair.sampler.prepare(pair.learner, pair.learner.step)

    async def leave() -> None:
        await pair.learner.rest()

    if step == 1:  # vLLM needs a policy before it can sample
        return [("swap", swap), ("sample", sample)]
    return [
        ("sample", sample),
        ("rest", pair.sampler.rest),
        ("update", update),
        ("prepare", prepare),
        ("leave", leave),
        ("wake", pair.sampler.wake),
        ("swap", swap),
    ]


@check
def sharing_by_split(setting: Setting) -> Figures:
    """Learner and vLLM on one GPU, each with a part of the memory: the next batch is sampled during the update."""
    return run_async(_splitting, setting, needs_vllm=True)


async def _splitting(setting: Setting) -> Figures:
    parts: dict[str, list[float]] = {name: [] for name in ("sample", "update", "both", "swap")}
    async with paired(setting, "split") as pair:
        await pair.sampler.take(pair.learner, pair.learner.step)

        async def sample(seed: int) -> list[Turn]:
            began = time.perf_counter()
            turns = await pair.sample(
                episodes=setting.episodes, prompt=setting.prompt // 4, tokens=setting.sampled, seed=seed
            )
            parts["sample"].append(time.perf_counter() - began)
            return turns

        turns = await sample(1)
        for step in range(2, 3 + setting.cycles):
            began = time.perf_counter()
            ahead: list[Turn] = []

            async def next_batch(seed: int, into: list[Turn]) -> None:
                into.extend(await sample(seed))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(next_batch, step, ahead)
                started = time.perf_counter()
                await _update(pair, turns)
                parts["update"].append(time.perf_counter() - started)
            parts["both"].append(time.perf_counter() - began)
            began = time.perf_counter()
            await pair.sampler.take(pair.learner, pair.learner.step)
            parts["swap"].append(time.perf_counter() - began)
            turns = ahead
        held = used_gb()
    both, swap = fmean(parts["both"][1:] or parts["both"]), fmean(parts["swap"])
    alone = fmean(parts["sample"]) + fmean(parts["update"])
    found = {
        **{f"{name}_seconds": fmean(values) for name, values in parts.items()},
        "idle_share": swap / (both + swap),
        "times_faster_than_in_turn": alone / both,
        "used_gb": held,
    }
    return _judge_idle(found, setting)


async def _update(pair: Pair, turns: Sequence[Turn]) -> None:
    """Update the learner on sampled turns, with rewards that depend on the tokens."""
    from mcp_rl.scenario import McpScenario, StdioServer
    from mcp_rl.trajectory import Segment, Trajectory, TrajectoryGroup

    scenario = McpScenario(task_description="t", server_params=StdioServer(command="true"))
    group = TrajectoryGroup(scenario=scenario)
    for ids, said, _ in turns:
        segment = Segment()
        segment.observe(ids)
        segment.act(said.token_ids, said.logprobs, said.version)
        reward = sum(token % 2 for token in said.token_ids) / max(1, len(said.token_ids))
        group.trajectories.append(Trajectory(scenario_id=scenario.id, segments=[segment], reward=reward))
    await pair.learner.update([group], pair.learner.settings.train)


def step_figures(parts: dict[str, list[float]], memory: dict[str, float | None], setting: Setting) -> Figures:
    """Return the means of the later steps; the first compiles."""
    means = {name: fmean(values[1:] or values) for name, values in parts.items() if values}
    whole = sum(means.values())
    idle = whole - means["sample"] - means["update"]
    found: Figures = {
        **{f"{name}_seconds": value for name, value in means.items()},
        "idle_share": idle / whole,
        "memory": memory,
    }
    awake, asleep, share = memory.get("after_sample_gb"), memory.get("after_rest_gb"), memory["share_gb"]
    if awake is not None and asleep is not None and share is not None:
        found["given_back_by_sleep_gb"] = awake - asleep
        if awake - asleep < LEAST_ASLEEP * share:
            raise Failed(f"sleep gave back {awake - asleep:.1f} of vLLM's {share:.1f} GB", found)
    return _judge_idle(found, setting)


def _judge_idle(found: Figures, setting: Setting) -> Figures:
    """Return the figures. Raises Failed if, on a device, more than a tenth of a step is idle."""
    if not setting.dry_run and found["idle_share"] > 0.1:
        raise Failed(f"{100 * found['idle_share']:.0f} % of a step is idle, and the aim is under 10 %", found)
    return found


def run_async(
    work: Callable[[Setting], Coroutine[Any, Any, Figures]], setting: Setting, *, needs_vllm: bool = False
) -> Figures:
    """Run an asynchronous check, raising single errors instead of groups; raise Skipped if it needs an absent vLLM."""
    from mcp_rl.system.boundary import first_error

    if needs_vllm:
        vllm_python(setting)
    try:
        return anyio.run(work, setting)
    except BaseExceptionGroup as group:
        raise next((leaf for leaf in _leaves(group) if isinstance(leaf, Failed)), first_error(group)) from group


def _leaves(error: BaseException) -> list[BaseException]:
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [leaf for one in inner for leaf in _leaves(one)] if inner else [error]
