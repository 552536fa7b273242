"""The charts of what history.jsonl holds, of one run or of several in one. Each is None where there is nothing to show.

A single run is drawn by what its curves are about, several by a colour each.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from mcp_rl.activity import Activity
from mcp_rl.report.charts import said
from mcp_rl.report.drawing import GRID, MUTED, NARROW, SERIES, Chart, Sheet, label, share_axis

Lines = Sequence[Mapping[str, Any]]
"""Of one run's history.jsonl, in order."""
Runs = Mapping[str, Lines]
"""Name to lines."""
_KINDS = {"sampled": ("s", SERIES[2]), "greedy": ("o", SERIES[1])}
"""Of held-out episodes; how they are marked, and coloured where there is one run."""
_SMOOTHED = 40
"""Steps from which on a curve is drawn smoothed too."""
_SIGNALS = {
    "reward": "mean reward",
    "groups_useful": "groups whose rewards differ",
    "entropy": "entropy of a sampled token, nats",
    "grad_norm": "norm of the gradient",
    "sampled_tokens_mean": "tokens said in an episode",
    "turns": "turns of an episode",
    "judge_pairwise_agreement": "judge: pairs in order",
    "judge_rank_correlation": "judge: rank correlation",
}
_SUPERVISED = {"learning_rate": "learning rate"}
"""What else there is where nothing was rewarded."""
_AGREEMENT = {
    "logprob_difference_mean": "logprob difference, mean",
    "logprob_difference_max": "logprob difference, largest",
    "ratio_mean": "ratio before clipping, mean",
    "ratio_max": "ratio before clipping, largest",
    "ess": "effective sample size, share",
    "clip_share": "share of tokens clipped",
    "staleness_mean": "steps that tokens are old, mean",
    "corrected_share": "share of tokens corrected",
}
_SHARING = {"saved_share": "share of tokens computed once for many", "forward_tokens": "tokens computed in a step"}
_NEAR_ONE = ("ratio_mean", "ess")
"""Drawn around 1, and not from 0."""
_ONLY_WHERE_USED = ("staleness_mean", "corrected_share")
KINDS_OF_WORK = (*map(str, Activity), "overhead")
"""What a step's time is told apart into: `<kind>_seconds` and `<kind>_time_share` in history.jsonl."""
_ONCE_MEASURED = {"sampling": "rollout_seconds", "updating": "update_seconds", "saving": "save_seconds"}
"""Where a line lacks them: what says nearly the same."""
_POOLS = {"unseen": "never played", "too_hard": "too hard", "right": "sometimes solved", "solved": "solved"}


def learning_curve(sheet: Sheet, runs: Runs) -> Chart | None:
    """Success, else reward, else the loss, over the steps; held out with intervals."""
    train = {name: _split(lines, "train") for name, lines in runs.items()}
    told = {key for lines in train.values() for line in lines for key in line if line[key] is not None}
    key = next((key for key in ("success", "reward") if key in told), "loss")
    kinds, what = (_KINDS, "training episodes") if key != "loss" else ({"": ("o", SERIES[1])}, "training")
    trained = {name: points(lines, key) for name, lines in train.items()}
    if not any(steps for steps, _ in trained.values()):
        return None
    alone = len(runs) == 1

    def draw(figure: Figure, width: int) -> None:
        axes = figure.subplots()
        handles: list[Any] = []
        names: list[str] = []
        for number, (name, (steps, values)) in enumerate(trained.items()):
            color = MUTED if alone else _color(number)
            many = len(steps) > _SMOOTHED
            axes.plot(steps, values, color=color, lw=1, alpha=0.55 if alone else 0.25)
            for x, y in zip(steps, values, strict=True) if not many else ():
                sheet.tell(axes.plot([x], [y], "o", color=color, ms=3.5)[0], f"{name}, step {x}: {y:.3f}")
            smooth = axes.plot(steps, smoothed(values) if many else values, color=color, lw=2 if many else 1)[0]
            handles.append(smooth)
            names.append(f"{what}{', smoothed' if many else ''}" if alone else label(name, width))
            for kind, (mark, own) in kinds.items():
                found = _evaluations(sheet, axes, runs[name], kind, key, own if alone else color, mark, name)
                if alone and found:
                    handles.append(axes.plot([], [], color=own, lw=2, marker=mark, ms=7)[0])
                    names.append(f"held out, {kind}" if kind else "held out")
        if not alone:
            handles += [axes.plot([], [], mark, color=MUTED, ms=7)[0] for mark, _ in kinds.values()]
            names += [f"held out, {kind}" if kind else "held out" for kind in kinds]
        if key == "success":
            share_axis(axes, horizontal=False)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        axes.set_xlabel("training step")
        axes.set_ylabel(key)
        columns = 3 if width > NARROW else 1
        figure.legend(handles, names, loc="outside upper left", ncols=columns, borderpad=0, columnspacing=1.4)

    ended = "; ".join(
        f"{'training' if alone else name} ended at {values[-1]:.3f} in step {steps[-1]}"
        for name, (steps, values) in trained.items()
        if steps
    )
    high = 320 + (0 if alone else 6 * len(runs))
    return sheet.draw(f"{key.capitalize()} over the training steps: {ended}.", lambda width: high, draw)


def signals(sheet: Sheet, runs: Runs) -> Chart | None:
    """What training itself reports, a small chart each."""
    rewarded = any("reward" in line for lines in runs.values() for line in lines)
    return _small_charts(sheet, "Over the training steps", runs, _SIGNALS if rewarded else _SUPERVISED | _SIGNALS)


def agreement(sheet: Sheet, runs: Runs) -> Chart | None:
    """How far sampler and learner agree, and what was done where they do not."""
    return _small_charts(sheet, "Sampler and learner over the training steps", runs, _AGREEMENT)


def sharing(sheet: Sheet, runs: Runs) -> Chart | None:
    """What the prefix tree spared the update."""
    return _small_charts(sheet, "The prefix tree over the training steps", runs, _SHARING)


def time_shares(sheet: Sheet, runs: Runs) -> Chart | None:
    """What the time of each step went into, a row for each run. Kinds of work overlap, so they may be above 1."""
    found = {name: times(_split(lines, "train")) for name, lines in runs.items()}
    found = {name: value for name, value in found.items() if value[1]}
    shown = [kind for kind in KINDS_OF_WORK if any(any(shares.get(kind, ())) for _, shares in found.values())]
    if not shown:
        return None

    def fill(axes: Axes, name: str) -> None:
        steps, shares = found[name]
        stacked = [shares.get(kind, [0.0] * len(steps)) for kind in shown]
        axes.stackplot(*_wide_enough(steps, stacked), colors=[_kind_color(kind) for kind in shown], lw=0)
        axes.axhline(1.0, color=GRID, lw=1)
        axes.set_ylim(0, max(1.02, *map(sum, zip(*stacked, strict=True))))

    said_ = "; ".join(
        f"{name}: " + ", ".join(f"{kind} {_mean(shares[kind]):.2f}" for kind in shown if kind in shares)
        for name, (_, shares) in found.items()
    )
    colors = {kind: _kind_color(kind) for kind in shown}
    return _stacked(sheet, f"Shares of a step's time. {said_}.", list(found), colors, fill)


def pools(sheet: Sheet, runs: Runs) -> Chart | None:
    """How many training scenarios were in each pool after each step, a row for each run."""
    found: dict[str, tuple[list[int], list[list[float]]]] = {}
    for name, every in runs.items():
        if lines := [line for line in _split(every, "train") if "pool_right" in line]:
            counts = [[float(line.get(f"pool_{pool}", 0)) for line in lines] for pool in _POOLS]
            found[name] = [line["step"] for line in lines], counts
    if not found:
        return None
    colors = {name: SERIES[number] for number, name in zip((0, 5, 1, 3), _POOLS.values(), strict=True)}

    def fill(axes: Axes, name: str) -> None:
        steps, counts = found[name]
        axes.stackplot(*_wide_enough(steps, counts), colors=list(colors.values()), lw=0)
        axes.set_ylim(bottom=0)

    ends = "; ".join(
        f"{name}: {', '.join(f'{words} {values[-1]:g}' for words, values in zip(_POOLS.values(), counts, strict=True))}"
        for name, (_, counts) in found.items()
    )
    return _stacked(sheet, f"Training scenarios by pool. In the end: {ends}.", list(found), colors, fill)


def times(train: Lines) -> tuple[list[int], dict[str, list[float]]]:
    """Steps, and for each kind of work its share of each of them. Kinds overlap."""
    lines = [line for line in train if line.get("step_seconds")]
    shares: dict[str, list[float]] = {}
    for kind in KINDS_OF_WORK:
        known, once = f"{kind}_time_share", _ONCE_MEASURED.get(kind, "")
        if any(known in line for line in lines):
            shares[kind] = [float(line.get(known) or 0.0) for line in lines]
        elif any(once in line for line in lines):
            shares[kind] = [float(line.get(once) or 0.0) / float(line["step_seconds"]) for line in lines]
    return [line["step"] for line in lines], shares


def points(lines: Lines, key: str) -> tuple[list[int], list[float]]:
    """Steps and values, of the lines that have a finite one."""
    found = [(int(line["step"]), float(line[key])) for line in lines if _is_number(line.get(key))]
    return [step for step, _ in found], [value for _, value in found]


def smoothed(values: Sequence[float]) -> list[float]:
    """Means over nine steps, fewer at the ends."""
    return [_mean(values[max(0, i - 4) : i + 5]) for i in range(len(values))]


def _evaluations(sheet: Sheet, axes: Axes, lines: Lines, kind: str, key: str, color: str, mark: str, name: str) -> bool:
    """The held-out points of one kind with their intervals; whether there are any."""
    metric = f"{kind}_{key}" if kind else key
    val = [line for line in _split(lines, "val") if _is_number(line.get(metric))]
    if not val:
        return False
    xs, ys = points(val, metric)
    ends = [_ends(line, metric, line.get(f"{kind}_ci95") if key == "success" else None) for line in val]
    below = [max(0.0, y - low) for y, (low, _) in zip(ys, ends, strict=True)]
    above = [max(0.0, high - y) for y, (_, high) in zip(ys, ends, strict=True)]
    axes.errorbar(xs, ys, [below, above], color=color, lw=2, elinewidth=1.5)
    for x, y, (low, high) in zip(xs, ys, ends, strict=True):
        words = f"{name}, {kind or 'held out'}, step {x}: {said((y, low, high))}"
        sheet.tell(axes.plot([x], [y], mark, color=color, ms=7)[0], words)
    return True


def _small_charts(sheet: Sheet, alt: str, runs: Runs, metrics: Mapping[str, str]) -> Chart | None:
    train = {name: _split(lines, "train") for name, lines in runs.items()}
    found = {key: [points(lines, key)[1] for lines in train.values()] for key in metrics}
    shown = {key: words for key, words in metrics.items() if any(len(values) > 1 for values in found[key])}
    for key in _ONLY_WHERE_USED:
        if not any(map(any, found.get(key, []))):
            shown.pop(key, None)
    if not shown:
        return None
    named = 0 if len(runs) == 1 else 12 + 18 * -(-len(runs) // 4)

    def draw(figure: Figure, width: int) -> None:
        columns = 3 if width > NARROW else 1
        grid = list(figure.subplots(-(-len(shown) // columns), columns, squeeze=False).flat)
        for axes, (key, words) in zip(grid, shown.items(), strict=False):
            _small_chart(axes, key, words, train)
        for axes in grid[len(shown) :]:
            axes.remove()
        if len(runs) > 1:
            handles = [grid[0].plot([], [], color=_color(number), lw=2)[0] for number in range(len(runs))]
            names = [label(name, width) for name in runs]
            figure.legend(handles, names, loc="outside upper left", ncols=4 if width > NARROW else 2, borderpad=0)

    return sheet.draw(
        f"{alt}: {', '.join(shown.values())}.",
        lambda width: named + 158.0 * -(-len(shown) // (3 if width > NARROW else 1)),
        draw,
    )


def _small_chart(axes: Axes, key: str, words: str, train: Runs) -> None:
    highest, lowest = 0.0, 0.0
    for number, lines in enumerate(train.values()):
        steps, values = points(lines, key)
        if not steps:
            continue
        color, many = _color(number) if len(train) > 1 else SERIES[1], len(steps) > _SMOOTHED
        axes.plot(steps, values, color=color, lw=1, alpha=0.5 if many else 1)
        if many:
            axes.plot(steps, smoothed(values), color=color, lw=2)
        highest, lowest = max(highest, *values), min(lowest, *values)
    axes.set_title(words, fontsize=11)
    if key not in _NEAR_ONE:
        axes.set_ylim(bottom=lowest, top=highest * 1.1 or 1)
    elif highest - 1 < 1e-3:
        axes.set_ylim(0.98, 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.xaxis.grid(visible=False)


def _stacked(
    sheet: Sheet, alt: str, names: Sequence[str], colors: Mapping[str, str], fill: Callable[[Axes, str], None]
) -> Chart:
    """A row for each run, filled by `fill`, under one legend."""

    def draw(figure: Figure, width: int) -> None:
        rows = list(figure.subplots(len(names), 1, squeeze=False).flat)
        for axes, name in zip(rows, names, strict=True):
            fill(axes, name)
            axes.margins(x=0)
            axes.grid(visible=False)
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
            if len(names) > 1:
                axes.set_title(label(name, width), fontsize=11)
        rows[-1].set_xlabel("training step")
        handles = [Patch(color=color) for color in colors.values()]
        columns = 6 if width > NARROW else 3
        figure.legend(handles, list(colors), loc="outside upper left", ncols=columns, borderpad=0, handlelength=1)

    return sheet.draw(alt, lambda width: 60.0 + 150 * len(names), draw)


def _wide_enough(steps: Sequence[int], values: Sequence[Sequence[float]]) -> tuple[Sequence[float], ...]:
    """A single step has no width: it is drawn from half a step before to half a step after."""
    if len(steps) > 1:
        return (steps, *values)
    return ([steps[0] - 0.5, steps[0] + 0.5], *([*each, *each] for each in values))


def _color(number: int) -> str:
    return SERIES[(number + 1) % len(SERIES)]


def _kind_color(kind: str) -> str:
    return (*SERIES[1:], SERIES[0])[KINDS_OF_WORK.index(kind)]


def _split(lines: Lines, split: str) -> list[Mapping[str, Any]]:
    return [line for line in lines if line["split"] == split]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _ends(line: Mapping[str, Any], metric: str, ends: Sequence[float] | None) -> tuple[float, float]:
    value = float(line[metric])
    return (float(ends[0]), float(ends[1])) if ends else (value, value)
