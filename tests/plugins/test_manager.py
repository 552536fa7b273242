"""Plugins: where they come from, what they offer, and what becomes of bad ones."""

import importlib
import json
import subprocess
import sys

import pytest

from mcp_rl.errors import PluginError
from mcp_rl.plugins.bundled import bundled_root
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.plugins.resolve import resolve_server
from mcp_rl.plugins.server import ToolServer
from mcp_rl.scenario import SseServer, StdioServer, StreamableHttpServer

GOOD = """
from mcp_rl.plugins.hookspecs import hookimpl
from mcp_rl.plugins.server import ToolServer

@hookimpl
def register_servers(register):
    register(ToolServer.from_script("{name}", "For a test.", "/srv/server.py"))

seen = []

@hookimpl
def step_finished(step, metrics):
    seen.append((step, metrics))
"""


def plugin_file(folder, name, text=GOOD):
    path = folder / f"{name}.py"
    path.write_text(text.replace("{name}", name))
    return path


def test_the_bundled_calculator_is_offered():
    plugins = load_plugins()
    assert plugins.problems == []
    server = plugins.server("mcp_calculator")
    assert server.origin == "bundled"
    assert list(server.transports) == ["sse", "stdio", "streamable-http"]
    assert (bundled_root() / "servers/python/mcp_calculator/server.py").is_file()


def test_a_plugin_file_is_loaded_when_asked_for(tmp_path):
    path = plugin_file(tmp_path, "mine")
    plugins = load_plugins([path])
    assert plugins.server("mine").origin == str(path)
    assert {"mine", "mcp_calculator"} <= plugins.servers.keys()


def test_plugins_in_the_working_directory_are_not_loaded_unasked(tmp_path, monkeypatch):
    (tmp_path / "plugins").mkdir()
    plugin_file(tmp_path / "plugins", "unasked")
    monkeypatch.chdir(tmp_path)
    assert "unasked" not in load_plugins().servers


def test_observers_are_called(tmp_path):
    plugins = load_plugins([plugin_file(tmp_path, "observer")])
    assert plugins.notify("step_finished", step=3, metrics={"reward": 0.5}) == []
    assert sys.modules["mcp_rl_plugin_observer"].seen == [(3, {"reward": 0.5})]


def test_the_variable_chooses_exactly_which_plugins_load(tmp_path, monkeypatch):
    monkeypatch.setenv("MCP_RL_PLUGINS", "")
    assert load_plugins().servers == {}
    monkeypatch.setenv("MCP_RL_PLUGINS", f"mcp_calculator, {plugin_file(tmp_path, 'mine')}")
    assert load_plugins().servers.keys() == {"mcp_calculator", "mine"}
    monkeypatch.setenv("MCP_RL_PLUGINS", "mcp_calculater")
    with pytest.raises(PluginError, match="did you mean 'mcp_calculator'"):
        load_plugins()


def installed(monkeypatch, tmp_path, **plugins):
    """Plugins as packages that are really found through the metadata of an installed distribution."""
    for name, text in plugins.items():
        plugin_file(tmp_path, name, text)
    metadata = tmp_path / "echo-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: echo\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[mcp_rl]\n" + "".join(f"{name} = {name}\n" for name in plugins))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()


def test_plugins_of_installed_packages_are_found(tmp_path, monkeypatch):
    installed(monkeypatch, tmp_path, echo_server=GOOD)
    assert load_plugins().server("echo_server").origin == "package echo"


NOT_A_SERVER = GOOD.replace("register(ToolServer", "register('text') or register(ToolServer")
UNKNOWN_HOOK = GOOD.replace("def register_servers", "def register_server")
WRONG_ARGUMENT = GOOD.replace("(register):", "(add):")
TAKEN_NAME = GOOD.replace("{name}", "mcp_calculator")
RAISES = GOOD + "\nraise RuntimeError('no licence')\n"
EXITS = "import sys\nsys.exit('not today')\n"
MISSING = "import a_module_that_is_not_there\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (NOT_A_SERVER, "takes a ToolServer, not 'text'"),
        (UNKNOWN_HOOK, "no hook named 'register_server'; did you mean 'register_servers'"),
        (WRONG_ARGUMENT, "register_servers takes add, which the hook does not have; it has register"),
        (TAKEN_NAME, "the server 'mcp_calculator' is already offered by bundled"),
        (RAISES, "RuntimeError: no licence"),
        (EXITS, "SystemExit: not today"),
        (MISSING, "No module named 'a_module_that_is_not_there'"),
        (GOOD.replace('server.py"', 'server.py", isolation="none"'), "isolation is one of"),
    ],
)
def test_a_bad_plugin_is_reported_with_who_what_and_where_and_takes_no_other_down(
    tmp_path, monkeypatch, text, sentence
):
    installed(monkeypatch, tmp_path, bad_one=text, good_one=GOOD)
    plugins = load_plugins()
    assert {"mcp_calculator", "good_one"} <= plugins.servers.keys()
    assert "bad_one" not in plugins.servers
    (problem,) = plugins.problems
    assert "Plugin 'bad_one'" in problem
    assert sentence in problem
    assert "bad_one.py, line" in problem or "package echo" in problem
    for name in ("bad_one", "good_one"):
        sys.modules.pop(name, None)


def test_a_plugin_that_was_asked_for_and_is_bad_is_an_error(tmp_path):
    with pytest.raises(PluginError, match=r"bad\.py, line \d+.*no licence"):
        load_plugins([plugin_file(tmp_path, "bad", RAISES)])
    with pytest.raises(PluginError, match=r"there is no file .*absent\.py"):
        load_plugins([tmp_path / "absent.py"])


def test_an_unknown_server_gets_the_nearest_right_name():
    plugins = load_plugins()
    with pytest.raises(PluginError, match="no server named 'mcp_calculater'; did you mean 'mcp_calculator'"):
        plugins.server("mcp_calculater")
    with pytest.raises(PluginError, match="known are: mcp_calculator"):
        plugins.server("zzz")


@pytest.mark.parametrize(
    ("text", "transport", "name", "params"),
    [
        ("mcp_calculator", None, "mcp_calculator", SseServer),
        ("mcp_calculator", "stdio", "mcp_calculator", StdioServer),
        ("https://user:pw@example.org/tools/sse", None, "example.org-tools-sse", SseServer),
        ("https://example.org/mcp", None, "example.org-mcp", StreamableHttpServer),
        ("https://example.org/mcp", "sse", "example.org-mcp", SseServer),
        ("npx -y @modelcontextprotocol/server-everything stdio", None, "server-everything", StdioServer),
        ("npx -y @modelcontextprotocol/server-filesystem@1.2.3 '/a b'", "stdio", "server-filesystem", StdioServer),
        ("uvx mcp-server-time@latest", None, "mcp-server-time", StdioServer),
        ("python3.12 -m mcp_server_time --tz UTC", None, "mcp_server_time", StdioServer),
        ("python ./my/server.py --transport stdio", None, "server", StdioServer),
    ],
)
def test_a_server_is_a_name_a_url_or_a_command(text, transport, name, params):
    server = resolve_server(text, transport, plugins=load_plugins())
    assert server.name == name
    assert isinstance(server.params(transport), params)


def test_the_words_of_a_command_are_those_of_a_shell():
    server = resolve_server("run-it 'two words' plain", plugins=load_plugins())
    assert server.params().args == ("two words", "plain")


@pytest.mark.parametrize(
    ("text", "transport", "sentence"),
    [
        ("mcp_calculater", None, "did you mean 'mcp_calculator'"),
        ("npx some-server", "sse", "no transport 'sse'; it offers stdio"),
        ("npx 'unfinished", None, "No closing quotation"),
        ("", None, "The server is empty"),
        ("http://", None, "names no host"),
    ],
)
def test_what_names_no_server_is_an_error(text, transport, sentence):
    with pytest.raises(PluginError, match=sentence):
        resolve_server(text, transport, plugins=load_plugins())


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "two words"},
        {"isolation": "sometimes"},
        {"transports": {}},
        {"transports": {"sse": StdioServer(command="x")}},
    ],
)
def test_a_tool_server_that_makes_no_sense_cannot_be_made(fields):
    good = {"name": "x", "description": "", "transports": {"stdio": StdioServer(command="x")}}
    ToolServer(**good)
    with pytest.raises(PluginError):
        ToolServer(**(good | fields))


def test_the_servers_command_lists_what_there_is():
    command = [sys.executable, "-m", "mcp_rl", "servers"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "mcp_calculator" in table
    listed = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)
    (server,) = [row for row in listed["servers"] if row["name"] == "mcp_calculator"]
    assert server["transports"] == ["sse", "stdio", "streamable-http"]
    assert listed["problems"] == []
