"""English noun phrases: number, articles, and conditions after a noun."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mcp_rl.explore.entities import nouns
from mcp_rl.scenarios.goals.values import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import JsonValue

_QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\\\]|\\\\.)*\"")
_REST = re.compile(r"(?<=\w) (?:of|per|in|for|by|to|with|from|at|on|until|since|left) ")
"""The beginning of the words behind a noun: "calories per unit"."""
_CLAUSES = ("that", "who", "whose", "in which")


def is_heavy(it: str) -> bool:
    """Return whether a noun phrase ends in a clause, so that no verb should follow it."""
    return re.search(r"\b(?:that|who|whose|which|with|without|among|those)\b", _QUOTED.sub("", it)) is not None


def head(words: str) -> tuple[str, str]:
    """Return the noun of a noun phrase with what stands before it, and the rest: "calories" and " per unit"."""
    found = _REST.search(words)
    return (words[: found.start()], words[found.start() :]) if found else (words, "")


def singular(words: str) -> str:
    """Return a noun phrase with its noun in the singular."""
    noun, rest = head(words)
    return nouns.singular(noun) + rest


def plural(words: str) -> str:
    """Return a noun phrase with its noun in the plural; a plural stays as it is."""
    noun, rest = head(words)
    return (noun if is_plural(noun) else nouns.plural(noun)) + rest


def is_plural(words: str) -> bool:
    return singular(words) != words


def counted(number: JsonValue, words: str) -> str:
    """Return the noun in a plural after a number of them: "15 words", "one word"."""
    return f"one {singular(words)}" if number == 1 else f"{shown(number)} {words}"


def of_another(words: str, inner: str) -> str:
    """Say a condition on what a thing refers to: "whose owner lives in 'Oslo'", for "that lives in 'Oslo'"."""
    if inner.startswith("in which "):
        return f"in whose {words} {inner.removeprefix('in which ')}"
    if inner.startswith("whose "):
        return f"whose {words}'s {inner.removeprefix('whose ')}"
    if inner.startswith("that "):
        return f"whose {words} {inner.removeprefix('that ')}"
    if inner.startswith("without "):
        return f"whose {words} does not have {inner.removeprefix('without ')}"
    if inner.startswith("with "):
        return f"whose {words} has {inner.removeprefix('with ')}"
    return f"whose {words} is {inner}"


def listed(parts: Sequence[str]) -> str:
    """Return parts with commas, and "and" before the last one."""
    return " and ".join([*([", ".join(parts[:-1])] if len(parts) > 1 else []), *parts[-1:]])


def joined(said: Sequence[str], *, several: bool, person: bool = False) -> str:
    """Return conditions one after another, clauses last: "tagged 'home' that has 3 words and that mentions 'tea'".

    "with" stands before no clause, which could be taken to speak of what the thing is with.
    """
    that, have = "who" if person else "that", "have" if several else "has"
    if any(each.startswith(_CLAUSES) for each in said):
        not_have = "do not have" if several else "does not have"
        said = [re.sub(r"^with an? ([\w ]+?) that ends in ", r"whose \1 ends in ", each) for each in said]
        said = [re.sub(r"^with ([\w ]+?) that end in ", r"whose \1 end in ", each) for each in said]
        said = [
            re.sub(r"^with ", f"{that} {have} ", re.sub(r"^without ", f"{that} {not_have} ", each)) for each in said
        ]
    text, before = "", ""
    for each in sorted(said, key=lambda one: (one.startswith(_CLAUSES), one.startswith("with"))):
        begins = [one for one in ("with ", f"{that} {have} ") if each.startswith(one) and before.startswith(one)]
        alike = before.startswith(_CLAUSES) if each.startswith(_CLAUSES) else each.split(" ")[0] == before.split(" ")[0]
        text += f" and {each.removeprefix(begins[0] if begins else '')}" if alike else f" {each}"
        before = each
    return text
