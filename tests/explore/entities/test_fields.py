"""Fields have the words that people use for them, and what they hold is seen in their values."""

from typing import Any

import pytest

from mcp_rl.explore.entities.abbreviations import is_unclear, words_used
from mcp_rl.explore.entities.fields import described, words_for_relation
from mcp_rl.explore.entities.nouns import noun_in, noun_of_tool, plural, singular, with_article
from mcp_rl.explore.entities.parameters import openings
from mcp_rl.toolserver.tools.listing import Tool


@pytest.mark.parametrize(
    ("name", "values", "kind", "words", "holds", "unit"),
    [
        ("modified_at", ["2026-01-02T10:00:00Z"], "note", "modification time", "time", ""),
        ("createdAt", ["Thu May 14 10:03:00 2026 +0000"], "note", "creation time", "time", ""),
        ("dueDate", ["2026-01-02"], "task", "due date", "time", ""),
        ("lastModified", ["Sun Nov 22 2026 22:01:30 GMT+0000"], "file", "modification time",
         "time", ""),
        ("duration_seconds", [1, 2.5], "song", "duration", "number", "seconds"),
        ("size", [10], "file", "size", "number", "bytes"),
        ("value_aed", [10], "deal", "value", "number", "AED"),
        ("comment_count", [3], "issue", "comments", "number", ""),
        ("total_items", [3], "order", "items", "number", ""),
        ("total_amount", [99.5], "order", "total amount", "number", ""),
        ("all_contacts", [["Ada"], []], "group", "contacts", "list", ""),
        ("noteTitle", ["a"], "note", "title", "text", ""),
        ("isArchived", [True, False], "note", "archived", "flag", ""),
        ("labels", [["a"], []], "issue", "labels", "list", ""),
        ("body", ["x" * 200, "short"], "issue", "body", "prose", ""),
        ("phone", ["555-0101"], "person", "phone number", "text", ""),
    ],
)  # fmt: skip
def test_a_field_is_described(name: str, values: list[Any], kind: str, words: str, holds: str, unit: str) -> None:
    found = described(name, values, kind, is_key=False)
    assert (found.words, found.kind, found.unit) == (words, holds, unit)


def test_a_description_says_the_unit() -> None:
    found = described("temperature", [20], "city", is_key=False, about="Temperature in celsius")
    assert found.unit == "°C"
    assert described("sha", ["6c1d8d2c"], "sha", is_key=True).words == "hash"


def test_a_short_word_is_spelled_as_the_server_spells_it_elsewhere() -> None:
    result = '{"protein_g": 3.2, "calories": 9}'
    known = words_used([Tool("get_food", "Looks up a food.", {"type": "object"})], [result])
    assert described("pro", [0.3], "food", is_key=False, known=known).words == "protein"
    assert described("pro", [0.3], "food", is_key=False).words == "pro"
    assert described("carb", [0.3], "food", is_key=False).words == "carbs"
    assert [is_unclear(word) for word in ("pro", "cnt", "protein", "gps", "sky")] == [True, True, False, False, False]


def test_a_field_called_as_its_kind_is_a_parent_only_if_it_may_refer_to_one() -> None:
    keys = ("1", "2", "3")
    assert described("note", ["2", "3"], "note", is_key=False, keys=keys).words == "parent note"
    assert described("note", ["Buy tea", "Call Ada", "Buy tea"], "note", is_key=False, keys=keys).words == "text"
    assert described("city", ["Oslo", "Lima"], "city", is_key=False, keys=keys).words == "name"
    folders = ("/home/notes", "/home/drafts")
    assert described("folder", ["/home", "/home"], "folder", is_key=False, keys=folders).words == "parent folder"


def test_relations_get_nouns() -> None:
    assert words_for_relation("led by", "person") == "leader"
    assert words_for_relation("works on", "project") == "project"
    assert words_for_relation("author", "person") == "author"


@pytest.mark.parametrize(
    ("one", "several"),
    [("note", "notes"), ("city", "cities"), ("branch", "branches"), ("person", "people"), ("index", "indices"),
     ("status", "statuses"), ("address", "addresses"), ("box", "boxes"), ("day", "days"), ("database", "databases"),
     ("response", "responses"), ("movie", "movies"), ("key", "keys"), ("time zone", "time zones"), ("page", "pages"),
     ("canvas", "canvases"), ("campus", "campuses"), ("bus", "buses"),
     ("use", "uses"), ("message", "messages"), ("course", "courses"), ("size", "sizes")],
)  # fmt: skip
def test_nouns_have_a_singular_and_a_plural(one: str, several: str) -> None:
    assert (singular(several), singular(one), plural(one)) == (one, one, several)


def test_names_say_what_things_are() -> None:
    assert [noun_in(name) for name in ("allNotes", "Commit history", "open_issues")] == ["note", "history", "issue"]
    assert noun_of_tool("git_list_branches", "git") == "branch"
    assert noun_of_tool("search_notes_by_tag") == "note"
    assert noun_of_tool("list_directory") == "folder"
    assert noun_of_tool("staff_directory") == "directory"
    assert [with_article(noun) for noun in ("hour", "user", "note", "entry")] == [
        "an hour",
        "a user",
        "a note",
        "an entry",
    ]


@pytest.mark.parametrize("name", ["filepath", "file_path", "filename", "path"])
def test_a_parameter_for_a_file_gets_the_paths_of_the_server(name: str) -> None:
    schema = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
    tool = Tool(name="read_sheet", description="Read a sheet.", input_schema=schema)
    assert list(openings(tool, ["/home/ada/plan.xls"])) == [{name: "/home/ada/plan.xls"}]
