import random
from collections import Counter
from typing import Any

import pytest

from mcp_rl.explore.answer import says_nothing
from mcp_rl.explore.complaint import common_texts, reports_failure, without_echo
from mcp_rl.explore.sample import Draw, Sampler
from mcp_rl.explore.values_seen import ValuePool


@pytest.mark.parametrize(
    "text, arguments",
    [
        ('{"errore": "Variabile non impostata."}', {}),
        ('{"fehler": {"text": "Kein Ordner"}, "code": 3}', {}),
        ('{"错误": "文件不存在"}', {}),
        ('{"error_message": "no key"}', {}),
        ("Fehler: der Ordner fehlt", {}),
        ("不支持的转换: planet 到 river", {"from": "planet"}),
        ("❌ 计算失败 (除数不能为零)", {}),
        ('{"success": true, "result": {"success": false, "message": "Unsupported angle"}}', {}),
        ('{"data": {"error": "no such unit"}, "took": 3}', {}),
        ("Keine Treffer fuer: ember", {}),
        ("Keine passenden Ids gefunden - nichts geaendert.", {}),
        ("#11 - kein solcher Eintrag.", {}),
        ("Aucun livre trouvé", {}),
        ('{"status": "no_match", "query": "ember", "dataset": {"rows": 53}}', {"query": "ember"}),
        ('{"found": false, "word": "ember", "version": 2}', {"word": "ember"}),
        ('{"matched": false, "dataset": {"rows": 53}}', {}),
        ('{"result": {"message": "No matches for ember"}}', {}),
        ('{"query": "ember", "message": "Nothing: not found"}', {}),
        ('{"result": null}', {}),
        ("not a folder: /srv/data/a quiet child", {"path": "a quiet child"}),
        ("not a valid sheet name: 'x'", {"sheet": "x"}),
        ("Unknown unit 'furlong'. Try metre.", {"unit": "furlong"}),
        ("Cannot open 'a.pdf'", {"file": "a.pdf"}),
        ("Unknown category: magic coat. Use 'defense', 'offense', 'all'.", {"category": "Magic Coat"}),
        ("notes.txt is not a directory", {"path": "notes.txt"}),
        ("Path notes/x does not exist.", {"where": {"path": "notes/x"}}),
        ("There is no book b-9.", {"id": "b-9"}),
        ('Unexpected token r, "river" is not valid JSON', {"tasks": "river"}),
        ("tasksRaw 參數格式錯誤", {}),
        ("Sorry, an error occurred.", {}),
        ("The tool had an error reading notes.txt", {}),
        ("Das Blatt b-9 wurde nicht gefunden", {"id": "b-9"}),
    ],
)
def test_complaints_are_failures(text: str, arguments: dict[str, Any]) -> None:
    assert reports_failure(text, arguments) and says_nothing(text, arguments)


@pytest.mark.parametrize(
    "text, arguments",
    [
        ("Hello, Ada!", {"name": "Ada"}),
        ("Not a palindrome: river", {"text": "river"}),
        ("The room 'Blue' is not available on Monday, but is free on Tuesday.", {"room": "Blue"}),
        ("There are no conflicts with Plan: all 12 files merge.", {"branch": "Plan"}),
        ("'river' is not a palindrome", {"text": "river"}),
        ("'a@b' is not a valid address", {"address": "a@b"}),
        ("not a folder: /srv/data/x", {"path": "y"}),
        ("17 is not a prime number", {"n": 17}),
        ("Harbor\nHarbor is not a file\n1\n2\n3", {"title": "Harbor"}),
        ('{"mean": 3.5, "fel": 0.2}', {}),
        ('{"errors": ["line 3"], "valid": false}', {}),
        ("Keine Sorge: drei Bücher wurden gefunden.", {}),
        ('{"status": "matched", "matches": 3}', {}),
        ('{"error": false, "msg": "countries", "data": {"name": "Chad"}}', {}),
        ('{"error": null, "result": 5}', {}),
        ('["error", "warning", "info"]', {}),
        ('[{"code": 404, "name": "Not Found"}, {"code": 200, "name": "OK"}]', {}),
        ('{"title": "No such thing", "pages": 3}', {}),
        ("None of the 3 notes is old.", {}),
        ("The usual HTTP error codes are 404 and 500.", {}),
        ("Chapter 3, on error handling and error messages, has 12 pages.", {}),
        ("# Error handling\n\nRaise early.", {"page": "errors"}),
    ],
)
def test_answers_about_an_argument_are_no_complaints(text: str, arguments: dict[str, Any]) -> None:
    assert not reports_failure(text, arguments)


def test_a_result_with_nothing_but_what_was_asked_holds_nothing() -> None:
    found = '{"query": "pears", "from": "2026-01-01", "count": 0, "hits": []}'
    assert says_nothing(found, {"query": "pears"}) and not says_nothing(found, {"query": "plums"})
    assert says_nothing("no files match those filters")
    assert not says_nothing('{"value": 12, "warnings": []}', {"a": 12, "b": 0}), "12 may be a sum"
    assert says_nothing('{"limit": 12, "found": []}', {"limit": 12})


def test_what_comes_whatever_is_asked_is_no_answer() -> None:
    lacks = "Please set the key first."
    said = {name: Counter({lacks: 1}) for name in ("list", "get", "find")} | {"help": Counter({"How to begin": 1})}
    assert common_texts(said, {}) == {lacks}
    said["get"]["a note"] += 1
    assert common_texts(said, {}) == set(), "two tools may have one answer"
    one = {"get": Counter({lacks: 8}), "list": Counter({"all of them here": 8})}
    assert common_texts(one, {"get": 8, "list": 0}) == {lacks}, "a listing may ignore what it is given"
    assert common_texts(one, {"get": 1, "list": 0}) == set(), "options may change nothing"
    long = {name: Counter({"a line of a listing\n" * 50: 4}) for name in ("list", "show", "find")}
    assert common_texts(long, {}) == set()
    assert common_texts({name: Counter({"12": 9}) for name in ("add", "divide", "power")}, {"add": 9}) == set()


def test_a_complaint_teaches_no_path_that_it_only_repeats() -> None:
    given = {"path": "a quiet child"}
    assert without_echo("not a folder: /srv/data/a quiet child", given) == "not a folder:  "
    pool = ValuePool()
    pool.observe_error("scan", given, "not a folder: /srv/data/a quiet child; allowed is /srv/notes")
    assert pool["path:folder"] == ["/srv/notes"]


def test_an_error_tells_the_ending_of_files_and_the_kind_of_statement() -> None:
    pool = ValuePool()
    pool.observe_error("read", {"filepath": "/a/b.txt"}, "Only .xls files are supported: /a/b.txt")
    pool.observe_error("alter", {"query": "pears"}, "SQL Error: Only ALTER TABLE statements are allowed")
    pool.observe_error("write", {"query": "pears"}, "Only INSERT, UPDATE, or DELETE operations are allowed")
    assert pool.endings("filepath") == (".xls",)
    assert [pool.statement_kind(tool) for tool in ("alter", "write", "read")] == ["alter", "change", None]


def test_an_optional_argument_that_an_error_demands_is_drawn() -> None:
    pool, text = ValuePool(), {"type": "string"}
    sampler = Sampler("save", {"properties": dict.fromkeys(("id", "ns", "key", "title", "note"), text)}, pool)

    def given() -> Counter[str]:
        return Counter(name for seed in range(60) for name in (sampler.draw(random.Random(seed)) or Draw({})).arguments)

    before = given()
    pool.observe_error("save", {"title": "x"}, "Error: create requires ns and key (or pass id); `note` is required")
    after = given()
    assert max(before.values()) < 36 and min(after[name] for name in ("ns", "key", "note")) > 45
    assert after["id"] < 36 and after["title"] < 36
