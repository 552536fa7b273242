"""`servers new` writes a server, its plugin and its test, which work unchanged and pass the linter."""

import json
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_rl.cli import main

ROOT = Path(__file__).resolve().parents[2]
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("begun")
    assert main(["servers", "new", "my_shop", "--dir", str(target)]) == 0
    return target / "my_shop"


def test_it_says_what_to_type_next(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["servers", "new", "shop"]) == 0
    commands = [line.partition("#")[0].strip() for line in capsys.readouterr().out.splitlines() if "mcp-rl" in line]
    assert commands == [
        "mcp-rl servers check shop --plugin shop/shop_plugin.py",
        "mcp-rl generate --server shop --plugin shop/shop_plugin.py --count 240 --max-steps 1 --unsolvable 0 "
        "--without-tools 0 --out shop/scenarios.jsonl",
        "mcp-rl train --server shop --plugin shop/shop_plugin.py --scenarios shop/scenarios.jsonl --steps 20",
    ]
    assert main(["servers", "new", "other", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == [
        "other/server.py", "other/other_plugin.py", "other/test_other.py",
    ]  # fmt: skip


def test_the_printed_lines_work_when_typed(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["servers", "new", "shop", "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)["commands"]
    check, generate, train = (shlex.split(line)[1:] for line in lines)
    generate[generate.index("--count") + 1] = "24"
    assert main([*check, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["fit"] and report["isolation"] == "reset"
    assert [finding for finding in report["findings"] if finding["level"] == "problem"] == []
    assert {"reset", "isolation"} <= {finding["check"] for finding in report["findings"]}
    assert main(generate) == 0
    assert f"Train on them: {lines[2].removesuffix(' --steps 20')}\n" in capsys.readouterr().out
    tasks = [json.loads(line) for line in (tmp_path / "shop/scenarios.jsonl").read_text().splitlines()]
    assert {call["tool"] for task in tasks for call in task.get("reference", ())} >= {
        "count",
        "create",
        "book",
        "delete",
    }
    assert max(len(task.get("reference", ())) for task in tasks) == 1
    small = ["rollout.groups_per_step=2", "rollout.group_size=2", "evaluation.samples=1"]
    assert main([*train, "--steps", "1", *small]) == 0
    printed = capsys.readouterr().out
    assert "success" in printed and "server_params" not in printed
    assert "only several calls in a turn" not in printed, "the built-in model's turns suffice"


def test_its_test_passes(folder: Path) -> None:
    written = runpy.run_path(str(folder / "test_my_shop.py"))
    tests = [test for name, test in written.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def test_it_is_formatted_and_linted(folder: Path) -> None:
    rules = ["--config", "pyproject.toml", "--extend-ignore", "TC,UP037"]  # annotations are evaluated in plugins
    for words in (["ruff", "check", *rules], ["ruff", "format", "--check"]):
        done = subprocess.run([sys.executable, "-m", *words, str(folder)], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("My Server", "'My Server' cannot be a server's name"),
        ("../up", "cannot be a server's name"),
        ("class", "cannot be a server's name"),
        ("x" * 41, "40 characters at most"),
        ("", "cannot be a server's name"),
        ("mcp", "The name mcp is taken"),
    ],
)
def test_a_bad_name_is_one_sentence(name: str, words: str, tmp_path: Path, capsys: Captured) -> None:
    assert main(["servers", "new", name, "--dir", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and words in err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "shop").mkdir()
    assert main(["servers", "new", "shop", "--dir", str(tmp_path)]) == 2
    assert "already exists; choose another name" in capsys.readouterr().err
    assert list((tmp_path / "shop").iterdir()) == []
    (tmp_path / "file").write_text("")
    assert main(["servers", "new", "shop", "--dir", str(tmp_path / "file")]) == 2
    assert "Cannot write" in capsys.readouterr().err
