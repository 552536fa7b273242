"""Arguments with a meaning are valid where they are taken."""

import random
import re
import sys
from pathlib import Path

import anyio
import pytest

from mcp_rl.explore.meant import meant
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.scenario import StdioServer
from mcp_rl.scenarios.generate import GenerateRequest, generate
from mcp_rl.toolserver.state import MeasuredState
from mcp_rl.toolserver.tool_server import ToolServer

SERVER = Path(__file__).with_name("meaning_server.py")


@pytest.mark.parametrize(
    "parameter, description, about, shape",
    [
        ("start cell", "", "write data to excel", r"[AB]\d"),
        ("anchor", "Where the chart goes", "create chart", r"[A-D]\d"),
        ("range", "such as A1:C10", "read sheet data", r"[A-Z]\d:[A-Z]\d"),
        ("from unit", "Unit to convert from", "convert temperature", "celsius|fahrenheit|kelvin"),
        ("pattern", "Regular expression", "test", None),
        ("schedule", "A cron expression", "next runs", r"(?:\S+ ){4}\S+"),
        ("expression", "Cron expression (5 fields)", "cron parse", r"(?:\S+ ){4}\S+"),
        ("expression", "What to work out", "evaluate", r"[\d+*/() -]+"),
        ("duration", "ISO 8601 duration, like PT5M", "parse", r"P.+|\d+\w+"),
        ("timeout", "How long to wait", "run", r"(?:\d+[smhd])+"),
        ("subnet", "", "hosts of", r"[\d.]+/\d+"),
    ],
)
def test_a_meaning_gives_valid_values(parameter: str, description: str, about: str, shape: str | None) -> None:
    found = {meant(parameter, description, about, random.Random(seed)) for seed in range(20)}
    assert len(found) > 1
    for value in found:
        assert value is not None and (re.compile(value) if shape is None else re.fullmatch(shape, value))


@pytest.mark.parametrize(
    "parameter, description",
    [("name", "Who it is"), ("from", "The data node where it starts"), ("range", "How far"), ("column", "Of a house")],
)
def test_ordinary_words_have_none(parameter: str, description: str) -> None:
    assert meant(parameter, description, "build", random.Random(0)) is None


def test_every_tool_that_takes_such_values_gets_a_task() -> None:
    launch = StdioServer(command=sys.executable, args=("-S", str(SERVER)))
    server = ToolServer(name="meaning", description="", transports={"stdio": launch}, isolation="shared")
    made = anyio.run(generate, server, GenerateRequest(Recipe(count=60, max_steps=1)))
    assert made.unused_tools == ()
    clocks = [s for s in made.scenarios if s.reference and s.reference[0].arguments == {"action": "count"}]
    assert clocks and all(s.verifier is not None and s.verifier.kind == "calls" for s in clocks)


def test_a_tool_that_never_worked_while_it_was_measured_is_tried_again() -> None:
    launch = StdioServer(command=sys.executable, args=("-S", str(SERVER)))
    unsure = MeasuredState(kept="unsure", listing="", reading=("clock",))
    server = ToolServer(
        name="meaning", description="", transports={"stdio": launch}, isolation="per-rollout", measured=unsure
    )
    made = anyio.run(generate, server, GenerateRequest(Recipe(count=40, max_steps=1)))
    assert "clock" not in made.unused_tools and len(made.unused_tools) < 3
