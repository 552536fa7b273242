"""English for the things on which rows stand: "on the page 'Lantern'", "in which document"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.scenarios.goals.words import is_address, quoted

if TYPE_CHECKING:
    from pydantic import JsonValue

    from mcp_rl.explore.entities.world_model import EntityKind
    from mcp_rl.scenarios.goals.words import English


class Places:
    """Says where the rows of one kind stand."""

    def __init__(self, english: English, kind: EntityKind) -> None:
        self._english, self._kind = english, kind
        one, many = english.noun(kind.within), english.plural(kind.within)
        on_pages = any(is_address(each.key) for each in english.world.of_kind(kind.within))
        self.at = at = "on" if on_pages else "in"
        # The rows are on the page of a lake, and not on the lake.
        self._of = of = "page of the " if on_pages and one != "page" else ""
        self.on_which = f"{at} the page of which {one}" if of else f"{at} which {one}"
        self.on_which_ones = f"{at} the pages of which {many}" if of else f"{at} which {many}"
        self.on_how_many = f"{at} the pages of how many {many}" if of else f"{at} how many {many}"
        self.on_any = f"{at} the page of any {one}" if of else f"{at} any {one}"
        self.on_all = f"{at} the pages of all {many}" if of else f"{at} all {many}"
        self.one_of_all = f"the page of one of the {many}" if of else f"one of the {many}"
        self.on_more = f"{at} the pages of more {many}" if of else f"{at} more {many}"
        self.on_most = f"{at} the pages of the most {many}" if of else f"{at} the most {many}"

    def the(self, place: JsonValue) -> str:
        """Name a place: "the page 'Lantern'"."""
        name = self._english.spoken(self._kind.name, self._kind.within, place)
        if is_address(name):
            return f"the page {quoted(name)}"
        return f"the {self._of}{self._english.noun(self._kind.within)} {quoted(name)}"

    def on(self, place: JsonValue) -> str:
        """Say where a row is: "on the page 'Lantern'"."""
        return f"{self.at} {self.the(place)}"
