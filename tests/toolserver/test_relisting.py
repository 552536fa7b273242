"""Servers that change their tools: the outcome of later calls, and the number of listings."""

import asyncio

import pytest

from mcp_rl.errors import SchemaChanged, ServerFault
from mcp_rl.toolserver.connection.connection import connect
from mcp_rl.toolserver.connection.deadlines import Deadlines
from mcp_rl.toolserver.tools.listing import Tool
from mcp_rl.toolserver.tools.relisting import listing_change
from tests.toolserver.changing_http import TRANSPORTS, reached, serving
from tests.toolserver.changing_server import TOOLS, tool

PATIENT = Deadlines(spawn=120, initialize=120, list=60, call=60, close=5)
LIST_CHANGED = "notifications/tools/list_changed"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_added_tool_stops_new_calls_but_not_those_in_flight(transport):
    with reached(transport) as params:
        async with connect(params, deadlines=PATIENT, name="changing") as connection:
            before = list(connection.tools)
            in_flight = asyncio.create_task(connection.call("work", {"seconds": 0.5}))
            await asyncio.sleep(0.1)
            assert (await connection.call("grow", {})).text == "done"
            with pytest.raises(
                SchemaChanged, match=r"^The server changing has added 'more6' since .*--allow-schema-ch"
            ):
                await connection.call("echo", {})
            assert (await in_flight).text == "done"
            assert connection.listing_changed == "The server changing has added 'more6' since its tools were listed."
            assert connection.alive
            assert connection.tools == before


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_where_a_change_is_allowed_calls_go_on_with_a_new_list(transport):
    with reached(transport) as params:
        async with connect(params, deadlines=PATIENT, allow_schema_change=True) as connection:
            before = connection.tools
            await connection.call("grow", {})
            assert (await connection.call("more6", {})).text == "done"
            assert [tool.name for tool in connection.tools if tool not in before] == ["more6"]
            assert len(before) == len(TOOLS)
            assert "more6" in (connection.listing_changed or "")


async def test_a_change_announced_between_calls_is_noticed():
    for transport in ("sse", "streamable-http"):
        with serving(transport) as (server, params):
            async with connect(params, deadlines=PATIENT) as connection:
                server.service.tools = TOOLS[1:]
                async with asyncio.timeout(60):
                    while connection.listing_changed is None:
                        server.tell(LIST_CHANGED)
                        await asyncio.sleep(0.1)
                assert "has removed 'echo'" in connection.listing_changed
                with pytest.raises(SchemaChanged):
                    await connection.call("write", {})
                assert not server.service.calls


async def test_a_flood_of_announcements_is_read_a_few_times():
    with reached("stdio") as params:
        async with connect(params, deadlines=PATIENT) as connection:
            await connection.call("announce", {"times": 1000})
            assert (await connection.call("echo", {"text": "on"})).text == "on"
            assert connection.listing_changed is None
            assert 2 <= int((await connection.call("listings", {})).text) <= 6


async def test_a_change_that_is_taken_back_is_none():
    with serving("streamable-http") as (server, params):
        async with connect(params, deadlines=PATIENT) as connection:
            await connection.call("grow", {})
            with pytest.raises(SchemaChanged):
                await connection.call("echo", {})
            server.service.tools = list(TOOLS)
            async with asyncio.timeout(60):
                while connection.listing_changed is not None:
                    server.tell(LIST_CHANGED)
                    await asyncio.sleep(0.1)
            assert (await connection.call("echo", {"text": "back"})).text == "back"


@pytest.mark.parametrize("transport", ["sse", "streamable-http"])
async def test_a_server_back_with_another_schema_gets_no_calls(transport):
    with serving(transport) as (server, params):
        async with connect(params, deadlines=PATIENT) as connection:
            await connection.call("echo", {})
            server.forget_sessions()
            await asyncio.sleep(0.3)
            changed = tool("write", "Another description.")
            server.service.tools = [TOOLS[0], changed, *TOOLS[2:]]
            with pytest.raises(SchemaChanged, match="has changed 'write'"):
                await connection.call("write", {})
            assert server.service.calls == ["echo"]
            assert server.sessions == 2


async def test_an_announced_change_without_a_listing_ends_the_session():
    with serving("streamable-http") as (server, params):
        async with connect(params, deadlines=PATIENT, stateful=True) as connection:
            server.service.refuses.add("tools/list")
            await connection.call("announce", {"times": 1})
            with pytest.raises(ServerFault, match=r"did not list them: no tools/list today"):
                await connection.call("write", {})
            assert not connection.alive
            assert server.service.calls == ["announce"]


def test_listings_differ_only_where_a_model_sees_it():
    def described(name, text="", schema=None, **more):
        return Tool(name, text, schema or {"type": "object"}, **more)

    one, two = described("one"), described("two")
    assert listing_change([one, two], [two, one]) is None
    assert listing_change([one], [described("one", annotations={"readOnlyHint": True})]) is None
    assert listing_change([one], [described("one", schema={"type": "object", "$comment": "for people"})]) is None
    assert listing_change([one], [described("one", "Says what it does.")]) == "has changed 'one'"
    assert (
        listing_change([one], [described("one", schema={"type": "object", "required": ["a"]})]) == "has changed 'one'"
    )
    assert listing_change([one], [two]) == "has added 'two' and removed 'one'"
    many = [described(f"t{n}") for n in range(8)]
    assert listing_change(many, [one]) == "has added 'one' and removed 't0', 't1', 't2', 't3', 't4' and 3 more"
