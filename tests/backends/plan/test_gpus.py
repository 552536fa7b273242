"""GPUs that CUDA programs see, by nvidia-smi's output and by the environment."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_rl.backends.plan.gpus import parse_smi, read_gpus, visible_gpus
from mcp_rl.backends.plan.machine import GIB, Gpu
from mcp_rl.errors import ConfigError
from mcp_rl.system.processes.devices import device_environment, visible_entries

PRINTED = """\
0, GPU-11aa, NVIDIA A100-SXM4-80GB, 81920, 81000, 8.0, 550.54.15
1, GPU-22bb, Tesla T4, 15360, 100, 7.5, 550.54.15
2, GPU-33cc, Some old thing, 4096, 4096, [N/A], 550.54.15
3, GPU-44dd, Broken, [Unknown Error], [Unknown Error], 8.0, 550.54.15
No devices were found
"""


def test_nvidia_smi_output_is_read_without_broken_lines() -> None:
    found = [gpu for _, gpu in parse_smi(PRINTED)]
    assert [gpu.name for gpu in found] == ["NVIDIA A100-SXM4-80GB", "Tesla T4", "Some old thing"]
    assert (found[0].memory, found[0].capability, found[0].driver) == (80 * GIB, (8, 0), "550.54.15")
    assert [gpu.bfloat16 for gpu in found] == [True, False, True]


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["0", "1", "2"]),
        ("", []),
        ("-1", []),
        ("1", ["1"]),
        ("2,0", ["2", "0"]),
        ("1,7,0", ["1"]),
        ("0,-1,1", ["0"]),
        ("1,1", ["1"]),
        ("GPU-22", ["GPU-22"]),
        ("GPU-33cc,0", ["GPU-33cc", "0"]),
    ],
)
def test_cuda_visible_devices_selects_as_cuda_does(visible: str | None, names: list[str]) -> None:
    found = visible_gpus(parse_smi(PRINTED), visible)
    assert [gpu.device for gpu in found] == names
    assert [gpu.number for gpu in found] == list(range(len(names)))


def test_a_uuid_selects_its_gpu() -> None:
    (gpu,) = visible_gpus(parse_smi(PRINTED), "GPU-22bb")
    assert gpu.name == "Tesla T4"


def test_a_child_process_sees_the_numbered_gpus() -> None:
    assert device_environment([1, 3], {}) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1,3"}
    given = {"CUDA_VISIBLE_DEVICES": "5,GPU-22bb,7"}
    assert device_environment([0, 1], given)["CUDA_VISIBLE_DEVICES"] == "5,GPU-22bb"
    with pytest.raises(ConfigError, match="GPU 3 is not there: CUDA_VISIBLE_DEVICES=5,GPU-22bb,7 leaves 3"):
        device_environment([0, 3], given)


@settings(deadline=None)
@given(st.lists(st.integers(0, 7), unique=True, min_size=1), st.data())
def test_grandchildren_see_the_same_gpus(numbers: list[int], data: st.DataObject) -> None:
    inner = data.draw(st.lists(st.integers(0, len(numbers) - 1), unique=True, min_size=1))
    outer = device_environment(numbers, {})
    seen = visible_entries(device_environment(inner, outer)["CUDA_VISIBLE_DEVICES"])
    assert seen == [str(numbers[number]) for number in inner]


@settings(deadline=None)
@given(st.text(max_size=20))
def test_no_value_of_the_variable_is_an_error(text: str) -> None:
    gpus = [(uuid, gpu) for uuid, gpu in parse_smi(PRINTED)]
    found: tuple[Gpu, ...] = visible_gpus(gpus, text)
    assert len(found) <= 3


def test_an_empty_variable_hides_all_gpus() -> None:
    assert read_gpus({"CUDA_VISIBLE_DEVICES": ""}) == read_gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == ()
