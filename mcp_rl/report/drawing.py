"""Matplotlib's figures as inline SVG that takes its colours and its font from the page.

A chart is drawn with stand-in colours; in the SVG they become the page's CSS variables, so that one drawing serves
light and dark. Every `style` attribute becomes a class: the page's Content-Security-Policy allows no inline style.
"""

import io
import logging
import re
import unicodedata
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

INK, MUTED, GRID, GOOD, BAD = "#000001", "#000002", "#000003", "#000004", "#000005"
SERIES = ("#000011", "#000012", "#000013", "#000014", "#000015", "#000016")
"""One for each model; the first is the one that the others are held against."""
_VARIABLES = {
    **{INK: "--ink", MUTED: "--muted", GRID: "--grid", GOOD: "--good", BAD: "--bad"},
    **{color: f"--series-{number}" for number, color in enumerate(SERIES)},
}
WIDE, NARROW = 720, 360
"""Widths in CSS pixels; the page shows the one that fits."""
FONT = 12
_TOLD = "told-"
_LABEL = {WIDE: 30, NARROW: 18}
_RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": FONT,
    "font.family": "DejaVu Sans",
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlesize": FONT,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.75,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "text.color": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "lines.solid_capstyle": "round",
}


@dataclass(frozen=True)
class Chart:
    """One chart at both widths, as SVG; `alt` says in words what it shows."""

    wide: str
    narrow: str
    alt: str


@dataclass
class Sheet:
    """Draws charts and gathers the CSS classes that they need."""

    _classes: dict[str, str] = field(default_factory=dict)
    _charts: int = 0
    _told: dict[str, str] = field(default_factory=dict)

    def draw(self, alt: str, height: Callable[[int], float], draw: Callable[[Figure, int], None]) -> Chart:
        """`draw` fills a figure of the given width; `height` gives the pixels of its height for that width."""
        wide, narrow = (self._svg(alt, width, height(width), draw) for width in (WIDE, NARROW))
        return Chart(wide, narrow, alt)

    def tell(self, artist: Artist, words: str) -> None:
        """What a browser says of this part of a figure when somebody points at it."""
        artist.set_gid(f"{_TOLD}{len(self._told)}")
        self._told[f"{_TOLD}{len(self._told)}"] = plain(words)

    @property
    def css(self) -> str:
        return "".join(f".{name}{{{style}}}\n" for style, name in self._classes.items())

    def _svg(self, alt: str, width: int, height: float, draw: Callable[[Figure, int], None]) -> str:
        self._charts += 1
        salt = f"c{self._charts}"
        with rc_context({**_RC, "svg.hashsalt": salt}), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a glyph that the metrics lack is the browser's to find
            logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
            figure = Figure(figsize=(width / 72, height / 72), layout="constrained", dpi=72)
            draw(figure, width)
            buffer = io.StringIO()
            nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
            # savefig would lay everything out twice
            FigureCanvasSVG(figure).print_svg(buffer, metadata=nothing)  # type: ignore[no-untyped-call]
        root = ElementTree.fromstring(buffer.getvalue())
        return self._cleaned(root, alt, salt)

    def _cleaned(self, root: ElementTree.Element, alt: str, salt: str) -> str:
        for parent in list(root.iter()):
            for child in list(parent):
                if _local(child.tag) in ("metadata", "style"):
                    parent.remove(child)
        for element in list(root.iter()):
            element.tag = _local(element.tag)
            attributes = {_local(name): value for name, value in element.attrib.items()}
            if identity := attributes.pop("id", None):
                if identity in self._told:
                    title = ElementTree.Element("title")
                    title.text = self._told[identity]
                    element.insert(0, title)
                attributes |= {"id": f"{salt}-{identity}"} if element.tag in ("path", "clipPath") else {}
            if style := attributes.pop("style", None):
                attributes["class"] = self._class(style)
            attributes = {name: re.sub(r"#(?=\w)", f"#{salt}-", v) if "#" in v else v for name, v in attributes.items()}
            element.attrib = attributes
            if element.text and not element.text.strip():
                element.text = None
            if element.tail and not element.tail.strip():
                element.tail = None
        for name in ("width", "height", "version"):
            root.attrib.pop(name, None)
        root.attrib |= {"role": "img", "aria-label": plain(alt)}
        return ElementTree.tostring(root, encoding="unicode")

    def _class(self, style: str) -> str:
        style = re.sub(r"font: ([\d.]+)px [^;]*", r"font-size:\1px", style)
        style = re.sub(r"\s*([:;])\s*", r"\1", style).strip(";")
        for color, variable in _VARIABLES.items():
            style = style.replace(color, f"var({variable})")
        return self._classes.setdefault(style, f"s{len(self._classes)}")


def plain(text: str) -> str:
    """Text without what could turn or break what is around it."""
    return "".join(c if unicodedata.category(c)[0] != "C" else "\N{REPLACEMENT CHARACTER}" for c in text)


def label(text: str, width: int) -> str:
    """A name that fits beside a chart."""
    most, shown = _LABEL[width], plain(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def share_axis(axes: Axes, *, horizontal: bool = True) -> None:
    """An axis from 0 to 1, with grid lines across it alone."""
    axis = axes.xaxis if horizontal else axes.yaxis
    (axes.set_xlim if horizontal else axes.set_ylim)(-0.02, 1.02)
    axis.set_ticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
    (axes.yaxis if horizontal else axes.xaxis).grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def legend(axes: Axes, names: Sequence[str], width: int) -> None:
    """Above the chart, where names do not cover anything."""
    if len(names) > 1:
        handles = [axes.plot([], [], "o", color=SERIES[i % len(SERIES)], markersize=7)[0] for i in range(len(names))]
        axes.figure.legend(
            handles,
            [label(name, width) for name in names],
            loc="outside upper left",
            ncols=4 if width == WIDE else 2,
            handletextpad=0.2,
            columnspacing=1.2,
            borderpad=0,
        )


def _local(name: str) -> str:
    """Without its namespace, which SVG inside HTML does not need."""
    return name.rpartition("}")[2]
