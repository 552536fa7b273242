"""`mcp-rl` alone on a terminal, and the completion of words in a shell."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

ENTRY = '{"mcpServers": {"notes": {"command": "notes-server"}}}'
NOWHERE = {"MCP_RL_REGISTRY": "http://127.0.0.1:9"}
PROGRAM = [sys.executable, "-m", "mcp_rl"]


def typed(folder: Path, answers: Sequence[tuple[str, str]]) -> tuple[int, str]:
    """Run the command on a terminal and type each answer once its prompt waits for it; return exit code and output.

    A prompt waits when it ends what is shown and its process sleeps: a key that comes earlier may be lost.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(PROGRAM[0], PROGRAM, os.environ | {"HOME": str(folder), "COLUMNS": "200"} | NOWHERE)
    shown, deadline = "", time.monotonic() + 60
    left = list(answers)
    process = psutil.Process(pid)
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.02)[0]:
            try:
                shown += os.read(terminal, 65536).decode(errors="replace")
            except OSError:  # the program has ended
                break
            continue
        new = shown.rpartition("\0")[2]
        if left and left[0][0] in new and new.endswith(": ") and process.status() == psutil.STATUS_SLEEPING:
            os.write(terminal, left.pop(0)[1].encode())
            shown += "\0"
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown


def test_three_questions_lead_to_a_command(tmp_path: Path) -> None:
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor" / "mcp.json").write_text(ENTRY)
    answers = [("Which server?", "2\n"), ("Which model?", "1\n"), ("How long?", "3\n"), ("How many", "7\n")]
    code, shown = typed(tmp_path, [*answers, ("Run it?", "n\n")])
    assert code == 0 and "Nothing was started" in shown and not (tmp_path / ".mcp_rl").exists()
    assert "mcp-rl train --server notes --server-config .cursor/mcp.json --steps 7" in shown


def test_a_slip_is_told_and_asked_about_again(tmp_path: Path) -> None:
    (tmp_path / "shop.py").touch()
    answers = [
        ("Which server?", "9\n"),
        ("from 1 to 2", "2\n"),
        ("Its command", "shpo.py\n"),
        ("not exist", "shop.py\n"),
    ]
    code, shown = typed(tmp_path, [*answers, ("Which model?", "\n"), ("How long?", "\n"), ("Run it?", "n\n")])
    assert code == 0 and "The server script shpo.py does not exist in" in shown
    assert "mcp-rl train --server shop.py --steps 10" in shown


def test_yes_runs_the_command(tmp_path: Path) -> None:
    answers = [("Which server?", "2\n"), ("Its command", "registry:weather\n"), ("Which model?", "\n")]
    code, shown = typed(tmp_path, [*answers, ("How long?", "\n"), ("Run it?", "\n")])
    assert code == 2 and "mcp-rl train --server registry:weather --steps 10" in shown
    assert "'weather' is not a name of the MCP registry" in shown


@pytest.mark.parametrize("key", ["\x03", "\x04"])
def test_it_is_left_with_one_key(tmp_path: Path, key: str) -> None:
    code, shown = typed(tmp_path, [("Which server?", key)])
    assert code == 130 and "Nothing was started." in shown and "Traceback" not in shown


def test_a_script_gets_the_help() -> None:
    found = subprocess.run(PROGRAM, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert "Usage: mcp-rl" in found.stdout and "Which server?" not in found.stdout


@pytest.mark.parametrize(
    ("shell", "words"),
    [("bash", {"COMP_WORDS": "mcp-rl hist", "COMP_CWORD": "1"}), ("zsh", {"_TYPER_COMPLETE_ARGS": "mcp-rl hist"})],
)
def test_a_shell_completes_commands(shell: str, words: dict[str, str]) -> None:
    asked = os.environ | words | {"_MCP_RL_COMPLETE": f"complete_{shell}"}
    found = subprocess.run(PROGRAM, env=asked, capture_output=True, text=True, check=True)
    assert "history" in found.stdout and "train" not in found.stdout
