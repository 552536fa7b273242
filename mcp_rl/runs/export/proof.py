"""Read a checkpoint's evaluation and training from its run, for the model card."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp_rl.evaluation.evaluate import EvaluationResult, summarize

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcp_rl.run_directory import RunDirectory
    from mcp_rl.runs.export.source import ExportSource
    from mcp_rl.scenario import McpScenario


@dataclass(frozen=True)
class Proof:
    """A run's record of a checkpoint; all defaults for a folder that belongs to no run."""

    server: str | None = None
    how: str = "GRPO"
    step: int = 0
    seed: int | None = None
    schema_hash: str | None = None
    train_scenarios: int = 0
    val_scenarios: int = 0
    tools: list[str] = field(default_factory=list)
    """Tools of the reference solutions, the most used first."""
    before: EvaluationResult | None = None
    after: EvaluationResult | None = None
    """Evaluation of exactly this step; None where it was not evaluated."""
    totals: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)
    """Sentences about what of the run cannot be compared with its digest."""


_SETTINGS = (
    *("train.method", "train.loss", "train.learning_rate", "train.lora.rank", "train.lora.alpha"),
    *("rollout.groups_per_step", "rollout.group_size", "rollout.temperature", "rollout.max_turns"),
)
_TOTALS = ("rollouts", "sampled_tokens", "trained_tokens")


def read_proof(source: ExportSource) -> Proof:
    """Read the proof from the run's own files. Raises RunDirectoryError where they cannot be read."""
    run = source.run
    if run is None:
        return Proof(step=source.step)
    about, unchecked = source.about, run.check_whole()
    if "sft" in about and "identity" not in about:
        seed = about["sft"].get("seed")
        return Proof(how="supervised fine-tuning", step=source.step, seed=seed, unchecked=unchecked)
    identity = run.identity()
    if identity is None:
        return Proof(step=source.step, unchecked=unchecked)
    train, val = run.scenarios("train") or [], run.scenarios("val") or []
    state = run.state()
    totals = state.progress.model_dump() if state.step == source.step else {}
    greedy = bool(identity.settings.get("evaluation.greedy", True))
    return Proof(
        server=identity.server,
        step=source.step,
        seed=identity.seed,
        schema_hash=identity.schema_hash,
        train_scenarios=len(train),
        val_scenarios=len(val),
        tools=_tools([*train, *val]),
        before=EvaluationResult.model_validate(state.before) if state.before else _evaluated_during_run(run, 0, greedy),
        after=_after(run, source.step, greedy),
        totals={name: int(totals[name]) for name in _TOTALS if totals.get(name)},
        settings={key: identity.settings[key] for key in _SETTINGS if identity.settings.get(key) is not None},
        unchecked=unchecked,
    )


def _after(run: RunDirectory, step: int, greedy: bool) -> EvaluationResult | None:
    state = run.state()
    if step and state.after is not None and state.after_step == step:
        return EvaluationResult.model_validate(state.after)
    return _evaluated_during_run(run, step, greedy) if step else None


def _evaluated_during_run(run: RunDirectory, step: int, greedy: bool) -> EvaluationResult | None:
    """Summarize the held-out episodes of a step, if it was evaluated during the run."""
    groups = run.trajectories("val", step)
    return summarize(groups, step=step, greedy=greedy) if groups else None


def _tools(scenarios: Iterable[McpScenario]) -> list[str]:
    used = Counter(call.tool for scenario in scenarios for call in scenario.reference)
    return [tool for tool, _ in sorted(used.items(), key=lambda pair: (-pair[1], pair[0]))]
