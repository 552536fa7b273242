"""A server of one tool, which loads a page and shows it as Markdown. `python -S` runs it."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

sys.path.insert(0, str(Path(__file__).parents[1]))
from by_hand import Refused, serve, tool

LOAD = tool("load", "Load a page of the web.", url="string")
LOAD["inputSchema"]["properties"]["url"]["description"] = "Address of the page"


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


def load(name: str, given: dict[str, Any]) -> str:
    try:
        with build_opener(ProxyHandler({})).open(given["url"]) as answer:
            page = answer.read().decode()
    except (OSError, ValueError) as error:
        raise Refused(f"Cannot load {given['url']}: {error}") from error
    reader = AsMarkdown()
    reader.feed(re.sub(r"(?s)<head>.*</head>|<!doctype html>", "", page))
    return f"Contents of {given['url']}:{reader.text}"


serve("browser", [LOAD], load)
