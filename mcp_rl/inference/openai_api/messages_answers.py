"""Turn a sampled turn into Anthropic's message, or the events of its stream.

Text is streamed as it comes. Calls follow at the end of the turn, since only then it is known if their input is a JSON
object, as it must be.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp_rl.inference.chat.calls import read_object
from mcp_rl.inference.openai_api.answers import TurnsAnswer
from mcp_rl.inference.openai_api.messages_requests import UNREADABLE
from mcp_rl.inference.openai_api.reading import TextDelta, ThoughtDelta
from mcp_rl.inference.openai_api.refusals import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcp_rl.inference.openai_api.reading import Delta
    from mcp_rl.inference.openai_api.refusals import Refusal
    from mcp_rl.inference.openai_api.sampling import SampledTurn


class MessagesAnswer(TurnsAnswer):
    """The answer to POST /v1/messages."""

    named_events = True
    end_mark = None

    def __init__(self, *args: Any, **reads: Any) -> None:
        super().__init__(*args, **reads)
        self._blocks: list[dict[str, Any]] = []
        self._is_open = False
        """True while the newest block is being streamed."""

    def whole(self, turns: Sequence[SampledTurn]) -> dict[str, Any]:
        *_, end, _ = self.chunks(turns)
        return self._message(turns) | {"content": self._blocks, **end["delta"], "usage": self._tokens(turns)}

    def chunks(self, turns: Sequence[SampledTurn]) -> Iterator[dict[str, Any]]:
        [turn], [message] = turns, self._messages
        if not self._begun:
            self._begun = True
            yield {"type": "message_start", "message": self._message(turns)}
        for delta in message.read(turn):
            yield from self._streamed(delta)
        if not turn.finish:
            return
        if not self._blocks and not message.calls:
            yield from self._streamed(TextDelta(""))
        yield from self._block_ends()
        for id, (name, arguments) in zip(message.ids, message.calls, strict=True):
            yield from self._called(id, name, arguments)
        self._remember(turn, message)
        reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
        stop = self._stop_text(turn)
        reason = "stop_sequence" if stop is not None else reasons[message.finish(turn)]
        ended = {"stop_reason": reason, "stop_sequence": stop}
        yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": len(turn.ids)}}
        yield {"type": "message_stop"}

    def failure(self, refusal: Refusal) -> dict[str, Any]:
        return refusal.body_at(MESSAGES)

    def _streamed(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """Yield the events of a piece of text or of a thought."""
        if isinstance(delta, TextDelta):
            kind, empty = "text", {"type": "text", "text": ""}
        elif isinstance(delta, ThoughtDelta):
            kind, empty = "thinking", {"type": "thinking", "thinking": "", "signature": ""}
        else:
            return
        if not self._is_open or self._blocks[-1]["type"] != kind:
            yield from self._block_ends()
            yield from self._begins(empty)
        self._blocks[-1][kind] += delta.text
        yield self._at(type="content_block_delta", delta={"type": f"{kind}_delta", kind: delta.text})

    def _called(self, id: str, name: str, arguments: str) -> Iterator[dict[str, Any]]:
        given = _input(arguments)
        yield from self._begins({"type": "tool_use", "id": id, "name": name, "input": {}})
        self._blocks[-1]["input"] = given
        delta = {"type": "input_json_delta", "partial_json": json.dumps(given)}
        yield self._at(type="content_block_delta", delta=delta)
        yield from self._block_ends()

    def _begins(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self._blocks.append(dict(block))
        self._is_open = True
        yield self._at(type="content_block_start", content_block=block)

    def _block_ends(self) -> Iterator[dict[str, Any]]:
        if self._is_open:
            self._is_open = False
            yield self._at(type="content_block_stop")

    def _at(self, **event: Any) -> dict[str, Any]:
        return event | {"index": len(self._blocks) - 1}

    def _stop_text(self, turn: SampledTurn) -> str | None:
        """Return the stop text that ended the turn."""
        if not turn.stopped:
            return None
        whole = self._chat.decode(turn.ids)
        return next((text for text in self._asked.stop if text in whole), None)

    def _tokens(self, turns: Sequence[SampledTurn]) -> dict[str, Any]:
        usage = self._usage(turns)
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
        }

    def _message(self, turns: Sequence[SampledTurn]) -> dict[str, Any]:
        return {
            "id": f"msg_{self._id.partition('-')[2]}",
            "type": "message",
            "role": "assistant",
            "model": self._asked.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._tokens(turns),
        }


def _input(arguments: str) -> dict[str, Any]:
    """Return the arguments as the object that they are, or as Anthropic's convention for those that are none."""
    read = read_object(arguments)
    try:
        json.dumps(read, allow_nan=False)  # 1e999 is read as infinity, which no JSON holds
    except ValueError:
        read = None
    return {UNREADABLE: arguments} if read is None else read
