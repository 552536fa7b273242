"""Several engine GPUs hold replicas: here two on a CPU, with the argument that is used for GPUs."""

import asyncio
from pathlib import Path

import pytest
import torch

from mcp_rl.backends.base.base_model import load_learner
from mcp_rl.config import EngineConfig, TrainConfig
from mcp_rl.inference.vllm.arguments import ServingSpec
from mcp_rl.inference.vllm.compat.metrics import metric
from mcp_rl.inference.vllm.server import VllmServer
from mcp_rl.learning.disk.state import write_weights
from mcp_rl.tiny import weights_path

ON_A_CPU = {
    "args": {"data-parallel-size": 2, "distributed-executor-backend": "mp"},
    "environment": {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    "max_rows": 8,
}


async def test_every_replica_loads_the_adapter_and_answers(vllm_config: EngineConfig, tmp_path: Path) -> None:
    learner = load_learner("mcp-rl/tiny", TrainConfig())
    for name, weights in learner.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=0.05)
    (adapter := tmp_path / "adapter").mkdir()
    write_weights(learner.model, adapter)
    server = VllmServer(
        ServingSpec(str(weights_path()), "tiny", lora_rank=16, max_context=256),
        config=vllm_config.model_copy(update=ON_A_CPU),
        log=tmp_path / "vllm.log",
    )
    body = {"prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0, "logprobs": 1}
    async with server, server.client(timeout=120) as client:
        loaded = await client.post("/v1/load_lora_adapter", json={"lora_name": "p@1", "lora_path": str(adapter)})
        assert loaded.status_code == 200, loaded.text
        asked = [client.post("/v1/completions", json=body | {"model": name}) for name in ("p@1", "tiny") * 8]
        answers = [answer.json()["choices"][0]["logprobs"]["token_logprobs"] for answer in await asyncio.gather(*asked)]
        metrics = (await client.get("/metrics")).text
    for number, logprobs in enumerate(answers):  # rounding depends on the rest of a replica's batch
        assert logprobs == pytest.approx(answers[number % 2], abs=1e-4)
    assert answers[0] != pytest.approx(answers[1], abs=1e-2)
    for replica in ("0", "1"):
        lines = "\n".join(line for line in metrics.splitlines() if f'engine="{replica}"' in line)
        assert (metric(lines, "vllm:generation_tokens_total") or 0) > 0
