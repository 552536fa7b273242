"""A server that already runs: anything that it lacks is one sentence before training starts."""

from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from mcp_rl.config import EngineConfig
from mcp_rl.errors import ConfigError
from mcp_rl.inference.vllm import checks
from mcp_rl.inference.vllm.arguments import ServingSpec, command, environment
from mcp_rl.inference.vllm.installed import find_vllm
from mcp_rl.inference.vllm.ports import free_port
from mcp_rl.inference.vllm.remote import RemoteServer, check_remote
from mcp_rl.inference.vllm.scratch import Scratch
from mcp_rl.inference.vllm.server import VllmServer
from mcp_rl.system.processes.spawn import spawned
from mcp_rl.tiny import weights_path

TINY = str(weights_path())


def remote(server: VllmServer, **more: object) -> RemoteServer:
    return RemoteServer(f"{server.url}/v1", api_key=server.api_key, model=TINY, **more)  # type: ignore[arg-type]


async def test_a_capable_server_is_used_and_left_alone(vllm_server: VllmServer, tmp_path: Path) -> None:
    found = remote(vllm_server, lora_rank=16, adapters=tmp_path / "adapters", max_context=2048)
    await found.check()
    assert not (tmp_path / "adapters").exists()
    await found.start()
    await found.ready()
    assert (found.url, found.served_name, found.max_context) == (vllm_server.url, "mcp-rl/tiny", 2048)
    assert (found.starts, found.sleeps) == (1, False)
    assert list((tmp_path / "adapters").iterdir()) == []
    await found.close()
    await vllm_server.ready()
    async with vllm_server.client(timeout=30) as client:
        names = [model["id"] for model in (await client.get("/v1/models")).json()["data"]]
    assert not [name for name in names if name.startswith("probe")]


async def test_the_key_comes_from_the_environment(vllm_server: VllmServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_RL_ENGINE_KEY", vllm_server.api_key)
    await RemoteServer(vllm_server.url).start()
    check_remote(RemoteServer(vllm_server.url))  # in a loop, as a run does before anything else
    monkeypatch.setenv("MCP_RL_ENGINE_KEY", "another")
    with pytest.raises(ConfigError, match="refuses the key: set MCP_RL_ENGINE_KEY"):
        await RemoteServer(vllm_server.url).start()


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"lora_rank": 64}, r"takes adapters of rank 16 at most, but train\.lora\.rank = 64"),
        ({"max_context": 4096}, r"takes 2048 tokens at most, but an episode may have 4096"),
    ],
)
async def test_an_unsuitable_server_is_refused(
    asked: dict[str, int], sentence: str, vllm_server: VllmServer, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        await remote(vllm_server, adapters=tmp_path, **asked).start()


async def test_another_base_model_is_refused(vllm_server: VllmServer) -> None:
    other = RemoteServer(vllm_server.url, api_key=vllm_server.api_key, model="Qwen/Qwen2.5-3B-Instruct")
    with pytest.raises(ConfigError, match=r"serves .*, but the run's base model is Qwen/Qwen2\.5-3B-Instruct"):
        await other.start()


async def test_an_unseen_folder_of_adapters_is_refused(
    vllm_server: VllmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not see the written files, as on another machine."""
    monkeypatch.setattr(checks, "write_atomically", lambda path, data: None)
    with pytest.raises(ConfigError, match=f"does not see {tmp_path}, where adapters are written"):
        await remote(vllm_server, lora_rank=8, adapters=tmp_path).start()


async def test_an_address_where_nobody_answers_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be reached"):
        await RemoteServer(f"http://127.0.0.1:{free_port()}").start()


@pytest.fixture
async def bare_server(vllm_python: Path, tmp_path: Path) -> AsyncIterator[RemoteServer]:
    """A server started without reading the documentation: raw logprobs, and no adapters."""
    vllm, served, port = find_vllm(vllm_python), ServingSpec(TINY, "tiny", max_context=256), free_port()
    words = command(vllm, EngineConfig(), served, port=port)
    at = words.index("--logprobs-mode")
    with closing(Scratch()) as scratch:
        variables = environment(vllm, EngineConfig(), served, key="k", scratch=scratch.environment)
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        log = tmp_path / "vllm.log"
        async with spawned(words[:at] + words[at + 2 :], role="vllm", run=None, log=log, environment=variables):
            server = RemoteServer(f"http://127.0.0.1:{port}", api_key="k", model=TINY, lora_rank=8, adapters=tmp_path)
            await server.ready()
            yield server


async def test_raw_logprobs_and_disabled_adapters_are_detected(bare_server: RemoteServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"returns logprobs from before the temperature: at 0\.5, two tokens are"):
        await bare_server.start()
    async with bare_server.client(timeout=60) as client:
        with pytest.raises(ConfigError, match=r"It takes no adapters: start it with .*--enable-lora --max-lora-rank 8"):
            await checks.check_adapters(client, "It", rank=8, folder=tmp_path)
        with pytest.raises(ConfigError, match=r"It takes no adapters: start it with"):
            await checks.check_adapters(client, "It", rank=8, folder=None)


async def test_a_server_without_runtime_adapters_is_refused(vllm_config: EngineConfig, tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    async with VllmServer(ServingSpec(TINY, "t", max_context=256), config=vllm_config, log=log) as server:
        with pytest.raises(ConfigError, match="cannot load adapters while it runs: start it with"):
            await remote(server, lora_rank=8, adapters=tmp_path).start()
