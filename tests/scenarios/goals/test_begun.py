"""Tasks on a server that shows nothing by itself: its pages are found from the address that the user names."""

import random
import sys
from pathlib import Path

import anyio
import pytest

from mcp_rl.config import ToolsConfig
from mcp_rl.errors import ScenarioError
from mcp_rl.explore.entities.builder import BuiltWorld, world_of
from mcp_rl.explore.entities.caller import Answered
from mcp_rl.explore.entities.forms.page_form import addresses_in, read_page
from mcp_rl.explore.entities.forms.reading import form_of
from mcp_rl.explore.entities.sightings import Reader
from mcp_rl.explore.entities.world_model import WorldModel
from mcp_rl.explore.sample import Sampler
from mcp_rl.explore.values_seen import ValuePool
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.scenario import GoalProof, StdioServer, ToolCall, Verifier
from mcp_rl.scenarios.generate import Generated, GenerateRequest, check_file, generate_file
from mcp_rl.scenarios.goals.begun import Beginnings
from mcp_rl.scenarios.goals.task import GoalTask
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.toolserver.tools.listing import Tool
from tests.scenarios.goals.lighthouse_site import LIGHTS, served

COMMAND = StdioServer(command=sys.executable, args=["-S", str(Path(__file__).with_name("browser_server.py"))])


def browser(*start: str) -> ToolServer:
    return ToolServer("browser", "", {"stdio": COMMAND}, start=start)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_pages_are_followed_from_the_first_one_and_their_lists_and_pairs_are_things() -> None:
    async def look() -> BuiltWorld:
        with served() as first:
            return await world_of(browser(first), None, ToolsConfig())

    built = anyio.run(look)
    world = built.model
    assert world.kinds["lighthouse"].complete and world.kinds["keeper"].complete
    seen = {one.facts["name"].value: one.facts for one in world.of_kind("lighthouse")}
    for name, coast, year, height, steps, keeper, colour in LIGHTS:
        facts = {
            field: seen[name][field].value for field in ("Coast", "Built", "Height m", "Steps", "Keeper", "Colour")
        }
        assert list(facts.values()) == [coast, year, height, steps, keeper, colour]
    assert world.kinds["lighthouse"].fields["Height m"].unit == "m"
    assert [(one.kind, one.field, one.to) for one in world.references] == [("lighthouse", "Keeper", "keeper")]
    assert not any("elsewhere" in str(one.arguments) for one in world.observations)  # no other site is asked


def test_tasks_on_a_site_say_where_it_begins_and_hold(tmp_path) -> None:
    out = tmp_path / "tasks.jsonl"
    levels = "told=0.3,looked-up=0.4,worked-out=0.3"
    order = GenerateRequest(Recipe(count=20, seed=3, levels=levels, unsolvable=0, without_tools=0))

    async def make() -> tuple[str, Generated]:
        with served() as first:
            generated = await generate_file(browser(first), out, order)
            checked = await check_file(browser(first), out)
            assert checked.findings == []
            assert checked.opinion is not None and checked.opinion.misjudged == []
            return first, generated

    first, generated = anyio.run(make)
    by_level = generated.summary()["levels"]
    assert by_level["looked-up"] >= 4 and by_level["worked-out"] >= 4 and by_level["told"] >= 4
    for scenario in generated.scenarios:
        assert first in scenario.task_description
        assert "load" not in scenario.task_description
        assert scenario.level != "told" or str(scenario.reference[0].arguments["url"]) in scenario.task_description


def test_a_server_that_needs_an_address_says_which_option_names_it(tmp_path) -> None:
    order = GenerateRequest(Recipe(count=5, seed=3, levels="spelled"))
    with pytest.raises(ScenarioError, match=r"load takes the address of a page.*such as --start https://example.com/"):
        anyio.run(generate_file, browser(), tmp_path / "tasks.jsonl", order)


def test_results_without_links_are_pages_only_where_other_results_of_the_tool_lead_to_them() -> None:
    leads, ends = "* [Aare](/aare.html)", "Depth: 12 m\nArea: 3 ha"
    assert form_of([ends, ends]) == "pairs"
    assert form_of([leads, ends, ends], of_addresses=True) == "page"
    schema = {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]}
    reader = Reader({"load_markdown": Tool("load_markdown", "Load a page.", schema)})
    answers = [
        Answered("load_markdown", {"url": f"http://localhost/{number}"}, text)
        for number, text in enumerate([leads, ends, ends])
    ]
    reader.learn_forms(answers)
    listed, depth, _ = reader.sightings(answers)
    assert (listed.noun, listed.records) == ("page", ({"name": "Aare", "url": "http://localhost/aare.html"},))
    assert (depth.several, depth.records) == (False, ({"Depth m": 12, "Area ha": 3},))


def test_arguments_are_addresses_of_the_site_alone() -> None:
    pool = ValuePool()
    pool.observe_start("http://localhost/")
    pool.observe({"url": "http://localhost/"}, "[one](/one.html) [two](https://elsewhere.example/)")
    schema = {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]}
    sampler = Sampler("load", schema, pool)
    drawn = {draw.arguments["url"] for seed in range(30) if (draw := sampler.draw(random.Random(seed)))}
    assert drawn == {"http://localhost/", "http://localhost/one.html"}


def test_a_heading_may_be_underlined() -> None:
    lakes, *others = read_page("The north\n=========\n\nLakes\n-----\n\n*   [Aare](/aare.html)\n")
    assert lakes.name == "lakes" and not others


def test_the_rows_of_a_table_are_called_after_its_first_column_or_the_plural_above_it() -> None:
    def noun(columns: str, above: str = "Fresh today:") -> str:
        return read_page(f"{above}\n\n{columns}\n| --- | --- |\n| plum | 4 |\n| leek | 2 |\n")[-1].name

    assert noun("| item | price |") == "items" and noun("| Product name | Price |") == "products"
    assert noun("| City | People |") == "cities" and noun("| Name | Price |") == "entries"
    assert noun("| Name | Price |", "## Fruits") == "fruits"
    assert noun("| item | price |", "## Prices") == "items"  # a column, and no noun for the rows


def test_columns_of_quantities_hold_numbers_with_their_unit() -> None:
    text = (
        "| Fruit | Price | Weight | Sold | Size |\n| --- | --- | --- | --- | --- |\n"
        "| plum | $4.50 | 12 g | 1,200 | 3 boxes |\n| leek | $2 | 150 g | 80 | 2 m |\n"
    )
    rows = read_page(text)[-1]
    assert [dict(record) for record in rows.records] == [
        {"Fruit": "plum", "Price usd": 4.5, "Weight g": 12, "Sold": 1200, "Size": "3 boxes"},
        {"Fruit": "leek", "Price usd": 2, "Weight g": 150, "Sold": 80, "Size": "2 m"},
    ]


def test_links_to_other_sites_and_those_that_do_something_are_not_followed() -> None:
    page = (
        '[one](two.html#top) <a href="/three?a=1&amp;b=2">3</a> [four](https://other.example/) ![five](five.png) '
        "[six](mailto:a@b) [seven](/account/logout) [eight](/notes?action=delete&id=7) [nine](/how-to-delete)"
    )
    assert addresses_in(page, "http://localhost:80/a/b.html") == [
        "http://localhost:80/a/two.html",
        "http://localhost:80/how-to-delete",
        "http://localhost:80/three?a=1&b=2",
    ]
    pool = ValuePool()
    pool.observe_start("http://localhost:80/")
    pool.observe({"url": "http://localhost:80/a/b.html"}, f"{page} and https://elsewhere.example/x")
    assert set(pool.pages) == {
        "http://localhost:80/",
        "http://localhost:80/a/b.html",
        "http://localhost:80/a/two.html",
        "http://localhost:80/how-to-delete",
        "http://localhost:80/three?a=1&b=2",
    }


def test_links_pairs_and_tables_of_a_page_are_read() -> None:
    text = (
        "# Lakes\n\n## Lakes of the north\n\n* [Aare](/aare.html)\n* [Brienz](brienz.html \"A lake\")\n\n"
        "## Towns\n\n| Name | People |\n| --- | --- |\n| [Thun](/thun) | 43 |\n| Spiez | 12 |\n\n"
        "Depth\n:   1,217 m\n\n|  |  |\n| --- | --- |\n| Area | 48 ha |\n\nSee [the map](/map.html#here) and "
        "[mail](mailto:a@example.com).\n"
    )  # fmt: skip
    subject, *lists = read_page(text)
    assert subject.records == ({"Depth m": 1217, "Area ha": 48},) and not subject.several
    assert {one.name: [dict(record) for record in one.records] for one in lists} == {
        "towns": [
            {"Name": "Thun", "People": 43, "url": "/thun"},
            {"Name": "Spiez", "People": 12},
        ],
        "lakes": [{"name": "Aare", "url": "/aare.html"}, {"name": "Brienz", "url": "brienz.html"}],
        "pages": [{"url": "/thun"}, {"url": "/map.html"}],
    }


def test_a_request_names_files_as_files_and_all_of_them() -> None:
    places = ["/home/ada", "/home/ada/oak.txt", "/home/ada/elm.md"]
    world = WorldModel(server="files", kinds={}, entities=(), observations=(), slots=(), references=())
    begun = Beginnings(world, places, 1)

    def said(*paths: str, name: str = "path", asked: str = "How large is it?") -> str:
        calls = tuple(ToolCall(tool="read", arguments={name: path}) for path in paths)
        proof = GoalProof(program="", executed=2)
        verifier = Verifier(kind="number", expected=3)
        return begun.said(GoalTask(asked, "told", calls, "3", verifier, proof)).text

    assert said("/home/ada/oak.txt") == "How large is it? The file is '/home/ada/oak.txt'."
    both = said("/home/ada/oak.txt", "/home/ada/elm.md")
    assert both == "How large is it? The files are '/home/ada/oak.txt' and '/home/ada/elm.md'."
    assert said("/home/ada/oak.txt", "/home/ada/elm.md", name="file_path") == both
    asked = "Is '/home/ada/oak.txt' larger?"
    assert said("/home/ada/oak.txt", "/home/ada/elm.md", asked=asked) == f"{asked} The file is '/home/ada/elm.md'."
    assert "'/home/ada'." in said("/home/ada/pine.txt", "/home/ada/ash")
