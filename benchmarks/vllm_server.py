"""A vLLM server with one adapter, for comparison. `make test-vllm` makes an environment for it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx

from mcp_rl.config import EngineConfig
from mcp_rl.inference.vllm.arguments import ServingSpec
from mcp_rl.inference.vllm.server import VllmServer

ADAPTER = "policy"


@asynccontextmanager
async def serving(
    python: str, model: Path, adapter: Path, *, threads: int, rows: int, log: Path
) -> AsyncIterator[httpx.AsyncClient]:
    """Run a server within the context; yield a client of it. Raises EngineStop if the server does not come up."""
    environment = {"OMP_NUM_THREADS": str(threads)}
    config = EngineConfig(kind="vllm", python=Path(python), max_rows=rows, environment=environment)
    server = VllmServer(ServingSpec(str(model), "base", lora_rank=16, max_context=1024), config=config, log=log)
    async with server, server.client(timeout=300) as client:
        body = {"lora_name": ADAPTER, "lora_path": str(adapter)}
        (await client.post("/v1/load_lora_adapter", json=body)).raise_for_status()
        yield client


async def sample(client: httpx.AsyncClient, prompts: Sequence[Sequence[int]], tokens: int) -> int:
    """Send a request for each prompt, all at once; return the number of tokens that came back with ids and logprobs."""
    counts: list[int] = []

    async def one(ids: Sequence[int]) -> None:
        body = {"model": ADAPTER, "prompt": list(ids), "max_tokens": tokens, "ignore_eos": True, "temperature": 1.0}
        body |= {"logprobs": 1, "return_token_ids": True}
        answer = await client.post("/v1/completions", json=body)
        if answer.is_error:
            raise RuntimeError(f"vLLM answered {answer.status_code}: {answer.text[:500]}")
        choice = answer.json()["choices"][0]
        assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"])
        counts.append(len(choice["token_ids"]))

    async with anyio.create_task_group() as tasks:
        for ids in prompts:
            tasks.start_soon(one, ids)
    return sum(counts)
