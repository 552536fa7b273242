"""Proof, after each swap, that a server samples the learner's policy, from known tokens (law 9).

A conversation that never changes is given to both sides at once. The server computes all of it anew, and tokens near
its end once more after whatever beginnings its prefix cache holds. `learning/canaries.py` says what must agree.
"""

import functools
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from mcp_rl.backends.hosts import LearnerHost
from mcp_rl.chat.hermes import ChatFormat
from mcp_rl.inference.vllm.client import VllmClient
from mcp_rl.inference.vllm.engine import PolicyVersion
from mcp_rl.learning import canaries
from mcp_rl.learning.canaries import Probe
from mcp_rl.tasks import run_all

CACHED = 128
"""Tokens that a prefix cache of usual blocks (16 tokens on a GPU, 32 or 128 on a CPU) holds whole blocks of."""
BEYOND = 16
"""Tokens after them."""
THROUGH_CACHE = 8
"""Tokens that are computed after a cached beginning: all of their prompts begin with the same `CACHED` tokens, so that
together they cost hardly more than those, and each is wrong where the cache is another policy's."""
REMEMBERED = 8
"""Versions that a new one is compared with, besides the first."""
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
    """What was found of each version so far."""

    def __init__(self, client: VllmClient, ids: Sequence[int], *, base: str | None = None, block: int = 0) -> None:
        """`base` is the name of the server's base model, where a policy is an adapter that makes another of it; `block`
        the tokens of a block of its prefix cache."""
        self._client, self._base = client, base
        self.ids = list(ids)
        cached = max(CACHED, block)
        begin = cached if len(ids) >= cached + BEYOND else len(ids) // 2
        self.reads_cache = block <= begin
        """Whether what is asked after a cached beginning can be in the cache: whole blocks are."""
        self._places = sorted({begin + (len(ids) - 1 - begin) * i // THROUGH_CACHE for i in range(THROUGH_CACHE)})
        """Indices in the list of log-probabilities, which begins with the second token's."""
        self._first: Probe | None = None
        self._earlier: deque[Probe] = deque(maxlen=REMEMBERED)

    async def check(
        self, learner: LearnerHost, policy: PolicyVersion, load: Callable[[], Awaitable[None]] | None = None
    ) -> Probe:
        """Have the server `load` the policy where it has not, while the learner computes what must come out.

        Raises CanaryError where the server does not sample the learner's policy under this name, and what `load`
        raises.
        """
        learned: list[float] = []
        sampled: list[float] = []
        through_cache: list[float] = []
        base: list[float] = []

        async def expect() -> None:
            learned.extend((await learner.token_logprobs([self.ids]))[0])

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
        probe = Probe(policy.version, sampled, learned)
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
    """A conversation with tool calls, `BEYOND` tokens longer than `CACHED` or a block of the prefix cache, or `most`
    tokens where that is less."""
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
