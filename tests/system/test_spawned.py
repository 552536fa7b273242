"""A child process and its descendants end with this process, however it ends, and its output is kept."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import psutil
import pytest

from mcp_rl.system.processes.spawn import _WATCHDOG as WATCHDOG
from mcp_rl.system.processes.spawn import send_signal, spawned

FAMILY = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"],
                 start_new_session=True)
print("begun", flush=True)
time.sleep(600)
"""


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def begun(log: Path) -> None:
    with anyio.fail_after(30):
        while not log.exists() or "begun" not in log.read_text():  # noqa: ASYNC110, ASYNC240
            await anyio.sleep(0.02)


async def test_all_of_it_is_gone_when_the_context_is_left(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "it.log"
    async with spawned(python(FAMILY), role="test", run=tmp_path, log=log) as child:
        await begun(log)
        family = psutil.Process(child.process.pid).children(recursive=True)
        assert len(family) == 2 and family[0].pid == child.pid
        assert child.returncode is None
    assert not psutil.wait_procs(family, timeout=10)[1]


async def test_a_crash_is_named_with_the_last_log_lines(tmp_path: Path) -> None:
    log = tmp_path / "it.log"
    async with spawned(python(FAMILY), role="test", run=None, log=log) as child:
        await begun(log)
        family = psutil.Process(child.process.pid).children(recursive=True)
        child.kill()
        with anyio.fail_after(20):
            assert await child.wait() == -signal.SIGKILL
        assert child.ending == "was killed by SIGKILL" and child.tail() == "begun"
        assert not psutil.wait_procs(family, timeout=10)[1]
    async with spawned(python("print('last words'); raise SystemExit(3)"), role="test", run=None, log=log) as child:
        with anyio.fail_after(20):
            assert await child.wait() == 3
        assert child.ending == "exited with status 3" and child.tail() == "last words"
    trace = (
        "Error: no key\\n    at main (file:///a/b.js:7:9)\\n    at Generator.next (<anonymous>)\\n\\nNode.js v20.19.2"
    )
    async with spawned(python(f"print('{trace}')"), role="test", run=None, log=log) as child:
        with anyio.fail_after(20):
            await child.wait()
        assert child.tail() == "Error: no key"
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    async with spawned(python(crash), role="test", run=None, log=log) as child:
        with anyio.fail_after(20):
            await child.wait()
        assert child.ending == "was killed by SIGSEGV" and child.tail() == ""


SHARING = """
import multiprocessing, signal, sys, time
from multiprocessing.shared_memory import SharedMemory
signal.signal(signal.SIGTERM, signal.SIG_IGN)
semaphore = multiprocessing.get_context("spawn").Lock()
memory = SharedMemory(create=True, size=4096)
print(memory.name.lstrip("/"), "sem." + semaphore._semlock.name.lstrip("/"), "begun", flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory has no names here")
@pytest.mark.parametrize("how", ["left", "killed", "the command alone is killed"])
async def test_shared_memory_and_folder_are_removed_after_a_kill(how: str, tmp_path: Path) -> None:
    log, own = tmp_path / "it.log", tmp_path / "own"
    own.mkdir()
    (own / "socket").touch()
    async with spawned(python(SHARING), role="test", run=None, log=log, folder=own) as child:
        await begun(log)
        made = [Path("/dev/shm", name) for name in log.read_text().split()[:2]]
        assert [path.exists() for path in made] == [True, True]
        if how != "left":
            child.kill() if how == "killed" else os.kill(child.pid, signal.SIGKILL)
            with anyio.fail_after(20):
                await child.wait()
    assert [path.exists() for path in (*made, own)] == [False, False, False]


async def test_it_sees_what_computing_needs_and_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("HF_TOKEN", "hf-secret")
    monkeypatch.setenv("VLLM_API_KEY", "vllm-secret")
    monkeypatch.setenv("HF_HOME", "/models")
    monkeypatch.setenv("CC", "/conda/bin/cc")
    monkeypatch.setenv("CCTV", "of no use")
    log = tmp_path / "it.log"
    shown = "os.environ.get('HF_HOME'), os.environ.get('CC'), os.environ['GIVEN'], os.environ['MCP_RL_ROLE']"
    program = f"import os; print({shown}, dict(os.environ))"
    given = {"GIVEN": "yes"}
    async with spawned(python(program), role="tester", run=None, log=log, environment=given) as child:
        with anyio.fail_after(20):
            await child.wait()
    said = log.read_text()
    assert said.startswith("/models /conda/bin/cc yes tester") and "secret" not in said and "CCTV" not in said


async def test_its_pipes_are_a_channel_and_its_end_closes_them(tmp_path: Path) -> None:
    program = (
        "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)\nprint('bye', file=sys.stderr)"
    )
    async with spawned(python(program), role="test", run=None, log=tmp_path / "log", pipes="pass") as child:
        assert child.process.stdin is not None and child.process.stdout is not None
        await child.process.stdin.send(b"hello\n")
        with anyio.fail_after(20):
            assert await child.process.stdout.receive() == b"HELLO\n"
            await child.process.stdin.aclose()
            assert await child.wait() == 0
        assert child.tail() == "bye"


async def test_a_signal_at_the_moment_of_its_end_takes_no_exit_code_away(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(40):
        process = await anyio.open_process(python("raise SystemExit(7)"))
        while not has_ended(process.pid):
            pass  # not a sleep: asyncio is not to notice the end before the signal is sent
        send_signal(process, signal.SIGTERM)
        assert await process.wait() == 7
        await process.aclose()
    assert not [record for record in caplog.records if "Unknown child" in record.message]


HOLDER = """
import anyio, sys
from pathlib import Path
from mcp_rl.system.processes.spawn import _WATCHDOG as WATCHDOG
from mcp_rl.system.processes.spawn import spawned

async def main():
    async with spawned([sys.executable, "-c", sys.argv[2]], role="test", run=None, log=Path(sys.argv[1])) as child:
        await anyio.sleep(600)

anyio.run(main)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_us(tmp_path: Path, how: signal.Signals) -> None:
    log = tmp_path / "it.log"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(log), FAMILY], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 30
        while (not log.exists() or "begun" not in log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        family = psutil.Process(holder.pid).children(recursive=True)
        assert len(family) == 3
        holder.send_signal(how)
        holder.wait(timeout=20)
        assert not psutil.wait_procs(family, timeout=10)[1]
    finally:
        holder.kill()
        holder.wait()


WITHOUT_PROC = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("watchdog", sys.argv.pop(1))
watchdog = importlib.util.module_from_spec(spec)
spec.loader.exec_module(watchdog)
watchdog._HAS_PROC = False
sys.exit(watchdog.main())
"""
IN_ONE_GROUP = """
import subprocess, sys, time
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
below = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
below.stdout.readline()
print("begun", below.pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("lives", ["600", "0"])
def test_without_proc_the_process_group_is_ended(tmp_path: Path, lives: str) -> None:
    """As on macOS, even if the command itself has ended."""
    folder = tmp_path / "own"
    folder.mkdir()
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*python(WITHOUT_PROC), str(WATCHDOG), "null", str(folder), "", "", *python(IN_ONE_GROUP), lives],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    said: list[str] = []
    deadline = time.monotonic() + 30
    while not said and time.monotonic() < deadline:
        said = (tmp_path / "log").read_text().split("\n")[:-1]
        time.sleep(0.02)
    below = int(said[0].removeprefix("begun "))
    if lives == "600":
        assert process.stdin is not None
        process.stdin.close()
    assert process.wait(20) == (0 if lives == "0" else 256 - signal.SIGTERM)
    assert not psutil.pid_exists(below) and not folder.exists()
