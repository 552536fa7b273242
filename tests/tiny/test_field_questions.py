"""The corpus asks for fields of results, by their names and by the record that they are in, and the built-in model
answers with the one that was asked for."""

import json
import random
import re

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from mcp_rl.tiny import weights_path
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


def test_the_model_answers_with_the_field_that_is_asked_for() -> None:
    model = AutoModelForCausalLM.from_pretrained(weights_path()).eval()
    tokenizer = AutoTokenizer.from_pretrained(weights_path())
    tool = {"type": "function", "function": {"name": "show_boat", "description": "Show one boat.", "parameters": {
        "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}}  # fmt: skip
    record = {"name": "Swallow", "harbor": "Genoa", "berths": 12, "color": "green", "owner": "Ada Lind"}
    call = '<tool_call>\n{"name": "show_boat", "arguments": {"name": "Swallow"}}\n</tool_call>'
    right = []
    for field, value in record.items():
        asked = f"Call show_boat with name = 'Swallow'. Tell me the {field} in the result."
        turns = [("user", asked), ("assistant", call), ("tool", json.dumps(record))]
        ids = tokenizer.apply_chat_template(
            [{"role": role, "content": text} for role, text in turns],
            tools=[tool], add_generation_prompt=True, return_tensors="pt", return_dict=False,
        )  # fmt: skip
        said = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=tokenizer.pad_token_id)
        right.append(tokenizer.decode(said[0, ids.shape[1] :], skip_special_tokens=True) == str(value))
    assert sum(right) >= 4, right
