"""The GPU check on machines without a GPU: small shapes, the same code, the same JSON."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.gpu_check import checks as checks  # registers them
from benchmarks.gpu_check import measure, models, running, with_vllm
from benchmarks.gpu_check.odd_tokens import odd_tokens
from benchmarks.gpu_check.running import Outcome, main, run_check
from benchmarks.gpu_check.setting import CHECKS, DRY, REAL, Failed, Figures, Setting, Shape, Skipped
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.trajectory import Segment, Trajectory
from tests.benchmarks.gpu_environment import environment

QUICK = ["device", "gradients_float32", "update_2k", "lora_3b_shared", "lora_in_16_bits", "whole_weights"]
QUICK += ["overflow_in_float16", "canary_limits", "lengths_compile_once", "learner_rests", "sampler_agrees"]
NOT_HERE = ["vllm_swaps", "two_gpus"]


def test_a_dry_run_measures_and_reports_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MCP_RL_VLLM_PYTHON", raising=False)
    out = tmp_path / "results" / "gpu.json"
    assert main(["--dry-run", "--out", str(out), "--only", *QUICK, *NOT_HERE]) == 0
    result = json.loads(out.read_text())
    assert (result["dry_run"], result["device"], result["driver"], result["failed"]) == (True, "cpu", None, [])
    assert list(result["checks"]) == list(CHECKS)
    status = {name: found["status"] for name, found in result["checks"].items()}
    assert status == {name: "passed" if name in QUICK else "skipped" for name in CHECKS}
    assert all(found["reason"] for found in result["checks"].values() if found["status"] != "passed")
    reasons = [result["checks"][name]["reason"] for name in NOT_HERE]
    assert reasons == ["MCP_RL_VLLM_PYTHON names no Python that has vLLM", "there is no GPU, and it takes two"]
    figures = {name: found["figures"] for name, found in result["checks"].items()}
    assert figures["gradients_float32"]["relative_error"] < 1e-4
    assert figures["update_2k"]["shared"]["forward_tokens"] < figures["update_2k"]["unshared"]["forward_tokens"]
    assert figures["update_2k"]["unshared"]["operations_per_second"] > 0
    assert figures["lora_3b_shared"]["judged"] is False
    assert figures["overflow_in_float16"]["halved"] == figures["overflow_in_float16"]["scale"] / 2
    assert figures["whole_weights"]["swap_gb"] < figures["whole_weights"]["checkpoint_gb"] / 4
    assert 0 < figures["canary_limits"]["float16"]["against_float32"] < figures["canary_limits"]["float16"]["limit"]
    assert figures["sampler_agrees"]["tokens"] <= 8 * DRY.sampled
    assert "torch" in result["versions"]


def broken(setting: Setting) -> Figures:
    """Breaks."""
    raise RuntimeError("the device is gone")


NEVER_DONE = ["sleep", "61.0625"]


def slow(setting: Setting) -> Figures:
    """Never ends, nor does the process that it has started."""
    subprocess.run(NEVER_DONE)
    return {}


def dies(setting: Setting) -> Figures:
    """Ends its process."""
    os._exit(9)


def below(setting: Setting) -> Figures:
    """Measures, and misses its aim."""
    raise Failed("it is too slow", {"speed": 1.0})


def needless(setting: Setting) -> Figures:
    """Cannot run on this machine."""
    raise Skipped("there is nothing to measure")


def _words(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        if process.status() != psutil.STATUS_ZOMBIE:
            return process.cmdline()
    return []


@pytest.mark.parametrize(
    ("check", "status", "reason"),
    [
        (broken, "failed", "RuntimeError: the device is gone"),
        (slow, "failed", "it was not done in 1 s"),
        (dies, "failed", "its process died with exit code 9"),
        (below, "failed", "it is too slow"),
        (needless, "skipped", "there is nothing to measure"),
    ],
)
def test_a_check_that_goes_wrong_is_reported(
    check: Callable[[Setting], Figures], status: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CHECKS, "wrong", check)
    outcome = run_check("wrong", DRY, limit=1.0 if check is slow else 30.0)
    assert (outcome.status, outcome.reason) == (status, reason)
    assert outcome.about == check.__doc__
    assert not [process for process in psutil.process_iter() if _words(process) == NEVER_DONE]
    if check is below:
        assert outcome.figures == {"speed": 1.0}
    assert run_check("device", DRY, limit=60).status == "passed"


def test_after_cuda_was_used_checks_get_a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """bitsandbytes uses CUDA when PEFT imports it, and a process that is forked then cannot use the device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(CHECKS, "sees", environment)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    outcome = run_check("sees", DRY, limit=120)
    assert (outcome.status, outcome.figures["offline"], outcome.figures["devices"]) == ("passed", "1", "")
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_an_interrupted_check_keeps_its_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def some(setting: Setting, wanted: object, limit: float) -> Iterator[Outcome]:
        yield Outcome("device", "", figures={"name": "x", "where": tmp_path})
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "outcomes", some)
    assert main(["--dry-run", "--out", str(tmp_path / "gpu.json")]) == 130
    assert json.loads((tmp_path / "gpu.json").read_text())["checks"]["device"]["figures"]["where"] == str(tmp_path)


def test_the_work_of_an_update_is_counted_by_hand_to_the_same() -> None:
    shape = Shape(hidden=4, intermediate=6, layers=3, heads=2, kv_heads=1, vocabulary=10)
    # a layer: q and o 4x4 each, k and v 4x2 each, three of 4x6
    assert shape.layer_weights == 3 * (2 * 16 + 2 * 8 + 3 * 24)
    counts = {"forwarded": 5.0, "rows": 2.0, "pairs": 15.0}
    # of each weight and token 2 operations forward and 2 back; of a pair, head and dimension 4 forward and 8 back
    assert measure.operations(shape, counts) == 4 * 360 * 5 + 4 * 40 * 2 + 12 * 3 * 4 * 15


def test_an_aim_is_judged_only_on_a_device_that_could_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_peak(peak: float | None) -> None:
        monkeypatch.setattr(measure, "bf16_peak", lambda device: peak)

    with_peak(None)
    assert measure.judged({"x": 5.0}, "x", 10.0, DRY.device)["reaches_aim"] is False
    with_peak(312e12)
    assert measure.judged({"x": 5.0}, "x", 10.0, DRY.device)["judged"] is False
    with_peak(989e12)
    assert measure.judged({"x": 11.0}, "x", 10.0, DRY.device)["reaches_aim"] is True
    with pytest.raises(Failed, match="x is 5, and the aim on such a device is 10"):
        measure.judged({"x": 5.0}, "x", 10.0, DRY.device)


def test_a_random_base_is_a_model_with_a_full_tokenizer(tmp_path: Path) -> None:
    shape = Shape(hidden=32, intermediate=48, layers=1, heads=2, kv_heads=1, vocabulary=6000)
    folder = models.base_folder(shape, DRY, tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert len(tokenizer) == model.config.vocab_size == 6000
    assert all(tokenizer.decode([number]) for number in (4700, 5999))
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == ChatFormat(tokenizer).stop_token_ids[0]


def test_adapters_of_equal_names_are_equal_and_others_differ() -> None:
    first, second, later = (
        {name: torch.nn.Parameter(torch.zeros(4, 6)) for name in ("a.lora_A", "a.lora_B")} for _ in range(3)
    )
    for parameters, seed in ((first, 1), (second, 1), (later, 2)):
        models.move_adapter(parameters, seed=seed)
    assert all(torch.equal(first[name], second[name]) and not torch.equal(first[name], later[name]) for name in first)


def test_idle_time_and_freed_memory_are_judged() -> None:
    parts = {"sample": [9.0, 2.0], "rest": [0.1], "update": [3.0], "wake": [0.2], "swap": [5.0, 0.2]}
    found = with_vllm.step_figures(parts, {"share_gb": None}, DRY)
    assert found["idle_share"] == pytest.approx(0.5 / 5.5)
    with pytest.raises(Failed, match="50 % of a step is idle"):
        with_vllm.step_figures({**parts, "swap": [4.7]}, {"share_gb": None}, REAL)
    memory = {"share_gb": 60.0, "after_sample_gb": 61.0, "after_rest_gb": 58.0}
    with pytest.raises(Failed, match=r"sleep gave back 3.0 of vLLM's 60.0 GB"):
        with_vllm.step_figures(parts, memory, REAL)
    assert with_vllm.step_figures(parts, {**memory, "after_rest_gb": 5.0}, REAL)["given_back_by_sleep_gb"] == 56.0


def test_the_runs_reward_differs_from_episode_to_episode() -> None:
    scenario = McpScenario(task_description="t", server_params=StdioServer(command="true"))
    rewards = []
    for ids in ([1, 3, 4, 6], [2, 4, 6, 8]):
        segment = Segment()
        segment.observe([7, 9])
        segment.act(ids, [0.0] * 4, 0)
        rewards.append(odd_tokens(Trajectory(scenario_id="s", segments=[segment]), scenario).score)
    assert rewards == [0.5, 0.0]
