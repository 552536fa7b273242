"""Names and words in charts."""

import unicodedata
from collections.abc import Callable
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from mcp_rl.evaluation.page.curves import learning_curve
from mcp_rl.evaluation.page.drawing import NARROW, WIDE, Chart, Sheet, label, legend, legend_height, plain

TAGS = {"svg", "g", "path", "defs", "use", "text", "title", "clipPath", "rect"}


@settings(max_examples=12, deadline=None)
@given(st.text(max_size=60))
def test_no_text_breaks_or_reorders_a_chart(text: str) -> None:
    sheet = Sheet()

    def draw(figure: Figure, width: int) -> None:
        axes = figure.subplots()
        axes.set_xlabel(label(text, width))
        sheet.tooltip(axes.plot([0], [0], "o")[0], text)

    drawn = sheet.draw(text, lambda width: 60, draw)
    for svg in (drawn.wide, drawn.narrow):
        root = ElementTree.fromstring(svg)
        assert {element.tag for element in root.iter()} <= TAGS
        assert [element.text or "" for element in root.iter("title")] == [plain(text)]
        assert not any("style" in element.attrib for element in root.iter())


@given(st.text(max_size=80))
def test_labels_are_short_and_hold_no_control_characters(text: str) -> None:
    assert len(label(text, NARROW)) <= len(label(text, WIDE)) <= 30
    assert not any(unicodedata.category(c)[0] == "C" for c in plain(text))


def test_a_narrow_legend_keeps_whole_names_and_gets_its_room() -> None:
    names = ["training episodes, smoothed", "Qwen/Qwen2.5-0.5B-Instruct", "held out, sampled"]
    figure = Figure()
    axes = figure.subplots()
    legend(figure, [axes.plot([], [])[0] for _ in names], names, NARROW)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names
    assert legend_height(names, NARROW) == 3 * legend_height(names, WIDE)


class KeptSheet(Sheet):
    """Keeps the figure instead of rendering it."""

    def draw(self, alt: str, height: Callable[[int], float], draw: Callable[[Figure, int], None]) -> Chart:
        self.figure = Figure()
        draw(self.figure, WIDE)
        return Chart("", "", alt)


def test_held_out_evaluations_are_points_without_a_trend() -> None:
    train = [{"step": step, "split": "train", "success": step / 9} for step in range(1, 9)]
    full = [{"step": step, "split": "val", "greedy_success": 0.5, "greedy_ci95": [0.4, 0.6]} for step in (0, 8)]
    small = [{"step": 4, "split": "val_subset", "subset_success": 0.25, "subset_scenarios": 24.0}]
    sheet = KeptSheet()
    assert learning_curve(sheet, {"run": [*train, *full, *small]})
    (axes,) = sheet.figure.axes
    drawn = [list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in axes.lines]
    assert {len(points) for points in drawn} == {0, 1, 8}
    assert {(0, 0.5), (8, 0.5), (4, 0.25)} <= {points[0] for points in drawn if len(points) == 1}
    assert "24 of them, greedy" in [text.get_text() for text in sheet.figure.legends[0].get_texts()]
