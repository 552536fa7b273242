"""A handwritten MCP server that misbehaves over stdio, SSE or streamable HTTP; standard library only.

`hostile_server.py --transport T [--port N] --log FILE [--mode MODE] [--trouble NAME] [--chance P --seed S]`

Every received call is logged first, as a line `{"tool": …, "n": …, "pid": …}`. A call with n = 0 meets `--trouble`;
with `--chance`, the seed and n decide which of `TROUBLES` a call meets, if any. `--mode` selects a misbehaviour of the
whole server: at its start, in its listing, or at its end. `--bad-start` is the share of processes that die at their
start or hang in the handshake. In a sandbox nobody could read the log, so `--collector PORT` has each line sent to a
port on loopback. With `--place FOLDER`, each call leaves a file there, answers "dirty" where another one's file is, and
some calls leave a process behind.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path

TROUBLES = ("exit", "never", "late", "garbage", "half", "error", "status404", "status500", "hang_up")
LATE_SECONDS = 3.0
HUGE = 50 * 2**20
FLOOD = 20 * 2**20
N = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
READ = {"name": "read", "description": "Twice n.", "inputSchema": N, "annotations": {"readOnlyHint": True}}
WRITE = {"name": "write", "description": "Twice n, written down.", "inputSchema": N}
RESET = {"name": "reset", "description": "Begin anew.", "inputSchema": {"type": "object", "properties": {}}}
STRANGE = "wr\u202eite\u0000\u001b[31m \U0001f600 \u2028\u0085\ufeff"


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", default="stdio")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--mode", default="fine")
    parser.add_argument("--trouble", default="")
    parser.add_argument("--chance", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bad-start", type=float, default=0.0)
    parser.add_argument("--collector", type=int, default=0)
    parser.add_argument("--place", type=Path)
    return parser.parse_args()


OPTIONS = options()


def note(**fields) -> None:
    """Write a line of the log in one write, so that several processes may share the file."""
    if OPTIONS.collector:
        with socket.create_connection(("127.0.0.1", OPTIONS.collector)) as channel:
            channel.sendall(json.dumps({**fields, "log": str(OPTIONS.log)}).encode() + b"\n")
            channel.recv(1)
        return
    handle = os.open(OPTIONS.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, json.dumps({**fields, "pid": os.getpid()}).encode() + b"\n")
    os.close(handle)


def first_life() -> bool:
    """Return whether this is the first process of this server."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(f"{OPTIONS.log}.lived", os.O_CREAT | os.O_EXCL))
        return True
    return False


FIRST_LIFE = first_life()


def trouble_of(n: object) -> str:
    if OPTIONS.chance:
        drawn = random.Random(f"{OPTIONS.seed}-{n}")
        return drawn.choice(TROUBLES) if drawn.random() < OPTIONS.chance else ""
    return OPTIONS.trouble if n == 0 else ""


def listing(cursor: str | None) -> dict:
    tools = [READ] if OPTIONS.mode in ("restarts", "mute-later") else [READ, WRITE, RESET]
    match OPTIONS.mode:
        case "empty-schema":
            tools.insert(0, {"name": "bad", "inputSchema": {}})
        case "thousand":
            tools += [{**READ, "name": f"read-{number}"} for number in range(1000)]
        case "pages":
            page = int(cursor or 0)
            shown = tools if page == 1 else [{**READ, "name": f"read-{page}"}]
            return {"tools": shown} | ({"nextCursor": str(page + 1)} if page < 3 else {})
        case "costly":
            tools += [{**READ, "name": name, "inputSchema": schema} for name, schema in costly().items()]
        case "cursors":
            return {"tools": tools, "nextCursor": "x" * 15 * 2**20}
        case "strange":
            tools += [{**WRITE, "name": STRANGE, "description": STRANGE}, {**READ, "name": "x" * 100_000}]
        case "restarts" if not FIRST_LIFE:
            tools = [{**READ, "inputSchema": {**N, "required": []}}]
    return {"tools": tools}


def costly() -> dict[str, dict]:
    """Return schemas that take all memory or time to expand, to check or to draw from."""
    chain = {f"R{n}": {"$ref": f"#/$defs/R{n + 1}"} for n in range(3000)}
    layers = {f"L{n}": {"allOf": [{"$ref": f"#/$defs/L{n + 1}"}] * 2} for n in range(40)} | {"L40": {}}
    often = {f"p{n}": {"$ref": "#/$defs/Large"} for n in range(15_000)}
    found = {
        "chain": {"properties": {"n": {"$ref": "#/$defs/R0"}}, "$defs": chain},
        "layers": {"properties": {"n": {"$ref": "#/$defs/L0"}}, "$defs": layers},
        "often": {"properties": often, "$defs": {"Large": {"enum": ["x" * 200_000]}}},
        "long": {"properties": {"n": {"type": "string", "minLength": 10**15}}},
        "many": {"properties": {"n": {"type": "object", "minProperties": 10**12}}},
        "repeated": {"properties": {"n": {"type": "string", "pattern": "(((a{900}){900}){900})"}}},
        "backtracks": {"properties": {"n": {"type": "string", "pattern": "^" + r"(\w*" * 60 + ")" * 60 + "!$"}}},
        "malformed": {"properties": {"n": {"$ref": 7, "type": {}, "enum": 5, "anyOf": [3]}}, "$schema": []},
    }
    return {name: {"type": "object", "required": ["n"], **schema} for name, schema in found.items()}


class Gone(Exception):
    """Send no answer to this request, and end its connection."""


async def answer(request: dict, way: "Way") -> None:
    method, params = request["method"], request.get("params") or {}
    match method:
        case "initialize":
            if OPTIONS.mode == "mute" or (OPTIONS.mode == "mute-later" and not FIRST_LIFE):
                await asyncio.sleep(3600)
            result = {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": STRANGE if OPTIONS.mode == "strange" else "hostile", "version": "0"},
            }
        case "tools/list":
            if OPTIONS.mode == "requests":
                await way.requests()
            if OPTIONS.mode == "mute-listing":
                await asyncio.sleep(3600)
            result = listing(params.get("cursor"))
        case "tools/call":
            await called(request, params.get("name"), params.get("arguments") or {}, way)
            return
        case _:
            result = {}
    await way.send(reply(request, result))


def found_clean(n: object) -> bool:
    """Leave a trace of this call in the place, and return whether no other call's is there."""
    others = [path for path in OPTIONS.place.iterdir() if path.name != str(n)]
    (OPTIONS.place / str(n)).write_text("x" * 1000)
    if random.Random(f"{OPTIONS.seed}-left-{n}").random() < OPTIONS.chance and os.fork() == 0:
        os.setsid()
        os.closerange(0, 3)
        time.sleep(3600)
        os._exit(0)
    return not others


def reply(request: dict, result: dict) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()


def said(text: str) -> dict:
    return {"content": [{"type": "text", "text": text}]}


async def called(request: dict, tool: str, arguments: dict, way: "Way") -> None:
    n = arguments.get("n")
    if tool == "reset":
        await way.send(reply(request, said("Reset.")))
        return
    trouble = trouble_of(n)
    if trouble == "status404" and OPTIONS.transport != "stdio":  # a 404 means that nothing was done
        await way.refuse(404)
        return
    note(tool=tool, n=n)
    text = f"{2 * n}" if isinstance(n, int) else "no number"
    if OPTIONS.place and not found_clean(n):
        text = "dirty"
    if OPTIONS.mode == "strange":
        text += STRANGE
    match trouble:
        case "exit":
            print("\x1b[31mI was told\x07 to go.\x1b[0m", file=sys.stderr, flush=True)
            os._exit(3)
        case "never" | "stall":
            await asyncio.sleep(3600)
        case "freeze":
            time.sleep(3600)  # noqa: ASYNC251
        case "late":
            await asyncio.sleep(LATE_SECONDS)
        case "garbage":
            await way.send(b'\x00\xff\xfe}{ "jsonrpc": nonsense \x1b[31m')
            return
        case "half":
            await way.half(reply(request, said(text)))
            return
        case "huge":
            text = "7" * HUGE
        case "endless":
            await way.endless()
            return
        case "values":
            many = b'{"jsonrpc": "2.0", "id": %d, "result": {"structuredContent": {"x": [' % request["id"]
            await way.send(many + b"[]," * 300_000 + b"1]}}}")
            return
        case "huge_listing":
            await way.send(b'{"jsonrpc": "2.0", "id": %d, "result": {"x": [' % request["id"] + b"1, " * 2**22 + b"1]}}")
            return
        case "requests":
            await way.requests()
        case "burst":
            for number in range(5000):
                await way.send(b'{"jsonrpc": "2.0", "id": "r%d", "method": "ping"}' % number)
        case "stderr":
            flood(2)
        case "stdout":
            flood(1)
        case "error":
            result = {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32603, "message": "no luck"}}
            await way.send(json.dumps(result).encode())
            return
        case "status500":
            await way.refuse(500)
            return
        case "hang_up":
            raise Gone
    await way.send(reply(request, said(text)))


def flood(descriptor: int) -> None:
    os.set_blocking(descriptor, True)
    line = b"this is no message, " * 50 + b"\n"
    for _ in range(FLOOD // len(line) // (1 if descriptor == 2 else 20)):
        os.write(descriptor, line)


# The channels for answers.


class Way:
    async def send(self, payload: bytes) -> None:
        raise NotImplementedError

    async def half(self, payload: bytes) -> None:
        raise NotImplementedError

    async def refuse(self, status: int) -> None:
        """Send nothing, the nearest equivalent without HTTP."""

    async def requests(self) -> None:
        """Send requests without end, and read nothing."""

    async def endless(self) -> None:
        """Send a body of a gigabyte, under a type in mixed case, as far as it is read."""


class Stdio(Way):
    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer

    async def send(self, payload: bytes) -> None:
        self.writer.write(payload + b"\n")
        await self.writer.drain()

    async def half(self, payload: bytes) -> None:
        self.writer.write(payload[: len(payload) // 2])
        await self.writer.drain()

    async def requests(self) -> None:
        os.set_blocking(1, True)
        request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "y" * 10_000}}) + "\n"
        while True:
            os.write(1, request.encode())


async def serve_stdio() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    way = Stdio(asyncio.StreamWriter(transport, protocol, None, loop))
    jobs = set()

    async def one(request: dict) -> None:
        try:
            await answer(request, way)
        except Gone:
            os.close(1)

    while line := await reader.readline():
        request = json.loads(line)
        if "id" in request and "method" in request:
            jobs.add(job := asyncio.create_task(one(request)))
            job.add_done_callback(jobs.discard)


class HttpAnswer(Way):
    """Answer in the body of the response to the POST."""

    def __init__(self, writer: asyncio.StreamWriter, headers: str) -> None:
        self.writer, self.headers = writer, headers

    async def send(self, payload: bytes) -> None:
        head(self.writer, 200, f"content-type: application/json\r\n{self.headers}", len(payload))
        self.writer.write(payload)
        await self.writer.drain()

    async def half(self, payload: bytes) -> None:
        head(self.writer, 200, f"content-type: application/json\r\n{self.headers}", len(payload))
        self.writer.write(payload[: len(payload) // 2])
        await self.writer.drain()
        raise Gone

    async def endless(self) -> None:
        head(self.writer, 200, f"content-type: Application/JSON\r\n{self.headers}", None)
        for sent in range(2**10):
            note(tool="sent", n=sent)
            chunk(self.writer, b" " * 2**20)
            await self.writer.drain()

    async def refuse(self, status: int) -> None:
        head(self.writer, status, "content-type: text/html\r\n", 6)
        self.writer.write(b"<html>")
        await self.writer.drain()


class SseAnswer(Way):
    """Answer with an event on the stream, and 202 for the POST."""

    def __init__(self, stream: asyncio.StreamWriter, post: asyncio.StreamWriter) -> None:
        self.stream, self.post, self.accepted = stream, post, False

    async def accept(self) -> None:
        if not self.accepted:
            self.accepted = True
            head(self.post, 202, "", 0)
            await self.post.drain()

    async def send(self, payload: bytes) -> None:
        await self.accept()
        chunk(self.stream, b"event: message\ndata: " + payload + b"\n\n")
        await self.stream.drain()

    async def half(self, payload: bytes) -> None:
        await self.accept()
        chunk(self.stream, b"event: message\ndata: " + payload[: len(payload) // 2])
        await self.stream.drain()
        self.stream.transport.abort()

    async def refuse(self, status: int) -> None:
        self.accepted = True
        head(self.post, status, "content-type: text/plain\r\n", 0)
        await self.post.drain()


def head(writer: asyncio.StreamWriter, status: int, headers: str, length: int | None) -> None:
    body = "transfer-encoding: chunked\r\n" if length is None else f"content-length: {length}\r\n"
    writer.write(f"HTTP/1.1 {status} X\r\n{headers}{body}\r\n".encode())


def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


class Http:
    """Both HTTP transports; a session is identified by its number."""

    def __init__(self) -> None:
        self.streams: dict[str, asyncio.StreamWriter] = {}
        self.sessions: set[str] = set()
        self.jobs: set[asyncio.Task] = set()
        self.dropped = False

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, Gone):
                while await self.request(reader, writer):
                    pass
        finally:
            writer.transport.abort() if OPTIONS.trouble else writer.close()

    async def request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = lines[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if method == "GET" and path == "/sse":
            await self.stream(reader, writer)
            return False
        if method != "POST":
            head(writer, 405, "", 0)
            return True
        message = json.loads(body)
        if path.startswith("/messages"):
            await self.sse_post(message, path.rpartition("=")[2], writer)
        else:
            await self.http_post(message, headers.get("mcp-session-id", ""), writer)
        return True

    async def stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = os.urandom(8).hex()
        self.streams[number] = writer
        try:
            head(writer, 200, "content-type: text/event-stream\r\n", None)
            chunk(writer, f"event: endpoint\ndata: /messages?session={number}\n\n".encode())
            await writer.drain()
            await reader.read()
        finally:
            self.streams.pop(number, None)

    async def sse_post(self, message: dict, number: str, writer: asyncio.StreamWriter) -> None:
        stream = self.streams.get(number)
        if stream is None:
            head(writer, 404, "", 0)
            return
        way = SseAnswer(stream, writer)
        if "id" not in message or "method" not in message:
            await way.accept()
            return
        if trouble_of((message.get("params") or {}).get("arguments", {}).get("n")) in (
            "status404",
            "status500",
            "stall",
        ):
            await answer(message, way)
            return
        await way.accept()
        self.jobs.add(job := asyncio.create_task(self.sse_answer(message, way)))
        job.add_done_callback(self.jobs.discard)
        if OPTIONS.mode == "drops" and message["method"] == "tools/list" and not self.dropped:
            self.dropped = True
            asyncio.get_running_loop().call_later(0.1, self.drop, stream)

    def drop(self, stream: asyncio.StreamWriter | None) -> None:
        """Forget the sessions, and end the stream where the transport has one; the file beside the log says so once it
        is closed."""
        self.streams.clear()
        self.sessions.clear()
        if stream is not None:
            stream.transport.abort()
        asyncio.get_running_loop().call_later(0.05, Path(f"{OPTIONS.log}.dropped").touch)

    async def sse_answer(self, message: dict, way: SseAnswer) -> None:
        try:
            await answer(message, way)
        except Gone:
            way.stream.transport.abort()

    async def http_post(self, message: dict, session: str, writer: asyncio.StreamWriter) -> None:
        if message.get("method") == "initialize":
            session = os.urandom(8).hex()
            self.sessions.add(session)
        elif session not in self.sessions:
            head(writer, 404, "", 0)
            return
        if "id" not in message or "method" not in message:
            head(writer, 202, "", 0)
            return
        await answer(message, HttpAnswer(writer, f"mcp-session-id: {session}\r\n"))
        if OPTIONS.mode == "drops" and message["method"] == "tools/list" and not self.dropped:
            self.dropped = True
            self.drop(None)


async def serve_http() -> None:
    server = await asyncio.start_server(Http().connection, "127.0.0.1", OPTIONS.port, limit=2**24)
    async with server:
        await server.serve_forever()


def leak() -> None:
    """Start processes in their own sessions, without a parent of ours."""
    for detached in (False, True):
        if os.fork() == 0:
            os.setsid()
            if detached and os.fork():
                os._exit(0)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            time.sleep(3600)


def main() -> None:
    # Not by the process id alone: in a sandbox, it is the same at each start.
    if random.Random(f"{OPTIONS.seed}-{os.getpid()}-{time.time_ns()}").random() < OPTIONS.bad_start:
        OPTIONS.mode = random.choice(("dies", "mute"))
    if OPTIONS.mode == "dies":
        print("first line\nthe database is not there", file=sys.stderr)
        sys.exit(1)
    if OPTIONS.mode == "leaks":
        leak()
    if OPTIONS.mode in ("stays", "leaks"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if OPTIONS.mode == "floods":
        flood(2)
    asyncio.run(serve_stdio() if OPTIONS.transport == "stdio" else serve_http())
    while OPTIONS.mode in ("stays", "leaks"):
        time.sleep(60)
    os._exit(0)


main()
