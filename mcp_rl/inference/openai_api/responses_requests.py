"""Read requests of OpenAI's Responses as requests of a chat: the same conversation, in another form.

The items of one turn, its text and its calls, become one message of the assistant again, so that a turn which comes
back continues token-exactly. Items of reasoning are left out: a turn that was sampled here has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from mcp_rl.inference.openai_api.refusals import Refusal
from mcp_rl.inference.openai_api.requests import (
    ITEMS,
    NEUTRAL,
    WITHOUT_EFFECT,
    AssistantMessage,
    CalledFunction,
    ChatRequest,
    HistoryPart,
    InputMessage,
    Message,
    MessageToolCall,
    OtherPart,
    RequestBody,
    Temperature,
    Thought,
    ToolResultMessage,
    function_tool,
    kind_among,
    named_tool,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _joined(content: Any) -> Any:
    """Join content in parts, if all of them are text."""
    if not isinstance(content, list):
        return content
    texts = [_text_of(part) for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("only parts of text can be read")
    return "".join(texts)


def _text_of(part: Any) -> Any:
    if not isinstance(part, dict) or part.get("type") not in ("input_text", "output_text", "text", "refusal"):
        return None
    return part.get("refusal" if part["type"] == "refusal" else "text")


_Text = Annotated[str, BeforeValidator(_joined)]


class MessageItem(HistoryPart):
    """A message of anyone but a tool."""

    role: Literal["system", "developer", "user", "assistant"]
    content: _Text


class FunctionCallItem(HistoryPart):
    """A call that the model made."""

    call_id: str = Field(min_length=1)
    name: str
    arguments: str


class FunctionCallOutputItem(HistoryPart):
    """The result of a call."""

    call_id: str
    output: _Text


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")]
    | Annotated[Thought, Tag("reasoning")]
    | Annotated[OtherPart, Tag("other")],
    Discriminator(kind_among(ITEMS, "message")),
]


class ResponseTool(HistoryPart):
    """A function of the client's."""

    type: Literal["function"]
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Accepted without effect: nothing holds arguments to their schema while they are sampled."""


class ResponseToolChoice(HistoryPart):
    """The one function to be called."""

    type: Literal["function"]
    name: str


class ResponseRequest(RequestBody):
    """POST /v1/responses."""

    without_effect: ClassVar[frozenset[str]] = frozenset(
        {*WITHOUT_EFFECT - {"store", "metadata"}, "max_tool_calls", "stream_options", "prompt_cache_options"}
    )
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "top_p": NEUTRAL["top_p"],
        "top_logprobs": (0,),
        "include": ([], ["reasoning.encrypted_content"]),
        "truncation": ("disabled",),
        "background": (False,),
        "reasoning": ({}, {"effort": "none"}),
        "text": ({}, {"format": {"type": "text"}}, {"verbosity": "medium"}),
    }

    model: str
    input: Annotated[
        list[Item], BeforeValidator(lambda v: [{"role": "user", "content": v}] if isinstance(v, str) else v)
    ] = Field(min_length=1)
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    stream: bool = False
    tools: list[ResponseTool] = Field(default_factory=list)
    tool_choice: Literal["auto", "none", "required"] | ResponseToolChoice | None = None
    parallel_tool_calls: bool = True
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: Temperature = 1.0
    metadata: dict[str, str] = Field(default_factory=dict)

    def to_chat(self, before: Sequence[Message], note: Callable[[str], None] | None) -> ChatRequest:
        """Return the same request of a chat, which continues the messages of the response before it. Raises Refusal for
        items that are nothing here, or notes them."""
        system = [InputMessage(role="system", content=self.instructions)] if self.instructions else []
        choice = self.tool_choice
        return ChatRequest(
            model=self.model,
            tools=[function_tool(tool.name, tool.description, tool.parameters) for tool in self.tools],
            tool_choice=named_tool(choice.name) if isinstance(choice, ResponseToolChoice) else choice,
            messages=[*system, *before, *messages_of(self.input, note)],
            parallel_tool_calls=self.parallel_tool_calls,
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            stream=self.stream,
        )


def messages_of(items: Sequence[Item], note: Callable[[str], None] | None) -> list[Message]:
    """Return the messages of a chat that items stand for."""
    messages: list[Message] = []
    said: AssistantMessage | None = None
    """The turn to which the next item of the model belongs."""
    for at, item in enumerate(items):
        if isinstance(item, Thought | OtherPart):
            _leave_out(item, at, note)
            continue
        text = item.content if isinstance(item, MessageItem) and item.role == "assistant" else None
        if text is not None or isinstance(item, FunctionCallItem):
            if said is None or (text is not None and said.content is not None):
                messages.append(said := AssistantMessage(role="assistant"))
            if isinstance(item, FunctionCallItem):
                called = CalledFunction(name=item.name, arguments=item.arguments)
                said.tool_calls.append(MessageToolCall(id=item.call_id, function=called))
            else:
                said.content = text
            continue
        said = None
        if isinstance(item, FunctionCallOutputItem):
            messages.append(ToolResultMessage(role="tool", content=item.output, tool_call_id=item.call_id))
        elif isinstance(item, MessageItem) and item.role != "assistant":
            messages.append(InputMessage(role=item.role, content=item.content))
    return messages


def _leave_out(item: Thought | OtherPart, at: int, note: Callable[[str], None] | None) -> None:
    if isinstance(item, Thought):
        if note is not None:
            note("reasoning items")
    elif note is None or item.type == "item_reference":
        known = ", ".join(sorted(ITEMS))
        raise Refusal(f"input.{at}: items of type {item.type[:100]!r} are not known here, only {known}.", param="input")
    else:
        note(f"items of type {item.type[:100]}")
