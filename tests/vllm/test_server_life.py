"""A server that this package starts: it serves, demands its key, restarts once, says why not, and ends with us."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import httpx
import psutil
import pytest

from mcp_rl.config import EngineConfig
from mcp_rl.errors import EngineError, EngineStop
from mcp_rl.inference.vllm import server as server_module
from mcp_rl.inference.vllm.arguments import ServingSpec
from mcp_rl.inference.vllm.ports import free_port
from mcp_rl.inference.vllm.pulse import Pulse
from mcp_rl.inference.vllm.server import VllmServer
from mcp_rl.system.processes.inherited import RUN
from mcp_rl.tiny import weights_path

PROMPT = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 4, "logprobs": 1, "return_token_ids": True}


def a_server(
    config: EngineConfig,
    run: Path,
    *,
    say: Callable[[str], None] | None = None,
    pulse: Pulse | None = None,
    **served: object,
) -> VllmServer:
    spec = ServingSpec(str(weights_path()), "tiny", **served)  # type: ignore[arg-type]
    return VllmServer(spec, config=config, log=run / "logs" / "vllm.log", run=run, say=say, pulse=pulse)


def processes_of(run: Path) -> list[psutil.Process]:
    """Find all living processes of a run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN) == str(run.resolve()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.05)


async def sampled(server: VllmServer) -> int:
    async with server.client(timeout=60) as client:
        answer = await client.post("/v1/completions", json=PROMPT)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"])
    return len(choice["token_ids"])


async def test_a_prompt_of_ids_comes_back_as_ids_with_their_logprobs(vllm_server: VllmServer) -> None:
    async with vllm_server.client(timeout=60) as client:
        answer = await client.post("/v1/completions", json=PROMPT | {"model": vllm_server.served_name})
    choice = answer.json()["choices"][0]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) == 4
    assert vllm_server.max_context == 2048
    assert vllm_server.starts == 1


async def test_nothing_but_health_is_answered_without_the_key(vllm_server: VllmServer) -> None:
    async with httpx.AsyncClient(base_url=vllm_server.url) as client:
        assert (await client.get("/health")).status_code == 200
        for path in ("/v1/models", "/metrics", "/collective_rpc", "/invocations", "/adapters", "/openapi.json"):
            assert (await client.post(path)).status_code == 401, path
            wrong = {"Authorization": f"Bearer {vllm_server.api_key[:-1]}"}
            assert (await client.post(path, headers=wrong)).status_code == 401, path


async def test_the_key_is_in_no_file_and_on_no_command_line(vllm_server: VllmServer) -> None:
    assert vllm_server.pid is not None
    for process in [psutil.Process(vllm_server.pid), *psutil.Process(vllm_server.pid).children(recursive=True)]:
        assert vllm_server.api_key not in " ".join(process.cmdline())
    assert vllm_server.api_key not in vllm_server.log.read_text(encoding="utf-8", errors="replace")


async def test_sleep_does_nothing_on_a_cpu(vllm_server: VllmServer) -> None:
    assert not vllm_server.sleeps
    await vllm_server.sleep()
    await vllm_server.wake()
    await vllm_server.ready()


async def test_a_server_that_dies_of_waking_is_started_again_awake(
    vllm_config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_server(vllm_config, tmp_path, max_context=256) as server:
        monkeypatch.setattr(VllmServer, "sleeps", property(lambda server: True))

        async def killed(path: str, **query: str) -> None:
            os.kill(server.pid or 0, signal.SIGKILL)
            raise EngineError(f"vLLM's server did not answer {path}.")

        server._ask = killed  # type: ignore[method-assign]
        await server.wake()
        assert server.starts == 2 and await sampled(server) > 0


async def test_a_killed_server_is_restarted_once(
    vllm_config: EngineConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_server(vllm_config, tmp_path, lora_rank=8, max_context=256) as server:
        before = server.url, server.api_key
        assert server.pid is not None
        server._asleep = True  # as on a GPU while the learner uses its memory
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: not server._serves)
        await anyio.sleep(1)
        assert (server.starts, processes_of(tmp_path)) == (1, [])
        await server.wake()
        await until(lambda: server.starts == 2)
        await server.ready()
        assert (server.url, server.api_key) != before
        assert await sampled(server) > 0
        assert "died and is being restarted. It was killed (signal 9)" in caplog.text
        (engine,) = [p for p in processes_of(tmp_path) if "EngineCore" in " ".join(p.cmdline())]
        engine.kill()
        await until(lambda: not server._serves)
        with pytest.raises(EngineStop, match=r"died twice and is not restarted\. .*vllm\.log"):
            await server.ready()
        await until(lambda: not processes_of(tmp_path))
    assert server.starts == 2


async def test_a_frozen_server_is_restarted(
    vllm_config: EngineConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pulse = Pulse(every=0.5, seconds=2, silent=4)
    async with a_server(vllm_config, tmp_path, max_context=256, pulse=pulse) as server:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        await until(lambda: server.starts == 2)
        await server.ready()
        assert "It is frozen: it has not answered for" in caplog.text
        assert await sampled(server) > 0
    assert processes_of(tmp_path) == []


async def test_a_port_that_somebody_took_is_given_up(
    vllm_config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = [taken.getsockname()[1]]
        monkeypatch.setattr(server_module, "free_port", lambda: ports.pop() if ports else free_port())
        async with a_server(vllm_config, tmp_path, max_context=256) as server:
            assert server.starts == 2
            assert await sampled(server) > 0


@pytest.mark.parametrize(
    ("args", "served", "sentence"),
    [
        (
            {"no-such-argument": 1},
            {},
            "did not start. It does not know the argument --no-such-argument: remove it from engine.args",
        ),
        ({}, {"max_context": 100_000}, "The model has 8192 positions: set engine.max_context to that or less"),
    ],
)
async def test_a_start_that_fails_says_why_and_is_not_tried_again(
    args: dict[str, int], served: dict[str, int], sentence: str, vllm_config: EngineConfig, tmp_path: Path
) -> None:
    server = a_server(vllm_config.model_copy(update={"args": args}), tmp_path, **served)
    with pytest.raises(EngineStop) as stopped:
        async with server:
            pass
    assert sentence in str(stopped.value)
    assert stopped.value.exit_code == 2
    assert str(tmp_path / "logs" / "vllm.log") in str(stopped.value)
    assert server.starts == 1
    assert processes_of(tmp_path) == []


async def test_a_slow_start_is_reported_and_ended(
    vllm_config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(server_module, "_SAY_SECONDS", 0.5)
    server = a_server(vllm_config.model_copy(update={"start_seconds": 2.0}), tmp_path, say=said.append)
    await server.start()
    with pytest.raises(EngineStop, match=r"It was not ready within engine\.start_seconds = 2"):
        await server.ready()
    assert said and said[0].startswith("vLLM's server has been starting for ")
    await until(lambda: not processes_of(tmp_path))
    await server.close()


async def test_closing_it_while_it_starts_leaves_nothing(vllm_config: EngineConfig, tmp_path: Path) -> None:
    server = a_server(vllm_config, tmp_path)
    await server.start()
    await until(lambda: len(processes_of(tmp_path)) > 0)
    await server.close()
    assert processes_of(tmp_path) == []
    with pytest.raises(EngineStop, match="is closed"):
        await server.ready()


def test_a_server_ends_with_a_killed_starter(vllm_python: Path, tmp_path: Path) -> None:
    program = f"""
import asyncio
from pathlib import Path
from mcp_rl.config import EngineConfig
from mcp_rl.inference.vllm.arguments import ServingSpec
from mcp_rl.inference.vllm.server import VllmServer

async def main():
    run = Path({str(tmp_path)!r})
    config = EngineConfig(kind="vllm", python=Path({str(vllm_python)!r}))
    served = ServingSpec({str(weights_path())!r}, "tiny")
    server = VllmServer(served, config=config, log=run / "vllm.log", run=run)
    async with server:
        print("serves", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        try:
            assert parent.stdout.readline() == "serves\n"
            assert len(processes_of(tmp_path)) >= 2  # vLLM's server and its engine, at least
        finally:
            parent.kill()
    deadline = time.monotonic() + 30
    while (left := processes_of(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
