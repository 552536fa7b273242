"""Render Matplotlib figures as inline SVG with the page's colors and font, or as one PNG.

A chart is drawn with named colors. In the SVG they become the page's CSS variables, by way of stand-ins, so that one
drawing serves light and dark; in the PNG they are the page's light ones. Every `style` attribute of the SVG becomes a
class: the page's Content-Security-Policy allows no inline style.
"""

from __future__ import annotations

import io
import logging
import re
import unicodedata
import warnings
import xml.etree.ElementTree as ElementTree
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import get_named_colors_mapping
from matplotlib.figure import Figure
from matplotlib.image import imsave

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# matplotlib reads a name of six or eight characters as a hexadecimal number
INK, MUTED, GRID, GOOD, BAD = "chart-ink", "chart-muted", "chart-grid", "chart-good", "chart-bad"
SERIES = tuple(f"chart-series-{number}" for number in range(6))
"""A color for each model; the first one is for the model that others are compared with."""
_VARIABLES = {name: name.replace("chart", "-", 1) for name in (INK, MUTED, GRID, GOOD, BAD, *SERIES)}
"""For each color its variable in page.css."""
_STAND_INS = {name: f"#0000{number:02x}" for number, name in enumerate(_VARIABLES, 1)}
WIDE, NARROW = 720, 360
"""Chart widths in CSS pixels; the page shows the one that fits."""
FONT = 12
_SHARPNESS = 2
"""Pixels of the PNG for each CSS pixel."""
_MARGIN = 24 * _SHARPNESS
_TOOLTIP = "tooltip-"
_LABEL = {WIDE: 30, NARROW: 18}
_CHARACTER, _HANDLE = 7.0, 42.0
"""Width of a character of a legend, and of what is beside a name there."""
LEGEND_LINE = 18.0
"""Height of a line of a legend."""
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
    """A chart at both widths, as SVG; `alt` describes it in words."""

    wide: str
    narrow: str
    alt: str


@dataclass
class Sheet:
    """Draws charts and collects the CSS classes that they need."""

    _classes: dict[str, str] = field(default_factory=dict)
    _charts: int = 0
    _tooltips: dict[str, str] = field(default_factory=dict)

    def draw(self, alt: str, height: Callable[[int], float], draw: Callable[[Figure, int], None]) -> Chart:
        """Draw a chart: `draw` fills a figure of the given width; `height` returns its pixels of height."""
        wide, narrow = (Markup(self._svg(alt, width, height(width), draw)) for width in (WIDE, NARROW))
        return Chart(wide, narrow, alt)

    def tooltip(self, artist: Artist, words: str) -> None:
        """Set the words that a browser shows when the pointer is over this part of a figure."""
        artist.set_gid(f"{_TOOLTIP}{len(self._tooltips)}")
        self._tooltips[f"{_TOOLTIP}{len(self._tooltips)}"] = plain(words)

    @property
    def css(self) -> str:
        return "".join(f".{name}{{{style}}}\n" for style, name in self._classes.items())

    def _svg(self, alt: str, width: int, height: float, draw: Callable[[Figure, int], None]) -> str:
        self._charts += 1
        salt = f"c{self._charts}"
        with _style(salt):
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
                if identity in self._tooltips:
                    title = ElementTree.Element("title")
                    title.text = self._tooltips[identity]
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
            style = style.replace(_STAND_INS[color], f"var({variable})")
        return self._classes.setdefault(style, f"s{len(self._classes)}")


@dataclass
class PictureSheet(Sheet):
    """Draws the same charts into one picture, one below the other under their headings."""

    _strips: list[npt.NDArray[np.uint8]] = field(default_factory=list)

    def draw(self, alt: str, height: Callable[[int], float], draw: Callable[[Figure, int], None]) -> Chart:
        self._strips.append(self._pixels(WIDE, height(WIDE), draw))
        return Chart("", "", alt)

    def heading(self, text: str, size: float = FONT + 2) -> None:
        """Add a line of text at the bottom."""

        def draw(figure: Figure, width: int) -> None:
            figure.text(0.0, 0.3, plain(text), fontsize=size, fontweight="bold" if size > FONT else "normal")

        self._strips.append(self._pixels(WIDE, size * 2.2, draw))

    def add(self, sheet: PictureSheet) -> None:
        """Add another sheet's charts at the bottom."""
        self._strips += sheet._strips

    @property
    def png(self) -> bytes:
        buffer = io.BytesIO()
        inside = np.concatenate(self._strips)
        paper = np.broadcast_to(inside[0, 0], (2 * _MARGIN + len(inside), 2 * _MARGIN + inside.shape[1], 4)).copy()
        paper[_MARGIN:-_MARGIN, _MARGIN:-_MARGIN] = inside
        imsave(buffer, paper, format="png")
        return buffer.getvalue()

    def _pixels(self, width: int, height: float, draw: Callable[[Figure, int], None]) -> npt.NDArray[np.uint8]:
        light = _light()
        with _colors(light), _style():
            figure = Figure(figsize=(width / 72, round(height) / 72), layout="constrained", dpi=72 * _SHARPNESS)
            figure.set_facecolor(light["page"])
            canvas: Any = FigureCanvasAgg(figure)
            draw(figure, width)
            canvas.draw()
            return np.array(canvas.buffer_rgba())


@contextmanager
def _style(salt: str = "") -> Iterator[None]:
    with rc_context({**_RC, "svg.hashsalt": salt}), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the browser finds glyphs that the metrics lack
        logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
        yield


@contextmanager
def _colors(named: Mapping[str, str]) -> Iterator[None]:
    """Give the color names these values inside the context."""
    _name_colors(named)
    try:
        yield
    finally:
        _name_colors(_STAND_INS)


def _name_colors(named: Mapping[str, str]) -> None:
    known = get_named_colors_mapping()
    for name in _VARIABLES:  # one by one, since `update` would not clear the cache of colors already looked up
        known[name] = named[name]


_name_colors(_STAND_INS)


def _light() -> dict[str, str]:
    """Return the page's light colors by chart color name, and `page` for the background."""
    found = re.findall(r"--([\w-]+): (#\w{6});", page_style().partition("}")[0])
    return {"page": dict(found)["page"], **{f"chart-{name}": color for name, color in found}}


def page_style() -> str:
    """Return the page's style sheet, without the classes of charts."""
    return files("mcp_rl.evaluation.page").joinpath("page.css").read_text(encoding="utf-8")


def plain(text: str) -> str:
    """Replace control and direction characters, which could break or reorder the text around them."""
    return "".join(c if unicodedata.category(c)[0] != "C" else "\N{REPLACEMENT CHARACTER}" for c in text)


def label(text: str, width: int) -> str:
    """Shorten a name so that it fits beside a chart."""
    most, shown = _LABEL[width], plain(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def share_axis(axes: Axes, *, horizontal: bool = True) -> None:
    """Make an axis run from 0 to 1, with grid lines across it alone."""
    axis = axes.xaxis if horizontal else axes.yaxis
    (axes.set_xlim if horizontal else axes.set_ylim)(-0.02, 1.02)
    axis.set_ticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
    (axes.yaxis if horizontal else axes.xaxis).grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def series_color(number: int) -> str:
    """The color of a numbered series; the first color belongs to the model that others are compared with."""
    return SERIES[(number + 1) % len(SERIES)]


def legend(figure: Figure, handles: Sequence[Any], names: Sequence[str], width: int, **style: float) -> None:
    """Draw a legend above the charts, where it covers nothing, in as many columns as fit; only a name that is longer
    than a line is shortened."""
    most = int((width - _HANDLE) / _CHARACTER)
    shown = [plain(name) if len(name) <= most else f"{plain(name)[: most - 1]}…" for name in names]
    columns = _legend_columns(names, width)
    figure.legend(handles, shown, loc="outside upper left", ncols=columns, borderpad=0, columnspacing=1.4, **style)


def legend_height(names: Sequence[str], width: int) -> float:
    """Return the height of the legend of these names, so that a chart can be that much higher."""
    return LEGEND_LINE * -(-len(names) // _legend_columns(names, width)) if names else 0.0


def _legend_columns(names: Sequence[str], width: int) -> int:
    widest = _HANDLE + _CHARACTER * max(map(len, names), default=0)
    return max(1, min(len(names), int(width / widest)))


def model_legend(figure: Figure, axes: Axes, names: Sequence[str], width: int) -> None:
    """Name the models of a chart, unless there is only one."""
    if len(names) > 1:
        handles = [axes.plot([], [], "o", color=SERIES[i % len(SERIES)], markersize=7)[0] for i in range(len(names))]
        legend(figure, handles, names, width, handletextpad=0.2)


def _local(name: str) -> str:
    """Strip the namespace, which SVG inside HTML does not need."""
    return name.rpartition("}")[2]
