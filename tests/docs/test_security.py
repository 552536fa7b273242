"""SECURITY.md names a test for each promise, and each of them exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
PROMISES = PAGE.partition("\n## Promises\n")[2].partition("\n## ")[0]


def test_every_promise_names_its_tests() -> None:
    promises = re.findall(r"^- .*(?:\n  .*)*", PROMISES, re.MULTILINE)
    assert len(promises) > 10
    for promise in promises:
        assert re.search(r"`tests/\S+\.py::test_\w+`", promise), f"no test holds this: {promise}"


def test_the_tests_that_hold_promises_exist() -> None:
    named = re.findall(r"`(tests/\S+\.py)::(\w+)`", PAGE)
    for file, test in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        known = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert test in known, f"{file} has no {test}"
