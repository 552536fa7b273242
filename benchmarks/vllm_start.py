"""Times of vLLM's server: until it serves, until its death is noticed, and until it serves again.

    python -m benchmarks.vllm_start --vllm-python .venv-vllm/bin/python [--rounds 3] > result.json

The built-in model with adapters of rank 16. Each round starts a server, kills it with SIGKILL, waits until it has
restarted itself, and closes it. Seconds of wall time, medians.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import tempfile
import time
from pathlib import Path

import anyio

from mcp_rl.config import EngineConfig
from mcp_rl.inference.vllm.arguments import ServingSpec
from mcp_rl.inference.vllm.server import VllmServer
from mcp_rl.tiny import weights_path


async def one_round(python: Path, folder: Path) -> dict[str, float]:
    config, log = EngineConfig(kind="vllm", python=python), folder / "vllm.log"
    served = ServingSpec(str(weights_path()), "tiny", lora_rank=16, max_context=1024)
    server = VllmServer(served, config=config, log=log)
    began = time.perf_counter()
    async with server:
        served = time.perf_counter()
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        while server.starts == 1:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        missed = time.perf_counter()
        await server.ready()
        again = time.perf_counter()
    closed = time.perf_counter()
    return {"start": served - began, "missed": missed - served, "restart": again - served, "close": closed - again}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", required=True, type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            rounds.append(await one_round(options.vllm_python, Path(folder) / str(number)))
    medians = {name: round(statistics.median(found[name] for found in rounds), 2) for name in rounds[0]}
    machine = {"cpu": platform.machine(), "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    print(json.dumps({"machine": machine, "seconds": medians, "rounds": rounds}, indent=2))


if __name__ == "__main__":
    anyio.run(main)
