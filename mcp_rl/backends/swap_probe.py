"""Proof, after each swap, that a server samples the learner's policy, from known tokens (law 9).

A conversation that never changes is given to both sides. The server computes it twice: its second half token by token
after whatever beginnings its prefix cache holds, then all of it anew. `learning/canaries.py` says what must agree.
"""

from collections import deque
from collections.abc import Sequence

import anyio

from mcp_rl.backends.hosts import LearnerHost
from mcp_rl.chat.hermes import ChatFormat
from mcp_rl.inference.vllm.client import VllmClient
from mcp_rl.inference.vllm.engine import PolicyVersion
from mcp_rl.learning import canaries
from mcp_rl.learning.canaries import Probe

TOKENS = 320
"""More than two blocks of a prefix cache: 128 tokens each on a CPU, 16 on a GPU."""
THROUGH_CACHE = 8
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

    def __init__(self, client: VllmClient, ids: Sequence[int], *, base: str | None = None) -> None:
        """`base` is the name of the server's base model, where a policy is an adapter that makes another of it."""
        self._client, self._base = client, base
        self.ids = list(ids)
        half = len(self.ids) // 2
        self._places = sorted({half + (len(self.ids) - 1 - half) * i // THROUGH_CACHE for i in range(THROUGH_CACHE)})
        """Indices in the list of log-probabilities, which begins with the second token's."""
        self._first: Probe | None = None
        self._earlier: deque[Probe] = deque(maxlen=REMEMBERED)

    async def check(self, learner: LearnerHost, policy: PolicyVersion) -> Probe:
        """Raises CanaryError where the server does not sample the learner's policy under this name."""
        through_cache = dict.fromkeys(self._places, 0.0)

        async def ask(place: int) -> None:
            through_cache[place] = await self._client.next_logprob(
                policy.model, self.ids[: place + 1], self.ids[place + 1]
            )

        async with anyio.create_task_group() as tasks:
            for place in self._places:
                tasks.start_soon(ask, place)
        sampled = await self._client.logprobs(policy.model, self.ids)
        (learned,) = await learner.token_logprobs([self.ids])
        probe = Probe(policy.version, sampled, learned)
        if self._first is None and self._base is not None:
            canaries.check_not_base(probe, await self._client.logprobs(self._base, self.ids))
        first = self._first or probe
        canaries.check_arrived(probe, [first, *self._earlier] if first is not probe else [])
        canaries.check_same_policy(probe, first)
        canaries.check_cache(probe, self._places, list(through_cache.values()))
        self._first = first
        self._earlier.append(probe)
        return probe


def probe_ids(chat: ChatFormat, most: int) -> list[int]:
    """A conversation with tool calls, as long as `TOKENS`, or `most` where that is less."""
    ids = chat.initial([{"role": "user", "content": "Add 17 and 25, then add 4 to it, and so on."}], [_TOOL])
    a, b = 17, 25
    while len(ids) < TOKENS:
        ids += chat.encode(f'<tool_call>\n{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>')
        ids += [chat.stop_token_ids[0], *chat.continuation([{"role": "tool", "content": str(a + b)}])]
        ids += chat.encode(f"The sum is {a + b}.")
        ids += [chat.stop_token_ids[0], *chat.continuation([{"role": "user", "content": f"Now add {b - 3}."}])]
        a, b = a + b, (b * 7) % 90 + 4
    return ids[: min(TOKENS, most)]
