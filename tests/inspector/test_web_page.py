"""The Inspector's web page in a headless Chromium, used as a person would use it."""

import json
import os
import re
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
import pytest_asyncio
from anyio.streams.text import TextReceiveStream

pytest.importorskip("playwright", reason="needs playwright")
from playwright.async_api import async_playwright, expect

from tests.inspector.conftest import ROOT, Inspector

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the path"),
]


@pytest_asyncio.fixture(loop_scope="module")
async def page_address(
    inspector: Inspector, addresses: dict[tuple[str, str], str], tmp_path: Path
) -> AsyncIterator[str]:
    """The page of an Inspector whose entry `everything` is a calculator on a free port."""
    entries = {
        "everything": {"type": "sse", "url": addresses["mcp_calculator", "sse"].replace("127.0.0.1", "localhost")}
    }
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"mcpServers": entries}))
    ports = {"CLIENT_PORT": free_port(), "MCP_SANDBOX_PORT": free_port()}
    async with await anyio.open_process(
        [*inspector.command, "--web", "--config", str(config)],
        env={**inspector.environment, **ports},
        cwd=ROOT,
        stderr=None,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            with anyio.fail_after(60):
                said = ""
                async for part in TextReceiveStream(process.stdout):
                    said += part
                    if found := re.search(r"(http://127\.0\.0\.1\S+TOKEN=\w+)\s", said):
                        break
                else:
                    raise AssertionError(said)
            yield found[1]
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


async def test_the_page_connects_lists_the_tools_and_calls_one(page_address: str, tmp_path: Path) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(30_000)
        expect.set_options(timeout=30_000)
        await page.goto(page_address)
        await page.get_by_role("switch", name='Connect or disconnect "everything"').click(force=True)
        await expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        tools = page.get_by_text("Tools (7)")
        with anyio.fail_after(30):
            while not await tools.is_visible():  # a click while the page still moves is lost
                await page.get_by_text("Tools", exact=True).click(force=True)
                await anyio.sleep(0.5)
        for tool in ("add", "subtract", "multiply", "divide", "power", "square_root", "evaluate"):
            await expect(page.get_by_role("button", name=re.compile(rf"^{tool}\b"))).to_be_visible()
        await page.get_by_role("button", name=re.compile(r"^evaluate\b")).click()
        await page.get_by_role("textbox", name=re.compile("expression")).fill("(2 + 3) * 4.5")
        await page.get_by_role("button", name="Execute Tool").click()
        await expect(page.get_by_text("22.5").first).to_be_visible()
        await page.screenshot(path=tmp_path / "page.png")
        await browser.close()
