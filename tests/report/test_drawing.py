"""Names and words in charts."""

import unicodedata
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from mcp_rl.report.drawing import NARROW, WIDE, Sheet, label, plain

TAGS = {"svg", "g", "path", "defs", "use", "text", "title", "clipPath", "rect"}


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=60))
def test_no_text_turns_or_breaks_a_chart(text: str) -> None:
    sheet = Sheet()

    def draw(figure: Figure, width: int) -> None:
        axes = figure.subplots()
        axes.set_xlabel(label(text, width))
        sheet.tell(axes.plot([0], [0], "o")[0], text)

    drawn = sheet.draw(text, lambda width: 60, draw)
    for svg in (drawn.wide, drawn.narrow):
        root = ElementTree.fromstring(svg)
        assert {element.tag for element in root.iter()} <= TAGS
        assert [element.text or "" for element in root.iter("title")] == [plain(text)]
        assert not any("style" in element.attrib for element in root.iter())


@given(st.text(max_size=80))
def test_labels_are_short_and_hold_nothing_that_turns_text(text: str) -> None:
    assert len(label(text, NARROW)) <= len(label(text, WIDE)) <= 30
    assert not any(unicodedata.category(c)[0] == "C" for c in plain(text))
