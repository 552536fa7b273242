"""Properties of scenarios that must hold for any server, tested on servers with random schemas."""

import json
import sys
import tempfile
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import anyio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mcp_rl.errors import ScenarioError
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.scenarios.broken import broken_scenarios
from mcp_rl.scenarios.duplicates import near_key
from mcp_rl.scenarios.generate import GenerateRequest, generate
from mcp_rl.scenarios.reference import scenario_calls
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.tool_server import ToolServer

SERVER = Path(__file__).with_name("generated_server.py")
NAMES = ("id", "size", "name", "tag", "limit", "query", "note_id", "kind")

scalars: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({"type": "string"}),
    st.just({"type": "string", "pattern": "^[a-z]{2,5}-[0-9]$"}),
    st.sampled_from([{"type": "string", "format": name} for name in ("date", "email", "uuid", "ipv4")]),
    st.lists(st.sampled_from(["red", "green", "blue", "none"]), min_size=1, max_size=4, unique=True).map(
        lambda values: {"enum": values}
    ),
    st.integers(-20, 5).map(lambda low: {"type": "integer", "minimum": low, "maximum": low + 40}),
    st.just({"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.5}),
    st.just({"type": "boolean", "default": False}),
    st.just({"type": ["integer", "null"]}),
)
nested = st.one_of(
    scalars,
    scalars.map(lambda items: {"type": "array", "items": items, "minItems": 1, "maxItems": 3}),
    st.dictionaries(st.sampled_from(NAMES), scalars, min_size=1, max_size=2).map(
        lambda properties: {"type": "object", "properties": properties, "required": list(properties)}
    ),
)
schemas = st.dictionaries(st.sampled_from(NAMES), nested, min_size=1, max_size=3).flatmap(
    lambda properties: st.sets(st.sampled_from(sorted(properties) or [""])).map(
        lambda required: {
            "type": "object",
            "properties": properties,
            "required": sorted(required & properties.keys()),
            "additionalProperties": False,
        }
    )
)
servers = st.dictionaries(st.sampled_from(["find", "get_size", "read", "count", "describe"]), schemas, min_size=2)
orders = st.tuples(st.sampled_from(["calls", "combinations"]), st.integers(0, 3), st.sampled_from([0.1, 0.25]))


async def generated(
    spec: dict[str, Any], order: GenerateRequest, folder: Path, number: int
) -> tuple[list[McpScenario], int]:
    """Return the scenarios, and the number of those that do not hold when executed again."""
    path = folder / f"{number}.json"
    path.write_text(json.dumps(spec))
    params = StdioServer(command=sys.executable, args=("-S", str(SERVER), str(path)))
    server = ToolServer(f"generated{number}", "Anything.", {"stdio": params})
    try:
        scenarios = (await generate(server, order)).scenarios
    except ScenarioError:  # too few tasks, or too few to hold out
        return [], 0
    async with Sessions(server=server) as sessions:
        return scenarios, len(await broken_scenarios(sessions, params, scenarios))


async def all_generated(
    drawn: Sequence[tuple[dict[str, Any], GenerateRequest]], folder: Path
) -> list[tuple[list[McpScenario], int]]:
    found: list[tuple[list[McpScenario], int]] = [([], 0)] * len(drawn)

    async def one(number: int) -> None:
        found[number] = await generated(*drawn[number], folder, number)

    async with anyio.create_task_group() as tasks:
        for number in range(len(drawn)):
            tasks.start_soon(one, number)
    return found


def tools_of(scenario: McpScenario) -> tuple[str, ...]:
    return tuple(sorted({call.tool for call in scenario.reference}))


@settings(
    max_examples=2, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow]
)  # six servers in each, side by side
@given(st.lists(st.tuples(servers, orders), min_size=6, max_size=6))
def test_generated_scenarios_are_split_distinct_and_hold(
    drawn: list[tuple[dict[str, Any], tuple[Any, int, float]]],
) -> None:
    made = [
        (spec, GenerateRequest(Recipe(60, seed, unsolvable=0.1), val=share, test=share, split_by=by))
        for spec, (by, seed, share) in drawn
    ]
    with tempfile.TemporaryDirectory() as folder:
        found = anyio.run(all_generated, made, Path(folder))
    assert any({s.split for s in scenarios} == {"train", "val", "test"} for scenarios, _ in found)
    for (_, order), (scenarios, failing) in zip(made, found, strict=True):
        assert failing == 0
        assert len({near_key(s) for s in scenarios}) == len(scenarios)
        for one, other in combinations(("train", "val", "test"), 2):
            left, right = ([s for s in scenarios if s.split == name] for name in (one, other))
            assert not set().union(*map(scenario_calls, left)) & set().union(*map(scenario_calls, right))
            assert not {s.task_description.casefold() for s in left} & {s.task_description.casefold() for s in right}
            if order.split_by == "combinations":
                longer = [{tools_of(s) for s in some if len(s.reference) > 1} for some in (left, right)]
                assert not longer[0] & longer[1]
