import json
import random
from collections import Counter

import pytest

from mcp_rl.errors import ConfigError
from mcp_rl.explore.answer import Answer, read_answer
from mcp_rl.explore.outcome import Outcome
from mcp_rl.explore.parts import fits, parts_of
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.scenario import McpScenario, StdioServer, Verifier
from mcp_rl.scenarios.chain import Chain, lookups, together
from mcp_rl.scenarios.compose import Composer
from mcp_rl.scenarios.duplicates import near_key
from mcp_rl.scenarios.refusals import add_unsolvable, add_without_tools
from mcp_rl.scenarios.split import hold_out, overlap
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.toolserver.tools.listing import Tool
from mcp_rl.toolserver.tools.schema import ToolSchemas

PARAMS = StdioServer(command="server")
TOOLS = [Tool("find_note", "Finds a note.", {"type": "object", "properties": {"id": {"type": "string"}}})]


def composer(recipe: Recipe) -> Composer:
    server = ToolServer("notes", "Notes.", {"stdio": PARAMS})
    return Composer(TOOLS, ToolSchemas(TOOLS), server=server, params=PARAMS, recipe=recipe)


def outcome(note: str, text: str) -> Outcome:
    return Outcome("find_note", {"id": note}, text, read_answer(text, {"id": note}))


def scenario(text: str, answer: str) -> McpScenario:
    return McpScenario(task_description=text, server_params=PARAMS, reference_answer=answer)


def test_parts_of_a_result_are_named_as_a_person_would() -> None:
    result = {
        "notes": [{"id": "n1", "noteTitle": "Tea"}, {"id": "n2"}],
        "next": {"page": 2},
        "more": True,
        "none": None,
    }
    assert {part.phrase: part.value for part in parts_of(json.dumps(result))} == {
        "the id of the first of the notes": "n1",
        "the note title of the first of the notes": "Tea",
        "the id of the second of the notes": "n2",
        "the page of the next": 2,
    }
    assert [part.phrase for part in parts_of('[{"id": 4}]')] == ["the id of the first entry"]
    assert parts_of("plain") == [] and parts_of("[" * 5000) == [] and parts_of("7") == []


def test_a_parameter_takes_what_stands_under_its_name() -> None:
    part = parts_of('{"notes": [{"id": "n1"}], "tags": "a", "size": 3}')
    assert [p.key for p in part] == ["id", "tags", "size"]
    assert fits(part[0], "note_id") and fits(part[0], "id") and fits(part[1], "tag") and not fits(part[2], "id")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("Add 3 and 4", "7"), ("Please add 4 and 3.", "7"), True),
        (("Subtract 3 from 4", "1"), ("Subtract 4 from 3", "-1"), False),
        (("Add 3 and 4", "7"), ("Add 3 and 5", "8"), False),
        (("Add 3 and 4", "7"), ("Add 3 and -4", "-1"), False),
        (("the", ""), ("then", ""), False),
    ],
)
def test_near_duplicates_share_words_and_answer(one: tuple[str, str], other: tuple[str, str], same: bool) -> None:
    assert (near_key(scenario(*one)) == near_key(scenario(*other))) == same


def test_what_is_the_same_task_is_taken_once() -> None:
    made = composer(Recipe(10))
    verifier = Verifier(kind="text", expected="Tea")
    assert made.add("Find note n1.", [outcome("n1", "Tea")], verifier)
    assert not made.add("please find note n1", [outcome("n1", "Tea")], verifier)
    assert made.add("Find note n2.", [outcome("n2", "Tea")], verifier)
    assert len(made) == 2


def test_part_of_a_long_result_is_asked_for_and_verified() -> None:
    made = composer(Recipe(40))
    for number in range(40):
        found = outcome(
            f"n{number}", json.dumps({"title": f"Title {number}", "words": 100 + number, "id": f"n{number}"})
        )
        made.add_chain(Chain.of(found), found.answer)
    kinds = Counter(s.verifier.kind for s in made.scenarios if s.verifier)
    assert set(kinds) == {"calls", "text", "number"} and 10 <= kinds["calls"] <= 30
    for s in made.scenarios:
        assert s.verifier is not None
        if s.verifier.kind != "calls":
            assert "Tell me the " in s.task_description and " in the result." in s.task_description
            assert str(s.verifier.expected) not in s.task_description


def test_a_part_that_is_the_same_in_most_results_is_not_asked_for() -> None:
    made = composer(Recipe(60, unsolvable=0, without_tools=0))
    texts = [json.dumps({"words": 100 + number, "version": 7, "state": "ab"[number % 2]}) for number in range(60)]
    made.compose(60, [outcome(f"n{number}", text) for number, text in enumerate(texts)], [])
    asked = {s.verifier.expected for s in made.scenarios if s.verifier and s.verifier.kind in ("number", "text")}
    assert len(asked) > 10
    assert all(isinstance(value, int) and value >= 100 for value in asked)


def test_few_calls_for_many_tasks_are_pooled_so_that_tasks_of_all_lengths_can_be_held_out() -> None:
    made = composer(Recipe(400, unsolvable=0, without_tools=0))
    names = [f"note{number:02}" for number in range(80)]
    texts = [f"See {names[number - 7]} and {names[number - 1]}." for number in range(80)]
    singles = [outcome(name, text) for name, text in zip(names, texts, strict=True)]
    made.compose(400, singles, [])
    train, val = hold_out(made.scenarios, 80)
    assert len(made) == 400 and len(val) == 80 and len(train) > 280
    assert {len(s.reference) for s in val} == {1, 2, 3, 4, 5} and not overlap(train, val)


def test_a_lookup_is_verified_by_both_calls() -> None:
    made = composer(Recipe(100, max_steps=2, unsolvable=0, without_tools=0))
    texts = [f"note{n}a, note{n}b" for n in range(20)]
    listings = [Outcome("find_note", {"id": f"page {n}"}, text, Answer("calls", None)) for n, text in enumerate(texts)]
    read = [outcome(f"note{n}{x}", json.dumps({"title": f"T{n}{x}", "words": n})) for n in range(20) for x in "ab"]
    made.compose(60, [*listings, *read], [])
    longer = [s for s in made.scenarios if len(s.reference) == 2]
    assert len(longer) == 24
    assert {s.verifier.kind for s in longer if s.verifier} == {"calls"}
    assert not any("Tell me" in s.task_description for s in longer)


def test_a_text_that_stands_in_many_results_makes_no_lookup() -> None:
    listing = Outcome("list", {}, "walnut, copper", Answer("calls", None))
    some = [outcome("walnut", "one"), outcome("copper", "two"), *(outcome(f"x{n}", f"{n}") for n in range(8))]
    assert {chain.outcomes[1].arguments["id"] for chain in lookups([listing, *some], random.Random(0))} == {
        "walnut",
        "copper",
    }
    chatty = [Outcome("list", {"page": n}, "walnut, copper", Answer("calls", None)) for n in range(20)]
    assert list(lookups([*chatty, *some], random.Random(0))) == []


def test_unrelated_calls_share_calls_within_their_block_alone() -> None:
    blocks = [[outcome(f"{block}{n}", f"{block}{n}") for n in range(5)] for block in "abc"]
    for steps in (2, 3, 5):
        chains = list(together(blocks, steps, random.Random(0)))
        assert len(chains) == 3 * {2: 10, 3: 10, 5: 1}[steps]
        assert all(len({o.arguments["id"][0] for o in chain.outcomes}) == 1 for chain in chains)
        assert all(len({o.key for o in chain.outcomes}) == steps for chain in chains)


def test_unsolvable_tasks_are_refused_calls_and_missing_tools() -> None:
    made = composer(Recipe(100))
    errors = [outcome(f"n{n}", "There is no such note.") for n in range(50)]
    weather = [outcome("w", "connection refused: ECONNREFUSED"), outcome("v", "HTTP 503")]
    add_unsolvable(made, [*weather, *errors], TOOLS, 20)
    refused = [s for s in made.scenarios if s.verifier and s.verifier.expected]
    assert len(made) == 20 and len(refused) == 12
    assert {s.verifier.kind for s in made.scenarios if s.verifier} == {"none"}
    assert all(s.reference == () and "unsolvable" in s.tags for s in made.scenarios)
    assert not any(s.reference_answer and "503" in s.reference_answer for s in refused)


def test_what_the_server_can_do_is_not_asked_as_impossible() -> None:
    made = composer(Recipe(400))
    able = [*TOOLS, Tool("order_food", "Orders a pizza.", {}), Tool("fax", "", {})]
    add_unsolvable(made, [], able, 200)
    assert len(made) > 50
    assert not any("pizza" in s.task_description.casefold() for s in made.scenarios)
    assert not any("fax" in s.task_description.casefold() for s in made.scenarios)


def test_requests_without_tools_hold_their_answer() -> None:
    made = composer(Recipe(100))
    add_without_tools(made, 30)
    assert len(made) == 30
    for s in made.scenarios:
        assert s.verifier is not None and s.verifier.options == {"require_tool": False, "max_calls": 0}
        assert str(s.verifier.expected) in s.task_description


def test_lengths_are_spread_as_the_recipe_says() -> None:
    assert Recipe(720, max_steps=2).lengths(720) == Counter({1: 432, 2: 288})
    assert Recipe(100, max_steps=1).lengths(100) == Counter({1: 100})
    five = Recipe(500).lengths(450)
    assert sum(five.values()) == 450 and sorted(five, key=lambda n: -five[n]) == [1, 2, 3, 4, 5]
    assert Recipe(500).solvable == 450


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 0}, "0 scenarios cannot be made"),
        ({"count": 9, "max_steps": 6}, "Tasks of 6 steps cannot be made; 1 to 5"),
        ({"count": 9, "unsolvable": 0.6, "without_tools": 0.4}, "leave something to solve"),
        ({"count": 9, "unsolvable": -0.1}, "must be 0 or more"),
        ({"count": 9, "unsolvable": float("nan")}, "must be 0 or more"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recipe(**values)  # type: ignore[arg-type]
