"""Facts about vLLM's versions: causes of death in its log, metrics, seeds on a CPU, signs of life, and the guard."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from mcp_rl.errors import EngineError
from mcp_rl.inference.vllm.compat.cpu import takes_seeds
from mcp_rl.inference.vllm.compat.known import IN_VLLM, highest_rank
from mcp_rl.inference.vllm.compat.log import Death, last_lines
from mcp_rl.inference.vllm.compat.metrics import metric
from mcp_rl.inference.vllm.compat.untied import untie
from mcp_rl.inference.vllm.pulse import Pulse


@pytest.mark.parametrize(
    ("log", "returncode", "cause"),
    [
        ("usage: x\nserver: error: unrecognized arguments: --nix 3\n", 2, "It does not know the argument --nix 3"),
        (
            "ValueError: Free memory on device cuda:0 (1.0/80.0 GiB) is less than desired GPU memory utilization",
            1,
            "lower engine.memory_share",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", 1, "The GPU ran out of memory"),
        (
            "ValueError: Model architectures ['FooForCausalLM'] are not supported for now.",
            1,
            "models of the kind ['FooForCausalLM']",
        ),
        ("INFO all is well", 137 - 256 + 110, "It was killed (signal 9)"),
        (
            "RuntimeError: something new\nINFO 11-21 18:00:00 [x.py:1] bye",
            1,
            "It ended with status 1. Its log, /r/vllm.log, ends: RuntimeError: something new",
        ),
    ],
)
def test_the_cause_of_death_is_read_from_the_log(log: str, returncode: int, cause: str) -> None:
    assert cause in Death(False, None, returncode, log).sentence(Path("/r/vllm.log"))


def test_the_last_lines_hold_errors_without_tracebacks() -> None:
    log = (
        "(APIServer pid=3) INFO 11-21 19:00:39 [a.py:1] fine\n"
        '(APIServer pid=3) ERROR 11-21 19:00:39 [async_llm.py:906]   File "x.py", line 1, in f\n'
        "(APIServer pid=3) ERROR 11-21 19:00:39 [async_llm.py:906]     ^^^^^^^^\n"
        "(APIServer pid=3) ERROR 11-21 19:00:39 [async_llm.py:906] vllm.EngineDeadError: EngineCore died.\n"
        "[W1121 18:37:26.7 utils.cpp:68] Warning: NUMA binding failed with an error\n"
    )
    assert last_lines(log) == "vllm.EngineDeadError: EngineCore died."
    assert "Its engine process died. Its log, log, ends:" in Death(True, None, 0, log).sentence(Path("log"))


def test_a_log_cannot_steer_the_terminal() -> None:
    assert last_lines("Error: \x1b[2J\x07boom") == "Error:  [2J boom"


def test_old_log_lines_are_not_the_cause_of_death() -> None:
    log = "MemoryError\n" + "INFO 11-21 18:00:00 [x.py:1] fine\n" * 2000
    assert "It ended with status 1" in Death(True, None, 1, log).sentence(Path("log"))
    assert "The machine ran out of memory" in Death(False, None, 1, log).sentence(Path("log"))


class _Stub(BaseHTTPRequestHandler):
    """A server with vLLM's signs of life, set by `life`."""

    life: dict[str, float]

    def do_GET(self) -> None:
        running, tokens = self.life["running"], self.life["tokens"]
        metrics = f'vllm:num_requests_running{{engine="0"}} {running}\nvllm:generation_tokens_total {tokens}\n'
        text = "" if self.path == "/health" else metrics
        self.life["tokens"] += self.life["pace"]
        self.send_response(int(self.life["status"]))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None: ...


@contextmanager
def living(**life: float) -> Iterator[str]:
    handler = type("Handler", (_Stub,), {"life": {"running": 0, "tokens": 0, "pace": 0, "status": 200} | life})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("life", "asleep", "reason"),
    [
        ({"status": 503}, False, "It is frozen: it has not answered for"),
        ({"running": 3}, False, "It is frozen: 3 requests run, and no token was computed"),
        ({"running": 3}, True, None),
        ({"running": 0}, False, None),
        ({"running": 3, "pace": 1}, False, None),
    ],
)
async def test_a_frozen_server_is_detected(life: dict[str, float], asleep: bool, reason: str | None) -> None:
    pulse, found = Pulse(every=0.02, seconds=5, silent=0.15, idle=0.15), None
    with living(**life) as url:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            with anyio.move_on_after(None if reason else 0.5):
                found = await pulse.until_frozen(client, asleep=lambda: asleep)
    assert found is None if reason is None else (found or "").startswith(reason)


def test_on_a_cpu_seeds_need_prompts_in_one_chunk() -> None:
    assert takes_seeds({}) and takes_seeds({"enable-chunked-prefill": False})
    assert not takes_seeds({"enable-chunked-prefill": True})


def test_a_metric_is_summed_over_its_labels() -> None:
    text = 'a{engine="0"} 2.0\na{engine="1"} 3e1\n# HELP a a\nab 7\nb 1'
    assert (metric(text, "a"), metric(text, "b"), metric(text, "c")) == (32.0, 1.0, None)


def test_the_guard_lets_nothing_pass_without_the_key_but_health() -> None:
    program = """
import asyncio, json, sys
from mcp_rl_guard import Guard

async def app(scope, receive, send):
    await send({"type": "passed"})

def outcome(kind, path, headers):
    sent = []
    async def send(message):
        sent.append(message)
    scope = {"type": kind, "path": path, "headers": headers}
    asyncio.run(Guard(app)(scope, None, send))
    return sent[0]["type"] if "status" not in sent[0] else sent[0]["status"]

key, wrong = [(b"authorization", b"Bearer k3y")], [(b"authorization", b"Bearer k3")]
print(json.dumps([
    outcome("http", "/v1/models", key), outcome("http", "/v1/models", wrong), outcome("http", "/v1/models", []),
    outcome("http", "/collective_rpc", []), outcome("http", "/health", []), outcome("http", "/health/../v1", []),
    outcome("websocket", "/v1/realtime", key), outcome("lifespan", "", []),
]))
"""
    variables = {"PYTHONPATH": str(IN_VLLM), "VLLM_API_KEY": "k3y", "PYTHONSAFEPATH": "1"}
    ran = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, check=True)
    assert json.loads(ran.stdout) == ["passed", 401, 401, 401, "passed", 401, "websocket.close", "passed"]


def test_the_highest_rank_is_read_from_a_refusal() -> None:
    assert highest_rank("LoRA rank 100000 is greater than max_lora_rank 16.") == 16
    assert highest_rank("LoRA is not enabled.") is None


def test_a_tied_output_layer_becomes_a_tensor_of_its_own(tmp_path: Path) -> None:
    embedding = torch.arange(6.0).view(3, 2)
    save_file({"model.embed_tokens.weight": embedding}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": true}')
    for _ in range(2):  # the second time nothing is tied
        untie(tmp_path)
        weights = load_file(tmp_path / "model.safetensors")
        assert torch.equal(weights["lm_head.weight"], embedding) and len(weights) == 2
        assert json.loads((tmp_path / "config.json").read_text()) == {"tie_word_embeddings": False}


def test_a_tied_model_in_several_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": true}')
    with pytest.raises(EngineError, match="from a single file only"):
        untie(tmp_path)
