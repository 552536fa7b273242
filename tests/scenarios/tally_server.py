"""A server of one tool, which counts all its calls and shows the number in its answers alone. `python -S` runs it."""

import json
from typing import Any

from by_hand import serve, tool

counted: list[str] = []


def call(name: str, given: dict[str, Any]) -> str:
    counted.append(given["word"])
    return json.dumps({"word": given["word"], "letters": given["times"] * len(given["word"]), "counted": len(counted)})


serve("tally", [tool("count_up", "Count a word.", word="string", times="integer")], call)
