"""Commands on the terminal: right and wrong words, output, errors and signals."""

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from mcp_rl.cli import main
from mcp_rl.errors import CanaryError, ConfigError, ServerError, ServerFault
from mcp_rl.evaluation.progress import Progress
from mcp_rl.system import redaction
from mcp_rl.system.boundary import run_guarded

ROOT = Path(__file__).resolve().parents[2]
Captured = pytest.CaptureFixture[str]


def sentence_of(captured: Captured) -> str:
    """Return stderr, which must be one line, after a check that stdout is empty."""
    out, err = captured.readouterr()
    assert out == "" and err.count("\n") == 1 and err.rstrip().endswith((".", "?")), (out, err)
    return err.strip()


def raising(error: BaseException) -> Callable[[], int]:
    def job() -> int:
        raise error

    return job


# -- words


@pytest.mark.parametrize(
    "words", ["", "train", "generate", "evaluate", "report", "servers", "servers inspect", "servers check", "plugins"]
)
def test_help_explains_and_ends_with_0(words: str, capsys: Captured) -> None:
    assert main([*words.split(), "--help"]) == 0
    assert "Usage: mcp-rl" in capsys.readouterr().out


def test_the_version_is_printed(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], "did you mean train?"),
        (["train", "--step", "3"], "There is no option --step; did you mean --steps?"),
        (["train", "--zzz"], "There is no option --zzz"),
        (["servers", "inspect", "--server", "x"], "give it as a word: mcp-rl servers inspect SERVER."),
        (["train", "--steps", "many"], "--steps"),
        (["train", "--server"], "--server"),
        (["train", "--transport", "see"], "'sse'"),
        (["train"], "--server mcp_calculator"),
        (["train", "--server", "mcp_calculator", "calculator"], "'calculator'"),
        (["train", "--server", "mcp_calculator", "train.learning_rat=1"], "'train.learning_rate'"),
        (["train", "--server", "mcp_calculator", "--seed", "-1"], "seed = -1"),
        (["train", "--server", "mcp_calculater", "--dry-run"], "did you mean 'mcp_calculator'?"),
        (["train", "--server", "mcp_calculater"], "did you mean 'mcp_calculator'?"),
        (["train", "--server", "mcp_calculator", "--config", "none.toml"], "none.toml"),
        (["train", "--server", "mcp_calculator", "--plugin", "none.py", "--dry-run"], "none.py"),
        (["train", "--server", "mcp_calculator", "--all"], "add --dry-run, or leave --all out."),
        (["train", "--server", "mcp_calculator", "--judge-base-url", "http://localhost:1"], "judge.model"),
        (["train", "--server", "mcp_calculator", "--learner-gpus", "one"], "such as 0,1, not 'one'"),
        (["evaluate", "--server", "mcp_calculator", "--engine-gpus", ""], "such as 0,1, not ''"),
        (["serve", "mcp-rl/tiny", "--engine-url", ""], "engine.url = ''"),
        (["generate"], "--server mcp_calculator"),
        (["generate", "--server", "mcp_calculater"], "did you mean 'mcp_calculator'?"),
        (["generate", "--server", "mcp_calculator", "--count", "0"], "--count"),
        (["generate", "--server", "mcp_calculator", "train.lora.rank=3"], "train.lora.rank"),
        (["servers", "--plugin", "none.py"], "none.py"),
        (["servers", "--server-config", "none.json"], "none.json"),
        (["servers", "chek"], "did you mean check?"),
        (["servers", "inspect"], "SERVER"),
        (["servers", "inspect", "x", "--jsn"], "did you mean --json?"),
        (["servers", "--json", "inspect", "x"], "--json: it comes after the word inspect."),
        (["servers", "check", "mcp_calculater"], "did you mean 'mcp_calculator'?"),
        (["plugin"], "did you mean plugins?"),
        (["train", "--server", "./none.py"], "server script ./none.py does not exist"),
        (["train", "--server", "x", "--server-config", "none.json"], "none.json"),
        (["train", "--server", "everythin"], "did you mean 'everything'?"),
        (["train", "--server", "mcp_notes", "--server", "mcp_notes"], "'mcp_notes' is named twice"),
        (["train", "--server", "mcp_notes", "--isolation", "none"], "'per-rollout'"),
        (["train", "--server", "mcp_calculator", "--isolation", "reset"], "reset_tool"),
        (["train", "--server", "mcp_notes", "--isolation", "shared", "--reset-tool", "r"], "reset_tool"),
        (["evaluate", "--server", "mcp_notes", "--model", "mcp-rl/tiny", "--record", "a", "--replay", "b"], "replay"),
        (["generate", "--server", "mcp_notes", "--record", "a", "--replay", "b"], "tools.replay"),
        (["generate", "--server", "mcp_notes", "--offer", "tools"], "'resources'"),
    ],
)
def test_a_wrong_word_is_one_sentence_and_exit_2(
    arguments: list[str], words: str, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert words in sentence_of(capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_bad_line_of_a_scenarios_file_is_named(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tasks.jsonl").write_text('{"task_description": "x", "server_params": {"transport": "stdio"}}\n')
    assert main(["generate", "--server", "mcp_calculator", "--check", "tasks.jsonl"]) == 2
    assert "tasks.jsonl, line 1" in sentence_of(capsys)


# -- what is printed


def test_a_dry_run_prints_overrides_of_the_same_run(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "--server", "mcp_calculator", "--server", "mcp_notes", "--dry-run", "--steps", "7"]
    words += ["--offer", "prompts", "--isolation", "per-rollout", "--record", "calls.jsonl", "train.lora.rank=4"]
    for every in ([], ["--all"]):
        assert main([*words, *every]) == 0
        first = capsys.readouterr().out
        assert "train.lora.rank = 4" in first and "steps = 7" in first
        overrides = [line.replace(" = ", "=", 1) for line in first.splitlines() if not line.startswith("#")]
        assert (len(overrides) == 6) == (not every)
        assert main(["train", "--dry-run", *every, *overrides]) == 0
        assert capsys.readouterr().out == first
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_tells_what_presets_set(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    words = ["--base-model", str(tmp_path), "--engine", "local", "rollout.max_turns=7", "train.epochs=1"]
    assert main(["train", "--server", "mcp_calculator", "--dry-run", *words]) == 0
    own, preset = capsys.readouterr().out.split("# Set for ")
    assert "# Set by you:" in own and "rollout.max_turns = 7" in own and "train.epochs" not in own
    assert "train.epochs = 1\n" in preset and "rollout.max_turns" not in preset and "--all prints them." in preset


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ('{"task": "Add 1 and 2.", "verifier": {"kind": "numbr"}}', [], "tasks.jsonl, line 1: the scenario names the"),
        ('{"task": "Add 1 and 2."', [], "tasks.jsonl, line 1, column 24: invalid JSON"),
        ('{"task": "Add 1 and 2.", "verifier": {"kind": "none"}}', [], "1 scenario cannot be divided"),
        ('{"task": "Add 1 and 2."}', ["--tracker", "wandbb"], "has no verifier"),
        (None, ["--tracker", "wandbb"], "did you mean 'wandb'?"),
        (None, ["--base-model", "./none"], "there is no such folder"),
        (None, ["--learner-gpus", "77"], "GPU 77"),
        (None, ["--source", "explor"], "did you mean 'explore'?"),
        (None, ["reward.weights={ verfier = 1.0 }"], "did you mean 'verifier'?"),
    ],
)
def test_a_dry_run_finds_what_a_run_would_refuse(
    text: str | None,
    words: list[str],
    said: str,
    capsys: Captured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("tasks.jsonl").write_text(text + "\n")
        words = [*words, "--scenarios", "tasks.jsonl"]
    assert main(["train", "--server", "mcp_calculator", "--dry-run", *words]) == 2
    assert said in sentence_of(capsys)
    assert not Path(".mcp_rl").exists()


def test_a_dry_run_counts_the_scenarios_of_a_file(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    entry = {"verifier": {"kind": "number", "expected": 7}, "server_params": {"transport": "stdio", "command": "true"}}
    text = "".join(json.dumps({"task": f"Task {n}.", **entry}) + "\n" for n in range(30))
    Path("tasks.jsonl").write_text(text)
    assert main(["train", "--server", "mcp_calculator", "--dry-run", "--scenarios", "tasks.jsonl"]) == 0
    printed = capsys.readouterr().out
    assert "# Scenarios of tasks.jsonl: 20 to train on, 10 held out." in printed
    assert "line 1: the scenario (and 29 more) have server_params that differ" in printed
    assert "A new run would be kept in .mcp_rl/default/models/mcp_calculator-tiny" in printed


def test_a_dry_run_as_json_is_one_object(capsys: Captured) -> None:
    assert main(["train", "--server", "mcp_calculator", "--dry-run", "--json", "--seed", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["seed"] == 5


def test_servers_are_listed(capsys: Captured) -> None:
    assert main(["servers", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert "mcp_calculator" in [server["name"] for server in listed["servers"]]


def test_servers_of_a_file_are_recorded_and_replayed(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCRIPTS", str(ROOT / "servers"))
    entries = {
        "calc": {"command": "{python}", "args": ["${SCRIPTS}/python/mcp_calculator/server.py"]},
        "notes": {
            "command": "node",
            "args": ["${SCRIPTS}/node/mcp_notes/mcp_notes.mjs"],
            "mcp_rl": {"isolation": "reset", "resetTool": "reset_notes"},
        },
    }
    Path("config.json").write_text(json.dumps({"mcpServers": entries}))
    words = ["generate", "--server", "calc", "--server", "notes", "tools.exclude=['notes__delete_*']"]
    made = ["--count", "12", "--out", "some.jsonl", "--record", "calls.json"]
    assert main([*words, *made]) == 0
    text = Path("some.jsonl").read_text()
    tools = {call["tool"] for line in text.splitlines() for call in json.loads(line).get("reference", [])}
    assert {name.split("__")[0] for name in tools} == {"calc", "notes"}
    assert "${SCRIPTS}" not in text and str(ROOT) not in text and "{env:SCRIPTS}" in text
    monkeypatch.delenv("SCRIPTS")
    assert main([*words, "--check", "some.jsonl", "--replay", "calls.json"]) == 0
    assert "some.jsonl holds" in capsys.readouterr().out


def test_the_module_and_the_command_are_the_same() -> None:
    words = ["--server", "mcp_calculator", "--dry-run"]
    run = [
        subprocess.run([sys.executable, "-m", *start, *words], cwd=ROOT, capture_output=True, text=True, check=True)
        for start in (["mcp_rl.train"], ["mcp_rl", "train"])
    ]
    assert run[0].stdout == run[1].stdout != ""


# -- the error boundary


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ConfigError("Do this instead."), 2, "Do this instead."),
        (CanaryError("The adapter is not the one."), 1, "The adapter is not the one."),
        (ServerFault("The server died."), 1, "The server died."),
        (ExceptionGroup("g", [ValueError("x"), ExceptionGroup("h", [ConfigError("Deep.")])]), 2, "Deep."),
        (BaseExceptionGroup("g", [ConfigError("Late."), KeyboardInterrupt()]), 130, "Interrupted"),
        (KeyboardInterrupt("Interrupted; step 3 is kept."), 130, "step 3 is kept."),
        (OSError(errno.ENOSPC, "No space left on device", "/big"), 2, "Cannot use /big: the disk is full."),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "the disk is full"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/root/x"),
            2,
            "Cannot use /root/x: there is no permission.",
        ),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x"), 2, "Cannot use /x: no such file"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), 2, "the disk is full"),
    ],
)
def test_an_error_is_one_sentence_with_its_exit_code(
    error: BaseException, code: int, words: str, capsys: Captured
) -> None:
    assert run_guarded(raising(error)) == code
    assert words in sentence_of(capsys)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("oh"), ConnectionResetError(104, "reset"), TimeoutError(), KeyError(3)]
)
def test_a_bug_is_one_sentence_with_a_traceback_file(error: Exception, capsys: Captured, tmp_path: Path) -> None:
    assert run_guarded(raising(error), log_dir=lambda: tmp_path) == 1
    (log,) = tmp_path.iterdir()
    assert str(log) in sentence_of(capsys)
    assert "Traceback" in log.read_text() and type(error).__name__ in log.read_text()


def test_without_a_run_tracebacks_are_temporary_files(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run_guarded(raising(ZeroDivisionError("oh")), log_dir=lambda: tmp_path / "missing") == 1
    assert str(tmp_path) in sentence_of(capsys) and len(list(tmp_path.iterdir())) == 1


def test_no_key_of_the_environment_is_printed_or_written(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-123456789")
    run_guarded(raising(ZeroDivisionError("refused sk-123456789")), log_dir=lambda: tmp_path)
    (log,) = tmp_path.iterdir()
    assert "sk-123456789" not in log.read_text() + sentence_of(capsys)
    assert "${SOME_API_KEY}" in redaction.without_secrets("sk-123456789")


def test_a_closed_pipe_is_not_an_error() -> None:
    script = "import sys; from mcp_rl.cli import main; sys.exit(main(['servers']))"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", script], stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(writing)
    assert done.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_with_130_and_one_sentence(number: signal.Signals, tmp_path: Path) -> None:
    """A server that never answers holds the command until the signal arrives."""
    started = tmp_path / "started"
    silent = f"import pathlib, time; pathlib.Path('{started}').touch(); time.sleep(60)"
    server = shlex.join([sys.executable, "-c", silent])
    words = ["generate", "--server", server, "--sandbox", "off", "--out", str(tmp_path / "x.jsonl")]
    command = subprocess.Popen(
        [sys.executable, "-m", "mcp_rl", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        for _ in range(600):
            if started.exists():
                break
            time.sleep(0.05)
        command.send_signal(number)
        _, err = command.communicate(timeout=120)
    finally:
        command.kill()
    assert command.returncode == 130
    assert "Interrupted" in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [started]


def test_a_signal_in_the_middle_of_a_step_leaves_no_traceback() -> None:
    """SIGTERM interrupts another task than the one of the command."""
    script = """
import os, signal, sys
import anyio
from mcp_rl import cli

async def work():
    os.kill(os.getpid(), signal.SIGTERM)
    await anyio.sleep(60)

async def command():
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        try:
            await anyio.sleep(60)
        finally:
            print("kept")

signal.signal(signal.SIGTERM, cli._terminate)
sys.exit(cli.run_guarded(lambda: anyio.run(command)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stdout) == (130, "kept\n")
    assert done.stderr == "Interrupted; nothing was left running.\n"


def test_what_a_server_says_does_not_steer_the_terminal(capsys: Captured) -> None:
    def fails() -> int:
        raise ServerError("The server says \x1b]0;mine\x07\x1b[2J\u202eover.\nAnd more.")

    assert run_guarded(fails) == 2
    said = capsys.readouterr().err
    assert said == "The server says \\x1b]0;mine\\x07\\x1b[2J\\u202eover.\nAnd more.\n"
    Progress(steps=0, console=Console(highlight=False)).say("[bold]\x1b[2Jx[/bold]")
    assert capsys.readouterr().out == "[bold]\\x1b[2Jx[/bold]\n"


def test_a_process_that_ends_collects_nothing_any_more() -> None:
    program = (
        "import atexit, gc, sys; sys.argv = ['mcp-rl', 'servers']; from mcp_rl.cli import main; "
        "atexit.register(lambda: print(gc.get_freeze_count() > 1000, file=sys.stderr)); sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.endswith("True\n")
