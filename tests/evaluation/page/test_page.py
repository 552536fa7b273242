"""The page as a file: its content, escaping, and the command's messages."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mcp_rl.cli import main
from mcp_rl.evaluation.page import write_report
from tests.evaluation.page.conftest import HOSTILE, train

Captured = pytest.CaptureFixture[str]


def titles(html: str) -> list[str]:
    return re.findall(r"<h2>([^<]*)</h2>", html)


def data_of(html: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_training_and_evaluating_leave_a_page_behind(run: Path, evaluation: Path) -> None:
    trained, evaluated = (folder.joinpath("report.html").read_text() for folder in (run, evaluation))
    for title in ("Success", "Learning curve", "Success by tool", "Training signals", "Episodes"):
        assert title in titles(trained)
    assert "Learning curve" not in titles(evaluated) and "Success by number of steps" in titles(evaluated)
    assert "scripted:reference" in evaluated and "The judge against the verifier" not in titles(evaluated)
    for html, played in ((trained, 6 * 3 * 2 + 18), (evaluated, 6 * 3 * 2)):
        data = data_of(html)
        assert sum(len(group["episodes"]) for group in data["groups"]) == played


def test_a_page_loads_nothing_from_the_network(run: Path, evaluation: Path) -> None:
    for folder in (run, evaluation):
        html = folder.joinpath("report.html").read_text()
        addresses = re.findall(r"""(?:src|href|action|url)\s*[=(]\s*["']?([^"')\s>]+)""", html)
        outside = [a for a in addresses if not a.startswith(("#", "data:")) and "://" in a]
        assert outside == []
        policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
        assert policy and "default-src &#39;none&#39;" in policy[1] and "unsafe" not in policy[1]


class Tags(HTMLParser):
    """The elements of a page, as a browser without a script would see them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize("which", ["hostile", "hostile_evaluation"])
def test_hostile_texts_are_escaped(which: str, request: pytest.FixtureRequest) -> None:
    html = write_report(request.getfixturevalue(which)).read_text()
    tags = Tags(html).found
    assert [tag for tag, _ in tags].count("script") == 2
    assert "img" not in {tag for tag, _ in tags}
    links = [attributes["href"] or "" for _, attributes in tags if "href" in attributes]
    assert links and all(link.startswith(("#", "data:")) for link in links)
    assert not any(name.startswith("on") for _, attributes in tags for name in attributes)
    assert "{{ 7 * 7 }}" in html.split("</h1>")[0] and "\u202e" not in html
    if which == "hostile":
        assert HOSTILE in data_of(html)["groups"][0]["episodes"][0]["messages"][0]["text"]


def test_what_still_fails_is_told_with_examples(evaluation: Path) -> None:
    html = evaluation.joinpath("report.html").read_text()
    section = re.split(r'<section id="what-still-fails">', html)[1].split("</section>")[0]
    assert re.search(r"(\d+) of \1 sampled episodes failed \(scripted:refuse\)|6 of 6 greedy episodes failed", section)
    captions = ["by tool of the reference solution", "by kind of task", "by the way they failed"]
    assert re.findall(r"<caption>([^<]*)</caption>", section) == captions
    numbers = {int(number) for number in re.findall(r'data-number="(\d+)"', section)}
    data = data_of(html)
    episodes = [(data["sources"][group["source"]]["label"], e) for group in data["groups"] for e in group["episodes"]]
    assert numbers and all(episodes[n][0] == "scripted:refuse" and not episodes[n][1]["success"] for n in numbers)


def test_the_room_for_episodes_is_kept_and_shown(run: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.html"
    assert main(["report", str(run), "--out", str(small), "--megabytes", "0"]) == 0
    fewest = sum(len(group["episodes"]) for group in data_of(small.read_text())["groups"])
    assert 0 < fewest < 54 and f"{fewest} of 54 episodes are in this page" in small.read_text()
    assert "54 of 54 episodes are in this page" in (run / "report.html").read_text()


def test_the_page_of_a_finished_run_is_not_written_again(run: Path, judge: str) -> None:
    page = run / "report.html"
    before = page.stat().st_mtime_ns
    assert train(run.parents[2], judge) == 0
    assert page.stat().st_mtime_ns == before


def test_a_page_that_cannot_be_written_costs_the_run_nothing(
    run: Path, judge: str, tmp_path: Path, capsys: Captured
) -> None:
    folder = tmp_path / "default" / "models" / "small"
    shutil.copytree(run, folder)
    (folder / "report.html").unlink()
    (folder / "report.html" / "in the way").mkdir(parents=True)
    assert train(tmp_path, judge, "--json") == 0
    said = capsys.readouterr()
    assert "Cannot write the page: Cannot write" in said.err and f"mcp-rl report {folder}" in said.err
    assert set(json.loads(said.out)) == set(json.loads((run / "report.json").read_text())) - {"details"}


def test_episodes_that_cannot_be_read_are_one_sentence(run: Path, tmp_path: Path, capsys: Captured) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(run, folder)
    file = folder / "trajectories" / "train" / "0001.jsonl"
    file.write_text('{"trajectories": 3}\n')
    assert main(["report", str(folder)]) != 0
    said = capsys.readouterr().err
    assert str(file) in said and "has changed since it was written" in said
    (folder / "seal.json").unlink()
    assert main(["report", str(folder)]) != 0
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and f"The episodes in {file} cannot be read" in err


def section(html: str, title: str) -> str:
    return html[html.index(f"<h2>{title}</h2>") :].split("</section>")[0]


def test_the_judge_is_compared_with_the_verifier(run: Path) -> None:
    groups = [json.loads(line) for file in run.glob("trajectories/val/*.jsonl") for line in file.open()]
    both = [
        (trajectory["metrics"]["ruler"], trajectory["success"])
        for group in groups
        for trajectory in group["trajectories"]
    ]
    html = (run / "report.html").read_text()
    shown = section(html, "The judge against the verifier")
    for score, fifth in ((0.2, 1), (0.9, 4)):
        passed = [success for judged, success in both if int(judged * 5) == fifth]
        told = f"judge {score:.2f}: the verifier passed {sum(passed) / len(passed):.3f} of {len(passed)}"
        assert told in shown
    assert "openai/judge" in shown
    assert all(group["judge"]["model"] == "openai/judge" for group in data_of(html)["groups"])


def test_an_unfinished_run_shows_its_results_so_far(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "going on"
    shutil.copytree(run, folder)
    for name in ("seal.json", "report.json", "report.html", "trajectories/val/0002.jsonl"):
        (folder / name).unlink()
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(state | {"after": None, "after_step": None}))
    lines = (folder / "history.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["split"] == "train" or json.loads(line)["step"] == 0]
    (folder / "history.jsonl").write_text("".join(kept))
    html = write_report(folder).read_text()
    assert "This run was not finished when the page was made: 2 steps taken" in html
    assert "36 of 36 episodes are in this page" in html and "after step 2" not in html
    assert {"Success", "Learning curve", "Training signals"} <= set(titles(html))


def test_charts_show_what_was_measured(run: Path) -> None:
    html = (run / "report.html").read_text()
    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    curve = section(html, "Learning curve")
    for line in history:
        if line["split"] == "val":
            low, high = line["greedy_ci95"]
            assert f"greedy, step {line['step']}: {line['greedy_success']:.3f} [{low:.3f}, {high:.3f}]" in curve
        else:
            assert f"step {line['step']}: {line['success']:.3f}" in curve
    after = json.loads((run / "report.json").read_text())["details"]["after"]
    by_tool = section(html, "Success by tool")
    for tool, found in after["sampled_by_tool"].items():
        assert f"after step 2, {tool} ({found['scenarios']:.0f}): {found['success']:.3f} [{found['low']:.3f}" in by_tool


def test_only_measured_signals_have_charts(run: Path) -> None:
    shown = section((run / "report.html").read_text(), "Training signals")
    names = ["mean reward", "gradient norm", "turns per episode", "judge: pairs in order"]
    assert all(shown.count(f">{name}</text>") == 2 for name in names)
    for svg in re.findall(r"<svg.*?</svg>", shown, re.DOTALL):
        zeros = re.findall(r"<text[^>]*>0(?:\.0*)?</text>", svg)
        assert len(zeros) == 8


def test_no_section_of_a_page_is_empty(run: Path, evaluation: Path) -> None:
    for folder in (run, evaluation):
        html = (folder / "report.html").read_text()
        figures = re.findall(r"<figure>(.*?)</figure>", html, re.DOTALL)
        assert figures and all("<path" in figure for figure in figures)
        bodies = re.findall(r"<tbody>(.*?)</tbody>", html, re.DOTALL)
        assert bodies and all("<tr>" in body for body in bodies)
        parts = re.findall(r"<section[^>]*>(.*?)</section>", html, re.DOTALL)
        assert all(re.search("<figure>|<table|<form", part) for part in parts)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("smal", "did you mean small?"),
        ("nothing/here", "There is no run or evaluation"),
        ("{folder}", "is neither a run's nor an evaluation's"),
    ],
)
def test_an_unknown_name_is_one_sentence_and_exit_code_2(
    name: str, sentence: str, run: Path, tmp_path: Path, capsys: Captured
) -> None:
    words = ["report", name.format(folder=tmp_path), "--output-dir", str(run.parents[2])]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and sentence in err


def test_an_unwritable_page_is_one_sentence(run: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "file").write_text("")
    assert main(["report", str(run), "--out", str(tmp_path / "file" / "page.html")]) != 0
    assert "Cannot write" in capsys.readouterr().err
