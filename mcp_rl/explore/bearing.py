"""Guess a tool's effect on the state, by its annotations and the first words of its name.

These are hints: what calls really leave behind is measured (`measuring/`).
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from mcp_rl.explore.words import words_of
from mcp_rl.toolserver.tool_server import BETWEEN

if TYPE_CHECKING:
    from mcp_rl.toolserver.tools.listing import Tool

_READS = re.compile(
    "browse|calculate|check|compare|compute|convert|count|describe|diff|download|echo|evaluate|explain|export|fetch|"
    "find|format|get|head|help|info|inspect|list|lookup|open|parse|peek|ping|preview|query|read|recall|render|resolve|"
    "retrieve|search|show|stat|status|summarize|tail|test|validate|verify|view|who|whoami"
)
_CREATES = re.compile(
    "add|append|assign|book|create|define|enter|import|insert|log|make|new|post|put|record|register|remember|save|"
    "schedule|set|start|store|track|upload|upsert|write"
)
_DESTROYS = re.compile(
    "clear|close|delete|destroy|drop|erase|forget|kill|move|purge|push|remove|rename|reset|restore|revert|revoke|"
    "shutdown|stop|truncate|uninstall|unlink|wipe"
)
_CHANGES = re.compile(
    "advance|alter|archive|attach|cancel|change|checkout|commit|complete|connect|copy|detach|disable|disconnect|edit|enable|execute|finish|insert|link|lock|mark|merge|"
    "modify|patch|pause|promote|replace|resume|run|send|swap|tag|toggle|transfer|unassign|unlock|unset|untag|update"
)
_ADDS_NUMBERS = re.compile(r"add (?:two|numbers?|integers?|ints?|floats?|values?|vectors?|matrix|matrices)\b")
_ADDS_TERMS = re.compile(
    r"\s{0,20}(?:adds?|sums?) (?:up )?(?:two|three|several|multiple|some|a list of|two or more) "
    r"(?:(?:complex|whole|real|rational|square) )?(?:numbers|integers|floats|matrices|vectors|fractions|polynomials)\b",
    re.IGNORECASE,
)
_COMPUTES = re.compile(
    r"\s{0,20}(?:calculat|comput|solv|convert|estimat|evaluat|differentiat|integrat|simplif)(?:e|es|s|y|ies)?\b",
    re.IGNORECASE,
)
"""How the description of a tool begins that computes."""
_OPERAND = re.compile(
    r"[a-z]\d?|base|(?:num|number|value|addend|operand|summand|term|int|float)(?:s|\d| \d| [a-z])?|"
    r"(?:first|second|left|right)(?: (?:number|value|operand|term|addend))?"
)
"""Names of the parameters of a sum."""


class Bearing(Enum):
    """The apparent effect of a tool."""

    READS = "reads"
    CREATES = "creates"
    CHANGES = "changes"
    DESTROYS = "destroys"
    UNCLEAR = "unclear"


def bearing(tool: Tool) -> Bearing:
    """Return what a tool seems to do, by its annotations, else by the first two words or the last one of its name."""
    hints = tool.annotations or {}
    if hints.get("readOnlyHint") is True:
        return Bearing.READS
    by_name = Bearing.READS if computes(tool) else bearing_of(tool.name)
    if by_name is Bearing.UNCLEAR and _COMPUTES.match(tool.description or ""):
        by_name = Bearing.READS  # such as `correlation`
    if by_name is Bearing.DESTROYS:
        return by_name
    if hints.get("destructiveHint") is True:
        return Bearing.CREATES if by_name is Bearing.CREATES else Bearing.DESTROYS
    if hints.get("readOnlyHint") is False and by_name in (Bearing.READS, Bearing.UNCLEAR):
        return Bearing.CHANGES
    return by_name


def computes(tool: Tool) -> bool:
    """Return whether a tool called "add" or "log" computes: it takes numbers alone, called like those of a sum or a
    logarithm, or says nothing of what it takes; or its name or its description says that it adds numbers."""
    words = words_of(tool.name.rpartition(BETWEEN)[2])
    if re.search(r"\b(?:add|sum)\b", words) and _ADDS_TERMS.match(tool.description or ""):
        return True
    properties = tool.input_schema.get("properties")
    parts = properties if isinstance(properties, dict) else {}
    if len(parts) == 1 and isinstance(only := next(iter(parts.values())), dict):
        parts = only.get("properties") or parts  # the numbers are the fields of its one object
    if not all(map(_is_number, parts.values())):
        return False
    summed = properties is None or (bool(parts) and all(_OPERAND.fullmatch(words_of(name)) for name in parts))
    return (words in ("add", "log") and summed) or _ADDS_NUMBERS.match(words) is not None


def _is_number(schema: object) -> bool:
    """Return whether a schema is that of a number, or of a list of numbers."""
    if not isinstance(schema, dict):
        return False
    if schema.get("type") == "array":
        return not schema.get("items") or _is_number(schema["items"])
    return schema.get("type") in ("number", "integer")


def bearing_of(name: str) -> Bearing:
    """Return what a tool of this name seems to do, or what such a word means."""
    words = words_of(name.rpartition(BETWEEN)[2]).split(" ")
    for word in (*words[:2], *words[2:][-1:]):  # `delete_note`, `note_delete`, `note_tag_delete`
        for kind, verbs in (
            (Bearing.DESTROYS, _DESTROYS), (Bearing.CREATES, _CREATES), (Bearing.CHANGES, _CHANGES),
            (Bearing.READS, _READS),
        ):  # fmt: skip
            if verbs.fullmatch(word):
                return kind
    return Bearing.UNCLEAR
