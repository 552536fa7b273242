"""Verifiers of structured answers: kinds "json", "set" and "regex"."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mcp_rl.rewards.answers import TOLERANCE, answered, normalised
from mcp_rl.rewards.json_values import NoJson, first_difference, json_in, same_json
from mcp_rl.rewards.verdict import Verdict, failed, passed

if TYPE_CHECKING:
    from mcp_rl.scenario import McpScenario, Verifier
    from mcp_rl.trajectory import Trajectory

_MOST_FILLERS = 8
"""Most words, the item included, in an entry of a list ("the file a.txt")."""
_ITEM = "\x00"
_MONEY = "$€£"
_AMOUNT = re.compile(rf"([{_MONEY}]?)(\d{{1,3}}(?:,\d{{3}}){{1,5}}|\d{{1,15}})(\.\d{{1,9}})?")
"""An item that is a number: with a sign of money or without, with commas between thousands or without."""


def json_answer(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """Pass if the answer's JSON contains `expected`: objects may have more keys, lists must have as many items.

    The JSON may be in a code fence or among words; the last value counts. Options: `exact` (false): no further keys;
    `tolerance` (relative, 1e-6) for numbers.
    """
    return answered(trajectory, scenario, _compare_json)


def set_answer(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """Pass if the answer lists the items of `expected`, texts or numbers, in any order, and nothing else.

    It is a JSON list, or items between commas, semicolons, "and" or line breaks, with or without an introduction that
    ends in a colon. Items may repeat. Option: `extra` (0): number of other items that are allowed.
    """
    return answered(trajectory, scenario, _compare_set)


def regex(trajectory: Trajectory, scenario: McpScenario) -> Verdict:
    """Pass if the regular expression `expected` is found in the answer.

    The syntax is RE2's, which takes time linear in the answer for any expression: no look-around, no back-references.
    Options: `full` (false): the whole answer must match; `ignore_case` (false).
    """
    return answered(trajectory, scenario, _compare_regex)


def regex_problem(verifier: Verifier) -> str | None:
    """Return the error in a verifier's expression, or None."""
    if not isinstance(verifier.expected, str) or not verifier.expected:
        return f"expects a regular expression, not {verifier.expected!r}"
    import re2  # type: ignore[import-untyped]

    try:
        _compiled(verifier.expected, False)
    except re2.error as error:
        said = error.args[0].decode() if isinstance(error.args[0], bytes) else error
        return f"expects a regular expression in RE2's syntax, not {verifier.expected!r} ({said})"
    return None


def _compare_json(answer: str, verifier: Verifier) -> Verdict:
    try:
        given = json_in(answer)
    except NoJson:
        return failed("The answer holds no JSON.")
    tolerance = float(verifier.options.get("tolerance", TOLERANCE))  # type: ignore[arg-type]
    if difference := first_difference(given, verifier.expected, tolerance):
        return failed(f"In the answer's JSON, {difference}.")
    if verifier.options.get("exact") and not same_json(given, verifier.expected, tolerance):
        return failed("The answer's JSON holds more than expected.")
    return passed("The answer's JSON holds what was expected.")


def _compare_set(answer: str, verifier: Verifier) -> Verdict:
    expected: list[Any] = verifier.expected  # type: ignore[assignment]  # checked when the scenario is loaded
    wanted = {_item(value): value for value in expected}
    listed = _json_list(answer)
    missing, others = _listed(listed, wanted) if listed is not None else _written(answer, wanted)
    if missing:
        return failed(f"{len(missing)} of {len(wanted)} items are missing, such as {missing[0]!r}.")
    allowed = int(verifier.options.get("extra", 0))  # type: ignore[arg-type]
    if len(others) > allowed:
        return failed(f"The answer lists {others[0][:80]!r}, which is not among the expected items.")
    return passed(f"The answer lists the {len(wanted)} expected items.")


def _compare_regex(answer: str, verifier: Verifier) -> Verdict:
    pattern = _compiled(str(verifier.expected), bool(verifier.options.get("ignore_case")))
    found = pattern.fullmatch(answer.strip()) if verifier.options.get("full") else pattern.search(answer)
    return (
        passed("The answer has the expected form.") if found else failed("The answer does not have the expected form.")
    )


@lru_cache(maxsize=1024)
def _compiled(expression: str, ignore_case: bool) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    return re2.compile(expression, options=options)


def _item(value: Any) -> str:
    """Return an item in the form in which items are compared."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str):
        return json.dumps(value, sort_keys=True)
    if _AMOUNT.fullmatch(value.strip()):
        return value.strip().replace(",", "")
    return normalised(value) or value.strip()


def _spellings(value: str) -> str:
    """Return an expression for the ways in which an item is written."""
    if (amount := _AMOUNT.fullmatch(value)) is not None:
        sign, whole, rest = amount.groups()
        money = f"{re.escape(sign)}?" if sign else f"[{_MONEY}]?"
        digits = re.sub(r"\B(?=(?:\d{3})+$)", ",?", whole.replace(",", ""))
        return rf"(?<![{_MONEY}-]){money}{digits}{re.escape(rest or '')}"
    return r"\s+".join(map(re.escape, value.split()))


def _json_list(answer: str) -> list[Any] | None:
    try:
        value = json_in(answer)
    except NoJson:
        return None
    return value if isinstance(value, list) else None


def _meant(item: str, wanted: dict[str, Any]) -> str:
    """Return the wanted item that an item stands for: an amount without a sign of money is the same with one."""
    bare = item.lstrip(_MONEY)
    same = [other for other in wanted if other.lstrip(_MONEY) == bare and bare in (item, other)]
    return same[0] if item not in wanted and len(same) == 1 else item


def _listed(items: list[Any], wanted: dict[str, Any]) -> tuple[list[Any], list[str]]:
    """Return the missing items, and the unexpected ones."""
    given = {_meant(_item(item), wanted): item for item in items}
    return (
        [value for item, value in wanted.items() if item not in given],
        [str(value) for item, value in given.items() if item not in wanted],
    )


def _written(answer: str, wanted: dict[str, Any]) -> tuple[list[Any], list[str]]:
    """Return the same for a list in words: items found are blanked out, longest first, and the rest is examined."""
    left, missing = answer.replace(_ITEM, " "), []
    for value in sorted(wanted.values(), key=lambda value: -len(str(value))):
        left, found = re.subn(rf"(?<![\w.-]){_spellings(str(value))}(?!\w|\.\d)", _ITEM, left, flags=re.IGNORECASE)
        if not found:
            missing.append(value)
    introduction, colon, rest = left.partition(":")
    if colon and _ITEM not in introduction:
        left = rest
    pieces = re.split(r"[,;\n]|\s(?:and|or|&)\s", left)
    return missing, [piece.strip() for piece in pieces if not _is_item(piece)]


def _is_item(piece: str) -> bool:
    words = re.findall(r"\w+", re.sub(r"^\s*\d+[.)]\s", "", piece))
    return len(words) <= _MOST_FILLERS if _ITEM in piece else not words
