"""The built-in model behind OpenAI's protocol, loaded once and served on a real port."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from openai import AsyncOpenAI

from benchmarks.loopback import serving
from mcp_rl.backends.samplers.policies import LocalPolicies
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.local import LocalEngine
from mcp_rl.inference.openai_api.app import make_app
from mcp_rl.inference.openai_api.served import fixed_model
from mcp_rl.inference.openai_api.service import Service


def tool(name: str, description: str) -> dict[str, Any]:
    number = {"type": "number"}
    parameters = {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [tool("add", "Add two numbers."), tool("multiply", "Multiply two numbers.")]
ASKED = [{"role": "user", "content": "Use add with a 3 and b 4."}]


@dataclass
class ServedTiny:
    """The address of a server, and the objects behind it."""

    url: str
    policies: LocalPolicies
    service: Service

    @property
    def engine(self) -> LocalEngine:
        return self.policies.engine

    @property
    def chat(self) -> ChatFormat:
        return self.policies.chat

    def client(self, **options: Any) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, **options)


@pytest.fixture(scope="session")
def policies() -> Iterator[LocalPolicies]:
    with start_blocking_portal("asyncio") as portal:
        opened = LocalPolicies("mcp-rl/tiny", gang=False, max_context=1024)
        with portal.wrap_async_context_manager(opened):
            yield opened


@pytest.fixture(scope="session")
def tiny(policies: LocalPolicies) -> Iterator[ServedTiny]:
    service = Service([fixed_model(["tiny", "tiny@0"], policies.engine, policies.chat, "mcp-rl/tiny", 1_700_000_000)])
    with serving(make_app(service)) as url:
        yield ServedTiny(url, policies, service)
