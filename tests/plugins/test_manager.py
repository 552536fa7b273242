"""Plugins: their sources, their offers, and the handling of bad ones."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_rl.errors import PluginError
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.plugins.resolve import resolve_server
from mcp_rl.scenario import SseServer, StdioServer, StreamableHttpServer
from mcp_rl.toolserver.bundled import bundled_root
from mcp_rl.toolserver.tool_server import ToolServer

GOOD = """
from mcp_rl.plugins.hookspecs import hookimpl
from mcp_rl.toolserver.tool_server import ToolServer

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
    assert list(server.transports) == ["stdio", "sse", "streamable-http"]
    assert (bundled_root() / "servers/python/mcp_calculator/server.py").is_file()


def test_the_default_transport_of_a_script_can_be_chosen():
    server = ToolServer.from_script("mine", "For a test.", "/srv/server.py", default="sse")
    assert server.params().transport == "sse" and set(server.transports) == {"sse", "stdio", "streamable-http"}
    with pytest.raises(PluginError, match="must be one of stdio, sse, streamable-http, not 'http'"):
        ToolServer.from_script("mine", "For a test.", "/srv/server.py", default="http")


def test_a_plugin_file_is_loaded_when_asked_for(tmp_path):
    path = plugin_file(tmp_path, "mine")
    plugins = load_plugins([path])
    assert plugins.server("mine").origin == str(path)
    assert {"mine", "mcp_calculator"} <= plugins.servers.keys()


def test_the_working_directory_is_not_searched_for_plugins(tmp_path, monkeypatch):
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
    assert set(load_plugins().servers) == {"none"}
    monkeypatch.setenv("MCP_RL_PLUGINS", f"mcp_calculator, {plugin_file(tmp_path, 'mine')}")
    assert load_plugins().servers.keys() == {"none", "mcp_calculator", "mine"}
    monkeypatch.setenv("MCP_RL_PLUGINS", "mcp_calculater")
    with pytest.raises(PluginError, match="did you mean 'mcp_calculator'"):
        load_plugins()


def installed(monkeypatch, tmp_path, **plugins):
    """Install packages of plugins whose metadata the search finds."""
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


def offered(plugins):
    kinds = ("servers", "scenario_sources", "verifiers", "rewards", "backends", "trackers")
    return {kind: set(getattr(plugins, kind)) for kind in kinds}


NOT_A_SERVER = GOOD.replace("register(ToolServer", "register('text') or register(ToolServer")
UNKNOWN_HOOK = GOOD.replace("def register_servers", "def register_server")
WRONG_ARGUMENT = GOOD.replace("(register):", "(add):")
TAKEN_NAME = GOOD.replace("{name}", "mcp_calculator")
RAISES = GOOD + "\nraise RuntimeError('no licence')\n"
EXITS = "import sys\nsys.exit('not today')\n"
OFFERS = """
from mcp_rl.plugins.hookspecs import hookimpl

def exact(trajectory, scenario):
    return True

@hookimpl
def register_{0}(register):
    register({1})
"""
MISSING = "import a_module_that_is_not_there\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (NOT_A_SERVER, "takes a ToolServer, not 'text'"),
        (UNKNOWN_HOOK, "no hook named 'register_server'; did you mean 'register_servers'"),
        (WRONG_ARGUMENT, "register_servers takes add, but the hook has only register"),
        (TAKEN_NAME, "the server 'mcp_calculator' is already offered by bundled"),
        (RAISES, "RuntimeError: no licence"),
        (EXITS, "SystemExit: not today"),
        (MISSING, "No module named 'a_module_that_is_not_there'"),
        (GOOD.replace('server.py"', 'server.py", isolation="none"'), "isolation must be one of"),
        ("def broken(:\n", "SyntaxError"),
        ("answer = 42\n", "it implements no hook"),
        (GOOD.replace("@hookimpl\ndef step", "def step"), "step_finished has no @hookimpl above it"),
        (GOOD.replace("def step_", "async def step_"), "step_finished is asynchronous; hooks are ordinary functions"),
        (
            GOOD.replace("(step, metrics)", "(step, loss)"),
            "takes loss, but the hook has only step",
        ),
        (GOOD.replace("finished(step, metrics)", "finished(*things)"), "takes *things, but the hook has only"),
        (OFFERS.format("verifiers", "'mine', 5"), "takes the verifier's name and a function, not 'mine' and 5"),
        (OFFERS.format("verifiers", "'number', exact"), "the verifier 'number' is already offered by built in"),
        (OFFERS.format("rewards", "'ruler', exact"), "the reward 'ruler' is already offered by the judge"),
        (OFFERS.format("rewards", "'two words', exact"), "a reward's name must be letters, digits"),
        (OFFERS.format("rewards", "'mine', len"), "is called with (trajectory, scenario), but takes (obj, /)"),
        (
            OFFERS.format("scenario_sources", "'mine', exact"),
            "is called with (sessions, *, server, params, recipe)",
        ),
        (OFFERS.format("backends", "'local', len"), "the backend 'local' is already offered by built in"),
        (OFFERS.format("trackers", "'mine', len"), "the tracker 'mine' is called with (folder, config)"),
        (OFFERS.format("trackers", "'mine'"), "TypeError"),
        (GOOD.replace('server.py"', 'server.py", verifiers={"number": print}'), "the verifier 'number' is already"),
    ],
)
def test_a_bad_plugin_alone_is_left_out_and_located(tmp_path, monkeypatch, text, sentence):
    before = offered(load_plugins())
    installed(monkeypatch, tmp_path, bad_one=text, good_one=GOOD)
    plugins = load_plugins()
    assert offered(plugins) == {**before, "servers": {*before["servers"], "good_one"}}
    (problem,) = plugins.problems
    assert "Plugin 'bad_one'" in problem
    assert sentence in problem
    nowhere = ("it implements no hook", "No module named")
    assert f"{tmp_path / 'bad_one.py'}, line " in problem or any(words in problem for words in nowhere)
    for name in ("bad_one", "good_one"):
        sys.modules.pop(name, None)


def test_a_plugin_that_was_asked_for_and_is_bad_is_an_error(tmp_path):
    with pytest.raises(PluginError, match=r"bad\.py, line \d+.*no licence"):
        load_plugins([plugin_file(tmp_path, "bad", RAISES)])
    with pytest.raises(PluginError, match=r"the file .*absent\.py does not exist"):
        load_plugins([tmp_path / "absent.py"])


def test_an_unknown_server_gets_the_nearest_right_name():
    plugins = load_plugins()
    with pytest.raises(PluginError, match="no server named 'mcp_calculater'; did you mean 'mcp_calculator'"):
        plugins.server("mcp_calculater")
    with pytest.raises(PluginError, match="choose one of mcp_2048, mcp_calculator"):
        plugins.server("zzz")


@pytest.mark.parametrize(
    ("text", "transport", "name", "params"),
    [
        ("mcp_calculator", None, "mcp_calculator", StdioServer),
        ("mcp_calculator", "stdio", "mcp_calculator", StdioServer),
        ("https://user:pw@example.org/tools/sse", None, "example.org-tools-sse", SseServer),
        ("https://example.org/mcp", None, "example.org-mcp", StreamableHttpServer),
        ("https://example.org/mcp", "sse", "example.org-mcp", SseServer),
        ("npx -y @modelcontextprotocol/server-everything stdio", None, "server-everything", StdioServer),
        ("npx -y @modelcontextprotocol/server-filesystem@1.2.3 '/a b'", "stdio", "server-filesystem", StdioServer),
        ("uvx mcp-server-time@latest", None, "mcp-server-time", StdioServer),
        ("uvx --from 'mcp-math-server[all]>=1.0' mcp-math", None, "mcp-math-server", StdioServer),
        ("python3.12 -m mcp_server_time --tz UTC", None, "mcp_server_time", StdioServer),
        ("python ./my/server.py --transport stdio", None, "my", StdioServer),
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
    assert server["transports"] == ["stdio", "sse", "streamable-http"]
    assert listed["problems"] == []


BUILT_IN = ("plugins", "scenarios", "backends", "runs.trackers")


def test_built_in_parts_use_the_same_hooks():
    plugins = load_plugins()
    assert set(plugins.backends) == {"local", "ray"}
    assert set(plugins.trackers) == {"mlflow", "otlp", "tensorboard", "trackio", "wandb", "weave"}
    assert {"number", "state", "none"} <= set(plugins.verifiers)
    for kind in (plugins.scenario_sources, plugins.backends, plugins.trackers, plugins.verifiers, plugins.rewards):
        assert {kind.origins[name] for name in kind} <= {"built in", "bundled"}
    assert plugins.scenario_sources.origins["explore"] == plugins.verifiers.origins["number"] == "built in"
    assert plugins.scenario_sources.origins["email_search"] == "bundled"
    assert [loaded.name for loaded in plugins.loaded][:4] == [f"mcp_rl.{part}" for part in BUILT_IN]


def test_a_servers_own_verifiers_are_registered_with_it(tmp_path):
    text = GOOD.replace('server.py"', 'server.py", verifiers={"mine": lambda trajectory, scenario: True}')
    plugins = load_plugins([plugin_file(tmp_path, "with_verifier", text)])
    assert plugins.verifiers["mine"](None, None) is True
    assert plugins.loaded[-1].offers == {"server": ["with_verifier"], "verifier": ["mine"]}


RAISING = """
from mcp_rl.plugins.hookspecs import hookimpl

calls = []

@hookimpl
def step_finished(step):
    calls.append(step)
    {0}
"""


@pytest.mark.parametrize("failure", ["raise ValueError('no disk')", "import sys; sys.exit('no disk')"])
def test_a_failing_observer_is_named_once(tmp_path, failure):
    bad = plugin_file(tmp_path, "bad_observer", RAISING.replace("{0}", failure))
    good = plugin_file(tmp_path, "good_observer", RAISING.replace("{0}", "pass"))
    plugins = load_plugins([bad, good])
    (said,) = plugins.notify("step_finished", step=1, metrics={})
    assert plugins.notify("step_finished", step=2, metrics={}) == []
    assert f"Plugin 'bad_observer' ({bad}, line " in said and "step_finished, and the run goes on" in said
    assert "no disk" in said
    for name in ("bad_observer", "good_observer"):
        assert sys.modules[f"mcp_rl_plugin_{name}"].calls == [1, 2]


def test_a_named_file_replaces_a_bundled_plugin_of_its_name(tmp_path, monkeypatch):
    replaced = load_plugins([plugin_file(tmp_path, "mcp_calculator")])
    assert replaced.server("mcp_calculator").origin == str(tmp_path / "mcp_calculator.py")
    (tmp_path / "other").mkdir()
    assert load_plugins([plugin_file(tmp_path, "rewards")]).verifiers.keys() >= {"number", "state"}
    monkeypatch.setenv("MCP_RL_PLUGINS", str(plugin_file(tmp_path, "mine")))
    assert load_plugins([tmp_path / "mine.py"] * 2).loaded[-1].name == "mine"
    monkeypatch.delenv("MCP_RL_PLUGINS")
    twice = [tmp_path / "mine.py", plugin_file(tmp_path / "other", "mine")]
    with pytest.raises(PluginError, match=r"a plugin of that name is already loaded \(.*mine\.py\)"):
        load_plugins(twice)


def test_an_installed_plugin_cannot_replace_another(tmp_path, monkeypatch):
    installed(monkeypatch, tmp_path, mcp_calculator=GOOD)
    plugins = load_plugins()
    assert plugins.server("mcp_calculator").origin == "bundled"
    assert "a plugin of that name is already loaded (bundled)" in plugins.problems[0]


def test_output_of_a_loading_plugin_goes_to_stderr(tmp_path, monkeypatch, capsys):
    chatty = plugin_file(tmp_path, "chatty", "print('Welcome!')\n" + GOOD)
    load_plugins([chatty])
    out, err = capsys.readouterr()
    assert (out, err) == ("", "Welcome!\n")


def test_a_plugin_that_takes_long_is_named_while_it_does(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("mcp_rl.plugins.manager._PATIENCE", 0.01)
    load_plugins([plugin_file(tmp_path, "slow", "import time; time.sleep(0.5)\n" + GOOD)])
    plugins = load_plugins([plugin_file(tmp_path, "idle", RAISING.replace("{0}", "import time; time.sleep(0.5)"))])
    plugins.notify("step_finished", step=1, metrics={})
    said = [record.getMessage() for record in caplog.records]
    assert any(sentence.startswith("Plugin 'slow'") and "is still loading" in sentence for sentence in said)
    assert any(sentence.startswith("Plugin 'idle'") and "is still in step_finished" in sentence for sentence in said)


def plugins_command(folder, *words, **variables):
    command = [sys.executable, "-m", "mcp_rl", "plugins", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **variables}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)


def test_the_plugins_command_lists_loaded_and_failed_plugins(tmp_path):
    mine, bad = plugin_file(tmp_path, "mine", "__version__ = '0.7'\n" + GOOD), plugin_file(tmp_path, "bad", RAISES)
    done = plugins_command(tmp_path, "--plugin", mine, "--plugin", bad, "--plugin", tmp_path / "absent.py", "--json")
    assert done.returncode == 1 and done.stderr == ""
    listed = json.loads(done.stdout)
    (found,) = [plugin for plugin in listed["plugins"] if plugin["name"] == "mine"]
    assert found == {
        "name": "mine",
        "version": "0.7",
        "origin": str(mine),
        "offers": {"server": ["mine"]},
        "hooks": ["register_servers", "step_finished"],
    }
    assert [(failed["name"], failed["what"]) for failed in listed["failed"]] == [
        ("bad", "RuntimeError: no licence"),
        ("absent", f"the file {tmp_path / 'absent.py'} does not exist."),
    ]
    assert listed["failed"][0]["where"].startswith(f"{bad}, line ")

    table = plugins_command(tmp_path, "--plugin", mine, MCP_RL_PLUGINS="mcp_notes")
    assert table.returncode == 0
    assert "server mine; observes step_finished" in table.stdout and "mcp_calculator" not in table.stdout
    assert "MCP_RL_PLUGINS=mcp_notes selects" in table.stdout
