"""A server of one tool, which loads a page and shows it as Markdown."""

import re
from html.parser import HTMLParser
from typing import Annotated

import httpx
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

server = MCPServer("browser")


class AsMarkdown(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.text, self._row = "", -1
        self._target = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in ("h1", "h2"):
            self.text += "\n\n" + "#" * int(tag[1]) + " "
        elif tag in ("p", "ul", "table"):
            self.text += "\n\n"
            self._row = -1
        elif tag == "li":
            self.text += "\n* "
        elif tag == "a":
            self._target = dict(attributes).get("href") or ""
            self.text += "["
        elif tag == "tr":
            self._row += 1
            self.text += "\n|"
        elif tag in ("td", "th"):
            self.text += " "

    def handle_endtag(self, tag: str) -> None:
        if tag == "a":
            self.text += f"]({self._target})"
        elif tag in ("td", "th"):
            self.text += " |"
        elif tag == "tr" and self._row == 0:
            self.text += "\n|" + " --- |" * (self.text.rpartition("\n")[2].count("|") - 1)

    def handle_data(self, data: str) -> None:
        self.text += data


@server.tool()
async def load(url: Annotated[str, Field(description="Address of the page")]) -> str:
    """Load a page of the web."""
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = (await client.get(url)).raise_for_status()
    except httpx.HTTPError as error:
        raise ToolError(f"Cannot load {url}: {error}") from error
    reader = AsMarkdown()
    reader.feed(re.sub(r"(?s)<head>.*</head>|<!doctype html>", "", answer.text))
    return f"Contents of {url}:{reader.text}"


server.run()
