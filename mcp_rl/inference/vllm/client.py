"""Requests to a vLLM server, over connections that all episodes share.

Tokens go in and out as ids; the server renders and tokenizes nothing. A request that fails because the server died or
is restarting is repeated when it is back: sampling again loses nothing. vLLM queues what it cannot run yet, so the
client sets no limit. A cancelled request closes its connection, which ends it in vLLM too.
"""

from __future__ import annotations

import json
import math
import secrets
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio
import httpx

from mcp_rl.errors import EngineError, EngineStop
from mcp_rl.inference.vllm.compat.known import TEMPERATURES
from mcp_rl.inference.vllm.compat.metrics import block_size

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

T = TypeVar("T")

MOST_REPETITIONS = 12
"""Most repetitions of a request to a server that has not restarted meanwhile; with the pauses, 20 s."""
PAUSE_SECONDS = 2.0
"""Longest pause before a repetition."""
METRICS_SECONDS = 10.0
ADMIN_SECONDS = 300.0
"""Timeout of requests that do not queue behind turns: loading an adapter or weights."""
_LOST = {500, 502, 503, 504}
_EXACT = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "ignore_eos": True,
    "skip_special_tokens": False,
    "return_tokens_as_token_ids": True,
}
"""Draw from the model's unchanged distribution; only the given stop tokens end a turn."""


class Server(Protocol):
    """A server that answers the requests: `server.VllmServer` or `remote.RemoteServer`."""

    @property
    def url(self) -> str:
        """Address without /v1. It may change with a restart."""
        ...

    @property
    def api_key(self) -> str | None: ...

    @property
    def starts(self) -> int:
        """Number of starts that have been noticed; it grows with each restart."""
        ...

    async def ready(self) -> None:
        """Return when it serves. Raises EngineError if it never will again."""
        ...


@dataclass(frozen=True)
class Sampled:
    """A sampled turn as the server returned it."""

    token_ids: list[int]
    """The stop token included."""
    logprobs: list[float]
    stopped: bool
    """True if a stop token or a stop text ended it, not the limit."""
    cached: int
    """Tokens of the prompt found in the prefix cache; 0 if the server does not say."""
    top_logprobs: list[list[tuple[int, float]]]
    """The most likely tokens for each id, in descending order; empty if none were asked for."""


class Unanswered(Exception):
    """The server could not be reached, or failed while it answered."""


class _Connections:
    """HTTP clients with one connection each, as many as requests were ever in flight at once.

    A client with many connections searches all of them whenever a request begins or ends (httpcore 1.0): with a few
    hundred in flight, that would take most of this process's time and grow with their square.
    """

    def __init__(self) -> None:
        self._made: set[httpx.AsyncClient] = set()
        self._idle: list[httpx.AsyncClient] = []
        self._tls = httpx.create_ssl_context(trust_env=False)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncClient]:
        """Yield a client for one request: the one used last, whose connection is still open.

        A request that fails discards its client: if asyncio cancels it at an unlucky moment, httpcore 1.0 counts its
        connection as in use for ever, and the next request would wait for it.
        """
        http = self._idle.pop() if self._idle else self._new()
        try:
            yield http
        except BaseException:
            self._made.discard(http)
            with anyio.CancelScope(shield=True):
                await http.aclose()
            raise
        self._idle.append(http)

    def _new(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=1, keepalive_expiry=4)  # vLLM closes connections that are idle for 5 s
        timeout = httpx.Timeout(None, connect=10)
        http = httpx.AsyncClient(limits=limits, timeout=timeout, verify=self._tls, trust_env=False)
        self._made.add(http)
        return http

    async def aclose(self) -> None:
        made, self._made, self._idle = self._made, set(), []
        for http in made:
            await http.aclose()


class VllmClient:
    """A client of one server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.restored: Callable[[], Awaitable[None]] = _nothing
        """Awaited before each request, to load again what a restarted server has lost."""
        self.forgot = False
        """True after the server did not know a policy that it was given: somebody else has restarted it."""
        self._connections = _Connections()

    async def aclose(self) -> None:
        await self._connections.aclose()

    async def sample(
        self,
        model: str,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        temperature: float,
        stop_token_ids: Sequence[int],
        stop: Sequence[str] = (),
        seed: int | None = None,
        top_logprobs: int = 0,
    ) -> Sampled:
        """Sample a continuation of the prompt, repeating the request whenever the server is restarted meanwhile.

        Raises EngineError for a temperature that vLLM would change and for a refused request, EngineStop if the server
        does not come back.
        """
        if temperature and not TEMPERATURES[0] <= temperature <= TEMPERATURES[1]:
            raise EngineError(
                f"vLLM cannot sample at a temperature of {temperature:g}: use 0, or {TEMPERATURES[0]:g} to "
                f"{TEMPERATURES[1]:g}, since it would change others, and the logprobs with them."
            )
        body = {
            **_EXACT,
            "model": model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "logprobs": top_logprobs,
            "stop_token_ids": list(stop_token_ids),
        }
        if stop:
            body["stop"] = list(stop)
        if seed is not None:
            body["seed"] = seed
        return _sampled(await self._restored_first(lambda: self._post("/v1/completions", body, None)), top_logprobs)

    async def block_size(self) -> int:
        """Tokens in a block of the prefix cache; 0 if the server's metrics do not say or are not accessible."""
        try:
            answer = await self._answer("GET", "/metrics", None, METRICS_SECONDS)
        except (EngineError, Unanswered):
            return 0
        return block_size(answer.text)

    async def logprobs(self, model: str, ids: Sequence[int]) -> list[float]:
        """Return the natural-log probability of every token but the first, at temperature 1.

        The prefix cache is not read, and nothing computed here is ever read from it.
        """
        body = {**_EXACT, "model": model, "prompt": list(ids), "max_tokens": 1, "prompt_logprobs": 0}
        body["cache_salt"] = secrets.token_hex(8)
        answer = await self._restored_first(lambda: self._post("/v1/completions", body, None))
        found = answer["choices"][0]["prompt_logprobs"]
        return [position[str(id)]["logprob"] for id, position in zip(ids[1:], found[1:], strict=True)]

    async def next_logprobs(self, model: str, prompts: Sequence[Sequence[int]], tokens: Sequence[int]) -> list[float]:
        """Return the natural-log probability that each prompt is followed by its token, at temperature 1.

        Beginnings of prompts come from the prefix cache where it holds them. One request; at most 128 different tokens.
        """
        body = {**_EXACT, "model": model, "prompt": [list(prompt) for prompt in prompts], "max_tokens": 1}
        body |= {"temperature": 1.0, "logprobs": 1, "logprob_token_ids": sorted(set(tokens))}
        answer = await self._restored_first(lambda: self._post("/v1/completions", body, None))
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        found = [choice["logprobs"]["top_logprobs"][0] for choice in choices]
        return [float(given[f"token_id:{token}"]) for given, token in zip(found, tokens, strict=True)]

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Raise EngineError if vLLM refuses the adapter, Unanswered if the server cannot be reached."""
        await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter, if it is loaded. Raises Unanswered."""
        await self._post("/v1/unload_lora_adapter", {"lora_name": name}, missing=True)

    async def load_weights(self, folder: Path) -> None:
        """Replace every weight of the base model and forget everything computed with the old ones.

        Nothing may be sampled meanwhile. Raises EngineError, Unanswered.
        """
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await self._post("/collective_rpc", call)
        if not (await self._post("/reset_prefix_cache", {})).get("success"):
            raise EngineError("vLLM did not empty its prefix cache after loading new weights, so they are not sampled.")

    async def persist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request that got no answer, once the server is back. Raises EngineStop if it stays away."""
        tries, starts = 0, self.server.starts
        while True:
            try:
                return await ask()
            except Unanswered as lost:
                if tries >= MOST_REPETITIONS:
                    raise EngineStop(f"vLLM's server no longer answers: {lost}.") from lost
                tries += 1
                await anyio.sleep(min(PAUSE_SECONDS, 0.05 * 2**tries))
            try:
                await self.server.ready()
            except EngineError as gone:
                raise EngineStop(str(gone)) from gone
            if self.server.starts != starts:
                tries, starts = 0, self.server.starts

    async def _restored_first(self, ask: Callable[[], Awaitable[T]]) -> T:
        """`persist`, after loading again what the server lost in a restart."""

        async def asked() -> T:
            await self.restored()
            return await ask()

        return await self.persist(asked)

    async def _post(
        self, path: str, body: Mapping[str, Any], seconds: float | None = ADMIN_SECONDS, *, missing: bool = False
    ) -> dict[str, Any]:
        """Post JSON and return the answer's JSON, empty if it has none. `missing`: accept a 404."""
        return _json(await self._answer("POST", path, json.dumps(body).encode(), seconds, missing=missing))

    async def _answer(
        self, method: str, path: str, content: bytes | None, seconds: float | None, *, missing: bool = False
    ) -> httpx.Response:
        headers = {"content-type": "application/json"}
        if self.server.api_key:
            headers["authorization"] = f"Bearer {self.server.api_key}"
        url = self.server.url.rstrip("/") + path
        try:
            with anyio.fail_after(seconds):
                async with self._connections.one() as http:
                    answer = await http.request(method, url, content=content, headers=headers)
        except TimeoutError:
            raise EngineError(f"vLLM did not answer {path} in {seconds:g} s.") from None
        except (httpx.TransportError, httpx.StreamError) as error:
            raise Unanswered(f"{type(error).__name__} at {path}") from error
        if answer.is_success or (answer.status_code == 404 and missing):
            return answer
        if answer.status_code == 404 and path == "/v1/completions":
            self.forgot = True
            raise Unanswered(_reason(answer))
        if answer.status_code in _LOST:
            raise Unanswered(f"{path} answered {answer.status_code}, {_reason(answer)}")
        raise EngineError(f"vLLM refused {path} ({answer.status_code}): {_reason(answer)}")


async def _nothing() -> None: ...


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        read = answer.json()
    except ValueError:  # "Success: …", or nothing
        return {}
    return read if isinstance(read, dict) else {}


def _reason(answer: httpx.Response) -> str:
    """The message of an error, one line of it."""
    read = _json(answer)
    error = read.get("error")
    text = error.get("message") if isinstance(error, dict) else error or read.get("detail") or answer.text
    return " ".join(str(text).split())[:400] or "no reason given"


def _sampled(answer: Mapping[str, Any], most: int) -> Sampled:
    choice = answer["choices"][0]
    logprobs = choice["logprobs"]["token_logprobs"]
    ids = [int(token.removeprefix("token_id:")) for token in choice["logprobs"]["tokens"]]
    if not ids or not all(isinstance(value, float) and math.isfinite(value) for value in logprobs):
        raise EngineError(f"vLLM returned {len(ids)} tokens, but not a finite logprob for each.")
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    top = [_likeliest(found, most) for found in choice["logprobs"]["top_logprobs"]] if most else []
    return Sampled(ids, logprobs, choice["finish_reason"] == "stop", int(details.get("cached_tokens") or 0), top)


def _likeliest(found: Mapping[str, float], most: int) -> list[tuple[int, float]]:
    """The `most` likeliest; vLLM adds the sampled token if it is not among them."""
    known = [(int(token.removeprefix("token_id:")), float(logprob)) for token, logprob in found.items()]
    return sorted(known, key=lambda one: -one[1])[:most]
