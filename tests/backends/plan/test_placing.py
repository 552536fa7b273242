"""Impossible assignments of processes and devices are refused in one sentence before anything starts."""

from typing import Any

import pytest
from pydantic import ValidationError

from mcp_rl.backends.processes.environment import learner_environment
from mcp_rl.backends.processes.launched import Launched, check_launched, launched
from mcp_rl.backends.samplers.vllm_sampler import engine_devices
from mcp_rl.config import PlacementConfig, RunConfig, UnslothConfig
from mcp_rl.errors import ConfigError
from mcp_rl.system.processes.devices import device_environment


def refused(**settings: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate({"server": ("mcp_calculator",), **settings})
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"placement": {"learner_gpus": (0, 0)}}, "learner_gpus names GPU 0 twice"),
        ({"placement": {"learner_gpus": (0, 1), "engine_gpus": (2, 1)}}, "both name GPU 1"),
        ({"placement": {"engine_gpus": (1,)}, "engine": {"kind": "local"}}, 'engine.kind = "local"'),
        ({"placement": {"engine_gpus": (1,)}, "engine": {"url": "http://127.0.0.1:1/v1"}}, "names a running server"),
        ({"placement": {"learner_gpus": (0, 1), "learner_processes": 2}}, "for CPUs"),
        ({"placement": {"learner_gpus": (0, 1), "in_process": True}}, "processes of their own"),
        ({"placement": {"learner_gpus": (1,), "in_process": True}}, "CUDA_VISIBLE_DEVICES=1"),
        (
            {"placement": {"learner_processes": 9}, "rollout": {"groups_per_step": 2, "group_size": 4}},
            "9 learners have nothing to divide",
        ),
        (
            {"placement": {"learner_processes": 2}, "train": {"method": "full", "optimizer": "adafactor"}},
            "adafactor",
        ),
        ({"placement": {"learner_gpus": (0, 1)}, "unsloth": {"use": True}, "train": {"method": "full"}}, "FSDP2"),
    ],
)
def test_impossible_placements_are_refused(settings: dict[str, Any], said: str) -> None:
    assert said in refused(**settings)


@pytest.mark.parametrize(
    "placement",
    [
        {"learner_gpus": (0,), "engine_gpus": (0,)},
        {"learner_gpus": (0, 1), "engine_gpus": (2, 3)},
        {"learner_processes": 2},
    ],
)
def test_possible_placements_are_accepted(placement: dict[str, Any]) -> None:
    RunConfig.model_validate({"server": ("mcp_calculator",), "placement": placement})


def test_torchruns_variables_are_checked() -> None:
    assert launched({}) is None
    assert launched({"WORLD_SIZE": "1"}) is None
    given = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert launched(given) == Launched(3, 4, 1, 2)
    for wrong in ({"RANK": "4"}, {"RANK": "x"}, {"LOCAL_RANK": "2"}, {"WORLD_SIZE": "many"}):
        with pytest.raises(ConfigError, match="WORLD_SIZE="):
            launched(given | wrong)


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        ({"learner_gpus": (2, 3)}, "CUDA_VISIBLE_DEVICES"),
        ({"learner_processes": 3}, "torchrun started 2 learners"),
        ({"engine_gpus": (1,)}, "begin with 2"),
    ],
)
def test_settings_that_contradict_torchrun_are_refused(
    placement: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    check_launched(PlacementConfig(learner_gpus=(0, 1), learner_processes=2, engine_gpus=(2,)))
    with pytest.raises(ConfigError, match=said):
        check_launched(PlacementConfig.model_validate(placement))


@pytest.mark.parametrize(
    ("placement", "devices"),
    [
        ({}, ()),
        ({"learner_gpus": (1,)}, (1,)),
        ({"learner_gpus": (0, 1)}, (0, 1)),
        ({"learner_gpus": (0, 1), "engine_gpus": (2, 3)}, (2, 3)),
    ],
)
def test_vllm_samples_on_its_gpus_or_the_learners(
    placement: dict[str, Any], devices: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert engine_devices(PlacementConfig.model_validate(placement)) == devices


def test_vllm_shares_the_gpus_of_learners_that_torchrun_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert engine_devices(PlacementConfig()) == (0, 1)
    assert engine_devices(PlacementConfig(engine_gpus=(2,))) == (2,)


def test_learner_vllm_and_plan_number_gpus_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert learner_environment(UnslothConfig(), sampling=False)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert device_environment([0], {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
    assert learner_environment(UnslothConfig(), sampling=False)["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
