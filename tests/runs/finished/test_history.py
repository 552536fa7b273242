"""`mcp-rl history`: what it shows of a run, whatever state the run is in."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from small_run import STEPS

from mcp_rl.cli import main
from mcp_rl.run_directory import open_run

Captured = pytest.CaptureFixture[str]


def history(run: Path, *more: str) -> int:
    return main(["history", run.name, "--output-dir", str(run.parents[2]), *more])


def test_steps_and_evaluations_are_shown_with_a_summary(run: Path, capsys: Captured) -> None:
    assert history(run) == 0
    shown = capsys.readouterr().out
    rows = re.findall(r"^ +(\d+) +(train|val) ", shown, re.MULTILINE)
    assert rows == [("0", "val"), *((str(step), "train") for step in range(1, 5)), ("4", "val"),
                    ("5", "train"), ("6", "train"), ("6", "val")]  # fmt: skip
    assert f"first: {STEPS} steps in" in shown and "best" in shown and "Tokens that shared prefixes saved" in shown
    assert re.search(r"Time of a step \([\d.]+ s\): .*sampling \d+%", shown)
    assert max(map(len, shown.partition("first: ")[0].splitlines())) <= 80


def test_json_and_csv_say_what_the_file_says(run: Path, capsys: Captured) -> None:
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert all(line.pop("chain") for line in lines)
    assert history(run, "--json") == 0
    told = json.loads(capsys.readouterr().out)["runs"][0]
    assert sorted(told["lines"], key=str) == sorted(lines, key=str)
    assert told["summary"]["steps"] == STEPS and told["summary"]["kept"] == STEPS
    assert told["summary"]["rollouts"] == sum(line["rollouts"] for line in lines if line["split"] == "train")
    best = max((line["greedy_success"], line["step"]) for line in lines if line["split"] == "val")
    assert told["summary"]["best"] == {"step": best[1], "success": best[0]}
    assert history(run, "--csv", "--metrics", "reward, grad_norm", "--split", "train", "--last", "2") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["run"], row["step"], row["split"]) for row in rows] == [
        ("first", "5", "train"),
        ("first", "6", "train"),
    ]
    assert float(rows[1]["grad_norm"]) == [line for line in lines if line["split"] == "train"][-1]["grad_norm"]


def test_with_a_judge_the_held_out_measure_is_the_reward(copied: Path, capsys: Captured) -> None:
    lines = [json.loads(line) for line in (copied / "history.jsonl").read_text().splitlines()]
    judged = [{key: value for key, value in line.items() if "success" not in key} for line in lines]
    (copied / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in judged))
    assert history(copied) == 0
    assert re.search(r"Held out, greedy reward: [\d.]+ → [\d.]+; best [\d.]+ at step", capsys.readouterr().out)


def test_an_unknown_metric_is_answered_with_the_nearest(run: Path, capsys: Captured) -> None:
    assert history(run, "--metrics", "reward,grad_norn") == 2
    assert capsys.readouterr().err == "No line of the history has a metric 'grad_norn'; did you mean grad_norm?\n"


def test_a_killed_or_locked_run_is_shown(copied: Path, capsys: Captured) -> None:
    lines = (copied / "history.jsonl").read_bytes().splitlines(keepends=True)
    (copied / "history.jsonl").write_bytes(b"".join(lines[:-2]) + lines[-2][:40])
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*")}
    with open_run(copied):
        assert history(copied) == 0
    shown = capsys.readouterr().out
    assert "first: 5 steps" in shown
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("*")} == before


def test_of_a_step_that_was_taken_again_the_newest_line_counts(copied: Path, capsys: Captured) -> None:
    with (copied / "history.jsonl").open("a") as file:
        file.write(json.dumps({"step": 6, "split": "train", "reward": 0.125}) + "\n")
    assert history(copied, "--csv", "--metrics", "reward", "--split", "train") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["reward"] for row in rows if row["step"] == "6"] == ["0.125"]


def test_steps_that_no_checkpoint_keeps_are_named(copied: Path, capsys: Captured) -> None:
    state = json.loads((copied / "state.json").read_text())
    (copied / "state.json").write_text(json.dumps({**state, "step": 4}))
    assert history(copied) == 0
    assert "the newest checkpoint is of step 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda run: (run / "history.jsonl").write_text("{}\nnonsense\n{}\n"), "line 1 has no step and split"),
        (
            lambda run: (run / "history.jsonl").write_text('{"step": 1, "split": "train", "step_seconds": "long"}\n'),
            "line 1 has a text in place of a number under 'step_seconds'",
        ),
        (lambda run: (run / "history.jsonl").write_text('{"step": 1, "split": "train"}\n{"st\n'), "line 2 is not JSON"),
        (lambda run: (run / "model.json").unlink(), "has not begun"),
        (lambda run: (run / "model.json").rename(run / "report.json"), "is an evaluation, not a training run"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    copied: Path, spoil: Callable[[Path], object], sentence: str, capsys: Captured
) -> None:
    (copied / "report.json").unlink()
    spoil(copied)
    assert history(copied) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


def test_a_name_that_means_no_run_is_answered_with_the_nearest(run: Path, tmp_path: Path, capsys: Captured) -> None:
    root = str(run.parents[2])
    assert main(["history", "fist", "--output-dir", root]) == 2
    assert "did you mean first?" in capsys.readouterr().err
    assert main(["history", "first", "--output-dir", root, "--project", "other"]) == 2
    assert "add --project default" in capsys.readouterr().err
    assert main(["history", "first", "--output-dir", str(tmp_path)]) == 2
    assert "there is none yet" in capsys.readouterr().err
    assert main(["history", str(run / "state.json")]) == 2
    assert "is a file" in capsys.readouterr().err
    assert main(["history", str(run)]) == 0


def test_a_picture_has_the_size_and_the_colours_of_the_page(run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "plot.png"
    assert main(["history", str(run), "--csv", "--plot", str(picture)]) == 0
    pixels = (imread(picture)[..., :3] * 255).round().astype(np.int64)
    assert pixels.shape[1] == 2 * (720 + 48) and pixels.shape[0] > 3000
    found = set(np.unique(pixels @ np.array([0x10000, 0x100, 1])).tolist())
    paper, blue, stand_in = 0xFBFBFA, 0x2A5FB0, 0x000001
    assert paper in found and blue in found and stand_in not in found


def test_a_page_of_two_runs_holds_all_charts_offline(run: Path, copied: Path, tmp_path: Path) -> None:
    page = tmp_path / "plot.html"
    assert main(["history", str(run), str(copied), "--csv", "--plot", str(page)]) == 0
    html = page.read_text()
    assert re.findall(r"<h2>([^<]*)</h2>", html) == [
        *("Learning curve", "Training signals", "Sampler and learner", "Where the time went"),
        *("Shared prefixes", "Difficulty of the training scenarios", "The numbers"),
    ]
    assert all(f"{path}, greedy, step 4:" in html for path in (run, copied)) and "<script" not in html
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#|data:)""", html)


@pytest.mark.parametrize("name", ["plot.pdf", "plot"])
def test_an_unknown_plot_format_is_refused_first(run: Path, name: str, capsys: Captured) -> None:
    assert history(run, "--plot", name) == 2
    assert "a plot is a .png or an .html file" in capsys.readouterr().err


def test_nothing_is_drawn_of_a_run_without_steps(copied: Path, tmp_path: Path, capsys: Captured) -> None:
    (copied / "history.jsonl").write_text("")
    assert history(copied, "--plot", str(tmp_path / "plot.png")) == 2
    assert "nothing to draw of first yet" in capsys.readouterr().err and not (tmp_path / "plot.png").exists()
