"""For all tests: one quiet torch thread, set before torch is imported. Threads that spin for each other make a busy
machine ten times slower, and results are bit-identical only at the same number of threads.

And what keeps the whole of them short. The long files begin first, so that no worker is left with one at the end; files
that share a run go to one worker, which makes it once. What is imported is kept out of the garbage collector's sight:
nothing of it is freed while it is imported, and our code collects when it gives models back: half a second for each of
these is a tenth of all tests' time.
"""

import gc
import os
import signal
import sys
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from mcp_rl.toolserver import instances

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test needs the model hub, and PEFT asks it at every save

# How long an example takes says how busy the machine is.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

# Where no bytecode may be written, every process of every test would compile all of it again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Eight processes of a server for each processor are most of the time of a test that plays a dozen short episodes.
USUAL_INSTANCES, instances._PER_PROCESSOR = instances._PER_PROCESSOR, 1

# A shell that starts us in the background has SIGINT ignored, and what we start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

TOGETHER = ("tests/evaluation/page/", "tests/runs/finished/")
"""Folders whose files share what takes long to make."""
LONG = (
    "tests/runs/test_train_resume.py",
    "tests/test_example_programs.py",
    "tests/system/test_lives_of_a_run.py",
    "tests/scenarios/test_stateful.py",
    "tests/backends/",
    "tests/runs/",
    "tests/learning/test_parallel.py",
    "tests/conformance/",
    "tests/evaluation/page/",
    "tests/inspector/",
    "tests/scenarios/test_explore.py",
    "tests/faults/",
    "tests/scenarios/",
    "tests/toolserver/",
    "tests/plugins/",
    "tests/explore/",
    "tests/docs/test_tutorials.py",
    "tests/inference/chat/test_trained_families.py",
    "tests/test_imports.py",
    "tests/test_python_example.py",
)
"""Tests that begin first, by the processor time that they take; the others follow as they are found."""


class ByFile(LoadFileScheduling):
    """A worker takes a file at a time, or all files of a folder that share something."""

    def _split_scope(self, nodeid: str) -> str:
        return next(filter(nodeid.startswith, TOGETHER), super()._split_scope(nodeid))


@pytest.fixture
def usual_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many processes of a server as outside the tests."""
    monkeypatch.setattr(instances, "_PER_PROCESSOR", USUAL_INSTANCES)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    config.option.loadscopereorder = False  # as we order them, not by how many tests a file has
    return ByFile(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((n for n, begin in enumerate(LONG) if item.nodeid.startswith(begin)), len(LONG)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)  # the usual ones are a tenth of what remains
        gc.enable()
