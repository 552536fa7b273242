"""The number of torch's threads."""

import os
import subprocess
import sys
import time

import pytest

from mcp_rl.system.threads import UPDATE_THREADS, crowding, free_cpus, prepare_torch_threads


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", UPDATE_THREADS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_the_same_number_as_in_an_earlier_part_of_the_run() -> None:
    assert prepare_torch_threads(3, 4) == (3, 4)
    assert (os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"]) == ("3", "PASSIVE")


def test_a_run_of_an_earlier_version_updates_with_the_threads_that_it_sampled_with() -> None:
    assert prepare_torch_threads(3, None) == (3, 3)


def test_the_users_own_setting_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert prepare_torch_threads() == (2, 2)
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


def test_busy_cpus_do_not_count_and_one_always_does() -> None:
    cpus = len(os.sched_getaffinity(0))
    assert 1 <= free_cpus(0.05) <= cpus
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * cpus)]
    try:
        time.sleep(0.3)
        assert free_cpus(0.2) == 1
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


@pytest.mark.parametrize(("waiting", "times"), [(0.2, 1.0), (3.0, 3.0), (50.0, 4.0)])
def test_patience_grows_with_the_processes_that_want_a_cpu(
    waiting: float, times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (waiting * (os.cpu_count() or 1), 0.0, 0.0))
    assert crowding() == times


def test_one_cpu_is_left_to_the_tools() -> None:
    sampling, update = prepare_torch_threads(sample_seconds=0.02)
    assert 1 <= sampling <= max(1, len(os.sched_getaffinity(0)) - 1)
    assert sampling == max(1, update - 1)


def test_a_small_model_samples_with_one_thread_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_rl.system.threads.free_cpus", lambda _: 8)
    assert prepare_torch_threads(small=True) == (1, 8)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert prepare_torch_threads(small=False) == (7, 8)


def test_an_update_has_its_own_number_and_gives_it_back() -> None:
    program = (
        "from mcp_rl.system.threads import prepare_torch_threads; prepare_torch_threads(1, 2);"
        "import torch; from mcp_rl.learning.threads import update_threads; counts = [torch.get_num_threads()]\n"
        "with update_threads():\n    counts.append(torch.get_num_threads())\n"
        "print(*counts, torch.get_num_threads())"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "1 2 1"


def test_torch_gets_that_number() -> None:
    program = (
        "from mcp_rl.system.threads import prepare_torch_threads; import sys; prepare_torch_threads(2);"
        "assert 'torch' not in sys.modules; import torch; print(torch.get_num_threads())"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "2"
