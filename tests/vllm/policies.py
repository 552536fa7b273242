"""A learner whose policy tests move, and a sampler on the server that tests share."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from mcp_rl.backends.base.base_model import load_tokenizer
from mcp_rl.backends.hosts import LocalSettings
from mcp_rl.backends.processes.in_process import InProcessLearner
from mcp_rl.backends.samplers.vllm_sampler import VllmSampler
from mcp_rl.config import TINY, TrainConfig
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.vllm.server import VllmServer


class Lent:
    """The shared server, which a sampler neither starts nor ends."""

    def __init__(self, server: VllmServer) -> None:
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    async def start(self) -> None: ...

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...

    async def close(self) -> None: ...


class MovingLearner(InProcessLearner):
    """A learner that tests move by hand, with its earlier policies."""

    def __init__(self, run: Path, method: str = "lora") -> None:
        train = TrainConfig.model_validate({"method": method})
        super().__init__(LocalSettings(base_model=TINY, run=run, title="test/policy", train=train))
        self.history: dict[int, dict[str, torch.Tensor]] = {}

    def move(self, size: float = 0.02) -> int:
        """Move the policy by one step; return the step."""
        learner = self.learner
        random = torch.Generator().manual_seed(learner.step)
        with torch.no_grad():
            for parameter in self._moving().values():
                parameter.add_(size * torch.randn(parameter.shape, generator=random))
        learner.step += 1
        return int(learner.step)

    def remember(self) -> None:
        """Keep the current policy under its step."""
        self.history[self.step] = {name: p.detach().clone() for name, p in self._moving().items()}

    @asynccontextmanager
    async def as_of(self, step: int) -> AsyncIterator[None]:
        """Give the learner the policy of an earlier step."""
        now = {name: p.detach().clone() for name, p in self._moving().items()}
        self._put(self.history[step])
        try:
            yield
        finally:
            self._put(now)

    def _put(self, weights: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self._moving().items():
                parameter.copy_(weights[name])

    def _moving(self) -> dict[str, torch.nn.Parameter]:
        model = self.learner.model
        adapted = isinstance(model, PeftModel)
        return {n: p for n, p in model.named_parameters() if p.requires_grad and (not adapted or "lora_B" in n)}


@asynccontextmanager
async def sampling(learner: MovingLearner, server: VllmServer | None = None) -> AsyncIterator[VllmSampler]:
    """Open a sampler of this learner's policy at its step; `server`: the shared one, or None for one of its own."""
    await learner.open()
    learner.remember()
    sampler = VllmSampler(learner.settings, server=Lent(server) if server else None)
    try:
        await sampler.open(learner, ChatFormat(load_tokenizer(TINY)))
        await sampler.take(learner, learner.step)
        yield sampler
    finally:
        if server is not None:
            for policy in sampler.engine.held:
                await sampler.engine.forget(policy)
        await sampler.close()


async def largest_difference(
    learner: MovingLearner, episodes: Sequence[tuple[list[int], list[int], list[float], int]]
) -> float:
    """Largest difference of sampled logprobs at temperature 1 to the learner of their version.

    episodes: (prompt, ids, logprobs, version) of each.
    """
    worst = 0.0
    for version in {episode[3] for episode in episodes}:
        mine = [episode for episode in episodes if episode[3] == version]
        async with learner.as_of(version):
            found = await learner.token_logprobs([prompt + ids for prompt, ids, _, _ in mine])
        for (prompt, _, logprobs, _), learned in zip(mine, found, strict=True):
            own = learned[len(prompt) - 1 :]
            worst = max(worst, *(abs(a - b) for a, b in zip(own, logprobs, strict=True)))
    return worst
