"""Sessions that end unnoticed: the next call gets a new one, and nothing is sent twice."""

import asyncio
import time
from dataclasses import replace
from functools import partial

import psutil
import pytest

from mcp_rl.errors import ServerError, ServerFault
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.toolserver.connection import owner, transport
from mcp_rl.toolserver.connection.call import Refused
from mcp_rl.toolserver.connection.connection import connect
from mcp_rl.toolserver.connection.deadlines import Deadlines
from tests.toolserver.changing_http import reached, serving

PATIENT = Deadlines(spawn=120, initialize=120, list=60, call=60, close=5)
HTTP = ["sse", "streamable-http"]


@pytest.mark.parametrize("kind", HTTP)
async def test_a_session_that_ended_at_rest_is_reopened(kind):
    with serving(kind) as (server, params):
        async with connect(params, deadlines=PATIENT) as connection:
            for _ in range(3):
                server.forget_sessions()
                await asyncio.sleep(0.3)  # the fate of a call that crosses the end would be unknown
                assert (await connection.call("write", {})).text == "done"
        assert server.service.calls == ["write"] * 3
        assert server.sessions == 4


@pytest.mark.parametrize("kind", HTTP)
async def test_a_stateful_session_that_ended_is_not_reopened(kind):
    with serving(kind) as (server, params):
        async with connect(params, deadlines=PATIENT, stateful=True) as connection:
            server.forget_sessions()
            await asyncio.sleep(0.3)
            for _ in range(2):
                with pytest.raises(ServerFault, match=r"lost its session, and the state with it: .+\."):
                    await connection.call("write", {})
            assert not connection.alive
        assert server.service.calls == []


async def test_a_stream_at_rest_is_never_timed_out(monkeypatch):
    monkeypatch.setattr(transport, "sse_client", partial(transport.sse_client, timeout=0.2, sse_read_timeout=0.2))
    with serving("sse") as (server, params):
        async with connect(params, deadlines=PATIENT, stateful=True) as connection:
            await asyncio.sleep(0.8)
            assert (await connection.call("write", {})).text == "done"
        assert server.sessions == 1


@pytest.mark.parametrize("stateful", [False, True])
async def test_a_silently_dropped_stream_is_noticed_before_a_call(monkeypatch, stateful):
    monkeypatch.setattr(owner, "_IDLE", 0.0)
    monkeypatch.setattr(owner, "_PING_SECONDS", 0.5)
    with serving("sse") as (server, params):
        async with connect(params, deadlines=PATIENT, stateful=stateful) as connection:
            server.lost.add("s1")
            if stateful:
                with pytest.raises(ServerFault, match="the state with it: it no longer answers") as fault:
                    await connection.call("write", {})
                assert fault.value.delivered is False
                assert not connection.alive
            else:
                assert (await connection.call("write", {})).text == "done"
        assert server.service.calls == ([] if stateful else ["write"])


@pytest.mark.parametrize("kind", HTTP)
async def test_a_ping_reopens_a_lost_session(kind):
    with serving(kind) as (server, params):
        async with connect(params, deadlines=PATIENT) as connection:
            assert await connection.ping(60)
            server.service.refuses.add("ping")
            assert await connection.ping(60)
            server.forget_sessions()
            assert await connection.ping(60)
            assert server.sessions == 2
            server.service.silent = True
            assert not await connection.ping(0.2)
            server.service.silent = False
            assert await connection.ping(60)
        assert not await connection.ping(60)


@pytest.mark.parametrize("kind", HTTP)
async def test_a_ping_opens_no_session_again_whose_state_mattered(kind):
    with serving(kind) as (server, params):
        async with connect(params, deadlines=PATIENT, stateful=True) as connection:
            assert await connection.ping(60)
            server.forget_sessions()
            assert not await connection.ping(60)
            assert not connection.alive
        assert server.sessions == 1


@pytest.mark.parametrize("kind", HTTP)
async def test_a_server_that_refuses_posts_is_an_error_at_once(kind):
    with serving(kind) as (server, params):
        server.post_status = 503
        with pytest.raises(ServerError, match=r"cannot be used at http://127\.0\.0\.1:\d+/\w+: HTTP status 503"):
            async with connect(params, deadlines=PATIENT):
                pass


async def test_any_request_can_be_sent_and_refusals_are_no_faults():
    with reached("stdio") as params:
        async with connect(params, deadlines=PATIENT) as connection:
            read = await connection.ask("resources/read", {"uri": "note://1"})
            assert read == {"contents": [{"uri": "note://1", "text": "as it is", "of its own": 1}]}
            assert [entry["uri"] for entry in await connection.resources()] == ["note://0", "note://1", "note://2"]
            assert connection.capabilities == {"tools", "resources"}
            assert await connection.prompts() == []
    with serving("sse") as (server, params):
        async with connect(params, deadlines=PATIENT) as connection:
            server.service.refuses |= {"resources/read", "resources/list"}
            with pytest.raises(Refused, match="no resources/read today") as refused:
                await connection.ask("resources/read", {"uri": "note://1"})
            assert (refused.value.code, refused.value.delivered) == (-32000, True)
            assert await connection.resources() == []
            server.service.silent = True
            with pytest.raises(ServerFault, match=r"a call of prompts/get within 0\.2 s") as fault:
                await connection.ask("prompts/get", {"name": "p"}, deadline=0.2)
            assert not isinstance(fault.value, Refused)


@pytest.mark.parametrize("kind", HTTP)
async def test_a_frozen_server_is_given_up_and_safe_calls_repeated(monkeypatch, kind):
    monkeypatch.setattr(owner, "_PING_SECONDS", 0.5)
    with serving(kind) as (server, params):
        async with connect(params, deadlines=PATIENT) as connection:
            server.lost.add("s1")
            in_flight = asyncio.create_task(connection.call("write", {}))
            safe = asyncio.create_task(connection.call("echo", {"text": "again"}))
            with pytest.raises(ServerFault, match=r"within 0\.3 s"):
                await connection.call("write", {}, deadline=0.3)
            with pytest.raises(ServerFault, match="was lost in a call of write: it no longer answers"):
                await in_flight
            assert (await safe).text == "again"
            assert (await connection.call("write", {})).text == "done"
        assert server.service.calls == ["echo", "write"]


async def test_a_slow_server_that_answers_pings_keeps_its_session():
    with serving("sse") as (server, params):
        async with connect(params, deadlines=PATIENT, stateful=True) as connection:
            with pytest.raises(ServerFault):
                await connection.call("work", {"seconds": 1, "report_for": 0}, deadline=0.2)
            assert (await connection.call("write", {})).text == "done"
        assert server.sessions == 1


async def test_a_connection_closed_during_a_ping_closes_at_once():
    with serving("sse") as (server, params):
        async with connect(params, deadlines=Deadlines(close=60)) as connection:
            server.lost.add("s1")
            with pytest.raises(ServerFault):
                await connection.call("write", {}, deadline=0.1)
            await asyncio.sleep(0.1)
            started = time.monotonic()
        assert time.monotonic() - started < 9


async def test_a_frozen_stateless_process_is_replaced(monkeypatch):
    monkeypatch.setattr(owner, "_PING_SECONDS", 1.0)
    params = load_plugins().server("mcp_calculator").params("streamable-http")
    others = set(psutil.Process().children())
    async with connect(params, deadlines=replace(PATIENT, close=0.5)) as connection:
        (watchdog,) = set(psutil.Process().children()) - others
        (server,) = watchdog.children()
        server.suspend()
        with pytest.raises(ServerFault, match=r"within 0\.3 s"):
            await connection.call("add", {"a": 1, "b": 2}, deadline=0.3)
        assert (await connection.call("add", {"a": 1, "b": 2})).text == "3"
        assert not server.is_running()
