"""Logins at servers that want them, against the SDK's own authorization server on loopback."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import anyio
import pytest

from mcp_rl.cli import main
from mcp_rl.errors import RunStop, ServerError
from mcp_rl.scenario import StreamableHttpServer
from mcp_rl.system.notices import noticed_by
from mcp_rl.toolserver.connection.connection import connect
from mcp_rl.toolserver.connection.deadlines import Deadlines
from mcp_rl.toolserver.logins.kept import forget_login, read_login, write_login
from mcp_rl.toolserver.logins.login import LoginWishes, log_in

PATIENT = Deadlines(spawn=120, initialize=120, list=60, call=60, close=5)
SCRIPT = Path(__file__).with_name("oauth_server.py")
NAME = "The server guarded"


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read()


class Guarded:
    def __init__(self, port, authority):
        self.url, self.issuer = f"http://127.0.0.1:{port}/mcp", f"http://127.0.0.1:{authority}"
        self.params = StreamableHttpServer(url=self.url)

    @property
    def counts(self):
        return json.loads(get(f"{self.issuer}/counts"))

    async def login(self, *, visit=True, seconds=60.0, **wishes):
        """Log in; the browser is a thread that opens the address."""
        said = []

        def browser(sentence):
            said.append(sentence)
            if visit and (found := re.search(r"http://\S+", sentence)):
                visits.append(asyncio.get_running_loop().run_in_executor(None, get, found[0]))

        visits = []
        with noticed_by(browser):
            try:
                done = await log_in(self.url, server=NAME, wishes=LoginWishes(browser=False, **wishes), seconds=seconds)
            finally:
                pages = await asyncio.gather(*visits, return_exceptions=True)
        assert all(b"logged in" in page for page in pages)
        assert len(said) == (0 if "issuer" in wishes else 1)
        return done


@contextmanager
def guarded(trouble="none"):
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        ports = one.getsockname()[1], other.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(SCRIPT), *map(str, ports), trouble])
    found = Guarded(*ports)
    try:
        ends = time.monotonic() + 120
        while True:
            try:
                get(f"{found.issuer}/counts")
                urllib.request.urlopen(found.url, timeout=30)
            except urllib.error.HTTPError:
                break
            except OSError:
                assert time.monotonic() < ends and process.poll() is None
                time.sleep(0.05)
        yield found
    finally:
        process.kill()
        process.wait()


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    return tmp_path


@pytest.fixture(scope="module")
def plain():
    with guarded() as found:
        yield found


async def test_a_login_lets_every_later_connection_in_and_a_logout_ends_that(plain, own_folder):
    with pytest.raises(ServerError, match=r"wants a login or a token \(HTTP status 401\).*mcp-rl servers login"):
        async with connect(plain.params, deadlines=PATIENT):
            pass
    done = await plain.login()
    (file,) = own_folder.rglob("*.json")
    assert done == f"Logged in at {plain.url}, for 60 minutes and is renewed by itself; the login is kept in {file}."
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    token = read_login(plain.url).token
    async with connect(plain.params, deadlines=PATIENT) as connection:
        who = await connection.call("whoami", {})
        assert who.text == read_login(plain.url).client.client_id
    assert token.access_token in os.environ.values()  # so that whatever prints or writes leaves it out
    file.chmod(0o644)
    with pytest.raises(ServerError, match=r"Other users can read the login in .*chmod 600"):
        read_login(plain.url)
    assert forget_login(plain.url) and not forget_login(plain.url)
    with pytest.raises(ServerError, match="wants a login"):
        async with connect(plain.params, deadlines=PATIENT):
            pass


async def test_calls_overlap_under_one_login(plain):
    await plain.login()
    async with connect(plain.params, deadlines=PATIENT) as connection:
        before = time.monotonic()
        calls = [connection.call("whoami", {"wait": 1.5}) for _ in range(8)]
        assert len({one.text for one in await asyncio.gather(*calls)}) == 1
        assert time.monotonic() - before < 8


async def test_a_token_goes_to_no_other_host(plain):
    await plain.login()
    login = read_login(plain.url)
    moved = plain.url.replace("/mcp", "/moved")
    write_login(login.model_copy(update={"url": moved}))
    with pytest.raises(ServerError):
        async with connect(StreamableHttpServer(url=moved), deadlines=PATIENT):
            pass
    assert plain.counts["elsewhere"] == 0


async def test_a_token_of_somebody_else_is_one_sentence(plain):
    await plain.login()
    login = read_login(plain.url)
    forged = login.token.model_copy(update={"access_token": "x" * 32, "refresh_token": None})
    write_login(login.model_copy(update={"token": forged}))
    sentence = "The login at the server is not accepted: it is for another server or another user; run `mcp-rl servers"
    with pytest.raises(ServerError, match=f"^{sentence}"):
        async with connect(plain.params, deadlines=PATIENT):
            pass


async def test_a_login_that_nobody_finishes_ends(plain):
    with pytest.raises(ServerError, match=r"^The login at the server guarded failed: no login came within 0\.2 s\.$"):
        await plain.login(visit=False, seconds=0.2)


async def test_a_login_is_renewed_while_a_run_lasts_once_for_all_connections():
    with guarded("short") as short:
        await short.login()
        async with connect(short.params, deadlines=PATIENT) as one, connect(short.params, deadlines=PATIENT) as other:
            for _ in range(3):
                answers = await asyncio.gather(*(c.call("whoami", {}) for c in (one, other) for _ in range(4)))
                assert {answer.is_error for answer in answers} == {False}
                await anyio.sleep(1.1)
        assert short.counts["refreshed"] >= 2  # each refresh token works once, so none was used twice
        assert read_login(short.url).token.refresh_token


async def test_a_login_that_is_withdrawn_during_a_run_stops_it():
    with guarded("withdrawn") as withdrawn:
        await withdrawn.login()
        with pytest.raises(
            (RunStop, ServerError), match=r"has expired or was withdrawn; run `mcp-rl servers login http"
        ):
            async with connect(withdrawn.params, deadlines=PATIENT) as connection:
                await connection.call("whoami", {})


async def test_a_machine_logs_in_by_itself():
    with guarded("machine") as machine:
        own = {"client_id": "machine", "client_secret": "machine-secret"}
        await machine.login(issuer=machine.issuer, **own)
        login = read_login(machine.url)
        write_login(login.model_copy(update={"expires_at": time.time()}))
        async with connect(machine.params, deadlines=PATIENT) as connection:
            assert (await connection.call("whoami", {})).text == "machine"
        assert machine.counts["machine"] == 2
        with pytest.raises(ServerError, match="The login at the server guarded failed: "):
            await machine.login(issuer="http://127.0.0.1:9", **own)
        with pytest.raises(ServerError, match="The login at the server guarded failed: Token exchange failed"):
            await machine.login(issuer=machine.issuer, **{**own, "client_secret": "wrong"})
        assert machine.counts["machine"] == 2


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        ("refused", r"failed: it was refused \(access_denied the user said no\)"),
        ("issuer", "failed: .*issuer"),
        ("closed", "registers no clients by itself; register one there and give it with --client-id"),
        ("audience", r"does not accept the token that its authorization server gave for it \(HTTP status 401\)"),
    ],
)
async def test_what_goes_wrong_at_a_login_is_one_sentence(trouble, sentence, own_folder):
    with guarded(trouble) as server:
        with pytest.raises(ServerError, match=sentence):
            await server.login()
        assert not [*own_folder.rglob("*.json")]


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (
            401,
            "The server guarded wants authorization, but not by OAuth: it names no authorization server; put its token",
        ),
        (200, "The server guarded wants no login: without one, it answers HTTP status 200 at http://127.0.0.1:"),
    ],
)
async def test_a_server_without_oauth_is_one_sentence(status, sentence):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(status if self.path == "/mcp" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def do_GET(self):
            self.send_error(404)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(ServerError, match=f"^{re.escape(sentence)}"):
            await log_in(f"http://127.0.0.1:{server.server_port}/mcp", server=NAME, wishes=LoginWishes(browser=False))
        server.shutdown()


async def test_a_keyring_takes_the_login_where_there_is_one(plain, own_folder, monkeypatch):
    keyring = pytest.importorskip("keyring")

    class Memory(keyring.backend.KeyringBackend):
        priority = 5

        def __init__(self):
            super().__init__()
            self.kept = {}

        def get_password(self, service, username):
            return self.kept.get((service, username))

        def set_password(self, service, username, password):
            self.kept[service, username] = password

        def delete_password(self, service, username):
            del self.kept[service, username]

    before = keyring.get_keyring()
    memory = Memory()
    keyring.set_keyring(memory)
    try:
        assert (await plain.login()).endswith("is kept in the system's keyring.")
        assert [*memory.kept] == [("mcp-rl", plain.url)] and not [*own_folder.rglob("*.json")]
        async with connect(plain.params, deadlines=PATIENT) as connection:
            assert not (await connection.call("whoami", {})).is_error
        assert forget_login(plain.url) and not memory.kept
    finally:
        keyring.set_keyring(before)


def test_the_commands_say_what_they_cannot_do(capsys):
    assert main(["servers", "logout", "https://example.org/mcp"]) == 0
    assert main(["servers", "login", "mcp_calculator"]) == 2
    assert main(["servers", "login", "https://example.org/mcp", "--issuer", "https://login.example.org"]) == 2
    said = capsys.readouterr()
    assert said.out == "No login is kept for https://example.org/mcp.\n"
    assert "mcp_calculator starts on this machine and needs no login" in said.err
    assert "--client-id" in said.err
