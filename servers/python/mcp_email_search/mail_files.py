"""Mail from files: trees of single mails (Maildir, Enron's), mbox files, and CSV files with a column `message`.

Each reader yields mails in a fixed order, each with the place after it, from which a later run goes on. Reading never
fails on a mail's content: what is broken is read as far as it goes, and a mail that cannot be used has a reason.
"""

import csv
import email
import email.message
import email.utils
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.header import decode_header, make_header
from html.parser import HTMLParser
from pathlib import Path
from typing import BinaryIO

from mail_database import DatabaseError, bare_id

LARGEST = 25_000_000
"""Bytes of a mail with its attachments. A larger one is dropped unread."""
LONGEST = 100_000
"""Characters of a mail's text. One with a longer text is dropped."""
_MOST_RECIPIENTS = 1000
_ADDRESS = re.compile(r"[\w.+-]+@[\w.-]+")
_EARLIEST, _LATEST = 1970, 2100


@dataclass(frozen=True)
class RawMail:
    """A mail as bytes, None if it is too large."""

    data: bytes | None
    place: int
    """The place of the next mail."""
    done: int
    """Files, or bytes of the one file, that are read by now."""


@dataclass(frozen=True)
class ParsedMail:
    """A mail's parts as the database keeps them."""

    message_id: str
    digest: bytes
    sent: str
    sender: str
    addresses: tuple[str, ...]
    people: str
    subject: str
    body: str


class Unusable(Exception):
    """A mail that is left out; the message is the reason, such as "no date"."""


def maildir_mails(folder: Path, place: int) -> Iterator[RawMail]:
    """Yield the files below a folder from number `place` on, links followed, each folder once. Raises DatabaseError."""
    for number, path in enumerate(_files(folder)):
        if number >= place:
            yield RawMail(_content(path), number + 1, number + 1)


def count_files(folder: Path) -> int:
    """Return the number of files below a folder."""
    return sum(1 for _ in _files(folder))


def _files(folder: Path) -> Iterator[str]:
    """Yield the regular files below a folder in the order of their names, without Maildir's `tmp`."""
    if not folder.is_dir():
        raise DatabaseError(f"The folder {folder} does not exist; name one with mail in it (--maildir).")
    seen: set[tuple[int, int]] = set()
    waiting = [str(folder)]
    while waiting:
        here = waiting.pop()
        try:
            found = Path(here).stat()
            if (found.st_dev, found.st_ino) in seen:
                continue
            seen.add((found.st_dev, found.st_ino))
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError:  # a folder that may not be read
            continue
        below = []
        for entry in entries:
            try:
                if entry.is_dir():
                    below.append(entry.path)
                elif entry.is_file():
                    yield entry.path
            except OSError:  # a link to itself
                continue
        waiting += [path for path in reversed(below) if Path(path).name != "tmp"]


def _content(path: str) -> bytes | None:
    """Return a file's bytes, None if they are too many or cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
                return None
            return file.read(LARGEST + 1)
    except OSError:
        return None


def mbox_mails(path: Path, place: int) -> Iterator[RawMail]:
    """Yield the mails of an mbox file from the byte `place` on. Raises DatabaseError if it is none."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise DatabaseError(f"Cannot read the mbox file {path}: {error.strerror}.") from error
    with file:
        if file.read(5) != b"From ":
            raise DatabaseError(f"{path} is not an mbox file: it does not begin with 'From '.")
        file.seek(place)
        lines: list[bytes] = []
        size, after_blank = 0, False
        while line := file.readline(LARGEST):
            begins = line.startswith(b"From ") and (after_blank or not size)
            if begins and size:
                here = file.tell() - len(line)
                yield RawMail(_unquoted(lines) if size <= LARGEST else None, here, here)
                lines, size = [], 0
            size += len(line)
            if size <= LARGEST and not begins:
                lines.append(line)
            elif size > LARGEST:
                lines.clear()
            after_blank = line in (b"\n", b"\r\n")
        if size:
            yield RawMail(_unquoted(lines) if size <= LARGEST else None, file.tell(), file.tell())


def _unquoted(lines: list[bytes]) -> bytes:
    return b"".join(line[1:] if line.startswith(b">From ") else line for line in lines)


def csv_mails(path: Path, place: int) -> Iterator[RawMail]:
    """Yield the column `message` of a CSV file from row `place` on. Raises DatabaseError for another table."""
    csv.field_size_limit(4 * LARGEST)
    done = 0

    def lines(file: BinaryIO) -> Iterator[str]:
        nonlocal done
        for line in file:
            done += len(line)
            yield line.decode(errors="surrogateescape").replace("\0", "")

    try:
        with path.open("rb") as file:
            rows = csv.reader(lines(file))
            header = next(rows, [])
            if "message" not in header:
                raise DatabaseError(
                    f"{path} has the columns {', '.join(header)[:200] or 'of an empty file'}; the mail must be in a "
                    "column message, as in Enron's emails.csv."
                )
            column = header.index("message")
            for number, row in enumerate(rows):
                if number >= place:
                    data = row[column].encode(errors="surrogateescape") if len(row) > column else b""
                    yield RawMail(data if len(data) <= LARGEST else None, number + 1, done)
    except OSError as error:
        raise DatabaseError(f"Cannot read the CSV file {path}: {error.strerror}.") from error
    except csv.Error as error:
        raise DatabaseError(f"{path} is not a CSV file with mail in it: {error}.") from error


def parse_mail(data: bytes) -> ParsedMail:
    """Return a mail's parts. Raises Unusable, and nothing else whatever the bytes are."""
    try:
        message = email.message_from_bytes(data)
    except Exception as error:  # the parser of the standard library meets its own bugs in hostile mail
        raise Unusable("not a mail") from error
    if not message.keys():
        raise Unusable("not a mail")
    sent = _sent(message)
    if sent is None:
        raise Unusable("no date")
    senders = _addresses(message, "from")
    if not senders:
        raise Unusable("no sender")
    recipients = [pair for name in ("to", "cc", "bcc") for pair in _addresses(message, name)]
    if len(recipients) > _MOST_RECIPIENTS:
        raise Unusable("over a thousand recipients")
    subject = _one_line(_decoded(message.get("subject", "")))
    body = _text(message)
    if len(body) > LONGEST:
        raise Unusable("too large")
    sender_name, sender = senders[0]
    digest = hashlib.sha256("\0".join((sender, sent, subject, body)).encode(errors="replace")).digest()[:16]
    message_id = bare_id(_one_line(_decoded(message.get("message-id", ""))))[:500] or digest.hex()
    shown = "; ".join(_shown(pair) for pair in recipients)
    return ParsedMail(
        _sound(message_id),
        digest,
        sent,
        _sound(sender_name or sender),
        tuple(dict.fromkeys(_sound(address) for _, address in (*senders, *recipients))),
        _sound(f"from {_shown(senders[0])} to {shown or 'nobody'}"),
        _sound(subject),
        _sound(body),
    )


def _sent(message: email.message.Message) -> str | None:
    received = str(message.get("received", "")).rpartition(";")[2]
    for text in (str(message.get("date", "")), received):
        try:
            moment = email.utils.parsedate_to_datetime(text.strip())
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
        if _EARLIEST <= moment.year < _LATEST:
            return datetime.isoformat(moment.replace(tzinfo=None, microsecond=0))
    return None


def _addresses(message: email.message.Message, header: str) -> list[tuple[str, str]]:
    """Return names and lower-case addresses of a header."""
    texts = [_one_line(_decoded(value)) for value in message.get_all(header, [])]
    try:
        found = [(name, address.lower()) for name, address in email.utils.getaddresses(texts) if address]
    except Exception:
        found = []
    return found or [("", address.lower()) for text in texts for address in _ADDRESS.findall(text)]


def _decoded(value: object) -> str:
    """Return a header's text, with encoded words decoded as far as that goes."""
    text = str(value)
    if "=?" in text:
        try:
            return str(make_header(decode_header(text)))
        except Exception:
            return text
    return text


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _shown(pair: tuple[str, str]) -> str:
    name, address = pair
    return f"{name} <{address}>" if name else address


def _sound(text: str) -> str:
    """Return the text without NUL and lone surrogates, which SQLite does not take."""
    return text.replace("\0", "").encode(errors="replace").decode()


def _text(message: email.message.Message) -> str:
    """Return the plain text of a mail, else the text of its HTML; attachments are left out."""
    plain: list[str] = []
    html: list[str] = []
    for part in message.walk():
        if part.is_multipart() or part.get_filename() is not None:
            continue
        kind = part.get_content_type()
        if kind in ("text/plain", "text/html"):
            (plain if kind == "text/plain" else html).append(_part_text(part))
    text = "\n".join(plain).strip()
    return text or "\n".join(_without_tags(one) for one in html if len(one) <= 20 * LONGEST).strip()


def _part_text(part: email.message.Message) -> str:
    try:
        data = part.get_payload(decode=True)
    except Exception:
        data = None
    if not isinstance(data, bytes):
        return str(part.get_payload())
    for charset in (part.get_content_charset() or "utf-8", "utf-8"):
        try:
            return data.decode(charset).replace("\r\n", "\n")
        except (LookupError, ValueError):
            continue
    return data.decode("latin-1").replace("\r\n", "\n")


class _Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden += tag in ("script", "style")
        if tag in ("br", "p", "div", "tr", "li"):
            self.words.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style") and self._hidden > 0

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words.append(data)


def _without_tags(html: str) -> str:
    parser = _Words()
    try:
        parser.feed(html)
        parser.close()
    except Exception:
        return re.sub(r"<[^<>]*>", " ", html)
    return re.sub(r"[ \t]*\n\s*", "\n", "".join(parser.words))
