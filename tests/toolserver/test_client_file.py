"""MCP clients' files load unchanged, and none of their secrets is ever written."""

import json
import os
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_rl.errors import ConfigError
from mcp_rl.scenario import McpScenario, SseServer, StdioServer, StreamableHttpServer, scenario_lines
from mcp_rl.toolserver.bundled import bundled_root
from mcp_rl.toolserver.client_files.client_entry import server_of
from mcp_rl.toolserver.client_files.client_file import client_files, known_entries, read_client_file
from mcp_rl.toolserver.client_files.variables import HELD, filled_in
from mcp_rl.toolserver.tool_server import ToolServer

SECRET = "Zx81-not-to-be-seen"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder. Changes of the environment are undone after the test."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in os.environ if name.startswith(HELD)]:
        del os.environ[name]


def entry(**fields: Any) -> ToolServer:
    return server_of("it", fields, origin="f.json")


def complaint(fields: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        server_of("it", fields, origin="f.json")
    message = str(caught.value)
    assert message.startswith("f.json: the entry 'it'") and message.endswith(".") and "\n" not in message
    return message


# -- files of clients


CLAUDE_DESKTOP = """{
  "globalShortcut": "Ctrl+Space",
  "mcpServers": {
    "filesystem": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/me/My Documents"]
    }
  }
}"""
CLAUDE_CODE = """{"mcpServers": {"api": {"type": "http", "url": "${API_HOST:-https://api.example.org}/mcp",
  "headers": {"Authorization": "Bearer ${API_TOKEN}"}}}}"""
CURSOR = """{"mcpServers": {
  "tracker": {"url": "https://tracker.example.org/sse", "headers": {"X-Key": "${env:API_TOKEN}"}},
  "local": {"command": "python", "args": ["${workspaceFolder}/server.py"], "envFile": "${workspaceFolder}/.env"}}}"""
VS_CODE = """{
  // servers of this workspace
  "inputs": [{"type": "promptString", "id": "api-token", "description": "The token", "password": true}],
  "servers": {
    "github": {"type": "http", "url": "https://api.example.com/mcp/"}, /* remote */
    "perplexity": {
      "type": "stdio", "command": "npx", "args": ["-y", "server-perplexity"],
      "env": {"API_KEY": "${input:api-token}", "DEBUG": true, "RETRIES": 3, "NOTHING": null},
      "dev": {"watch": "src/**", "debug": {"type": "node"}},
    },
  },
}"""
WINDSURF = """{"mcpServers": {"remote": {"serverUrl": "https://example.org/mcp", "headers": {}}}}"""
CLINE = """{"mcpServers": {"w": {"command": "node", "args": ["w.js"], "autoApprove": ["get"], "disabled": false,
  "timeout": 60, "transportType": "stdio", "alwaysAllow": []}}}"""
GEMINI = """{"theme": "dark", "mcpServers": {"h": {"httpUrl": "http://localhost:3000/mcp", "timeout": 5000,
  "trust": true}}}"""
INSPECTOR = """{"mcpServers": {"everything": {"type": "sse", "url": "http://localhost:8001/sse"},
  "s": {"type": "streamable-http", "url": "http://localhost:3000/mcp"}, "t": {"type": "streamableHttp", "url": "http://h/"}}}"""


@pytest.mark.parametrize(
    ("text", "name", "params"),
    [
        (
            CLAUDE_DESKTOP,
            "filesystem",
            StdioServer(command="npx", args=("-y", "@modelcontextprotocol/server-filesystem", "/home/me/My Documents")),
        ),
        (
            CLAUDE_CODE,
            "api",
            StreamableHttpServer(url="https://api.example.org/mcp", headers={"Authorization": "Bearer ${API_TOKEN}"}),
        ),
        (
            CURSOR,
            "tracker",
            SseServer(url="https://tracker.example.org/sse", headers={"X-Key": "${API_TOKEN}"}),
        ),
        (
            CURSOR,
            "local",
            StdioServer(command="python", args=("{here}/server.py",), env={"A": "${MCP_RL_SECRET_LOCAL_A}"}),
        ),
        (VS_CODE, "github", StreamableHttpServer(url="https://api.example.com/mcp/")),
        (
            VS_CODE,
            "perplexity",
            StdioServer(
                command="npx",
                args=("-y", "server-perplexity"),
                env={"API_KEY": "${API_TOKEN}", "DEBUG": "true", "RETRIES": "3"},
            ),
        ),
        (WINDSURF, "remote", StreamableHttpServer(url="https://example.org/mcp")),
        (CLINE, "w", StdioServer(command="node", args=("w.js",))),
        (GEMINI, "h", StreamableHttpServer(url="http://localhost:3000/mcp")),
        (INSPECTOR, "everything", SseServer(url="http://localhost:8001/sse")),
        (INSPECTOR, "s", StreamableHttpServer(url="http://localhost:3000/mcp")),
        (INSPECTOR, "t", StreamableHttpServer(url="http://h/")),
    ],
)
def test_a_file_of_a_client_loads_unchanged(
    text: str, name: str, params: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", SECRET)
    (folder / ".env").write_text(f"# of the server\nexport A='{SECRET}'\n")
    (folder / "mcp.json").write_text(text, encoding="utf-8-sig")
    file = read_client_file(folder / "mcp.json")
    assert file is not None
    found = file.server(name).params()
    expected = params.model_dump_json().replace("{here}", str(folder))
    assert found == type(params).model_validate_json(expected)


@pytest.mark.parametrize(
    ("fields", "transports"),
    [
        ({"url": "http://h/mcp"}, ["streamable-http", "sse"]),
        ({"url": "http://h/x/sse"}, ["sse", "streamable-http"]),
        ({"type": "http", "url": "http://h/sse/"}, ["sse", "streamable-http"]),
        ({"type": "http", "url": "http://h/mcp"}, ["streamable-http", "sse"]),
        ({"type": "streamable-http", "url": "http://h/sse"}, ["streamable-http", "sse"]),
        ({"type": "SSE", "url": "http://h/mcp"}, ["sse", "streamable-http"]),
        ({"command": "x"}, ["stdio"]),
    ],
)
def test_a_url_offers_both_transports_the_likelier_first(fields: dict[str, Any], transports: list[str]) -> None:
    assert list(entry(**fields).transports) == transports


def test_a_timeout_is_seconds_or_thousandths_of_one() -> None:
    assert entry(command="x", timeout=60).deadlines == {"call": 60}
    assert entry(command="x", timeout=600_000).deadlines == {"call": 600}
    assert entry(command="x").deadlines == {}


def test_our_own_part_says_how_episodes_are_kept_apart() -> None:
    server = entry(command="x", mcp_rl={"isolation": "reset", "resetTool": "start_over"})
    assert (server.isolation, server.reset_tool) == ("reset", "start_over")
    assert entry(command="x", mcp_rl={"resetTool": "start_over"}).isolation == "reset"
    assert entry(command="x", mcp_rl={"isolation": "shared"}).isolation == "shared"
    assert entry(command="x").isolation is None


# -- invalid entries


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("npx", "not a JSON object"),
        ({}, "neither a command nor a url"),
        ({"command": "x", "url": "http://h/mcp"}, "a command and a url"),
        ({"type": "stdio", "url": "http://h/mcp"}, "has no command"),
        ({"type": "sse", "command": "x"}, "has no url"),
        ({"type": "websocket", "url": "http://h/mcp"}, "'websocket'"),
        ({"command": ["npx", "x"]}, "'command'"),
        ({"command": "x", "args": "--all"}, "'args'"),
        ({"command": "x", "args": [{}]}, "'args.0'"),
        ({"command": "x", "env": ["A=1"]}, "'env'"),
        ({"command": "x", "env": {"A": {}}}, "'env.A'"),
        ({"command": "x", "env": {"A=B": "1"}}, "'A=B'"),
        ({"command": "x\0y"}, "a character"),
        ({"command": "x", "timeout": -1}, "'timeout'"),
        ({"command": "x", "disabled": True}, "disabled"),
        ({"command": "x", "enabled": False}, "disabled"),
        ({"url": "ws://h/mcp"}, "'ws://h/mcp'"),
        ({"url": "http://"}, "names no host"),
        ({"url": "http://[h/mcp"}, "'http://[h/mcp'"),
        ({"url": "http://h/mcp", "headers": {"X": "a\r\nY: b"}}, "'X'"),
        ({"command": "x", "args": ["${NOT_SET_AT_ALL}"]}, "environment variable NOT_SET_AT_ALL, which is not set"),
        ({"command": "x", "env": {"K": "${env:NOT_SET_AT_ALL}"}}, "NOT_SET_AT_ALL"),
        ({"url": "http://${NOT_SET_AT_ALL}/mcp"}, "NOT_SET_AT_ALL"),
        ({"command": "x", "env": {"K": "${input:api-key}"}}, "API_KEY"),
        ({"command": "x", "args": ["${command:pick.one}"]}, "'${command:pick.one}'"),
        ({"command": "x", "args": ["${A:-${B}}"]}, "a reference inside a reference"),
        ({"command": "x", "envFile": "none.env"}, "none.env"),
        ({"command": "x", "mcp_rl": {"isolation": "sometimes"}}, "'mcp_rl.isolation'"),
        ({"command": "x", "mcp_rl": {"isolated": "shared"}}, "'mcp_rl.isolated'"),
        ({"command": "x", "mcp_rl": {"isolation": "reset"}}, "resetTool"),
        ({"command": "x", "mcp_rl": {"isolation": "shared", "resetTool": "r"}}, "resetTool"),
    ],
)
def test_an_entry_that_cannot_be_used_is_one_sentence(fields: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("API_KEY", raising=False)
    assert words in complaint(fields)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ('{"mcpServers": {"a": {"command": }}}', "line 1"),
        ("[]", "lists no servers"),
        ('{"model_type": "qwen2"}', "lists no servers"),
        ('{"mcpServers": ["npx"]}', "a JSON object of entries"),
        ("[" * 100_000, "nested too deeply"),
        ("\x80", None),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(text: str, words: str | None, folder: Path) -> None:
    file = folder / "bad.json"
    file.write_bytes(b"\xff\xfe{" if words is None else text.encode())
    with pytest.raises(ConfigError, match=r"bad\.json") as caught:
        client_files(file)
    assert (words or "") in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"none\.json: No such file"):
        client_files(folder / "none.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KEYS = [
    *("type", "transport", "command", "args", "env", "envFile", "cwd", "url", "serverUrl", "httpUrl"),
    *("headers", "description", "disabled", "enabled", "timeout", "mcp_rl"),
]
LIKELY: Any = st.sampled_from(
    ["stdio", "http", "npx", "http://h/mcp", "${PATH}", "${input:x}", ["-y", "x"], {"PATH": "${PATH}"}, True, 5, None]
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), JSON | LIKELY, max_size=6))
def test_any_entry_is_a_server_or_one_sentence(fields: dict[str, Any]) -> None:
    try:
        server = server_of("it", fields, origin="f.json")
    except ConfigError as error:
        message = str(error)
        assert message.startswith("f.json: the entry 'it'") and message.endswith(".") and "\n" not in message
    else:
        written = server.params().model_dump_json()
        assert type(server.params()).model_validate_json(written) == server.params()


# -- values and secrets


TEXT = st.text(string.ascii_letters + string.digits + " -_=:/.,'\"ü", min_size=1, max_size=60)
NAMES = st.from_regex(r"\A[A-Z][A-Z_]{0,8}(_KEY|_TOKEN)?\Z")


@settings(max_examples=150, deadline=None)
@given(st.lists(TEXT, max_size=5), st.dictionaries(NAMES, TEXT, max_size=4))
def test_a_server_is_started_with_exactly_what_its_entry_says(args: list[str], env: dict[str, str]) -> None:
    params = server_of("it", {"command": "x", "args": args, "env": env}, origin="f.json").params()
    assert isinstance(params, StdioServer)
    assert [filled_in(word) for word in params.args] == args
    assert {name: filled_in(value) for name, value in params.env.items()} == env


@pytest.mark.parametrize(
    "fields",
    [
        {"command": "x", "env": {"GITHUB_TOKEN": SECRET}},
        {"command": "x", "env": {"DATABASE_URL": f"postgres://me:{SECRET}@db/x"}},
        {"command": "x", "env": {"HEADER": f"Bearer {SECRET}"}},
        {"command": "x", "env": {"PLAIN": "${PLAIN_VARIABLE}"}},
        {"command": "x", "args": ["--api-key", SECRET]},
        {"command": "x", "args": [f"--api-key={SECRET}"]},
        {"command": "docker", "args": ["run", "-e", f"MY_TOKEN={SECRET}"]},
        {"command": "npx", "args": ["mcp-remote", "https://h/sse", "--header", f"Authorization: Bearer {SECRET}"]},
        {"command": "x", "args": ["${PLAIN_VARIABLE}"], "cwd": "/${PLAIN_VARIABLE}"},
        {"command": "x", "args": ["sk-1234" + SECRET.replace("-", "")]},
        {"url": f"https://me:{SECRET}@h/mcp"},
        {"url": f"https://h/mcp?page=1&apiKey={SECRET}"},
        {"url": f"https://h/s/{'a1' * 20}{SECRET}/mcp"},
        {"url": "https://h/${PLAIN_VARIABLE}/mcp"},
        {"url": "https://h/mcp", "headers": {"Authorization": f"Bearer {SECRET}"}},
        {"url": "https://h/mcp", "headers": {"X-Session": "${PLAIN_VARIABLE}"}},
    ],
)
def test_no_secret_of_a_file_is_in_what_we_write(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIN_VARIABLE", SECRET)
    server = entry(**fields)
    params = server.params()
    scenario = McpScenario(task_description="Do it.", server_params=params)
    hidden = SECRET.replace("-", "")
    for written in (scenario_lines([scenario]), repr(server), params.model_dump_json()):
        assert SECRET not in written and hidden not in written
    shown = filled_in(repr(params))
    assert SECRET in shown or hidden in shown


def test_what_is_no_secret_stays_readable() -> None:
    params = entry(command="x", args=["--port", "80", "--dir", "/data"], env={"TZ": "UTC"}).params()
    assert params == StdioServer(command="x", args=("--port", "80", "--dir", "/data"), env={"TZ": "UTC"})
    assert entry(url="https://h/v1/mcp?region=eu").params() == StreamableHttpServer(url="https://h/v1/mcp?region=eu")


def test_equal_names_of_secrets_do_not_mix_their_values() -> None:
    first = server_of("a-b", {"command": "x", "env": {"KEY": "one"}}, origin="f").params()
    second = server_of("a_b", {"command": "x", "env": {"KEY": "two"}}, origin="f").params()
    assert [filled_in(p.env["KEY"]) for p in (first, second) if isinstance(p, StdioServer)] == ["one", "two"]


# -- the search for files


def write(path: Path, servers: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"mcpServers": servers}))


def test_files_are_found_in_the_working_folder_then_bundled(folder: Path) -> None:
    write(folder / "config.json", {"one": {"command": "first"}, "mcp_notes": {"command": "mine"}})
    files = client_files()
    commands = [getattr(files.server(name).params(), "command", None) for name in ("one", "mcp_notes")]  # type: ignore[union-attr]
    assert commands == ["first", "mine"]
    assert files.server("everything").params() == SseServer(url="http://localhost:8001/sse")  # type: ignore[union-attr]
    assert files.server("three") is None


def test_a_file_that_was_chosen_is_the_only_one(folder: Path) -> None:
    write(folder / "config.json", {"one": {"command": "x"}})
    write(folder / "mine.json", {"My Server (beta)": {"command": "y"}})
    files = client_files(folder / "mine.json")
    assert files.names == ["My Server (beta)"] and files.server("one") is None
    for text in ("My Server (beta)", "My-Server-beta"):
        server = files.server(text)
        assert server is not None and server.name == "My-Server-beta"


def test_a_file_of_another_kind_in_the_usual_place_is_no_harm(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    assert client_files().problems == ()
    (folder / "config.json").write_text("{")
    (problem,) = client_files().problems
    assert problem.startswith("config.json is not valid JSON")


def test_one_bad_entry_harms_no_other(folder: Path) -> None:
    write(folder / "config.json", {"bad": {"command": "x", "args": 1}, "good": {"command": "x"}})
    known = known_entries(folder / "config.json")
    assert isinstance(known["good"], ToolServer)
    assert "'args'" in str(known["bad"])


@pytest.mark.parametrize("name", ["mcp_calculator", "mcp_notes"])
def test_the_bundled_entries_work_from_every_folder(name: str) -> None:
    server = client_files().server(name)
    assert server is not None
    params = server.params()
    assert isinstance(params, StdioServer)
    script = params.args[0].replace("{bundled}", str(bundled_root()))
    assert Path(script).is_absolute() and Path(script).is_file()
    assert params.command in ("{python}", "node")


def test_the_documented_file_works(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs/server_config.md").read_text(encoding="utf-8")
    (folder / "mcp.json").write_text(text.partition("```json\n")[2].partition("```")[0])
    monkeypatch.setenv("TRACKER_TOKEN", SECRET)
    known = known_entries(folder / "mcp.json")
    tracker, files = known["tracker"], known["files"]
    assert isinstance(tracker, ToolServer) and isinstance(files, ToolServer)
    assert tracker.params().transport == "streamable-http" and files.isolation == "per-rollout"
