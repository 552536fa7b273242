"""Verifier "time": the final message names a date, a time of day, or both, in any common form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import TYPE_CHECKING

from mcp_rl.rewards.answers import answered
from mcp_rl.rewards.verdict import Verdict, failed, passed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_rl.scenario import McpScenario, Verifier
    from mcp_rl.trajectory import Trajectory

_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()  # noqa: SIM905 - read as words
_MONTH = rf"(?P<{{}}>{'|'.join(_MONTHS)})[a-z]*\.?"
_DATE = re.compile(
    r"(?<!\d)(?P<y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)(?!\d)"
    rf"|(?<!\d)(?P<d2>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {_MONTH.format('m2')},? (?P<y2>\d{{4}})(?!\d)"
    rf"|\b{_MONTH.format('m3')} (?P<d3>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<y3>\d{{4}})(?!\d)"
    rf"|\b{_MONTH.format('m4')} (?P<d4>\d{{1,2}}) [\d:]{{5,8}} (?P<y4>\d{{4}})(?!\d)",
    re.IGNORECASE,
)
_CLOCK = re.compile(
    r"(?<![\d:.])(?P<h>[01]?\d|2[0-3])[:.](?P<m>[0-5]\d)(?:[:.](?P<s>[0-5]\d)(?:[.,]\d{1,9})?)?(?![\d:])"
    r"(?:\s?(?P<half>[ap])\.?m\b\.?)?(?:\s?(?P<zone>Z\b|(?:UTC|GMT)?[+-]\d\d:?\d\d\b|UTC\b|GMT\b))?"
    r"|(?<![\d:.])(?P<h2>1[0-2]|[1-9])\s?(?P<half2>[ap])\.?m\b|\b(?P<word>noon|midday|midnight)\b",
    re.IGNORECASE,
)
_BETWEEN_DAY_AND_CLOCK = re.compile(r"(?<=\d)\s?T(?=\d)")
_MOST_TIMES = 2
"""Maximum number of different times in an answer: it may repeat a time of the request beside the expected one."""


@dataclass(frozen=True)
class _Named:
    """Days and times of day found in a text, in order."""

    days: tuple[date, ...]
    clocks: tuple[tuple[time, bool], ...]
    """Each time of day, with its zone if it has one, and whether it states seconds."""


def time_answer(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """Pass if the final message names the `expected` date, time of day, or both, whatever the form.

    Seconds may be left out, and so may the zone; where both sides name a zone the moments are compared. The last time
    in the message counts, and it may hold two different ones at most.
    """
    return answered(trajectory, scenario, _compare)


def names_a_time(text: str) -> bool:
    """Return whether a text names a date or a time of day."""
    found = _named(text)
    return bool(found.days or found.clocks)


def _compare(answer: str, verifier: Verifier) -> Verdict:
    expected, given = _named(str(verifier.expected)), _named(answer)
    if not (given.days or given.clocks):
        return failed(f"The final message names no time; {verifier.expected} was expected.")
    if len({one.replace(tzinfo=None) for one, _ in given.clocks}) > _MOST_TIMES or len(set(given.days)) > _MOST_TIMES:
        return failed("The final message names more than two times.")
    same_day = not expected.days or expected.days[-1:] == given.days[-1:]
    same_clock = not expected.clocks or (bool(given.clocks) and _same_clock(expected.clocks[-1], given.clocks[-1]))
    if _same_moment(expected, given) or (same_day and same_clock):
        return passed(f"The final message names {verifier.expected}, as expected.")
    return failed(f"The final message does not name {verifier.expected}.")


def _same_clock(one: tuple[time, bool], other: tuple[time, bool]) -> bool:
    (first, exact), (second, also) = one, other
    if first.tzinfo is not None and second.tzinfo is not None and first.utcoffset() != second.utcoffset():
        return False
    if exact and also and first.second != second.second:
        return False
    return (first.hour, first.minute) == (second.hour, second.minute)


def _same_moment(one: _Named, other: _Named) -> bool:
    """Return whether both name a day, a time and a zone, and mean the same moment."""
    moments: list[datetime] = []
    for named in (one, other):
        if not named.days or not named.clocks or named.clocks[-1][0].tzinfo is None:
            return False
        moments.append(datetime.combine(named.days[-1], named.clocks[-1][0]))
    return abs(moments[0] - moments[1]) < timedelta(minutes=1)


def _named(text: str) -> _Named:
    text = _BETWEEN_DAY_AND_CLOCK.sub(" ", text[:20_000].replace("\u202f", " "))
    return _Named(tuple(_days(text)), tuple(_clocks(text)))


def _days(text: str) -> Iterator[date]:
    for found in _DATE.finditer(text):
        parts = {name[:1]: value for name, value in found.groupdict().items() if value is not None}
        month = parts["m"].lower()[:3]
        number = int(month) if month.isdigit() else _MONTHS.index(month) + 1
        try:
            yield date(int(parts["y"]), number, int(parts["d"]))
        except ValueError:
            continue


def _clocks(text: str) -> Iterator[tuple[time, bool]]:
    for found in _CLOCK.finditer(text):
        if word := found["word"]:
            yield time(0 if word.lower() == "midnight" else 12), False
            continue
        hour, half = int(found["h"] or found["h2"]), (found["half"] or found["half2"] or "").lower()
        if half and not 1 <= hour <= 12:
            continue
        hour = hour % 12 + 12 * (half == "p") if half else hour
        yield (
            time(hour, int(found["m"] or 0), int(found["s"] or 0), tzinfo=_zone(found["zone"])),
            found["s"] is not None,
        )


def _zone(said: str | None) -> timezone | None:
    if not said:
        return None
    digits = re.search(r"([+-])(\d\d):?(\d\d)", said)
    if digits is None:
        return UTC
    offset = timedelta(hours=int(digits[2]), minutes=int(digits[3]))
    return timezone(offset if digits[1] == "+" else -offset) if offset < timedelta(hours=24) else None
