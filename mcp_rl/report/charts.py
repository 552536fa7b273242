"""The charts of the page. Each says nothing where there is nothing to show, by being None."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mcp_rl.evaluation.result import JudgeAgreement, ModelReport
from mcp_rl.report.drawing import (
    BAD,
    FONT,
    GOOD,
    NARROW,
    QUIET,
    SERIES,
    Chart,
    Drawing,
    Plot,
    chart,
    label,
    text_width,
    ticks,
)
from mcp_rl.tracking.measure import Measure

Found = tuple[float, float, float]
"""A share with the ends of its interval."""
Row = tuple[str, Sequence[Found | None]]
"""A name, and what was found for each model."""
_MOST_ROWS = 24
_SMOOTHED = 40
"""Steps from which on a curve is drawn smoothed too."""
_QUARTERS = (0, 0.25, 0.5, 0.75, 1)
_WITH_ROOM = (-0.06, 1.06)
"""Shares as an axis on which a dot at the end has room."""
_SIGNALS = {
    "reward": "mean reward",
    "groups_useful": "groups with a signal",
    "entropy": "entropy of a token, nats",
    "grad_norm": "norm of the gradient",
    "sampled_tokens_mean": "tokens said in an episode",
    "turns": "turns of an episode",
    "judge_pairwise_agreement": "judge: pairs in order",
    "judge_rank_correlation": "judge: rank correlation",
}


def headline(models: Sequence[ModelReport]) -> Chart | None:
    """Success of each model, greedy and sampled, with intervals."""
    rows: list[Row] = []
    for kind, name in (("greedy", "greedy"), ("sampled", "pass@1")):
        rows.append((name, [_success(getattr(model.result, kind)) for model in models]))
    k = max((k for model in models if model.result.sampled for k in model.result.sampled.pass_at), default=1)
    if k > 1:
        rows.append((f"pass@{k}", [_pass(model.result.sampled, "pass_at", k) for model in models]))
        rows.append((f"pass^{k}", [_pass(model.result.sampled, "pass_hat", k) for model in models]))
    return _intervals("Success with 95 % intervals", rows, models)


def breakdown(what: str, name: str, models: Sequence[ModelReport]) -> Chart | None:
    """Success by one kind of scenario; the kinds with most scenarios where there are many."""
    found: list[Mapping[str, Mapping[str, float]]] = [getattr(model.result, name) for model in models]
    counts = {kind: max(each[kind]["scenarios"] for each in found if kind in each) for each in found for kind in each}
    if len(counts) < 2 and "tool" not in name:
        return None
    shown = sorted(sorted(counts, key=lambda kind: -counts[kind])[:_MOST_ROWS])
    rows: list[Row] = [
        (
            f"{kind} ({int(counts[kind])})",
            [(e[kind]["success"], e[kind]["low"], e[kind]["high"]) if kind in e else None for e in found],
        )
        for kind in shown
    ]
    return _intervals(f"Success {what}, with 95 % intervals", rows, models)


def learning_curve(history: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Success, or reward where nothing says what success is, over the steps."""
    train = [line for line in history if line["split"] == "train"]
    val = [line for line in history if line["split"] == "val"]
    key = "success" if any(line.get("success") is not None for line in train) else "reward"
    trained = _points(train, key)
    if not trained:
        return None
    smoothed = len(trained) > _SMOOTHED
    kinds = [(kind, color) for kind, color in (("sampled", SERIES[2]), ("greedy", SERIES[1]))
             if _points(val, f"{kind}_{key}")]  # fmt: skip
    every = [y for _, y in trained] + [y for kind, _ in kinds for _, y in _points(val, f"{kind}_{key}")]
    ys = (0.0, 1.0) if key == "success" else (min(0.0, *every), max(1.0, *every))
    xs = (0.0 if val else float(trained[0][0]), float(max(trained[-1][0], 1)))

    def draw(drawing: Drawing) -> None:
        plot = Plot(drawing, 36, drawing.width - 12, 26, 270, xs, ys)
        plot.y_axis(_QUARTERS if key == "success" else ticks(*ys, 6), name=key)
        plot.x_axis(ticks(*xs, 9 if drawing.width > NARROW else 5, whole=True), name="training step")
        drawing.line(plot.points(trained), f"{QUIET} {'thin faint' if smoothed else ''}")
        if smoothed:
            drawing.line(plot.points(_smooth(trained)), QUIET)
        else:
            for x, y in trained:
                drawing.dot(plot.x(x), plot.y(y), 2, QUIET, f"step {x}: {y:.3f}")
        for kind, color in kinds:
            drawing.line(plot.points(_points(val, f"{kind}_{key}")), color)
            for line in val:
                if line.get(f"{kind}_{key}") is not None:
                    _value_with_ends(plot, line, kind, key, color)

    said = f"{key.capitalize()} over {trained[-1][0]} training steps. Training ended at {trained[-1][1]:.3f}."
    names = [(QUIET, f"training episodes{', smoothed' if smoothed else ''}")]
    return chart(said, lambda width: 312, draw, [*names, *((color, f"held out, {kind}") for kind, color in kinds)])


def _value_with_ends(plot: Plot, line: Mapping[str, Any], kind: str, key: str, color: str) -> None:
    """A measured value and its interval, if it has one."""
    step, value = line["step"], float(line[f"{kind}_{key}"])
    ends = line.get(f"{kind}_ci95") if key == "success" else None
    words = f"{kind}, step {step}: {value:.3f}"
    if ends:
        plot.drawing.line(plot.points([(step, ends[0]), (step, ends[1])]), f"{color} faint")
        words += f" [{ends[0]:.3f}, {ends[1]:.3f}]"
    plot.drawing.dot(plot.x(step), plot.y(value), 4, color, words)


def signals(history: Sequence[Mapping[str, Any]]) -> Chart | None:
    """What training itself reports, a small chart each."""
    train = [line for line in history if line["split"] == "train"]
    found = {name: points for key, name in _SIGNALS.items() if (points := _points(train, key))}
    if len(train) < 2 or not found:
        return None
    high = 140

    def columns(width: int) -> int:
        return 3 if width > NARROW else 2

    def draw(drawing: Drawing) -> None:
        each = drawing.width / columns(drawing.width)
        for place, (name, points) in enumerate(found.items()):
            left, top = place % columns(drawing.width) * each, place // columns(drawing.width) * high
            values = [y for _, y in points]
            ys = (min(0.0, *values), max(values) * 1.05 or 1.0)
            xs = (float(points[0][0]), float(points[-1][0]))
            plot = Plot(drawing, left + 36, left + each - 12, top + 24, top + high - 32, xs, ys)
            drawing.text(left, top + 11, name)
            plot.y_axis(ticks(*ys, 4))
            plot.x_axis(ticks(*xs, 4, whole=True))
            drawing.line(plot.points(points), f"{SERIES[1]} {'thin faint' if len(points) > _SMOOTHED else ''}")
            if len(points) > _SMOOTHED:
                drawing.line(plot.points(_smooth(points)), SERIES[1])

    said = f"Over the training steps: {', '.join(found)}."
    return chart(said, lambda width: high * math.ceil(len(found) / columns(width)), draw)


def endings(models: Sequence[ModelReport]) -> Chart | None:
    """Why episodes ended, as shares of all of a model's."""
    found = [_endings(model) for model in models]
    reasons = sorted({reason for each in found for reason in each}, key=lambda r: -sum(e.get(r, 0) for e in found))
    if not reasons:
        return None
    colors = {reason: SERIES[(number + 1) % len(SERIES)] for number, reason in enumerate(reasons)}

    def draw(drawing: Drawing) -> None:
        names = [label(model.model, drawing.width) for model in models]
        plot = Plot(drawing, _room(names), drawing.width - 16, 4, 8 + 32.0 * len(models))
        plot.x_axis(_QUARTERS, grid=True)
        for place, (name, each) in enumerate(zip(names, found, strict=True)):
            left, total, top = 0.0, sum(each.values()) or 1, 9 + 32.0 * place
            drawing.text(plot.left - 10, top + 15, name, anchor="end")
            for reason, color in colors.items():
                share = each.get(reason, 0) / total
                words = f"{name}: {reason.replace('_', ' ')} {each.get(reason, 0)} of {total}"
                drawing.bar(plot.x(left), top, plot.x(share) - plot.left, 22, color, words)
                left += share

    words = "; ".join(f"{m.model}: {_listed(each)}" for m, each in zip(models, found, strict=True))
    legend = [(color, reason.replace("_", " ")) for reason, color in colors.items()]
    return chart(f"How episodes ended. {words}.", lambda width: 32.0 + 32 * len(models), draw, legend)


def calibration(judge: JudgeAgreement | None) -> Chart | None:
    """What share of episodes the verifier passed at each level of the judge's score."""
    bins = [part for part in judge.bins if part.episodes] if judge else []
    if not bins:
        return None
    most = max(part.episodes for part in bins)
    points = [(part.judged or 0.0, part.verified or 0.0) for part in bins]

    def draw(drawing: Drawing) -> None:
        plot = Plot(drawing, 44, min(drawing.width - 24, 520), 36, 292, _WITH_ROOM, _WITH_ROOM)
        plot.y_axis(_QUARTERS, name="share that the verifier passed")
        plot.x_axis(_QUARTERS, grid=True, name="mean of the judge's scores in each fifth of the scale")
        drawing.line(plot.points([(0, 0), (1, 1)]), "quiet dashed")
        drawing.line(plot.points(points), f"{SERIES[1]} faint")
        for (x, y), part in zip(points, bins, strict=True):
            radius = 4 + 8 * math.sqrt(part.episodes / most)
            words = f"judge {x:.2f}: the verifier passed {y:.3f} of {part.episodes}"
            drawing.dot(plot.x(x), plot.y(y), radius, SERIES[1], words)
            below = y > 0.5
            drawing.text(plot.x(x), plot.y(y) + (radius + FONT if below else -radius - 4), f"{part.episodes:,}",
                         "muted", "middle")  # fmt: skip

    words = ", ".join(f"{x:.2f}: {y:.2f} of {part.episodes}" for (x, y), part in zip(points, bins, strict=True))
    return chart(f"Share passed by the verifier at the judge's mean score; {words}.", lambda width: 332, draw)


def pass_rates(rates: Mapping[str, float]) -> Chart | None:
    """How many training scenarios are never, sometimes and always solved."""
    if not rates:
        return None
    names = ["never", "to 0.2", "to 0.4", "to 0.6", "to 0.8", "under 1", "always"]
    counts = [0] * len(names)
    for rate in rates.values():
        counts[0 if rate <= 0 else len(names) - 1 if rate >= 1 else min(5, 1 + int(rate * 5 - 1e-9))] += 1
    colors = [BAD, *[SERIES[1]] * 5, GOOD]

    def draw(drawing: Drawing) -> None:
        plot = Plot(drawing, 0, drawing.width, 20, 170, (0, len(names)), (0, max(counts)))
        for place, (name, count, color) in enumerate(zip(names, counts, colors, strict=True)):
            left, right = plot.x(place + 0.12), plot.x(place + 0.88)
            drawing.bar(left, plot.y(count), right - left, plot.bottom - plot.y(count), color, f"{name}: {count}")
            drawing.text((left + right) / 2, plot.y(count) - 5, f"{count:,}", "muted", "middle")
            drawing.text((left + right) / 2, plot.bottom + 16, name, "muted", "middle")
        drawing.line([(0, plot.bottom), (drawing.width, plot.bottom)], "grid")

    words = ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True))
    return chart(f"Training scenarios by the share of their newest group that succeeded: {words}.",
                 lambda width: 192, draw)  # fmt: skip


def _intervals(alt: str, rows: Sequence[Row], models: Sequence[ModelReport]) -> Chart | None:
    """A row for each kind, a dot with its interval for each model, the first one on top."""
    rows = [row for row in rows if any(row[1])]
    if not rows:
        return None
    apart = 13.0 if len(models) < 3 else 11.0
    high = apart * len(models) + 12

    def draw(drawing: Drawing) -> None:
        names = [label(name, drawing.width) for name, _ in rows]
        plot = Plot(drawing, _room(names), drawing.width - 16, 2, 2 + high * len(rows))
        plot.x_axis(_QUARTERS, grid=True)
        for place, (name, found) in enumerate(rows):
            middle = plot.top + high * (place + 0.5)
            drawing.text(plot.left - 10, middle + 4, names[place], anchor="end")
            for number, each in enumerate(found):
                if each is None:
                    continue
                value, low, top = each
                y, color = middle + apart * (number - (len(found) - 1) / 2), SERIES[number % len(SERIES)]
                drawing.line([(plot.x(low), y), (plot.x(top), y)], f"{color} faint")
                drawing.dot(plot.x(value), y, 4, color, f"{models[number].model}, {name}: {_said(each)}")

    words = "; ".join(
        f"{name}: {', '.join(f'{m.model} {each[0]:.3f}' for m, each in zip(models, found, strict=True) if each)}"
        for name, found in rows
    )
    legend = [(SERIES[number % len(SERIES)], model.model) for number, model in enumerate(models)]
    return chart(f"{alt}. {words}.", lambda width: 24 + high * len(rows), draw, legend if len(models) > 1 else ())


def _room(names: Sequence[str]) -> float:
    """Pixels left of a chart for the names of its rows."""
    return 16 + max(map(text_width, names))


def _said(found: Found) -> str:
    value, low, high = found
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _success(measure: Measure | None) -> Found | None:
    if measure is None or measure.success is None or measure.ci95 is None:
        return None
    return (measure.success, *measure.ci95)


def _pass(measure: Measure | None, name: str, k: int) -> Found | None:
    values, intervals = getattr(measure, name, {}), getattr(measure, f"{name}_ci95", {})
    return (values[k], *intervals[k]) if k in values and k in intervals else None


def _endings(model: ModelReport) -> dict[str, int]:
    measures = [measure for measure in (model.result.greedy, model.result.sampled) if measure]
    return {r: sum(m.stop_reasons.get(r, 0) for m in measures) for m in measures for r in m.stop_reasons}


def _listed(each: Mapping[str, int]) -> str:
    return ", ".join(f"{reason.replace('_', ' ')} {count}" for reason, count in each.items())


def _points(lines: Sequence[Mapping[str, Any]], key: str) -> list[tuple[int, float]]:
    """Step and value, of the lines that have a finite one."""
    found = [(int(line["step"]), float(line[key])) for line in lines if line.get(key) is not None]
    return [(step, value) for step, value in found if math.isfinite(value)]


def _smooth(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Means over nine steps, fewer at the ends."""
    parts = [points[max(0, place - 4) : place + 5] for place in range(len(points))]
    return [(step, sum(y for _, y in part) / len(part)) for (step, _), part in zip(points, parts, strict=True)]
