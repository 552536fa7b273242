"""The place where a server begins, said in requests that need it.

Solutions use the address of a site or the path of a repository that nobody could guess. Where no result shows it, and
for tasks of a single call, the request says it.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from mcp_rl.explore.words import words_of
from mcp_rl.scenarios.goals.phrases import listed
from mcp_rl.scenarios.goals.words import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.explore.entities.world_model import WorldModel
    from mcp_rl.scenarios.goals.task import GoalTask

_NOUNS = {"repo": "repository", "db": "database", "workbook": "workbook", "database": "database", "file": "file"}
"""Nouns for places, by words in the names of parameters that take them; any other place is a folder."""
_ENDING = re.compile(r"[^/\\.]\.[A-Za-z][A-Za-z0-9]{0,4}$")


class Beginnings:
    """Says where a server begins, in the requests of tasks that need to know."""

    def __init__(self, world: WorldModel, places: Sequence[str], seed: int) -> None:
        self._places = sorted(places, key=len, reverse=True)
        self._random = random.Random(f"{seed}:beginnings")
        plain = [seen.text for seen in world.observations if not seen.arguments]
        self._shown = {place for place in places if any(place in text for text in plain)}

    def said(self, task: GoalTask) -> GoalTask:
        """Return the task with a request that says where to begin, if its solution needs that."""
        needed = [
            (place, name)
            for call in task.calls
            for name, value in call.arguments.items()
            if isinstance(value, str) and (place := self._place_of(value)) is not None
        ]
        unsaid = [one for one in needed if one[0] not in task.text]
        files = list(dict.fromkeys(place for place, name in unsaid if _is_file(place, name)))
        found = (files[0], "file") if files else next(iter(needed), None)
        if found is None or found[0] in task.text or (found[0] in self._shown and task.level != "told"):
            return task
        said = (
            f"The files are {listed([quoted(place) for place in files])}." if len(files) > 1 else self._sentence(*found)
        )
        return replace(task, text=f"{task.text} {said}")

    def _place_of(self, value: str) -> str | None:
        """Return the place that an argument names, itself or by the path of something in it."""
        return next((one for one in self._places if value == one or value.startswith(one.rstrip("/") + "/")), None)

    def _sentence(self, place: str, parameter: str) -> str:
        if "://" in place:
            return self._random.choice([f"Start at {quoted(place)}.", f"The site is {quoted(place)}."])
        noun = next((_NOUNS[word] for word in words_of(parameter).split(" ") if word in _NOUNS), "folder")
        if noun == "folder":
            return self._random.choice(
                [f"Everything is in {quoted(place)}.", f"The folder to look in is {quoted(place)}."]
            )
        return f"The {noun} is {quoted(place)}."


def _is_file(place: str, parameter: str) -> bool:
    """Return whether a place is a single file, and the parameter calls it nothing else."""
    named = any(_NOUNS.get(word, "file") != "file" for word in words_of(parameter).split(" "))
    return not named and "://" not in place and _ENDING.search(place) is not None
