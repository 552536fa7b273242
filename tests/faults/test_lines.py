"""Messages from the output of a stdio server, however it is split into chunks."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCResponse

from mcp_rl.toolserver.connection.stdio import Lines

LIMIT = 4096


def answer(number: int, text: str, *, last: bool = False) -> bytes:
    """Return an answer with the id first, as most servers write it, or last, as the TypeScript SDK does."""
    result = {"result": {"content": [{"type": "text", "text": text}]}}
    head = {"jsonrpc": "2.0", "id": number}
    return json.dumps({**result, **head} if last else {**head, **result}, ensure_ascii=False).encode()


def read(data: bytes, cuts: list[int], longest: int = LIMIT) -> list[SessionMessage | Exception]:
    lines, found, begin = Lines(longest=longest), [], 0
    for cut in (*sorted(cuts), len(data)):
        found += lines.messages(data[begin:cut])
        begin = max(begin, cut)
    return found


@given(st.lists(st.text(max_size=50), max_size=5), st.lists(st.integers(0, 800), max_size=8))
def test_messages_do_not_depend_on_how_they_are_cut(texts: list[str], cuts: list[int]) -> None:
    data = b"".join(answer(number, text) + b"\n" for number, text in enumerate(texts))
    messages = read(data, cuts)
    assert [m.message.result["content"][0]["text"] for m in messages] == texts  # type: ignore[union-attr]


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_arbitrary_bytes_do_not_harm_later_messages(noise: bytes, cuts: list[int]) -> None:
    *_, last = read(noise + b"\n" + answer(7, "fine") + b"\n", cuts)
    assert isinstance(last, SessionMessage) and isinstance(last.message, JSONRPCResponse) and last.message.id == 7


def test_bytes_that_are_no_text_are_replaced() -> None:
    [message] = read(answer(1, "ab").replace(b"ab", b"a\xff\xfeb") + b"\n", [])
    assert isinstance(message, SessionMessage) and "a\ufffd\ufffdb" in str(message.message)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("chunk", [100, 5000, 10**6])
def test_an_answer_that_is_too_long_is_an_error_of_its_own_call(last: bool, chunk: int) -> None:
    nested = '"}]}, {"id": 9}, {"jsonrpc": "2.0", "id": 8}'
    data = answer(5, nested + "x" * 3 * LIMIT + nested, last=last) + b"\n" + answer(6, "next") + b"\n"
    error, following = read(data, list(range(0, len(data), chunk)))
    assert isinstance(error, SessionMessage) and isinstance(error.message, JSONRPCError)
    assert error.message.id == 5 and "the limit is" in error.message.error.message
    assert isinstance(following, SessionMessage) and following.message.id == 6  # type: ignore[union-attr]


def test_what_is_too_long_and_answers_nobody_is_an_error() -> None:
    [error] = read(b"[" + b"1," * 3 * LIMIT + b"1]\n", [])
    assert isinstance(error, ValueError)


def test_a_line_of_many_megabytes_is_read_in_linear_time() -> None:
    """Quadratic time would be half a minute."""
    data = answer(1, "x" * 50 * 2**20) + b"\n"
    began = time.process_time()
    [message] = read(data, list(range(0, len(data), 65536)), longest=2**30)
    assert isinstance(message, SessionMessage)
    assert time.process_time() - began < 10
