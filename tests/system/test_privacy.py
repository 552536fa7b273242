"""Servers see nothing of the environment and the memory of the command that started them."""

import hashlib
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SPY = Path(__file__).with_name("spying_server.py")
linux = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")

AS_A_USER = """
import ctypes, platform, struct
libc = ctypes.CDLL(None)
for capability in range(64):
    libc.prctl(24, capability, 0, 0, 0)
libc.syscall({"x86_64": 126, "aarch64": 91}[platform.machine()], struct.pack("Ii", 0x20080522, 0), bytes(24))
"""
"""Gives up root's rights for this process and its children, which would open every process."""


def spied(folder: Path, code: str = "") -> list[dict[str, Any]]:
    """Return what a server finds in the processes above it; the last one is the command."""
    secret = f"spied-{secrets.token_hex(16)}"
    found = folder / "found.json"
    arguments = [str(SPY), hashlib.sha256(secret.encode()).hexdigest(), str(len(secret)), str(found)]
    entry = {"command": sys.executable, "args": ["-I", "-S", *arguments]}
    (folder / "config.json").write_text(json.dumps({"mcpServers": {"spy": entry}}))
    given = ["servers", "inspect", "spy", "--sandbox", "off"]
    words = f"import sys\nsys.argv[1:] = {given}\nfrom mcp_rl.cli import main\nmain()"
    command = f"{AS_A_USER}\n{code}\n{words}"
    done = subprocess.run(
        [sys.executable, "-c", command],
        cwd=folder,
        env={**os.environ, "OPENAI_API_KEY": secret, "DATABASE_URL": f"postgres://me:{secret}@host/db"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert secret not in done.stdout + done.stderr
    _, command_itself, *_ = seen = json.loads(found.read_text())
    assert "servers" in command_itself["command"], "it did not find the command"
    return list(seen[:2])


@linux
def test_a_server_finds_no_secret_in_the_processes_above_it(tmp_path: Path) -> None:
    for seen in spied(tmp_path):
        assert seen["environ"] is not True and seen["mem"] is not True, seen
    assert seen["environ"] == seen["mem"] == "Permission denied", "the command itself"


@linux
def test_the_environment_is_blank_even_to_those_who_may_read_it(tmp_path: Path) -> None:
    """As root may, and as a debugger started by it does."""
    code = "import mcp_rl.system.privacy as privacy\nprivacy._PR_SET_DUMPABLE = 0"
    *_, command = spied(tmp_path, code)
    assert command["environ"] is False and command["mem"] is True


@linux
def test_variables_keep_their_values_for_us_and_are_kept_where_children_get_them(tmp_path: Path) -> None:
    code = (
        "from mcp_rl.system.privacy import seal_process; import os, subprocess, pathlib; seal_process(); "
        "print(os.environ['A_KEY'], subprocess.check_output('echo $A_KEY', shell=True, text=True).strip()); "
        "print(os.environ['HOME'].encode() in pathlib.Path('/proc/self/environ').read_bytes())"
    )
    environment = {**os.environ, "A_KEY": "x=y z", "HOME": "/somewhere/home"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[0] == "x=y z x=y z", done.stderr
    if os.getuid() == 0:  # others may not open a file of a process that is not dumpable, not even their own
        assert done.stdout.split("\n")[1] == "True"
