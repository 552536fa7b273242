"""Clients that open connections and send nothing, too slowly, or without an end take neither the service nor memory."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx
import psutil
import pytest

from benchmarks.loopback import serving
from mcp_rl.inference.openai_api import connections
from mcp_rl.inference.openai_api.app import make_app
from mcp_rl.inference.openai_api.bodies import Bodies
from mcp_rl.inference.openai_api.running import bind, running
from mcp_rl.inference.openai_api.service import Service

SCRIPT = str(Path(__file__).with_name("bare_serving.py"))
HALF = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
WHOLE = HALF + b"Content-Type: application/json\r\n"


@contextlib.contextmanager
def process(tmp_path: Path, *words: str) -> Iterator[tuple[psutil.Process, int]]:
    """Serve in a process of its own; give it and its port. Its errors go to a file `errors`."""
    with (tmp_path / "errors").open("wb") as errors:
        serving = subprocess.Popen([sys.executable, SCRIPT, *words], stdout=subprocess.PIPE, stderr=errors)
    try:
        assert serving.stdout is not None
        yield psutil.Process(serving.pid), int(serving.stdout.readline())
    finally:
        serving.kill()
        serving.communicate()


def connected(port: int, said: bytes = b"") -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", port), timeout=30)
    with contextlib.suppress(OSError):
        opened.sendall(said)
    return opened


def test_half_open_connections_beyond_the_open_files_keep_no_one_out(tmp_path: Path) -> None:
    with process(tmp_path, "160") as (_, port), contextlib.ExitStack() as held:
        for _ in range(200):
            held.enter_context(connected(port, HALF))
        assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=30).status_code == 200
        assert (tmp_path / "errors").stat().st_size < 10_000


def test_bodies_without_an_end_share_one_budget(tmp_path: Path) -> None:
    size = 16 * 2**20
    with process(tmp_path, "1024", "sesame") as (serving, port), contextlib.ExitStack() as held:
        before = serving.memory_info().rss
        said = WHOLE + b"Authorization: Bearer sesame\r\nContent-Length: %d\r\n\r\n" % size + b" " * (size - 1)
        for _ in range(16):
            held.enter_context(connected(port, said))
        assert serving.memory_info().rss - before < 12 * size, "8 bodies and what is copied of them"
        key = {"authorization": "Bearer sesame"}
        reply = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json={"model": "x"}, headers=key, timeout=30)
        assert reply.status_code == 400 and "prompt" in reply.text, "a short request is read"


def answer_to(port: int, said: bytes) -> bytes:
    """Send a part of a request, and read what comes until the connection is closed."""
    with connected(port, said) as opened:
        parts = []
        with contextlib.suppress(ConnectionResetError):
            while part := opened.recv(65536):
                parts.append(part)
        return b"".join(parts)


async def test_headers_and_bodies_have_deadlines_and_a_key_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)
    app = make_app(Service([]), key="sesame", bodies=Bodies(seconds=0.3))
    unfinished = WHOLE + b"Content-Length: 10\r\n"
    async with running(app, bind("127.0.0.1", 0)) as port:
        assert await anyio.to_thread.run_sync(answer_to, port, b"") == b""
        assert await anyio.to_thread.run_sync(answer_to, port, HALF) == b""
        refused = await anyio.to_thread.run_sync(answer_to, port, unfinished + b"\r\n")
        assert refused.startswith(b"HTTP/1.1 401"), "without a key its body is not waited for"
        known = unfinished + b"Authorization: Bearer sesame\r\n\r\n12345"
        late = await anyio.to_thread.run_sync(answer_to, port, known)
        assert late.startswith(b"HTTP/1.1 408") and b"did not arrive within 0.3 s" in late


def test_the_largest_of_the_unfinished_bodies_makes_room() -> None:
    app = make_app(Service([]), bodies=Bodies(most_bytes=1000))
    with serving(app) as url, contextlib.ExitStack() as held:
        port = int(url.rpartition(":")[2])
        small, large = (
            held.enter_context(connected(port, WHOLE + b"Content-Length: 900\r\n\r\n" + b" " * size))
            for size in (300, 600)
        )
        last = httpx.post(f"{url}/v1/completions", json={"model": "none", "prompt": "x" * 200})
        assert last.status_code == 404, last.text
        assert large.recv(65536).startswith(b"HTTP/1.1 503")
        small.sendall(b" " * 600)
        answer = b""
        while b"not valid JSON" not in answer:  # the head may come before the body
            more = small.recv(65536)
            assert more, answer
            answer += more


def test_a_connection_in_use_is_not_given_up_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for one, a request in progress keeps it, and a newcomer is told."""
    monkeypatch.setattr("mcp_rl.inference.openai_api.running._most_connections", lambda: 1)

    async def attempt() -> None:
        async with running(make_app(Service([])), bind("127.0.0.1", 0)) as port:
            with connected(port, WHOLE + b"Content-Length: 2\r\n\r\n{") as first:
                await anyio.sleep(0.2)
                told = await anyio.to_thread.run_sync(answer_to, port, HALF)
                assert told.startswith(b"HTTP/1.1 503") and b"connections are busy" in told
                first.sendall(b"}")
                assert b"HTTP/1.1 400" in await anyio.to_thread.run_sync(first.recv, 65536)

    anyio.run(attempt)
