"""Records are read out of results as real servers wrote them, and out of nothing else."""

import json
import time

import pytest

from mcp_rl.explore.entities.forms.json_form import read_json
from mcp_rl.explore.entities.forms.patch_form import changes_in
from mcp_rl.explore.entities.forms.reading import form_of, read_as
from mcp_rl.explore.entities.forms.rows import first_column, read_rows, row_width
from mcp_rl.explore.entities.keys import key_of, meant_by_ids
from mcp_rl.explore.entities.nouns import noun_in, noun_of_tool, plural
from mcp_rl.explore.entities.sightings import Sighting
from mcp_rl.explore.entities.things import Subjects

LOG = """Commit history:
Commit: 'b4a0d53bd975d356256a6ae127fdade140c1adea'
Author: <git.Actor "Ada <ada@example.com>">
Date: 2026-05-14 10:03:00+00:00
Message: 'Change number 14: fig'

Commit: '6c1d8d2c5c8b5dd6e8a9ff0e4d3f3c1b2a190817'
Author: <git.Actor "Linus <linus@example.com>">
Date: 2026-05-13 10:02:00+00:00
Message: 'Change number 13: plum'
"""
SHOWN = """commit b4a0d53bd975d356256a6ae127fdade140c1adea
Author: Ada <ada@example.com>
Date:   Thu May 14 10:03:00 2026 +0000

    Change number 14: fig

diff --git a/f1.txt b/f1.txt
--- a/f1.txt
+++ b/f1.txt
@@ -1,2 +1,3 @@
 line 4: fig
+line 13: apple
"""
STATUS = """On branch main
To be kept:
  (use "keep" to keep more)
\tmodified:   src/a.py

Unknown files:
\tideas.txt
"""
FOLDER = """[DIR] archive
[FILE] data.csv                             20 B
[FILE] read me.txt                       1.40 KB

Total: 2 files, 1 directories
Combined size: 1.42 KB"""
INFO = """size: 505
created: Sun Nov 22 2026 22:01:30 GMT+0000 (Coordinated Universal Time)
isFile: true
permissions: 644"""
TREE = json.dumps([{"name": "docs", "type": "directory", "children": [{"name": "a.txt", "type": "file"}]}])
ROWS = "[{'cid': 0, 'name': 'id', 'type': 'INTEGER', 'dflt_value': None}, {'cid': 1, 'name': 'city', 'type': 'TEXT'}]"
MARKDOWN = """## Open issues
| # | title | labels |
|---|:-----:|-------|
| 12 | Crash at start | bug, urgent |
| 15 | Dark mode | wish |
"""
ALIGNED = """NAME        STATUS    AGE
web-1       Running   3d
web-2       Pending   10m
"""
TASKS = """Tasks:
- [x] Buy milk (id: 3, priority: high)
- [ ] Water the plants (id: 4, priority: low)"""


@pytest.mark.parametrize(
    ("form", "text", "name", "first"),
    [
        ("JSON", '{"notes": [{"id": "n1", "by": {"name": "Ada"}, "tags": ["a"]}], "total": 1}', "notes",
         {"id": "n1", "by.name": "Ada", "tags": ["a"]}),
        ("JSON", '{"Ada B": {"born": 1815}, "Alan T": {"born": 1912}}', "", {"name": "Ada B", "born": 1815}),
        ("JSON", TREE, "", {"name": "docs", "type": "directory", "path": "docs"}),
        ("JSON", '{"result": ["red", "green"]}', "", {"name": "red"}),
        ("lines of JSON", '{"id": 1, "title": "a"}\n{"id": 2, "title": "b"}', "", {"id": 1, "title": "a"}),
        ("Python", ROWS, "", {"cid": 0, "name": "id", "type": "INTEGER"}),
        ("table", MARKDOWN, "Open issues", {"#": 12, "title": "Crash at start", "labels": ["bug", "urgent"]}),
        ("table", ALIGNED, "", {"NAME": "web-1", "STATUS": "Running", "AGE": "3d"}),
        ("table", "name,count\npear,3\nfig,9", "", {"name": "pear", "count": 3}),
        ("pairs", LOG, "Commit history", {"Commit": "b4a0d53bd975d356256a6ae127fdade140c1adea",
         "Author": "Ada", "Author email": "ada@example.com", "Date": "2026-05-14 10:03:00+00:00",
         "Message": "Change number 14: fig"}),
        ("pairs", SHOWN, "", {"commit": "b4a0d53bd975d356256a6ae127fdade140c1adea", "Author": "Ada",
         "Author email": "ada@example.com", "Date": "Thu May 14 10:03:00 2026 +0000",
         "message": "Change number 14: fig", "changed files": ["f1.txt"], "added lines": 1, "removed lines": 0}),
        ("sections", STATUS, "files", {"path": "src/a.py", "heading": "To be kept", "mark": "modified"}),
        ("pairs", INFO, "", {"size": 505, "created": "Sun Nov 22 2026 22:01:30 GMT+0000 (Coordinated Universal Time)",
         "isFile": True, "permissions": "644"}),
        ("list", FOLDER, "", {"type": "dir", "name": "archive"}),
        ("list", TASKS, "Tasks", {"name": "Buy milk", "id": 3, "priority": "high", "done": True}),
        ("list", "1. **Plan** (ID: 3)\n   Tags: a, b\n2. **Trip** (ID: 4)\n   Tags: c, d", "",
         {"ID": 3, "name": "Plan", "Tags": ["a", "b"]}),
        ("list", "1. Plan (id: 3) - a day out\n2. Trip (id: 4) - by train", "",
         {"id": 3, "name": "Plan", "description": "a day out"}),
        ("pairs", "### Plan\n- **Number**: 3\n- **Place**: Rome\n\n### Trip\n- **Number**: 4\n- **Place**: Lima", "",
         {"name": "Plan", "Number": 3, "Place": "Rome"}),
        ("table", "| Name | Version |\n|---|---|\n| a \\| b | 1.10 |\n| c | 1.9 |", "",
         {"Name": "a | b", "Version": "1.10"}),
        ("list", "* main\n  side4", "", {"name": "main", "current": True}),
        ("list", "  feature\n* main", "", {"name": "feature", "current": False}),
        ("list", "/tmp/a/n1.txt\n/tmp/a/b", "", {"path": "/tmp/a/n1.txt", "name": "n1.txt"}),
        ("list", "[link: demo://text/1, Text 1 - The first]", "resources",
         {"uri": "demo://text/1", "name": "Text 1", "description": "The first"}),
    ],
)  # fmt: skip
def test_a_result_is_read_in_its_form(form: str, text: str, name: str, first: dict[str, object]) -> None:
    assert form_of([text]) == form
    found = read_as(form, text)[0]
    assert (found.name, found.records[0]) == (name, first)


def test_a_list_may_be_called_as_a_count_is() -> None:
    [found] = read_json('{"pages": [{"id": 1, "title": "Plan"}, {"id": 2, "title": "Trip"}], "total": 2}')
    assert (found.name, [record["title"] for record in found.records]) == ("pages", ["Plan", "Trip"])


def test_a_table_with_a_row_that_cannot_be_read_is_not_whole() -> None:
    rows = "| Name | Place |\n|---|---|\n| Ada | Rome |\n| Omar | Lima | 3 |\n"
    assert read_as("table", rows)[0].cut
    assert not read_as("table", rows.replace(" | 3 |", " |"))[0].cut


def test_a_patch_tells_files_and_lines() -> None:
    patch = (
        "--- a/old.txt\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-- one\n--- two\n"
        "diff --git a/b.txt b/b.txt\n--- a/b.txt\t2026\n+++ b/b.txt\t2026\n@@ -1 +1,2 @@\n-+++ x\n+a\n+b\n"
    )
    told = {"changed files": ["old.txt", "b.txt"], "added lines": 2, "removed lines": 3}
    assert changes_in(patch.split("\n")) == told
    assert changes_in(patch.split("\n")[:-3]) == changes_in(["--- a", "+++ b", "@@ -1,9 +1,9 @@"]) == {}
    assert changes_in(["--- a", "", "+++ b"]) == changes_in([]) == {}


def test_rows_without_names_are_read_with_the_names_of_columns() -> None:
    text = "[(1, 'Ada', datetime.date(2026, 1, 3)), (2, 'Omar', None)]"
    assert form_of([text]) is None and row_width(text) == 3
    assert read_rows(text, ("id", "name", "day"))[0].records == (
        {"id": 1, "name": "Ada", "day": "2026-01-03"},
        {"id": 2, "name": "Omar"},
    )
    assert first_column("[('people',), ('things',)]") == ["people", "things"]
    assert row_width("[(1, 2), (3,)]") == row_width("[print(1)]") == 0


def test_a_form_belongs_to_a_tool_and_not_to_one_result() -> None:
    """A tool that shows files shows some that are JSON."""
    texts = [
        "Pears are ripe in September.",
        '[{"name": "pear", "count": 30}]',
        "# A\n\n- one\n- two",
        "name,n\na,1\nb,2",
    ]
    assert form_of(texts) is None


@pytest.mark.parametrize(
    "text",
    [
        "It was a dark and stormy night; the rain fell in torrents.",
        "42",
        "Echo: hello",
        "",
        "[image: image/png, 1024 bytes]",
        "__import__('os').system('true')",
        "[" * 50_000,
        "(" * 99_999,
        '{"a":' * 5_000,
    ],
)
def test_other_results_hold_no_records(text: str) -> None:
    assert form_of([text]) is None


@pytest.mark.parametrize(
    "text",
    [
        "- " + "a: " * 30_000,
        "a " * 40_000 + "\n" + "b " * 10_000,
        "| a " * 20_000 + "\n" + "|-" * 20_000,
        ("x" * 80 + " (" * 200 + "\n") * 100,
        "/a" * 40_000,
        "* " + "*" * 90_000,
        "{'a': " * 10_000,
        ",".join(["a"] * 30_000) + "\n1\n2\n3",
        "\t".join("ab" for _ in range(20_000)),
    ],
)
def test_a_hostile_result_takes_no_time(text: str) -> None:
    began = time.process_time()
    form_of([text])
    assert time.process_time() - began < 5  # milliseconds, unless an expression backtracks


def test_a_result_that_was_cut_gives_what_stands_before_the_cut() -> None:
    whole = json.dumps({"parts": [{"id": at} for at in range(500)]})
    found = read_as("JSON", whole[:1000] + "\n[… cut: 40000 characters in all …]\n" + whole[-100:])[0]
    assert found.name == "parts" and found.cut
    assert 20 < len(found.records) < 120 and found.records[7] == {"id": 7}


def test_a_bold_name_ends_where_its_stars_end() -> None:
    text = "## Moves\n\n- **Protect** (+4): Normal, 0 power\n- **Bulldoze** \u2014 Ground (60 BP)\n- **Rest**: sleeps\n"
    (found,) = read_as("list", text)
    assert [record["name"] for record in found.records] == ["Protect", "Bulldoze", "Rest"]
    assert [record["description"] for record in found.records] == ["Normal, 0 power", "Ground (60 BP)", "sleeps"]


def test_a_name_in_ticks_is_the_name_without_them() -> None:
    text = "### Laws (2)\n- `gdpr`: A law of 2016 (99 articles)\n- `ai_act`: A law of 2024 (113 articles)\n"
    found = read_as("list", text)
    assert [one["name"] for one in found[0].records] == ["gdpr", "ai_act"]


def test_a_line_of_a_name_and_a_value_is_no_title_of_a_list() -> None:
    text = "## Results (2 found)\n\n**Filter:** speed between 0-999\n\n- **Ada** (9)\n- **Omar** (7)\n"
    (found,) = read_as("list", text)
    assert found.name == "Results (2 found)" and noun_in("Search results (9 found, showing top 2)") == "result"
    assert noun_in("closing_deals_this_month") == "deal"


def test_objects_about_the_call_are_nothing_of_the_thing() -> None:
    file = {"name": "log.txt", "size": 60, "chunking": {"size": 64}, "_hints": {"next": "read more"}, "_id": {"of": 7}}
    file["_source"] = {"title": "Dune"}
    assert [dict(record) for found in read_json(json.dumps(file)) for record in found.records] == [
        {"name": "log.txt", "size": 60, "_id.of": 7, "_source.title": "Dune"}
    ]
    found = read_json(json.dumps({"totalHits": 852, "hits": [{"name": "oar"}, {"name": "sail"}]}))
    assert [one.several for one in found] == [True]


def test_of_knowledge_one_is_an_entry() -> None:
    assert noun_of_tool("search_knowledge") == "knowledge entry"
    assert plural(noun_of_tool("search_knowledge")) == "knowledge entries"
    records = tuple({"knowledge_id": number, "rating": 5} for number in (3, 4, 5))
    listed = Sighting(0, "list_knowledge", "knowledge entry", records, several=True)
    assert key_of("knowledge entry", [listed], Subjects(), by_id=False) == "knowledge_id"
    assert meant_by_ids({"knowledge entry": [listed]}) == set()
