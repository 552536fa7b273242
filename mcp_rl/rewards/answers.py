"""Verifiers of the submitted answer: kinds "number", "text" and "parts".

They read only the submission (the final message, or the argument of the submitting call), never an earlier message or a
tool's result, and require at least one successful tool call: a grader without that teaches a model to answer without
its tools. The option `require_tool: false` is for scenarios that need no tool; `max_calls: 0` forbids all calls.
"""

from __future__ import annotations

import math
import re
import unicodedata
from typing import TYPE_CHECKING, Any

from mcp_rl.rewards.verdict import Verdict, failed, nothing_submitted, passed, submitted, successful_calls

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_rl.scenario import McpScenario, Verifier
    from mcp_rl.trajectory import Trajectory

TOLERANCE = 1e-6
"""Relative tolerance, and absolute for an expected 0. The options `tolerance` and `absolute` override it. Whole numbers
are compared exactly without them."""
_WHOLE = r"(?<![\w.])[-+\u2212]?(?:\d{1,3}(?:[,\u202f\u00a0]\d{3})+|\d+)(?:\.\d+)?+"
_NUMBER = re.compile(_WHOLE + r"(?:[eE][-+]?\d+)?(?!\w)|(?<![\w.])[-+\u2212]?\.\d+(?:[eE][-+]?\d+)?(?!\w)")
"""A number that no letter continues."""
UNIT = r"(?:[kKMGT]i?)?B|ms|kg|km|h"
"""Units that people write at once behind a number: 552B, 30ms."""
_WITH_UNIT = re.compile(rf"({_WHOLE})(?:{UNIT})\b")
_MOST_READ = 20_000
"""Characters of a result that are searched for a number."""
_MOST_WORDS_FACTOR, _MOST_WORDS_EXTRA = 3, 25
"""A text answer may have this many times the expected words, and as many extra: reciting everything must fail."""


def answered(trajectory: Trajectory, scenario: McpScenario, compare: Callable[[str, Verifier], Verdict]) -> Verdict:
    """Return the verdict of `compare` on the submission; fail without a submission or without a required call."""
    verifier = scenario.verifier
    assert verifier is not None
    answer = submitted(trajectory, scenario)
    if answer is None:
        return nothing_submitted(trajectory, scenario)
    if verifier.options.get("require_tool", True) and not successful_calls(trajectory):
        return failed("The answer was given without a successful tool call.")
    most = verifier.options.get("max_calls")
    if isinstance(most, int) and len(successful_calls(trajectory)) > most:
        return failed(f"{len(successful_calls(trajectory))} calls were made; {most} are allowed.")
    return compare(answer, verifier)


def number(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """Pass if the last number in the final message equals `expected`.

    Signs, thousands separators and exponents are read, also in Markdown, in LaTeX or before a unit.
    """
    return answered(trajectory, scenario, _compare_number)


def text(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """Pass if the final message holds the `expected` text as whole words, and not much else.

    Letter case, punctuation, quotes and white space do not count. The option `exact: true` allows nothing else in the
    message, and the option `others` lists texts that it must not hold beside the expected one.
    """
    return answered(trajectory, scenario, _compare_text)


def parts(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """Pass if the final message holds every text and every number of the list `expected`, and not much else.

    Numbers count outside the texts, and there may be two more of them, as in "Oslo (5) has 3 more than Lima (2)".
    Option: `others`, texts that may come only after the expected ones.
    """
    return answered(trajectory, scenario, _compare_parts)


def last_number(message: str) -> float | None:
    """Return the last number in a message, or None. One with a unit behind it counts where there is no other."""
    found = _NUMBER.findall(message) or _WITH_UNIT.findall(message)
    return float(re.sub(r"[,\u202f\u00a0]", "", found[-1]).replace("\u2212", "-")) if found else None


def as_written(text: str, value: float) -> str | None:
    """Return a number as a text writes it first, such as "1,835.00" for 1835; None where it does not hold it."""
    for found in _NUMBER.finditer(text[:_MOST_READ]):
        written = found[0].strip()
        read = last_number(written)
        if read is not None and math.isclose(read, value, rel_tol=1e-9):
            return written
    return None


def normalised(message: str) -> str:
    """Return the case-folded words of a message with single spaces; numbers keep signs and decimal points."""
    message = unicodedata.normalize("NFKC", message).casefold()
    return " ".join(re.findall(r"-?\d+(?:[.,]\d+)*|\w+", message))


def _compare_number(answer: str, verifier: Verifier) -> Verdict:
    expected = float(verifier.expected)  # type: ignore[arg-type]  # checked when the scenario is loaded
    given = last_number(answer)
    if given is None:
        return failed(f"The final message holds no number; {expected:.12g} was expected.")
    tolerance = float(verifier.options.get("tolerance", TOLERANCE))  # type: ignore[arg-type]
    absolute = float(verifier.options.get("absolute", tolerance if expected == 0 else 0.0))  # type: ignore[arg-type]
    exact = isinstance(verifier.expected, int) and not {"tolerance", "absolute"} & set(verifier.options)
    if _is_equal(given, expected, exact=exact, tolerance=tolerance, absolute=absolute):
        return passed(f"The final message says {given:.12g}, as expected.")
    return failed(f"The final message says {given:.12g}; {expected:.12g} was expected.")


def _is_equal(
    given: float, expected: float, *, exact: bool, tolerance: float = TOLERANCE, absolute: float = 0.0
) -> bool:
    """Return whether a number is the expected one: a whole number exactly, if so wanted, any other nearly."""
    if exact and given.is_integer():
        return given == float(expected)
    return math.isclose(given, expected, rel_tol=tolerance, abs_tol=absolute)


def _compare_text(answer: str, verifier: Verifier) -> Verdict:
    expected, given = normalised(str(verifier.expected)), normalised(answer)
    if not expected:  # nothing but punctuation: compare what is written
        same = str(verifier.expected).strip() in answer
        return passed("The final message holds the expected text.") if same else failed("The expected text is missing.")
    if given == expected:
        return passed("The final message is the expected text.")
    if verifier.options.get("exact") or f" {expected} " not in f" {given} ":
        return failed(f"The final message does not say {str(verifier.expected)!r}.")
    most = _MOST_WORDS_FACTOR * len(expected.split()) + _MOST_WORDS_EXTRA
    if len(given.split()) > most:
        return failed(
            f"The final message holds the expected text among {len(given.split())} words; {most} are allowed."
        )
    left, others = f" {given} ".replace(f" {expected} ", " ; "), verifier.options.get("others")
    for other in others if isinstance(others, list) else ():
        words = f" {normalised(str(other))} "
        if words in (f" {given} " if f" {expected} " in words else left):
            return failed(f"The final message holds the expected text, and {str(other)!r} too.")
    return passed("The final message holds the expected text.")


def _compare_parts(answer: str, verifier: Verifier) -> Verdict:
    expected: list[Any] = verifier.expected  # type: ignore[assignment]  # checked when the scenario is loaded
    others: Any = verifier.options.get("others") or ()
    texts = [part for part in expected if isinstance(part, str)]
    numbers = [part for part in expected if not isinstance(part, str)]
    given, found = f" {normalised(answer)} ", list[int]()
    for part in texts:
        at = given.find(f" {normalised(part)} ")
        if at < 0:
            return failed(f"The final message does not say {part!r}.")
        found.append(at)
    left = given
    for part in sorted([*texts, *others], key=lambda part: -len(str(part))):
        before = given.find(f" {normalised(str(part))} ")
        if part in others and 0 <= before < min(found, default=0):
            return failed(f"The final message says {part!r} first.")
        left = left.replace(f" {normalised(str(part))} ", " ; ")
    most = _MOST_WORDS_FACTOR * sum(len(normalised(part).split()) for part in texts) + _MOST_WORDS_EXTRA
    if len(given.split()) > most:
        return failed(f"The final message has {len(given.split())} words; {most} are allowed.")
    stated = [float(number.replace(",", "")) for number in (*_NUMBER.findall(left), *_WITH_UNIT.findall(left))]
    missing = [part for part in numbers if not any(_is_equal(one, part, exact=isinstance(part, int)) for one in stated)]
    if missing:
        return failed(f"The final message does not say {missing[0]:.12g}.")
    if len(stated) > len(numbers) + 2:
        return failed(f"The final message holds {len(stated)} numbers; {len(numbers) + 2} are allowed.")
    return passed("The final message holds all that was expected.")
