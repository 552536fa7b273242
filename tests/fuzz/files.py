"""Damage to files of every kind that we read, and the commands that read them."""

import contextlib
import io
import json
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcp_rl.cli import main
from mcp_rl.toolserver.bundled import bundled_root
from tests.fuzz.limits import limited

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = {
    "task": "What is 2 + 3?",
    "server": "mcp_calculator",
    "server_params": {"transport": "stdio", "command": "{python}", "args": ["{bundled}/x.py"], "env": {"A": "b"}},
    "reference": [{"tool": "add", "arguments": {"a": 2, "b": 3}}],
    "reference_answer": "5",
    "verifier": {"kind": "number", "expected": 5, "options": {"tolerance": 1e-6}},
    "tags": ["t"],
    "split": "train",
}


def numbered(number: int) -> dict[str, Any]:
    """Return a scenario of its own; the first one is held out."""
    reference = [{"tool": "add", "arguments": {"a": number, "b": 3}}]
    return {**SCENARIO, "task": f"Add {number}.", "reference": reference, "split": "train" if number else "val"}


CLIENTS = b"""{
  // a file with comments, as editors write it
  "inputs": [{"type": "promptString", "id": "key", "password": true}],
  "servers": {
    "one": {"type": "stdio", "command": "node", "args": ["a.mjs", 7, "${workspaceFolder}/x"], "envFile": ".env",
            "env": {"API_KEY": "${input:key}", "DEPTH": 3}, "timeout": 60000},
    "two": {"type": "http", "url": "https://example.org/mcp?token=${env:TOKEN}",
            "headers": {"Authorization": "Bearer ${TOKEN}"}},
    "three": {"url": "http://127.0.0.1:8000/sse", "disabled": true,
              "mcp_rl": {"isolation": "reset", "resetTool": "reset"}},
  },
}
"""
DRY = ["train", "--server", "mcp_calculator", "--dry-run", "--scenarios"]
FILES: dict[str, tuple[bytes, str, list[str]]] = {
    "scenarios": (
        "".join(json.dumps(numbered(n)) + "\n" for n in range(4)).encode(),
        ".jsonl",
        DRY,
    ),
    "servers": ((bundled_root() / "config.json").read_bytes(), ".json", ["servers", "--server-config"]),
    "servers with comments": (CLIENTS, ".json", ["servers", "--server-config"]),
    "configuration": ((ROOT / "configs/calculator.toml").read_bytes(), ".toml", ["train", "--dry-run", "--config"]),
    "recording": (
        (ROOT / "tests/data/cassettes/calculator.jsonl").read_bytes(),
        ".jsonl",
        ["train", "--server", "mcp_calculator", "--dry-run", "--replay"],
    ),
}
"""Kinds of files: a good one, the end of its name, and the words of the command that reads it."""

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 10**400, -(10**400), 1e308, float("nan"), float("inf"), "", "x", "\ud800", "\0", "../../x",
    "x" * 5000, [], {}, [[]], [None], {"": None}, {"a": {"b": [1, "2"]}}, "${HOME}", "{env:HOME}", [1] * 300,
)  # fmt: skip
RAW: tuple[bytes, ...] = (
    b"", b"\n", b"\0", b"[", b"{", b"null", b"[]", b"{}", b"7", b'"x"', b"\xff\xfe", b"\xef\xbb\xbf{}", b"[" * 100_000,
    b'{"a":' * 5000, b"9" * 6000, b'{"a": 1, "a": 2}', b"\x80\x04\x95.", b"PK\x03\x04", b"{}\n{}\n", b"{]", b"a = 1\n",
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [found for key, below in items for found in places(below, (*path, key))]


def altered(value: Any, drawn: random.Random) -> Any:
    """Return a JSON value with one place in it replaced or removed."""
    found = places(value)
    if not found or drawn.random() < 0.05:
        return drawn.choice(ODD)
    # Shallow places matter more, and there are fewer of them.
    depth = drawn.randint(1, max(map(len, found)))
    *way, last = drawn.choice([path for path in found if len(path) <= depth])
    value = json.loads(json.dumps(value))
    inner = value
    for key in way:
        inner = inner[key]
    if drawn.random() < 0.2:
        del inner[last]
    else:
        inner[last] = drawn.choice(ODD)
    return value


def damaged(content: bytes, drawn: random.Random) -> bytes:
    """Return a file's content with some damage: of its JSON if it is JSON, or of its bytes."""
    kind = drawn.random()
    if kind < 0.1:
        return drawn.choice(RAW)
    if kind < 0.3 and content:
        data = bytearray(content)
        for _ in range(drawn.choice([1, 1, 1, 5])):
            data[drawn.randrange(len(data))] = drawn.randrange(256)
        return bytes(data)
    if kind < 0.4:
        return content[: drawn.randrange(len(content) + 1)]
    try:
        return json.dumps(altered(json.loads(content), drawn)).encode()
    except ValueError:
        pass
    lines = content.split(b"\n")
    number = drawn.randrange(len(lines))
    with contextlib.suppress(ValueError):
        lines[number] = json.dumps(altered(json.loads(lines[number]), drawn)).encode()
    return b"\n".join(lines)


def damage(path: Path, drawn: random.Random) -> None:
    """Damage a file, or put something else in its place."""
    content, kind = path.read_bytes(), drawn.random()
    if kind > 0.05:
        path.write_bytes(damaged(content, drawn))
        return
    path.unlink()
    match drawn.choice(["gone", "folder", "loop", "pipe"]):
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path.name)


def say(words: Sequence[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit code and what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), limited(holds_loop=False):
        try:
            code = main(list(words))
        except SystemExit as end:
            code = int(end.code or 0)
    return code, printed.getvalue()


def check(words: Sequence[str]) -> None:
    """Run a command, and fail if it ends in what no user can mend."""
    code, said = say(words)
    if "This is a bug" in said or "Traceback" in said:
        logs = said.rpartition("the traceback is in ")[2].strip().rstrip(".")
        trace = Path(logs).read_text()[-1800:] if logs and os.path.exists(logs) else ""  # noqa: PTH110
        raise AssertionError(f"{' '.join(words)}: {said[-400:]}\n{trace}")
    assert code in (0, 1, 2), code


def copied(source: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(source, to, symlinks=True)
    return to
