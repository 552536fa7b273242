"""The command and environment of a vLLM server, and the search for an installed vLLM, without vLLM."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from mcp_rl.config import EngineConfig, RunConfig
from mcp_rl.errors import ConfigError
from mcp_rl.inference.vllm import arguments
from mcp_rl.inference.vllm.arguments import (
    ServingSpec,
    check_installed,
    check_served,
    command,
    environment,
    weights_split,
)
from mcp_rl.inference.vllm.compat.log import Death
from mcp_rl.inference.vllm.installed import Installed, find_vllm
from mcp_rl.inference.vllm.server import VllmServer

GPU = Installed("/opt/vllm/bin/python", "0.32.0", cpu=False)
CPU = Installed("/opt/vllm/bin/python", "0.32.0", cpu=True)


def options(words: list[str]) -> dict[str, str | bool]:
    """A command line as a mapping; flags are True. Fails if an argument occurs twice."""
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
    return options(command(vllm, config, ServingSpec("org/model", "org/model", **served), port=1234))  # type: ignore[arg-type]


def test_the_command_asks_for_exact_logprobs_and_no_parsing_of_tool_calls() -> None:
    found = started()
    assert found["--host"] == "127.0.0.1"
    assert found["--logprobs-mode"] == "processed_logprobs"
    assert found["--generation-config"] == "vllm"
    assert "--tool-call-parser" not in found and "--enable-auto-tool-choice" not in found
    assert found["--enable-prefix-caching"] is True
    assert (found["--max-num-seqs"], found["--max-model-len"]) == ("32", "4096")
    assert "--enable-lora" not in found


def test_the_smaller_limit_of_the_context_counts() -> None:
    assert started(max_context=1000)["--max-model-len"] == "1000"
    assert started(max_context=9000)["--max-model-len"] == "4096"


@pytest.mark.parametrize(("rank", "taken"), [(1, "1"), (2, "8"), (16, "16"), (24, "32"), (512, "512")])
def test_the_rank_is_rounded_up_to_a_supported_one(rank: int, taken: str) -> None:
    found = started(lora_rank=rank, adapters=3)
    assert found["--max-lora-rank"] == taken
    assert (found["--max-loras"], found["--max-cpu-loras"]) == ("3", "6")


def test_a_rank_that_vllm_has_no_kernels_for_is_refused() -> None:
    with pytest.raises(ConfigError, match="600 is too high: vLLM takes adapters of rank 512 at most"):
        check_served(EngineConfig(), ServingSpec("m", "m", lora_rank=600))


def test_on_a_cpu_one_process_computes_in_float32() -> None:
    found = started(CPU, sleep=True)
    assert (found["--dtype"], found["--distributed-executor-backend"]) == ("float32", "uni")
    assert found["--enforce-eager"] is found["--no-enable-chunked-prefill"] is True
    assert found["--block-size"] == "32"
    assert "--worker-extension-cls" not in found
    assert started(CPU, lora_rank=8)["--worker-extension-cls"] == "mcp_rl_lora.Adapters"
    assert not {"--gpu-memory-utilization", "--enable-sleep-mode", "--tensor-parallel-size"} & set(found)
    variables = environment(
        CPU, EngineConfig(), ServingSpec("m", "m", sleep=True), key="k", env={"OMP_NUM_THREADS": "3"}
    )
    assert (variables["OMP_NUM_THREADS"], variables["VLLM_ENABLE_V1_MULTIPROCESSING"]) == ("3", "0")
    assert variables["VLLM_SERVER_DEV_MODE"] == "0"
    assert int(variables["VLLM_CPU_KVCACHE_SPACE"]) >= 1


def test_on_a_cpu_the_cache_respects_the_containers_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "machine_memory", lambda: (32 * 2**30, 2**30))
    assert environment(CPU, EngineConfig(), ServingSpec("m", "m"), key="k", env={})["VLLM_CPU_KVCACHE_SPACE"] == "2"


def test_on_a_gpu_memory_share_and_sleep_are_passed() -> None:
    found = started(sleep=True, dtype="bfloat16")
    assert (found["--dtype"], found["--gpu-memory-utilization"]) == ("bfloat16", "0.4")
    assert found["--enable-sleep-mode"] is True
    assert not {"--enforce-eager", "--block-size", "--worker-extension-cls"} & set(found)
    assert (
        environment(GPU, EngineConfig(), ServingSpec("m", "m", sleep=True), key="k", env={})["VLLM_SERVER_DEV_MODE"]
        == "1"
    )
    assert environment(GPU, EngineConfig(), ServingSpec("m", "m"), key="k", env={})["VLLM_SERVER_DEV_MODE"] == "0"


def test_several_gpus_hold_replicas_or_a_split_model() -> None:
    assert started(gpus=(2, 3))["--data-parallel-size"] == "2"
    assert "--tensor-parallel-size" not in started(gpus=(2, 3))
    both = started(gpus=(0, 1, 2, 3), args={"tensor_parallel_size": 2})
    assert (both["--data-parallel-size"], both["--tensor-parallel-size"]) == ("2", "2")
    assert "--data-parallel-size" not in started(gpus=(0, 1), args={"tensor_parallel_size": 2})
    with pytest.raises(ConfigError, match="names 3 GPUs, which is not a multiple of the 2 that"):
        check_served(EngineConfig(args={"tensor-parallel-size": 2}), ServingSpec("m", "m", gpus=(0, 1, 2)))
    with pytest.raises(ConfigError, match="names a GPU twice"):
        check_served(EngineConfig(), ServingSpec("m", "m", gpus=(0, 0)))


@pytest.mark.parametrize(
    ("billions", "gpus", "split"), [(3, 2, 1), (14, 2, 1), (32, 2, 2), (32, 4, 2), (70, 4, 4), (70, 3, 1), (3, 8, 1)]
)
def test_weights_are_split_only_if_they_fill_a_gpu(billions: int, gpus: int, split: int) -> None:
    assert weights_split(billions * 2 * 10**9, 80 * 2**30, gpus) == split


def test_gpus_are_counted_among_the_visible_ones() -> None:
    def seen(gpus: tuple[int, ...], visible: str | None) -> str:
        env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        return environment(GPU, EngineConfig(), ServingSpec("m", "m", gpus), key="k", env=env)["CUDA_VISIBLE_DEVICES"]

    assert seen((1, 2), None) == "1,2"
    assert seen((1,), "4,6") == "6"
    assert seen((0,), "GPU-abc") == "GPU-abc"
    with pytest.raises(ConfigError, match=r"GPU 2 is not there: CUDA_VISIBLE_DEVICES=4,6 leaves 2"):
        seen((2,), "4,6")
    with pytest.raises(ConfigError, match=r"GPU 1 is not there: CUDA_VISIBLE_DEVICES=4,-1,6 leaves 1"):
        seen((1,), "4,-1,6")  # CUDA stops reading at a negative number


def test_arguments_of_the_configuration_are_passed_on() -> None:
    found = started(args={"max_num_batched_tokens": 8192, "--kv-cache-dtype": "fp8", "async-scheduling": False})
    assert (found["--max-num-batched-tokens"], found["--kv-cache-dtype"]) == ("8192", "fp8")
    assert found["--no-async-scheduling"] is True
    without = started(args={"enable-prefix-caching": False})
    assert without["--no-enable-prefix-caching"] is True and "--enable-prefix-caching" not in without


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ({"port": 8000}, "engine.args has port, which cannot be set: a free one is chosen"),
        ({"--api-key": "x"}, "engine.args has --api-key, which cannot be set"),
        ({"max_model_len": 9}, "engine.args has max_model_len, which a setting decides: engine.max_context"),
        ({"no_enable_lora": True}, "engine.args has no_enable_lora, which cannot be set"),
        ({"override-generation-config.top_p": 0.9}, "would bias the importance ratio"),
        ({"a b; rm": 1}, "which is not the name of an argument"),
    ],
)
def test_reserved_arguments_are_refused(args: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"engine\.args") as refused:
        RunConfig(server=("x",), engine=EngineConfig(args=args))
    assert sentence in str(refused.value)
    with pytest.raises(ConfigError) as refused_too:
        check_served(EngineConfig(args=args), ServingSpec("m", "m"))
    assert sentence in str(refused_too.value)


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"VLLM_API_KEY": "x"}, "a random one is made for each start"),
        ({"HF_TOKEN": "x"}, "set secrets in your environment"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "placement.engine_gpus decides it"),
        ({"A=B": "x"}, "which is not a valid variable"),
    ],
)
def test_reserved_variables_and_secrets_are_refused(variables: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_served(EngineConfig(environment=variables), ServingSpec("m", "m"))
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        (EngineConfig(kind="local", memory_share=0.5), 'engine.kind = "local" is not vLLM'),
        (EngineConfig(url="http://127.0.0.1:1/v1", args={"seed": 1}), "engine.url and engine.args are both set"),
        (EngineConfig(url="127.0.0.1:8000"), "is not an http address"),
        (EngineConfig(url="http://me:secret@host/v1"), "holds a user name or password"),
    ],
)
def test_contradictory_engine_settings_are_refused(engine: EngineConfig, sentence: str) -> None:
    with pytest.raises(ValueError, match="engine") as refused:
        RunConfig(server=("x",), engine=engine)
    assert sentence in str(refused.value)


def test_secrets_are_in_the_environment_only(tmp_path: Path) -> None:
    env = {"HF_TOKEN": "hf_secret", "PATH": "/usr/bin"}
    hub = environment(GPU, EngineConfig(), ServingSpec("org/model", "m"), key="k3y", env=env)
    folder = environment(GPU, EngineConfig(), ServingSpec(str(tmp_path), "m"), key="k3y", env=env)
    assert hub["VLLM_API_KEY"] == "k3y" and "k3y" not in " ".join(
        command(GPU, EngineConfig(), ServingSpec("m", "m"), port=1)
    )
    assert hub["HF_TOKEN"] == "hf_secret" and "HF_HUB_OFFLINE" not in hub
    assert "HF_TOKEN" not in folder and folder["HF_HUB_OFFLINE"] == "1"
    assert "HF_TOKEN" not in environment(GPU, EngineConfig(), ServingSpec("o/m", "m", token=None), key="k", env=env)
    assert hub["PATH"] == f"/opt/vllm/bin{os.pathsep}/usr/bin"


def test_adapters_are_enabled_only_if_trained() -> None:
    def allowed(rank: int | None) -> str:
        variables = environment(GPU, EngineConfig(), ServingSpec("m", "m", lora_rank=rank), key="k", env={})
        return variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"]

    assert (allowed(8), allowed(None)) == ("1", "0")


def test_a_missing_vllm_names_the_command_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine\.python = '.*' is not a program"):
        find_vllm(tmp_path / "python")
    with pytest.raises(ConfigError, match=r"has no vLLM: install it there with `.* -m pip install vllm`"):
        find_vllm(Path(sys.executable))
    with pytest.raises(ConfigError, match=r"has no vLLM"):
        VllmServer(ServingSpec("m", "m"), config=EngineConfig(python=Path(sys.executable)), log=tmp_path / "log")


def venv_with_vllm(tmp_path: Path, name: str, version: str) -> Path:
    """Return the Python of an environment with a fake vLLM that must not be imported."""
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
def test_the_installed_vllm_is_found_without_importing_it(
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
    assert command(found, EngineConfig(), ServingSpec("m", "m"), port=1)[1:3] == [
        "-m",
        f"{'.'.join(launcher.parts[-4:])}.entry",
    ]


def test_a_base_in_4_bits_needs_the_plugin_of_vllm() -> None:
    config = EngineConfig(args={"quantization": "bitsandbytes"})
    with pytest.raises(ConfigError, match=r"`/opt/vllm/bin/python -m pip install vllm-bnb-plugin`"):
        check_installed(GPU, config)
    check_installed(GPU, EngineConfig())
    check_installed(dataclasses.replace(GPU, bitsandbytes=True), config)
    died = Death(False, None, 1, "ValueError: Invalid quantization method: bitsandbytes")
    assert "vllm-bnb-plugin" in died.sentence(Path("vllm.log"))
