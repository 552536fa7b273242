"""Both eras of the protocol, chosen by what a server answers; input that a server asks for; tasks."""

import asyncio
import json
from pathlib import Path

import pytest

from mcp_rl.config import ToolsConfig
from mcp_rl.errors import ElicitationError, ServerError, ServerFault
from mcp_rl.scenario import Launch, StdioServer, StreamableHttpServer
from mcp_rl.toolserver.caller import calling_as
from mcp_rl.toolserver.cassette import Cassette
from mcp_rl.toolserver.connection.connection import connect
from mcp_rl.toolserver.connection.deadlines import Deadlines
from mcp_rl.toolserver.connection.era import Agreement, remember
from mcp_rl.toolserver.elicitation import Question, defaults
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.tool_server import ToolServer

SERVER = Path(__file__).with_name("era_server.py")
PATIENT = Deadlines(spawn=120, initialize=120, list=60, call=60, close=5)
BOTH = pytest.mark.parametrize("transport", ["stdio", "streamable-http"])
NEWER, OLDER = "2026-07-28", "2025-11-25"


def era(mode, transport="stdio", **fields):
    if transport == "stdio":
        return StdioServer(command="{python}", args=("-S", str(SERVER), mode), **fields)
    launch = Launch(command="{python}", args=("-S", str(SERVER), mode, "{port}"), **fields)
    return StreamableHttpServer(url="http://127.0.0.1:{port}/mcp", launch=launch)


def asked_of(folder):
    """The methods that the server's processes were asked for, in order."""
    return [
        line
        for file in sorted(folder.glob("*"))
        for line in file.read_text().split()
        if "/" in line or line == "initialize"
    ]


@BOTH
async def test_a_server_that_refuses_the_older_era_is_used(transport, tmp_path):
    async with connect(era("newer", transport), deadlines=PATIENT, log_dir=tmp_path) as connection:
        assert (connection.revision, connection.server_info) == (NEWER, {"name": "era", "version": "2"})
        assert (await connection.call("echo", {"text": "hello"})).text == "hello"
        assert await connection.ping(60)
    assert "initialize" not in asked_of(tmp_path)


@BOTH
async def test_a_server_of_the_older_era_is_asked_once_for_the_newer_one(transport, tmp_path):
    params = era("older", transport, env={"FOR": f"{transport} {tmp_path}"})
    for folder in ("first", "second"):
        async with connect(params, deadlines=PATIENT, log_dir=tmp_path / folder) as connection:
            assert (connection.revision, connection.server_info["version"]) == (OLDER, "1")
            assert (await connection.call("echo", {"text": "hello"})).text == "hello"
    assert asked_of(tmp_path / "first") == ["server/discover", "initialize", "tools/list", "tools/call"]
    assert asked_of(tmp_path / "second") == ["initialize", "tools/list", "tools/call"]


async def test_an_older_server_that_ends_at_the_question_is_started_again(tmp_path):
    async with connect(era("exits"), deadlines=PATIENT, log_dir=tmp_path, stateful=True) as connection:
        assert (await connection.call("echo", {"text": "hello"})).text == "hello"
    assert asked_of(tmp_path) == ["initialize", "tools/list", "tools/call"]


async def test_an_older_server_that_ignores_the_question_is_asked_the_older_way(monkeypatch):
    monkeypatch.setattr("mcp_rl.toolserver.connection.era.PROBE_SECONDS", 0.2)
    async with connect(era("silent"), deadlines=PATIENT) as connection:
        assert connection.revision == OLDER


async def test_a_server_that_left_the_older_era_since_its_last_connection_is_used():
    params = era("newer", env={"SINCE": "then"})
    remember(repr(params), Agreement(OLDER))
    async with connect(params, deadlines=PATIENT) as connection:
        assert connection.revision == NEWER


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("claims", r"says that it speaks the protocol revision 2026-07-28, and answers tools/list .*: Send initialize"),
        (
            "shakes-hands-anew",
            r"answered the handshake with the protocol revision 2026-07-28, which has no handshake\.$",
        ),
        ("future", r"speaks the protocol revision 2031-01-01; known are 2024-11-05, .*2026-07-28\.$"),
    ],
)
async def test_a_server_that_claims_one_era_and_speaks_another_is_told_in_one_sentence(mode, words):
    with pytest.raises(ServerError, match=rf"^The server odd {words}"):
        async with connect(era(mode), deadlines=PATIENT, name="odd"):
            pass


@pytest.mark.parametrize(("mode", "tool"), [("older-results", "echo"), ("newer", "odd-result")])
async def test_a_result_of_another_revision_is_a_fault(mode, tool):
    async with connect(era(mode), deadlines=PATIENT) as connection:
        with pytest.raises(ServerFault, match=r"speaks the protocol revision .*, and answered a call of .*resultType"):
            await connection.call(tool, {})


@BOTH
async def test_arguments_are_repeated_in_headers_and_impossible_headers_leave_a_tool_out(transport):
    async with connect(era("newer", transport), deadlines=PATIENT) as connection:
        assert "bad-header" not in [tool.name for tool in connection.tools]
        assert any("bad-header" in warning for warning in connection.warnings)
        assert (await connection.call("where", {"region": "north sea"})).text == "north sea"


# -- input that a server asks for


def filled_in(question: Question):
    assert (question.tool, question.arguments) == ("ask", {"text": "x"})
    return {"name": f"{question.message[:3]}-{sorted(question.schema['properties'])[0]}"}


async def filled_in_later(question: Question):
    await asyncio.sleep(0)
    return None if "else" in question.message else {"name": "later"}


ADA = {"name": "Ada", "sure": True}
POLICIES = [
    ("decline", None, None),
    ("defaults", ADA, None),
    (filled_in, {"name": "Who-name"}, {"name": "And-name"}),
    (filled_in_later, {"name": "later"}, None),
]
"""A policy and its answers to the first question, and to the second one, which only the newer server asks."""


@BOTH
@pytest.mark.parametrize("mode", ["older", "newer"])
async def test_a_declared_policy_answers_in_both_eras_and_its_answers_are_kept(mode, transport):
    async with connect(era(mode, transport), deadlines=PATIENT) as connection:
        for policy, *forms in POLICIES:
            connection.elicitation = policy
            answers = [
                {"action": "decline"} if form is None else {"action": "accept", "content": form}
                for form in forms[: 1 if mode == "older" else 2]
            ]
            result = await connection.call("ask", {"text": "x"})
            said = [f"{answer['action']} {json.dumps(answer.get('content'))}" for answer in answers]
            assert (result.text, result.is_error) == (", ".join(said), False)
            messages = ("Who are you?", "And what else?")
            assert result.asked == tuple({"message": m, **a} for m, a in zip(messages, answers, strict=False))


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("ask-on", "asked for more input 10 times"),
        ("ask-much", "more than 32 inputs"),
        ("sample", "asked for a model to sample from, which is not provided"),
    ],
)
async def test_a_tool_that_asks_too_much_or_for_something_else_fails_alone(tool, words):
    async with connect(era("newer"), deadlines=PATIENT) as connection:
        connection.elicitation = "defaults"
        result = await connection.call(tool, {})
        assert result.is_error and words in result.text
        assert (await connection.call("echo", {"text": "still here"})).text == "still here"


@pytest.mark.parametrize("mode", ["older", "newer"])
async def test_a_function_that_fails_ends_the_run_with_its_own_words(mode):
    def broken(question):
        raise KeyError("no such user")

    async with connect(era(mode), deadlines=PATIENT) as connection:
        connection.elicitation = broken
        with pytest.raises(ElicitationError, match=r"function broken could not answer 'Who are you.': KeyError"):
            await connection.call("ask", {})
        connection.elicitation = lambda question: 5
        with pytest.raises(ElicitationError, match=r"must return the values of a form .* not 5"):
            await connection.call("ask", {})


def test_defaults_decline_where_one_is_missing():
    assert defaults({"properties": {"a": {"default": 1}, "b": {}}}) == {"a": 1}
    assert defaults({"properties": {"a": {"default": 1}, "b": {}}, "required": ["b"]}) is None
    assert defaults({"properties": [], "required": 3}) == {}


# -- tasks


@BOTH
async def test_a_task_is_waited_for_beyond_the_deadline_of_a_call(transport):
    async with connect(era("newer", transport), deadlines=PATIENT) as connection:
        connection.elicitation = "defaults"
        waited, asked, failed = await asyncio.gather(
            connection.call("wait", {"text": "done"}),
            connection.call("wait-and-ask", {}),
            connection.call("fail-later", {}),
        )
        assert (waited.text, waited.is_error) == ("done", False)
        assert asked.text == 'accept {"name": "Ada", "sure": true}' and len(asked.asked) == 1
        assert (failed.text, failed.is_error) == ("the disk is full", True)


async def test_a_task_that_is_never_done_ends_at_the_limit_and_is_cancelled(tmp_path):
    deadlines = Deadlines(spawn=120, initialize=120, list=60, call=1.0, longest_call=2.0, close=5)
    async with connect(era("newer"), deadlines=deadlines, log_dir=tmp_path) as connection:
        with pytest.raises(ServerFault, match="within 2 s, although it reported progress"):
            await connection.call("never-done", {})
        assert (await connection.call("echo", {"text": "still here"}, deadline=60)).text == "still here"
    assert "tasks/cancel" in asked_of(tmp_path)


# -- episodes


async def episode(session, name):
    """Play an episode whose state is behind a handle, and in which the server asks for input."""
    with calling_as(name):
        call = session.connection.call
        handle = (await call("open", {})).text
        counted = [(await call("count", {"text": handle})).text for _ in range(2)]
        asked = await call("ask", {"text": "x"})
    return handle, counted, asked.text, asked.asked


@pytest.mark.parametrize("isolation", [None, "per-rollout"])
async def test_handles_and_answers_are_the_same_in_a_replay(isolation, tmp_path):
    declared = ToolServer("era", "A server.", {"stdio": era("newer")}, isolation=isolation, elicitation=filled_in)
    settings = ToolsConfig(elicitation="defaults")  # overrides the plugin's
    server, names = declared.configured(settings), ("one", "two")
    tape, played = tmp_path / "calls.jsonl", {}
    for kind in (Cassette.recording, Cassette.replaying):
        with kind(tape) as cassette:
            async with Sessions(server=server, tools=settings, cassette=cassette) as sessions:
                for name in names if kind == Cassette.recording else reversed(names):
                    async with sessions.lease(server.params()) as lease:
                        played.setdefault(name, []).append(await episode(lease.session, name))
    assert all(recorded == replayed for recorded, replayed in played.values())
    (one, counted, text, asked), *_ = played["one"]
    assert one != played["two"][0][0] and counted == ["1", "2"]
    assert text == f"accept {json.dumps(ADA)}, decline null"
    assert [question["action"] for question in asked] == ["accept", "decline"]
