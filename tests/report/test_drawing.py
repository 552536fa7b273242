"""Axes and labels of charts."""

import unicodedata
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from mcp_rl.report.drawing import NARROW, Drawing, Plot, label, plain, ticks

NUMBERS = st.floats(-1e6, 1e6).filter(lambda number: number == 0 or abs(number) > 1e-6)


@given(NUMBERS, NUMBERS, st.integers(2, 12), st.booleans())
def test_ticks_are_round_few_and_inside(one: float, other: float, most: int, whole: bool) -> None:
    low, high = sorted((one, other))
    found = ticks(low, high, most, whole=whole)
    room = 1e-6 * max(1.0, high - low)
    assert len(found) <= most and found == sorted(set(found))
    assert all(low - room <= tick <= high + room for tick in found)
    assert not whole or all(tick == int(tick) for tick in found)


def test_ticks_of_shares_and_of_steps() -> None:
    assert ticks(0, 1, 6) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert ticks(0, 120, 9, whole=True) == [0, 20, 40, 60, 80, 100, 120]
    assert ticks(1, 2, 9, whole=True) == [1, 2]
    assert ticks(3, 3, 4) == [3]


@given(st.text(max_size=80))
def test_no_text_turns_or_breaks_a_chart(text: str) -> None:
    drawing = Drawing(NARROW, 20, text)
    drawing.text(0, 0, label(text, NARROW))
    assert len(label(text, NARROW)) <= 16
    assert not any(unicodedata.category(c)[0] == "C" for c in plain(text))
    assert [element.tag for element in ElementTree.fromstring(drawing.svg()).iter()] == ["svg", "text"]


def test_a_plot_of_one_value_is_inside_its_drawing() -> None:
    plot = Plot(Drawing(NARROW, 100, ""), 10, 90, 5, 50, (4, 4), (0.5, 0.5))
    assert (plot.x(4), plot.y(0.5)) == (10, 50)
