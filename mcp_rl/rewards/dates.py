"""Times of day in results, and how long the call took, which are others each time."""

from __future__ import annotations

import re
import time

_DATED = re.compile(
    r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?|\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?"
)
_SINCE_1970 = re.compile(r"(?<![\w.-])(\d{10})(?:\d{3}|\.\d{1,9})?(?![\w-])")
"""A number of seconds, with or without a fraction, or of milliseconds."""
_DAY = 86_400
_UNIT = r"(?:ms|msecs?|us|\u00b5s|ns|s|secs?|(?:milli|micro|nano)?seconds?|millis|micros)"
_TOOK = re.compile(
    r"(?i)((?<![a-z])(?:(?:execution|processing|computation|compute|calculation|response|query|search|request|"
    rf"elapsed|wall)[ _]?time|elapsed|took|time[ _]taken|latency)(?:[ _]?(?:in[ _])?{_UNIT})?"
    rf"(?:\"\s?:\s?\"?|(?:\s?[:=])?\s{{1,20}}(?=[\d.e-]{{1,30}}\s?{_UNIT}\b)))\d+(?:\.\d+)?(?:e-?\d+)?"
)
"""How long a call took, as the server says it: `"execution_time_ms": 0.12`, "Took 3 ms"."""
# What each of these holds, and is found far faster: most results hold no time at all.
_CLOCK, _TEN_DIGITS = re.compile(r"\d:\d\d"), re.compile(r"\d{10}")
_OF_TIME = "time", "elapsed", "took", "latency"


def is_dated(text: str) -> bool:
    """Return whether a result holds a time of day, with a date or to the second, and so may change.

    Seconds and milliseconds since 1970 are a time where they are less than a day from now: others may be data.
    """
    if _CLOCK.search(text) and _DATED.search(text):
        return True
    return _TEN_DIGITS.search(text) is not None and any(map(_is_now, _SINCE_1970.finditer(text)))


def undated(text: str, *, whenever: bool = False) -> str:
    """Return the text with each such time replaced, so that results differing only in times are equal.

    So are the seconds that the call took. With `whenever`, numbers that are a time of any day are replaced too: what is
    expected was recorded on another day.
    """
    text = untimed(text)
    if _CLOCK.search(text):
        text = _DATED.sub("<time>", text)
    if _TEN_DIGITS.search(text):
        text = _SINCE_1970.sub(lambda found: "<time>" if whenever or _is_now(found) else found[0], text)
    return text


def untimed(text: str) -> str:
    """Return the text with 0 in place of the seconds that the call took, if it says so. JSON stays JSON."""
    lower = text.lower()
    return _TOOK.sub(r"\g<1>0", text) if any(word in lower for word in _OF_TIME) else text


def _is_now(found: re.Match[str]) -> bool:
    return abs(int(found[1]) - time.time()) < _DAY
