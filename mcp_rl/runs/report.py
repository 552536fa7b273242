"""The report of a run: the base model's results, the trained model's results, and the next commands."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from mcp_rl.evaluation.measure import shown
from mcp_rl.evaluation.progress import say
from mcp_rl.evaluation.tables import Grid, print_grid
from mcp_rl.runs.learned import Learned
from mcp_rl.runs.settings import Origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console


class Headline(BaseModel):
    """The main numbers of one evaluation."""

    model_config = ConfigDict(extra="ignore")

    success: float | None
    """Share of held-out scenarios that were solved, 0 to 1."""
    ci95: tuple[float, float] | None
    """95 % interval of `success`."""
    reward: float | None


class ValReport(BaseModel):
    """The held-out scenarios before and after training."""

    model_config = ConfigDict(extra="forbid")

    scenarios: int
    before: Headline
    after: Headline


class TrainTotals(BaseModel):
    """The cost of training, over all sessions of the run."""

    model_config = ConfigDict(extra="ignore")

    rollouts: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    faults: int = 0
    """Rollouts that the world ended; no mean and no update includes them."""


class RunReport(BaseModel):
    """`report.json`. Without `details` it is the object that `--json` prints."""

    model_config = ConfigDict(extra="forbid")

    run_dir: str
    server: str
    base_model: str
    step: int
    seconds: float
    peak_rss_mb: float
    val: ValReport
    train: TrainTotals
    target_reached: float | None = None
    """Success estimated for the training scenarios at which training ended before its last step; None if it did not."""
    learned: Learned | None = None
    """The result of the training, with the reasons if nothing was learned; None in the report of an earlier version."""
    details: dict[str, dict[str, Any]] = {}
    """`before` and `after`: whole evaluations as JSON, with `greedy`, `sampled`, `by_tool` and `by_level`. With a judge
    `judge`: what it `spent`, its comparison of pairs, and its `agreement` with the verifier `before` and `after`. With
    another model than the built-in one `forecast`: what was expected before the first step, and what it was."""

    def json_line(self) -> str:
        """Return the line that `--json` prints."""
        return self.model_dump_json(exclude={"details"})


def print_report(report: RunReport, console: Console) -> None:
    """Print the final tables, the run's files, and the next commands."""
    by = [_by(report, "tool"), _by(report, "level")]
    for grid in (_before_and_after(report), *by, _judge_against_verifier(report)):
        if grid.rows:
            print_grid(grid, console)
    for line in next_lines(report):
        say(line, console)


def _before_and_after(report: RunReport) -> Grid:
    """Make the table of the base model's and the trained model's evaluation."""
    before, after = report.details.get("before", {}), report.details.get("after", {})
    rows = list(_measure_rows(before, after))
    if not rows:
        rows = list(_rows("", report.val.before.model_dump(), report.val.after.model_dump()))
    title = f"{report.server}: {report.val.scenarios} scenarios that were never trained on"
    return Grid(title, ["", "before", f"after step {report.step}"], rows)


def _by(report: RunReport, what: str) -> Grid:
    """Make the table of success by the tools in a scenario's reference solution, or by its level, where there are
    several levels."""
    before = report.details.get("before", {}).get(f"by_{what}", {})
    after = report.details.get("after", {}).get(f"by_{what}", {})
    rows = [
        [name, str(int(found["scenarios"])), shown(before.get(name, {}).get("success")), shown(found["success"])]
        for name, found in after.items()
    ]
    return Grid(f"by {what}", ["", "scenarios", "before", "after"], rows)


def _judge_against_verifier(report: RunReport) -> Grid:
    """Make the table of the judge's agreement with the verifier on held-out episodes that both have scored."""
    agreed = report.details.get("judge", {}).get("agreement") or {}
    sides = agreed.get("before") or {}, agreed.get("after") or {}
    rows = []
    if any(sides):
        rows.append(["pairs ordered the same way", *(shown(side.get("agreement"), side.get("ci95")) for side in sides)])
        for key, name in (
            ("rank_correlation", "rank correlation within a group (tau-b)"),
            ("mean_passed", "judge's mean score, passed"),
            ("mean_failed", "judge's mean score, failed"),
        ):
            rows.append([name, *(shown(side.get(key)) for side in sides)])
    return Grid("the judge against the verifier", ["", "before", "after"], rows)


def next_lines(report: RunReport) -> Iterator[str]:
    """Yield sentences about the run's cost, what it learned, its files, and the next commands."""
    train = report.train
    yield (
        f"{report.step} steps in {_duration(report.seconds)}, {report.peak_rss_mb:.0f} MB at most: {train.rollouts} "
        f"rollouts, {train.sampled_tokens} tokens sampled, {train.trained_tokens} trained on, {train.faults} faults."
    )
    if pace := pace_line(report.details.get("forecast") or {}):
        yield pace
    if report.learned is not None:
        yield from report.learned.sentences
    yield f"The run is in {report.run_dir}: report.json, history.jsonl and every episode under trajectories/."
    checkpoint = Path(report.run_dir) / "checkpoints" / f"{report.step:04d}"
    if report.learned is not None and report.learned.outcome == "nothing":
        yield f"The weights in {checkpoint} are still those that the run began with."
        yield "To try again with other settings, add --fresh, or another --name."
        return
    if (checkpoint / "adapter_config.json").is_file():
        yield f"The trained adapter is in {checkpoint}; transformers and peft load it from there."
    elif checkpoint.is_dir():
        yield f"The trained model is in {checkpoint}; transformers loads it from there."
    if (command := chat_command(Path(report.run_dir))) is not None:
        yield command
    further = f"more steps: --steps {2 * report.step or 60}" if report.target_reached is None else "target_success=none"
    yield f"To train further, type the same command with {further}. To start over: --fresh."


def pace_line(forecast: Mapping[str, Any]) -> str | None:
    """Return the sentence that compares a forecast with what it was; None if there is none, or no step."""
    expected, was = forecast.get("steps_per_hour"), forecast.get("steps_per_hour_was")
    if not expected or not was:
        return None
    pace, forecast_pace = (f"{value:,.0f}" if value >= 10 else f"{value:.2g}" for value in (was, expected))
    return f"{pace} steps an hour; {forecast_pace} were forecast, so it was {was / expected:.2g} times as fast."


def chat_command(folder: Path) -> str | None:
    """Return the sentence with the command that talks to the model of a run; None if there is no such run."""
    if not (folder / "model.json").is_file():
        return None
    name = folder.name if folder.parent == Path(".mcp_rl/default/models") else str(folder)
    known = Origin.of(folder).server_words is not None
    same = "" if known else ", with the --server of this command"
    return f"To talk to it{same}: mcp-rl chat {shlex.quote(name)}"


def _measure_rows(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[list[str]]:
    for kind in ("greedy", "sampled"):
        if after.get(kind):
            yield from _rows(kind, before.get(kind) or {}, after[kind])


def _rows(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[list[str]]:
    yield [
        f"{kind} success".strip(),
        shown(before.get("success"), before.get("ci95")),
        shown(after.get("success"), after.get("ci95")),
    ]
    for k in _most(after.get("pass_at")):
        yield [f"{kind} pass@{k}", shown(_at(before, k)), shown(_at(after, k))]
    for key, name, digits in (("reward", "reward", 3), ("turns", "turns", 2), ("sampled_tokens", "tokens", 1)):
        if after.get(key) is not None:
            yield [f"{kind} {name}".strip(), shown(before.get(key), digits=digits), shown(after[key], digits=digits)]


def _most(pass_at: Mapping[Any, float] | None) -> list[int]:
    """Return the largest measured k above 1, if any: pass@1 is the success itself."""
    return [k for k in [max(map(int, pass_at or {}), default=1)] if k > 1]


def _at(measure: Mapping[str, Any], k: int) -> float | None:
    pass_at = measure.get("pass_at") or {}
    found: float | None = pass_at.get(k, pass_at.get(str(k)))
    return found


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} minutes"
