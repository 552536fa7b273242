"""Programs over a world, their words, and their proofs on the bundled server of notes."""

import json
import random
import re
import shutil
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from mcp_rl.explore.entities.statements import filled, values_in
from mcp_rl.explore.entities.world_model import (
    ArgumentSlot,
    Effect,
    Entity,
    EntityField,
    EntityKind,
    Fact,
    Observation,
    Reference,
    WorldModel,
)
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.rewards.verifier import check_verifiers
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall, Verifier
from mcp_rl.scenarios.goals.answered import AnsweredQuestions
from mcp_rl.scenarios.goals.balance import best_guesses
from mcp_rl.scenarios.goals.brought import BroughtAbout
from mcp_rl.scenarios.goals.lookups import Lookups, states
from mcp_rl.scenarios.goals.near import near_answers
from mcp_rl.scenarios.goals.phrases import joined, of_another
from mcp_rl.scenarios.goals.program import (
    ChosenThings,
    Commonest,
    Condition,
    CountOf,
    ExtremeOf,
    FieldOf,
    Gap,
    IfAny,
    MoreOf,
    NamesOf,
    Program,
    ProgramAnswer,
    TotalOf,
    Unanswerable,
    View,
    evaluate,
)
from mcp_rl.scenarios.goals.propose import ProgramDrawer, round_limit, threshold
from mcp_rl.scenarios.goals.questions import Questions
from mcp_rl.scenarios.goals.reading import read_program
from mcp_rl.scenarios.goals.requests import Requests, ToolNames
from mcp_rl.scenarios.goals.right_answer import answer_text, verifier_of
from mcp_rl.scenarios.goals.second import SecondOpinion, SecondSolver, with_opinion
from mcp_rl.scenarios.goals.task import GoalTask, accepted
from mcp_rl.scenarios.goals.twice import Twice
from mcp_rl.scenarios.goals.words import English, predicate, quoted
from mcp_rl.scenarios.stage import Stage
from mcp_rl.toolserver.pool import Sessions

FIELDS = {
    "id": EntityField(name="id", words="id", kind="text"),
    "title": EntityField(name="title", words="title", kind="text"),
    "tags": EntityField(name="tags", words="tags", kind="list"),
    "words": EntityField(name="words", words="words", kind="number"),
    "text": EntityField(name="text", words="text", kind="prose"),
    "author": EntityField(name="author", words="author", kind="text"),
    "changed": EntityField(name="changed", words="modification time", kind="time"),
}
PEOPLE = [("Ada", "Lima"), ("Omar", "Oslo"), ("Yuki", "Lima")]
NOTES: list[dict[str, Any]] = [
    {"id": "n1", "title": "Pears", "tags": ["home"], "words": 19, "text": "Buy pears.", "author": "Ada", "day": 4},
    {
        "id": "n2",
        "title": "Plan",
        "tags": ["home", "work"],
        "words": 21,
        "text": "By Friday.",
        "author": "Omar",
        "day": 9,
    },
    {"id": "n3", "title": "Trip", "tags": ["travel"], "words": 7, "text": "To Lima.", "author": "Yuki", "day": 2},
    {"id": "n4", "title": "Bread", "tags": ["home"], "words": 30, "text": "Rye, no pears.", "author": "Omar", "day": 6},
]


def small_world() -> WorldModel:
    """Four notes, which a listing shows without text and author, and their authors."""
    listed = [{key: note[key] for key in ("id", "title", "tags", "words")} for note in NOTES]
    seen = [Observation(tool="list_notes", arguments={}, text=json.dumps({"notes": listed}), lists="note")]
    entities = []
    for number, note in enumerate(NOTES, 1):
        note = note | {"changed": f"2026-05-{note['day']:02}T10:00:00Z"}
        seen.append(Observation(tool="read_note", arguments={"id": note["id"]}, text=json.dumps(note)))
        facts = {
            name: Fact(value=note[name], shown_by=(0, number) if name in listed[0] else (number,)) for name in FIELDS
        }
        entities.append(Entity(kind="note", key=note["id"], facts=facts))
    people = json.dumps([{"name": name, "city": city} for name, city in PEOPLE])
    seen.append(Observation(tool="list_people", arguments={}, text=people, lists="person"))
    for name, city in PEOPLE:
        facts = {"name": Fact(value=name, shown_by=(5,)), "city": Fact(value=city, shown_by=(5,))}
        entities.append(Entity(kind="person", key=name, facts=facts))
    person = {name: EntityField(name=name, words=name, kind="text") for name in ("name", "city")}
    return WorldModel(
        server="small",
        kinds={
            "note": EntityKind(name="note", plural="notes", key="id", fields=FIELDS, complete=True),
            "person": EntityKind(name="person", plural="people", key="name", fields=person, complete=True),
        },
        entities=tuple(entities),
        observations=tuple(seen),
        slots=(ArgumentSlot(tool="read_note", parameter="id", kind="note", field="id"),),
        references=(Reference(kind="note", field="author", to="person"),),
    )


WORLD = small_world()


def where(*conditions: Condition) -> ChosenThings:
    return ChosenThings("note", conditions)


HOME, WORK = Condition("tags", "has", "home"), Condition("tags", "has", "work")
MENTIONS = Condition("text", "holds", "pears")


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        (FieldOf(where(WORK), "title"), "Plan"),
        (FieldOf(where(Condition("title", "is", "Trip")), "city", "author"), "Lima"),
        (FieldOf(where(Condition("city", "is", "Oslo", through="author"), HOME, MENTIONS), "title"), "Bread"),
        (NamesOf(where(HOME)), ["Pears", "Plan", "Bread"]),
        (NamesOf(where(Condition("tags", "lacks", "home"))), "Trip"),
        (NamesOf(where(HOME, Condition("words", "above", 20))), ["Plan", "Bread"]),
        (ExtremeOf(where(), "words", True, "title"), "Bread"),
        (ExtremeOf(where(HOME), "changed", False, "text"), "Buy pears."),
        (CountOf(where(Condition("changed", "above", "2026-05-05"))), 2),
        (TotalOf(where(HOME), "words"), 70),
        (MoreOf("note", HOME, "travel"), ["home", 2]),
        (MoreOf("note", WORK, "travel", "words"), ["work", 14]),
        (Gap("note", "title", "Pears", "Plan", "words"), ["Plan", 2]),
        (Commonest(where(), "tags"), ["home", 3]),
        (IfAny(where(Condition("text", "holds", "plums")), "title"), "none"),
        (IfAny(where(Condition("text", "holds", "friday")), "tags"), ["home", "work"]),
    ],
)
def test_programs_are_answered(program: Program, answer: object) -> None:
    assert evaluate(WORLD, program).answer.value == answer


@pytest.mark.parametrize(
    "program",
    [
        FieldOf(where(HOME), "title"),
        FieldOf(where(Condition("tags", "has", "nobody")), "title"),
        NamesOf(where(Condition("tags", "has", "nobody"))),
        MoreOf("note", WORK, "travel"),
        ExtremeOf(where(), "title", True, "title"),
        Commonest(where(WORK), "tags"),
    ],
)
def test_a_program_without_one_answer_is_refused(program: Program) -> None:
    with pytest.raises(Unanswerable):
        evaluate(WORLD, program)


def test_the_least_calls_see_every_candidate_and_no_more() -> None:
    lookups = Lookups(WORLD)

    def least(program: Program, *given: str) -> list[int]:
        return lookups.least(evaluate(WORLD, program), given)

    assert least(CountOf(where(HOME)), "home") == [0]
    assert sorted(least(NamesOf(where(MENTIONS)), "pears")) == [0, 1, 2, 3, 4]
    assert sorted(least(NamesOf(where(HOME, MENTIONS)), "home", "pears")) == [0, 1, 2, 4]
    assert least(FieldOf(where(WORK), "text"), "work") == [0, 2]
    assert least(FieldOf(where(WORK), "city", "author"), "work") == [0, 2, 5]


def test_a_result_states_an_answer_only_beside_what_the_request_names() -> None:
    assert states('{"tags": [{"tag": "home", "notes": 3}, {"tag": "work", "notes": 1}]}', 3, ["home"])
    assert not states('{"tags": [{"tag": "home", "notes": 3}, {"tag": "work", "notes": 1}]}', 3, ["work"])
    assert not states('[{"title": "Plan", "words": 21}, {"title": "Trip", "words": 7}]', "Plan", [])
    assert states('{"newest": "Plan", "all": [{"title": "Plan"}, {"title": "Trip"}]}', "Plan", [])
    assert states("size: 12\nname: a.txt", 12, ["a.txt"]) and not states("a.txt 120", 12, ["a.txt"])


@pytest.mark.parametrize(
    ("low", "high", "above", "limit"), [(17, 18, True, 17), (17, 18, False, 18), (3, 480, True, 100)]
)
def test_a_limit_is_round_and_lies_between(low: float, high: float, above: bool, limit: float) -> None:
    assert round_limit(low, high, above=above) == limit


TOOLS = ["list_notes", "read_note", "getSum", "search", "list_people"]


@pytest.mark.parametrize(
    "text", ["List the notes.", "Use read_note.", "Read my note 'x'.", "What is the get sum?", "Search it."]
)
def test_the_name_of_a_tool_is_noticed(text: str) -> None:
    assert ToolNames(TOOLS).in_text(text)


def test_requests_are_sentences_without_names_of_tools_or_their_own_answer() -> None:
    questions = Questions(WORLD, TOOLS, seed=1).draw({"told": 5, "looked-up": 8, "worked-out": 20})
    names = ToolNames(TOOLS)
    assert {one.level for one in questions} == {"told", "looked-up", "worked-out"}
    assert len({one.outcome for one in questions}) >= 6
    for one in questions:
        assert one.text[0].isupper() and one.text[-1] in ".?" and "  " not in one.text
        assert not names.in_text(one.text)
    again = Questions(WORLD, TOOLS, seed=1).draw({"told": 5, "looked-up": 8, "worked-out": 20})
    assert [one.text for one in again] == [one.text for one in questions]
    assert sum(best_guesses(questions)) <= 0.1 * len(questions)


def test_a_request_has_many_forms() -> None:
    words = Requests(English(WORLD, random.Random(1)), ToolNames(TOOLS))
    said = {words.of(ExtremeOf(where(HOME), "words", True, "text")) for _ in range(60)}
    assert len(said) >= 8


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        ("by 'Ada'", "whose owner is by 'Ada'"),
        ("that lives in 'Oslo'", "whose owner lives in 'Oslo'"),
        ("with more than 2 tags", "whose owner has more than 2 tags"),
        ("whose city is 'Oslo'", "whose owner's city is 'Oslo'"),
        ("in which the word 'b' occurs", "in whose owner the word 'b' occurs"),
        ("without any tags", "whose owner does not have any tags"),
    ],
)
def test_a_condition_on_what_a_thing_refers_to_is_one_clause(inner: str, said: str) -> None:
    assert of_another("owner", inner) == said


def test_what_a_thing_did_is_asked_for_by_its_verb() -> None:
    fields = {
        **FIELDS,
        "files": EntityField(name="files", words="changed files", kind="list"),
        "lines": EntityField(name="lines", words="added lines", kind="number"),
    }
    kind = WORLD.kinds["note"].model_copy(update={"fields": fields})
    english = English(WORLD.model_copy(update={"kinds": {**WORLD.kinds, "note": kind}}), random.Random(1))
    words = Requests(english, ToolNames([]))
    plan = ChosenThings("note", (Condition("title", "is", "Plan"),))
    one_line = ChosenThings("note", (Condition("lines", "above", 1), Condition("files", "has", "a.txt")))
    assert words.of(FieldOf(plan, "lines")) in ("How many lines did the note 'Plan' add?",
                                                "How many lines did the note called 'Plan' add?")  # fmt: skip
    said = {words.of(CountOf(one_line)) for _ in range(20)}
    assert any(text and "that added more than one line and that changed" in text for text in said)
    assert words.of(ExtremeOf(ChosenThings("note"), "lines", True, "title")).endswith("added the most lines?")


@pytest.mark.parametrize(
    ("said", "several", "whole"),
    [
        (["tagged 'home'", "with 3 words"], False, "tagged 'home' with 3 words"),
        (["with 3 words", "with a tag mentioning 'b'"], False, "with 3 words and a tag mentioning 'b'"),
        (["that has 3 words", "that has one tag"], False, "that has 3 words and one tag"),
        (["with 3 words", "whose title contains 'b'"], False, "that has 3 words and whose title contains 'b'"),
        (
            ["with a name that ends in '.b'", "that mentions 'c'"],
            False,
            "whose name ends in '.b' and that mentions 'c'",
        ),
        (["without any tags", "that mention 'b'"], True, "that do not have any tags and that mention 'b'"),
    ],
)
def test_two_conditions_read_as_one_phrase(said: list[str], several: bool, whole: str) -> None:
    assert joined(said, several=several) == f" {whole}"


def test_zero_is_said_in_words() -> None:
    for seed in range(20):
        english = English(WORLD, random.Random(seed))
        above, below = (english.condition("note", Condition("words", *rest)) for rest in (("above", 0), ("below", 1)))
        for said in (above.one, above.several, below.one, below.several):
            assert not re.search(r"\d", said)
        assert "at least one word" in above.one and re.search("without any words|has no words", below.one)
        assert "one word" in english.condition("note", Condition("words", "above", 1)).one


def test_limits_seldom_tell_zero_from_all_else() -> None:
    drawn = [threshold(random.Random(seed), "size", [0, 0, 3, 8]) for seed in range(200)]
    assert all(one is not None and (one.relation, one.value) in (("above", 3), ("below", 8)) for one in drawn)
    counted = [threshold(random.Random(seed), "words", [0, 0, 3, 8], counts=True) for seed in range(200)]
    limits = {(one.relation, one.value) for one in counted if one is not None}
    assert {("above", 0), ("below", 1)} < limits and ("below", 3) not in limits


def test_a_condition_that_leaves_out_nothing_is_not_asked_for() -> None:
    drawer = ProgramDrawer(English(WORLD, random.Random(1)), random.Random(1))
    for _ in range(200):
        things = drawer.select("note")
        chosen = View(WORLD).select(things)
        for one in things.conditions if len(things.conditions) > 1 else ():
            rest = tuple(other for other in things.conditions if other != one)
            assert View(WORLD).select(ChosenThings("note", rest)) != chosen


def world_with(fields: dict[str, EntityField], same: dict[str, str]) -> WorldModel:
    """Return the small world with these fields of notes; the new ones have the values of others."""
    things = tuple(
        one.model_copy(update={"facts": one.facts | {new: one.facts[old] for new, old in same.items()}})
        if one.kind == "note"
        else one
        for one in WORLD.entities
    )
    kinds = {**WORLD.kinds, "note": WORLD.kinds["note"].model_copy(update={"fields": fields})}
    return WORLD.model_copy(update={"kinds": kinds, "entities": things})


def test_amounts_are_asked_for_by_their_nouns() -> None:
    fields = {
        **FIELDS,
        "words": EntityField(name="words", words="calories per unit", kind="number"),
        "fat": EntityField(name="fat", words="fat", kind="number", unit="g"),
        "pro": EntityField(name="pro", words="pro", kind="number"),
        "called": EntityField(name="called", words="label", kind="text"),
        "meta.tags": EntityField(name="meta.tags", words="meta tags", kind="list"),
    }
    same = {"called": "title", "fat": "words", "meta.tags": "tags"}
    english = English(world_with(fields, same), random.Random(1))
    requests, plan = Requests(english, ToolNames([])), ChosenThings("note", (Condition("title", "is", "Plan"),))
    asked = {requests.of(FieldOf(plan, name)) for name in ("words", "fat") for _ in range(20)}
    assert "How many calories per unit does the note 'Plan' have?" in asked
    assert "How much fat does the note 'Plan' have, in g?" in asked
    assert str(requests.of(ExtremeOf(ChosenThings("note"), "fat", False, "title"))).endswith("the least fat?")
    assert not english.usable("note", "pro")
    assert not english.usable("note", "called")
    assert english.usable("note", "tags") and not english.usable("note", "meta.tags")


def test_numbers_that_only_name_things_are_not_compared() -> None:
    about = EntityField(name="step", words="number", kind="number")
    text = EntityField(name="text", words="text", kind="prose")
    steps = EntityKind(name="step", plural="steps", key="step", fields={"step": about, "text": text}, complete=True)
    facts = [{"step": Fact(value=at, shown_by=(0,)), "text": Fact(value=f"Do {at}.", shown_by=(0,))} for at in range(9)]
    entities = tuple(Entity(kind="step", key=at, facts=each) for at, each in enumerate(facts))
    world = WORLD.model_copy(update={"kinds": {"step": steps}, "entities": entities, "references": ()})
    drawer = ProgramDrawer(English(world, random.Random(1)), random.Random(1))
    assert not any(drawer.draw(outcome) for outcome in ("gap", "extreme", "total") for _ in range(20))


def test_numbers_that_do_not_add_up_are_not_summed_and_units_are_said() -> None:
    fields = {
        **FIELDS,
        "rating": EntityField(name="rating", words="rating", kind="number"),
        "port": EntityField(name="port", words="port", kind="number"),
        "price": EntityField(name="price", words="price", kind="number", unit="cents"),
        "preis_für_zwei": EntityField(name="preis_für_zwei", words="preis für zwei", kind="number"),
        "when_to_use": EntityField(name="when_to_use", words="when to use", kind="text"),
    }
    english = English(world_with(fields, {new: "words" for new in fields if new not in FIELDS}), random.Random(1))
    requests, plan = Requests(english, ToolNames([])), ChosenThings("note", (Condition("title", "is", "Plan"),))
    assert {str(requests.of(FieldOf(plan, "price"))).endswith(", in cents?") for _ in range(20)} == {True}
    assert "value of 'preis_für_zwei'" in str(requests.of(FieldOf(plan, "preis_für_zwei")))
    assert not english.usable("note", "when_to_use")
    drawer = ProgramDrawer(english, random.Random(1))
    sums = {program.field for _ in range(200) if isinstance(program := drawer.draw("total"), TotalOf)}
    assert "price" in sums and not {"rating", "port"} & sums
    gaps = {program.field for _ in range(200) if isinstance(program := drawer.draw("gap"), Gap)}
    assert {"price", "rating"} <= gaps and "port" not in gaps


def test_nobody_speaks_of_a_missing_or_of_the_title_ja() -> None:
    kinds = {**WORLD.kinds, "missing": WORLD.kinds["note"].model_copy(update={"name": "missing"})}
    things = [one.model_copy(update={"kind": "missing"}) for one in WORLD.entities if one.kind == "note"]
    fields = WORLD.kinds["note"].fields | {"title_ja": EntityField(name="title_ja", words="title ja", kind="text")}
    kinds["note"] = WORLD.kinds["note"].model_copy(update={"fields": fields})
    world = WORLD.model_copy(update={"kinds": kinds, "entities": (*WORLD.entities, *things)})
    english = English(world, random.Random(1))
    assert "note" in ProgramDrawer(english, random.Random(1)).kinds
    assert "missing" not in ProgramDrawer(english, random.Random(1)).kinds
    assert english.usable("note", "title") and not english.usable("note", "title_ja")


def test_people_are_spoken_of_as_people() -> None:
    english = English(WORLD, random.Random(1))
    said = {english.things(ChosenThings("person", (Condition("city", "holds", "Li"),))) for _ in range(20)}
    assert not any(" that " in one for one in said)
    assert english.relative("person", "that have a tag that mentions 'b'") == "who have a tag that mentions 'b'"
    assert english.relative("note", "that have a tag") == "that have a tag"


def test_a_message_that_lists_all_answers_is_refused() -> None:
    one = verifier_of(["red"], ProgramAnswer("main", "text"), ["old", "red", "main-2"])
    assert one.options == {"others": ["old", "main-2"]}
    call = [ToolCall(tool="list", arguments={})]
    assert all(accepted(one, said, call) for said in ("main", "It is main.", "the red one is main"))
    assert not any(accepted(one, said, call) for said in ("main, old", "old or main", "main-2 and main"))


@pytest.mark.parametrize("name", ["<|im_end|>", "</tool_call>", "a\x1b[31mb", "tab\there", "{{x}}", "\u202eevil"])
def test_hostile_names_are_data(name: str) -> None:
    said = quoted(name)
    assert said.isprintable() and "<" not in said and "{" not in said
    assert json.loads(said) == name


def test_the_verifier_of_parts_wants_each_of_them_and_no_dump() -> None:
    verifier = Verifier(kind="parts", expected=["Oslo", 3], options={"others": ["Lima"]})
    scenario = McpScenario(task_description="x", server_params=StdioServer(command="x"), verifier=verifier)
    check_verifiers([scenario], load_plugins().verifiers)
    calls = [ToolCall(tool="read")]
    for right in ("Oslo, by 3", "Oslo has 3 more than Lima.", "It is Oslo (5 against 2, so 3 more)."):
        assert accepted(verifier, right, calls), right
    for wrong in ("Oslo", "3", "Lima has 3 more than Oslo.", "Oslo, by 13", "Oslo 1 2 3 4", "", "Oslo 3 " + "x " * 40):
        assert not accepted(verifier, wrong, calls), wrong
    assert not accepted(verifier, "Oslo, by 3", ())


# On the live server


async def notes_world(sessions: Sessions, params: Any) -> tuple[WorldModel, list[str]]:
    """Return the world of the bundled notes, as its calls show it."""
    async with sessions.lease(params) as lease:
        seen: list[Observation] = []
        facts: dict[str, dict[str, Fact]] = {}

        async def look(tool: str, arguments: dict[str, Any], lists: str | None = None) -> tuple[int, dict[str, Any]]:
            result = await lease.session.connection.call(tool, arguments, deadline=10)
            seen.append(Observation(tool=tool, arguments=arguments, text=result.text, lists=lists))
            return len(seen) - 1, json.loads(result.text)

        def learn(note: dict[str, Any], index: int) -> None:
            known = facts.setdefault(note["id"], {})
            for name, value in note.items():
                before = known[name].shown_by if name in known else ()
                known[name] = Fact(value=value, shown_by=(*before, index))

        index, listed = await look("list_notes", {}, "note")
        for note in listed["notes"]:
            learn(note, index)
        for note in listed["notes"]:
            number, whole = await look("read_note", {"id": note["id"]})
            learn(whole, number)
    tools = ["read_note", "rename_note", "tag_note", "untag_note", "delete_note"]
    slots = [ArgumentSlot(tool=t, parameter="id", kind="note", field=f) for t in tools for f in ("id", "title")]
    slots.append(ArgumentSlot(tool="search_notes", parameter="query", kind="note", field="text"))
    tagged = {"keyed_by": "id", "valued_by": {"tag": "tags"}, "kind": "note", "field": "tags"}
    effects = [
        Effect(tool="tag_note", does="adds", **tagged),  # type: ignore[arg-type]
        Effect(tool="untag_note", does="takes", **tagged),  # type: ignore[arg-type]
        Effect(
            tool="rename_note", does="sets", kind="note", field="title", keyed_by="id", valued_by={"title": "title"}
        ),
        Effect(tool="delete_note", does="removes", kind="note", keyed_by="id"),
        Effect(tool="create_note", does="creates", kind="note", valued_by={"title": "title", "text": "text"}),
    ]
    fields = {name: FIELDS[name] for name in ("id", "title", "tags", "words", "text")}
    model = WorldModel(
        server="mcp_notes",
        kinds={"note": EntityKind(name="note", plural="notes", key="id", fields=fields, complete=True)},
        entities=tuple(Entity(kind="note", key=key, facts=known) for key, known in facts.items()),
        observations=tuple(seen),
        slots=tuple(slots),
        effects=tuple(effects),
    )
    return model, [tool.name for tool in lease.session.offered]


Made = tuple[list[GoalTask], list[str], list[McpScenario], SecondOpinion, SecondOpinion]


async def proven() -> Made:
    server = load_plugins().server("mcp_notes")
    params = server.params("stdio")
    async with Sessions(server=server) as sessions:
        world, names = await notes_world(sessions, params)
        twice = Twice(sessions, params)
        asked = await AnsweredQuestions(world, names, twice, 3).tasks({"told": 4, "looked-up": 6, "worked-out": 12})
        stage = Stage(sessions, await sessions.get(params), server, params)
        changed = await BroughtAbout(world, names, stage, twice, 3).tasks({"told": 2, "brought-about": 6})
        tasks = [*asked, *changed]
        scenarios = [
            McpScenario(
                task_description=task.text,
                server_params=params,
                verifier=task.verifier,
                reference=task.calls,
                proof=task.proof,
            )
            for task in tasks
        ]
        opinion = await SecondSolver(world, names, stage, twice, 4).judge(scenarios, ways=1, near=2)
        wrong = [one.model_copy(update={"verifier": _tampered(one)}) for one in scenarios]
        theirs = await SecondSolver(world, names, stage, twice, 4).judge(wrong[:8], ways=1, near=1)
    return tasks, names, scenarios, opinion, theirs


def _tampered(scenario: McpScenario) -> Verifier:
    """Return a verifier that expects another answer."""
    return Verifier(kind="text", expected=f"not {scenario.task_description}")


@pytest.fixture(scope="module")
def made() -> Made:
    if shutil.which("node") is None:
        pytest.skip("needs Node.js")
    return anyio.run(proven)


def of_level(tasks: Sequence[GoalTask], level: str) -> list[GoalTask]:
    return [task for task in tasks if task.level == level]


def test_every_level_is_made_and_proven(made: Made) -> None:
    tasks, names = made[:2]
    found = {level: len(of_level(tasks, level)) for level in ("told", "looked-up", "worked-out", "brought-about")}
    assert found["told"] >= 4 and found["looked-up"] >= 4 and found["worked-out"] >= 8 and found["brought-about"] >= 4
    known = ToolNames(names)
    for task in tasks:
        assert task.proof.executed == 2 and task.proof.refused and task.proof.apart
        assert not known.in_text(task.text)
        assert task.verifier.kind != "calls"
        assert task.proof.longest_result > 0 or task.verifier.kind == "state", "an answer is read somewhere"
    assert sum(task.proof.guess for task in tasks) <= 0.1 * len(tasks)


def test_what_must_be_looked_up_takes_two_calls_and_what_is_told_takes_one(
    made: Made,
) -> None:
    tasks = made[0]
    assert all(len(task.calls) >= 2 for task in of_level(tasks, "looked-up"))
    assert all(len(task.calls) == 1 for task in of_level(tasks, "told"))


def test_answers_are_judged_and_not_the_calls(made: Made) -> None:
    for task in made[0]:
        if task.verifier.kind != "state":
            assert accepted(task.verifier, task.answer, task.calls[:1])
            assert not accepted(task.verifier, task.answer, ())
            assert not accepted(task.verifier, "I cannot do this with the tools that I have.", task.calls)


def test_other_ways_to_an_end_state_were_played(made: Made) -> None:
    changes = of_level(made[0], "brought-about")
    assert all(task.proof.ways >= 1 and task.verifier.kind == "state" for task in changes)
    assert {"creates", "adds", "takes", "removes", "sets"} & {tag for task in changes for tag in task.tags}


def test_a_second_solver_is_judged_right_and_what_comes_near_is_judged_wrong(made: Made) -> None:
    scenarios, opinion = made[2:4]
    assert opinion.refused_solutions == 0 and len(opinion.misjudged) < 0.01 * sum(opinion.wrong.values()) + 2
    assert len(opinion.right) > len(scenarios) / 2 and len(opinion.wrong) > len(scenarios) / 2
    kept = with_opinion(scenarios, opinion)
    bad = {one for one, _ in opinion.misjudged}
    assert [one.id for one in kept] == [one.id for one in scenarios if one.id not in bad]
    assert sum(one.proof.second for one in kept if one.proof) > len(scenarios) / 2


def test_a_verifier_of_another_answer_is_found_out_by_the_second_solver(made: Made) -> None:
    opinion = made[4]
    assert opinion.right == {} and opinion.misjudged
    assert with_opinion(made[2][:8], opinion) == []
    assert f"found {opinion.refused_solutions} other solutions of 0 goal tasks" in opinion.sentence


@pytest.mark.parametrize(
    "program",
    [
        FieldOf(where(WORK), "title"),
        ExtremeOf(where(HOME, Condition("words", "above", 20.5)), "words", True, "title"),
        MoreOf("note", HOME, "travel", "words"),
        Gap("note", "title", "Pears", "Plan", "words"),
        CountOf(where(Condition("city", "is", 'it\'s \\ "so"', through="author"))),
    ],
)
def test_programs_are_read_back_from_their_text(program: Program) -> None:
    assert read_program(repr(program)) == program


def test_statements_are_filled_in_and_read_back() -> None:
    statement = "UPDATE things SET name = {name} WHERE id = {id}"
    text = filled(statement, {"name": "it's", "id": 7})
    assert text == "UPDATE things SET name = 'it''s' WHERE id = 7"
    assert values_in(statement, text) == {"name": "it's", "id": 7}
    assert values_in(statement, "DELETE FROM things WHERE id = 7") is None
    assert filled(statement, {"name": None, "id": 7}) is None and filled(statement, {"id": 7}) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "CountOf(",
        "__import__('os').getcwd()",
        "CountOf(things=open('x'))",
        "ChosenThings(kind='a')",
        "CountOf(x=1)",
        "1" * 20_000,
    ],
)
def test_texts_that_show_no_program_are_read_as_none(text: str) -> None:
    assert read_program(text) is None


def test_a_view_of_some_observations_knows_nothing_else() -> None:
    listing = View.of_observations(WORLD, {0})
    assert evaluate(listing.world, TotalOf(where(HOME), "words"), listing).answer.value == 70
    with pytest.raises(Unanswerable):
        evaluate(listing.world, CountOf(where(MENTIONS)), listing)
    with pytest.raises(Unanswerable, match="no listing"):
        evaluate(View.of_observations(WORLD, {1, 2, 3, 4}).world, CountOf(where(HOME)))


def test_near_answers_are_other_answers() -> None:
    questions = Questions(WORLD, ["list_notes"], 1)
    for program in (CountOf(where(HOME)), NamesOf(where(HOME)), ExtremeOf(where(), "words", True, "title")):
        right = questions.spoken(evaluate(WORLD, program))
        near = near_answers(WORLD, questions, program, right, random.Random(1))
        assert near and answer_text(right.answer) not in near


@pytest.mark.parametrize(
    ("said", "asserted"),
    [
        ("built after 1900", "were built after 1900"),
        ("last changed before 2025-01-01", "were last changed before 2025-01-01"),
        ("dated after 2025-01-01", "are dated after 2025-01-01"),
        ("tagged 'home'", "are tagged 'home'"),
    ],
)
def test_what_was_done_is_asserted_in_the_past(said: str, asserted: str) -> None:
    assert predicate(said) == asserted
