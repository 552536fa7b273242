"""The proof that a run leaves: how the base model did, how the trained one does, and what to type next."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.markup import escape
from rich.table import Table


class Headline(BaseModel):
    """One evaluation in three numbers."""

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
    """What the training cost, over all sessions of the run."""

    model_config = ConfigDict(extra="ignore")

    rollouts: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    faults: int = 0
    """Rollouts that the world ended; they are in no mean and in no update."""


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
    details: dict[str, dict[str, Any]] = {}
    """`before` and `after`: whole evaluations as JSON, with `greedy`, `sampled` and `by_tool`. With a judge `judge`:
    what it `spent`, its word on pairs, and its `agreement` with the verifier `before` and `after`."""

    def json_line(self) -> str:
        return self.model_dump_json(exclude={"details"})


def print_report(report: RunReport, console: Console) -> None:
    """The final tables, where everything is, and what to type next."""
    console.print(before_and_after(report))
    by_tool = tools_table(report)
    if by_tool.row_count:
        console.print(by_tool)
    judged = judge_table(report)
    if judged.row_count:
        console.print(judged)
    for line in next_lines(report):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def before_and_after(report: RunReport) -> Table:
    """The evaluation of the base model beside that of the trained one."""
    title = f"{report.server}: {report.val.scenarios} scenarios that were never trained on"
    table = Table(title=escape(title), title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column(f"after step {report.step}", justify="right")
    before, after = report.details.get("before", {}), report.details.get("after", {})
    rows = list(_measure_rows(before, after))
    if not rows:
        rows = list(_rows("", report.val.before.model_dump(), report.val.after.model_dump()))
    for name, *values in rows:
        table.add_row(name, *values)
    return table


def tools_table(report: RunReport) -> Table:
    """Success by the tools that a scenario's reference solution uses."""
    table = Table(title="by tool", title_justify="left", title_style="bold")
    for column in ("", "scenarios", "before", "after"):
        table.add_column(column, justify="right" if column else "left")
    before = report.details.get("before", {}).get("by_tool", {})
    after = report.details.get("after", {}).get("by_tool", {})
    for tool, measured in after.items():
        earlier = before.get(tool, {}).get("success")
        table.add_row(escape(tool), str(int(measured["scenarios"])), _share(earlier), _share(measured["success"]))
    return table


def judge_table(report: RunReport) -> Table:
    """How far the judge agrees with the verifier on the held-out episodes, where both have scored them."""
    table = Table(title="the judge against the verifier", title_justify="left", title_style="bold")
    for column in ("", "before", "after"):
        table.add_column(column, justify="right" if column else "left")
    agreed = report.details.get("judge", {}).get("agreement") or {}
    before, after = agreed.get("before") or {}, agreed.get("after") or {}
    if before or after:
        sides = [f"{_share(side.get('agreement'))}{_interval(side.get('ci95'))}" for side in (before, after)]
        table.add_row("pairs ordered the same way", *sides)
        for key, name in (
            ("rank_correlation", "rank correlation within a group (tau-b)"),
            ("mean_passed", "judge's mean score, passed"),
            ("mean_failed", "judge's mean score, failed"),
        ):
            table.add_row(name, _share(before.get(key)), _share(after.get(key)))
    return table


def next_lines(report: RunReport) -> Iterator[str]:
    """Where everything is and what to type next."""
    train = report.train
    yield (
        f"{report.step} steps in {_duration(report.seconds)}, {report.peak_rss_mb:.0f} MB at most: {train.rollouts} "
        f"rollouts, {train.sampled_tokens} tokens sampled, {train.trained_tokens} trained on, {train.faults} faults."
    )
    yield f"The run is in {report.run_dir}: report.json, history.jsonl and every episode under trajectories/."
    checkpoint = Path(report.run_dir) / "checkpoints" / f"{report.step:04d}"
    if (checkpoint / "adapter_config.json").is_file():
        yield f"The trained adapter is in {checkpoint}; transformers and peft load it from there."
    elif checkpoint.is_dir():
        yield f"The trained model is in {checkpoint}; transformers loads it from there."
    yield (
        f"To train further, type the same command with more steps: --steps {2 * report.step or 60}. To start over: "
        "--fresh."
    )


def _measure_rows(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for kind in ("greedy", "sampled"):
        if after.get(kind):
            yield from _rows(kind, before.get(kind) or {}, after[kind])


def _rows(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield f"{kind} success".strip(), _with_interval(before), _with_interval(after)
    for k in _most(after.get("pass_at")):
        yield f"{kind} pass@{k}", _share(_at(before, k)), _share(_at(after, k))
    for key, name, digits in (("reward", "reward", 3), ("turns", "turns", 2), ("sampled_tokens", "tokens", 1)):
        if after.get(key) is not None:
            yield f"{kind} {name}".strip(), _number(before.get(key), digits), _number(after[key], digits)


def _with_interval(measure: Mapping[str, Any]) -> str:
    share, interval = measure.get("success"), measure.get("ci95")
    return f"{_share(share)} [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else _share(share)


def _interval(interval: Any) -> str:
    return f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""


def _most(pass_at: Mapping[Any, float] | None) -> list[int]:
    """The largest k above 1 that was measured: pass@1 is the success itself."""
    return [k for k in [max(map(int, pass_at or {}), default=1)] if k > 1]


def _at(measure: Mapping[str, Any], k: int) -> float | None:
    pass_at = measure.get("pass_at") or {}
    found: float | None = pass_at.get(k, pass_at.get(str(k)))
    return found


def _share(share: float | None) -> str:
    return _number(share, 3)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} minutes"
