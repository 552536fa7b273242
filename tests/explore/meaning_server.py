"""An MCP server whose tools take nothing but values with a meaning. `python -S` runs it."""

import re
import sys
import time
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
    taking("next_run", "When a job runs next.", expression="Cron expression (5 fields)"),
    taking("count_columns", "Counts the columns of a table.", content="The CSV content as a string"),
    taking("barter", "What a good is worth in another of its kind.", give="A good", take="A good"),
    taking("clock", "A clock.", action="show or count"),
]
TOOLS[-1]["inputSchema"]["properties"]["action"]["enum"] = ["show", "count"]
GOODS = {"cloth": ("linen", "silk", "wool"), "corn": ("rye", "oats", "wheat")}
SHAPES = {
    "cell": r"[A-Z]\d",
    "range": r"[A-Z]\d:[A-Z]\d",
    "cron_expression": r"(?:[\d*/,-]+ ){4}[\d*/,-]+",
    "duration": r"P(?:\d+[DW])?(?:T(?:\d+[HMS])+)?",
    "ip_address": r"\d+(?:\.\d+){3}",
    "code": r"ZQ-\d",
    "expression": r"(?:[\d*/,-]+ ){4}[\d*/,-]+",
    "content": r"\w+(?:,\w+)+\n[^\0]+",
}
SONG = "three blue boats and 12 small robots sail past 7 green islands"


def call(name: str, given: dict[str, Any]) -> object:
    if name == "barter":
        return barter(**given)
    ((parameter, value),) = given.items()
    if name == "clock":
        return int(time.time()) if value == "count" else "It hangs on the wall"
    if name == "count_matches":
        try:
            return f"{value} is found {len(re.findall(value, SONG))} times"
        except re.error as error:
            raise Refused(f"Bad pattern: {error}.") from error
    if not re.fullmatch(SHAPES[parameter], value):
        raise Refused(f"{parameter} must be a proper one, such as 'ZQ-7'." if name == "shelf_of" else "Not understood.")
    return f"{name} of {value} is {sum(map(ord, value))}"


def barter(give: str, take: str) -> object:
    family = next((goods for goods in GOODS.values() if give in goods), None)
    if family is None:
        raise Refused(f"Unknown good: {give}. Known goods: {', '.join(sum(GOODS.values(), ()))}")
    if take not in family:
        raise Refused(f"Unknown good {take!r} for {give}. Known goods: {', '.join(family)}")
    return f"{give} for {take}: {len(give)} to {len(take)}"


if __name__ == "__main__":
    serve("meaning", TOOLS, call)
