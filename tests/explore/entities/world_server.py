"""An MCP server with one of several worlds behind it. Argument: the world's name."""

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "scenarios"))
from by_hand import Refused, serve, tool

READ_ONLY = {"readOnlyHint": True}
BOOKS = [
    {"isbn": "b-17", "title": "Emma", "pages": 474, "author": "Jane Austen", "addedAt": "2026-01-04"},
    {"isbn": "b-23", "title": "Kim", "pages": 368, "author": "Rudyard Kipling", "addedAt": "2026-02-11"},
    {"isbn": "b-42", "title": "Dune", "pages": 412, "author": "Frank Herbert", "addedAt": "2026-03-30"},
    {"isbn": "b-57", "title": "[bold]\x1b[31m</tool>", "pages": 1, "author": "Jane Austen", "addedAt": "2026-03-31"},
]
PEOPLE = {"Jane Austen": 1775, "Rudyard Kipling": 1865, "Frank Herbert": 1920}


def library(name: str, given: dict[str, Any]) -> object:
    match name:
        case "list_books":
            return {"books": [{key: book[key] for key in ("isbn", "title", "author")} for book in BOOKS]}
        case "book_details":
            found = [book for book in BOOKS if book["isbn"] == given["isbn"]]
            if not found:
                raise Refused(f"There is no book {given['isbn']}.")
            return {**found[0], "loan": {"seconds_left": 60}, "asked_at": time.time()}
        case "echo":
            return {"said": given["text"], "length": len(given["text"])}
        case _:
            return {"authors": [{"name": name, "born": born} for name, born in PEOPLE.items()]}


def history(name: str, given: dict[str, Any]) -> object:
    """Tell of changes in lines and patches, as version control does."""
    made = [(f"{at}c0ffee{at}", "Ada" if at % 3 else "Omar", f"Step {at}") for at in range(1, 7)]
    if name == "list_changes":
        return "\n\n".join(f"Change: {one}\nAuthor: {by}\nTitle: {title}" for one, by, title in made)
    if name == "file_status":
        return "To be kept:\n  (more of them)\n\tmodified:   src/a.py\n\nUnknown files:\n\tideas.txt"
    found = [one for one in made if one[0] == given["change"]]
    if not found:
        raise Refused(f"There is no change {given['change']}.")
    at, by, title = found[0]
    lines = "\n".join(f"+line {n}" for n in range(int(at[0])))
    head = f"Change: {at}\nAuthor: {by} <{by.lower()}@example.org>\nTitle: {title}\n\n"
    return f"{head}--- a/f{at[0]}.txt\n+++ b/f{at[0]}.txt\n@@ -0,0 +1,{at[0]} @@\n{lines}\n"


def many(name: str, given: dict[str, Any]) -> object:
    return {"parts": [{"id": f"p{at}", "weight": at % 17} for at in range(100_000)]}


def prose(name: str, given: dict[str, Any]) -> object:
    return "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals."


def twins(name: str, given: dict[str, Any]) -> object:
    return {"pets": [{"name": pet, "legs": 4} for pet in ("Rex", "Tom", *map(str, range(40)), "Rex")]}


def passing(name: str, given: dict[str, Any]) -> object:
    return {
        "jobs": [{"id": f"{time.time_ns()}-{at}", "name": what} for at, what in enumerate(("sweep", "mop", "dust"))]
    }


TREES = ("Ash", "Elm", "Fir", "Oak", "Yew")


def trees(name: str, given: dict[str, Any]) -> object:
    """List trees, one of them without a name; find them by how their name begins, each hit with a score."""
    listed = [{"name": tree, "height": 3 * at + 4} for at, tree in enumerate(TREES)]
    if name == "list_trees":
        return {"trees": [*listed, {"height": 9}]}
    words = given["query"].lower()
    hits = [one for one in listed if str(one["name"]).lower().startswith(words)]
    return {"trees": [{**one, "score": len(words) / 4} for one in hits]}


SETTINGS = """Boat Club Settings
==================

Yearly Fee: $1,200
Open Months: May, June, July

Boats:
  - Heron: 25% hired
  - Otter: 40% hired
  - Swan: 15% hired

Waiting Time: 24 months
"""


def club(name: str, given: dict[str, Any]) -> object:
    """Tell of itself: in an outline, in a record, in another that contradicts this one, and of knots in phrases."""
    if name == "club_settings":
        return SETTINGS
    if name == "get_current_date":
        return {"date": "the third of May", "weekday": "Friday", "week": 18}
    if name == "get_env":
        return {"SHELL": "/bin/sh", "EDITOR": "ed"}
    if name == "get_knot":
        return "- **Bowline**: holds a boat by a ring\n- **Clove hitch**: ties a rope to a pole\n- **Eight**: ends it"
    about = {
        "club": "Skiff",
        "founder": "Berta Lund",
        "founding_place": "Odense",
        "root": "/srv/club",
        "language": "Danish",
        "asked_at": time.time(),
    }
    jetties = {place: {"berths": len(place)} for place in ("north", "south", "west", "old quay")}
    return {**about, "totalMembers": 57, "jetties": jetties} if name == "club_info" else {"language": "Norwegian"}


def as_text(result: object) -> str:
    return result if isinstance(result, str) else json.dumps(result)


WORLDS = {
    "library": (library, [
        tool("list_books", "Lists all books.", READ_ONLY),
        tool("book_details", "All about a book.", READ_ONLY, isbn="string"),
        tool("list_authors", "Lists those who wrote them.", READ_ONLY),
        tool("echo", "Repeats a text.", READ_ONLY, text="string"),
    ]),
    "history": (history, [
        tool("list_changes", "Lists all changes.", READ_ONLY),
        tool("show_change", "One change with its patch.", READ_ONLY, change="string"),
        tool("file_status", "Files by what becomes of them.", READ_ONLY),
    ]),
    "club": (club, [
        tool("club_settings", "The settings.", READ_ONLY),
        tool("club_info", "About the club.", READ_ONLY),
        tool("read_club", "More about the club.", READ_ONLY),
        tool("get_env", "The environment.", READ_ONLY),
        tool("get_current_date", "The day of today.", READ_ONLY),
        tool("get_knot", "What each knot is good for.", READ_ONLY),
    ]),
    "many": (many, [tool("list_parts", "Lists the parts.", READ_ONLY)]),
    "prose": (prose, [tool("tell", "Tells a story.", READ_ONLY)]),
    "passing": (passing, [tool("list_jobs", "Lists the jobs.", READ_ONLY)]),
    "trees": (trees, [
        tool("list_trees", "Lists the trees.", READ_ONLY),
        tool("search_trees", "Finds trees by words of their name.", READ_ONLY, query="string"),
    ]),
    "twins": (twins, [tool("list_pets", "Lists the pets.", READ_ONLY)]),
}  # fmt: skip

if __name__ == "__main__":
    chosen, tools = WORLDS[sys.argv[1]]
    serve(sys.argv[1], tools, lambda name, given: as_text(chosen(name, given)))
