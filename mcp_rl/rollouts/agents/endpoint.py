"""The address at which agent programs ask: one port on loopback for a run, a key for each episode."""

from __future__ import annotations

import secrets
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from mcp_rl.inference.openai_api.app import make_app
from mcp_rl.inference.openai_api.running import bind, running
from mcp_rl.inference.openai_api.service import Service
from mcp_rl.rollouts.agents.mcp_address import McpAddress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from starlette.types import ASGIApp, Receive, Scope, Send

    from mcp_rl.inference.openai_api.served import ServedModel
    from mcp_rl.inference.openai_api.service import Handler
    from mcp_rl.rollouts.agents.mcp_address import ToolCaller

_NOTES = {
    "temperature": "its temperature is the run's (rollout.temperature, and 0 in greedy episodes)",
    "seed": "its seed is the episode's, as tries of one task must differ",
    "model": "the model in training answers to every name",
    "response_format": "its response_format is not enforced, as the tokens would not be those of the whole policy",
    "text": "its text format is not enforced",
    "output_config": "its output format is not enforced",
    "thinking": "its thinking is the policy's own",
    "reasoning": "its reasoning is the policy's own",
    "reasoning items": "its reasoning items are left out, as the model sees its thoughts as it sampled them",
    "thinking blocks": "its thinking blocks are left out, as the model sees its thoughts as it sampled them",
    "tools of other kinds than functions": "its tools of other kinds than functions are left out",
}


class AgentEndpoint:
    """Lets episodes in: `open` it, then `admit` each."""

    def __init__(self, say: Callable[[str], None], said: set[str]) -> None:
        """`said` grows by what was said, and nothing in it is said again."""
        self._say, self._said = say, said
        self._keys: dict[str, Service] = {}
        self._tools = McpAddress()
        self._api: ASGIApp = make_app(Service([]), keys=self._keys)
        self._address = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AgentEndpoint]:
        """Listen on a free port of loopback."""
        async with self._tools.open(), running(self, bind("127.0.0.1", 0)) as port:
            self._address = f"http://127.0.0.1:{port}"
            yield self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._tools if self._tools.answers(scope) else self._api
        await app(scope, receive, send)

    @contextmanager
    def admit(self, model: ServedModel, tools: ToolCaller, rewarded: Handler) -> Iterator[dict[str, str]]:
        """Answer one episode's key; give the variables by which its program finds us. `rewarded` takes the body of a
        request that gives the episode's reward."""
        key = f"sk-episode-{secrets.token_hex(24)}"
        self._keys[key] = Service([model], note=self._note, more={("POST", "/v1/reward"): rewarded})
        try:
            with self._tools.offering(key, tools) as path:
                yield {
                    "OPENAI_BASE_URL": f"{self._address}/v1",
                    "OPENAI_API_KEY": key,
                    "OPENAI_MODEL": model.names()[0],
                    "ANTHROPIC_BASE_URL": self._address,
                    "ANTHROPIC_API_KEY": key,
                    "ANTHROPIC_MODEL": model.names()[0],
                    "MCP_RL_MCP_URL": f"{self._address}{path}",
                }
        finally:
            del self._keys[key]

    def say_once(self, about: str, sentence: str) -> None:
        """Say a sentence about something of which nothing was said yet."""
        if about not in self._said:
            self._said.add(about)
            self._say(sentence)

    def _note(self, field: str) -> None:
        """Say what of a request is not honoured."""
        what = _NOTES.get(field, f"its {field} is not honoured, as tokens are drawn from the policy itself")
        self.say_once(field, f"The agent program's requests: {what}.")
