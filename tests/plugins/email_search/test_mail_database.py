"""Searching and reading: any text as keywords, the owner and the day of an inbox, and databases that cannot be used."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mail_database import VERSION, DatabaseError, Inbox, MailDatabase, SearchError
from search_server import Desk, called


@pytest.fixture(scope="module")
def database(small_database: Path) -> MailDatabase:
    return MailDatabase(small_database)


def question(database: MailDatabase, **wanted: object) -> dict:
    rows = ({**row, **json.loads(str(row["extra"]))} for row in database.questions())
    return next(row for row in rows if all(row[key] == value for key, value in wanted.items()))


@settings(max_examples=40)
@given(text=st.text(max_size=40))
def test_no_keywords_are_a_query_of_their_own(database: MailDatabase, text: str) -> None:
    for keywords in (text, f'{text}" OR subject:a*', f"NEAR({text}) NOT inboxes:a1"):
        try:
            hits, _ = database.search(keywords, Inbox(owner=10**6))
        except SearchError:
            continue
        assert hits == []  # nobody's inbox has this id, and no query looks past it


@pytest.mark.parametrize("keywords", ['"', "*", "a\0b", "\ud800x", "x AND", "{a} : b", "-a", "^a", "a + b", "'; DROP"])
def test_the_signs_of_the_query_language_are_text(database: MailDatabase, keywords: str) -> None:
    try:
        database.search(keywords, Inbox())
    except SearchError as error:
        assert str(error) == "The keywords hold no word; give one or more words."


def test_the_best_hit_holds_the_answer_and_is_marked(database: MailDatabase) -> None:
    row = question(database, hops=1, worded="mail", kind="text")
    hits, complete = database.search(row["keywords"][0], database.inbox(row["inbox_address"], row["query_date"]))
    (number,) = json.loads(row["message_ids"])
    assert complete and number in [hit.message_id for hit in hits[:2]]
    assert f"**{row['keywords'][0].split()[0]}**" in hits[0].subject + hits[0].snippet
    assert row["answer"] in database.read(f"<{number}>", Inbox()).body


def test_mail_with_some_of_the_words_is_found_where_none_has_all(database: MailDatabase) -> None:
    row = question(database, hops=1, worded="mail", kind="text")
    inbox = database.inbox(row["inbox_address"], row["query_date"])
    hits, complete = database.search(row["keywords"][0] + " zeppelin", inbox)
    (number,) = json.loads(row["message_ids"])
    assert not complete and number in [hit.message_id for hit in hits[:2]]
    assert database.search("zeppelin", inbox) == ([], True)


def test_later_mail_and_mail_of_others_is_neither_found_nor_read(database: MailDatabase) -> None:
    row = question(database, hops=1, worded="mail", kind="text")
    (number,) = json.loads(row["message_ids"])
    sent = database.read(number, Inbox()).sent
    before = database.inbox(row["inbox_address"], "2025-01-01")
    stranger = next(
        Inbox(owner=owner)
        for owner in range(1, 1000)
        if not any(hit.message_id == number for hit in database.search(row["keywords"][0], Inbox(owner=owner))[0])
    )
    for inbox in (before, stranger):
        assert number not in [hit.message_id for hit in database.search(row["keywords"][0], inbox)[0]]
        with pytest.raises(SearchError, match="There is no mail"):
            database.read(number, inbox)
    with pytest.raises(SearchError, match="No mail was sent by or to"):
        database.inbox("nobody@nowhere.example", None)
    day = sent[:10]
    everybody = Inbox()
    assert number in [h.message_id for h in database.search(row["keywords"][0], everybody, sent_after=day)[0]]
    assert number not in [h.message_id for h in database.search(row["keywords"][0], everybody, sent_before=day)[0]]
    with pytest.raises(SearchError, match="sent_after must be a date such as 2001-05-14, not 'May'"):
        database.search("a", everybody, sent_after="May")


def test_a_database_that_cannot_be_used_is_one_sentence(small_database: Path, tmp_path: Path) -> None:
    path = tmp_path / "mail.db"
    with pytest.raises(DatabaseError, match="does not exist; build it"):
        MailDatabase(path)
    path.with_name("mail.db.partial").touch()
    with pytest.raises(DatabaseError, match="only half-built; go on"):
        MailDatabase(path)
    path.write_text("From a Mon\n" * 500)
    with pytest.raises(DatabaseError, match="is not a mail database"):
        MailDatabase(path)
    for change, said in (("SET value = '0' WHERE key = 'version'", f"has version 0, not {VERSION}"),
                         ("SET key = 'begun' WHERE key = 'complete'", "is only half-built")):  # fmt: skip
        shutil.copyfile(small_database, path)
        db = sqlite3.connect(path)
        with db:
            db.execute(f"UPDATE meta {change}")
        db.close()
        with pytest.raises(DatabaseError, match=said):
            MailDatabase(path)


def test_the_tools_say_what_is_wrong_with_a_call(small_database: Path, tmp_path: Path) -> None:
    desk = Desk(small_database)
    for name, arguments, said in (
        ("search_inbox", {}, "The argument keywords is missing."),
        ("search_inbox", {"keywords": ["a"]}, "keywords must be of type string, not ['a']."),
        ("search_inbox", {"keywords": "a", "max_results": 99}, "max_results must be from 1 to 20, not 99."),
        ("search_inbox", {"keywords": "a", "max_results": True}, "max_results must be of type integer, not True."),
        ("search_inbox", {"keywords": "a", "limit": 1}, "search_inbox has no argument 'limit'."),
        (
            "search_inbox",
            {"keywords": " ".join(f"w{n}" for n in range(41))},
            "There are 41 keywords; give at most 32.",
        ),
        ("read_email", {"message_id": "x"}, "There is no mail 'x' here; take a message_id from a search result."),
        ("drop", {}, "There is no tool 'drop'."),
    ):
        with pytest.raises(SearchError) as raised:
            called(desk, name, arguments)
        assert str(raised.value) == said
    assert called(desk, "search_inbox", {"keywords": "zeppelin"}) == "No mail was found."
    assert called(desk, "return_final_answer", {"answer": "Oslo", "reference_message_ids": []}) == "Handed in."
    with pytest.raises(DatabaseError):
        called(Desk(tmp_path / "none.db"), "begin_episode", {})
