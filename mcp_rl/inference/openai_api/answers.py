"""Turn sampled turns into OpenAI's objects, whole or as the chunks of a stream."""

from __future__ import annotations

import itertools
import secrets
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from mcp_rl.inference.openai_api.reading import ArgumentsDelta, CallBegins, Delta, TextDelta, ThoughtDelta, reader_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.inference.openai_api.reading import TurnReader, WholeTurnReader
    from mcp_rl.inference.openai_api.refusals import Refusal
    from mcp_rl.inference.openai_api.requests import ChatRequest, CompletionRequest
    from mcp_rl.inference.openai_api.sampling import SampledTurn
    from mcp_rl.inference.openai_api.served import ServedModel


class _Choice:
    """Progress of one choice: how much of its text and tokens were sent."""

    def __init__(self) -> None:
        self.text = self.tokens = 0
        self.over = False


class ApiAnswer(ABC):
    """The fields that every object of one answer shares, and how it is streamed."""

    named_events = False
    """True if each event carries its `type` as its name."""
    end_mark: str | None = "[DONE]"
    """The data of a stream's last event; None if the last object ends it."""

    def __init__(
        self, asked: ChatRequest | CompletionRequest, served: ServedModel, prompts: list[list[int]], kind: str
    ):
        self._asked, self._served, self._prompts, self._kind = asked, served, prompts, kind
        self._id = f"{'chatcmpl' if kind.startswith('chat') else 'cmpl'}-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._begun = False

    @abstractmethod
    def whole(self, turns: Sequence[SampledTurn]) -> dict[str, Any]:
        """Return the answer of finished turns."""

    @abstractmethod
    def chunks(self, turns: Sequence[SampledTurn]) -> Iterator[dict[str, Any]]:
        """Yield the objects of a stream about everything sampled since the last call."""

    def last(self, turns: Sequence[SampledTurn]) -> Iterator[dict[str, Any]]:
        """Yield the objects after the end of all turns."""
        return iter(())

    def failure(self, refusal: Refusal) -> dict[str, Any]:
        """Return the object that ends a stream which fails."""
        return refusal.body

    @property
    def _chat(self) -> ChatFormat:
        return self._served.prompts.chat

    def _object(self, turns: Sequence[SampledTurn], choices: list[Any], **more: Any) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": self._kind,
            "created": self._created,
            "model": self._asked.model,
            "system_fingerprint": f"policy-{max(turn.version for turn in turns)}",
            "choices": choices,
            **more,
        }

    def _usage(self, turns: Sequence[SampledTurn]) -> dict[str, Any]:
        """Count the tokens. The prompt counts once, however many choices it has."""
        prompt, sampled = sum(map(len, self._prompts)), sum(len(turn.ids) for turn in turns)
        cached = sum(turn.cached for turn in turns[:: self._asked.n])
        return {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _usage_chunk(self, turns: Sequence[SampledTurn]) -> Iterator[dict[str, Any]]:
        if self._asked.stream_options and self._asked.stream_options.include_usage:
            yield self._object(turns, [], usage=self._usage(turns))

    def _exact(self, turn: SampledTurn, since: int = 0) -> dict[str, Any]:
        """Return the exact tokens and the policy that sampled them, if they were asked for."""
        if not self._asked.return_token_ids:
            return {}
        return {"token_ids": turn.ids[since:], "policy_version": turn.version}

    def _token(self, id: int) -> str:
        return str(self._chat.tokenizer.decode([id], skip_special_tokens=False))


class TurnsAnswer(ApiAnswer):
    """An answer of turns in a conversation, as messages."""

    def __init__(
        self,
        asked: ChatRequest,
        served: ServedModel,
        prompt: list[int],
        begun: list[int],
        *,
        reads_calls: bool,
        one_call: bool,
    ) -> None:
        super().__init__(asked, served, [prompt], "chat.completion.chunk" if asked.stream else "chat.completion")
        self._asked: ChatRequest = asked
        self._forced, self._before = begun, prompt[: len(prompt) - len(begun)]
        reads = {"calls": reads_calls, "one_call": one_call}
        self._messages = [
            MessageInProgress(reader_of(self._chat, asked.schemas, **reads), self._chat.decode(begun))
            for _ in range(asked.n)
        ]

    def _remember(self, turn: SampledTurn, message: MessageInProgress) -> None:
        if self._served.said is not None:
            self._served.said(self._asked, turn, message.whole())
        if turn.continuable:
            self._served.prompts.turns.remember(
                self._before, message.content or "", message.calls, [*self._forced, *turn.ids]
            )


class ChatAnswer(TurnsAnswer):
    """The answer to POST /v1/chat/completions."""

    def whole(self, turns: Sequence[SampledTurn]) -> dict[str, Any]:
        choices = []
        for number, (turn, message) in enumerate(zip(turns, self._messages, strict=True)):
            for _ in message.read(turn):
                pass
            self._remember(turn, message)
            choices.append(
                {
                    "index": number,
                    "message": message.whole(),
                    "logprobs": self._logprobs(turn, 0),
                    "finish_reason": message.finish(turn),
                    **self._exact(turn),
                }
            )
        ids = {"prompt_token_ids": self._prompts[0]} if self._asked.return_token_ids else {}
        return self._object(turns, choices, usage=self._usage(turns), **ids)

    def chunks(self, turns: Sequence[SampledTurn]) -> Iterator[dict[str, Any]]:
        if not self._begun:
            self._begun = True
            ids = {"prompt_token_ids": self._prompts[0]} if self._asked.return_token_ids else {}
            for number in range(len(turns)):
                yield self._chunk(turns, number, {"role": "assistant", "content": ""}, more=ids if number == 0 else {})
        for number, (turn, message) in enumerate(zip(turns, self._messages, strict=True)):
            if message.choice.over:
                continue
            since = message.choice.tokens
            deltas = [_delta(delta, message.ids) for delta in message.read(turn)]
            message.choice.tokens = len(turn.ids)
            about = {"logprobs": self._logprobs(turn, since), **self._exact(turn, since)}
            for delta in deltas or (
                [{}] if since < len(turn.ids) and (self._asked.logprobs or about.get("token_ids")) else []
            ):
                yield self._chunk(turns, number, delta, about)
                about = {"logprobs": None}
            if turn.finish:
                message.choice.over = True
                self._remember(turn, message)
                yield self._chunk(turns, number, {}, {"finish_reason": message.finish(turn)})

    def last(self, turns: Sequence[SampledTurn]) -> Iterator[dict[str, Any]]:
        return self._usage_chunk(turns)

    def _chunk(
        self,
        turns: Sequence[SampledTurn],
        number: int,
        delta: dict[str, Any],
        about: dict[str, Any] | None = None,
        more: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        choice = {"index": number, "delta": delta, "logprobs": None, "finish_reason": None, **(about or {})}
        return self._object(turns, [choice], **(more or {}))

    def _logprobs(self, turn: SampledTurn, since: int) -> dict[str, Any] | None:
        if not self._asked.logprobs:
            return None
        tokens = zip(turn.ids[since:], turn.logprobs[since:], turn.likeliest(since), strict=True)
        content = [
            {**self._entry(id, logprob), "top_logprobs": [self._entry(*one) for one in top]}
            for id, logprob, top in tokens
        ]
        return {"content": content, "refusal": None}

    def _entry(self, id: int, logprob: float) -> dict[str, Any]:
        text = self._token(id)
        return {"token": text, "logprob": logprob, "bytes": _bytes(text)}


class MessageInProgress:
    """A message that is being read."""

    def __init__(self, reader: TurnReader | WholeTurnReader, forced: str) -> None:
        self.choice = _Choice()
        self.content: str | None = None
        self.thought = ""
        self.calls: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self._reader, self._forced = reader, forced

    def read(self, turn: SampledTurn) -> Iterator[Delta]:
        """Yield the deltas since the last call."""
        new = turn.text[self.choice.text :]
        self.choice.text = len(turn.text)
        new, self._forced = self._forced + new, ""
        for delta in self._reader.feed(new):
            yield self._taken(delta)
        if turn.finish:
            for delta in self._reader.end():
                yield self._taken(delta)

    def _taken(self, delta: Delta) -> Delta:
        if isinstance(delta, TextDelta):
            self.content = (self.content or "") + delta.text
        elif isinstance(delta, ThoughtDelta):
            self.thought += delta.text
        elif isinstance(delta, CallBegins):
            self.calls.append((delta.name, ""))
            self.ids.append(f"call_{secrets.token_hex(12)}")
        else:
            name, arguments = self.calls[delta.index]
            self.calls[delta.index] = name, arguments + delta.text
        return delta

    def whole(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.content, "refusal": None}
        if self.thought:
            message["reasoning_content"] = self.thought
        if self.calls:
            message["tool_calls"] = [
                {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
                for id, (name, arguments) in zip(self.ids, self.calls, strict=True)
            ]
        elif self.content is None:
            message["content"] = ""
        return message

    def finish(self, turn: SampledTurn) -> str:
        return "tool_calls" if self.calls and turn.finish == "stop" else turn.finish


class CompletionAnswer(ApiAnswer):
    """The answer to POST /v1/completions."""

    def __init__(self, asked: CompletionRequest, served: ServedModel, prompts: list[list[int]]) -> None:
        super().__init__(asked, served, prompts, "text_completion")
        self._choices = [_Choice() for _ in range(len(prompts) * asked.n)]
        self._logprobs_asked = asked.logprobs is not None

    def whole(self, turns: Sequence[SampledTurn]) -> dict[str, Any]:
        choices = [self._choice(turn, number) for number, turn in enumerate(turns)]
        return self._object(turns, choices, usage=self._usage(turns))

    def chunks(self, turns: Sequence[SampledTurn]) -> Iterator[dict[str, Any]]:
        for number, turn in enumerate(turns):
            choice = self._choices[number]
            if not choice.over and (choice.tokens < len(turn.ids) or turn.finish):
                yield self._object(turns, [self._choice(turn, number)])
                choice.text, choice.tokens, choice.over = len(turn.text), len(turn.ids), bool(turn.finish)

    def last(self, turns: Sequence[SampledTurn]) -> Iterator[dict[str, Any]]:
        return self._usage_chunk(turns)

    def _choice(self, turn: SampledTurn, number: int) -> dict[str, Any]:
        """Return the choice with the text and tokens since the last chunk."""
        had = self._choices[number]
        fields: dict[str, Any] = {
            "index": number,
            "text": turn.text[had.text :],
            "logprobs": self._logprobs(turn, had.tokens),
            "finish_reason": turn.finish or None,
            **self._exact(turn, had.tokens),
        }
        if self._asked.return_token_ids and not had.tokens:
            fields["prompt_token_ids"] = turn.prompt
        return fields

    def _logprobs(self, turn: SampledTurn, since: int) -> dict[str, Any] | None:
        if not self._logprobs_asked:
            return None
        tokens = [self._token(id) for id in turn.ids[since:]]
        start = len(self._chat.tokenizer.decode(turn.ids[:since], skip_special_tokens=False))
        offsets = list(itertools.accumulate(map(len, tokens[:-1]), initial=start)) if tokens else []
        return {
            "tokens": tokens,
            "token_logprobs": turn.logprobs[since:],
            "top_logprobs": [self._by_text(top) for top in turn.likeliest(since)] if self._asked.logprobs else None,
            "text_offset": offsets,
        }

    def _by_text(self, top: Sequence[tuple[int, float]]) -> dict[str, float]:
        """Map texts to logprobs. Tokens that are pieces of characters share a text; the likeliest of them is kept."""
        found: dict[str, float] = {}
        for id, logprob in top:
            found.setdefault(self._token(id), logprob)
        return found


def _delta(delta: Delta, ids: Sequence[str]) -> dict[str, Any]:
    if isinstance(delta, TextDelta):
        return {"content": delta.text}
    if isinstance(delta, ThoughtDelta):
        return {"reasoning_content": delta.text}
    call: dict[str, Any] = {"index": delta.index}
    if isinstance(delta, CallBegins):
        call |= {"id": ids[delta.index], "type": "function", "function": {"name": delta.name, "arguments": ""}}
    else:
        assert isinstance(delta, ArgumentsDelta)
        call["function"] = {"arguments": delta.text}
    return {"tool_calls": [call]}


def _bytes(text: str) -> list[int] | None:
    """Return a text's bytes; None for a piece of a character, whose bytes the text does not tell."""
    return None if "\ufffd" in text else list(text.encode())
