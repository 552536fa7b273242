"""Charts as inline SVG that takes its colours and its font from the page.

Everything has a class and no style of its own: the page's Content-Security-Policy allows no inline style, and one
drawing serves light and dark. A chart is drawn twice, and the page shows the one that fits its window; a legend is the
page's, where names of any length find room.
"""

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

SERIES = ("series-0", "series-1", "series-2", "series-3", "series-4", "series-5")
"""Classes of colours, one for each model; the first is the one that the others are held against."""
GOOD, BAD, QUIET = "good", "bad", "quiet"
WIDE, NARROW = 720, 360
"""Widths in CSS pixels."""
FONT = 12
_CHARACTER = 7.4
"""Pixels of a common character; a browser's font is wider or narrower, so labels have some room beside them."""
_LABEL = {WIDE: 30, NARROW: 16}
Interval = tuple[float, float]
Point = tuple[float, float]


class Drawing:
    """One SVG; positions are pixels from its upper left corner."""

    def __init__(self, width: int, height: float, alt: str) -> None:
        self.width = width
        self._root = ElementTree.Element(
            "svg", {"viewBox": f"0 0 {width} {height:g}", "role": "img", "aria-label": plain(alt)}
        )

    def line(self, points: Sequence[Point], kind: str, title: str = "") -> None:
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self._add("path", title, {"d": path, "class": f"line {kind}"})

    def dot(self, x: float, y: float, radius: float, kind: str, title: str = "") -> None:
        self._add("circle", title, {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": f"{radius:.1f}", "class": f"area {kind}"})

    def bar(self, left: float, top: float, width: float, height: float, kind: str, title: str = "") -> None:
        box = {"x": left, "y": top, "width": max(0.0, width), "height": max(0.0, height)}
        self._add("rect", title, {name: f"{value:.1f}" for name, value in box.items()} | {"class": f"area {kind}"})

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        """`anchor` is start, middle or end: the part of the text that stands at x."""
        place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor} | ({"class": kind} if kind else {})
        ElementTree.SubElement(self._root, "text", place).text = plain(words)

    def svg(self) -> str:
        return ElementTree.tostring(self._root, encoding="unicode")

    def _add(self, tag: str, title: str, attributes: dict[str, str]) -> None:
        element = ElementTree.SubElement(self._root, tag, attributes)
        if title:
            ElementTree.SubElement(element, "title").text = plain(title)


@dataclass(frozen=True)
class Plot:
    """A part of a drawing with two axes: values to pixels, and the axes themselves."""

    drawing: Drawing
    left: float
    right: float
    top: float
    bottom: float
    xs: Interval = (0.0, 1.0)
    ys: Interval = (0.0, 1.0)

    def x(self, value: float) -> float:
        return self.left + (value - self.xs[0]) / ((self.xs[1] - self.xs[0]) or 1.0) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - (value - self.ys[0]) / ((self.ys[1] - self.ys[0]) or 1.0) * (self.bottom - self.top)

    def points(self, points: Sequence[Point]) -> list[Point]:
        return [(self.x(x), self.y(y)) for x, y in points]

    def x_axis(self, ticks: Sequence[float], *, grid: bool = False, name: str = "") -> None:
        for tick in ticks:
            if grid:
                self.drawing.line([(self.x(tick), self.top), (self.x(tick), self.bottom)], "grid")
            self.drawing.text(self.x(tick), self.bottom + 16, f"{tick:g}", "muted", "middle")
        if name:
            self.drawing.text((self.left + self.right) / 2, self.bottom + 34, name, "muted", "middle")

    def y_axis(self, ticks: Sequence[float], *, name: str = "") -> None:
        for tick in ticks:
            self.drawing.line([(self.left, self.y(tick)), (self.right, self.y(tick))], "grid")
            self.drawing.text(self.left - 8, self.y(tick) + 4, f"{tick:g}", "muted", "end")
        if name:
            self.drawing.text(0, self.top - 12, name, "muted")


@dataclass(frozen=True)
class Chart:
    """One chart at both widths, as SVG, and the names of its colours."""

    wide: str
    narrow: str
    legend: Sequence[tuple[str, str]] = ()
    """Class and name of each."""


def chart(
    alt: str,
    height: Callable[[int], float],
    draw: Callable[[Drawing], None],
    legend: Sequence[tuple[str, str]] = (),
) -> Chart:
    """`draw` fills a drawing; `height` gives its pixels for a width; `alt` says in words what the chart shows."""
    wide, narrow = (Drawing(width, height(width), alt) for width in (WIDE, NARROW))
    draw(wide)
    draw(narrow)
    return Chart(wide.svg(), narrow.svg(), legend)


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """At most so many round numbers from `low` to `high`, 1, 2 or 5 times a power of ten apart."""
    least = (high - low) / max(1, most - 1) if high > low else 1.0
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))
    step = max(1.0, step) if whole else step
    digits = max(0, -math.floor(math.log10(step)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, digits) for number in range(first, last + 1)]


def plain(text: str) -> str:
    """Without characters that could turn or break what is around them."""
    return "".join(c if unicodedata.category(c)[0] != "C" else "\N{REPLACEMENT CHARACTER}" for c in text)


def label(text: str, width: int) -> str:
    """A name that fits beside a chart."""
    most = _LABEL[width]
    return text if len(text) <= most else f"{text[: most - 1]}…"


def text_width(text: str) -> float:
    """About the pixels that a text takes."""
    return _CHARACTER * sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
