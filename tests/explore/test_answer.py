import time

import pytest

from mcp_rl.explore.answer import Answer, call_key, holds_secret, read_answer, says_nothing
from mcp_rl.rewards.dates import is_dated


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("42", Answer("number", 42)),
        ("-1.5e3\n", Answer("number", -1500.0)),
        ('{"result": 7.5}', Answer("number", 7.5)),
        ('{"total": 3}', Answer("number", 3)),
        ('"Oslo"', Answer("text", "Oslo")),
        ("true", Answer("text", "true")),
        ("The sum of 2 and 3 is 5.", Answer("number", 5)),
        ("Echo: hello", Answer("text", "Echo: hello")),
        ('{"a": 1, "b": 2}', Answer("calls", None)),
        ("[1, 2, 3]", Answer("calls", None)),
        ("one line\nanother", Answer("calls", None)),
        ("x" * 100, Answer("calls", None)),
        ("inf", Answer("text", "inf")),
        ("NaN", Answer("calls", None)),
        ("", Answer("calls", None)),
    ],
)
def test_results_are_read_as_number_text_or_calls(text: str, answer: Answer) -> None:
    assert read_answer(text, {}) == answer


def test_a_number_that_only_echoes_an_argument_is_text() -> None:
    assert read_answer("Echo: room = 5", {"message": "room = 5"}) == Answer("text", "Echo: room = 5")


def test_spellings_of_one_call_have_one_key() -> None:
    assert call_key("add", {"a": 3, "b": [1.0]}) == call_key("add", {"b": [1], "a": 3.0})
    assert call_key("add", {"a": 3}) != call_key("add", {"a": "3"})
    assert call_key("add", {"a": True}) != call_key("add", {"a": 1})


def test_secrets_dates_and_empty_results_are_noticed() -> None:
    assert holds_secret('{\n "GITHUB_TOKEN": "abcdef123456"\n}')
    assert holds_secret("api_key=abcdef123456")
    assert not holds_secret("the secret garden")
    for name in ("Token", "SECRETS", "Passwort", "Api_Key", "APIKEY", "CREDENTIALS", "acce\u017f\u017f_to\u212aen"):
        assert holds_secret(f"{name} = abcdef123456")
    assert is_dated("2026-11-21T10:30:00+01:00") and not is_dated("12:30")
    now = time.time()
    assert is_dated(f"made: {now:.0f}") and is_dated(f"{now * 1000:.0f}.") and not is_dated("born 946684800")
    assert says_nothing("No matches found") and says_nothing("Error: bad path") and says_nothing("[]")
    assert says_nothing("a.txt: Error - ENOENT: no such file or directory")
    assert says_nothing("Failed to move it: give a key") and says_nothing("Git commit failed: no folder")
    assert says_nothing("No matching note found") and says_nothing("\u26a0\ufe0f No project directory set for git!")
    assert not says_nothing("There are 3 files") and not says_nothing("3 tests failed: a, b, c")


def test_a_result_with_a_system_error_says_nothing() -> None:
    assert says_nothing("/a: first\n---\n/b: Error - ENOENT: no such file or directory, open '/b'\n")
    assert says_nothing('{"notes": [], "count": 0}') and not says_nothing('{"notes": [], "count": 3}')
    assert not says_nothing('{"sum": 0}') and not says_nothing("The chapter on errors: EASY reading")
