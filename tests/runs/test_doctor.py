"""`mcp-rl doctor` on this machine, and its report on simulated ones."""

import http.server
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from mcp_rl.backends.plan.detect import detect, torch_gpus
from mcp_rl.backends.plan.machine import Machine
from mcp_rl.cli.printing.doctor_tables import print_report
from mcp_rl.config import RunConfig
from mcp_rl.runs.doctor import examine as examination
from mcp_rl.runs.doctor.examine import DoctorReport, examine
from mcp_rl.runs.doctor.surroundings import KEYS, hub, keys, loopback_port
from mcp_rl.runs.doctor.versions import disagreements
from mcp_rl.system.processes.marker import marking
from mcp_rl.system.processes.memory import machine_memory
from tests.backends.plan.machines import SHAPES, machine

SECRET = "sk-nobody-may-see-this-0123456789"


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mcp_rl", "doctor", *words]
    given = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "120", **environment}
    return subprocess.run(command, capture_output=True, text=True, env=given, timeout=120)


def shown(report: DoctorReport, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_report(report, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_built_in_model_works_here_and_no_key_is_shown() -> None:
    said = run(OPENAI_API_KEY=SECRET, HF_TOKEN=SECRET)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "A run of mcp-rl/tiny works here." in said.stdout and said.stderr == ""
    (line,) = (line for line in said.stdout.splitlines() if line.startswith("keys set"))
    assert "OPENAI_API_KEY, HF_TOKEN" in line
    assert SECRET not in said.stdout and str(len(SECRET)) not in line


def test_json_reports_problems_and_exits_with_two() -> None:
    said = run("--json", "--base-model", "Qwen/Qwen2.5-0.5B-Instruct", "--engine", "vllm", "engine.python=/nowhere")
    report = DoctorReport.model_validate_json(said.stdout)
    assert said.returncode == 2 and said.stderr == ""
    assert report.shape is not None and report.shape.parameters == 494_032_768
    assert any("not on this machine, and the model hub cannot be reached" in problem for problem in report.problems)
    assert any("engine.python = '/nowhere' is not a program" in problem for problem in report.problems)
    assert set(report.keys) == set(KEYS) and all(isinstance(there, bool) for there in report.keys.values())


def test_version_conflicts_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "sampling_kernels-2.0.dist-info"
    about.mkdir()
    needs = ("pydantic<1.0", "psutil>=1", "no-such-package>=1", "rich<1; extra == 'more'", "rich<1; os_name == 'none'")
    lines = ["Metadata-Version: 2.1", "Name: sampling-kernels", "Version: 2.0", *(f"Requires-Dist: {n}" for n in needs)]
    (about / "METADATA").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    (sentence,) = disagreements(("sampling-kernels", "nobody-has-this"))
    have = version("pydantic")
    assert sentence.startswith(f"sampling-kernels 2.0 needs pydantic<1.0, but {have} is installed: install everything")


def test_invalid_settings_are_refused() -> None:
    said = run("train.method=other")
    assert said.returncode == 2 and "train.method" in said.stderr and said.stdout == ""


def test_what_train_would_refuse_is_a_problem(tmp_path: Path) -> None:
    said = run("--json", "--server", "mcp_calculator", "trackers=nowhere", "--output-dir", str(tmp_path / "runs"))
    assert said.returncode == 2 and "nowhere" in json.loads(said.stdout)["problems"][0]
    assert list(tmp_path.iterdir()) == []


def test_torch_and_the_tool_servers_are_not_imported() -> None:
    program = (
        "import sys; from mcp_rl.cli import main; main(['doctor', '--json']); "
        "print([name for name in ('torch', 'transformers', 'peft', 'mcp', 'litellm') if name in sys.modules])"
    )
    given = {**os.environ, "HF_HUB_OFFLINE": "1"}
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=given, timeout=120)
    assert said.stdout.splitlines()[-1] == "[]", said.stderr


def test_leftover_processes_are_named_and_kept(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    owner = psutil.Process(gone.pid)
    gone_marker = _marker(owner, tmp_path)
    gone.wait()
    left = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, **gone_marker}, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            report = examine(RunConfig(server=("any",)), server_given=False)
            if any(str(left.pid) in sentence for sentence in report.leftovers):
                break
        assert any(f"process {left.pid}" in note and "the next run ends it" in note for note in report.notes)
        assert left.poll() is None
    finally:
        left.kill()
        left.wait()


def _marker(owner: psutil.Process, run: Path) -> dict[str, str]:
    """Return the environment that marks a child of a process."""
    ours = marking("learner", run)
    return {**ours, "MCP_RL_OWNER": f"{owner.pid}:{owner.create_time()}"}


# -- other machines


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Report on a simulated machine, whose torch sees all its GPUs by default."""

    def report(there: Machine, *, seen: int | None = None, **settings: Any) -> DoctorReport:
        disks = there.disks or tuple(disk.model_copy(update={"free": 2**40}) for disk in detect().disks)
        monkeypatch.setattr(examination, "detect", lambda *_, **__: there.model_copy(update={"disks": disks}))
        answer = (len(there.gpus) if seen is None else seen, "")
        monkeypatch.setattr(examination, "torch_gpus", lambda: answer)
        monkeypatch.setattr(examination, "check_base_model", lambda name: None)
        monkeypatch.setattr(examination.surroundings, "hub", lambda: None)
        config = RunConfig.model_validate({"server": "any", "base_model": SHAPES["0.5B"], **settings})
        return examine(config, server_given=False)

    yield report


def test_a_gpu_that_holds_the_model_works(on: Any) -> None:
    report = on(machine(24))
    assert report.works and report.plan.fits and report.importance_cap == 2.0
    text = shown(report)
    for words in ("Some GPU 24GB, 24.0 GiB", "compute capability 8.0", "uses 1 of 1 GPUs", "vLLM asleep", "works here"):
        assert words in text


def test_the_resolved_run_and_its_pace_and_cost_are_forecast(on: Any) -> None:
    small, large = (on(machine(80), base_model=SHAPES[size], placement={"hourly_rate": 2.0}) for size in ("0.5B", "7B"))
    for report in (small, large):
        assert report.forecast.cost == pytest.approx(2 * report.forecast.hours)
        assert report.forecast.steps_per_hour == pytest.approx(3600 / report.forecast.step_seconds)
        assert report.forecast.memory == max(report.plan.total)
    assert large.forecast.step_seconds > 3 * small.forecast.step_seconds
    text = shown(large)
    for words in ("steps an hour", "US dollars", "evaluation.every", "rollout.probes", "train.learning_rate"):
        assert words in text
    assert on(machine(24), base_model=SHAPES["32B"]).forecast is None, "what does not fit has no pace"


def test_a_smaller_model_is_proposed(on: Any) -> None:
    report = on(machine(24), base_model=SHAPES["32B"])
    assert not report.works and report.smaller[-1] == "Qwen/Qwen2.5-14B-Instruct fits in 4 bits."
    assert "would not work: 1 problem." in shown(report)


def test_a_driver_too_old_for_torch_is_a_problem(on: Any) -> None:
    report = on(machine(24, 2), seen=0)
    assert report.problems[0].startswith("The driver (580.1) shows 2 GPUs, and torch, built for CUDA 12.9, can use 0")


def test_a_torch_without_cuda_is_a_note(on: Any) -> None:
    report = on(machine(24).model_copy(update={"cuda_build": None}), base_model="mcp-rl/tiny")
    assert report.works and report.torch_gpus is None
    assert any("built without CUDA" in note for note in report.notes)


def test_missing_packages_are_named(on: Any) -> None:
    report = on(machine(24, packages=("torch", "transformers")))
    assert any(problem.startswith("peft is not installed") for problem in report.problems)
    assert any("vLLM is not installed" in note for note in report.notes)


def test_a_disk_that_is_too_small_is_a_problem(on: Any) -> None:
    disks = tuple(disk.model_copy(update={"free": 2**20}) for disk in detect().disks)
    problems = on(machine(141).model_copy(update={"disks": disks}), train={"method": "full"}).problems
    assert any("the checkpoints of a run take" in problem and "--output-dir" in problem for problem in problems)
    assert any("the weights of Qwen/Qwen2.5-0.5B-Instruct take" in problem for problem in problems)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_tables_fit_any_terminal(on: Any, width: int) -> None:
    assert max(map(len, shown(on(machine(8), base_model=SHAPES["32B"]), width).splitlines())) <= width


# -- looking


def test_detect_describes_this_machine(tmp_path: Path) -> None:
    there = detect(tmp_path / "not" / "there" / "yet")
    assert 1 <= there.cpus <= (os.cpu_count() or 1)
    assert 0 < there.free_memory <= there.memory <= psutil.virtual_memory().total
    runs, _ = there.disks
    assert runs.free > 0 and runs.writable and not runs.path.exists()
    assert there.packages["torch"] and there.has("torch") and not there.has("no such thing")


def test_torch_sees_the_gpus_found_without_it() -> None:
    assert torch_gpus() == (len(detect().usable_gpus), "")


def test_a_silent_torch_is_named() -> None:
    seen, problem = torch_gpus(0.01)
    assert seen is None and "did not say within 0.01 s" in problem


def test_container_limits_count_without_page_cache(tmp_path: Path) -> None:
    from mcp_rl.system.processes.memory import _cgroup_memory

    for name, text in {
        "memory.max": "1000\n",
        "memory.current": "700\n",
        "memory.stat": "anon 100\ninactive_file 300\n",
    }.items():
        (tmp_path / name).write_text(text)
    assert list(_cgroup_memory(tmp_path)) == [(1000, 400)]
    (tmp_path / "memory.max").write_text("max\n")
    assert list(_cgroup_memory(tmp_path)) == []
    assert machine_memory()[0] > 0


def test_keys_are_set_or_not() -> None:
    assert keys({"HF_TOKEN": SECRET, "WANDB_API_KEY": ""}) == {name: name == "HF_TOKEN" for name in KEYS}


def test_the_hub_is_asked_with_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert hub() == "no connection"
        silent.listen(1)
        assert hub(0.2) == "no answer within 0.2 s"
    with serving() as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        assert hub() is None
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub() == "HF_HUB_OFFLINE is set"


@contextmanager
def serving() -> Iterator[str]:
    """Run a server that knows no page."""
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_port_can_be_opened_here() -> None:
    assert loopback_port() is None
