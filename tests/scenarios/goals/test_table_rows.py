"""Rows of tables that stand on several pages, where the same name may stand on each of them."""

import random
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_rl.config import ToolsConfig
from mcp_rl.explore.entities.builder import world_of
from mcp_rl.explore.entities.world_model import WorldModel
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.scenario import StdioServer
from mcp_rl.scenarios.generate import Generated, GenerateRequest, check_file, generate, generate_file
from mcp_rl.scenarios.goals.lookups import Lookups
from mcp_rl.scenarios.goals.program import (
    ChosenThings,
    Commonest,
    Condition,
    CountOf,
    Evaluated,
    ExtremeOf,
    FieldOf,
    GapAmong,
    MoreOf,
    NamesOf,
    PlacesOf,
    Program,
    TotalOf,
    Unanswerable,
    View,
    evaluate,
)
from mcp_rl.scenarios.goals.questions import Questions
from mcp_rl.scenarios.goals.reading import read_program
from mcp_rl.scenarios.goals.requests import Requests, ToolNames
from mcp_rl.scenarios.goals.rows.drawer import Rows
from mcp_rl.scenarios.goals.words import English
from mcp_rl.toolserver.state import MeasuredState
from mcp_rl.toolserver.tool_server import ToolServer
from tests.scenarios.goals.lighthouse_site import page, served

COMMAND = StdioServer(command=sys.executable, args=["-S", str(Path(__file__).with_name("browser_server.py"))])
STALLS = {
    "Anna": [("plum", 12, 3), ("leek", 40, 8), ("kale", 25, 5)],
    "Bert": [("plum", 15, 4), ("chard", 31, 6), ("quince", 52, 2)],
    "Cora": [("leek", 33, 7), ("kale", 28, 9), ("medlar", 61, 1)],
    "Dirk": [("sorrel", 18, 11), ("plum", 9, 12), ("quince", 47, 10), ("leek", 36, 13)],
    "Enno": [("cress", 22, 14), ("kale", 27, 15), ("chard", 35, 16)],
}


def table(rows: list[tuple[str, int, int]]) -> str:
    cells = "".join(f"<tr><td>{name}</td><td>{price}</td><td>{boxes}</td></tr>" for name, price, boxes in rows)
    return f"<table><tr><th>item</th><th>price</th><th>boxes</th></tr>{cells}</table>"


def market(above: str = "") -> dict[str, str]:
    """Return a site with a page for each stall, and one that says nothing."""
    links = "".join(f'<li><a href="/{name.lower()}.html">{name}</a></li>' for name in STALLS)
    found = {"/": page("The market", f'{above}<ul>{links}<li><a href="/about.html">About</a></li></ul>')}
    found["/about.html"] = page("About", '<p>On Fridays. <a href="/">Home</a></p>')
    return found | {f"/{name.lower()}.html": page(name, table(rows)) for name, rows in STALLS.items()}


def browser(*start: str) -> ToolServer:
    return ToolServer("browser", "", {"stdio": COMMAND}, start=start)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def seen(site: Mapping[str, str]) -> WorldModel:
    async def look() -> WorldModel:
        with served(site) as first:
            return (await world_of(browser(first), None, ToolsConfig())).model

    return anyio.run(look)


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> WorldModel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return seen(market())


def on(world: WorldModel, name: str) -> Condition:
    return Condition("page", "is", next(one.key for one in world.of_kind("page") if one.facts["name"].value == name))


def called(name: str) -> Condition:
    return Condition("item", "is", name)


def items(*conditions: Condition) -> ChosenThings:
    return ChosenThings("item", conditions)


def answer(world: WorldModel, program: Program) -> object:
    return Questions(world, [], 0).spoken(evaluate(world, program)).answer.value


def test_rows_are_told_apart_by_their_page_and_their_name(world: WorldModel) -> None:
    kind = world.kinds["item"]
    assert kind.complete and (kind.within, kind.key) == ("page", "item")
    assert [(one.kind, one.field, one.to) for one in world.references] == [("item", "page", "page")]
    names = {one.key: one.facts["name"].value for one in world.of_kind("page")}
    rows = [{name: fact.value for name, fact in one.facts.items()} for one in world.of_kind("item")]
    told = [(names[row["page"]], row["item"], row["price"], row["boxes"]) for row in rows]
    assert Counter(told) == Counter((stall, *row) for stall, rows in STALLS.items() for row in rows)


def test_a_row_is_read_on_its_page_and_every_row_on_every_page(world: WorldModel) -> None:
    lookups = Lookups(world)

    def calls(program: Program) -> list[str]:
        evaluated: Evaluated = Questions(world, [], 0).spoken(evaluate(world, program))
        made = lookups.calls(lookups.least(evaluated, ["Anna", "Bert", "plum"]), ["Anna", "Bert", "plum"])
        return [str(arguments["url"]).rpartition("/")[2] for _, arguments in made]

    assert calls(FieldOf(items(on(world, "Anna"), called("plum")), "price")) == ["", "anna.html"]
    assert calls(MoreOf("item", on(world, "Anna"), on(world, "Bert").value, "price")) == ["", "anna.html", "bert.html"]
    every = ["", "about.html", *(f"{name.lower()}.html" for name in STALLS)]
    assert sorted(calls(PlacesOf(items(called("plum"))))) == sorted(every)


def test_what_the_rows_answer(world: WorldModel) -> None:
    anna, dirk = on(world, "Anna"), on(world, "Dirk")
    assert answer(world, ExtremeOf(items(anna), "price", False, "item")) == "plum"
    assert answer(world, ExtremeOf(items(called("plum")), "price", False, "page")) == "Dirk"
    assert answer(world, CountOf(items(anna, Condition("price", "above", 20)))) == 2
    assert answer(world, TotalOf(items(dirk), "price")) == 110
    assert answer(world, GapAmong(items(anna), "item", "leek", "kale", "price")) == ["leek", 15]
    assert answer(world, GapAmong(items(called("plum")), "page", anna.value, dirk.value, "price")) == ["Anna", 3]
    assert answer(world, PlacesOf(items(called("plum"), Condition("price", "above", 10)))) == ["Anna", "Bert"]
    assert answer(world, NamesOf(items(dirk, Condition("price", "below", 20)))) == ["sorrel", "plum"]
    with pytest.raises(Unanswerable):
        evaluate(world, FieldOf(items(called("plum")), "price"))  # on three pages


def test_a_solver_that_has_not_read_a_page_knows_nothing_of_its_rows(world: WorldModel) -> None:
    pages = [index for index, one in enumerate(world.observations) if "anna" in str(one.arguments)]
    view = View.of_observations(world, pages)
    assert evaluate(view.world, TotalOf(items(on(world, "Anna")), "price"), view).answer.value == 77
    for program in (TotalOf(items(on(world, "Bert")), "price"), PlacesOf(items(called("plum")))):
        with pytest.raises(Unanswerable):
            evaluate(view.world, program, view)


def test_programs_over_rows_are_read_back(world: WorldModel) -> None:
    for program in (PlacesOf(items(called("plum"))), GapAmong(items(called("plum")), "page", "a", "b", "price")):
        assert read_program(repr(program)) == program


def said(world: WorldModel, program: Program) -> set[str | None]:
    words = Requests(English(world, random.Random(1)), ToolNames([]))
    return {words.of(program) for _ in range(40)}


def test_requests_about_rows(world: WorldModel) -> None:
    anna, bert = on(world, "Anna"), on(world, "Bert")
    plum = items(called("plum"))
    for program, text in (
        (FieldOf(items(anna, called("plum")), "price"), "What is the price of plum on the page 'Anna'?"),
        (FieldOf(items(anna, called("plum")), "boxes"), "According to the page 'Anna', how many boxes does plum have?"),
        (FieldOf(items(anna, Condition("price", "is", 40)), "item"), "Which item on the page 'Anna' costs 40?"),
        (FieldOf(plum, "page"), "On which page is plum listed?"),
        (FieldOf(items(called("medlar")), "price"), "What is the price of medlar? One of the pages lists it."),
        (ExtremeOf(items(anna), "price", False, "item"), "Which item on the page 'Anna' is the cheapest?"),
        (ExtremeOf(plum, "price", False, "page"), "On which page does plum have the lowest price?"),
        (CountOf(items(anna, Condition("price", "above", 20))), "How many items on the page 'Anna' cost more than 20?"),
        (CountOf(plum), "On how many pages is plum listed?"),
        (TotalOf(items(anna), "price"), "What do the prices on the page 'Anna' add up to?"),
        (TotalOf(items(anna), "boxes"), "How many boxes do the items on the page 'Anna' have altogether?"),
        (GapAmong(items(anna), "item", "leek", "kale", "price"),
         "Which has the higher price on the page 'Anna', leek or kale, and by how much?"),
        (GapAmong(plum, "page", anna.value, bert.value, "price"),
         "Does plum cost more on the page 'Anna' or on the page 'Bert', and by how much?"),
        (Commonest(items(), "item"), "Which item is listed on the most pages, and on how many?"),
        (PlacesOf(items(called("plum"), Condition("price", "below", 14))),
         "On which pages does plum cost less than 14?"),
    ):  # fmt: skip
        assert text in said(world, program), (text, said(world, program))


def test_rows_on_the_pages_of_other_things_are_said_to_stand_there() -> None:
    links = "".join(f'<li><a href="/{name.lower()}.html">{name}</a></li>' for name in STALLS)
    rivers = {"/": page("Rivers", f"<h2>Rivers</h2><ul>{links}</ul>")}
    for name, rows in STALLS.items():
        cells = "".join(f"<tr><td>{one.capitalize()} Bridge</td><td>{width}</td></tr>" for one, width, _ in rows)
        rivers[f"/{name.lower()}.html"] = page(name, f"<table><tr><th>Bridge</th><th>Width</th></tr>{cells}</table>")
    world = seen(rivers)
    assert world.kinds["bridge"].within == "river"
    anna = next(one.key for one in world.of_kind("river") if one.facts["name"].value == "Anna")
    plum = Condition("Bridge", "is", "Plum Bridge")
    width = FieldOf(ChosenThings("bridge", (Condition("river", "is", anna), plum)), "Width")
    assert "What is the width of the bridge 'Plum Bridge' on the page of the river 'Anna'?" in said(world, width)
    where = PlacesOf(ChosenThings("bridge", (plum,)))
    assert "On the pages of which rivers is the bridge 'Plum Bridge' listed?" in said(world, where)


def test_people_in_tables_are_named_and_asked_for_as_people() -> None:
    site = {"/": market()["/"]}
    for number, name in enumerate(STALLS):
        cells = "".join(f"<tr><td>{one}</td><td>{age + number}</td></tr>" for one, age in (("Ada", 51), ("Omar", 37)))
        site[f"/{name.lower()}.html"] = page(name, f"<table><tr><th>Member</th><th>Age</th></tr>{cells}</table>")
    world = seen(site)
    anna, ada, omar = on(world, "Anna"), Condition("Member", "is", "Ada"), "Omar"
    members = ChosenThings("member", (anna,))
    assert "Who is older on the page 'Anna', 'Ada' or 'Omar', and by how much?" in said(
        world, GapAmong(members, "Member", "Ada", omar, "Age")
    )
    assert "How old is 'Ada' on the page 'Anna'?" in said(world, FieldOf(ChosenThings("member", (anna, ada)), "Age"))
    old = ChosenThings("member", (anna, Condition("Age", "is", 51)))
    assert "Which member on the page 'Anna' is 51 years old?" in said(world, FieldOf(old, "Member"))


def test_a_name_in_two_spellings_is_not_asked_about() -> None:
    site = market()
    site["/bert.html"] = page("Bert", table([("Plum", 15, 4), ("chard", 31, 6), ("quince", 52, 2)]))
    world = seen(site)
    rows = Rows(English(world, random.Random(1)), world.kinds["item"])
    assert "leek" in rows.named and not {"plum", "Plum"} & set(map(str, rows.named))


def test_a_table_that_is_cut_or_tells_its_rows_not_apart_is_left_out() -> None:
    site = market()
    site["/anna.html"] = page("Anna", f"{table(STALLS['Anna'])}<p>Content truncated. Ask for more.</p>")
    site["/bert.html"] = page("Bert", table([*STALLS["Bert"], ("plum", 14, 2)]))
    world = seen(site)
    assert not world.kinds["item"].complete
    assert len(world.of_kind("item")) == sum(map(len, STALLS.values())) - 6


def test_most_tasks_on_a_site_of_tables_are_looked_up_or_worked_out(tmp_path) -> None:
    out = tmp_path / "tasks.jsonl"
    order = GenerateRequest(Recipe(count=60, seed=0, levels="mixed", unsolvable=0, without_tools=0))

    async def make() -> Generated:
        with served(market()) as first:
            generated = await generate_file(browser(first), out, order)
            checked = await check_file(browser(first), out)
            assert checked.findings == []
            assert checked.opinion is not None and checked.opinion.misjudged == []
            return generated

    generated = anyio.run(make)
    by_level = generated.summary()["levels"]
    assert by_level["looked-up"] + by_level["worked-out"] >= 30 and by_level["told"] >= 8
    for scenario in generated.scenarios:
        assert scenario.level != "told" or str(scenario.reference[0].arguments["url"]) in scenario.task_description


class Visited(dict[str, str]):
    """A site that counts the visits of its pages."""

    def __init__(self, site: Mapping[str, str]) -> None:
        super().__init__(site)
        self.visits: Counter[str] = Counter()

    def get(self, path: str, default: Any = None) -> Any:
        self.visits[path] += 1
        return super().get(path, default)


def test_a_page_is_read_in_two_episodes_and_no_more() -> None:
    site = Visited(market())
    known = {"isolation": "shared", "measured": MeasuredState(kept="nothing", listing="")}
    order = GenerateRequest(Recipe(count=12, seed=1, levels="told=0.3,looked-up=0.4,worked-out=0.3", unsolvable=0))

    async def make() -> Generated:
        with served(site) as first:
            return await generate(replace(browser(first), **known), order)

    assert len(anyio.run(make).scenarios) >= 8
    assert {path: count for path, count in site.visits.items() if path in market()} == dict.fromkeys(market(), 2)
