"""`mcp-rl league`: points and intervals of games between two seats, on the real server with scripted models."""

import json
import re
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers import AutoTokenizer

from mcp_rl.cli import main
from mcp_rl.errors import ConfigError
from mcp_rl.evaluation import league
from mcp_rl.evaluation.league import prepare_league, print_league, run_league
from mcp_rl.evaluation.models import ModelSpec
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.scripted import ScriptedEngine
from mcp_rl.rollouts.seated import Opponent
from mcp_rl.rollouts.speaker import PolicySetting
from mcp_rl.tiny import weights_path


def first_free(text: str, seed: int, turn: int) -> str:
    """Place a mark on the first free square, which the board names."""
    square = re.findall(r"square = (\d)", text)[-1]
    return f'<tool_call>\n{{"name": "place_mark", "arguments": {{"square": {square}}}}}\n</tool_call>'


def gives_up(text: str, seed: int, turn: int) -> str:
    return "I give up."


class Scripts:
    """Opens scripted models in place of those that are named."""

    def __init__(self) -> None:
        chat = ChatFormat(AutoTokenizer.from_pretrained(weights_path()))
        replies = {"scripted:reference": first_free, "scripted:refuse": gives_up}
        self.opened = {
            name: Opponent(name, lambda session, reply=reply: PolicySetting(ScriptedEngine(reply, chat), chat, session))
            for name, reply in replies.items()
        }

    def __call__(self, models: Sequence[ModelSpec], prompt: str | None) -> "Scripts":
        return self

    async def __aenter__(self) -> dict[str, Opponent]:
        return self.opened

    async def __aexit__(self, *error: Any) -> None: ...


async def test_every_pair_plays_in_both_seats_and_the_table_has_their_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(league, "opened_models", Scripts())
    job = prepare_league(
        ["scripted:reference", "scripted:refuse"], options={"server": ("mcp_tictactoe",), "evaluation.samples": 1},
        overrides=[f"output_dir={tmp_path}"], count=6,
    )  # fmt: skip
    report = await run_league(job, Console(quiet=True))
    best, worst = report.table
    assert (best.model, best.games, best.won, best.lost) == ("scripted:reference", 12, 12, 0)
    assert (best.points, worst.points, report.faults) == (1.0, 0.0, 0)
    assert 0.5 < best.ci95[0] < best.ci95[1] == 1.0
    [pair] = report.pairs
    assert (pair.model, pair.against, pair.games) == ("scripted:reference", "scripted:refuse", 12)
    folder = Path(report.path)
    assert json.loads((folder / "report.json").read_bytes())["table"][0]["points"] == 1.0
    assert len(list((folder / "episodes").glob("*.jsonl"))) == 2
    console = Console(record=True, width=120, file=StringIO())
    print_league(report, console)
    assert "6 scenarios on mcp_tictactoe, 6 drawn from" in console.export_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "mcp-rl/tiny"], "A league needs two models or more: add another --model."),
        (["--model", "scripted:refuse", "--model", "scripted:reference"], "has two seats: name a file or a source"),
    ],
)
def test_a_league_that_cannot_be_played_is_refused_in_a_sentence(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    games = tmp_path / "games.jsonl"
    games.write_text('{"task": "You play x.", "verifier": {"kind": "tictactoe", "expected": "x"}}\n')
    command = ["league", "--server", "mcp_tictactoe", "--scenarios", str(games), *words, f"output_dir={tmp_path}"]
    assert main(command) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_judge_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    with pytest.raises(ConfigError, match="A league has no judge"):
        prepare_league(
            ["scripted:refuse", "scripted:reference"], options={"server": ("mcp_tictactoe",), "judge.model": "openai/x"}
        )
