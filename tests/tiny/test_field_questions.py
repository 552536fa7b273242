"""The corpus asks for fields of results, by their names and by the record that they are in."""

import random
import re

import pytest

from mcp_rl.tiny.reading import LONG_ANSWER, in_words, questions, reading
from mcp_rl.tiny.strangers import strange_server
from mcp_rl.tiny.values import flat


def test_a_question_names_a_field_and_is_answered_by_what_it_holds() -> None:
    shown = [{"id": f"x{at}", "openDoor": at * 7, "last_tag": f"tag {at}", "long": "y" * 130} for at in range(3)]
    words = {"id": "id", "open door": "openDoor", "last tag": "last_tag"}
    server = strange_server(random.Random(4))
    pointed = 0
    for seed in range(20):
        asked = questions(random.Random(seed), server, shown, 12)
        assert len(asked) == 9  # the long ones are not asked for
        for question, answer in asked:
            field = next(name for said, name in words.items() if f"the {said}" in question.lower())
            fitting = [record for record in shown if flat(record[field]) == answer]
            assert len(fitting) == 1
            at = shown.index(fitting[0])
            assert fitting[0]["id"] in question or (" first ", " second ", " third ")[at] in question
            pointed += fitting[0]["id"] in question
    assert 40 < pointed < 120


def test_a_reading_is_a_call_its_result_and_questions() -> None:
    several, call = 0, '<tool_call>\n{"name": "it", "arguments": {}}\n</tool_call>'
    for seed in range(40):
        rng = random.Random(seed)
        turns = reading(rng, strange_server(rng), lambda: ("Use it", call))
        if turns is None:
            continue
        assert [turn.role for turn in turns[:4]] == ["user", "assistant", "tool", "assistant"]
        assert all(turn.learn == (turn.role == "assistant") for turn in turns)
        result, answers = "", 0
        for turn in turns:
            result = turn.text if turn.role == "tool" else result
            if turn.learn and turn.text != call:
                answers += 1
                assert 0 < len(turn.text) <= LONG_ANSWER
                assert set(re.findall(r"\w+", turn.text)) <= set(re.findall(r"\w+", result))
        several += answers > 1
    assert several > 10


@pytest.mark.parametrize(("name", "said"), [("dueDate", "due date"), ("last_tag", "last tag"), ("URL", "URL")])
def test_a_field_is_spoken_of_in_words(name: str, said: str) -> None:
    assert in_words(name) == said
