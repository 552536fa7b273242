"""The two scripts in examples/email_search pass their words on, and end as the commands do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "examples/email_search"


def door(script: str, *words: str, at: Path) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "MCP_RL_EMAIL_DB": str(at / "mail.db")}
    command = [sys.executable, str(FOLDER / script), *words]
    return subprocess.run(command, cwd=at, env=variables, capture_output=True, text=True, timeout=300)


def test_a_database_is_built_and_a_model_tested_on_questions_that_no_training_sees(tmp_path: Path) -> None:
    built = door("train_email_search_agent.py", "build-db", "--synthetic", "200", at=tmp_path)
    assert (built.returncode, built.stdout) == (0, f"{tmp_path}/mail.db: 200 mails.\n")
    model = ["--model", "scripted:reference", "--count", "3", "--samples", "1", "--no-greedy"]
    tested = door("test_email_search_agent.py", *model, at=tmp_path)
    assert tested.returncode == 0, tested.stderr
    assert "$ mcp-rl evaluate --server mcp_email_search --scenarios" in tested.stderr
    assert "3 scenarios on mcp_email_search, 3 drawn from" in tested.stdout
    few = ["--steps", "2", "train.sft_steps=1", "rollout.groups_per_step=2", "rollout.group_size=2"]
    few += ["scenarios.count=12", "scenarios.val=4", "evaluation.samples=1"]
    trained = door("train_email_search_agent.py", "train", *few, at=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert "$ mcp-rl train --server mcp_email_search --steps 2 train.sft_steps=1" in trained.stderr
    assert (tmp_path / ".mcp_rl/default/models/mcp_email_search-tiny/checkpoints/0002").is_dir()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "train_email_search_agent.py build-db"),
        (["build-db", "--mbox", "none"], "The file {here}/none does not exist; name one with mail in it (--mbox).\n"),
        (["train", "--init", "none"], "none"),
    ],
)
def test_what_the_words_lack_is_said(words: list[str], said: str, tmp_path: Path) -> None:
    ended = door("train_email_search_agent.py", *words, at=tmp_path)
    assert ended.returncode == 2 and said.format(here=tmp_path) in ended.stderr
