"""Read requests strictly: a field that would change what is sampled is honoured or refused, never ignored.

A training run takes an agent program as it is: there such a field is overridden, and noted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from mcp_rl.inference.chat.conversation import Text
from mcp_rl.inference.openai_api.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

WITHOUT_EFFECT = {
    *("user", "metadata", "store", "service_tier", "safety_identifier"),
    *("prompt_cache_key", "prompt_cache_retention", "priority", "request_id"),
}
"""Fields that say nothing about what is sampled."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "typical_p": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "best_of": (1,),
    "suffix": ("",),
    "echo": (False,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "include_stop_str_in_output": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template_kwargs": ({},),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "response_format": ({"type": "text"},),
}
"""Values at which these fields change nothing. Any other would sample from another distribution than the policy's."""

_THE_RUNS = ("temperature", "seed")
"""Fields that a training run decides."""
MOST_LOGPROBS = 20
"""Most tokens whose logprobs are returned for each sampled one."""
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Stop = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=1000)]],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    Field(max_length=16),
]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class RequestBody(_Part):
    """Base of whole requests."""

    without_effect: ClassVar[frozenset[str]] = frozenset(WITHOUT_EFFECT)
    """Fields that say nothing about what is sampled."""
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL
    """Values at which other fields change nothing."""
    function_type: ClassVar[str] = "function"
    """The `type` of a tool that is a function of the client's; those of the provider's own tools differ."""


_Fields = TypeVar("_Fields", bound=RequestBody)


class HistoryPart(BaseModel):
    """Base of messages, which may carry whatever else a client keeps on them."""

    model_config = ConfigDict(extra="ignore", strict=True)


class Thought(HistoryPart):
    """A thought of the model, which is not shown to it again other than as it was sampled."""


class OtherPart(HistoryPart):
    """A part of a history that is nothing here, such as an image or a provider's web search."""

    type: str


class InputMessage(HistoryPart):
    """A message to the model from the system, the developer or the user."""

    role: Literal["system", "developer", "user"]
    content: Text


class CalledFunction(HistoryPart):
    name: str
    arguments: str


class MessageToolCall(HistoryPart):
    id: str = Field(min_length=1)
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(HistoryPart):
    """A turn of the model."""

    role: Literal["assistant"]
    content: Text | None = None
    tool_calls: list[MessageToolCall] = []


class ToolResultMessage(HistoryPart):
    """A tool's result."""

    role: Literal["tool"]
    content: Text
    tool_call_id: str


Message = Annotated[InputMessage | AssistantMessage | ToolResultMessage, Field(discriminator="role")]


class _ToolFunction(HistoryPart):
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Accepted without effect: nothing holds arguments to their schema while they are sampled."""


class _Tool(_Part):
    type: Literal["function"]
    function: _ToolFunction


class _ChosenFunction(_Part):
    name: str


class NamedTool(_Part):
    type: Literal["function"] = "function"
    function: _ChosenFunction


def function_tool(name: str, description: str | None, parameters: dict[str, Any] | None) -> _Tool:
    """Return a function as a tool of a chat."""
    return _Tool(type="function", function=_ToolFunction(name=name, description=description, parameters=parameters))


def named_tool(name: str) -> NamedTool:
    """Return the choice of a function that must be called."""
    return NamedTool(function=_ChosenFunction(name=name))


class _StreamOptions(_Part):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


def _sampled_or_greedy(temperature: float) -> float:
    if 0 < temperature < 0.01:
        raise ValueError("give 0 for greedy, or 0.01 or more: engines differ on values between")
    return temperature


Temperature = Annotated[float, AfterValidator(_sampled_or_greedy), Field(ge=0, le=2, allow_inf_nan=False)]


class _Asked(RequestBody):
    model: str
    stream: bool = False
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: Temperature = 1.0
    seed: Seed | None = None
    stop: Stop = []
    n: int = Field(default=1, ge=1, le=128)
    return_token_ids: bool = False


class _WithTools(_Part):
    tools: list[_Tool] = []

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools as a chat template takes them: the fields that the client wrote, without nulls."""
        return [{"type": "function", "function": _written(tool.function)} for tool in self.tools]


def _written(function: _ToolFunction) -> dict[str, Any]:
    fields = {"name": function.name, "description": function.description, "parameters": function.parameters}
    return {name: value for name, value in fields.items() if value is not None}


class ChatRequest(_Asked, _WithTools):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = True
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MOST_LOGPROBS)

    @property
    def limit(self) -> int | None:
        """Most tokens to sample."""
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(_Asked):
    """POST /v1/completions."""

    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: int | None = Field(default=16, ge=1)
    logprobs: int | None = Field(default=None, ge=0, le=MOST_LOGPROBS)
    add_special_tokens: Literal[False] = False

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str) or not self.prompt or isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]
        return list(self.prompt)


class TokenizeRequest(RequestBody, _WithTools):
    """POST /tokenize: a text, or messages as they would be rendered for the model."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)


def read(kind: type[_Fields], body: bytes, note: Callable[[str], None] | None = None) -> _Fields:
    """Read the fields of a request. Raises Refusal, which names the field.

    With `note`, what is unknown or would sample from another distribution is left out, and its name is passed to
    `note`.
    """
    kept: dict[str, Any] = {}
    for name, value in _object(body).items():
        if value is None or name in kind.without_effect:
            continue
        if note is not None and (name in _THE_RUNS or name not in {*kind.model_fields, *kind.neutral}):
            note(name)
        elif name not in kind.neutral:
            kept[name] = value
        elif not _is_neutral(kind, name, value):
            if note is None:
                raise _unsupported(kind, name)
            note(name)
    if isinstance(messages := kept.get("messages"), list):
        kept["messages"] = [_without_nulls(message) for message in messages]
    if isinstance(tools := kept.get("tools"), list):
        kept["tools"] = [tool for tool in tools if _is_function(kind, tool, note)]
    try:
        return _validated(kind, kept, note)
    except ValidationError as error:
        raise _refused(error, kept) from error


def _validated(kind: type[_Fields], fields: dict[str, Any], note: Callable[[str], None] | None) -> _Fields:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        unknown = [problem["loc"] for problem in error.errors() if problem["type"] == "extra_forbidden"]
        if note is None or not unknown:
            raise
        for place in unknown:
            _remove(fields, place)
            note(".".join(part for part in place if isinstance(part, str) and _is_key(part)))
        return kind.model_validate(fields)


def _remove(fields: Any, place: Sequence[int | str]) -> None:
    """Remove a field within others; its place may name kinds of values too."""
    *path, last = place
    for part in path:
        if isinstance(fields, dict):
            fields = fields.get(part, fields)
        elif isinstance(fields, list) and isinstance(part, int):
            fields = fields[part]
    if isinstance(fields, dict):
        fields.pop(last, None)


def _is_function(kind: type[RequestBody], tool: Any, note: Callable[[str], None] | None) -> bool:
    """Return whether a tool is to be kept: where things are noted, those of the provider, such as web search, go."""
    if note is None or not isinstance(tool, dict) or tool.get("type", kind.function_type) == kind.function_type:
        return True
    note("tools of other kinds than functions")
    return False


def _is_neutral(kind: type[RequestBody], name: str, value: Any) -> bool:
    allowed = kind.neutral[name]
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed)


def _unsupported(kind: type[RequestBody], name: str) -> Refusal:
    allowed = " or ".join(json.dumps(value) for value in kind.neutral[name])
    return Refusal(
        f"{name} is not supported: tokens are drawn from the policy's own distribution, as they were in training; "
        f"leave it out, or set it to {allowed}.",
        param=name,
        code="unsupported_parameter",
    )


def _without_nulls(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    kept = {key: value for key, value in message.items() if value is not None}
    if "function_call" in kept:
        raise Refusal("function_call in messages belongs to an older protocol; use tool_calls.", param="messages")
    return kept


def _refused(error: ValidationError, fields: Mapping[str, Any]) -> Refusal:
    """Report the first problem; where a value could be of several kinds, the most deeply nested one."""
    first = max(error.errors(), key=lambda problem: len(problem["loc"]))
    where = [str(part) for part in first["loc"] if _is_key(part)]
    name = ".".join(where)
    param = where[0] if where else None
    if first["type"] == "extra_forbidden":
        said = "there is no such field here"
    else:
        said = first["msg"].removeprefix("Value error, ").rstrip(".")
        said = said[:1].lower() + said[1:]
    code = "unsupported_parameter" if first["type"] == "extra_forbidden" else "invalid_value"
    return Refusal(f"{name}: {said}." if name else f"{said}.", param=param, code=code)


ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning"})
"""Kinds of items in Responses that are read here."""
BLOCKS = frozenset({"text", "tool_use", "tool_result", "thinking", "redacted_thinking"})
"""Kinds of blocks in Anthropic's Messages that are read here."""
_KINDS = {
    *("system", "developer", "user", "assistant", "tool", "NamedTool", "ResponseToolChoice", "other"),
    *ITEMS,
    *BLOCKS,
}


def kind_among(known: Collection[str], default: str | None = None) -> Callable[[Any], str]:
    """Return a function that returns the `type` of an item or a block, or "other" if it is not a known one."""

    def kind_of(part: Any) -> str:
        kind = part.get("type", default) if isinstance(part, dict) else default
        return kind if isinstance(kind, str) and kind in known else "other"

    return kind_of


def _is_key(part: int | str) -> bool:
    """Return whether a part of a location is a place in the request, and not the name of a kind of value."""
    return isinstance(part, int) or (part not in _KINDS and part.isidentifier())


def _object(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"The body is not valid JSON: {error}.") from error
    if not isinstance(fields, dict):
        raise Refusal("The body is not a JSON object.")
    return fields


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
