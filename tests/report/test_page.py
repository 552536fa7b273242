"""The page as a file: what is in it, what cannot be, and what the command says."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conftest import HOSTILE

from mcp_rl.cli import main
from mcp_rl.report import write_report

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
    for html, played in ((trained, 6 * 3 * 2 + 18), (evaluated, 12 * 3 * 2)):
        data = data_of(html)
        assert sum(len(group["episodes"]) for group in data["groups"]) == played


def test_a_page_names_nothing_on_the_network(run: Path, evaluation: Path) -> None:
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


def test_what_others_wrote_stands_in_the_page_as_text_alone(hostile: Path) -> None:
    html = write_report(hostile).read_text()
    tags = Tags(html).found
    assert [tag for tag, _ in tags].count("script") == 2
    assert "img" not in {tag for tag, _ in tags}
    links = [attributes["href"] or "" for _, attributes in tags if "href" in attributes]
    assert links and all(link.startswith(("#", "data:")) for link in links)
    assert not any(name.startswith("on") for _, attributes in tags for name in attributes)
    assert "{{ 7 * 7 }}" in html.split("<h1>")[0]
    episodes = data_of(html)["groups"][0]["episodes"]
    assert HOSTILE in episodes[0]["messages"][0]["text"]


def test_the_room_for_episodes_is_kept_and_told(run: Path, tmp_path: Path) -> None:
    small, large = (tmp_path / name for name in ("small.html", "large.html"))
    assert main(["report", str(run), "--out", str(small), "--megabytes", "0"]) == 0
    assert main(["report", str(run), "--out", str(large)]) == 0
    fewest = sum(len(group["episodes"]) for group in data_of(small.read_text())["groups"])
    assert 0 < fewest < 54 and f"{fewest} of 54 episodes are in this page" in small.read_text()
    assert "54 of 54 episodes are in this page" in large.read_text()


def test_the_same_command_again_leaves_a_page_of_a_finished_run_alone(run: Path) -> None:
    page = run / "report.html"
    before = page.stat().st_mtime_ns
    root = run.parents[2]
    words = ["train", "--server", "mcp_calculator", "--transport", "stdio", "--steps", "2", "--output-dir", str(root)]
    from conftest import SMALL

    assert main([*words, "--name", "small", *SMALL]) == 0
    assert page.stat().st_mtime_ns == before


def test_a_page_that_cannot_be_written_costs_nothing_else(evaluation: Path, tmp_path: Path, capsys: Captured) -> None:
    words = ["evaluate", "--server", "mcp_calculator", "--transport", "stdio", "--model", "scripted:refuse"]
    scenarios = ["--scenarios", str(evaluation / "scenarios.jsonl"), "--output-dir", str(tmp_path), "--json"]
    status = main([*words, *scenarios, "--name", "fine", "--samples", "1"])
    assert status == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["models"] and "Page: " in said.err


def test_the_judge_is_held_against_the_verifier_where_both_scored(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "judged"
    shutil.copytree(run, folder)
    for file in folder.glob("trajectories/val/*.jsonl"):
        groups = [json.loads(line) for line in file.read_text().splitlines()]
        for group in groups:
            for place, trajectory in enumerate(group["trajectories"]):
                right = place == 0
                trajectory |= {"success": right, "reward": float(right)}
                trajectory["metrics"]["ruler"] = 0.9 - 0.1 * place
        file.write_text("".join(json.dumps(group) + "\n" for group in groups))
    html = write_report(folder).read_text()
    section = html[html.index("<h2>The judge against the verifier</h2>") :].split("</section>")[0]
    assert "<svg" in section and "1.000" in section


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("smal", "did you mean small?"),
        ("nothing/here", "There is no run or evaluation"),
        ("{folder}", "is neither a run's nor an evaluation's"),
    ],
)
def test_a_name_that_means_nothing_is_one_sentence_and_2(
    name: str, sentence: str, run: Path, tmp_path: Path, capsys: Captured
) -> None:
    words = ["report", name.format(folder=tmp_path), "--output-dir", str(run.parents[2])]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and sentence in err


def test_a_place_that_cannot_be_written_is_one_sentence(run: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "file").write_text("")
    assert main(["report", str(run), "--out", str(tmp_path / "file" / "page.html")]) != 0
    assert "Cannot write" in capsys.readouterr().err
