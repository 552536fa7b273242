"""vLLM's server with one adapter, for comparison. `make test-vllm` makes an environment that it can live in."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx

from mcp_rl.config import EngineConfig
from mcp_rl.inference.vllm.server import VllmServer

ADAPTER = "policy"


@asynccontextmanager
async def serving(
    python: str, model: Path, adapter: Path, *, threads: int, rows: int, log: Path
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the server, which lives as long as the context. Raises EngineStop where it does not come up."""
    threads_of = {"OMP_NUM_THREADS": str(threads)}
    config = EngineConfig(kind="vllm", python=Path(python), max_rows=rows, environment=threads_of)
    server = VllmServer(str(model), served_name="base", config=config, log=log, lora_rank=16, max_context=1024)
    async with server, server.client(timeout=300) as client:
        body = {"lora_name": ADAPTER, "lora_path": str(adapter)}
        (await client.post("/v1/load_lora_adapter", json=body)).raise_for_status()
        yield client


async def sample(client: httpx.AsyncClient, prompts: Sequence[Sequence[int]], tokens: int) -> int:
    """One request for each prompt, all in flight at once; returns the tokens that came back with ids and logprobs."""
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
