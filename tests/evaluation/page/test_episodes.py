"""The episodes in a page: their order, texts and JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_rl.config import TINY
from mcp_rl.evaluation.evaluate import EvaluationResult
from mcp_rl.evaluation.page.episodes import dumps, scenario_order
from mcp_rl.evaluation.page.of_run import training_findings
from mcp_rl.evaluation.page.tokens import Spelling, find_spelling


def test_not_a_number_is_null_in_json() -> None:
    assert json.loads(dumps({"a": [float("nan"), 1.5], "b": float("inf")})) == {"a": [None, 1.5], "b": None}


def test_scenarios_come_in_turn_by_how_they_changed() -> None:
    before = {"up": [0.0], "up2": [0.0], "down": [1.0], "never": [0.0], "always": [1.0], "half": [1.0, 0.0]}
    after = {"up": [1.0], "up2": [1.0], "down": [0.0], "never": [0.0], "always": [1.0], "half": [1.0, 0.0]}
    empty: dict[str, Any] = {"step": 0, "scenarios": 6, "greedy": None, "sampled": None, "by_tool": {}}
    results = [EvaluationResult.model_validate(empty | {"outcomes": outcomes}) for outcomes in (before, after)]
    order = scenario_order(results)
    assert sorted(order, key=lambda id: order[id]) == ["up", "down", "never", "always", "half", "up2"]


@pytest.fixture(scope="module")
def spelling() -> Spelling:
    found = find_spelling(TINY)
    assert found is not None
    return found


def test_the_pieces_of_a_turn_make_up_its_text(spelling: Spelling) -> None:
    text = '<tool_call>\n{"name": "größer", "x": "日本 🦔"}\n</tool_call><|im_end|>'
    ids = spelling._tokenizer.encode(text, add_special_tokens=False).ids
    pieces = spelling.pieces(ids)
    assert len(pieces) == len(ids) and "".join(pieces) == text


def test_a_broken_tokenizer_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    assert isinstance(find_spelling(TINY, [tmp_path]), Spelling)
    assert find_spelling(str(tmp_path)) is None


def test_a_page_reads_part_of_a_long_file(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_rl.evaluation.page.of_run._BYTES_READ", 1)
    sources = {source.label: source for source in training_findings(run).sources}
    assert len(list(sources["training step 1"].groups())) == 1
    assert len(list(sources["before"].groups())) == 6
