"""Ids that are made anew each time are found by comparing two results, and do not count afterwards."""

import json

import pytest

from mcp_rl.rewards.new_ids import new_ids, with_ids_numbered

FIRST = [{"id": "k3j9x0aa", "name": "Olga", "after": []}, {"id": "p0d8w7bb", "name": "Ada", "after": ["k3j9x0aa"]}]
SECOND = [{"id": "a1", "name": "Ada", "after": ["zz81kq2c"]}, {"id": "zz81kq2c", "name": "Olga", "after": []}]


def as_text(items: list[dict[str, object]]) -> str:
    return json.dumps(items).replace('"a1"', '"b7c1d2e3"')


@pytest.mark.parametrize(
    ("one", "other", "places"),
    [
        ('{"n": 1}', '{"n": 1}', ()),
        (as_text(FIRST), as_text(SECOND), ("after", "id")),
        ('{"id": "abcdefgh", "size": 3}', '{"id": "ijklmnop", "size": 4}', None),
        ('{"name": "Olga"}', '{"name": "Samir"}', None),
        ('{"id": "note-12"}', '{"id": "note-13", "more": 1}', None),
        ("Created a3f81b02: Milk", "Created 77c0ffee: Milk", (r"(?m)Created\s+([A-Za-z0-9_-]+)\:\s+",)),
        ("- Milk [a3f81b02]\n- Tea [x]", "- Milk [77c0ffee]\n- Tea [x]", (r"(?m)\s+\[([A-Za-z0-9_-]+)\]",)),
        ("The lamp is green", "The lamp is black", None),
        ("one\ntwo", "one", None),
    ],
)
def test_two_results_tell_which_ids_are_new(one: str, other: str, places: tuple[str, ...] | None) -> None:
    assert new_ids(one, other) == places


def test_what_new_ids_refer_to_still_counts() -> None:
    places = ("after", "id")
    assert with_ids_numbered(as_text(FIRST), places) == with_ids_numbered(as_text(SECOND), places)
    wrong = [FIRST[0], {**FIRST[1], "after": ["p0d8w7bb"]}]  # it comes after itself
    assert with_ids_numbered(as_text(FIRST), places) != with_ids_numbered(as_text(wrong), places)
