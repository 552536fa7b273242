"""Verifiers of the submitted answer: kinds "number" and "text".

They read what was submitted alone (the final message, or what was handed in with a call), never an earlier message or a
tool's result, and want at least one successful tool call: a grader that does not ask for it teaches a model to answer
without its tools. A scenario that is really to be answered without one says `require_tool: false` in its verifier's
options; `max_calls: 0` says that none may be called.
"""

import math
import re
import unicodedata
from collections.abc import Callable

from mcp_rl.rewards.verdict import Verdict, failed, nothing_submitted, passed, submitted, successful_calls
from mcp_rl.scenario import McpScenario, Verifier
from mcp_rl.trajectory import Trajectory

TOLERANCE = 1e-6
"""Relative, and absolute for an expected 0. The options `tolerance` and `absolute` set others."""
_NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?(?:\d{1,3}(?:[,\u202f\u00a0]\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\w)"
    r"|(?<![\w.])[-+\u2212]?\.\d+(?:[eE][-+]?\d+)?(?!\w)"
)
_MOST_WORDS_FACTOR, _MOST_WORDS_EXTRA = 3, 25
"""A text answer may be this much longer than what is expected; one that recites everything is no answer."""


def answered(trajectory: Trajectory, scenario: McpScenario, compare: Callable[[str, Verifier], Verdict]) -> Verdict:
    """What `compare` says of the submitted answer; a failure where there is none, or none that rests on a tool."""
    verifier = scenario.verifier
    assert verifier is not None
    answer = submitted(trajectory, scenario)
    if answer is None:
        return nothing_submitted(trajectory, scenario)
    if verifier.options.get("require_tool", True) and not successful_calls(trajectory):
        return failed("The answer was given without a successful tool call.")
    most = verifier.options.get("max_calls")
    if isinstance(most, int) and len(successful_calls(trajectory)) > most:
        return failed(f"{len(successful_calls(trajectory))} calls were made where {most} are allowed.")
    return compare(answer, verifier)


def number(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """The last number in the final message equals `expected`.

    Thousands separators and exponents are read; so are a sign and a number in Markdown, LaTeX or with a unit.
    """
    return answered(trajectory, scenario, _compare_number)


def text(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """The final message holds the `expected` text as whole words, and not much else.

    Letter case, punctuation, quotes and white space do not count. With the option `exact: true` nothing else may stand
    in the message.
    """
    return answered(trajectory, scenario, _compare_text)


def last_number(message: str) -> float | None:
    """The last number in a message, None where there is none."""
    found = _NUMBER.findall(message)
    return float(re.sub(r"[,\u202f\u00a0]", "", found[-1]).replace("\u2212", "-")) if found else None


def normalised(message: str) -> str:
    """Words of a message in one case, single spaces between them; signs and decimal points of numbers are kept."""
    message = unicodedata.normalize("NFKC", message).casefold()
    return " ".join(re.findall(r"-?\d+(?:[.,]\d+)*|\w+", message))


def _compare_number(answer: str, verifier: Verifier) -> Verdict:
    expected = float(verifier.expected)  # type: ignore[arg-type]  # checked when the scenario is loaded
    given = last_number(answer)
    if given is None:
        return failed(f"The final message holds no number; {expected:.12g} was expected.")
    tolerance = float(verifier.options.get("tolerance", TOLERANCE))  # type: ignore[arg-type]
    absolute = float(verifier.options.get("absolute", tolerance if expected == 0 else 0.0))  # type: ignore[arg-type]
    if math.isclose(given, expected, rel_tol=tolerance, abs_tol=absolute):
        return passed(f"The final message says {given:.12g}, as expected.")
    return failed(f"The final message says {given:.12g}; {expected:.12g} was expected.")


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
    return passed("The final message holds the expected text.")
