"""A server's secrets reach no model, no judge and no file: they are replaced where they enter."""

import json
from pathlib import Path

import anyio
import pytest

from mcp_rl.scenario import OneServer, SseServer, StdioServer, StreamableHttpServer
from mcp_rl.system.redaction import Redaction, secrets_in, without_secrets
from mcp_rl.toolserver.connection.connection import Connection, connect
from mcp_rl.toolserver.known_secrets import redaction_for
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.toolserver.tools.offered import offering

SCRIPT = str(Path(__file__).with_name("telling_server.py"))
KEY, PASSWORD = "wordless+winter/0451", "open%20sesame7"
ENV = {
    "SERVICE_KEY": "${THE_KEY}",
    "DATABASE": f"postgres://app:{PASSWORD}@db.example/app",
    "MODE": "true",
    "COUNT": "1",
    "PLACE": "/tmp",
    "REGION": "us-east-1",
}
TOLD = (KEY, json.dumps(KEY)[1:-1], "d29yZGxlc3Mrd2ludGVyLzA0NT", PASSWORD, "open sesame7", "unheard-of", "ghp_0123")


def telling(transport: str) -> OneServer:
    params = ToolServer.from_script("telling", "It tells.", SCRIPT).params(transport)
    if isinstance(params, StdioServer):
        return params.model_copy(update={"env": ENV})
    assert isinstance(params, SseServer | StreamableHttpServer) and params.launch is not None
    return params.model_copy(update={"launch": params.launch.model_copy(update={"env": ENV})})


async def all_that_it_says(connection: Connection) -> dict[str, str]:
    said = {
        "info": json.dumps(connection.server_info),
        "tools": repr(connection.tools),
        "resources": repr(await connection.resources()),
        "prompts": repr(await connection.prompts()),
        "resource": repr(await connection.ask("resources/read", {"uri": "telling://secret"})),
        "prompt": repr(await connection.ask("prompts/get", {"name": "ask"})),
        "fail": repr(await connection.call("fail", {})),
    }
    for form in ("plain", "json", "base64", "header", "strange", "settings"):
        said[form] = repr(await connection.call("tell", {"what": form}))
    offered = await offering(connection, ("resources", "prompts"))
    said["offered"] = repr(offered.tools)
    return said


@pytest.mark.parametrize("transport", ["stdio", "sse", "streamable-http"])
async def test_secrets_are_replaced_where_they_enter(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", KEY)
    async with connect(telling(transport), log_dir=tmp_path) as connection:
        said = await all_that_it_says(connection)
        assert (await connection.call("write", {})).text == "written"
        log = anyio.Path(tmp_path / "server.stderr.log")
        with anyio.fail_after(20):
            while "last" not in (written := await log.read_text()):  # noqa: ASYNC110
                await anyio.sleep(0.05)
    said["log"] = written
    assert [(where, secret) for where, text in said.items() for secret in TOLD if secret in text] == []
    for where in ("info", "tools", "resources", "prompts", "resource", "prompt", "fail", "plain", "json", "base64"):
        assert "${THE_KEY}" in said[where], where
    assert "${THE_KEY} postgres://app:${DATABASE}@db.example/app ${DATABASE}" in said["plain"]
    assert "postgres://ann:${REDACTED}@db/x, ${REDACTED}" in said["strange"]
    assert "true 1 /tmp us-east-1" in said["settings"]
    assert written.splitlines()[-3:] == ["whole ${THE_KEY}", "cut ${THE_KEY} ${DATABASE}", "last ${THE_KEY}"]


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("API_TOKEN", "hunter2x", "hunter2x"),
        ("DB_PASS", "swordfish", "swordfish"),
        ("password", "abc123", "abc123"),
        ("Authorization", "Bearer abcdefgh", "abcdefgh"),
        ("DSN", "redis://:s3cret-word@h:1/0", "s3cret-word"),
        ("ANYTHING", "mysql://u:p%40ssw0rd@h/d", "p@ssw0rd"),
        ("ANYTHING", "sk-proj-abcdefghijklmnopqrst12", "sk-proj-abcdefghijklmnopqrst12"),
        ("ANYTHING", "q7Zp1LxV0aYt9RkE3mWcB5uN", "q7Zp1LxV0aYt9RkE3mWcB5uN"),
        ("ANYTHING", "0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef"),
        ("API_TOKEN", "true", None),
        ("TOKEN_LIMIT", "4096", None),
        ("MAX_TOKENS", "100000000", None),
        ("POSTGRES_PASSWORD", "postgres", None),
        ("SSH_AUTH_SOCK", "/tmp/agent.1", None),
        ("CREDENTIALS", "/tmp", None),
        ("AUTH_URL", "https://login.example/authorize", None),
        ("GIT_AUTHOR_NAME", "Ann Example", None),
        ("KEYBOARD_LAYOUT", "us-international", None),
        ("MODEL", "text-embedding-3-small", None),
        ("WORKSPACE", "550e8400-e29b-41d4-a716-446655440000", None),
        ("LANG", "en_US.UTF-8", None),
        ("ALLOWED", "/srv/data-2025/a-long-folder-name-with-words", None),
    ],
)
def test_names_and_looks_say_what_is_a_secret(name: str, value: str, secret: str | None) -> None:
    found = [value for _, value in secrets_in(name, value)]
    assert secret in found if secret else found == []


def test_words_and_addresses_of_a_command_are_searched_for_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAINLY", "named-by-option-1")
    for params, secret in (
        (StdioServer(command="x", args=("--api-key", "{env:PLAINLY}")), "named-by-option-1"),
        (StdioServer(command="x", args=("--token=tok-in-a-word-1",)), "tok-in-a-word-1"),
        (StdioServer(command="x", args=("postgres://u:in-an-argument@h/d",)), "in-an-argument"),
        (SseServer(url="https://h/sse?api_key=in-the-query-1"), "in-the-query-1"),
    ):
        assert secret not in redaction_for(params).text(f"It is {secret}.")


def test_ordinary_text_is_not_touched_and_twice_is_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "abc123")
    monkeypatch.setenv("PIN_SECRET", "20250101")
    redaction = Redaction()
    for text in (
        "abc1234 and xabc123 are other words; 120250101 is another number",
        "https://a.example:8080/x@y, git@host:a/b, user:pass, basic understanding, bearer of good news",
        "a task-list with sk-learn, AKIA, Bearer <token>, -----BEGIN CERTIFICATE-----",
    ):
        assert redaction.text(text) is text
    given = {"a": ["abc123", 20250101, 1, None, True, 2.5], "Bearer q7Zp1LxV0aYt9RkE3mWc": {"abc123": []}}
    once = redaction.value(given)
    assert once == {
        "a": ["${SERVICE_TOKEN}", "${PIN_SECRET}", 1, None, True, 2.5],
        "Bearer ${REDACTED}": {"${SERVICE_TOKEN}": []},
    }
    assert redaction.value(once) is once
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow+/\nIBAAKC\n-----END RSA PRIVATE KEY-----"
    assert without_secrets(f"a {key} b") == "a ${REDACTED} b"
