"""Building: the same mail for the same seed, going on after a kill, duplicates, questions, and what leaves nothing."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import build_db
import pytest
from build_db import Builder, main, synthetic_source
from company import make_company, questions
from mail_database import MailDatabase, partial_path

MAIL = """Message-ID: <{n}@a.example>
Date: 14 May 2001 16:39:0{n} +0000
From: ann@a.example
To: bob@a.example

{text}
"""


def rows(path: Path) -> list[tuple]:
    with closing(sqlite3.connect(path)) as db:
        found = [db.execute(f"SELECT * FROM {table} ORDER BY 1") for table in ("messages", "questions", "addresses")]
        return [row for each in found for row in each]


def test_the_same_seed_writes_the_same_mail(small_database: Path, tmp_path: Path) -> None:
    again, other = tmp_path / "again.db", tmp_path / "other.db"
    assert main(["--synthetic", "400", "--database", str(again)]) == 0
    assert main(["--synthetic", "400", "--database", str(other), "--seed", "1"]) == 0
    assert rows(again) == rows(small_database) != rows(other)


def test_questions_are_answered_by_the_mail_that_they_name_and_no_later_one() -> None:
    company = make_company(400, 3)
    letters = {letter.message_id: letter for letter in company.letters}
    asked = list(questions(company, 3))
    assert {row["split"] for row in asked} == {"train", "val", "test"}
    of_split = {}
    for row in asked:
        sources = [letters[one] for one in row["message_ids"]]
        assert all(letter.sent.date().isoformat() <= row["query_date"] for letter in sources)
        assert all(row["inbox_address"] in [p.address for p in (s.sender, *s.to)] for s in sources)
        assert row["answer"] is None or row["answer"] in sources[-1].body
        thing = " ".join(row["extra"]["keywords"][0].split()[:2])
        assert of_split.setdefault(thing, row["split"]) == row["split"]
    changed = [fact for fact in company.facts if len(fact.told) > 1]
    assert changed and sum(row["extra"]["hops"] == 2 for row in asked) and sum(row["answer"] is None for row in asked)


def test_a_killed_build_goes_on_where_it_stopped(small_database: Path, tmp_path: Path) -> None:
    path = tmp_path / "mail.db"
    source = synthetic_source(400, 0)
    builder = Builder(path, source)
    builder.add([mail for mail, _ in zip(source.read(0), range(150), strict=False)])
    code = f"import sys; sys.path.append({str(Path(build_db.__file__).parent)!r})\nfrom build_db import main\n"
    busy = subprocess.run(
        [sys.executable, "-c", f"{code}sys.exit(main(['--synthetic', '400', '--database', {str(path)!r}]))"],
        capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    assert busy.returncode == 2 and "Another process is building" in busy.stderr and not path.exists()
    builder.db.close()  # as the kernel does for a killed process
    assert builder.place == 150 and partial_path(path).exists()
    again = Builder(path, source)
    assert again.place == 150
    again.db.close()
    assert main(["--synthetic", "400", "--database", str(path)]) == 0
    assert rows(path) == rows(small_database) and not partial_path(path).exists()


def test_a_half_built_database_of_other_mail_is_begun_anew(small_database: Path, tmp_path: Path) -> None:
    path = tmp_path / "mail.db"
    for junk in (b"not a database" * 100, None):
        if junk:
            partial_path(path).write_bytes(junk)
        else:
            Builder(path, synthetic_source(100, 9)).db.close()
        assert main(["--synthetic", "400", "--database", str(path)]) == 0
        assert rows(path) == rows(small_database)
        path.unlink()


def test_duplicates_and_mail_that_cannot_be_used_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder, path = tmp_path / "maildir", tmp_path / "mail.db"
    folder.mkdir()
    (folder / "1").write_text(MAIL.format(n=1, text="One."))
    (folder / "2").write_text(MAIL.format(n=1, text="Another with the same id."))
    (folder / "3").write_text(MAIL.format(n=1, text="One.").replace("<1@", "<2@"))
    (folder / "4").write_text("no mail at all")
    (folder / "5").write_text(MAIL.format(n=5, text="Five."))
    assert main(["--maildir", str(folder), "--database", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 2 mails; left out: 2 duplicate, 1 not a mail.\n"
    asked = {"question": "What did Ann write?", "answer": "Five.", "message_ids": ["<5@a.example>"],
             "inbox_address": "bob@a.example", "query_date": "2001-05-15", "how_realistic": 0.9}  # fmt: skip
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps(asked) + "\n")
    assert main(["--questions", str(file), "--database", str(path)]) == 0
    (row,) = MailDatabase(path).questions()
    assert (row["message_ids"], row["split"]) == ('["5@a.example"]', "train")
    for change, said in (
        ({"query_date": "2001-05-13"}, "There is no mail '<5@a.example>' here"),
        ({"inbox_address": "eve@a.example"}, "No mail was sent by or to 'eve@a.example'"),
        ({"split": "dev"}, "split must be train, val or test, not 'dev'"),
        ({"question": ""}, "the field 'question' is missing"),
        ({"message_ids": "5"}, "message_ids must be a list of texts"),
    ):
        file.write_text(json.dumps({**asked, **change}) + "\n")
        assert main(["--questions", str(file), "--database", str(path)]) == 2
        assert f"{file}, line 1: {said}" in capsys.readouterr().err
    assert list(MailDatabase(path).questions()) == [row] and not partial_path(path).exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--maildir", "none"], "The folder {here}/none does not exist"),
        (["--mbox", "none"], "The file {here}/none does not exist"),
        (["--csv", "text"], "{here}/text has the columns no mail"),
        (["--mbox", "text"], "{here}/text is not an mbox file"),
        (["--maildir", "empty"], "No mail was found in {here}/empty (1 not a mail)."),
        (["--synthetic", "5"], "A company of 5 mails cannot be made; ask for 100 to 1000000."),
        (["--questions", "text", "--synthetic", "100"], "{here}/text, line 1: Expecting value"),
    ],
)
def test_what_cannot_be_built_is_one_sentence_and_leaves_nothing(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("no mail\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "1").touch()
    path = tmp_path / "data" / "mail.db"
    words = [str(tmp_path / word) if (tmp_path / word).exists() else word for word in words]
    assert main([*words, "--database", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(said.format(here=tmp_path)) and error.count("\n") == 1
    assert not path.parent.exists() or not any(path.parent.iterdir()) or "--questions" in words


def test_a_database_is_replaced_only_if_that_is_said(small_database: Path, tmp_path: Path) -> None:
    path = tmp_path / "mail.db"
    assert main(["--synthetic", "100", "--database", str(path)]) == 0
    before = rows(path)
    assert main(["--synthetic", "400", "--database", str(path)]) == 2
    assert rows(path) == before
    assert main(["--synthetic", "400", "--database", str(path), "--replace"]) == 0
    assert rows(path) == rows(small_database)
