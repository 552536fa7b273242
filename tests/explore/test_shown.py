"""Values out of results in words, and the parameters that ask for them."""

import pytest

from mcp_rl.explore.entities.forms.shown import is_id, shown_values
from mcp_rl.explore.values_seen import GIVEN, LEFT_OUT, ValuePool

SHA = "f482ef6b31fd46aaf4fd7b1307b6a11fa1b1fab0"
LOG = f"History:\nCommit: {SHA}\nAuthor: Ada\nMessage: Add a list\n\nCommit: {SHA[::-1]}\nAuthor: Omar\nMessage: Begin"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (LOG, {SHA: "history commit", "Ada": "history author", "Add a list": "history message"}),
        ("  feature/greeting\n* main", {"feature/greeting": "name", "main": "name"}),
        ("Created the task TASK-12 in 'Orchard'.", {"TASK-12": "the task", "Orchard": "12 in"}),
        ('{"result": "* tall\\n  small"}', {"tall": "name", "small": "name"}),
        ("I don't know what it's called.", {}),
    ],
)
def test_values_of_results_in_words_come_with_the_words_about_them(text: str, values: dict[str, str]) -> None:
    found = dict(shown_values(text))
    assert values.items() <= found.items()
    assert values or not found


@pytest.mark.parametrize("text", [SHA, SHA[:7], "9b2d1c3e-58f0-4a7b-8c6d-2f1e0d9c8b7a", "b-17", "TASK-12", "user_3f"])
def test_hashes_and_handles_look_like_ids(text: str) -> None:
    assert is_id(text)


@pytest.mark.parametrize("text", ["decade", "1234567", "main", "a b-17", "2026-11-23"])
def test_words_numbers_and_dates_do_not(text: str) -> None:
    assert not is_id(text)


def test_a_parameter_asks_for_the_values_that_its_name_or_description_speaks_of() -> None:
    pool = ValuePool()
    pool.observe({}, LOG, tool="git_log")
    pool.observe({}, "  feature/greeting\n* main", tool="git_branch")

    def best(parameter: str, description: str = "") -> set[str]:
        scores = pool.asked(parameter, description)
        return {value for value, score in scores.items() if score == max(scores.values())}

    assert best("branch name") == {"feature/greeting", "main"}
    assert best("revision") == best("contains", "The commit sha that it should contain") == {SHA, SHA[::-1]}
    assert best("who", "The author") == {"Ada", "Omar"}
    assert pool.asked("colour", "A colour") == {}


def test_an_optional_parameter_with_which_calls_fail_is_given_less_often() -> None:
    pool = ValuePool()
    assert pool.odds("find.contains") == 1
    for _ in range(6):
        pool.credit([("find.contains", GIVEN)], False)
        pool.credit([("find.contains", LEFT_OUT)], True)
    assert 0 < pool.odds("find.contains") < 0.2
    assert pool.odds("find.text") == 1
