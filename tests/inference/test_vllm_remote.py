"""A vLLM server that runs already: what its metrics tell of it, over HTTP."""

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


async def test_it_was_started_again_where_its_process_is_younger_and_not_where_it_does_not_tell(
    server: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = []
    for metrics in (PROCESS.format(17.0), None, PROCESS.format(17.0), PROCESS.format(18.0), None, PROCESS.format(18.0)):
        monkeypatch.setattr(Vllm, "metrics", metrics)
        await server.ready()
        starts.append(server.starts)
    assert starts == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(("block", "seeds"), [(128, False), (16, True)])
async def test_no_seed_is_sent_to_what_looks_like_a_vllm_on_a_cpu(
    block: int, seeds: bool, server: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Vllm, "metrics", PROCESS.format(1.0) + CACHE.format(block))
    await server.ready()
    assert server.seeds is seeds
