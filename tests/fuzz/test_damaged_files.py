"""A damaged file is one sentence for its user, whatever the damage."""

import json
import random
from pathlib import Path

import pytest

from mcp_rl.toolserver.bundled import bundled_root
from tests.fuzz.files import check, damage, damaged

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
DRY = ["train", "--server", "mcp_calculator", "--dry-run", "--scenarios"]
FILES = {
    "scenarios": ("".join(json.dumps({**SCENARIO, "task": f"Add {n}."}) + "\n" for n in range(4)).encode(), DRY),
    "servers": ((bundled_root() / "config.json").read_bytes(), ["servers", "list", "--server-config"]),
    "configuration": ((ROOT / "configs/calculator.toml").read_bytes(), ["train", "--dry-run", "--config"]),
    "recording": (
        (ROOT / "tests/data/cassettes/calculator.jsonl").read_bytes(),
        ["train", "--server", "mcp_calculator", "--dry-run", "--replay"],
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_are_one_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content, command = FILES[name]
    drawn = random.Random(name)
    file = tmp_path / "file"
    for _ in range(12):
        if file.is_dir():
            file.rmdir()
        file.unlink(missing_ok=True)
        file.write_bytes(content)
        damage(file, drawn)
        check([*command, str(file)])


def test_damage_reaches_every_kind_of_place() -> None:
    """Else the test above would say nothing."""
    drawn = random.Random(0)
    made = {damaged(json.dumps(SCENARIO).encode(), drawn) for _ in range(300)}
    assert len(made) > 200
    for place in SCENARIO:
        assert any(f'"{place}"'.encode() not in one for one in made), f"{place} is never gone"
