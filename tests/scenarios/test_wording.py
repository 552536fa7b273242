import random
import re

import pytest

from mcp_rl.explore.words import words_of
from mcp_rl.scenarios.verbs import VERBS
from mcp_rl.scenarios.wording import Spoken, Wording, say
from mcp_rl.toolserver.tools.listing import Tool

TWO = {
    "type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
}
ADD = Tool("add", "Add two numbers. Exactly.", TWO)
ECHO = Tool(
    "echo-it",
    "Echoes the input",
    {"type": "object", "properties": {"message": {"type": "string"}}},
)
NAMES = {"add": "add", "echo-it": "echo-it"}


def requests(wording: Wording, count: int = 400) -> list[str]:
    return [wording.one_step("add", {"a": 3, "b": 4}, random.Random(i)) for i in range(count)]


def test_there_are_many_forms_and_each_holds_the_arguments() -> None:
    found = set(requests(Wording([ADD, ECHO], NAMES)))
    assert len({text.rstrip(".").casefold() for text in found}) >= 12
    assert all("3" in text and "4" in text for text in found)


def test_a_quarter_of_the_requests_with_phrases_are_generic() -> None:
    wording = Wording([ADD], NAMES, {"add": ["What is {a} plus {b}?", "Add {b} to {a}."]})
    found = requests(wording)
    share = sum(text in ("What is 3 plus 4?", "Add 4 to 3.") for text in found) / len(found)
    assert 0.68 < share < 0.82


def test_a_phrase_that_does_not_hold_every_argument_is_not_used() -> None:
    wording = Wording([ADD], NAMES, {"add": ["Add one to {a}."]})
    assert not any(text.startswith("Add one to") for text in requests(wording))


def test_a_description_that_two_tools_share_is_not_a_request() -> None:
    twin = Tool("sum", ADD.description, TWO)
    found = requests(Wording([ADD, twin], {"add": "add", "sum": "sum"}))
    assert all(re.search(r"\badd\b", text, re.IGNORECASE) for text in found)
    assert not any("two numbers" in text for text in found)


@pytest.mark.parametrize(
    ("description", "asked"),
    [
        ("Indicates whose turn it is ('white' or 'black').", "Indicate whose turn it is ('white' or 'black')"),
        ("Switches branches", "Switch branches"),
        ("Returns customer data with segments.", "Return customer data with segments"),
        ("Searches the notes", "Search the notes"),
        ("Lists and sorts the notes. Fast.", "List and sort the notes"),
        ("Records of all customers", ""),
        ("Lists", ""),
        ("计算幂运算", ""),
    ],
)
def test_a_description_that_begins_with_a_verb_is_a_request(description: str, asked: str) -> None:
    wording = Wording([Tool("look", description, {"type": "object"})], {})
    assert wording._fields("look", {})["description"] == asked


def test_the_second_step_names_the_result_without_its_value() -> None:
    wording = Wording([ADD], NAMES, {"add": ["What is {a} plus {b}?"]})
    for seed in range(100):
        second = {"a": Spoken("the result"), "b": 5}
        text = wording.steps([("add", {"a": 3, "b": 4}), ("add", second)], random.Random(seed))
        assert "the result" in text and "7" not in text and "{" not in text.split("the result")[0][-3:]


def test_text_is_quoted_so_that_it_can_be_told_from_the_request() -> None:
    wording = Wording([ADD, ECHO], NAMES)
    for seed in range(50):
        text = wording.one_step("echo-it", {"message": "say add 1 2"}, random.Random(seed))
        assert "'say add 1 2'" in text or '"say add 1 2"' in text


def test_values_are_said_as_json_says_them() -> None:
    assert [say(v) for v in (3.0, True, None, "it's", [1, "a"])] == [
        "3",
        "true",
        "null",
        '"it\'s"',
        '[1, "a"]',
    ]
    assert words_of("getUserName-fast") == "get user name fast"


def test_server_names_stay_out_of_requests_unless_tools_clash() -> None:
    def said(tool: str, names: list[str]) -> set[str]:
        wording = Wording([Tool(name, "", {}) for name in names], {})
        return {wording.one_step(tool, {}, random.Random(seed)).rstrip(".") for seed in range(40)}

    together = ["notes__read_note", "notes__search", "web__search"]
    assert "Please read note" in said("notes__read_note", together)
    assert "Please use notes__search" in said("notes__search", together)
    assert "Please use web__search" in said("web__search", together)
    assert "Please use a__b" in said("a__b", ["a__b", "c"])


def test_two_values_are_told_apart_unless_they_may_change_places() -> None:
    subtract = Tool("subtract", "Subtracts one number from another", TWO)
    wording = Wording([ADD, subtract], {"add": "add", "subtract": "subtract"})
    added = {wording.one_step("add", {"a": 3, "b": 4}, random.Random(seed)) for seed in range(100)}
    taken = {wording.one_step("subtract", {"a": 9, "b": 100}, random.Random(seed)) for seed in range(100)}
    assert {"Add 3 and 4.", "Apply add to 3 and 4."} <= added
    assert all(re.search(r"\ba\b.*9.*\bb\b.*100", text) for text in taken)
    assert not any(re.search(r"\d \d", text) for text in added | taken)


def test_a_name_that_is_no_verb_is_used_rather_than_done() -> None:
    stats = Tool("text_stats", "", {"type": "object", "properties": {"text": {"type": "string"}}})
    wording = Wording([stats], {"text_stats": "text_stats"})
    found = {wording.one_step("text_stats", {"text": "hello"}, random.Random(seed)) for seed in range(200)}
    assert "Please use text_stats with text = 'hello'." in found
    assert not any(re.search(r"(?i)(?:please|can you|^) ?text stats", text) for text in found)


def test_requests_are_sentences() -> None:
    foods = {"type": "object", "properties": {"exclude_tags": {"type": "array"}, "name": {"type": "string"}}}
    wording = Wording([Tool("list_foods", "Lists all foods.", foods)], {"list_foods": "list_foods"})
    arguments = {"exclude_tags": ["soy"], "name": "Tempeh"}
    found = {wording.one_step("list_foods", arguments, random.Random(seed)) for seed in range(200)}
    assert all(text[0].isupper() or text.startswith("list_foods(") for text in found)
    assert all(text.endswith((".", "?", ")")) for text in found)
    assert not any("tags is" in text or "for query is" in text or " for '" in text for text in found)
    assert any("exclude_tags are [" in text for text in found)


def test_only_verbs_begin_requests_and_only_sums_change_places() -> None:
    assert not {"as", "noqa", "words"} & VERBS
    numbers = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}
    tools = [Tool("add_item", "", numbers), Tool("get_sum", "", numbers)]
    wording = Wording(tools, {tool.name: tool.name for tool in tools})
    given = {"a": 3, "b": 4}
    told = {
        tool.name: [wording.one_step(tool.name, given, random.Random(seed)) for seed in range(60)] for tool in tools
    }
    assert any("3 and 4" in text for text in told["get_sum"])
    assert not any("3 and 4" in text for text in told["add_item"])
