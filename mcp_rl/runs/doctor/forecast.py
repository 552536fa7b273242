"""A forecast of a run's pace and cost, from the plan and data sheets, to be compared with what it was.

Sampling reads all weights for each token of a batch of rows, so memory bandwidth bounds it; the update multiplies, so
arithmetic bounds it (Kaplan et al., 2020: 2 operations for each weight and token forward, 4 with what goes back through
an adapter, 6 for whole weights). Both reach a share of the data sheet, and episodes a share of their limits; these
shares are assumptions, which the run's own pace replaces.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from mcp_rl.backends.plan import memory
from mcp_rl.backends.plan.choices import kept_quantisation, ranks
from mcp_rl.backends.plan.detect import detect
from mcp_rl.backends.plan.machine import FrozenData
from mcp_rl.backends.plan.plan import plan
from mcp_rl.backends.plan.shape import model_shape
from mcp_rl.backends.plan.sheets import CPU_CORE, HOST_BANDWIDTH, SAMPLING, gpu_speed
from mcp_rl.backends.plan.wanted import wanted
from mcp_rl.config import TINY
from mcp_rl.config.presets import kind_of
from mcp_rl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mcp_rl.backends.plan.machine import Machine
    from mcp_rl.backends.plan.outcome import RunPlan
    from mcp_rl.backends.plan.shape import ModelShape
    from mcp_rl.config import RunConfig

LEARNING, OF_LIMIT = 0.3, 0.25
"""Assumed shares: of the operations while learning, and of its token limit that an episode samples."""
PROMPT = 1500
"""Assumed tokens of tools and request, without results."""
TOOLS = 2.0
"""Seconds of a step that tools, judges and the swap take."""


class Forecast(FrozenData):
    """The pace and cost of a run, as expected before it starts."""

    step_seconds: float
    sampling_seconds: float
    update_seconds: float
    tokens_per_step: int
    """Sampled tokens."""
    steps: int
    hours: float
    """Hours that the whole run takes, evaluations included."""
    memory: int
    """Peak bytes of device memory in the plan."""
    cost: float | None = None
    """US dollars, where `placement.hourly_rate` is given."""

    @property
    def steps_per_hour(self) -> float:
        return 3600 / self.step_seconds

    @property
    def line(self) -> str:
        """The forecast in one sentence."""
        money = "" if self.cost is None else f", {self.cost:.2f} US dollars"
        hours = _rounded(self.hours)
        hours += " hour" if hours == "1" else " hours"
        return (
            f"About {_rounded(self.steps_per_hour)} steps an hour ({_rounded(self.sampling_seconds)} s sampling, "
            f"{_rounded(self.update_seconds)} s learning), {self.tokens_per_step:,} sampled tokens a step, and "
            f"{hours} for {self.steps} steps with their evaluations{money}; by data sheets, so "
            "within a factor of three."
        )


def forecast(config: RunConfig, made: RunPlan, shape: ModelShape, machine: Machine) -> Forecast:
    """Return the forecast of a run on a machine, by its plan."""
    bandwidth, operations = _speed(made, machine)
    rollout = config.rollout
    said = min(rollout.max_tokens, rollout.max_turns * rollout.max_turn_tokens)
    if kind_of(config.base_model, {"chat": config.chat}).thinking:
        said += rollout.max_turns * rollout.max_thought_tokens
    sampled = max(1, int(OF_LIMIT * said))
    episodes = rollout.groups_per_step * rollout.group_size
    rows = max(1, min(made.rows, episodes))
    base = memory.weights(shape, made.quantisation, made.dtype)
    a_token = base / (SAMPLING * bandwidth) + rows * 2 * shape.parameters / operations
    sampling = sampled * a_token * episodes / rows
    given = PROMPT + min(2, rollout.max_turns) * rollout.max_result_tokens // 4
    shared = given // rollout.group_size if config.train.prefix_sharing else given
    passes = (6 if config.train.method == "full" else 4) + (2 if made.activation_checkpointing else 0)
    update = passes * shape.parameters * episodes * (sampled + shared) * config.train.epochs / (LEARNING * operations)
    moves = 2 * made.moved / (machine.host_bandwidth or HOST_BANDWIDTH)
    step = sampling + update + moves + TOOLS
    played = config.scenarios.val * _evaluated(config)
    hours = (config.steps * step + played * sampling / episodes) / 3600
    rate = config.placement.hourly_rate
    return Forecast(
        step_seconds=step,
        sampling_seconds=sampling,
        update_seconds=update,
        tokens_per_step=episodes * sampled,
        steps=config.steps,
        hours=hours,
        memory=max(made.total),
        cost=None if rate is None else hours * rate,
    )


def forecast_here(config: RunConfig) -> Forecast | None:
    """Return the forecast of a run on this machine; None for the built-in model, whose pace is known, and where the
    size of the model or a plan is not."""
    if config.backend != "local" or config.base_model == TINY:
        return None
    try:
        shape = model_shape(config.unsloth.model_name or config.base_model)
    except ConfigError:
        return None
    machine = detect(config.output_dir)
    made = plan(machine, shape, wanted(config, kept=kept_quantisation(config.run_dir), ranks=ranks()))
    return forecast(config, made, shape, machine) if made.fits else None


def compared(kept: Mapping[str, Any], history: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a kept forecast beside what it was by the run's history: `steps_per_hour` and `steps_per_hour_was`."""
    took = [line["step_seconds"] for line in history if line.get("split") == "train" and line.get("step_seconds")]
    was = 3600 / fmean(took) if took else None
    return {"steps_per_hour": Forecast.model_validate(kept).steps_per_hour, "steps_per_hour_was": was, **kept}


def _evaluated(config: RunConfig) -> int:
    """Return the episodes of each held-out scenario in all evaluations of a run."""
    evaluation = config.evaluation
    whole = evaluation.greedy + evaluation.samples
    samples = evaluation.samples if evaluation.samples_between is None else evaluation.samples_between
    between = max(0, (config.steps - 1) // evaluation.every) if evaluation.every else 0
    return 2 * whole + between * max(1, evaluation.greedy + samples)


def _speed(made: RunPlan, machine: Machine) -> tuple[float, float]:
    """Return bytes and operations a second of the device."""
    if made.device == "cpu":
        bandwidth, operations = (machine.cpus * each for each in CPU_CORE)
        return bandwidth * 1e9, operations * 1e12
    return gpu_speed(made.where)


def _rounded(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
