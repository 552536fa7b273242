"""Servers with little or nothing to make tasks of give fewer tasks, and one sentence with what was tried and said."""

import json
import re
import sys
from pathlib import Path

import anyio
import pytest

from mcp_rl.errors import ScenarioError
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.scenarios.generate import GenerateRequest, generate
from mcp_rl.system.notices import noticed_by
from mcp_rl.toolserver.tool_server import ToolServer

SERVER = Path(__file__).with_name("bad_input_server.py")
KINDS = ("empty", "closed", "prose", "numbers", "images", "twins", "hostile", "unset", "unready", "folders")
ORDER = GenerateRequest(Recipe(count=40, levels="mixed"))


class Tried:
    """What was made of each kind of server, and said."""

    def __init__(self) -> None:
        self.made: dict[str, list[McpScenario]] = {}
        self.said: dict[str, list[str]] = {kind: [] for kind in KINDS}

    async def all(self) -> None:
        async with anyio.create_task_group() as tasks:
            for kind in KINDS:
                tasks.start_soon(self.one, kind)

    async def one(self, kind: str) -> None:
        launch = StdioServer(command=sys.executable, args=("-S", str(SERVER), kind))
        server = ToolServer(name=kind, description="", transports={"stdio": launch}, isolation="shared")
        with noticed_by(self.said[kind].append):
            try:
                self.made[kind] = (await generate(server, ORDER)).scenarios
            except ScenarioError as error:
                self.said[kind].append(str(error))


@pytest.fixture(scope="module")
def tried() -> Tried:
    result = Tried()
    anyio.run(result.all)
    return result


@pytest.mark.parametrize(
    "kind, why, example, help",
    [
        ("empty", "answered with nothing", "{} → '[]'", "ut data into the server"),
        ("closed", "refused (for example", "The archive is closed", "ame values that work"),
        ("prose", "its results are only prose", "dark and stormy", "lists things"),
        ("numbers", "its results are only single numbers", "said '42'", "lists things"),
        ("images", "only images", "[image: image/png", "lists things"),
        ("twins", "1 item of twins is left out", "'Rex'", "would allow more"),
        ("hostile", "tasks were made, because", "", "would allow more"),
        (
            "unset",
            "4 of its tools answer",
            "DIARIO_PATH non impostata",
            r"Set DIARIO_PATH under `env`.*server_config\.md",
        ),
        ("unready", "4 of its tools answer", "Please choose a project", "Give it what it asks for"),
    ],
)
def test_one_sentence_says_why_and_what_would_help(tried: Tried, kind: str, why: str, example: str, help: str) -> None:
    (sentence,) = tried.said[kind]
    assert why in sentence and example in sentence and re.search(help, sentence)
    assert (kind in tried.made) == (kind not in ("empty", "closed", "unset", "unready"))


def test_an_image_is_no_answer(tried: Tried) -> None:
    solved = [one for one in tried.made["images"] if one.reference]
    assert {one.verifier.kind for one in solved if one.verifier} == {"calls"}
    assert not any("[image" in one.task_description for one in solved)


def test_a_complaint_that_repeats_the_argument_is_no_answer(tried: Tried) -> None:
    solved = [one for one in tried.made["folders"] if one.reference]
    paths = {str(call.arguments["path"]) for one in solved for call in one.reference if call.arguments}
    assert paths and all(Path(path).is_dir() for path in paths)


def test_of_two_things_of_one_name_nothing_is_asked(tried: Tried) -> None:
    goals = [one for one in tried.made["twins"] if one.proof is not None]
    assert goals and not any("Rex" in one.task_description for one in goals)


def test_hostile_names_are_data_in_a_request(tried: Tried) -> None:
    made = [one for one in tried.made["hostile"] if one.reference]
    requests = [one.task_description for one in made]
    assert not [text for text in requests if re.search(r"<[|/a-z]|[\x00-\x1f\u202e]", text)]
    given = {call.arguments.get("name") for one in made for call in one.reference}
    assert len([name for name in given if name and re.search(r"<[|/a-z]|\x1b|\u202e", name)]) > 2
    told = {
        json.loads(quote) for text in requests for quote in re.findall(r'"(?:[^"\\]|\\.)*\\u00(?:[^"\\]|\\.)*"', text)
    }
    assert told & given, "an escaped name is read back as the name"
