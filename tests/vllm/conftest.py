"""Tests that need a real vLLM: `make test-vllm`. MCP_RL_VLLM_PYTHON names the Python of an environment that has it.

They share one server of the built-in model, which lives for the whole session in a thread with a loop of its own.
A test loads adapters under names of its own and unloads them again; a test that kills a server starts one itself.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from mcp_rl.config import EngineConfig
from mcp_rl.inference.vllm.arguments import ServingSpec
from mcp_rl.inference.vllm.server import VllmServer
from mcp_rl.tiny import weights_path

VARIABLE = "MCP_RL_VLLM_PYTHON"
MAX_CONTEXT = 2048


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.vllm)


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The Python of vLLM's environment."""
    named = os.environ.get(VARIABLE)
    if not named:
        pytest.fail(f"{VARIABLE} does not name the Python of an environment with vLLM; `make test-vllm` makes one.")
    return Path(named)


@pytest.fixture(scope="session")
def vllm_config(vllm_python: Path) -> EngineConfig:
    """Settings with which vLLM samples; add to them with `model_copy`."""
    return EngineConfig(kind="vllm", python=vllm_python, max_rows=64)


@pytest.fixture(scope="session")
def vllm_server(vllm_config: EngineConfig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A running server of the built-in model (named `mcp-rl/tiny`) that takes adapters up to rank 16, four at once.

    `url`, `api_key`, `served_name`, `starts` and `ready()` work in any loop. Nobody closes it, kills it or has it
    sleep.
    """
    server = VllmServer(
        ServingSpec(str(weights_path()), "mcp-rl/tiny", lora_rank=16, max_context=MAX_CONTEXT, new_weights=True),
        config=vllm_config,
        log=tmp_path_factory.mktemp("vllm") / "vllm.log",
    )
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(server):
        yield server
