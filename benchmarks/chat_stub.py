"""A chat model with no latency behind the OpenAI protocol, in a process of its own: `python -m benchmarks.chat_stub`.

Its first line on stdout is its address. It answers `What is A times B?` with a call of `multiply`, and a tool's result
by repeating it. It reads just enough of HTTP/1.1 for a client on loopback, so that it takes little processor time from
the contenders: 0.1 ms for a turn. It ends with its standard input.
"""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LENGTH = re.compile(rb"^content-length: *(\d+)", re.IGNORECASE | re.MULTILINE)
_TASK = re.compile(r"What is (\d+) times (\d+)\?")
_USAGE = {"prompt_tokens": 400, "completion_tokens": 20, "total_tokens": 420}


def turn(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the model's next message."""
    last = messages[-1]
    if last["role"] == "tool":
        return {"role": "assistant", "content": last["content"]}
    found = _TASK.search(last["content"])
    if found is None:
        return {"role": "assistant", "content": "ready"}
    arguments = json.dumps({"a": int(found[1]), "b": int(found[2])})
    call = {"id": f"call_{found[1]}", "type": "function", "function": {"name": "multiply", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def response(body: bytes) -> bytes:
    """Return the whole HTTP response to a request's body."""
    asked = json.loads(body)
    message = turn(asked["messages"])
    finish = "tool_calls" if "tool_calls" in message else "stop"
    completion = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": asked["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": _USAGE,
    }
    said = json.dumps(completion).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(said) + said


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            found = _LENGTH.search(self._read[:end])
            whole = end + 4 + (int(found[1]) if found else 0)
            if len(self._read) < whole:
                return
            body, self._read = self._read[end + 4 : whole], self._read[whole:]
            self._transport.write(response(body))


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Connection, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


@contextmanager
def running() -> Iterator[str]:
    """Run the stub in a process that ends with the block; yield its base URL."""
    command = [sys.executable, "-m", "benchmarks.chat_stub"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
            process.wait(10)


if __name__ == "__main__":
    asyncio.run(main())
