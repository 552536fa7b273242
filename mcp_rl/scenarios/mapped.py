"""Scenarios from anyone's JSON Lines: the fields of a line, mapped to the parts of a scenario by `scenarios.fields`.

`{"task": "question", "answer": "final_answer"}` reads questions with reference answers. The value of `task` may also be
a text with fields in braces: "Write a headline for this post. {text}". An answer becomes a verifier, of the kind of
`scenarios.verifier` or else of the kind that fits the answer.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_rl.config import ScenarioConfig
    from mcp_rl.scenario import McpScenario

REQUIRE_TOOL = "require_tool"
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_NUMBER = re.compile(r"[-+]?(?:[$€£]\s?)?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?\s?%?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?")
_WORKED_OUT = re.compile(r".*####\s*(.*)", re.DOTALL)
"""GSM8K's form: the working, then the answer after four hash signs."""


def mapped(entry: Mapping[str, Any], reading: ScenarioConfig, where: str, *, server: bool) -> dict[str, Any]:
    """Return the fields of the scenario that a line holds. Raises ScenarioError that begins with `where`.

    `server` is False where there is none, so that no tool can have been used.
    """
    fields = {part: _value(entry, name, part, where) for part, name in reading.fields.items()}
    required = fields.pop(REQUIRE_TOOL, None)
    if required is None:
        required = server if reading.require_tool is None else reading.require_tool
    elif not isinstance(required, bool):
        name = reading.fields[REQUIRE_TOOL]
        raise ScenarioError(f"{where}: {name!r} says if a tool must be used: true or false, not {_shown(required)}.")
    fields = {part: value for part, value in fields.items() if value is not None}
    answer = fields.pop("answer", None)
    if "id" in fields:
        fields["id"] = str(fields["id"])
    kind, expected = reading.verifier, None
    if answer is not None:
        kind, expected = _expected(answer, reading.verifier, f"{where}: the answer ({reading.fields['answer']!r})")
        fields["reference_answer"] = _plain(answer)
    fields["level"] = "told"
    if kind is not None:
        options = {} if required else {REQUIRE_TOOL: False}
        fields["verifier"] = {"kind": kind, "expected": expected, "options": options}
    return fields


def compared_as(scenarios: Sequence[McpScenario], reading: ScenarioConfig) -> str | None:
    """Return a sentence on how the answers of mapped scenarios are compared; None where nothing is mapped."""
    verifiers = [scenario.verifier for scenario in scenarios if scenario.verifier is not None]
    if "answer" not in reading.fields or not verifiers:
        return None
    kinds = Counter(verifier.kind for verifier in verifiers)
    free = sum(verifier.options.get(REQUIRE_TOOL) is False for verifier in verifiers)
    counts = ", ".join(f"{count} as {kind}" for kind, count in kinds.most_common())
    used = "no tool need be used" if free == len(verifiers) else "a tool must have been used"
    used += f", but for {free} of them" if 0 < free < len(verifiers) else ""
    return f"The answers of {len(verifiers)} scenarios are compared: {counts}; {used}."


def _value(entry: Mapping[str, Any], name: str, part: str, where: str) -> Any:
    """Return the value of a part, from its field or its text with fields; None where an optional one is missing."""
    if part == "task" and _PLACEHOLDER.search(name):
        return _PLACEHOLDER.sub(lambda found: _in_words(_field(entry, found[1], part, where)), name)
    value = _field(entry, name, part, where) if part in ("task", "answer") else entry.get(name)
    if part == "task" and not (isinstance(value, str) and value.strip()):
        raise ScenarioError(f"{where}: the request ({name!r}) must be a text with words in it, not {_shown(value)}.")
    return value


def _field(entry: Mapping[str, Any], name: str, part: str, where: str) -> Any:
    if name in entry:
        return entry[name]
    near = get_close_matches(name, entry, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, entry)) or 'none'}."
    raise ScenarioError(f"{where}: there is no field {name!r} for scenarios.fields.{part}; {hint}")


def _expected(answer: Any, kind: str | None, what: str) -> tuple[str, Any]:
    """Return the verifier's kind and the value that it expects."""
    if kind not in (None, "number", "text", "time"):  # its own check says what it cannot use
        return kind, answer
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise ScenarioError(f"{what} must be a text or a number, not {_shown(answer)}.")
    text = _plain(answer)
    if not text:
        raise ScenarioError(f"{what} is empty; write the right answer, or remove the line.")
    number = _number(text)
    if kind == "number" and number is None:
        raise ScenarioError(f"{what} is {_shown(text)}, which is not a number; leave out scenarios.verifier=number.")
    if kind is None:
        kind = "number" if number is not None else "time" if _DATE.fullmatch(text) else "text"
    return kind, number if kind == "number" else text


def _plain(answer: Any) -> str:
    """Return an answer as a text: where it is in GSM8K's form, what follows the working."""
    text = _in_words(answer)
    found = _WORKED_OUT.fullmatch(text)
    return (found[1] if found else text).strip()


def _in_words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _number(text: str) -> int | float | None:
    """Return the number that a text is, whatever currency or per cent sign it has; None if it is no number."""
    digits = re.sub(r"[^\d.+-]", "", text)
    if not _NUMBER.fullmatch(text) or not any(map(str.isdigit, digits)):
        try:
            number = float(text)  # 1e-5
        except ValueError:
            return None
        return number if math.isfinite(number) else None
    return float(digits) if "." in digits else int(digits)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}…"
