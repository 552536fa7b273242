"""English for the extreme one among things: "the cheapest item", and "costs the least"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.scenarios.goals.words import PAST

if TYPE_CHECKING:
    from mcp_rl.scenarios.goals.words import English


def superlatives(english: English, kind: str, by: str, most: bool, one: str) -> list[str]:
    """Return noun phrases for the extreme one among things, such as "the largest file in 'notes'"."""
    words = english.words(kind, by)
    match english.sort(kind, by):
        case "deed":
            deed = english.deed(kind, by)
            return [f"the {one} that {deed.past} the {'most' if most else 'fewest'} {deed.objects}"]
        case "count":
            return [f"the {one} with the {'most' if most else 'fewest'} {words}"]
        case "mass":
            return [f"the {one} with the {'most' if most else 'least'} {words}"]
        case "size":
            return [f"the {'largest' if most else 'smallest'} {one}"]
        case "length":
            return [f"the {'longest' if most else 'shortest'} {one}"]
        case "age":
            return [f"the {'oldest' if most else 'youngest'} {one}"]
        case "cost":
            return [f"the {'most expensive' if most else 'cheapest'} {one}"]
        case "changed":
            return [f"the {one} that was changed {'last' if most else 'the longest time ago'}"]
        case "created":
            return [f"the {'newest' if most else 'oldest'} {one}"]
        case "due":
            return [f"the {one} that is due {'last' if most else 'first'}"]
        case "year" if PAST.fullmatch(words):
            return [f"the {one} that was {words} {'last' if most else 'first'}"]
        case "dated":
            return [f"the {'latest' if most else 'earliest'} {one}"]
        case "time" | "year":
            return [f"the {one} with the {'latest' if most else 'earliest'} {words}"]
    return [f"the {one} with the {'highest' if most else 'lowest'} {words}"]


def lead(english: English, kind: str, by: str, most: bool) -> str:
    """Say of one thing that it is the extreme one: "is the largest", "has the highest price"."""
    words = english.words(kind, by)
    match english.sort(kind, by):
        case "deed":
            deed = english.deed(kind, by)
            return f"{deed.past} the {'most' if most else 'fewest'} {deed.objects}"
        case "count":
            return f"has the {'most' if most else 'fewest'} {words}"
        case "mass":
            return f"has the {'most' if most else 'least'} {words}"
        case "size":
            return f"is the {'largest' if most else 'smallest'}"
        case "length":
            return f"is the {'longest' if most else 'shortest'}"
        case "age":
            return f"is the {'oldest' if most else 'youngest'}"
        case "cost":
            return f"costs the {'most' if most else 'least'}"
        case "changed":
            return f"was changed {'last' if most else 'the longest time ago'}"
        case "created":
            return f"is the {'newest' if most else 'oldest'}"
        case "due":
            return f"is due {'last' if most else 'first'}"
        case "year" if PAST.fullmatch(words):
            return f"was {words} {'last' if most else 'first'}"
        case "dated":
            return f"is the {'latest' if most else 'earliest'}"
        case "time" | "year":
            return f"has the {'latest' if most else 'earliest'} {words}"
    return f"has the {'highest' if most else 'lowest'} {words}"
