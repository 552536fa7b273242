"""An MCP server of tools that an explorer must treat with care. Argument: a file that changing tools write to."""

import random
import sys
import time
from pathlib import Path
from typing import Any

from by_hand import Refused, serve, tool

BOOKS = {"b-17": "Emma", "b-23": "Ulysses", "b-42": "Kim", "b-57": "Dune", "b-61": "Hunger"}
FIRST_PAGE = "book://emma/first-page"
READ_ONLY = {"readOnlyHint": True}
TOOLS = [
    tool("list_books", "Lists the ids of all books.", READ_ONLY, output="string"),
    tool("title_of", "The title of a book.", READ_ONLY, book_id="string"),
    tool("open_page", "Opens a page.", READ_ONLY, uri="string"),
    tool("double", "Twice a number.", number="number"),
    tool("roll_dice", "Rolls dice.", READ_ONLY, output="integer", sides="integer"),
    tool("now", "Tells the time.", READ_ONLY, output="string", zone="string"),
    tool("stamp", "Stamps a shelf.", READ_ONLY, shelf="string"),
    tool("think", "Takes its time.", READ_ONLY, output="string", topic="string"),
    tool("settings", "Shows settings.", READ_ONLY, section="string"),
    tool("delete_book", "Deletes a book.", output="string", book_id="string"),
    tool("tidy", "Throws things away.", {"destructiveHint": True}, output="string", shelf="string"),
]


def call(name: str, given: dict[str, Any]) -> object:
    match name:
        case "list_books":
            return "\n".join(f"- {book}" for book in BOOKS)
        case "title_of":
            if given["book_id"] not in BOOKS:
                raise Refused(f"There is no book {given['book_id']}.")
            return BOOKS[given["book_id"]]
        case "open_page":
            if given["uri"] != FIRST_PAGE:
                raise Refused(f"There is no page {given['uri']}.")
            return "handsome, clever, and rich"
        case "double":
            return 2 * float(given["number"])
        case "roll_dice":
            return random.randrange(10**9)
        case "now":
            return f"{given['zone']}: {int(time.monotonic())}"
        case "stamp":
            return f"The shelf {given['shelf']} was stamped at {time.strftime('%H:%M:%S')}."
        case "think":
            return None  # never answered
        case "settings":
            return f"{given['section']}: SERVICE_TOKEN = 12345-abcdef"
    Path(sys.argv[1]).write_text(name)  # delete_book and tidy
    return "gone"


if __name__ == "__main__":
    serve("odd", TOOLS, call, [{"uri": FIRST_PAGE, "name": "first page of Emma"}])
