"""Answer requests of OpenAI's and Anthropic's protocols with engines, independently of HTTP but for methods, paths and
statuses. Each kind of request for a turn is read as a request of a chat, so all of them are sampled in one way.

The task that reads the answer samples the turn: when that task is cancelled or the answer is closed, the turn ends with
it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread

from mcp_rl.errors import McpRlError
from mcp_rl.inference.chat.remembered import Remembered
from mcp_rl.inference.openai_api.answers import ChatAnswer, CompletionAnswer
from mcp_rl.inference.openai_api.messages_answers import MessagesAnswer
from mcp_rl.inference.openai_api.messages_requests import CountRequest, MessagesRequest
from mcp_rl.inference.openai_api.reading import CLOSE
from mcp_rl.inference.openai_api.refusals import (
    MESSAGES,
    Refusal,
    context_exceeded,
    failed,
    no_such_path,
    too_busy,
    unknown_model,
    unknown_response,
)
from mcp_rl.inference.openai_api.requests import (
    AssistantMessage,
    ChatRequest,
    CompletionRequest,
    NamedTool,
    TokenizeRequest,
    read,
)
from mcp_rl.inference.openai_api.responses_answers import ResponseAnswer
from mcp_rl.inference.openai_api.responses_requests import ResponseRequest
from mcp_rl.inference.openai_api.sampling import SampledTurn
from mcp_rl.system.boundary import first_error

if TYPE_CHECKING:
    from mcp_rl.inference.openai_api.answers import ApiAnswer, TurnsAnswer
    from mcp_rl.inference.openai_api.prompts import Prompts
    from mcp_rl.inference.openai_api.requests import Message
    from mcp_rl.inference.openai_api.served import ServedModel

log = logging.getLogger(__name__)

_SLICES = (4, 8, 16, 32)
"""Tokens sampled between two chunks of a stream; the last number repeats."""


@dataclass
class HttpReply:
    """A reply: a JSON object, or the encoded events of a stream."""

    status: int = 200
    body: Any = None
    events: Events | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


_MODEL = "/v1/models/"
_RESPONSES = 32 * 2**20
"""Bytes of remembered responses, in a rough estimate."""
_LONG_BODY = 64 * 2**10
"""Bytes of a request beyond which it is rendered in a thread."""
T = TypeVar("T")
Handler = Callable[[bytes], Awaitable[HttpReply]]


class Service:
    """All served models.

    `most` limits the turns in flight, those waiting for the engine included. While `away` returns True the engine is
    missing, and new requests are refused instead of waiting. With `note`, requests are those of an agent program in
    training: the first model answers to every name, and fields that cannot be honoured are noted instead of refused.
    `more` are further handlers by their methods and paths.
    """

    def __init__(
        self,
        served: Sequence[ServedModel],
        *,
        most: int = 512,
        away: Callable[[], bool] = lambda: False,
        note: Callable[[str], None] | None = None,
        more: Mapping[tuple[str, str], Handler] | None = None,
    ) -> None:
        self.served, self._away, self._note = list(served), away, note
        self._most, self._in_flight = most, 0
        self._routes: dict[tuple[str, str], Handler] = {
            ("GET", "/health"): self.health,
            ("GET", "/v1/models"): self.models,
            ("POST", "/v1/chat/completions"): self.chat,
            ("POST", "/v1/completions"): self.complete,
            ("POST", "/v1/responses"): self.respond,
            ("POST", MESSAGES): self.message,
            ("POST", f"{MESSAGES}/count_tokens"): self.count,
            ("POST", "/tokenize"): self.tokenize,
            **(more or {}),
        }
        self._responses: Remembered[str, tuple[Message, ...]] = Remembered(_RESPONSES)
        """The conversations up to each response, by its id, for requests that continue one."""

    def handler(self, method: str, path: str) -> Handler:
        """Return the handler of a method and path. Raises Refusal where there is none."""
        found = self._routes.get(("GET" if method == "HEAD" else method, path))
        if found is None and method in ("GET", "HEAD") and path.startswith(_MODEL):
            return functools.partial(self.model, path.removeprefix(_MODEL))
        if found is None:
            raise no_such_path(method, path, list(self._routes))
        return found

    async def answer(self, handler: Handler, body: bytes, path: str = "") -> HttpReply:
        """Return the reply, errors included, in the form of the protocol at `path`. Only cancellation is raised."""
        try:
            return await handler(body)
        except Exception as error:
            refusal = _refusal(error)
            return HttpReply(refusal.status, refusal.body_at(path), headers=refusal.headers)

    async def health(self, _: bytes) -> HttpReply:
        if self._away():
            raise failed("The engine is unavailable.", status=503, again=True)
        return HttpReply(body={"status": "ok"})

    async def models(self, _: bytes) -> HttpReply:
        cards = [_card(served, name) for served in self.served for name in served.names()]
        return HttpReply(body={"object": "list", "data": cards})

    async def model(self, name: str, _: bytes) -> HttpReply:
        return HttpReply(body=_card(self._named(name), name))

    async def tokenize(self, body: bytes) -> HttpReply:
        asked = read(TokenizeRequest, body)
        served = self._named(asked.model) if asked.model is not None else self.served[0]
        if (asked.prompt is None) == (asked.messages is None):
            raise Refusal("Give either prompt or messages.", param="prompt")
        prompts = served.prompts
        messages, text = asked.messages, asked.prompt or ""
        if messages is not None:
            ids = await _in_thread_if_long(body, lambda: prompts.of_messages(messages, asked.schemas))
        else:
            ids = await _in_thread_if_long(body, lambda: _encoded(prompts, text))
        return HttpReply(body={"tokens": ids, "count": len(ids), "max_model_len": served.engine().max_context})

    async def chat(self, body: bytes) -> HttpReply:
        return await self._turns(read(ChatRequest, body, self._note), body, ChatAnswer)

    async def respond(self, body: bytes) -> HttpReply:
        request = read(ResponseRequest, body, self._note)
        before: tuple[Message, ...] = ()
        if (earlier := request.previous_response_id) is not None:
            found = self._responses.get(earlier)
            if found is None:
                raise unknown_response(earlier)
            before = found
        asked = request.to_chat(before, self._note)
        conversation = tuple(asked.messages[1:] if request.instructions else asked.messages)

        def keep(id: str, said: dict[str, Any]) -> None:
            turn = AssistantMessage.model_validate({name: value for name, value in said.items() if value is not None})
            self._responses.put(id, (*conversation, turn), 10 * len(body) + 8 * len(conversation))

        return await self._turns(asked, body, functools.partial(ResponseAnswer, request, keep))

    async def message(self, body: bytes) -> HttpReply:
        asked = read(MessagesRequest, body, self._note).to_chat(self._note)
        return await self._turns(asked, body, MessagesAnswer)

    async def count(self, body: bytes) -> HttpReply:
        asked = read(CountRequest, body, self._note).to_chat(self._note)
        prompts = self._named(asked.model).prompts
        ids = await _in_thread_if_long(body, lambda: prompts.of_messages(asked.messages, asked.schemas))
        return HttpReply(body={"input_tokens": len(ids)})

    async def _turns(self, asked: ChatRequest, body: bytes, answering: Callable[..., TurnsAnswer]) -> HttpReply:
        served = self._named(asked.model)
        choice = asked.tool_choice or "auto"
        begun = _forced_ids(served.prompts, asked, choice)
        # A model that may not call is shown no tools, as in training without tools.
        tools = [] if choice == "none" else asked.schemas
        prompt = await _in_thread_if_long(body, lambda: served.prompts.of_messages(asked.messages, tools)) + begun
        one_call = isinstance(choice, NamedTool) or not asked.parallel_tool_calls
        # one call ends the turn, unless the mark that closes it may stand in a thought
        closes = [CLOSE] if tools and one_call and served.prompts.chat.read_in_pieces else []
        stop = [*asked.stop, *closes]
        if asked.top_logprobs and not asked.logprobs:
            raise Refusal("top_logprobs needs logprobs: true.", param="top_logprobs")
        turns = _RequestedTurns([prompt] * asked.n, asked, asked.limit or served.max_tokens, stop, asked.top_logprobs)
        if served.asked is not None:
            served.asked(asked, begun)
        answer = answering(asked, served, prompt, begun, reads_calls=bool(tools), one_call=one_call)
        return await self._reply(served, turns, answer)

    async def complete(self, body: bytes) -> HttpReply:
        asked = read(CompletionRequest, body, self._note)
        served = self._named(asked.model)
        given = asked.prompts
        if len(given) * asked.n > self._most:
            raise too_busy(self._most, len(given) * asked.n)
        prompts = await _in_thread_if_long(body, lambda: [_ids_of(served.prompts, prompt) for prompt in given])
        every = [prompt for prompt in prompts for _ in range(asked.n)]
        turns = _RequestedTurns(every, asked, asked.max_tokens, asked.stop, asked.logprobs or 0)
        return await self._reply(served, turns, CompletionAnswer(asked, served, prompts))

    def _named(self, name: str) -> ServedModel:
        for served in self.served:
            if name in served.names():
                return served
        if self._note is not None:
            self._note("model")
            return self.served[0]
        raise unknown_model(name, [known for served in self.served for known in served.names()])

    async def _reply(self, served: ServedModel, wanted: _RequestedTurns, answer: ApiAnswer) -> HttpReply:
        """Sample the first slice before anything is sent, so that an error still has a status of its own."""
        if self._away():
            raise failed("The engine is unavailable; it is restarting or expected back.", status=503, again=True)
        if self._in_flight + len(wanted.prompts) > self._most:
            raise too_busy(self._most, len(wanted.prompts))
        stack = AsyncExitStack()
        try:
            stack.enter_context(self._counted(len(wanted.prompts)))
            turns = [await _open_turn(stack, served, wanted, number) for number in range(len(wanted.prompts))]
            await _advance(turns, _SLICES[0] if wanted.asked.stream else None)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await stack.aclose()
            raise
        if wanted.asked.stream:
            return HttpReply(events=Events(stack, _events(turns, answer)))
        await stack.aclose()
        return HttpReply(body=answer.whole(turns))

    @contextlib.contextmanager
    def _counted(self, turns: int) -> Iterator[None]:
        self._in_flight += turns
        try:
            yield
        finally:
            self._in_flight -= turns


@dataclass(frozen=True)
class _RequestedTurns:
    """The turns of one request."""

    prompts: list[list[int]]
    asked: ChatRequest | CompletionRequest
    limit: int | None
    stop: Sequence[str]
    top_logprobs: int


async def _open_turn(stack: AsyncExitStack, served: ServedModel, wanted: _RequestedTurns, number: int) -> SampledTurn:
    engine, asked, prompt = served.engine(), wanted.asked, wanted.prompts[number]
    room = engine.max_context
    if len(prompt) >= room:
        raise context_exceeded(room, len(prompt))
    episode = await stack.enter_async_context(engine.episode(seed=_seed(asked.seed, number)))
    limit = room if wanted.limit is None else wanted.limit
    return SampledTurn(
        episode, served.prompts.chat, prompt, limit, room, asked.temperature, wanted.stop, wanted.top_logprobs
    )


async def _advance(turns: Sequence[SampledTurn], most: int | None) -> None:
    """Advance all unfinished turns, side by side."""
    open_turns = [turn for turn in turns if not turn.finish]
    if len(open_turns) == 1:
        await open_turns[0].advance(most)
        return
    async with anyio.create_task_group() as tasks:
        for turn in open_turns:
            tasks.start_soon(turn.advance, most)


class Events:
    """The events of a stream. `aclose` ends its turns, even before the stream is read."""

    def __init__(self, turns: AsyncExitStack, events: AsyncGenerator[bytes, None]) -> None:
        self._turns, self._events = turns, events

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._events)
        except BaseException:  # StopAsyncIteration too
            await self.aclose()
            raise

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._events.aclose()
            await self._turns.aclose()


async def _events(turns: Sequence[SampledTurn], answer: ApiAnswer) -> AsyncGenerator[bytes, None]:
    try:
        slices = iter(_SLICES[1:])
        for chunk in answer.chunks(turns):
            yield _event(answer, chunk)
        while not all(turn.finish for turn in turns):
            await _advance(turns, next(slices, _SLICES[-1]))
            for chunk in answer.chunks(turns):
                yield _event(answer, chunk)
        for chunk in answer.last(turns):
            yield _event(answer, chunk)
        if answer.end_mark is not None:
            yield f"data: {answer.end_mark}\n\n".encode()
    except Exception as error:
        yield _event(answer, answer.failure(_refusal(error)))


def _event(answer: ApiAnswer, chunk: dict[str, Any]) -> bytes:
    """Encode a server-sent event."""
    name = f"event: {chunk['type']}\n" if answer.named_events else ""
    return f"{name}data: {json.dumps(chunk)}\n\n".encode()


def _refusal(error: BaseException) -> Refusal:
    found = first_error(error)
    for leaf in (error, found):
        if isinstance(leaf, Refusal):
            return leaf
    if isinstance(found, McpRlError):
        return failed(str(found), status=503)
    log.error("A request failed.", exc_info=error)
    return failed(f"This is a bug in the server: {type(found).__name__}; see its log.")


def _card(served: ServedModel, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": served.created,
        "owned_by": "mcp-rl",
        "root": served.base,
        "parent": None,
        "max_model_len": served.engine().max_context,
    }


def _forced_ids(prompts: Prompts, asked: ChatRequest, choice: Any) -> list[int]:
    """Return the ids that the turn is forced to begin with."""
    if choice in ("auto", "none"):
        return []
    functions = {tool.function.name: tool.function for tool in asked.tools}
    if choice == "required":
        if not functions:
            raise Refusal('tool_choice "required" needs tools.', param="tool_choice")
        return prompts.begun_call(None, None)
    name = choice.function.name
    if name not in functions:
        there = ", ".join(functions) or "none"
        raise Refusal(f"tool_choice names the function {name!r}, but the tools are: {there}.", param="tool_choice")
    return prompts.begun_call(name, functions[name].parameters)


def _encoded(prompts: Prompts, text: str) -> list[int]:
    try:
        text.encode()
        return prompts.chat.encode(text)
    except UnicodeError as error:
        raise Refusal("prompt: it holds half of a character.", param="prompt") from error


def _ids_of(prompts: Prompts, prompt: str | list[int]) -> list[int]:
    ids = _encoded(prompts, prompt) if isinstance(prompt, str) else prompt
    if not ids:
        raise Refusal("prompt: there is nothing to continue.", param="prompt")
    known = len(prompts.chat.tokenizer)
    if wrong := [id for id in ids if not 0 <= id < known]:
        raise Refusal(f"prompt: there is no token {wrong[0]}; ids end before {known}.", param="prompt")
    return ids


async def _in_thread_if_long(body: bytes, work: Callable[[], T]) -> T:
    """Run rendering and tokenizing, for a long request in a thread: it takes seconds, and streams must go on."""
    return await anyio.to_thread.run_sync(work) if len(body) > _LONG_BODY else work()


def _seed(seed: int | None, number: int) -> int:
    """Return the seed of one turn of a request: the first turn has the request's own seed."""
    if seed is None:
        return secrets.randbits(63)
    return seed if number == 0 else int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:8], "big") >> 1
