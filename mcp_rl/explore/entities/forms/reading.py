"""The form of a tool's results, and the records in them.

A form is chosen for a tool, not for a result: a tool that shows the texts of files shows one that happens to be JSON,
too, and its records would be no things of the server.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.entities.forms.column_form import read_columns
from mcp_rl.explore.entities.forms.json_form import read_json, read_json_lines, read_python, records_in
from mcp_rl.explore.entities.forms.list_form import read_list, read_sections
from mcp_rl.explore.entities.forms.outline_form import is_outline, read_outline
from mcp_rl.explore.entities.forms.page_form import is_page, read_page
from mcp_rl.explore.entities.forms.pair_form import read_pairs
from mcp_rl.explore.entities.forms.table_form import read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mcp_rl.explore.entities.forms.records import RecordList

_FORMS: Mapping[str, Callable[[str], list[RecordList]]] = {
    "JSON": read_json,
    "lines of JSON": read_json_lines,
    "Python": read_python,
    "page": read_page,
    "table": read_table,
    "sections": read_sections,
    "outline": read_outline,
    "pairs": read_pairs,
    "list": read_list,
    "columns": read_columns,
}
_FITS: Mapping[str, Callable[[str], object]] = {"page": is_page, "outline": is_outline}
"""Stricter checks for forms whose reader also finds something in other texts."""
_LEAST_SHARE = 0.8
"""Least share of a tool's results that must have the form."""
_FEWEST_LINES, _LISTS = 2, 0.3
"""Line ends in a list of rows without names, and the least share of a tool's results that are so long."""
_TEXT_KEYS = ("result", "content", "text", "output")


def form_of(texts: Sequence[str], *, of_addresses: bool = False, of_itself: bool = False) -> str | None:
    """Return the form that nearly all of a tool's results have, or None where they have none.

    `of_addresses`: the tool shows what is at an address, where some pages lead to others and many lead nowhere.
    `of_itself`: it needs no arguments, so that an outline is what the server tells, and no text that somebody wrote.
    """
    unwrapped = [text_inside(text) for text in texts]
    for name, read in _FORMS.items():
        if name == "outline" and not of_itself:
            continue
        fits = _FITS.get(name, read)
        held = _of_several_lines(unwrapped) if name == "columns" else unwrapped
        least = 1 if name == "page" and of_addresses else _LEAST_SHARE * len(held)
        if held and sum(bool(fits(text)) for text in held) >= least:
            return name
    return None


def _of_several_lines(texts: Sequence[str]) -> list[str]:
    """Return the texts of several lines, or none if they are too few. The rest are answers such as "no files match"."""
    several = [text for text in texts if text.count("\n") >= _FEWEST_LINES]
    return several if len(several) >= _LISTS * len(texts) else []


def read_as(form: str, text: str) -> list[RecordList]:
    """Return the records of a result in this form."""
    return _FORMS[form](text_inside(text))


def read_structured(value: Any) -> list[RecordList]:
    """Return the records of a result's structured content."""
    return records_in(value)


def text_inside(text: str) -> str:
    """Return the text in a JSON object that holds nothing but one: {"result": "…"}."""
    if not text.startswith("{"):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in _TEXT_KEYS:
        inner = next(iter(value.values()))
        return inner if isinstance(inner, str) else text
    return text
