"""Servers of the MCP registry, looked up in a registry on loopback that may be hostile."""

import json
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from mcp_rl.cli import main
from mcp_rl.errors import ConfigError
from mcp_rl.scenario import StdioServer, StreamableHttpServer
from mcp_rl.toolserver.mcp_registry.consent import propose

NAME = "io.github.user/weather"
NPM: dict[str, Any] = {
    "registryType": "npm",
    "registryBaseUrl": "https://registry.npmjs.org",
    "identifier": "@user/weather",
    "version": "1.2.3",
    "runtimeHint": "npx",
    "transport": {"type": "stdio"},
    "packageArguments": [
        {"type": "named", "name": "--units", "default": "metric"},
        {"type": "positional", "valueHint": "city", "isRequired": True},
        {"type": "named", "name": "--cache", "value": "{folder}/c", "variables": {"folder": {"default": "/tmp"}}},
    ],
    "environmentVariables": [
        {"name": "WEATHER_KEY", "isRequired": True, "isSecret": True},
        {"name": "WEATHER_MODE", "default": "fast"},
    ],
}
REMOTE: dict[str, Any] = {
    "type": "streamable-http",
    "url": "https://{tenant}.example.org/mcp",
    "variables": {"tenant": {"default": "eu"}},
    "headers": [
        {"name": "Authorization", "value": "Bearer {weather_key}", "isRequired": True, "variables": {"weather_key": {}}}
    ],
}


class Registry(ThreadingHTTPServer):
    """A registry whose answers are set by tests, by path."""

    answers: dict[str, tuple[int, dict[str, str], bytes]]

    def offer(self, server: dict[str, Any], version: str = "latest", **meta: Any) -> None:
        official = {"io.modelcontextprotocol.registry/official": {"status": "active", **meta}}
        body = {"server": {"name": NAME, "description": "Tells the\x1b[31m weather.", "version": "1.2.3", **server}}
        content = json.dumps(body | {"_meta": official}).encode()
        self.answers[f"/v0.1/servers/{NAME}/versions/{version}"] = 200, {}, content


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Registry)
        status, headers, body = self.server.answers.get(unquote(urlsplit(self.path).path), (404, {}, b"{}"))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    with Registry(("127.0.0.1", 0), _Handler) as server:
        server.answers = {}
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setenv("MCP_RL_REGISTRY", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("WEATHER_KEY", "k-4711")
        yield server
        server.shutdown()


def package(kind: str, identifier: str, **more: Any) -> dict[str, Any]:
    return {"packages": [{"registryType": kind, "identifier": identifier, "version": "1.0", **more}]}


def test_a_package_is_run_with_its_exact_version_and_the_users_arguments(registry: Registry) -> None:
    registry.offer({"packages": [NPM], "remotes": [REMOTE]}, status="deprecated", statusMessage="Use 2")
    proposal = propose(f"registry:{NAME} 'San José' --units=imperial")
    assert isinstance(proposal.offer.params, StdioServer)
    words = ["npx", "-y", "@user/weather@1.2.3", "--units=imperial", "San José", "--cache=/tmp/c"]
    assert [proposal.offer.params.command, *proposal.offer.params.args] == words
    assert proposal.offer.params.env == {"WEATHER_KEY": "${WEATHER_KEY}", "WEATHER_MODE": "fast"}
    shown = "\n".join(proposal.lines)
    assert "\x1b" not in shown and "deprecated: Use 2" in shown and "k-4711" not in shown
    assert "gets: WEATHER_KEY (secret), from your environment" in shown and "runs: npx -y @user/weather@1.2.3" in shown


@pytest.mark.parametrize(
    ("server", "command"),
    [
        (package("pypi", "weather-mcp"), "uvx weather-mcp@1.0"),
        (package("oci", "ghcr.io/user/weather:1.4"), "docker run -i --rm ghcr.io/user/weather:1.4"),
        (package("nuget", "User.Weather"), "dnx -y User.Weather@1.0 --"),
        ({**package("mcpb", "https://example.org/w.mcpb"), "remotes": [REMOTE]}, "https://eu.example.org/mcp"),
    ],
)
def test_each_kind_of_package_has_its_program(registry: Registry, server: dict[str, Any], command: str) -> None:
    registry.offer(server)
    assert propose(f"registry:{NAME}").offer.runs == command


def test_a_remote_server_gets_its_secret_from_the_environment(registry: Registry) -> None:
    registry.offer({"packages": [NPM], "remotes": [REMOTE]}, version="1.2.3")
    offer = propose(f"registry:{NAME}@1.2.3", "streamable-http").offer
    assert isinstance(offer.params, StreamableHttpServer)
    assert offer.params.headers == {"Authorization": "Bearer ${WEATHER_KEY}"}
    assert offer.variables == ["WEATHER_KEY (secret), from your environment, in the header Authorization"]


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (package("npm", "weather", version="latest"), "has no exact version"),
        (package("npm", "weather", version="^1.0"), "has no exact version"),
        (package("npm", "--registry=http://evil.example"), "is not the name of a package of npm"),
        (package("pypi", "weather; rm -rf ~"), "is not the name of a package of pypi"),
        (package("npm", "weather", registryBaseUrl="https://evil.example"), "'evil.example', and only"),
        (package("oci", "evil", version=None), "has no exact version"),
        (package("oci", "evil:1", runtimeArguments=[{"type": "named", "name": "--privileged"}]), "'--privileged'"),
        (package("pypi", "a", runtimeArguments=[{"type": "named", "name": "--from", "value": "git+x"}]), "'--from'"),
        (package("npm", "a", environmentVariables=[{"name": "NODE_OPTIONS", "value": "-r /tmp/x"}]), "NODE_OPTIONS"),
        (package("npm", "a", packageArguments=[{"type": "positional", "value": "{env:HOME}"}]), "not a plain text"),
        (package("npm", "a", packageArguments=[{"type": "positional", "value": "a\nb"}]), "not a plain text"),
        (package("npm", "a", packageArguments=[{"type": "named", "name": "$(id)", "value": "a"}]), "is not an option"),
        (package("npm", "a", packageArguments=[{"type": "positional", "valueHint": "dir", "isRequired": True}]), "DIR"),
        (package("npm", "a", environmentVariables=[{"name": "NOT_SET_1", "isRequired": True}]), "NOT_SET_1: set them"),
        ({"remotes": [REMOTE | {"url": "http://example.org/mcp"}]}, "does not begin with https://"),
        ({"remotes": [REMOTE | {"headers": [{"name": "Host", "value": "a"}]}]}, "'Host' is not a header"),
        (package("cargo", "weather"), "of the type 'cargo'"),
        ({"packages": "npm"}, "cannot be read: server.packages"),
        ({"name": "io.github.other/weather"}, "answered with 'io.github.other/weather'"),
        ({}, "offers nothing that can be used"),
    ],
)
def test_hostile_and_incomplete_entries_are_refused(registry: Registry, server: dict[str, Any], said: str) -> None:
    registry.offer(server)
    with pytest.raises(ConfigError) as refused:
        propose(f"registry:{NAME}")
    assert said in str(refused.value)


def test_answers_that_are_no_registrys_are_refused(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"/v0.1/servers/{NAME}/versions/latest"
    for answer, said in (
        ((302, {"Location": "http://localhost:1/x"}, b""), "redirects to another host, 'localhost'"),
        ((200, {}, b"<html>"), "did not answer with JSON"),
        ((200, {}, b"[" * 2_000_000), "more than 1 MB"),
        ((500, {}, b""), "status 500"),
    ):
        registry.answers[place] = answer
        with pytest.raises(ConfigError, match=said):
            propose(f"registry:{NAME}")
    registry.answers = {"/v0.1/servers": (200, {}, json.dumps({"servers": [{"server": {"name": NAME}}, 7]}).encode())}
    with pytest.raises(ConfigError, match=f"no server io.github.user/wether. Did you mean {NAME}?"):
        propose("registry:io.github.user/wether")
    with pytest.raises(ConfigError, match=r"a namespace and a slash.*Did you mean"):
        propose("registry:weather")
    monkeypatch.setenv("MCP_RL_REGISTRY", "http://example.org")
    with pytest.raises(ConfigError, match="that begins with"):
        propose(f"registry:{NAME}")


def test_nothing_starts_without_consent(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    registry.offer({"packages": [NPM | {"packageArguments": []}]})
    assert main(["servers", "inspect", f"registry:{NAME}"]) == 2
    said = capsys.readouterr().err
    assert "runs: npx -y @user/weather@1.2.3" in said and "then add --yes" in said
    assert main(["train", f"server=['registry:{NAME}']", "--dry-run"]) == 2
    assert "has not been agreed to" in capsys.readouterr().err
    assert main(["train", "--server", f"registry:{NAME}", "--yes", "--dry-run"]) == 0


@pytest.mark.parametrize(("keys", "code"), [(b"n\n", 2), (b"\x04", 2), (b"\x03", 130)])
def test_the_user_is_asked_on_a_terminal(registry: Registry, keys: bytes, code: int) -> None:
    registry.offer({"packages": [NPM | {"packageArguments": []}]})
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "mcp_rl", "servers", "inspect", f"registry:{NAME}"]
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                          preexec_fn=lambda: __import__("fcntl").ioctl(0, 0x540E, 0)) as process:  # fmt: skip
        os.close(theirs)
        shown = b""
        while b"[y/n]" not in shown:
            shown += os.read(ours, 4096)
        until = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < until:
            os.write(ours, keys)  # again: what is typed while the prompt sets the terminal up may be lost
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
        process.kill()
    os.close(ours)
    assert process.returncode == code
    assert b"npx -y @user/weather@1.2.3" in shown
