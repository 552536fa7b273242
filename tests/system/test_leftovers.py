"""Leftovers of an older run are found, named and ended; other processes are spared."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from mcp_rl.system.processes import leftovers as search
from mcp_rl.system.processes import marker
from mcp_rl.system.processes.leftovers import end_leftovers, leftovers
from mcp_rl.system.processes.marker import marker_in, marking

STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
IDLE = "import time; print('up', flush=True); time.sleep(600)"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Use a marker that no other start on this machine knows, and shorter times."""
    monkeypatch.setattr(marker, "OWNER", f"MCP_RL_OWNER_{abs(hash(tmp_path))}")
    monkeypatch.setattr(search, "_BY_ITSELF_SECONDS", 1.0)
    monkeypatch.setattr(search, "_POLITE_SECONDS", 0.5)


@contextmanager
def running(environment: dict[str, str], program: str = IDLE) -> "Iterator[subprocess.Popen[str]]":
    """Start a process with these variables, in a session of its own, without a watchdog."""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


def marked(owner: str, role: str = "learner", run: Path | None = None) -> dict[str, str]:
    return marking(role, run) | {marker.OWNER: owner}


@pytest.fixture
def dead_owner() -> str:
    """Return the marker of a process that has ended."""
    with running({}) as process:
        return f"{process.pid}:{psutil.Process(process.pid).create_time():.2f}"


def ours() -> list[int]:
    return [leftover.pid for leftover in leftovers()]


def test_what_an_owner_that_died_left_behind_is_named_and_ended(dead_owner: str, tmp_path: Path) -> None:
    said: list[str] = []
    with (
        running(marked(dead_owner, "learner", tmp_path)) as one,
        running(marked(dead_owner, "vllm", tmp_path), STUBBORN) as two,
    ):
        assert {one.pid, two.pid} <= set(ours())
        ended = end_leftovers(said.append)
        assert {one.pid, two.pid} <= {leftover.pid for leftover in ended}
        assert not any(map(psutil.pid_exists, (one.pid, two.pid)))
        sentence = next(sentence for sentence in said if f"(process {two.pid})" in sentence)
        assert sentence.startswith("Ended what an earlier run left behind: vllm (process ")
        assert f"of the run in {tmp_path}, " in sentence and sentence.endswith(" MB.")


def test_strangers_and_owned_processes_are_spared(dead_owner: str) -> None:
    pid = psutil.Process().pid
    with (
        running({}) as stranger,
        running(marking("learner", None)) as own,
        running(marked("what is this")) as odd,
        running(marked(f"{pid}:{psutil.Process().create_time():.0f}")) as clock_was_set,
        running(marked(dead_owner)) as left,
    ):
        end_leftovers()
        assert not psutil.pid_exists(left.pid)
        assert all(process.poll() is None for process in (stranger, own, odd, clock_was_set))


def test_a_process_id_that_is_used_again_is_no_living_owner() -> None:
    """The owner's id lives, but belonged to another process when the marker was written."""
    own = psutil.Process()
    with running(marked(f"{own.pid}:{own.create_time() - 1000:.2f}")) as left:
        assert left.pid in ours()
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    whose = marker_in({marker.OWNER: f"{zombie.pid}:{psutil.Process(zombie.pid).create_time():.2f}"})
    assert whose is not None
    deadline = time.monotonic() + 20
    while psutil.Process(zombie.pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not whose.owner_lives
    zombie.wait()


def test_an_owner_lives_on_where_the_clock_was_set_by_hours() -> None:
    """The time of creation changes when the clock is set."""
    own = marking("learner", None)[marker.OWNER]
    pid, _, rest = own.partition(":")
    created, _, ticks = rest.partition(":")
    assert ticks, "Linux tells it"
    with (
        running(marked(f"{pid}:{float(created) - 7200:.2f}:{ticks}")) as living,
        running(marked(f"{pid}:{created}:{int(ticks) + 1}")) as left,
    ):
        assert living.pid not in ours() and left.pid in ours()


def test_what_is_ending_by_itself_is_neither_named_nor_ended(dead_owner: str) -> None:
    said: list[str] = []
    brief = "import time; print('up', flush=True); time.sleep(0.2)"
    with running(marked(dead_owner), brief) as process:
        end_leftovers(said.append)
        assert process.wait(10) == 0
        assert not [sentence for sentence in said if f"(process {process.pid})" in sentence]


def test_children_are_found_even_with_a_changed_title(dead_owner: str) -> None:
    pytest.importorskip("setproctitle")
    program = """
import os, time, setproctitle
setproctitle.setproctitle("a title that is long enough to cover all of the arguments" * 10)
child = os.fork()
if child: print("up", flush=True)
time.sleep(600)
"""
    with running(marked(dead_owner), program) as process:
        child = psutil.Process(process.pid).children()[0]
        assert {process.pid, child.pid} <= set(ours())
        end_leftovers()
        assert not psutil.wait_procs([child], timeout=10)[1]


def test_processes_of_another_container_are_not_judged(dead_owner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids in their markers are of another namespace."""
    with running(marked(dead_owner)) as process:
        assert process.pid in ours()
        monkeypatch.setattr(search, "_namespace", lambda pid: "outer" if pid == os.getpid() else "inner")
        assert process.pid not in ours()
