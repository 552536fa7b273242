"""Servers started by launchers: the launcher is asked once, and what it found is started without it."""

import json
import re
import shutil
import sys
from pathlib import Path

import psutil
import pytest
from toolserver.registries import NpmRegistry, add_wheel

from mcp_rl.errors import ServerError
from mcp_rl.scenario import StdioServer
from mcp_rl.system.notices import noticed_by
from mcp_rl.toolserver.connection.connection import connect
from mcp_rl.toolserver.connection.deadlines import Deadlines
from mcp_rl.toolserver.launchers import direct as module
from mcp_rl.toolserver.launchers.asking import Asking, Ran
from mcp_rl.toolserver.launchers.direct import direct, packages
from mcp_rl.toolserver.launchers.python import explain
from mcp_rl.toolserver.launchers.words import read_words, unpinned
from mcp_rl.toolserver.sandbox.sandbox import Sandbox

PATIENT = Deadlines(spawn=120, initialize=120, list=60, call=60, close=5)
node = pytest.mark.skipif(shutil.which("npx") is None, reason="needs npx")


@pytest.fixture
def registry(tmp_path, monkeypatch):
    with NpmRegistry() as registry:
        monkeypatch.setenv("npm_config_registry", registry.url)
        monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
        monkeypatch.setenv("npm_config_fetch_retries", "0")
        monkeypatch.setattr(module, "_known", {})
        yield registry


def npx(*words, **fields):
    return StdioServer(command="npx", args=words, **fields)


def started():
    """The command lines of all servers, without their watchdogs."""
    lines = [one.cmdline() for one in psutil.Process().children(recursive=True)]
    return [" ".join(line) for line in lines if not any("watchdog.py" in word for word in line)]


@node
async def test_npx_is_asked_once_and_the_server_runs_without_it(registry, monkeypatch):
    integrity = registry.add("@tiny/server", "1.2.3")
    monkeypatch.setenv("TINY", "from us")
    params = npx("-y", "@tiny/server", "a 'b' \"c\"", "$HOME", "{env:TINY}", "--flag=1")
    async with connect(params, deadlines=PATIENT, sandbox=Sandbox("off", private=True)) as connection:
        assert connection.server_info["version"] == "1.2.3"
        arguments = json.loads((await connection.call("show", {})).text)
        assert arguments == ["a 'b' \"c\"", "$HOME", "from us", "--flag=1"]
        (line,) = started()
        assert re.match(r"node /\S+/@tiny/server/tiny\.js a 'b'", line)
    asked = len(registry.asked)
    async with connect(params, deadlines=PATIENT):
        assert len(registry.asked) == asked
    package = packages(params, name="tiny")["tiny"]
    assert (package.launcher, package.label, package.integrity) == ("npx", "@tiny/server 1.2.3", integrity)
    assert package.installed == {"@tiny/server": "1.2.3"}


@node
async def test_what_is_installed_starts_without_its_registry(registry):
    registry.add("tiny", "1.0.0")
    params = npx("-y", "tiny")
    assert (await direct(params, server="The server")).command == "node"
    registry.stop()
    module._known.clear()
    assert (await direct(params, server="The server")).command == "node"
    with pytest.raises(ServerError, match="npx cannot fetch other, since the registry cannot be reached, and"):
        await direct(npx("-y", "other"), server="The server X")


@node
async def test_a_package_that_is_not_there_is_one_sentence(registry):
    registry.add("tiny", "1.0.0", programs=("one", "two"))
    for word, sentence in (
        ("no-such", "npx finds no package no-such in its registry"),
        ("tiny@7", "the registry has no version of tiny that matches tiny@7"),
        ("tiny", "the package tiny has no program of its own name; name one after --package"),
    ):
        with pytest.raises(ServerError, match=f"^The server X cannot start: {re.escape(sentence)}\\.$"):
            await direct(npx("-y", word), server="The server X")
    registry.add("needy", "1.0.0", needs={"tiny": "^7.1.0"})
    with pytest.raises(ServerError, match=r"needy needs tiny@\^7\.1\.0, and its registry has no such version\."):
        await direct(npx("-y", "needy"), server="The server X")
    found = await direct(npx("-y", "--package=tiny", "two", "x"), server="The server X")
    assert (found.args[0].endswith("/tiny/two.js"), found.args[1:]) == (True, ("x",))
    registry.add("beside", "2.0.0", programs=("beside",))
    both = npx("-y", "-p", "beside", "-p", "tiny@1.0.0", "two")
    assert (await direct(both, server="The server X")).args[0].endswith("/tiny/two.js")
    package = packages(both, name="both")["both"]
    assert (package.label, package.installed) == ("tiny 1.0.0", {"beside": "2.0.0", "tiny": "1.0.0"})


@pytest.mark.parametrize(
    ("words", "wanted", "advice"),
    [
        (["newer"], ">=3.13", "choose another, for example: uvx --python 3.13 newer"),
        (["--from", "newer", "run-it"], "<3.15,>=3.13", "for example: uvx --python 3.13 --from newer run-it"),
        (["newer"], "<3.11", "choose another"),
    ],
)
def test_a_package_for_another_python_is_told_with_that_python(words, wanted, advice):
    said = (
        "error: No solution found when resolving tool dependencies | cause: Because the current Python version "
        f"(3.11.7) does not satisfy Python{wanted} and only newer==1.0 is available, we can conclude that your "
        "requirements are unsatisfiable."
    )
    told = rf"newer needs Python {re.escape(wanted)}, but uvx chose 3\.11\.7; .*{re.escape(advice)}\.$"
    with pytest.raises(ServerError, match=told):
        explain(Ran("", said, failed=True), read_words("uvx", words), Asking("The server", {}, None))


@pytest.fixture
def uvx(tmp_path, monkeypatch):
    """uvx, which finds the wheels in `tmp_path` alone."""
    found = shutil.which("uvx", path=str(Path(sys.executable).parent)) or shutil.which("uvx")
    if found is None:
        pytest.skip("needs uvx")
    settings = {
        "UV_CACHE_DIR": tmp_path / "cache",
        "UV_FIND_LINKS": tmp_path,
        "UV_NO_INDEX": 1,
        "UV_PYTHON": sys.executable,
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    return found


async def test_a_server_for_version_1_of_the_sdk_is_started_beside_it(tmp_path, uvx):
    add_wheel(tmp_path, "mcp", "1.999")
    add_wheel(tmp_path, "mcp", "2.999")
    begins = "\n".join(
        (
            "from importlib.metadata import version",
            "if version('mcp') != '1.999':",
            "    raise ImportError(\"cannot import name 'Server' from 'mcp'\")",
        )
    )
    add_wheel(tmp_path, "older-server", "1.0", requires="mcp", begins=begins)
    params = StdioServer(command=uvx, args=("older-server", "a"))
    said = []
    with noticed_by(said.append):
        async with connect(params, deadlines=PATIENT) as connection:
            assert json.loads((await connection.call("show", {})).text) == ["a"]
        async with connect(params, deadlines=PATIENT):
            pass
    assert packages(params, name="older")["older"].installed["mcp"] == "1.999"
    told = "older-server was written for version 1 of the Python package mcp, so it is started by uvx --with 'mcp<2'."
    assert said.count(told) == 1
    add_wheel(tmp_path, "unset-server", "1.0", requires="mcp", begins=f"{begins}\nraise SystemExit('no settings')")
    with pytest.raises(ServerError, match=r"unset exited at start\. Its last lines: no settings$"):
        async with connect(StdioServer(command=uvx, args=("unset-server",)), deadlines=PATIENT, name="unset"):
            pass
    add_wheel(tmp_path, "odd-server", "1.0", requires="mcp>=2", begins=begins)
    with pytest.raises(ServerError, match=r"exited at start\. Its last lines: ") as caught:
        async with connect(StdioServer(command=uvx, args=("odd-server",)), deadlines=PATIENT):
            pass
    assert "odd-server" in str(caught.value) and "ImportError" not in str(caught.value), "uv's error, and not the first"


async def test_a_python_that_cannot_be_fetched_is_told_apart_from_a_package(tmp_path, uvx, monkeypatch):
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "pythons"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", "http://127.0.0.1:9")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    params = StdioServer(command=uvx, args=("--managed-python", "--python", "3.12", "tiny-server"))
    with pytest.raises(
        ServerError, match=r"uvx cannot download Python 3\.12, and no copy of it is on this machine; install it\.$"
    ):
        await direct(params, server="The server X")


async def test_uvx_is_asked_once_and_the_server_runs_without_it(tmp_path, uvx):
    add_wheel(tmp_path, "tiny-server", "1.0")
    params = StdioServer(command=uvx, args=("tiny-server", "--root", "a b"))
    async with connect(params, deadlines=PATIENT) as connection:
        assert json.loads((await connection.call("show", {})).text) == ["--root", "a b"]
        (line,) = started()
        assert re.search(r"python\S* /\S+/bin/tiny-server --root a b$", line)
    before = packages(params, name="tiny")["tiny"]
    assert (before.launcher, before.label, before.integrity[:14]) == ("uvx", "tiny-server 1.0", "record-sha256-")
    assert not [name for name in (await direct(params, server="")).env if name.startswith("UV_")]
    add_wheel(tmp_path, "tiny-server", "1.1", tools=("show", "more"))
    pinned = StdioServer(command=uvx, args=("--from", "tiny-server==1.1", "tiny-server"))
    await direct(pinned, server="The server")
    after = packages(pinned, name="tiny")["tiny"]
    assert after.version == "1.1" and after.integrity != before.integrity
    with pytest.raises(ServerError, match="the registry has no version of tiny-server that matches tiny-server==3"):
        await direct(StdioServer(command=uvx, args=("tiny-server==3",)), server="The server")
    with pytest.raises(ServerError, match="finds no package no-such in its registry"):
        await direct(StdioServer(command=uvx, args=("no-such",)), server="The server")
    add_wheel(tmp_path, "needy-server", "1.0", requires="tiny-server>=7")
    needy = r"uvx cannot install needy-server: Because only tiny-server<=1\.1 is available and"
    with pytest.raises(ServerError, match=needy):
        await direct(StdioServer(command=uvx, args=("needy-server",)), server="The server")
    misnamed = r"tiny-server has no program tiny, but tiny-server; type uvx --from tiny-server tiny-server\."
    with pytest.raises(ServerError, match=misnamed):
        await direct(StdioServer(command=uvx, args=("--from", "tiny-server", "tiny")), server="The server")


@pytest.mark.parametrize(
    ("line", "family", "spec", "command"),
    [
        ("npx -y pkg@1 x", "npm", "pkg@1", "pkg@1"),
        ("/usr/bin/npx --yes --package=pkg prog x", "npm", "pkg", "prog"),
        ("npx -y -p one@1 --package=two@2 prog", "npm", "one@1", "prog"),
        ("npm exec --yes -- @a/b x", "npm", "@a/b", "@a/b"),
        ("bunx pkg", "bun", "pkg", "pkg"),
        ("pnpm dlx pkg", "pnpm", "pkg", "pkg"),
        ("uvx --python 3.12 --with other pkg x", "uv", "pkg", "pkg"),
        ("uv tool run --from pkg==1 prog", "uv", "pkg==1", "prog"),
        ("pipx run --spec git+https://host/x prog", "pipx", "git+https://host/x", "prog"),
        ("docker run -i --rm -e TOKEN -v /a:/b --name=x image:1 x", "docker", "image:1", "image:1"),
    ],
)
def test_a_launchers_words_are_read(line, family, spec, command):
    asked = read_words(*(lambda first, *rest: (first, rest))(*line.split()))
    assert (asked.family, asked.spec, asked.command) == (family, spec, command)


@pytest.mark.parametrize(
    "line",
    ["node server.js", "npm start", "npx -c something", "uvx", "uv run server.py", "uvx --directory /x pkg", "npx"],
)
def test_other_commands_are_left_alone(line):
    assert read_words(*(lambda first, *rest: (first, rest))(*line.split())) is None


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("npx -y @a/b@1.2 '/x y'", "npx -y @a/b '/x y'"),
        ("npx -y @a/b '/x y'", "npx -y @a/b '/x y'"),
        ("uvx --from pkg==1.2 prog", "uvx --from pkg prog"),
        ("npx -y --package=pkg@^2 prog", "npx -y --package=pkg prog"),
        ("npx -y -p one@1 --package=two@2 prog", "npx -y -p one --package=two prog"),
        ("uvx --with other==3 --from pkg==1.2 prog", "uvx --with other --from pkg prog"),
        ("npx github:a/b#1", "npx github:a/b#1"),
        ("python server.py@1", "python server.py@1"),
        ("https://host/a@1", "https://host/a@1"),
        ('npx "', 'npx "'),
    ],
)
def test_the_version_is_left_out_of_a_command(text, without):
    assert unpinned(text) == without
