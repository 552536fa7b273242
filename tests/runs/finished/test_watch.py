"""`mcp-rl watch`: what it says of runs, whom it answers, and the page in headless Chromium while a run goes on."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from mcp_rl.cli import main
from mcp_rl.cli.watch import _describe
from mcp_rl.evaluation.progress import Progress
from mcp_rl.run_directory import read_groups
from mcp_rl.runs.live import Live, LiveStatus, read_status
from mcp_rl.runs.watch import pages as served_pages
from mcp_rl.runs.watch.app import make_pages, watch
from mcp_rl.runs.watch.pages import BEING_DRAWN, RunPage
from mcp_rl.runs.watch.state import describe, state_of
from mcp_rl.runs.watch.tail import EpisodeTail
from mcp_rl.system.activity import Activity, Clock, during, timed_by

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
KILLED = """
import os, signal, sys
from pathlib import Path
from mcp_rl.evaluation.progress import Progress
from mcp_rl.runs.live import Live
with Live(Path(sys.argv[1]), Progress(steps=9)):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def at_step(run: Path, folder: Path, step: int) -> Path:
    """Copy a run as it was after a step, without what says how it ended."""
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("seal.json", "report.*", "live", "checkpoints"))
    history = (run / "history.jsonl").read_text().splitlines(keepends=True)
    (folder / "history.jsonl").write_text("".join(line for line in history if json.loads(line)["step"] <= step))
    for file in folder.glob("trajectories/*/*.jsonl"):
        if int(file.stem) > step:
            file.unlink()
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(state | {"step": step, "after": None, "after_step": None}))
    return folder


def go_on(run: Path, folder: Path, step: int) -> None:
    """Add a step's episodes and its lines of the history to such a copy."""
    for file in run.glob(f"trajectories/*/{step:04d}.jsonl"):
        shutil.copy(file, folder / file.relative_to(run))
    history = (run / "history.jsonl").read_text().splitlines(keepends=True)
    with (folder / "history.jsonl").open("a") as lines:
        lines.writelines(line for line in history if json.loads(line)["step"] == step)


@asynccontextmanager
async def watched(*folders: Path) -> AsyncIterator[str]:
    """Serve the pages of runs; yields the address."""
    said, sent = anyio.create_memory_object_stream[str](9)
    pages = make_pages(folders, [folder.name for folder in folders], _describe)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, pages, 0, said.send_nowait)
        yield (await sent.receive()).rpartition(" ")[2]
        tasks.cancel_scope.cancel()


def test_a_run_has_said_what_it_did(run: Path) -> None:
    status = describe(run, "first")
    assert (status["state"], status["step"], status["ended"], status["doing"]) == ("finished", 6, True, [])
    assert status["newest"] is None or "Step 6" in status["newest"]
    tail = EpisodeTail(run)
    tail.read()
    played = list(read_groups(run / "trajectories" / "val" / "0006.jsonl"))
    assert {entry["label"] for entry in tail.since(0)} == {"after step 6"}
    assert sorted(len(entry["group"]["episodes"]) for entry in tail.since(0)) == sorted(map(len, played))
    assert tail.since(tail.at) == [] and (run / "live").stat().st_mode & 0o077 == 0


def test_what_is_waited_for_is_named(tmp_path: Path) -> None:
    clock = Clock()
    with timed_by(clock), Progress(steps=4) as progress, Live(tmp_path, progress, clock) as live:  # noqa: SIM117
        with progress.waiting("exploring"), during(Activity.TOOLS, "slow_tool"), during(Activity.TOOLS, "fast_tool"):
            live._write()
            told = describe(tmp_path, "run")
    assert told["state"] == "running" and [doing["title"] for doing in told["doing"]] == ["exploring"]
    assert told["waiting"] == "Waiting for 2 tool calls (slow_tool)."


def test_how_a_run_ended_or_stalls_is_said(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    killed = read_status(tmp_path)
    assert killed is not None
    now, own = time.time(), LiveStatus.model_validate(_own(tmp_path / "own"))
    cases: list[tuple[LiveStatus | None, str]] = [
        (killed.model_copy(update={"at": now - 60}), "killed"),
        (killed.model_copy(update={"at": now - 60, "host": "elsewhere"}), "silent"),
        (own.model_copy(update={"at": now - 60, "ended": None}), "silent"),
        (own.model_copy(update={"at": now, "moved": now - 300, "ended": None}), "stalled"),
        (own.model_copy(update={"ended": "interrupted"}), "interrupted"),
        (own, "failed"),
        (None, "unknown"),
    ]
    for status, state in cases:
        assert state_of(status, 3, 1.0)[0] == state
    assert "no such tool" in state_of(own, 3, 1.0)[1] and "after step 3" in state_of(cases[0][0], 3, 1.0)[1]
    assert state_of(cases[3][0], 3, 200.0)[0] == "running"  # its steps take longer than that


def _own(folder: Path) -> Any:
    folder.mkdir()
    with pytest.raises(RuntimeError), Live(folder, Progress(steps=9)):
        raise RuntimeError("no such tool")
    return json.loads((folder / "live" / "status.json").read_text())


def test_drawing_takes_a_small_part_of_the_time(run: Path, tmp_path: Path) -> None:
    folder = at_step(run, tmp_path / "first", 2)
    page = RunPage(folder, "first")
    assert page.due
    page.make()
    go_on(run, folder, 3)
    assert page.version == 1 and page.problem is None and not page.due
    assert page._not_before - time.monotonic() > 1.0
    (folder / "history.jsonl").write_text("no JSON\n")
    page.make()
    assert page.version == 1 and "is not JSON" in (page.problem or "")


@pytest.mark.asyncio
async def test_only_who_knows_the_address_is_answered(run: Path) -> None:
    async with watched(run) as url, httpx.AsyncClient(timeout=60) as client:
        answer = await client.get(url)
        assert answer.status_code == 200 and "connect-src" in answer.text and BEING_DRAWN in answer.text
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-security-policy"] == "frame-ancestors 'none'"
        root = url.rsplit("/", 2)[0]
        assert (
            (await client.get(f"{root}/")).status_code == (await client.get(f"{root}/other/status")).status_code == 404
        )
        evil = await client.get(f"{url}status", headers={"Host": "evil.example"})
        assert evil.status_code == 400 and "first" not in evil.text


def test_a_taken_port_is_one_sentence(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "nice", lambda by: by)  # a lower priority would stay with all later tests of this process
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code = main(["watch", str(run), "--port", str(taken.getsockname()[1])])
    assert code == 2 and "is taken; choose another with --port" in capsys.readouterr().err


def test_ctrl_c_ends_it_and_nothing_else(run: Path) -> None:
    words = [sys.executable, "-m", "mcp_rl", "watch", str(run), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and "http://127.0.0.1:" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0 and err == "" and "the run goes on" in out


@pytest.fixture
def drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_pages, "SHARE", 100.0)


browser_test = pytest.mark.skipif(PROGRAM is None, reason="needs a Chromium on the path")


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Any]:
    """Open a page, which must raise no error and ask only its own server."""
    playwright = pytest.importorskip("playwright.async_api", reason="needs playwright")
    complaints: list[str] = []
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        page = await browser.new_page(**{"viewport": {"width": 1200, "height": 700}, **options})
        page.set_default_timeout(90_000)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith((url, "data:")) else complaints.append(r.url))
        await page.goto(url)
        yield page
        await browser.close()
    assert complaints == []


@browser_test
@pytest.mark.asyncio
@pytest.mark.usefixtures("drawn_at_once")
async def test_the_page_follows_a_run_and_leaves_the_reader_in_place(run: Path, tmp_path: Path) -> None:
    folder = at_step(run, tmp_path / "first", 2)
    groups = list(read_groups(run / "trajectories" / "train" / "0003.jsonl"))
    with Progress(steps=6) as progress, Live(folder, progress):
        async with watched(folder) as url, opened(url) as page:
            await page.wait_for_selector("#live .badge.running")
            label = "training step 2"
            await page.select_option("select[name=source]", label)
            chosen = page.locator("#list .mark").nth(1)
            await chosen.click()
            await page.evaluate("document.querySelector('#episode .turn').dataset.same = 'yes'")
            await page.evaluate("scrollTo({ top: 1e6, behavior: 'instant' })")
            top = "document.getElementById('episodes').getBoundingClientRect().top"
            before, text = await page.evaluate(top), await page.locator("#episode .turn").all_inner_texts()
            with progress.rollouts("step 3", len(groups), len(groups[0])) as bar:
                bar.finished(groups[0].trajectories[0])
                await page.wait_for_selector("#live progress[value='1']")
                await page.wait_for_selector("select[name=source] option[value='training step 3']", state="attached")
                assert await page.locator("#list .where", has_text="going on").count() == 0  # filtered out
                go_on(run, folder, 3)
                await page.wait_for_selector("h1 >> text=3 training steps")
            assert await page.locator("select[name=source]").input_value() == label
            assert await page.locator("#episode .turn").all_inner_texts() == text
            assert await page.locator("#episode .turn[data-same=yes]").count() == 1
            assert abs(await page.evaluate(top) - before) < 2
            await page.click("button[type=reset]")
            assert await page.locator("#list .where", has_text="going on").count() == 0  # step 3 is whole by now
            assert await page.locator("#list .where", has_text="training step 3").count() == len(groups)
    assert read_status(folder) is not None


@browser_test
@pytest.mark.asyncio
@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (380, "dark")])
async def test_several_runs_are_side_by_side(run: Path, tmp_path: Path, width: int, scheme: str) -> None:
    other = at_step(run, tmp_path / "second", 4)
    options = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    async with watched(run, other) as url, opened(url, **options) as page:
        await page.wait_for_selector("#live .badge.finished")
        await page.wait_for_selector("figure svg", state="attached")
        assert await page.locator("#live .run").count() == 2 and await page.title() == "first, second"
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        assert await page.locator("figure svg:visible").count() >= 4
        await page.click("#live a >> text=first")
        await page.wait_for_selector("#episode .request")
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        await page.wait_for_selector("#live b >> text=first")
