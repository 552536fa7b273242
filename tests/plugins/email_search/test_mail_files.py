"""Reading mail: trees, mbox and CSV files, and whatever the bytes of a mail are."""

import csv
import itertools
import os
from pathlib import Path

import mail_files
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mail_database import DatabaseError
from mail_files import Unusable, csv_mails, maildir_mails, mbox_mails, parse_mail

MAIL = b"""Message-ID: <1@a.example>
Date: Mon, 14 May 2001 16:39:00 -0700 (PDT)
From: Phillip Allen <Phillip.Allen@enron.com>
To: tim.belden@enron.com, Ann <ann@enron.com>
Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=
 from Oslo

Here is our forecast
"""
ATTACHED = b"--b\nContent-Disposition: attachment; filename=x.txt\n\nTwo\n--b"


def test_a_mail_has_its_parts_in_utc_with_decoded_words() -> None:
    mail = parse_mail(MAIL)
    assert (mail.message_id, mail.sent) == ("1@a.example", "2001-05-14T23:39:00")
    assert mail.addresses == ("phillip.allen@enron.com", "tim.belden@enron.com", "ann@enron.com")
    assert mail.people == "from Phillip Allen <phillip.allen@enron.com> to tim.belden@enron.com; Ann <ann@enron.com>"
    assert (mail.sender, mail.subject, mail.body) == ("Phillip Allen", "Grüße from Oslo", "Here is our forecast")


@pytest.mark.parametrize(
    ("old", "new", "body"),
    [
        (b"\n\nHere", b"\nContent-Type: text/plain; charset=no-such\n\nHere \xe9", "Here é is our forecast"),
        (b"\n\nHere", b"\nContent-Type: text/html\n\n<p>Here<script>x()</script> &amp;</p>", "Here & is our forecast"),
        (b"\n\nHere", b"\nContent-Transfer-Encoding: base64\n\n!!", None),
        (b"\n\nHere", b"\nContent-Type: multipart/mixed; boundary=\n\nHere", None),
        (b"\n\nHere", b"\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\nOne\n" + ATTACHED, "One"),
    ],
)
def test_a_broken_mail_is_read_as_far_as_it_goes(old: bytes, new: bytes, body: str | None) -> None:
    mail = parse_mail(MAIL.replace(old, new))
    assert body is None or body in mail.body.replace("\n", " ")
    assert "x()" not in mail.body and "Two" not in mail.body


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a mail"),
        (b"\x00\xff" * 50, "not a mail"),
        (MAIL.replace(b"Date: Mon, 14 May 2001", b"Date: some day in May 99999"), "no date"),
        (MAIL.replace(b"Date:", b"When:"), "no date"),
        (MAIL.replace(b"From:", b"Of:"), "no sender"),
        (MAIL + b"long " * 30_000, "too large"),
        (MAIL.replace(b"To: ", b"To: " + b"a@b.c, " * 1001), "over a thousand recipients"),
    ],
)
def test_a_mail_that_cannot_be_used_has_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        parse_mail(data)


@settings(max_examples=40)
@given(st.binary(max_size=120), st.binary(max_size=120))
def test_no_bytes_are_too_odd_to_be_read(head: bytes, body: bytes) -> None:
    for data in (head + b"\n\n" + body, MAIL.replace(b"Subject:", head + b"\nSubject:") + body):
        try:
            mail = parse_mail(data)
        except Unusable:
            continue
        for text in (mail.message_id, mail.sender, mail.people, mail.subject, mail.body, *mail.addresses):
            assert "\0" not in text
            text.encode()


def test_a_tree_is_walked_once_although_its_links_form_a_circle(tmp_path: Path) -> None:
    inbox = tmp_path / "allen-p" / "inbox"
    inbox.mkdir(parents=True)
    for name in ("1.", "2."):
        (inbox / name).write_bytes(MAIL)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "half").write_bytes(MAIL)
    (inbox / "up").symlink_to(tmp_path)
    (inbox / "self").symlink_to(inbox / "self")
    os.mkfifo(inbox / "pipe")
    assert [mail.data for mail in maildir_mails(tmp_path, 0)] == [MAIL, MAIL]
    assert [mail.place for mail in maildir_mails(tmp_path, 1)] == [2]


def test_a_large_mail_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail_files, "LARGEST", 2000)
    large = MAIL + b"QUJD" * 1000
    (tmp_path / "1").write_bytes(large)
    assert [mail.data for mail in maildir_mails(tmp_path, 0)] == [None]
    box = tmp_path / "2"
    box.write_bytes(b"From a Mon\n" + large + b"\n\nFrom b Mon\n" + MAIL)
    assert [mail.data for mail in mbox_mails(box, 0)] == [None, MAIL]


def test_mbox_and_csv_are_read_on_from_any_place(tmp_path: Path) -> None:
    box, table = tmp_path / "box", tmp_path / "emails.csv"
    mails = [MAIL.replace(b"<1@", b"<%d@" % n) for n in range(5)]
    box.write_bytes(b"".join(b"From x Mon\n" + mail.replace(b"\n\nHere", b"\n\n>From Here") + b"\n" for mail in mails))
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([["file", "message"], *([f"a/{n}.", mail.decode()] for n, mail in enumerate(mails))])
    for read, path in ((mbox_mails, box), (csv_mails, table)):
        every = list(read(path, 0))
        assert [parse_mail(mail.data or b"").message_id for mail in every] == [f"{n}@a.example" for n in range(5)]
        for count, mail in itertools.islice(enumerate(every, 1), 4):
            assert list(read(path, mail.place)) == every[count:] or read is csv_mails
            assert [one.data for one in read(path, mail.place)] == [one.data for one in every[count:]]
        assert every[-1].done == path.stat().st_size
    assert b"From Here is" in (next(mbox_mails(box, 0)).data or b"")


@pytest.mark.parametrize(
    ("read", "content", "said"),
    [
        (mbox_mails, b"Dear Ann", "is not an mbox file"),
        (csv_mails, b"a,b\n1,2\n", "columns a, b"),
        (csv_mails, b"", "an empty file"),
    ],
)
def test_a_file_of_another_kind_is_one_sentence(read, content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mail"
    path.write_bytes(content)
    with pytest.raises(DatabaseError, match=said):
        list(read(path, 0))
