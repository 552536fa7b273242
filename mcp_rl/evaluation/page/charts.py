"""Charts of measured results. A chart with nothing to show is None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mcp_rl.evaluation.measure import shown
from mcp_rl.evaluation.page.drawing import (
    BAD,
    GOOD,
    GRID,
    INK,
    MUTED,
    NARROW,
    SERIES,
    Chart,
    Sheet,
    label,
    legend,
    legend_height,
    model_legend,
    series_color,
    share_axis,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mcp_rl.evaluation.measure import Measure
    from mcp_rl.evaluation.result import JudgeAgreement, ModelReport

Found = tuple[float, float, float]
"""A share and the ends of its interval."""
Row = tuple[str, Sequence[Found | None]]
"""A name, and each model's result; None if it has none."""
_MOST_ROWS = 24


def headline(sheet: Sheet, models: Sequence[ModelReport]) -> Chart | None:
    """Draw each model's success, greedy and sampled, with intervals."""
    rows: list[Row] = []
    for kind, name in (("greedy", "greedy"), ("sampled", "pass@1")):
        rows.append((name, [_success(getattr(model.result, kind)) for model in models]))
    k = max((k for model in models if model.result.sampled for k in model.result.sampled.pass_at), default=1)
    if k > 1:
        rows.append((f"pass@{k}", [_pass(model.result.sampled, "pass_at", k) for model in models]))
        rows.append((f"pass^{k}", [_pass(model.result.sampled, "pass_hat", k) for model in models]))
    return _intervals(sheet, "Success with 95 % intervals", rows, models)


def breakdown(sheet: Sheet, what: str, name: str, models: Sequence[ModelReport]) -> Chart | None:
    """Draw the success on each kind of scenario; of many kinds, those with the most scenarios."""
    found: list[Mapping[str, Mapping[str, float]]] = [getattr(model.result, name) for model in models]
    counts = {kind: max(each[kind]["scenarios"] for each in found if kind in each) for each in found for kind in each}
    if len(counts) < 2 and "tool" not in name:
        return None
    kinds = sorted(sorted(counts, key=lambda kind: -counts[kind])[:_MOST_ROWS])
    rows: list[Row] = [
        (
            f"{kind} ({int(counts[kind])})",
            [(e[kind]["success"], e[kind]["low"], e[kind]["high"]) if kind in e else None for e in found],
        )
        for kind in kinds
    ]
    return _intervals(sheet, f"Success {what}, with 95 % intervals", rows, models)


def endings(sheet: Sheet, models: Sequence[ModelReport]) -> Chart | None:
    """Draw the reasons why episodes ended, as shares of each model's episodes."""
    found = [_endings(model) for model in models]
    reasons = sorted({reason for each in found for reason in each}, key=lambda r: -sum(e.get(r, 0) for e in found))
    if not reasons:
        return None

    names = [reason.replace("_", " ") for reason in reasons]

    def draw(figure: Figure, width: int) -> None:
        axes = figure.subplots()
        for place, each in enumerate(found):
            left, total = 0.0, sum(each.values()) or 1
            for number, reason in enumerate(reasons):
                share = each.get(reason, 0) / total
                bar = axes.barh(place, share, left=left, height=0.55, color=series_color(number), edgecolor="none")[0]
                words = f"{models[place].model}: {reason.replace('_', ' ')} {each.get(reason, 0)} of {total}"
                sheet.tooltip(bar, words)
                left += share
        axes.set_yticks(range(len(models)), [label(model.model, width) for model in models], color=INK)
        axes.set_ylim(len(models) - 0.5, -0.5)
        share_axis(axes)
        handles = [axes.barh([0], [0], color=series_color(number))[0] for number in range(len(reasons))]
        legend(figure, handles, names, width, handlelength=1)

    words = "; ".join(f"{m.model}: {_listed(each)}" for m, each in zip(models, found, strict=True))
    return sheet.draw(
        f"How episodes ended. {words}.", lambda width: 40.0 + legend_height(names, width) + 36 * len(models), draw
    )


def calibration(sheet: Sheet, judge: JudgeAgreement | None) -> Chart | None:
    """Draw the share of episodes that the verifier passed at each level of the judge's score."""
    bins = [part for part in judge.bins if part.episodes] if judge else []
    if not bins:
        return None

    def draw(figure: Figure, width: int) -> None:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=GRID, lw=1.5, ls="--")
        xs = [part.judged if part.judged is not None else (part.low + part.high) / 2 for part in bins]
        ys = [part.verified or 0.0 for part in bins]
        most = max(part.episodes for part in bins)
        axes.plot(xs, ys, color=SERIES[1], lw=1.5, alpha=0.5)
        for x, y, part in zip(xs, ys, bins, strict=True):
            dot = axes.scatter([x], [y], [40 + 260 * part.episodes / most], color=SERIES[1], zorder=3)
            sheet.tooltip(dot, f"judge {x:.2f}: the verifier passed {y:.3f} of {part.episodes}")
            axes.annotate(f"{part.episodes}", (x, y), (0, -16 if y > 0.5 else 12), textcoords="offset points",
                          ha="center", fontsize=10, color=MUTED)  # fmt: skip
        share_axis(axes, horizontal=False)
        share_axis(axes)
        axes.grid(visible=True)
        axes.set_ylim(-0.08, 1.08)
        axes.set_xlim(-0.05, 1.05)
        axes.set_xlabel("the judge's mean score in each fifth")
        axes.set_ylabel("share the verifier passed")

    words = ", ".join(f"{part.judged or 0:.2f}: {part.verified or 0:.2f} of {part.episodes}" for part in bins)
    return sheet.draw(f"Share passed by the verifier at the judge's mean score; {words}.", lambda width: 340, draw)


def pass_rates(sheet: Sheet, rates: Mapping[str, float]) -> Chart | None:
    """Draw the numbers of training scenarios that are never, sometimes and always solved."""
    if not rates:
        return None
    names = ["never", "to 0.2", "to 0.4", "to 0.6", "to 0.8", "under 1", "always"]
    counts = [0] * len(names)
    for rate in rates.values():
        counts[0 if rate <= 0 else len(names) - 1 if rate >= 1 else min(5, 1 + int(rate * 5 - 1e-9))] += 1

    def draw(figure: Figure, width: int) -> None:
        axes = figure.subplots()
        colors = [BAD, *[SERIES[1]] * 5, GOOD]
        bars = axes.bar(range(len(names)), counts, width=0.75, color=colors)
        for bar, name, count in zip(bars, names, counts, strict=True):
            sheet.tooltip(bar, f"{name}: {count}")
        axes.bar_label(bars, padding=2, fontsize=11, color=MUTED)
        axes.set_xticks(range(len(names)), names, fontsize=12 if width > NARROW else 9)
        axes.set_yticks([])
        axes.grid(visible=False)
        axes.margins(y=0.14)
        axes.spines["left"].set_visible(False)

    words = ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True))
    return sheet.draw(f"Training scenarios by the share of their newest group that succeeded: {words}.",
                      lambda width: 210, draw)  # fmt: skip


def _intervals(sheet: Sheet, alt: str, rows: Sequence[Row], models: Sequence[ModelReport]) -> Chart | None:
    """Draw a row for each kind, with a dot and its interval for each model, the first one on top."""
    rows = [row for row in rows if any(row[1])]
    if not rows:
        return None
    spread = 0.22 if len(models) < 3 else 0.62 / len(models)

    def draw(figure: Figure, width: int) -> None:
        axes = figure.subplots()
        for place, (name, found) in enumerate(rows):
            for number, each in enumerate(found):
                if each is None:
                    continue
                y = place + spread * (number - (len(found) - 1) / 2)
                color = SERIES[number % len(SERIES)]
                axes.plot(each[1:], [y, y], color=color, lw=2, alpha=0.6)
                dot = axes.plot([each[0]], [y], "o", color=color, ms=8 if len(models) < 4 else 6)[0]
                sheet.tooltip(dot, f"{models[number].model}, {name}: {shown(each[0], each[1:])}")
        axes.set_yticks(range(len(rows)), [label(name, width) for name, _ in rows], color=INK)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        share_axis(axes)
        model_legend(figure, axes, [model.model for model in models], width)

    words = "; ".join(
        f"{name}: {', '.join(f'{m.model} {each[0]:.3f}' for m, each in zip(models, found, strict=True) if each)}"
        for name, found in rows
    )
    high = 24.0 + 14 * max(0, len(models) - 2)
    names = [model.model for model in models] if len(models) > 1 else []
    return sheet.draw(f"{alt}. {words}.", lambda width: 44 + legend_height(names, width) + (high + 8) * len(rows), draw)


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
