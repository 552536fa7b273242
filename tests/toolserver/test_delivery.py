"""Calls are repeated only if that is known to be safe, as counted at a server that loses answers."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mcp_rl.errors import ServerFault
from mcp_rl.scenario import StreamableHttpServer
from mcp_rl.toolserver.connection.connection import connect
from mcp_rl.toolserver.connection.deadlines import Deadlines

OBJECT = {"type": "object", "properties": {}}
TOOLS = [
    {"name": "read", "inputSchema": OBJECT, "annotations": {"readOnlyHint": True}},
    {"name": "set", "inputSchema": OBJECT, "annotations": {"idempotentHint": True}},
    {"name": "write", "inputSchema": OBJECT},
]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        match request["method"]:
            case "initialize":
                self.server.sessions += 1
                version = request["params"]["protocolVersion"]
                result = {"protocolVersion": version, "capabilities": {}, "serverInfo": {"name": "odd", "version": "0"}}
            case "tools/list":
                result = {"tools": TOOLS}
            case "tools/call":
                self.server.calls.append(request["params"]["name"])
                trouble = self.server.troubles.pop() if self.server.troubles else None
                if trouble == "hang up":
                    self.close_connection = True
                    return
                if trouble is not None:
                    self.send_response(trouble)
                    self.send_header("content-length", "0")
                    self.end_headers()
                    return
                result = {"content": [{"type": "text", "text": "done"}]}
            case _:
                result = None
        self.reply(None if result is None else {"jsonrpc": "2.0", "id": request["id"], "result": result})

    def reply(self, message):
        body = b"" if message is None else json.dumps(message).encode()
        self.send_response(202 if message is None else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("mcp-session-id", f"s{self.server.sessions}")
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.send_error(405)

    do_DELETE = do_GET


@contextmanager
def server_with(*troubles):
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.calls, server.troubles, server.sessions = [], list(troubles), 0
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server, StreamableHttpServer(url=f"http://127.0.0.1:{server.server_port}/mcp")
        finally:
            server.shutdown()
            thread.join()


PATIENT = Deadlines(initialize=60, list=60, call=60, close=5)


@pytest.mark.parametrize("tool", ["read", "set"])
async def test_a_repeatable_call_is_repeated_if_its_answer_is_lost(tool):
    with server_with("hang up") as (server, params):
        async with connect(params, deadlines=PATIENT) as connection:
            assert (await connection.call(tool, {})).text == "done"
        assert server.calls == [tool, tool]
        assert server.sessions == 2


async def test_a_call_that_may_have_changed_state_is_not_repeated():
    with server_with("hang up") as (server, params):
        async with connect(params, deadlines=PATIENT) as connection:
            with pytest.raises(ServerFault, match="lost in a call of write") as fault:
                await connection.call("write", {})
            assert fault.value.delivered is None
            assert server.calls == ["write"]
            assert (await connection.call("write", {})).text == "done"
        assert server.calls == ["write", "write"]


async def test_a_call_to_an_ended_session_goes_to_a_new_one():
    with server_with(404) as (server, params):
        async with connect(params, deadlines=PATIENT) as connection:
            assert (await connection.call("write", {})).text == "done"
        assert server.sessions == 2


async def test_a_server_error_leaves_delivery_unknown():
    with server_with(500) as (server, params):
        async with connect(params, deadlines=PATIENT) as connection:
            with pytest.raises(ServerFault, match="HTTP status 500") as fault:
                await connection.call("write", {})
            assert fault.value.delivered is None
        assert server.calls == ["write"]


async def test_a_server_error_in_one_call_costs_no_other_its_session():
    with server_with(500, 503) as (server, params):
        async with connect(params, deadlines=PATIENT, stateful=True) as connection:
            with pytest.raises(ServerFault, match="HTTP status 503"):
                await connection.call("write", {})
            assert (await connection.call("read", {})).text == "done"
        assert server.calls == ["write", "read", "read"]
        assert server.sessions == 1


async def test_nothing_is_repeated_more_than_once():
    with server_with("hang up", "hang up", "hang up") as (server, params):
        async with connect(params, deadlines=PATIENT) as connection:
            with pytest.raises(ServerFault):
                await connection.call("read", {})
        assert server.calls == ["read", "read"]
