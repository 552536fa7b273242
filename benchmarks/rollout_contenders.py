"""The contenders of `rollouts.py`, which describes them, each as a function that plays a number of episodes."""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from socket import create_connection, create_server
from typing import Any

from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from openai import AsyncOpenAI

from mcp_rl.evaluation.chat_model import ChatModel, ChatSetting
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.scripted import ScriptedEngine
from mcp_rl.rewards.answers import number
from mcp_rl.rewards.verifier import verify
from mcp_rl.rollouts.gather import GroupPlan, gather_groups
from mcp_rl.rollouts.player import Player, PlayerOptions, SettingPlayer
from mcp_rl.scenario import McpScenario, ServerParams, SseServer, StdioServer, StreamableHttpServer, ToolCall, Verifier
from mcp_rl.tiny.tokenizer import build_tokenizer
from mcp_rl.toolserver.bundled import bundled_root
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.trajectory import Trajectory

IN_FLIGHT, GROUP, SPAWNED_IN_FLIGHT = 64, 8, 4
CALCULATOR = bundled_root() / "servers/python/mcp_calculator/server.py"
SLOW = Path(__file__).with_name("slow_server.py")
TRANSPORTS = ("stdio", "sse", "streamable-http")
MODEL = "openai/stub"
Plays = Callable[[int], Awaitable[None]]
"""Play a number of episodes and check that each ended well."""


def task(index: int) -> tuple[str, int]:
    a, b = 100 + index % 900, 3 + index % 97
    return f"What is {a} times {b}?", a * b


def scenarios(count: int, params: ServerParams) -> list[McpScenario]:
    return [
        McpScenario(
            task_description=text,
            server_params=params,
            verifier=Verifier(kind="number", expected=expected),
            reference=(ToolCall(tool="multiply", arguments={"index": index}),),
        )
        for index in range(count)
        for text, expected in [task(index)]
    ]


# The loop by hand.


@asynccontextmanager
async def sdk_session(params: ServerParams) -> AsyncIterator[ClientSession]:
    """Open a session as the SDK's documentation does."""
    async with AsyncExitStack() as stack:
        match params:
            case StdioServer():
                command = StdioServerParameters(command=params.command, args=list(params.args))
                streams = await stack.enter_async_context(stdio_client(command))
            case SseServer():
                streams = await stack.enter_async_context(sse_client(params.url))
            case _:
                assert isinstance(params, StreamableHttpServer)
                streams = await stack.enter_async_context(streamable_http_client(params.url))
        session = await stack.enter_async_context(ClientSession(streams[0], streams[1]))
        await session.initialize()
        yield session


async def openai_tools(session: ClientSession) -> list[dict[str, Any]]:
    listed = await session.list_tools()
    return [
        {
            "type": "function",
            "function": {"name": t.name, "description": t.description or "", "parameters": t.input_schema},
        }
        for t in listed.tools
    ]


async def episode_by_hand(
    session: ClientSession, tools: Any, index: int, client: Callable[[], AsyncOpenAI]
) -> list[dict[str, Any]]:
    """Play an episode; raise ValueError if its answer is wrong."""
    text, expected = task(index)
    messages: list[Any] = [{"role": "user", "content": text}]
    while True:
        completion = await client().chat.completions.create(model="stub", messages=messages, tools=tools)
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            assert call.type == "function"
            result = await session.call_tool(call.function.name, json.loads(call.function.arguments))
            said = "\n".join(block.text for block in result.content if block.type == "text")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
    if messages[-1]["content"] != str(expected):
        raise ValueError(f"{text} was answered {messages[-1]['content']!r}")
    return messages


@asynccontextmanager
async def by_hand(params: ServerParams, url: str) -> AsyncIterator[Plays]:
    async with sdk_session(params) as session, AsyncOpenAI(base_url=url, api_key="none") as client:
        tools = await openai_tools(session)
        yield partial(at_once, lambda index: episode_by_hand(session, tools, index, lambda: client), IN_FLIGHT)


@asynccontextmanager
async def spawning(params: ServerParams, url: str) -> AsyncIterator[Plays]:
    """Start a server for each rollout, over stdio whatever the others use, as the pattern does."""
    own = StdioServer(command=sys.executable, args=(str(CALCULATOR), "--transport", "stdio"))

    async def episode(index: int) -> None:
        async with sdk_session(own) as session:
            tools = await openai_tools(session)
            await episode_by_hand(session, tools, index, lambda: AsyncOpenAI(base_url=url, api_key="none"))

    yield partial(at_once, episode, SPAWNED_IN_FLIGHT)


async def at_once(job: Callable[[int], Awaitable[Any]], most: int, count: int) -> None:
    """Run the jobs of the indices below `count`, `most` at a time."""
    room = asyncio.Semaphore(most)

    async def one(index: int) -> None:
        async with room:
            await job(index)

    await asyncio.gather(*(one(index) for index in range(count)))


# Ours.


def score(scenario: McpScenario, trajectory: Trajectory) -> Awaitable[None] | None:
    return verify(trajectory, scenario, {"number": number})


@asynccontextmanager
async def chat_model(params: ServerParams, url: str) -> AsyncIterator[Plays]:
    async with Sessions() as sessions:
        model = ChatModel(MODEL, url)
        yield partial(played, lambda **options: SettingPlayer(partial(ChatSetting, model), sessions, **options), params)
        await model.aclose()


@asynccontextmanager
async def scripted(params: ServerParams, url: str) -> AsyncIterator[Plays]:
    chat = ChatFormat(build_tokenizer())
    engine = ScriptedEngine(partial(reply, 1), chat)
    async with Sessions() as sessions:
        yield partial(played, lambda **options: Player(engine, chat, sessions, **options), params)


def reply(calls: int, text: str, seed: int, turn: int) -> str:
    """Return the script's reply: `calls` calls of `multiply`, then the result of the last one."""
    if turn < calls:
        found = re.findall(r"What is (\d+) times (\d+)\?", text)[-1]
        arguments = json.dumps({"a": int(found[0]), "b": int(found[1])})
        return f'<tool_call>\n{{"name": "multiply", "arguments": {arguments}}}\n</tool_call>'
    return str(re.findall(r"<tool_response>\s*(.*?)\s*</tool_response>", text)[-1])


async def played(player: Callable[..., SettingPlayer], params: ServerParams, count: int) -> None:
    """Play episodes in groups of 8, each recorded and scored. Raises ValueError if one was not solved."""
    options: PlayerOptions = {"params": params, "concurrency": IN_FLIGHT, "finish": score}
    plays = player(**options)
    plans = [
        GroupPlan(scenario, [partial(attempt, plays, scenario, member) for member in range(GROUP)])
        for scenario in scenarios(count // GROUP, params)
    ]
    for group in await gather_groups(plans):
        for trajectory in group:
            if not trajectory.success or len(trajectory.calls) != 1 or len(trajectory.messages) != 4:
                raise ValueError(f"{group.scenario.task_description} was not solved: {trajectory!r}")


def attempt(plays: SettingPlayer, scenario: McpScenario, member: int, number: int) -> Awaitable[Trajectory]:
    return plays.play(scenario, member + 1000 * number)


# One tool call.


@asynccontextmanager
async def our_calls(params: ServerParams, url: str) -> AsyncIterator[Plays]:
    async with Sessions() as sessions:
        connection = (await sessions.get(params)).connection

        async def call(index: int) -> None:
            result = await connection.call("multiply", {"a": index, "b": 3})
            assert result.text == str(3 * index)

        yield partial(at_once, call, IN_FLIGHT)


@asynccontextmanager
async def sdk_calls(params: ServerParams, url: str) -> AsyncIterator[Plays]:
    async with sdk_session(params) as session:
        await session.list_tools()

        async def call(index: int) -> None:
            result = await session.call_tool("multiply", {"a": index, "b": 3})
            assert result.content[0].type == "text" and result.content[0].text == str(3 * index)

        yield partial(at_once, call, IN_FLIGHT)


# Servers.


@contextmanager
def server(script: Path, transport: str) -> Iterator[ServerParams]:
    """Yield the parameters of a server; one with a port is started, and runs until the block ends."""
    if transport == "stdio":
        yield StdioServer(command=sys.executable, args=(str(script), "--transport", "stdio"))
        return
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(script), "--transport", transport, "--port", str(port)])
    try:
        _await_port(port)
        if transport == "sse":
            yield SseServer(url=f"http://127.0.0.1:{port}/sse")
        else:
            yield StreamableHttpServer(url=f"http://127.0.0.1:{port}/mcp")
    finally:
        process.kill()
        process.wait()


def _await_port(port: int) -> None:
    for _ in range(200):
        try:
            create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"no server came up on port {port}")


CONTENDERS: dict[str, Callable[[ServerParams, str], Any]] = {
    "by_hand": by_hand,
    "chat_model": chat_model,
    "scripted": scripted,
}
CALLS: dict[str, Callable[[ServerParams, str], Any]] = {"ours": our_calls, "sdk": sdk_calls}
