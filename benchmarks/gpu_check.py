"""What the learner and the engine do on a GPU, measured with random weights in the shapes of real models.

    make gpu-check                                    # or: python -m benchmarks.gpu_check [--out FILE] [--only NAME …]

No network and no download: Qwen2.5-0.5B and 3B are built on the device, in bfloat16. Without a CUDA device, or with
`--dry-run`, the same code runs small shapes on the CPU, and the result says `"dry_run": true`.

Every check runs in a process of its own, under a time limit: one that fails, hangs or breaks the device loses nothing
of the others, and its memory is free again when it ends. One JSON object in the end, a line for each check on the way.
docs/gpu.md says what each figure means.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from mcp_rl.config import TrainConfig
from mcp_rl.learning.adapter import add_adapter
from mcp_rl.learning.samples import Sample
from mcp_rl.learning.step import Learner
from mcp_rl.learning.tree_attention import use_tree_attention

ROOT = Path(__file__).parents[1]
Figures = dict[str, Any]

PEAKS = {
    "B200": 2250e12, "GH200": 989e12, "H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12,
    "A100": 312e12, "L40S": 362e12, "L40": 181e12, "L4": 121e12, "A10G": 70e12, "A10": 125e12, "4090": 165e12,
    "3090": 71e12, "A6000": 155e12,
}  # fmt: skip
"""Dense bfloat16 operations per second, from the makers' data sheets; the first name that fits counts."""
AIM_PEAK = 900e12
"""The aims are an H100's; a smaller device is measured and not judged."""
TRAINED_AIM = 6500.0
"""Tokens per second of a 3B LoRA at 16k, before sharing is counted."""
SHARED_AIM = 4 * TRAINED_AIM
"""Unshared-equivalent tokens per second, groups of 8 with a prompt of 4k tokens."""


@dataclass(frozen=True)
class Shape:
    """Of a Qwen2 model."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    positions: int = 32768

    def config(self) -> Qwen2Config:
        return Qwen2Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=self.positions,
            tie_word_embeddings=True,
        )

    @property
    def layer_weights(self) -> int:
        """Weights of all linear layers, the output layer left out."""
        size = self.hidden // self.heads
        attention = self.hidden * size * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)


QWEN_HALF = Shape(896, 4864, 24, 14, 2, 151_936)
QWEN_3B = Shape(2048, 11_008, 36, 16, 2, 151_936)
SMALL = Shape(64, 96, 2, 4, 2, 512)


@dataclass(frozen=True)
class Setting:
    """What the checks of this run have in common."""

    dry_run: bool
    half: Shape
    three: Shape
    contexts: tuple[int, int, int]
    """Tokens of a sequence."""
    prompt: int
    """Tokens that a group shares, of the check that is judged by sharing."""
    answer: int
    """Own tokens of its members."""
    episodes: int
    """That the engine samples side by side."""
    sampled: int
    """Tokens of each."""

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.dry_run else "cuda")


REAL = Setting(False, QWEN_HALF, QWEN_3B, (2048, 8192, 16_384), 4096, 512, 64, 256)
DRY = Setting(True, SMALL, SMALL, (48, 96, 160), 64, 12, 6, 8)


class Failed(Exception):
    """What was measured is not what it should be. The second argument is what was measured all the same."""


class Skipped(Exception):
    """The check has no meaning here."""


Check = Callable[[Setting], Figures]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    """Put a check into the list, under its name."""
    CHECKS[function.__name__] = function
    return function


# -- what is computed on


def random_model(shape: Shape, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Random weights, made where they will be used."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            model = Qwen2ForCausalLM(shape.config())
    finally:
        torch.set_default_dtype(before)
    return cast(PreTrainedModel, model.to(device).eval().requires_grad_(False))  # type: ignore[arg-type]


def random_learner(shape: Shape, setting: Setting, dtype: torch.dtype = torch.bfloat16, **settings: Any) -> Learner:
    """A learner whose adapter is not zero, so that both its factors have a gradient."""
    config = TrainConfig.model_validate({"activation_checkpointing": not setting.dry_run, "epochs": 1, **settings})
    base = random_model(shape, setting.device, dtype)
    use_tree_attention(base)
    lora = config.lora
    model = add_adapter(base, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, base_name="random", seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator).mul_(0.01).to(parameter.device))
    return Learner(model, config, seed=0)


def samples(vocabulary: int, *, groups: int, size: int, prompt: int, answer: int) -> list[Sample]:
    """Groups of `size` sequences with `prompt` tokens in common and `answer` own ones, all of those to be learned."""
    draw = np.random.default_rng(0)
    made = []
    for group in range(groups):
        shared = draw.integers(0, vocabulary, prompt)
        for _ in range(size):
            own = draw.integers(0, vocabulary, answer)
            made.append(
                Sample(
                    tokens=[int(token) for token in (*shared, *own[:-1])],
                    at=np.arange(prompt - 1, prompt + answer - 1),
                    targets=own.astype(np.int64),
                    logprobs=np.full(answer, -np.log(vocabulary), np.float32),
                    weights=np.ones(answer, np.float32),
                    advantage=float(draw.normal()),
                    group=group,
                )
            )
    return made


# -- how it is measured


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_memory(device: torch.device) -> float | None:
    """GB at most since `forget_peak`; None on a CPU."""
    return torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None


def forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def backward(learner: Learner, given: Sequence[Sample]) -> dict[str, float]:
    """The gradient of a plain policy-gradient loss over all samples, and what it took to compute it."""
    total = sum(len(sample.targets) for sample in given)
    pairs = forwarded = rows = 0
    for _, packed in learner.parts(given):
        logprobs, _ = learner.logprobs(packed)
        (-(packed.advantages * logprobs).sum() / total).backward()  # type: ignore[no-untyped-call]
        nodes = packed.batch.mask.tree.nodes
        pairs += sum(node.length * node.depth + node.length * (node.length + 1) // 2 for node in nodes)
        forwarded, rows = forwarded + packed.flat_tokens, rows + len(packed.batch.rows)
    return {"pairs": pairs, "forwarded": forwarded, "rows": rows}


def gradient(learner: Learner, given: Sequence[Sample]) -> Tensor:
    """Of all parameters in one row, in float64 on the CPU."""
    backward(learner, given)
    grads = [cast(Tensor, parameter.grad).double().cpu().flatten() for parameter in learner.parameters.values()]
    learner.optimizer.zero_grad()
    return torch.cat(grads)


def agreement(ours: Tensor, theirs: Tensor) -> dict[str, float]:
    """Relative length of the difference, and the cosine."""
    return {
        "relative_error": float((ours - theirs).norm() / theirs.norm()),
        "cosine": float(torch.dot(ours, theirs) / (ours.norm() * theirs.norm())),
    }


def operations(shape: Shape, counts: dict[str, float]) -> float:
    """Of a LoRA update: forward and the gradient of the activations; the base's weights have none. What checkpointing
    computes again does not count (model FLOPs as in Chowdhery et al., PaLM, 2022, appendix B)."""
    linear = 4 * shape.layer_weights * counts["forwarded"]
    output = 4 * shape.hidden * shape.vocabulary * counts["rows"]
    return linear + output + 12 * shape.layers * shape.hidden * counts["pairs"]


def timed_update(learner: Learner, shape: Shape, given: Sequence[Sample], *, repeats: int = 2) -> Figures:
    """Seconds of a whole update (the best of `repeats` after one to warm up), and what follows from them."""
    device = learner.device
    times, counts = [], {}
    forget_peak(device)
    for _ in range(repeats + 1):
        wait(device)
        began = time.perf_counter()
        counts = backward(learner, given)
        norm = learner.descend(check_moved=False)
        wait(device)
        times.append(time.perf_counter() - began)
    seconds = min(times[1:])
    unshared = sum(len(sample.tokens) for sample in given)
    done = operations(shape, counts) / seconds
    peak = bf16_peak(device)
    return {
        "seconds": seconds,
        "first_seconds": times[0],
        "forward_tokens": counts["forwarded"],
        "unshared_tokens": unshared,
        "forward_tokens_per_second": counts["forwarded"] / seconds,
        "unshared_tokens_per_second": unshared / seconds,
        "operations_per_second": done,
        "share_of_bf16_peak": None if peak is None else done / peak,
        "peak_memory_gb": peak_memory(device),
        "grad_norm": norm,
    }


def bf16_peak(device: torch.device) -> float | None:
    """Of the data sheet; None where the device is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name()
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def budget(setting: Setting, shape: Shape) -> int:
    """Tokens in one forward pass that fit the device's memory with checkpointed activations."""
    if setting.dry_run:
        return 4096
    room = torch.cuda.get_device_properties(0).total_memory * 0.8 - 2 * (shape.layer_weights + 2e8)
    one = 2 * shape.hidden * shape.layers + 12 * shape.intermediate + 60 * shape.hidden  # kept, and one layer's own
    return int(max(4096, min(1 << 17, room / (2 * one))))


def judged(figures: Figures, name: str, aim: float, device: torch.device) -> Figures:
    """The figures with their aim. Raises Failed where a device that could reach it does not."""
    peak = bf16_peak(device)
    reached = figures[name] >= aim
    figures |= {"aim": {name: aim}, "reaches_aim": reached, "judged": peak is not None and peak >= AIM_PEAK}
    if figures["judged"] and not reached:
        raise Failed(f"{name} is {figures[name]:.0f}, and the aim on such a device is {aim:.0f}", figures)
    return figures


# -- the checks


@check
def device(setting: Setting) -> Figures:
    """The device: what it is, and how fast a plain product of bfloat16 matrices is on it."""
    size = 256 if setting.dry_run else 8192
    a, b = (torch.randn(size, size, device=setting.device, dtype=torch.bfloat16) for _ in range(2))
    a @ b
    wait(setting.device)
    began, rounds = time.perf_counter(), 2 if setting.dry_run else 20
    for _ in range(rounds):
        a @ b
    wait(setting.device)
    found: Figures = {"matmul_bf16_operations_per_second": 2 * size**3 * rounds / (time.perf_counter() - began)}
    if setting.dry_run:
        return found
    about = torch.cuda.get_device_properties(0)
    if not torch.cuda.is_bf16_supported():
        raise Failed(f"{about.name} does not compute in bfloat16", found)
    return found | {
        "name": about.name,
        "memory_gb": about.total_memory / 1e9,
        "capability": f"{about.major}.{about.minor}",
        "multiprocessors": about.multi_processor_count,
        "bf16_peak": bf16_peak(setting.device),
    }


@check
def gradients_float32(setting: Setting) -> Figures:
    """The shared update's gradient is the unshared one's, in float32, where rounding hides nothing."""
    context = setting.contexts[0]
    given = samples(setting.half.vocabulary, groups=2, size=4, prompt=context // 2, answer=context // 8)
    grads = []
    for sharing in (True, False):
        learner = random_learner(
            setting.half, setting, torch.float32, prefix_sharing=sharing, microbatch_tokens=1 << 15
        )
        grads.append(gradient(learner, given))
        del learner
    found: Figures = {"context": context, **agreement(*grads)}
    if not found["relative_error"] < 1e-4:
        raise Failed(f"the gradients differ by {found['relative_error']:.2g} of their length", found)
    return found


def _sharing(setting: Setting, context: int) -> Figures:
    """One group of 8 of the 0.5B, half of each sequence shared: gradients, speed and memory, shared and not."""
    shape = setting.half
    given = samples(shape.vocabulary, groups=1, size=8, prompt=context // 2, answer=context // 2)
    found: Figures = {"context": context, "sequences": len(given)}
    grads = []
    for name, sharing in (("shared", True), ("unshared", False)):
        learner = random_learner(shape, setting, prefix_sharing=sharing, microbatch_tokens=budget(setting, shape))
        grads.append(gradient(learner, given))
        found[name] = timed_update(learner, shape, given)
        del learner
        forget_peak(setting.device)
    found |= agreement(*grads)
    found["times_faster"] = found["unshared"]["seconds"] / found["shared"]["seconds"]
    found["times_fewer_tokens"] = found["unshared"]["forward_tokens"] / found["shared"]["forward_tokens"]
    if not found["cosine"] > 0.99:
        raise Failed(f"the gradients have a cosine of {found['cosine']:.4f}; rounding leaves more than 0.99", found)
    return found


@check
def update_2k(setting: Setting) -> Figures:
    """The shared update against the unshared one at 2k."""
    return _sharing(setting, setting.contexts[0])


@check
def update_8k(setting: Setting) -> Figures:
    """The shared update against the unshared one at 8k."""
    return _sharing(setting, setting.contexts[1])


@check
def update_16k(setting: Setting) -> Figures:
    """The shared update against the unshared one at 16k."""
    return _sharing(setting, setting.contexts[2])


@check
def lora_3b_16k(setting: Setting) -> Figures:
    """Trained tokens per second of a 3B LoRA at 16k, nothing shared."""
    context, shape = setting.contexts[2], setting.three
    given = samples(shape.vocabulary, groups=2, size=1, prompt=context // 4, answer=context - context // 4)
    learner = random_learner(shape, setting, prefix_sharing=False, microbatch_tokens=max(context, 4096))
    found = {"context": context, **timed_update(learner, shape, given)}
    return judged(found, "unshared_tokens_per_second", TRAINED_AIM, setting.device)


@check
def lora_3b_shared(setting: Setting) -> Figures:
    """Unshared-equivalent tokens per second of a 3B LoRA on groups of 8 with a shared prompt of 4k tokens."""
    shape = setting.three
    given = samples(shape.vocabulary, groups=2, size=8, prompt=setting.prompt, answer=setting.answer)
    learner = random_learner(shape, setting, microbatch_tokens=budget(setting, shape))
    found = {"prompt": setting.prompt, "answer": setting.answer, **timed_update(learner, shape, given)}
    return judged(found, "unshared_tokens_per_second", SHARED_AIM, setting.device)


@check
def sampler_agrees(setting: Setting) -> Figures:
    """What the engine says of its own tokens, the learner says too: both with the adapter, in bfloat16."""
    learner = random_learner(setting.half, setting)
    prompt = [int(token) for token in np.random.default_rng(2).integers(3, setting.half.vocabulary, setting.prompt)]
    sampled = _sample(learner, setting, prompt, episodes=min(8, setting.episodes))
    made = []
    for ids, logprobs in sampled["turns"]:
        made.append(
            Sample(
                tokens=[*prompt, *ids[:-1]],
                at=np.arange(len(prompt) - 1, len(prompt) + len(ids) - 1),
                targets=np.asarray(ids, np.int64),
                logprobs=np.asarray(logprobs, np.float32),
                weights=np.ones(len(ids), np.float32),
                advantage=1.0,
                group=0,
            )
        )
    differences = []
    with torch.no_grad():
        for _, packed in learner.parts(made):
            differences.append((learner.logprobs(packed)[0] - packed.sampler).double().cpu())
    difference = torch.cat(differences)
    found = {
        "tokens": len(difference),
        "logprob_difference_mean": float(difference.abs().mean()),
        "logprob_difference_max": float(difference.abs().max()),
        "ratio_mean": float(difference.exp().mean()),
    }
    if not (abs(found["ratio_mean"] - 1) < 0.02 and found["logprob_difference_mean"] < 0.1):
        raise Failed("sampler and learner disagree by more than a run allows", found)
    return found


@check
def engine_half(setting: Setting) -> Figures:
    """Sampled tokens per second of the in-process engine, 0.5B with an adapter."""
    return _engine(setting, setting.half)


@check
def engine_3b(setting: Setting) -> Figures:
    """Sampled tokens per second of the in-process engine, 3B with an adapter."""
    return _engine(setting, setting.three)


def _engine(setting: Setting, shape: Shape) -> Figures:
    learner = random_learner(shape, setting)
    prompt = [int(token) for token in np.random.default_rng(2).integers(3, shape.vocabulary, setting.prompt // 4)]
    _sample(learner, setting, prompt[:8], episodes=2)  # to warm up
    forget_peak(setting.device)
    found = _sample(learner, setting, prompt, episodes=setting.episodes)
    tokens = sum(len(ids) for ids, _ in found.pop("turns"))
    return {
        **found,
        "episodes": setting.episodes,
        "prompt": len(prompt),
        "sampled_tokens": tokens,
        "sampled_tokens_per_second": tokens / found["seconds"],
        "peak_memory_gb": peak_memory(setting.device),
    }


def _sample(learner: Learner, setting: Setting, prompt: list[int], *, episodes: int) -> Figures:
    """One turn of each episode, all of them side by side."""
    import anyio

    from mcp_rl.backends.weights import sampled_weights
    from mcp_rl.inference.engine import Sampling
    from mcp_rl.inference.local import LocalEngine
    from mcp_rl.inference.policy import fingerprint_of

    turns: dict[int, tuple[list[int], list[float]]] = {}

    async def work() -> Figures:
        base = cast(Any, learner.model).get_base_model()
        async with LocalEngine(base, stop_token_ids=[0]) as engine:
            weights = sampled_weights(learner.model)
            await engine.load_policy(weights, 1)
            if engine.fingerprint != fingerprint_of(weights):
                raise Failed("the engine does not sample the weights that it was given", {})

            async def one(seed: int) -> None:
                async with engine.episode(seed=seed) as episode:
                    said = await episode.generate(prompt, Sampling(max_tokens=setting.sampled))
                    turns[seed] = said.token_ids, said.logprobs

            wait(setting.device)
            began = time.perf_counter()
            async with anyio.create_task_group() as tasks:
                for seed in range(episodes):
                    tasks.start_soon(one, seed)
            wait(setting.device)
            return {"seconds": time.perf_counter() - began, "decode_steps": engine.stats.steps}

    found = anyio.run(work)
    return {**found, "turns": [turns[seed] for seed in range(episodes)]}


@check
def main_job(setting: Setting) -> Figures:
    """`mcp-rl train` with the built-in model, stopped and continued once, where the device is."""
    steps = 1 if setting.dry_run else 4
    small = ["scenarios.count=60", "scenarios.val=20", "evaluation.samples=1", "evaluation.greedy=false"]
    small += ["rollout.groups_per_step=4", "rollout.group_size=8", "train.checkpoint_every=1"]
    large = ["scenarios.val=60", "evaluation.samples=1"]
    with tempfile.TemporaryDirectory() as place:
        runs = []
        for wanted in (steps, 2 * steps):
            words = ["train", "--server", "mcp_calculator", "--output-dir", place, "--steps", str(wanted), "--json"]
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "mcp_rl", *words, *(small if setting.dry_run else large)],
                capture_output=True,
                text=True,
                cwd=ROOT,
            )
            if done.returncode:
                raise Failed(f"it ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}", {})
            runs.append(json.loads(done.stdout.splitlines()[-1]) | {"session_seconds": time.perf_counter() - began})
        folder = Path(runs[-1]["run_dir"])
        history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    train = [line for line in history if line["split"] == "train"]
    names = ("ratio_mean", "logprob_difference_mean", "logprob_difference_max", "entropy", "grad_norm", "step_seconds")
    found = {
        "steps": [line["step"] for line in train],
        "success_before": runs[-1]["val"]["before"]["success"],
        "success_after": runs[-1]["val"]["after"]["success"],
        "session_seconds": [run["session_seconds"] for run in runs],
        **{name: [line.get(name) for line in train] for name in names},
    }
    if found["steps"] != list(range(1, 2 * steps + 1)):
        raise Failed(f"the run that was continued has the steps {found['steps']}", found)
    return found


# -- running them


@dataclass
class Outcome:
    """What became of a check."""

    name: str
    about: str
    status: str = "passed"
    reason: str | None = None
    seconds: float = 0.0
    figures: Figures = field(default_factory=dict)

    def line(self) -> str:
        """For a person."""
        told = ", ".join(f"{key} {value:.4g}" for key, value in self.figures.items() if isinstance(value, float))
        return f"{self.name:<18} {self.status:<8} {self.seconds:6.1f} s  {self.reason or told}"


def _child(name: str, setting: Setting, answer: Connection) -> None:
    """Run one check and send what became of it."""
    outcome = Outcome(name, CHECKS[name].__doc__ or "")
    os.environ["HF_HUB_OFFLINE"] = "1"
    if setting.dry_run:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        outcome.figures = CHECKS[name](setting)
    except Skipped as skipped:
        outcome.status, outcome.reason = "skipped", str(skipped)
    except Failed as failed:
        outcome.status, outcome.reason = "failed", str(failed.args[0])
        outcome.figures = failed.args[1] if len(failed.args) > 1 else {}
    except Exception as error:
        outcome.status, outcome.reason = "failed", f"{type(error).__name__}: {error}"[:2000]
        outcome.figures = {"traceback": traceback.format_exc()[-4000:]}
    answer.send(asdict(outcome))
    answer.close()


def run_check(name: str, setting: Setting, limit: float) -> Outcome:
    """One check in a process of its own, which is killed when its time is over."""
    here, there = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_child, args=(name, setting, there), name=name)
    began = time.monotonic()
    child.start()
    there.close()
    outcome = Outcome(name, CHECKS[name].__doc__ or "", "failed")
    try:
        if here.poll(limit):
            outcome = Outcome(**here.recv())
        else:
            outcome.reason = f"it was not done in {limit:.0f} s"
    except EOFError:
        child.join(10)
        outcome.reason = f"its process died with exit code {child.exitcode}"
    finally:
        child.kill()
        child.join()
        here.close()
    outcome.seconds = round(time.monotonic() - began, 2)
    return outcome


def versions() -> dict[str, str | None]:
    """Of what is computed with."""
    packages = {name: version(name) for name in ("torch", "transformers", "peft")}
    return {"python": platform.python_version(), **packages, "cuda": torch.version.cuda}


def driver() -> str | None:
    """Version of the GPU's driver; None where there is none."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split("\n")[0]
    return None


def has_cuda() -> bool:
    """Asked in another process: one that has touched CUDA cannot fork."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return bool(pool.apply(torch.cuda.is_available))


def commit() -> str | None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=True
        ).stdout.strip()
    return None


def outcomes(setting: Setting, wanted: Sequence[str], limit: float) -> Iterator[Outcome]:
    """One after another; what was not wanted is skipped."""
    for name, function in CHECKS.items():
        if name in wanted:
            yield run_check(name, setting, limit)
        else:
            yield Outcome(name, function.__doc__ or "", "skipped", "it was not asked for")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks, write the JSON; 1 where one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--out", type=Path, help="the file to write; benchmarks/results/gpu_check.json, or dry runs none"
    )
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), default=list(CHECKS), help="run these checks alone")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for each check")
    parser.add_argument("--dry-run", action="store_true", help="small shapes on the CPU, whatever there is")
    given = parser.parse_args(arguments)
    setting = DRY if given.dry_run or not has_cuda() else REAL
    if setting.dry_run:
        print("No CUDA device is used: a dry run, small shapes on the CPU.", file=sys.stderr)
    found = []
    for outcome in outcomes(setting, given.only, given.limit):
        print(outcome.line(), file=sys.stderr, flush=True)
        found.append(outcome)
    told = next((outcome.figures for outcome in found if outcome.name == "device"), {})
    result = {
        "dry_run": setting.dry_run,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "device": "cpu" if setting.dry_run else told.get("name", "cuda"),
        "driver": None if setting.dry_run else driver(),
        "versions": versions(),
        "failed": [outcome.name for outcome in found if outcome.status == "failed"],
        "checks": {outcome.name: asdict(outcome) for outcome in found},
    }
    text = json.dumps(result, indent=2) + "\n"
    out = given.out or (None if setting.dry_run else ROOT / "benchmarks" / "results" / "gpu_check.json")
    if out is None:
        print(text, end="")
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)
        print(f"Written to {out}.", file=sys.stderr)
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
