"""The meanings of `--server` in their order, and the errors for unknown names."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_rl.config import RunConfig, ToolsConfig
from mcp_rl.errors import ConfigError, PluginError, UserError
from mcp_rl.plugins.manager import Plugins, load_plugins
from mcp_rl.plugins.resolve import resolve_server, resolve_servers
from mcp_rl.scenario import McpScenario, ServerGroup, SseServer, StdioServer, StreamableHttpServer, scenario_lines
from mcp_rl.toolserver.client_files.client_file import client_files


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, servers: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def test_plugins_come_first_then_entries(folder: Path, plugins: Plugins) -> None:
    entries = {"mcp_calculator": {"command": "x"}, sys.executable: {"command": "y"}, "http://h/mcp": {"command": "z"}}
    write(folder / "config.json", entries)
    assert resolve_server("mcp_calculator", plugins=plugins) is plugins.servers["mcp_calculator"]
    commands = [resolve_server(text, plugins=plugins).params() for text in (sys.executable, "http://h/mcp")]
    assert commands == [StdioServer(command="y"), StdioServer(command="z")]


def test_an_entry_has_the_transport_that_its_file_says(folder: Path, plugins: Plugins) -> None:
    file = write(folder / "mine.json", {"one": {"url": "http://h/sse"}, "two": {"command": "x"}})
    tools = ToolsConfig(server_config=file)
    one = resolve_servers(["one"], "streamable-http", plugins=plugins, tools=tools)
    assert one.params() == SseServer(url="http://h/sse")
    assert one.params("streamable-http") == StreamableHttpServer(url="http://h/sse")
    with pytest.raises(PluginError, match="two has no transport 'sse'; it offers stdio"):
        resolve_servers(["two"], "sse", plugins=plugins, tools=tools)


@pytest.mark.parametrize(
    ("text", "name", "command", "args"),
    [
        ("my_server.py", "my_server", "{python}", ("{here}/my_server.py",)),
        ("./my_server.py", "my_server", "{python}", ("{here}/my_server.py",)),
        ("{here}/my_server.py", "my_server", "{python}", ("{here}/my_server.py",)),
        ("a b.mjs", "a-b", "node", ("{here}/a b.mjs",)),
        ("'a b.mjs'", "a-b", "node", ("{here}/a b.mjs",)),
        ("old.cjs", "old", "node", ("{here}/old.cjs",)),
        ("python my_server.py", "my_server", "python", ("my_server.py",)),
        ("my_server.py --port 1", "my_server", "my_server.py", ("--port", "1")),
        ("npx server.js", "server", "npx", ("server.js",)),
        ("uvx --python 3.13 -q pears", "pears", "uvx", ("--python", "3.13", "-q", "pears")),
        ("docker run --name mine -i pears/mcp:2", "mcp-2", "docker", ("run", "--name", "mine", "-i", "pears/mcp:2")),
        (
            "node modules/server-files/dist/index.js /data",
            "server-files",
            "node",
            ("modules/server-files/dist/index.js", "/data"),
        ),
        (
            "python notes/src/notes_server/__main__.py",
            "notes_server",
            "python",
            ("notes/src/notes_server/__main__.py",),
        ),
        ("{here}/weather/build/Index.js", "weather", "node", ("{here}/weather/build/Index.js",)),
    ],
)
def test_a_script_runs_by_its_suffix_a_command_as_written(
    text: str, name: str, command: str, args: tuple[str, ...], folder: Path, plugins: Plugins
) -> None:
    for script in ("my_server.py", "a b.mjs", "old.cjs"):
        (folder / script).touch()
    (folder / "weather" / "build").mkdir(parents=True)
    (folder / "weather" / "build" / "Index.js").touch()
    server = resolve_server(text.replace("{here}", str(folder)), plugins=plugins)
    expected = StdioServer(command=command, args=tuple(word.replace("{here}", str(folder)) for word in args))
    assert (server.name, server.params()) == (name, expected)


def test_a_generic_script_is_named_by_its_folder_from_inside_it_too(
    folder: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder / "csv-tools"
    (place / "dist").mkdir(parents=True)
    (place / "dist" / "main.js").touch()
    monkeypatch.chdir(place)
    assert resolve_server("node dist/main.js", plugins=plugins).name == "csv-tools"


@pytest.mark.parametrize("words", ["python /data/server.py", "python {home}/server.py", "node /src/index.js"])
def test_a_script_in_a_folder_that_tells_nothing_keeps_its_own_name(
    words: str, plugins: Plugins, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "ada"))
    name = resolve_server(words.replace("{home}", str(tmp_path / "ada")), plugins=plugins).name
    assert name in ("server", "index")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("./none.py", "The server script ./none.py does not exist"),
        ("none.mjs", "The server script none.mjs does not exist"),
        ("bin/no-such-server", "The program or script bin/no-such-server does not exist in"),
        ("./folder", "./folder is a folder; give the command"),
        ("server.ts", "server.ts is not a script that we can start (.py, .js"),
        ("mcp_calculater", "did you mean 'mcp_calculator'"),
        ("trackr", "did you mean 'tracker'"),
        ("everythin", "did you mean 'everything'"),
        (
            "zzzzzzzz",
            "choose one of everything, mcp_2048, mcp_calculator, mcp_email_search, mcp_notes, mcp_tictactoe, none, "
            "tracker.",
        ),
        ("https://", "names no host"),
        ("htps://h/mcp", "is not a URL such as https://example.org/mcp"),
        ("localhost:8000/mcp", "if it is an address, type http://localhost:8000/mcp"),
        ("http://h:99999/mcp", "Port out of range"),
        ("", "The server is empty"),
        ("npx 'unfinished", "No closing quotation"),
    ],
)
def test_an_unknown_server_is_one_sentence_with_a_suggestion(
    text: str, words: str, folder: Path, plugins: Plugins
) -> None:
    write(folder / "config.json", {"tracker": {"command": "x"}})
    (folder / "folder").mkdir()
    (folder / "server.ts").touch()
    with pytest.raises(PluginError) as caught:
        resolve_server(text, plugins=plugins)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_name_mentions_unreadable_files(folder: Path, plugins: Plugins) -> None:
    (folder / "config.json").write_text('{"mcpServers": {"tracker": {')
    with pytest.raises(PluginError, match=r"no server named 'tracker'.*config\.json is not valid JSON"):
        resolve_server("tracker", plugins=plugins)
    assert resolve_server("mcp_calculator", plugins=plugins).name == "mcp_calculator"


def test_a_chosen_file_must_be_valid_for_any_server(folder: Path, plugins: Plugins) -> None:
    with pytest.raises(ConfigError, match=r"none\.json"):
        resolve_servers(["mcp_calculator"], plugins=plugins, tools=ToolsConfig(server_config=folder / "none.json"))


def test_several_servers_are_one_whose_members_keep_their_names(folder: Path, plugins: Plugins) -> None:
    write(folder / "config.json", {"web": {"url": "http://h/mcp"}})
    server = resolve_servers(["mcp_calculator", "web", "npx some-server"], plugins=plugins)
    assert [member.name for member in server.members] == ["mcp_calculator", "web", "some-server"]
    params = server.params()
    assert isinstance(params, ServerGroup)
    assert params.servers["web"] == StreamableHttpServer(url="http://h/mcp")


@pytest.mark.parametrize("texts", [["mcp_calculator", "mcp_calculator"], ["./x.py", "python x.py"]])
def test_two_servers_of_one_name_are_an_error(texts: list[str], folder: Path, plugins: Plugins) -> None:
    (folder / "x.py").touch()
    with pytest.raises(PluginError, match="is named twice"):
        resolve_servers(texts, plugins=plugins)


@pytest.mark.parametrize(
    "text",
    [
        "npx some-server --api-key Zx81-hidden",
        "https://h/mcp?token=Zx81-hidden",
        "npx x --header 'Cookie: Zx81-hidden'",
    ],
)
def test_no_secret_of_a_command_or_url_is_in_what_we_write(text: str, plugins: Plugins) -> None:
    server = resolve_server(text, plugins=plugins)
    scenario = McpScenario(task_description="Do it.", server_params=server.params(), server=server.name)
    assert "Zx81" not in scenario_lines([scenario])


def test_a_wrong_server_setting_is_an_early_error(folder: Path, plugins: Plugins) -> None:
    with pytest.raises(UserError, match="reset"):
        resolve_servers(["npx x"], plugins=plugins, tools=ToolsConfig(isolation="reset"))
    files = client_files()
    assert resolve_server("npx x", plugins=plugins, files=files).isolation is None


@pytest.mark.parametrize(
    "fields",
    [
        {"command": "${NOT_SET}", "args": ["${NOT_SET}"], "env": {"A": "${NOT_SET}"}, "envFile": "none.env"},
        {"url": "https://${NOT_SET}/mcp", "headers": {"Authorization": "Bearer ${input:not-set}"}},
    ],
)
def test_what_no_replay_needs_may_be_missing(fields: dict[str, Any], folder: Path, plugins: Plugins) -> None:
    write(folder / "config.json", {"it": fields})
    with pytest.raises(ConfigError, match="NOT_SET"):
        resolve_servers(["it"], plugins=plugins)
    server = resolve_servers(["it"], plugins=plugins, tools=ToolsConfig(replay=folder / "calls.jsonl"))
    assert "NOT_SET}" in repr(server.params())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("docker run -e API_KEY=hunter2hunter2x image", "image"),
        ("docker run -e PGPASSWORD=hunter2hunter2x -i image", "image"),
        ("npx --token hunter2hunter2x package", "package"),
        ("env API_KEY=hunter2hunter2x npx package", "package"),
        ("npx mcp-remote https://example.test/x?token=hunter2hunter2x", "mcp-remote"),
        ("https://example.test/hunter2hunter2xhunter2hunter2xhunter/mcp", "example.test-mcp"),
    ],
)
def test_no_secret_of_a_command_is_in_what_is_written_of_it(text: str, name: str) -> None:
    resolved = resolve_server(text, plugins=Plugins())
    assert resolved.name == name
    written = (resolved.name, resolved.description, resolved.params().model_dump_json(), RunConfig(server=text).name)
    assert not [held for held in written if "hunter2" in held]
