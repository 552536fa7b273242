"""An inbox as an MCP server on stdio: `search_server.py --database FILE`. Its tools search and read.

The owner of the inbox and the day belong to the episode: `begin_episode` sets them, and no later mail and nobody else's
is found. Before its first call, or without arguments, the whole database is searched.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mail_database import MOST_RESULTS, DatabaseError, Inbox, MailDatabase, SearchError, default_path
from mcp.server import MCPServer
from mcp.types import CallToolResult, TextContent, Tool, ToolAnnotations

TEXT = {"type": "string"}
DAY = {"type": "string", "description": "YYYY-MM-DD"}
FEW = 5
"""Results of a search that asks for no number."""


class Desk:
    """The database, opened at the first use, and the inbox of the episode. Methods return a text for the model."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database: MailDatabase | None = None
        self._inbox = Inbox()

    @property
    def database(self) -> MailDatabase:
        if self._database is None:
            self._database = MailDatabase(self.path)
        return self._database

    def begin_episode(self, inbox_address: str | None = None, query_date: str | None = None) -> str:
        self._inbox = self.database.inbox(inbox_address, query_date)
        return "Ready."

    def search_inbox(
        self, keywords: str, sent_after: str | None = None, sent_before: str | None = None, max_results: int = FEW
    ) -> str:
        if not 1 <= max_results <= MOST_RESULTS:
            raise SearchError(f"max_results must be from 1 to {MOST_RESULTS}, not {max_results}.")
        hits, complete = self.database.search(
            keywords, self._inbox, sent_after=sent_after, sent_before=sent_before, max_results=max_results
        )
        if not hits:
            return "No mail was found."
        found = "\n\n".join(
            f"text: {' '.join(hit.snippet.split())}\nsubject: {hit.subject}\nfrom: {hit.sender}\n"
            f"date: {hit.sent[:10]}\nmessage_id: {hit.message_id}"
            for hit in hits
        )
        return found if complete else f"No mail holds all of these words. These hold some:\n\n{found}"

    def read_email(self, message_id: str) -> str:
        mail = self.database.read(message_id, self._inbox)
        return (
            f"message_id: {mail.message_id}\ndate: {mail.sent.replace('T', ' ')}\npeople: {mail.people}\n"
            f"subject: {mail.subject}\n\n{mail.body}"
        )

    def return_final_answer(self, answer: str, reference_message_ids: list[str]) -> str:
        return "Handed in."


@dataclass(frozen=True)
class MailTool:
    """A tool: its name, which is that of a method of Desk, and its description and arguments for the model."""

    name: str
    description: str
    properties: dict[str, dict[str, Any]]
    required: tuple[str, ...]

    @property
    def tool(self) -> Tool:
        return Tool(
            name=self.name,
            description=self.description,
            input_schema={"type": "object", "properties": self.properties, "required": list(self.required)},
            annotations=ToolAnnotations(
                read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
            ),
        )


TOOLS = {
    tool.name: tool
    for tool in (
        MailTool(
            "search_inbox",
            "Search the inbox for mail that holds all keywords. The best match comes first.",
            {
                "keywords": {"type": "string", "description": 'Words, or phrases in "quotes"'},
                "sent_after": DAY,
                "sent_before": DAY,
                "max_results": {"type": "integer", "minimum": 1, "maximum": MOST_RESULTS, "default": FEW},
            },
            ("keywords",),
        ),
        MailTool("read_email", "Read a whole mail of the inbox.", {"message_id": TEXT}, ("message_id",)),
        MailTool(
            "return_final_answer",
            'Hand in the answer, with the ids of the mails that say so. Say "I don\'t know" if no mail does.',
            {"answer": TEXT, "reference_message_ids": {"type": "array", "items": TEXT}},
            ("answer", "reference_message_ids"),
        ),
        MailTool(
            "begin_episode",
            "Set the owner of the inbox and the day, after which no mail is found.",
            {"inbox_address": TEXT, "query_date": DAY},
            (),
        ),
    )
}
KINDS: dict[str, type] = {"string": str, "integer": int, "array": list}


class InboxServer(MCPServer[Any]):
    """Lists and calls the tools. The schemas are hand-written, since the model reads every byte of them."""

    desk: Desk

    async def list_tools(self) -> list[Tool]:
        return [tool.tool for tool in TOOLS.values()]

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> CallToolResult:
        try:
            text, failed = called(self.desk, name, arguments), False
        except (SearchError, DatabaseError) as error:
            text, failed = str(error), True
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=failed)


def called(desk: Desk, name: str, arguments: dict[str, Any]) -> str:
    """Call a tool and return its text. Raises SearchError for arguments that do not fit, DatabaseError."""
    if name not in TOOLS:
        raise SearchError(f"There is no tool {name!r:.100}.")
    tool = TOOLS[name]
    given = {key: value for key, value in arguments.items() if value is not None}
    for key, value in given.items():
        if key not in tool.properties:
            raise SearchError(f"{name} has no argument {key!r:.100}.")
        kind = tool.properties[key]["type"]
        if not isinstance(value, KINDS[kind]) or isinstance(value, bool):
            raise SearchError(f"{key} must be of type {kind}, not {value!r:.100}.")
    for key in tool.required:
        if key not in given:
            raise SearchError(f"The argument {key} is missing.")
    method: Callable[..., str] = getattr(desk, name)
    return method(**given)


def main() -> None:
    parser = argparse.ArgumentParser(description="An inbox that speaks MCP.")
    parser.add_argument("--database", type=Path, default=default_path())
    server = InboxServer("mcp_email_search", version="1.0.0", log_level="WARNING", subscriptions=False)
    server.desk = Desk(parser.parse_args().database)
    server.run("stdio")


if __name__ == "__main__":
    main()
