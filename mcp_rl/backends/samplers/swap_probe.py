"""Checks with known tokens, after each swap of weights, that a server samples the learner's policy.

Both sides compute the same fixed conversation at once. The server computes all of it anew, and tokens near its end once
more through its prefix cache. `learning/canaries.py` says what must agree.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import TYPE_CHECKING

from mcp_rl.learning import canaries
from mcp_rl.learning.canaries import LogprobProbe
from mcp_rl.system.tasks import run_all

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mcp_rl.backends.hosts import LearnerHost
    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.inference.vllm.client import VllmClient
    from mcp_rl.inference.vllm.engine import PolicyVersion

CACHED = 128
"""Tokens that fill whole blocks of a usual prefix cache (16 tokens on a GPU, 32 or 128 on a CPU)."""
BEYOND = 16
"""Tokens after the cached ones."""
THROUGH_CACHE = 8
"""Number of tokens that are computed through the cache. All their prompts begin with the same `CACHED` tokens, so
together they cost hardly more than those; each is wrong if the cache holds another policy's values."""
REMEMBERED = 8
"""Earlier versions that a new one is compared with, besides the first."""
_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}


class SwapProbe:
    """The check of one server, with the results of earlier versions."""

    def __init__(self, client: VllmClient, ids: Sequence[int], *, base: str | None = None, block: int = 0) -> None:
        """`base` is the name of the server's base model, if the policies are adapters that change it; `block` is the
        number of tokens in a block of its prefix cache."""
        self._client, self._base = client, base
        self.ids = list(ids)
        cached = max(CACHED, block)
        begin = cached if len(ids) >= cached + BEYOND else len(ids) // 2
        self.reads_cache = block <= begin
        """True if the beginning of a prompt can be in the cache, which holds whole blocks."""
        self._places = sorted({begin + (len(ids) - 1 - begin) * i // THROUGH_CACHE for i in range(THROUGH_CACHE)})
        """Indices in the list of log-probabilities, which begins with the second token's."""
        self._learned: list[float] | None = None
        """The learner's side of the next check."""
        self._first: LogprobProbe | None = None
        self._earlier: deque[LogprobProbe] = deque(maxlen=REMEMBERED)

    async def prepare(self, learner: LearnerHost) -> None:
        """Let the learner compute its side of the next check already, since it may rest then."""
        self._learned = (await learner.token_logprobs([self.ids]))[0]

    def forget(self) -> None:
        """Forget what the learner computed ahead."""
        self._learned = None

    async def check(
        self, learner: LearnerHost, policy: PolicyVersion, load: Callable[[], Awaitable[None]] | None = None
    ) -> LogprobProbe:
        """Let the server `load` the policy, and compare it with the learner, which computes meanwhile unless it has
        already.

        Raises CanaryError if the server does not sample the learner's policy under this name, and what `load` raises.
        """
        learned: list[float] = []
        sampled: list[float] = []
        through_cache: list[float] = []
        base: list[float] = []

        async def expect() -> None:
            if self._learned is None:
                await self.prepare(learner)
            learned.extend(self._learned or [])
            self._learned = None

        async def compute_anew(model: str, found: list[float]) -> None:
            found.extend(await self._client.logprobs(model, self.ids))

        async def continue_cached() -> None:
            prompts = [self.ids[: place + 1] for place in self._places]
            tokens = [self.ids[place + 1] for place in self._places]
            through_cache.extend(await self._client.next_logprobs(policy.model, prompts, tokens))

        async def ask() -> None:
            if load is not None:
                await load()
            jobs: list[Callable[[], Awaitable[None]]] = [
                continue_cached,
                functools.partial(compute_anew, policy.model, sampled),
            ]
            if self._first is None and self._base is not None:
                jobs.append(functools.partial(compute_anew, self._base, base))
            await run_all(jobs)

        await run_all([ask, expect])
        probe = LogprobProbe(policy.version, sampled, learned)
        if base:
            canaries.check_not_base(probe, base)
        first = self._first or probe
        canaries.check_arrived(probe, [first, *self._earlier] if first is not probe else [])
        canaries.check_same_policy(probe, first)
        canaries.check_cache(probe, self._places, through_cache)
        self._first = first
        self._earlier.append(probe)
        return probe


def probe_ids(chat: ChatFormat, most: int, *, block: int = 0) -> list[int]:
    """Return a conversation with tool calls, `BEYOND` tokens longer than `CACHED` or a block of the prefix cache, or of
    `most` tokens if that is less."""
    length = min(max(CACHED, block) + BEYOND, most)
    ids = chat.initial([{"role": "user", "content": "Add 17 and 25, then add 4 to it, and so on."}], [_TOOL])
    a, b = 17, 25
    while len(ids) < length:
        ids += chat.encode(f'<tool_call>\n{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>')
        ids += [chat.stop_token_ids[0], *chat.continuation([{"role": "tool", "content": str(a + b)}])]
        ids += chat.encode(f"The sum is {a + b}.")
        ids += [chat.stop_token_ids[0], *chat.continuation([{"role": "user", "content": f"Now add {b - 3}."}])]
        a, b = a + b, (b * 7) % 90 + 4
    return ids[:length]
