"""A vLLM server that already runs: what its metrics reveal, over HTTP."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mcp_rl.inference.vllm.remote import RemoteServer

PROCESS = "process_start_time_seconds {}\n"
CACHE = 'vllm:cache_config_info{{block_size="{}",engine="0"}} 1.0\n'


class Vllm(BaseHTTPRequestHandler):
    """Answers as vLLM's server does."""

    metrics: str | None = None

    def do_GET(self) -> None:
        text = "" if self.path == "/health" else self.metrics
        self.send_response(503 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def server() -> Iterator[RemoteServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Vllm) as there:
        thread = threading.Thread(target=there.serve_forever, args=(0.02,))
        thread.start()
        yield RemoteServer(f"http://127.0.0.1:{there.server_port}/v1")
        there.shutdown()
        thread.join()


async def test_a_younger_process_counts_as_a_restart(server: RemoteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = []
    for metrics in (PROCESS.format(17.0), None, PROCESS.format(17.0), PROCESS.format(18.0), None, PROCESS.format(18.0)):
        monkeypatch.setattr(Vllm, "metrics", metrics)
        await server.ready()
        starts.append(server.starts)
    assert starts == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(("block", "seeds"), [(128, False), (16, True)])
async def test_no_seed_is_sent_to_a_server_on_a_cpu(
    block: int, seeds: bool, server: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Vllm, "metrics", PROCESS.format(1.0) + CACHE.format(block))
    await server.ready()
    assert server.seeds is seeds


async def test_a_running_server_is_asked_without_proxies(server: RemoteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As requests for tokens are: a proxy would see the key."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    await RemoteServer(server.url, away_seconds=2).ready()
