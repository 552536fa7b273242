"""Choices for settings that are left open, by machine, and wishes that are refused."""

import json
import os
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mcp_rl.backends.hosts import LocalSettings
from mcp_rl.backends.local import LocalBackend
from mcp_rl.backends.plan.choices import (
    Choices,
    engine_kind,
    in_process,
    kept_quantisation,
    resolve,
    resolve_alone,
)
from mcp_rl.backends.plan.detect import detect
from mcp_rl.backends.plan.machine import Machine
from mcp_rl.backends.plan.wishes import check_size, check_wishes
from mcp_rl.config import TINY, EngineConfig, PlacementConfig, RolloutConfig, RunConfig, TrainConfig, UnslothConfig
from mcp_rl.errors import ConfigError
from mcp_rl.model import TrainableModel
from mcp_rl.tiny import weights_path
from tests.backends.plan.machines import SHAPES, machine, planned

CPU = Machine(cpus=2, free_cpus=2, memory=2**34, free_memory=2**34, packages={"torch": "1", "vllm": "1"})
LIMITS = RolloutConfig(max_tokens=2048)


def settings(tmp_path: Path, **parts: Any) -> LocalSettings:
    return LocalSettings(base_model=SHAPES["3B"], run=tmp_path, title="any/run", **parts)


def chosen(tmp_path: Path, there: Machine, **parts: Any) -> Choices:
    return resolve(settings(tmp_path, rollout=LIMITS, **parts), machine=there)


def test_without_a_gpu_nothing_changes(tmp_path: Path) -> None:
    found = chosen(tmp_path, CPU.model_copy(update={"memory": 2**40, "free_memory": 2**40}))
    assert found.settings == settings(tmp_path, rollout=LIMITS)
    assert (found.plan, found.said) == (None, [])
    assert found.train(config := TrainConfig(learning_rate=1.0)) is config


def test_memory_does_not_change_how_the_tiny_model_is_computed(tmp_path: Path) -> None:
    asked = settings(tmp_path).model_copy(update={"base_model": TINY})
    found = resolve(asked, machine=CPU.model_copy(update={"memory": 2**30, "free_memory": 2**20}))
    assert (found.settings, found.plan, found.said) == (asked, None, [])


def test_a_model_large_for_a_cpu_learns_in_smaller_parts(tmp_path: Path) -> None:
    asked = settings(tmp_path).model_copy(update={"base_model": SHAPES["0.5B"]})
    found = resolve(asked, machine=CPU)
    assert found.settings.train.microbatch_tokens < 16384 and found.settings.engine.max_rows == 8
    assert "tokens in a pass" in found.said[0]
    assert found.settings.model_copy(update={"train": asked.train, "engine": asked.engine}) == asked
    given = asked.model_copy(update={"train": TrainConfig(microbatch_tokens=9999)})
    assert resolve(given, machine=CPU).settings.train.microbatch_tokens == 9999


def test_without_a_gpu_learner_and_engine_are_in_process() -> None:
    if detect().usable_gpus:
        pytest.skip("this machine has a GPU")
    assert in_process(PlacementConfig()) and engine_kind(EngineConfig()) == "local"
    assert not in_process(PlacementConfig(in_process=False))


def test_on_a_gpu_open_settings_are_decided_in_one_line(tmp_path: Path) -> None:
    found = chosen(tmp_path, machine(24))
    made, there = found.plan, found.settings
    assert made is not None and made.fits
    assert (there.engine.kind, there.engine.sharing, there.placement.in_process) == ("vllm", "sleep", False)
    assert (there.engine.memory_share, there.engine.max_context) == (made.memory_share, made.context)
    assert (there.unsloth.dtype, there.unsloth.load_in_4bit) == ("bfloat16", False)
    assert there.train.microbatch_tokens == made.microbatch_tokens
    assert there.train.activation_checkpointing == made.activation_checkpointing
    assert found.said[0] == made.line and "importance_cap" in found.said[1] and len(found.said) == 2
    assert LocalSettings.model_validate_json(there.model_dump_json()) == there


def test_the_tiny_model_is_sampled_in_process_unless_asked(tmp_path: Path) -> None:
    built_in = settings(tmp_path).model_copy(update={"base_model": TINY})
    assert resolve(built_in, machine=machine(24)).settings.engine.kind == "local"
    asked = built_in.model_copy(update={"engine": EngineConfig(kind="vllm")})
    assert resolve(asked, machine=machine(24)).settings.engine.kind == "vllm"


def test_what_somebody_set_is_kept(tmp_path: Path) -> None:
    parts: dict[str, Any] = {
        "engine": EngineConfig(kind="local", max_context=3000, max_rows=7),
        "placement": PlacementConfig(in_process=True),
        "unsloth": UnslothConfig(load_in_4bit=True, dtype="float16"),
        "train": TrainConfig(microbatch_tokens=512, activation_checkpointing=False, importance_cap=0.0),
    }
    there = chosen(tmp_path, machine(80), **parts).settings
    assert (there.engine.kind, there.engine.max_context, there.engine.max_rows) == ("local", 3000, 7)
    assert there.placement.in_process and there.train == parts["train"]
    assert there.unsloth == parts["unsloth"].model_copy(update={"use": False})  # it is not installed


def test_settings_of_a_later_step_are_completed_the_same_way(tmp_path: Path) -> None:
    found = chosen(tmp_path, machine(24))
    later = found.train(TrainConfig(learning_rate=3e-5))
    assert later == found.settings.train.model_copy(update={"learning_rate": 3e-5})
    assert found.train(TrainConfig(microbatch_tokens=256)).microbatch_tokens == 256


@pytest.mark.parametrize(("engine", "cap"), [("vllm", 2.0), ("local", None)])
def test_a_sampler_that_rounds_otherwise_is_corrected(tmp_path: Path, engine: Any, cap: float | None) -> None:
    found = chosen(tmp_path, machine(24), engine=EngineConfig(kind=engine))
    assert found.settings.train.importance_cap == cap
    assert any("importance_cap" in sentence for sentence in found.said) == (cap is not None)


@pytest.mark.parametrize(("dtype", "cap"), [("auto", None), ("float32", None), ("bfloat16", 2.0)])
def test_on_a_cpu_it_is_only_where_sixteen_bits_were_asked_for(tmp_path: Path, dtype: Any, cap: float | None) -> None:
    parts: dict[str, Any] = {"engine": EngineConfig(kind="vllm"), "unsloth": UnslothConfig(dtype=dtype)}
    found = chosen(tmp_path, CPU, **parts)
    assert found.settings.train.importance_cap == found.train(TrainConfig()).importance_cap == cap


def test_a_run_goes_on_in_the_precision_that_it_was_begun_with(tmp_path: Path) -> None:
    assert kept_quantisation(tmp_path) is None
    (tmp_path / "model.json").write_text(json.dumps({"loaded": {"quantisation": "4-bit"}}))
    small = chosen(tmp_path, machine(80))
    assert small.settings.unsloth.load_in_4bit is True and small.plan and small.plan.quantisation == "4-bit"
    (tmp_path / "model.json").write_text(json.dumps({"loaded": {"quantisation": "none"}}))
    assert chosen(tmp_path, machine(10)).settings.unsloth.load_in_4bit is False


def test_a_new_run_is_loaded_as_what_it_begins_with_was(tmp_path: Path) -> None:
    loaded = {"base_model": SHAPES["3B"], "model_name": SHAPES["3B"], "quantisation": "4-bit", "dtype": "float32"}
    (tmp_path / "first" / "checkpoints" / "0005").mkdir(parents=True)
    (tmp_path / "first" / "model.json").write_text(json.dumps({"loaded": {**loaded, "revision": "d" * 40}}))
    for init in (tmp_path / "first", tmp_path / "first" / "checkpoints" / "0005"):
        found = chosen(tmp_path / "second", machine(80), init=init).settings.unsloth
        assert found.load_in_4bit is True and found.revision == "d" * 40 and found.dtype == "bfloat16"
    asked = chosen(tmp_path / "second", machine(80), init=init, unsloth=UnslothConfig(load_in_4bit=False))
    assert asked.settings.unsloth.load_in_4bit is False


def test_a_learner_without_a_sampler_has_all_memory() -> None:
    keep = {"offload_while_sampling": "keep"}
    sampled = planned(machine(24), "7B", unsloth={"load_in_4bit": False}, train=keep)
    alone, said = resolve_alone(SHAPES["7B"], TrainConfig(), machine=machine(24))
    assert not sampled.fits and alone.activation_checkpointing and alone.importance_cap is None
    assert said == [
        f"Some GPU 24GB: {alone.microbatch_tokens:,} tokens of {SHAPES['7B']} in a pass, activations recomputed."
    ]
    assert resolve_alone(TINY, TrainConfig(), machine=machine(24)) == (TrainConfig(), [])


@pytest.mark.parametrize("content", ["", "[]", '{"loaded": 3}', '{"loaded": {"quantisation": "new"}}'])
def test_a_model_json_that_says_nothing_of_it_decides_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.json").write_text(content)
    assert kept_quantisation(tmp_path) is None


def test_a_plan_that_does_not_fit_leaves_limits_open(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        chosen(tmp_path, machine(8), train=TrainConfig(method="full"))
    assert str(refused.value).count("GiB") >= 2 and "With train.method=lora it fits" in str(refused.value)
    config = RunConfig.model_validate({"server": "any", "base_model": SHAPES["0.5B"], "train": {"method": "full"}})
    with pytest.raises(ConfigError, match=r"With train\.method=lora it fits"):  # and before a server is started
        check_size(config, machine(8))
    check_size(config, machine(80))
    (tmp_path / "model.json").write_text('{"loaded": {"quantisation": "none"}}')  # it was begun, so it may have fitted
    found = chosen(tmp_path, machine(8), train=TrainConfig(method="full"))
    assert any(sentence.startswith("This may run out of memory: Qwen") for sentence in found.said)
    assert found.settings.engine.max_context is None
    assert found.settings.train.microbatch_tokens == TrainConfig().microbatch_tokens


def test_a_model_of_unknown_size_is_planned_without_its_size(tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "odd"}')
    asked = LocalSettings(base_model=str(folder), run=tmp_path, title="any/run")
    found = resolve(asked, machine=machine(24))
    assert found.plan is None and "was not planned" in found.said[0]
    assert (found.settings.engine.kind, found.settings.placement.in_process) == ("vllm", False)


def test_large_weights_are_split_over_the_engines_gpus(tmp_path: Path) -> None:
    asked = LocalSettings(
        base_model=SHAPES["32B"],
        run=tmp_path,
        title="any/run",
        placement=PlacementConfig(learner_gpus=(0,), engine_gpus=(1, 2)),
    )
    assert resolve(asked, machine=machine(80, 3)).settings.engine.args == {"tensor-parallel-size": 2}


def test_torchruns_ranks_keep_the_learner_in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setitem(os.environ, name, value)
    found = chosen(tmp_path, machine(24, 2))
    assert found.settings.placement.in_process is True
    assert in_process(PlacementConfig())


@pytest.mark.parametrize(
    ("there", "parts", "sentence"),
    [
        (CPU, {"unsloth": {"device_map": "cuda:0"}}, "'cuda:0' does not exist: this machine has no GPU"),
        (
            CPU,
            {"unsloth": {"device_map": "gpu0"}},
            "'gpu0' is neither one of auto, balanced, balanced_low_0, sequential nor",
        ),
        (machine(24), {"unsloth": {"device_map": "cuda:1"}}, "does not exist: the learner sees 1, counted from 0."),
        (machine(24), {"placement": {"engine_gpus": [1]}}, "names GPU 1, but this machine has 1 GPU, numbered 0."),
        (machine(24, 4), {"placement": {"learner_gpus": [0, 4]}}, "this machine has 4 GPUs, numbered 0 to 3."),
        (CPU, {"placement": {"learner_gpus": [0]}}, "placement.learner_gpus names GPU 0, but this machine has no GPU"),
        (
            machine(24).model_copy(update={"cuda_build": None}),
            {"placement": {"learner_gpus": [0]}},
            "the installed torch was built without CUDA.",
        ),
        (CPU, {"unsloth": {"use": True}}, "unsloth.use = true needs a GPU, but this machine has no GPU"),
        (CPU, {"unsloth": {"dtype": "float16"}}, "unsloth.dtype = float16 needs a GPU"),
        (machine(16, capability=(7, 5)), {"unsloth": {"dtype": "bfloat16"}}, "Some GPU 16GB does not support it"),
        (CPU, {"engine": {"python": "/nowhere/python"}}, "'/nowhere/python' is not a program"),
        (CPU, {"engine": {"url": "http://127.0.0.1:1/v1"}}, "The vLLM server at http://127.0.0.1:1 cannot be reached"),
    ],
)
def test_a_wish_that_cannot_be_is_one_sentence(there: Machine, parts: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_wishes(RunConfig.model_validate({"server": "any", **parts}), there)
    assert sentence in str(refused.value) and "\n" not in str(refused.value)


def test_wishes_that_can_be_pass() -> None:
    parts = {"placement": {"learner_gpus": [0, 1], "engine_gpus": [2, 3]}, "unsloth": {"dtype": "bfloat16"}}
    check_wishes(RunConfig.model_validate({"server": "any", **parts}), machine(24, 4))
    check_wishes(RunConfig(server=("any",)))


async def test_the_machine_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [CPU, CPU.model_copy(update={"free_memory": 0})]
    monkeypatch.setattr("mcp_rl.backends.plan.choices.detect", lambda *_: seen.pop(0))
    model = TrainableModel[None]("any", "demo", str(weights_path()), base_path=tmp_path)
    async with LocalBackend() as backend:
        await backend.begin(model)
        said = await backend.choose(model)
        assert len(seen) == 1 and said == await backend.choose(model)


async def test_a_backend_closed_before_it_loads_says_so(tmp_path: Path) -> None:
    model = TrainableModel[None]("any", "demo", TINY, base_path=tmp_path)
    backend = LocalBackend()
    said: list[str] = []

    async def register() -> None:
        with pytest.raises(ConfigError) as refused:
            await model.register(backend)
        said.append(str(refused.value))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(register)
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        await backend.close()
    assert said == ["The backend was closed while its model was loaded."] and backend._learner is None


def test_a_run_that_is_to_be_removed_decides_nothing(tmp_path: Path) -> None:
    run = tmp_path / "demo" / "models" / "any"
    run.mkdir(parents=True)
    loaded = {"base_model": TINY, "model_name": str(weights_path()), "weights": "0123456789abcdef"}
    (run / "model.json").write_text(json.dumps({"loaded": loaded}))
    config = RunConfig.model_validate({"server": "any", "project": "demo", "name": "any", "output_dir": tmp_path})
    assert config.run_dir == run
    with pytest.raises(ConfigError, match="holds other weights now"):
        check_wishes(config, CPU)
    check_wishes(config, CPU, fresh=True)


@pytest.mark.parametrize("named", [True, False])
async def test_a_backend_learns_with_what_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    small = CPU.model_copy(update={"memory": 2**30, "free_memory": 2**30})
    monkeypatch.setattr("mcp_rl.backends.plan.choices.detect", lambda *_: small)
    base = TINY if named else str(weights_path())
    model = TrainableModel[None]("any", "demo", base, base_path=tmp_path)
    async with LocalBackend(config=TrainConfig(learning_rate=1e-3), rollout=RolloutConfig(), seed=3) as backend:
        said = await backend.choose(model)
        await model.register(backend)
        assert (said == []) == named
        assert (backend.learner.config.microbatch_tokens == 16384) == named
        assert backend.learner.config.learning_rate == backend.config.learning_rate == 1e-3
