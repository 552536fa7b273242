"""Charts of history.jsonl, of one run or of several together. A chart with nothing to show is None.

In a chart of one run, colors tell quantities apart; in a chart of several, they tell the runs apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from mcp_rl.evaluation.measure import shown
from mcp_rl.evaluation.page.drawing import (
    GRID,
    MUTED,
    NARROW,
    SERIES,
    Chart,
    Sheet,
    label,
    legend,
    legend_height,
    series_color,
    share_axis,
)
from mcp_rl.evaluation.step_time import KINDS_OF_WORK, times
from mcp_rl.rewards.json_values import is_finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Lines = Sequence[Mapping[str, Any]]
"""The lines of one run's history.jsonl, in order."""
Runs = Mapping[str, Lines]
"""For each run's name its lines."""
_KINDS = {"sampled": ("s", SERIES[2]), "greedy": ("o", SERIES[1])}
"""Kinds of held-out episodes: the marker, and the color in a chart of one run."""
_SMALL_MARK, _SMALL = "D", SERIES[4]
"""Marker of the small evaluations between the full ones, and their color in a chart of one run."""
_HOLLOW: dict[str, Any] = {"ms": 5, "mfc": "none", "mew": 1.5}
_ROOM_BETWEEN = 8
"""Pixels above and below each of the small charts."""
_SMOOTHED = 40
"""Curves of more steps are also drawn smoothed."""
_SIGNALS = {
    "reward": "mean reward",
    "groups_useful": "groups whose rewards differ",
    "entropy": "entropy per sampled token, nats",
    "grad_norm": "gradient norm",
    "sampled_tokens_mean": "sampled tokens per episode",
    "turns": "turns per episode",
    "judge_pairwise_agreement": "judge: pairs in order",
    "judge_rank_correlation": "judge: rank correlation",
}
_SUPERVISED = {"learning_rate": "learning rate"}
"""Metrics that lead the charts of a run without rewards."""
_AGREEMENT = {
    "logprob_difference_mean": "logprob difference, mean",
    "logprob_difference_max": "logprob difference, largest",
    "ratio_mean": "ratio before clipping, mean",
    "ratio_max": "ratio before clipping, largest",
    "ess": "effective sample size, share",
    "clip_share": "share of tokens clipped",
    "staleness_mean": "age of tokens in steps, mean",
    "corrected_share": "share of tokens corrected",
}
_SHARING = {"saved_share": "share of tokens saved by prefixes", "forward_tokens": "tokens computed per step"}
_NEAR_ONE = ("ratio_mean", "ess")
"""Metrics drawn around 1 instead of from 0."""
_ONLY_IF_NONZERO = ("staleness_mean", "corrected_share")
_POOLS = {"unseen": "never played", "too_hard": "too hard", "right": "sometimes solved", "solved": "solved"}


def learning_curve(sheet: Sheet, runs: Runs) -> Chart | None:
    """Draw success, else reward, else the loss, over the steps; held-out evaluations are points, the full ones with
    intervals."""
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
        counts: set[int] = set()
        for number, (name, (steps, values)) in enumerate(trained.items()):
            color = MUTED if alone else series_color(number)
            many = len(steps) > _SMOOTHED
            axes.plot(steps, values, color=color, lw=1, alpha=0.55 if alone else 0.25)
            for x, y in zip(steps, values, strict=True) if not many else ():
                sheet.tooltip(axes.plot([x], [y], "o", color=color, ms=3.5)[0], f"{name}, step {x}: {y:.3f}")
            smooth = axes.plot(steps, smoothed(values) if many else values, color=color, lw=2 if many else 1)[0]
            handles.append(smooth)
            names.append(f"{what}{', smoothed' if many else ''}" if alone else name)
            for kind, (mark, own) in kinds.items():
                found = _evaluations(sheet, axes, runs[name], kind, key, own if alone else color, mark, name)
                if alone and found:
                    handles.append(axes.plot([], [], mark, color=own, ms=7)[0])
                    names.append(f"held out, {kind}" if kind else "held out")
            counts.add(_small_evaluations(sheet, axes, runs[name], f"subset_{key}", _SMALL if alone else color, name))
        if not alone:
            handles += [axes.plot([], [], mark, color=MUTED, ms=7)[0] for mark, _ in kinds.values()]
            names += [f"held out, {kind}" if kind else "held out" for kind in kinds]
        if any(counts):
            handles.append(axes.plot([], [], _SMALL_MARK, color=_SMALL if alone else MUTED, **_HOLLOW)[0])
            names.append(f"{' or '.join(map(str, sorted(counts - {0})))} of them, greedy")
        if key == "success":
            share_axis(axes, horizontal=False)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        axes.set_xlabel("training step")
        axes.set_ylabel(key)
        legend(figure, handles, names, width)

    ended = "; ".join(
        f"{'training' if alone else name} ended at {values[-1]:.3f} in step {steps[-1]}"
        for name, (steps, values) in trained.items()
        if steps
    )
    expected = ["training episodes, smoothed", *(f"held out, {kind}" for kind in kinds), *([] if alone else runs)]
    return sheet.draw(
        f"{key.capitalize()} over the training steps: {ended}.",
        lambda width: 280 + legend_height(expected, width),
        draw,
    )


def signals(sheet: Sheet, runs: Runs) -> Chart | None:
    """Draw the metrics of training, each in a small chart."""
    rewarded = any("reward" in line for lines in runs.values() for line in lines)
    return _small_charts(sheet, "Over the training steps", runs, _SIGNALS if rewarded else _SUPERVISED | _SIGNALS)


def agreement(sheet: Sheet, runs: Runs) -> Chart | None:
    """Draw the agreement of sampler and learner, and the corrections where they differ."""
    return _small_charts(sheet, "Sampler and learner over the training steps", runs, _AGREEMENT)


def sharing(sheet: Sheet, runs: Runs) -> Chart | None:
    """Draw the share of tokens that the prefix tree saved the update."""
    return _small_charts(sheet, "The prefix tree over the training steps", runs, _SHARING)


def time_shares(sheet: Sheet, runs: Runs) -> Chart | None:
    """Draw the kinds of work in each step's time, a row for each run. They overlap, so their sum may exceed 1."""
    found = {name: times(_split(lines, "train")) for name, lines in runs.items()}
    found = {name: value for name, value in found.items() if value[1]}
    drawn = [kind for kind in KINDS_OF_WORK if any(any(shares.get(kind, ())) for _, shares in found.values())]
    if not drawn:
        return None
    colors = {kind: series_color(KINDS_OF_WORK.index(kind)) for kind in drawn}

    def fill(axes: Axes, name: str) -> None:
        steps, shares = found[name]
        stacked = [shares.get(kind, [0.0] * len(steps)) for kind in drawn]
        axes.stackplot(*_wide_enough(steps, stacked), colors=list(colors.values()), lw=0)
        axes.axhline(1.0, color=GRID, lw=1)
        axes.set_ylim(0, max(1.02, *map(sum, zip(*stacked, strict=True))))

    words = "; ".join(
        f"{name}: " + ", ".join(f"{kind} {fmean(shares[kind]):.2f}" for kind in drawn if kind in shares)
        for name, (_, shares) in found.items()
    )
    return _stacked(sheet, f"Shares of a step's time. {words}.", list(found), colors, fill)


def pools(sheet: Sheet, runs: Runs) -> Chart | None:
    """Draw the number of training scenarios in each pool after each step, a row for each run."""
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


def points(lines: Lines, key: str) -> tuple[list[int], list[float]]:
    """Return steps and values of the lines with a finite value."""
    found = [(int(line["step"]), float(line[key])) for line in lines if _is_number(line.get(key))]
    return [step for step, _ in found], [value for _, value in found]


def smoothed(values: Sequence[float]) -> list[float]:
    """Return means over nine steps, fewer at the ends."""
    return [fmean(values[max(0, i - 4) : i + 5]) for i in range(len(values))]


def _evaluations(sheet: Sheet, axes: Axes, lines: Lines, kind: str, key: str, color: str, mark: str, name: str) -> bool:
    """Draw the held-out points of one kind with their intervals; return whether there are any."""
    metric = f"{kind}_{key}" if kind else key
    val = [line for line in _split(lines, "val") if _is_number(line.get(metric))]
    if not val:
        return False
    xs, ys = points(val, metric)
    ends = [_ends(line, metric, line.get(f"{kind}_ci95") if key == "success" else None) for line in val]
    below = [max(0.0, y - low) for y, (low, _) in zip(ys, ends, strict=True)]
    above = [max(0.0, high - y) for y, (_, high) in zip(ys, ends, strict=True)]
    axes.errorbar(xs, ys, [below, above], fmt="none", ecolor=color, elinewidth=1.5)
    for x, y, (low, high) in zip(xs, ys, ends, strict=True):
        words = f"{name}, {kind or 'held out'}, step {x}: {shown(y, (low, high))}"
        sheet.tooltip(axes.plot([x], [y], mark, color=color, ms=7)[0], words)
    return True


def _small_evaluations(sheet: Sheet, axes: Axes, lines: Lines, metric: str, color: str, name: str) -> int:
    """Draw the points of the small evaluations between the full ones; return how many scenarios they have."""
    found = [line for line in lines if line["split"] != "train" and _is_number(line.get(metric))]
    if all(line["split"] == "val" for line in found):
        return 0
    for line in found:
        words = f"{name}, {line['subset_scenarios']:g} held-out scenarios, greedy, step {line['step']}"
        dot = axes.plot([line["step"]], [line[metric]], _SMALL_MARK, color=color, **_HOLLOW)[0]
        sheet.tooltip(dot, f"{words}: {shown(line[metric], line.get('subset_ci95'))}")
    return int(found[0]["subset_scenarios"])


def _small_charts(sheet: Sheet, alt: str, runs: Runs, metrics: Mapping[str, str]) -> Chart | None:
    train = {name: _split(lines, "train") for name, lines in runs.items()}
    found = {key: [points(lines, key)[1] for lines in train.values()] for key in metrics}
    drawn = {key: words for key, words in metrics.items() if any(len(values) > 1 for values in found[key])}
    for key in _ONLY_IF_NONZERO:
        if not any(map(any, found.get(key, []))):
            drawn.pop(key, None)
    if not drawn:
        return None
    names = list(runs) if len(runs) > 1 else []

    def draw(figure: Figure, width: int) -> None:
        columns = 3 if width > NARROW else 1
        grid = list(figure.subplots(-(-len(drawn) // columns), columns, squeeze=False).flat)
        figure.set_layout_engine("constrained", h_pad=_ROOM_BETWEEN / 72)
        for axes, (key, words) in zip(grid, drawn.items(), strict=False):
            _small_chart(axes, key, words, train)
        for axes in grid[len(drawn) :]:
            axes.remove()
        if len(runs) > 1:
            handles = [grid[0].plot([], [], color=series_color(number), lw=2)[0] for number in range(len(runs))]
            legend(figure, handles, names, width)

    def height(width: int) -> float:
        rows = -(-len(drawn) // (3 if width > NARROW else 1))
        return legend_height(names, width) + (158 + _ROOM_BETWEEN) * rows

    return sheet.draw(f"{alt}: {', '.join(drawn.values())}.", height, draw)


def _small_chart(axes: Axes, key: str, words: str, train: Runs) -> None:
    highest, lowest = 0.0, 0.0
    for number, lines in enumerate(train.values()):
        steps, values = points(lines, key)
        if not steps:
            continue
        color, many = series_color(number), len(steps) > _SMOOTHED
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
    """Draw a row for each run, filled by `fill`, under one legend."""

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
        legend(figure, handles, list(colors), width, handlelength=1)

    return sheet.draw(alt, lambda width: 40.0 + legend_height(list(colors), width) + 150 * len(names), draw)


def _wide_enough(steps: Sequence[int], values: Sequence[Sequence[float]]) -> tuple[Sequence[float], ...]:
    """Widen a single step, which has no width, by half a step on both sides."""
    if len(steps) > 1:
        return (steps, *values)
    return ([steps[0] - 0.5, steps[0] + 0.5], *([*each, *each] for each in values))


def _split(lines: Lines, split: str) -> list[Mapping[str, Any]]:
    return [line for line in lines if line["split"] == split]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and is_finite(value)


def _ends(line: Mapping[str, Any], metric: str, ends: Sequence[float] | None) -> tuple[float, float]:
    value = float(line[metric])
    return (float(ends[0]), float(ends[1])) if ends else (value, value)
