"""The page in headless Chromium: used as a person would, and watched for scripts and requests."""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

pytest.importorskip("playwright", reason="needs playwright")
from playwright.async_api import Browser, Page, async_playwright

from mcp_rl.evaluation.page import write_report

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(PROGRAM is None, reason="needs a Chromium on the path"),
]
Opened = Callable[..., Awaitable[Page]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        yield opened
        await opened.close()


@pytest_asyncio.fixture(loop_scope="module")
async def opened(browser: Browser) -> AsyncIterator[Opened]:
    """Opens a page, which must raise no error and send no request."""
    complaints: list[str] = []
    contexts: list[Any] = []

    async def open_page(path: Path, *, fragment: str = "", **options: Any) -> Page:
        context = await browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        page = await context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda r: complaints.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
        await page.goto(f"file://{path}{fragment}")
        return page

    yield open_page
    for context in contexts:
        await context.close()
    assert complaints == []


async def test_episodes_are_filtered_by_outcome_and_text(opened: Opened, evaluation: Path) -> None:
    page = await opened(evaluation / "report.html")
    count = page.locator("#count")
    assert await count.inner_text() == "36 of 36 episodes"
    await page.select_option("select[name=outcome]", "failure")
    assert 0 < int((await count.inner_text()).split()[0]) < 36
    await page.fill("input[name=text]", "cannot do this with the tools")
    await page.locator("#list .mark.bad:not(.faded)").first.click()
    shown = await page.locator("#episode").inner_text()
    assert "failure" in shown and "I cannot do this with the tools that I have." in shown
    await page.fill("input[name=text]", "no text says this")
    assert "No episode matches." in await page.locator("#list").inner_text()
    await page.click("button[type=reset]")
    assert await count.inner_text() == "36 of 36 episodes"


async def test_an_example_of_a_failure_opens_whatever_is_filtered(opened: Opened, evaluation: Path) -> None:
    page = await opened(evaluation / "report.html", fragment="#outcome=success", reduced_motion="reduce")
    example = page.locator("#what-still-fails .examples a").first
    request = await example.inner_text()
    await example.click()
    assert await page.locator("#count").inner_text() == "36 of 36 episodes"
    assert await page.locator("#episode .request").inner_text() == request
    assert await page.locator("#episode .badge.bad").first.inner_text() == "failure"
    assert await page.evaluate("document.getElementById('episode').getBoundingClientRect().top < innerHeight")


@pytest.mark.parametrize("width", [400, 800, 1400])
async def test_nothing_is_wider_than_the_window(opened: Opened, evaluation: Path, width: int) -> None:
    page = await opened(evaluation / "report.html", viewport={"width": width, "height": 900})
    assert await page.evaluate("document.documentElement.scrollWidth") <= width


async def test_the_open_episode_matches_the_filters(opened: Opened, run: Path) -> None:
    page = await opened(run / "report.html")
    # rows are listed newest first; the one opened is the first whose episodes differ, else the first
    assert await page.evaluate("""() => {
        const rows = [...document.querySelectorAll("#list [data-group]")];
        const marks = rows.map((row) => [...row.querySelectorAll(".mark")]);
        const differ = (row) => new Set(row.map((mark) => mark.textContent)).size > 1;
        return (marks.find(differ) ?? marks[0])[0].ariaCurrent === "true";
    }""")
    for source in ("after step 2", "training step 1"):
        await page.select_option("select[name=source]", label=source)
        assert source in await page.locator("#episode .where").inner_text()
    await page.locator("#list .mark").nth(2).click()
    chosen = await page.locator("#episode").inner_text()
    await page.fill("input[name=text]", "a")
    assert await page.locator("#episode").inner_text() == chosen
    assert "Judged by openai/judge" in chosen and "ruler" in chosen and "because" in chosen


async def test_without_tokens_no_token_views_are_offered(opened: Opened, evaluation: Path) -> None:
    page = await opened(evaluation / "report.html", fragment="#tokens=logprob")
    assert "No tokens" in await page.locator("#episode").inner_text()
    assert await page.locator("#episode .tabs, #episode .token").count() == 0
    assert await page.locator("#episode .turn").count() >= 2


async def test_the_view_is_kept_in_the_address(opened: Opened, evaluation: Path) -> None:
    page = await opened(evaluation / "report.html")
    await page.select_option("select[name=outcome]", "success")
    fragment = await page.evaluate("location.hash")
    said = await page.locator("#count").inner_text()
    again = await opened(evaluation / "report.html", fragment=fragment)
    assert await again.locator("#count").inner_text() == said
    assert await again.locator("select[name=outcome]").input_value() == "success"


async def test_tokens_are_coloured_by_logprob_and_by_advantage(opened: Opened, run: Path) -> None:
    page = await opened(run / "report.html")
    await page.select_option("select[name=source]", label="training step 1")
    await page.locator("#list .mark:not(.faded)").first.click()
    assert await page.locator("#episode .token").count() == 0
    await page.click("[data-tokens=logprob]")
    tokens = page.locator("#episode .tokens .token")
    assert await tokens.count() > 3
    assert "logprob" in (await tokens.first.get_attribute("title") or "")
    text = "".join(await page.locator("#episode .tokens").all_inner_texts())
    assert "<tool_call>" in text or "<|im_end|>" in text
    colours = await tokens.evaluate_all("all => all.map((each) => getComputedStyle(each).backgroundColor)")
    assert len(set(colours)) > 1
    await page.click("[data-tokens=advantage]")
    assert "advantage" in await page.locator("#episode .scale").inner_text()


async def test_hostile_names_are_inert(opened: Opened, hostile_evaluation: Path) -> None:
    page = await opened(write_report(hostile_evaluation))
    assert "<img src=x onerror='window.owned = 2'>" in await page.locator("h1").inner_text()
    assert await page.evaluate("window.owned") is None
    assert await page.evaluate("document.querySelectorAll('script').length") == 2
    assert await page.locator("img, figure script").count() == 0
    assert await page.evaluate("document.documentElement.scrollWidth") <= 1200
    assert "\u202e" not in await page.locator("body").inner_text()


async def test_hostile_episodes_are_shown_and_inert(opened: Opened, hostile: Path) -> None:
    page = await opened(write_report(hostile))
    await page.locator("#list .mark").first.click()
    await page.click("[data-tokens=logprob]")
    await page.click("[data-tokens=off]")
    shown = await page.locator("#episode").inner_text()
    assert "<img src=x onerror='window.owned = 2'>" in shown and "{{ 7 * 7 }}" in shown
    assert "⟨U+202E⟩" in shown and "⟨U+001B⟩[31m" in shown
    assert "\u202e" not in await page.locator("body").inner_text()
    assert await page.evaluate("window.owned") is None
    assert await page.locator("#episode img, #episode script, #episode a").count() == 0
    assert await page.evaluate("document.querySelectorAll('script').length") == 2


@pytest.mark.parametrize("width", [1200, 380])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_fits_its_window_and_can_be_read(opened: Opened, run: Path, width: int, scheme: str) -> None:
    page = await opened(run / "report.html", viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    charts = page.locator("figure svg:visible")
    assert await charts.count() >= 4
    box = await charts.first.bounding_box()
    assert box is not None and 0 < box["width"] <= width
    contrast = await page.evaluate(CONTRAST)
    assert contrast > 4.5, f"text has a contrast of {contrast:.1f} to its ground"


CONTRAST = """() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
      .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0362 * parts[2];
  };
  const [ink, ground] = [getComputedStyle(document.querySelector("p.lead")).color,
    getComputedStyle(document.body).backgroundColor].map(light);
  return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
}"""


async def test_without_javascript_all_but_episodes_is_shown(opened: Opened, run: Path) -> None:
    page = await opened(run / "report.html", java_script_enabled=False)
    assert "JavaScript is off" in await page.content()
    assert await page.locator("figure svg:visible").count() >= 4
