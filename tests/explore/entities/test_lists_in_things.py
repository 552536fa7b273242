"""Entries of lists that repeat their names in several things are told apart by the thing that they stand in, and what
is numbered is called by its number."""

import random
import re
import sys
from pathlib import Path

import anyio
import pytest

from mcp_rl.config import ToolsConfig
from mcp_rl.explore.entities.builder import world_of
from mcp_rl.explore.entities.world_model import WorldModel
from mcp_rl.scenario import StdioServer
from mcp_rl.scenarios.goals.program import ChosenThings, Condition, FieldOf
from mcp_rl.scenarios.goals.questions import Questions
from mcp_rl.scenarios.goals.requests import Requests, ToolNames
from mcp_rl.scenarios.goals.words import English
from mcp_rl.toolserver.tool_server import ToolServer

SERVER = StdioServer(command=sys.executable, args=["-S", str(Path(__file__).with_name("kitchen_server.py"))])


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> WorldModel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        server = ToolServer("kitchen", "", {"stdio": SERVER})
        return anyio.run(lambda: world_of(server, None, ToolsConfig())).model


def test_a_step_is_of_its_recipe(world: WorldModel) -> None:
    kind = world.kinds["step"]
    assert (kind.key, kind.within, kind.complete) == ("step", "recipe", True)
    assert len(world.of_kind("step")) == 12
    second = {
        one.facts["recipe"].value: one.facts["text"].value
        for one in world.of_kind("step")
        if one.facts["step"].value == 2
    }
    assert second == {
        "Plum Pie": "Halve all plums.",
        "Leek Soup": "Boil them in stock.",
        "Rye Bread": "Let it rise in a bowl.",
        "Bean Stew": "Fry onions in oil.",
    }


def test_what_several_things_share_is_one_thing(world: WorldModel) -> None:
    kind = world.kinds["utensil"]
    assert (kind.key, kind.within) == ("name", "")
    assert {one.key: one.facts["grams"].value for one in world.of_kind("utensil")} == {
        "whisk": 80, "ladle": 120, "colander": 310,
    }  # fmt: skip


def test_a_request_about_a_step_names_its_recipe(world: WorldModel) -> None:
    of_soup = (Condition("recipe", "is", "Leek Soup"), Condition("step", "is", 2))
    words = Requests(English(world, random.Random(1)), ToolNames([]))
    asked = {words.of(FieldOf(ChosenThings("step", of_soup), "minutes")) for _ in range(40)}
    assert asked
    assert all(one is not None and "step 2" in one and "'Leek Soup'" in one for one in asked), asked


def test_a_field_that_repeats_another_has_no_words(world: WorldModel) -> None:
    english = English(world, random.Random(1))
    assert english.words("recipe", "course.id") == "course"
    assert english.usable("recipe", "course.id")
    assert not english.usable("recipe", "course.name")


def test_things_are_not_chosen_by_a_number_that_is_their_name(world: WorldModel) -> None:
    assert world.kinds["rule"].key == "rule"
    names = ["list_recipes", "house_rules", "get_recipe", "list_utensils"]
    asked = [one.text for one in Questions(world, names, 3).draw({"worked-out": 60, "told": 20})]
    rules = [text for text in asked if "rule" in text]
    assert rules
    assert not any(re.search(r"(?:above|below|more than|less than|higher|lower) \d", text) for text in rules), rules
