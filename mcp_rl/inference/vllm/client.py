"""What we ask a vLLM server for, over connections that all episodes share.

Tokens go in and out as ids; nothing is rendered or tokenized there. A request that the server could not answer, because
it died or is being restarted, is asked again when it is back: it is only sampling, so nothing was lost. vLLM queues
what it cannot run yet, so there is no limit here; a request whose caller is cancelled closes its connection, which
ends it in vLLM too.
"""

import json
import math
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import anyio
import httpx

from mcp_rl.errors import EngineError, EngineStop

T = TypeVar("T")

ASKED_AGAIN = 12
"""Times that a request is asked again of a server that has not been restarted meanwhile; with the pauses, 20 s."""
PAUSE_SECONDS = 2.0
"""Longest pause before that."""
METRICS_SECONDS = 10.0
ADMIN_SECONDS = 300.0
"""For what does not wait in vLLM's queue behind turns: loading an adapter or weights."""
TEMPERATURES = (0.01, 2.0)
"""What vLLM samples with: it raises what is lower and refuses what is higher; 0 is greedy."""
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
"""Nothing between the model's distribution and what is drawn; only the stop tokens that are named end a turn."""


class Server(Protocol):
    """Where the requests go. `server.VllmServer` and `server.RemoteServer` are of this kind."""

    @property
    def url(self) -> str:
        """Without /v1. Another one after a restart, perhaps."""
        ...

    @property
    def api_key(self) -> str | None: ...

    @property
    def starts(self) -> int:
        """Grows with each restart."""
        ...

    async def ready(self) -> None:
        """Returns when it serves. Raises EngineError where it never will again."""
        ...


@dataclass(frozen=True)
class Sampled:
    """What a request came back with."""

    token_ids: list[int]
    """The stop token included."""
    logprobs: list[float]
    stopped: bool
    """A stop token or a stop text ended it, not the limit."""
    cached: int
    """Tokens of the prompt that were in the prefix cache, as far as the server tells."""
    top_logprobs: list[list[tuple[int, float]]]
    """For each id the likeliest tokens, the likeliest first; empty where none were asked for."""


class Unanswered(Exception):
    """The server was not there, or broke while it answered."""


class _Connections:
    """HTTP clients of one connection each, as many as requests were ever in flight at once.

    A client of many connections looks through all of them whenever a request begins or ends (httpcore 1.0): with a few
    hundred in flight that would take most of our processor time, and grow with their square.
    """

    def __init__(self) -> None:
        self._made: set[httpx.AsyncClient] = set()
        self._idle: list[httpx.AsyncClient] = []
        self._tls = httpx.create_ssl_context(trust_env=False)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client for one request; the one that was used last, whose connection is still open. A request that did not
        come to its end takes its client with it: where asyncio cancels it at an unlucky moment, httpcore 1.0 counts its
        connection as in use for ever, and the next request would wait for it."""
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
        limits = httpx.Limits(max_connections=1, keepalive_expiry=4)  # vLLM closes what is idle for 5 s
        timeout = httpx.Timeout(None, connect=10)
        http = httpx.AsyncClient(limits=limits, timeout=timeout, verify=self._tls, trust_env=False)
        self._made.add(http)
        return http

    async def aclose(self) -> None:
        made, self._made, self._idle = self._made, set(), []
        for http in made:
            await http.aclose()


class VllmClient:
    """One server's client."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.restored: Callable[[], Awaitable[None]] = _nothing
        """Awaited before each request, to put back what a server that was started again has forgotten."""
        self.forgot = False
        """The server did not know a policy that it was given, so somebody else has started it again."""
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
        """Sample what follows the prompt, asking again as often as the server has to be restarted meanwhile.

        Raises EngineError for a temperature that vLLM would change and where the request is refused, EngineStop where
        the server does not come back.
        """
        if temperature and not TEMPERATURES[0] <= temperature <= TEMPERATURES[1]:
            raise EngineError(
                f"vLLM samples at a temperature of 0 or from {TEMPERATURES[0]:g} to {TEMPERATURES[1]:g}, not "
                f"{temperature:g}: another one would be changed, and the logprobs with it."
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
        return _sampled(await self._kept(lambda: self._post("/v1/completions", body, None)), top_logprobs)

    async def block_size(self) -> int:
        """Tokens of a block of the prefix cache; 0 where the server's metrics do not say it, or nobody may see them."""
        try:
            answer = await self._answer("GET", "/metrics", None, METRICS_SECONDS)
        except (EngineError, Unanswered):
            return 0
        sizes = re.findall(r'^vllm:cache_config_info\{.*?\bblock_size="(\d{1,9})"', answer.text, re.MULTILINE)
        return max(map(int, sizes), default=0)

    async def logprobs(self, model: str, ids: Sequence[int]) -> list[float]:
        """Natural-log probability of every token but the first, at temperature 1. The prefix cache is not read, and
        nothing that is computed here is ever read from it."""
        body = {**_EXACT, "model": model, "prompt": list(ids), "max_tokens": 1, "prompt_logprobs": 0}
        body["cache_salt"] = secrets.token_hex(8)
        answer = await self._kept(lambda: self._post("/v1/completions", body, None))
        found = answer["choices"][0]["prompt_logprobs"]
        return [position[str(id)]["logprob"] for id, position in zip(ids[1:], found[1:], strict=True)]

    async def next_logprobs(self, model: str, prompts: Sequence[Sequence[int]], tokens: Sequence[int]) -> list[float]:
        """Natural-log probability that each prompt is followed by its token, at temperature 1, the prompts' beginnings
        taken from the prefix cache where they are there. One request; at most 128 different tokens."""
        body = {**_EXACT, "model": model, "prompt": [list(prompt) for prompt in prompts], "max_tokens": 1}
        body |= {"temperature": 1.0, "logprobs": 1, "logprob_token_ids": sorted(set(tokens))}
        answer = await self._kept(lambda: self._post("/v1/completions", body, None))
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        found = [choice["logprobs"]["top_logprobs"][0] for choice in choices]
        return [float(given[f"token_id:{token}"]) for given, token in zip(found, tokens, strict=True)]

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Raises EngineError where vLLM refuses it, Unanswered where the server is not there."""
        await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter, whether or not it is there. Raises Unanswered."""
        await self._post("/v1/unload_lora_adapter", {"lora_name": name}, missing=True)

    async def load_weights(self, folder: Path) -> None:
        """Replace every weight of the base model, and forget what was computed with the old ones; nothing may be
        sampled meanwhile. Raises EngineError, Unanswered."""
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await self._post("/collective_rpc", call)
        if not (await self._post("/reset_prefix_cache", {})).get("success"):
            raise EngineError("vLLM did not empty its prefix cache after it took new weights, so they are not sampled.")

    async def models(self) -> list[dict[str, Any]]:
        """What the server offers: `id`, `root`, `parent`, and `max_model_len` of the base."""
        return list((await self._kept(lambda: self._request("GET", "/v1/models")))["data"])

    async def persist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask again where the server was not there, once it is. Raises EngineStop where it stays away."""
        tries, starts = 0, self.server.starts
        while True:
            try:
                return await ask()
            except Unanswered as lost:
                if tries >= ASKED_AGAIN:
                    raise EngineStop(f"vLLM's server does not answer any more: {lost}.") from lost
                tries += 1
                await anyio.sleep(min(PAUSE_SECONDS, 0.05 * 2**tries))
            try:
                await self.server.ready()
            except EngineError as gone:
                raise EngineStop(str(gone)) from gone
            if self.server.starts != starts:
                tries, starts = 0, self.server.starts

    async def _kept(self, ask: Callable[[], Awaitable[T]]) -> T:
        """`persist`, with what the server has forgotten in a restart put back first."""

        async def asked() -> T:
            await self.restored()
            return await ask()

        return await self.persist(asked)

    async def _post(
        self, path: str, body: Mapping[str, Any], seconds: float | None = ADMIN_SECONDS, *, missing: bool = False
    ) -> dict[str, Any]:
        return await self._request("POST", path, content=json.dumps(body).encode(), seconds=seconds, missing=missing)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        seconds: float | None = ADMIN_SECONDS,
        missing: bool = False,
    ) -> dict[str, Any]:
        """The JSON of an answer; empty where there is none, and where with `missing` nothing was there."""
        answer = await self._answer(method, path, content, seconds, missing=missing)
        return {} if answer.status_code == 404 else _json(answer)

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
            raise Unanswered(f"{path} gave {answer.status_code}, {_reason(answer)}")
        raise EngineError(f"vLLM refuses {path} ({answer.status_code}): {_reason(answer)}")


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
    return " ".join(str(text).split())[:400] or "without a reason"


def _sampled(answer: Mapping[str, Any], most: int = 0) -> Sampled:
    choice = answer["choices"][0]
    logprobs = choice["logprobs"]["token_logprobs"]
    ids = [int(token.removeprefix("token_id:")) for token in choice["logprobs"]["tokens"]]
    if not ids or not all(isinstance(value, float) and math.isfinite(value) for value in logprobs):
        raise EngineError(f"vLLM sampled {len(ids)} tokens, and not each with a logprob.")
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    top = [_likeliest(found, most) for found in choice["logprobs"]["top_logprobs"]] if most else []
    return Sampled(ids, logprobs, choice["finish_reason"] == "stop", int(details.get("cached_tokens") or 0), top)


def _likeliest(found: Mapping[str, float], most: int) -> list[tuple[int, float]]:
    """vLLM tells the sampled token too, where it is not among them."""
    known = [(int(token.removeprefix("token_id:")), float(logprob)) for token, logprob in found.items()]
    return sorted(known, key=lambda one: -one[1])[:most]
