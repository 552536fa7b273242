"""Turn a sampled turn into OpenAI's response object, or the events of its stream.

Text is streamed as it comes. Calls follow at the end of the turn, since only then it is known what of it is a call.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from mcp_rl.inference.openai_api.answers import TurnsAnswer
from mcp_rl.inference.openai_api.reading import TextDelta, ThoughtDelta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mcp_rl.inference.openai_api.reading import Delta
    from mcp_rl.inference.openai_api.refusals import Refusal
    from mcp_rl.inference.openai_api.responses_requests import ResponseRequest
    from mcp_rl.inference.openai_api.sampling import SampledTurn


class ResponseAnswer(TurnsAnswer):
    """The answer to POST /v1/responses."""

    named_events = True
    end_mark = None

    def __init__(
        self, request: ResponseRequest, keep: Callable[[str, dict[str, Any]], None], *args: Any, **reads: Any
    ) -> None:
        super().__init__(*args, **reads)
        self._request, self._keep = request, keep
        self._number = self._id.partition("-")[2]
        self._output: list[dict[str, Any]] = []
        self._open: tuple[str, dict[str, Any]] | None = None
        """The part that is being streamed: the name of its events, and the part."""
        self._sent = 0

    def whole(self, turns: Sequence[SampledTurn]) -> dict[str, Any]:
        *_, end = self.chunks(turns)
        response: dict[str, Any] = end["response"]
        return response

    def chunks(self, turns: Sequence[SampledTurn]) -> Iterator[dict[str, Any]]:
        [turn], [message] = turns, self._messages
        if not self._begun:
            self._begun = True
            yield self._event("response.created", response=self._response("in_progress"))
            yield self._event("response.in_progress", response=self._response("in_progress"))
        for delta in message.read(turn):
            yield from self._streamed(delta)
        if not turn.finish:
            return
        if not self._output and not message.calls:
            yield from self._streamed(TextDelta(""))
        yield from self._part_ends()
        for id, (name, arguments) in zip(message.ids, message.calls, strict=True):
            yield from self._called(id, name, arguments)
        self._remember(turn, message)
        status = "incomplete" if turn.finish == "length" else "completed"
        if status == "incomplete":
            self._output[-1]["status"] = "incomplete"
        response = self._response(status, self._usage(turns))
        if self._request.store:
            self._keep(response["id"], message.whole())
        yield self._event(f"response.{status}", response=response)

    def failure(self, refusal: Refusal) -> dict[str, Any]:
        error = refusal.body["error"]
        return self._event("error", code=error["code"] or error["type"], message=error["message"], param=error["param"])

    def _streamed(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """Yield the events of a piece of text or of a thought."""
        item: dict[str, Any]
        part: dict[str, Any]
        if isinstance(delta, TextDelta):
            kind = "output_text"
            item = {"type": "message", "role": "assistant", "id": f"msg_{self._number}", "content": []}
            part = {"type": kind, "annotations": [], "logprobs": [], "text": ""}
        elif isinstance(delta, ThoughtDelta):
            kind = "reasoning_text"
            item = {"type": "reasoning", "id": f"rs_{self._number}", "summary": [], "content": []}
            part = {"type": kind, "text": ""}
        else:
            return
        if self._open is None or self._open[0] != kind:
            yield from self._part_ends()
            yield self._item_event("added", item | {"status": "in_progress"}, new=True)
            yield self._part_event("response.content_part.added", part=dict(part))
            self._output[-1]["content"].append(part)
            self._open = kind, part
        self._open[1]["text"] += delta.text
        if delta.text:
            more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
            yield self._part_event(f"response.{kind}.delta", delta=delta.text, **more)

    def _part_ends(self) -> Iterator[dict[str, Any]]:
        if self._open is None:
            return
        (kind, part), self._open = self._open, None
        more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
        yield self._part_event(f"response.{kind}.done", text=part["text"], **more)
        yield self._part_event("response.content_part.done", part=part)
        yield self._item_event("done", self._output[-1] | {"status": "completed"})

    def _called(self, id: str, name: str, arguments: str) -> Iterator[dict[str, Any]]:
        item = {"type": "function_call", "id": id.replace("call_", "fc_"), "call_id": id, "name": name}
        at = {"item_id": item["id"], "output_index": len(self._output)}
        yield self._item_event("added", item | {"arguments": "", "status": "in_progress"}, new=True)
        yield self._event("response.function_call_arguments.delta", **at, delta=arguments)
        yield self._event("response.function_call_arguments.done", **at, name=name, arguments=arguments)
        yield self._item_event("done", item | {"arguments": arguments, "status": "completed"})

    def _item_event(self, what: str, item: dict[str, Any], *, new: bool = False) -> dict[str, Any]:
        self._output[len(self._output) - (not new) :] = [item]
        at = len(self._output) - 1
        return self._event(f"response.output_item.{what}", output_index=at, item=copy.deepcopy(item))

    def _part_event(self, type: str, **fields: Any) -> dict[str, Any]:
        at = {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1, "content_index": 0}
        return self._event(type, **at, **fields)

    def _event(self, type: str, **fields: Any) -> dict[str, Any]:
        self._sent += 1
        return {"type": type, "sequence_number": self._sent - 1, **fields}

    def _response(self, status: str, usage: dict[str, Any] | None = None) -> dict[str, Any]:
        request = self._request
        choice = request.tool_choice
        return {
            "id": f"resp_{self._number}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "model": request.model,
            "output": list(self._output),
            "parallel_tool_calls": request.parallel_tool_calls,
            "previous_response_id": request.previous_response_id,
            "store": request.store,
            "temperature": request.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": choice.model_dump() if isinstance(choice, BaseModel) else choice or "auto",
            "tools": [tool.model_dump() for tool in request.tools],
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": usage and _usage(usage),
            "metadata": request.metadata,
        }


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    """Return the usage of a chat in the words of Responses."""
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }
