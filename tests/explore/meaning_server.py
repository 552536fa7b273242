"""An MCP server whose tools take nothing but values with a meaning. `python -S` runs it."""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "scenarios"))
from by_hand import JSON, Refused, serve, tool


def taking(name: str, description: str, **described: str) -> JSON:
    made = tool(name, description, {"readOnlyHint": True}, **dict.fromkeys(described, "string"))
    for parameter, said in described.items():
        made["inputSchema"]["properties"][parameter]["description"] = said
    return made


TOOLS = [
    taking("read_cell", "Reads a cell of the sheet.", cell="The cell to read"),
    taking("sum_range", "Adds up cells.", range="Range in Excel notation"),
    taking("count_matches", "Counts matches in the song.", pattern="Regular expression to search for"),
    taking("fires_per_day", "How often a schedule fires.", cron_expression="Five fields"),
    taking("seconds", "The seconds of a duration.", duration="An ISO 8601 duration"),
    taking("network_of", "The network of an address.", ip_address="Dotted"),
    taking("shelf_of", "The shelf of a code.", code="The code of a thing"),
]
SHAPES = {
    "cell": r"[A-Z]\d",
    "range": r"[A-Z]\d:[A-Z]\d",
    "cron_expression": r"(?:[\d*/,-]+ ){4}[\d*/,-]+",
    "duration": r"P(?:\d+[DW])?(?:T(?:\d+[HMS])+)?",
    "ip_address": r"\d+(?:\.\d+){3}",
    "code": r"ZQ-\d",
}
SONG = "three blue boats and 12 small robots sail past 7 green islands"


def call(name: str, given: dict[str, Any]) -> object:
    ((parameter, value),) = given.items()
    if name == "count_matches":
        try:
            return f"{value} is found {len(re.findall(value, SONG))} times"
        except re.error as error:
            raise Refused(f"Bad pattern: {error}.") from error
    if not re.fullmatch(SHAPES[parameter], value):
        raise Refused(f"{parameter} must be a proper one, such as 'ZQ-7'." if name == "shelf_of" else "Not understood.")
    return f"{name} of {value} is {sum(map(ord, value))}"


if __name__ == "__main__":
    serve("meaning", TOOLS, call)
