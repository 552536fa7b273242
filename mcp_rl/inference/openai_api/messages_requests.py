"""Read requests of Anthropic's Messages as requests of a chat: the same conversation, in another form.

Arguments of calls are objects there, and text in a chat. A turn that comes back is found by what its arguments are, not
by how they are written, so it continues token-exactly. Thoughts are left out: a turn that was sampled here has its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from mcp_rl.inference.chat.conversation import Text
from mcp_rl.inference.openai_api.refusals import Refusal
from mcp_rl.inference.openai_api.requests import (
    BLOCKS,
    NEUTRAL,
    AssistantMessage,
    CalledFunction,
    ChatRequest,
    HistoryPart,
    InputMessage,
    Message,
    MessageToolCall,
    NamedTool,
    OtherPart,
    RequestBody,
    Stop,
    Temperature,
    Thought,
    ToolResultMessage,
    function_tool,
    kind_among,
    named_tool,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

UNREADABLE = "INVALID_JSON"
"""The one key of the input of a call whose arguments are not a JSON object; Anthropic's own convention."""


class TextBlock(HistoryPart):
    """A piece of text."""

    text: str


class ToolUseBlock(HistoryPart):
    """A call that the model made."""

    id: str = Field(min_length=1)
    name: str
    input: dict[str, Any]


class ToolResultBlock(HistoryPart):
    """The result of a call."""

    tool_use_id: str
    content: Text = ""


Block = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")]
    | Annotated[Thought, Tag("thinking")]
    | Annotated[Thought, Tag("redacted_thinking")]
    | Annotated[OtherPart, Tag("other")],
    Discriminator(kind_among(BLOCKS)),
]
Blocks = Annotated[list[Block], BeforeValidator(lambda v: [{"type": "text", "text": v}] if isinstance(v, str) else v)]


class MessageOfBlocks(HistoryPart):
    """A message of the user, tools' results included, or a turn of the model."""

    role: Literal["system", "user", "assistant"]
    content: Blocks


class MessagesTool(HistoryPart):
    """A function of the client's."""

    type: Literal["custom"] = "custom"
    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: dict[str, Any]


class MessagesToolChoice(HistoryPart):
    """The calls that the turn may hold."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    def to_chat(self) -> Literal["auto", "none", "required"] | NamedTool:
        """Return the same choice of a chat. Raises Refusal."""
        if self.type != "tool":
            return "required" if self.type == "any" else self.type
        if self.name is None:
            raise Refusal("tool_choice of type tool needs a name.", param="tool_choice")
        return named_tool(self.name)


class CountRequest(RequestBody):
    """POST /v1/messages/count_tokens, and what it has in common with a request for a turn."""

    function_type: ClassVar[str] = "custom"
    without_effect: ClassVar[frozenset[str]] = frozenset(
        {"metadata", "service_tier", "cache_control", "inference_geo", "anthropic_version", "betas"}
    )
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "top_p": NEUTRAL["top_p"],
        "top_k": NEUTRAL["top_k"],
        "thinking": ({"type": "disabled"},),
        "output_config": ({},),
        "output_format": (None,),
        "context_management": ({}, {"edits": []}),
        "mcp_servers": ([],),
        "speed": ("standard",),
    }

    model: str
    messages: list[MessageOfBlocks] = Field(min_length=1)
    system: Blocks = Field(default_factory=list)
    tools: list[MessagesTool] = Field(default_factory=list)
    tool_choice: MessagesToolChoice | None = None

    def to_chat(self, note: Callable[[str], None] | None) -> ChatRequest:
        """Return the same request of a chat. Raises Refusal for blocks that are nothing here, or notes them."""
        choice = self.tool_choice
        text = "\n\n".join(_texts(self.system, "system", note))
        system = [InputMessage(role="system", content=text)] if text else []
        turns = [one for at, message in enumerate(self.messages) for one in _messages(message, at, note)]
        return ChatRequest(
            model=self.model,
            tools=[function_tool(tool.name, tool.description, tool.input_schema) for tool in self.tools],
            tool_choice=choice.to_chat() if choice else None,
            messages=[*system, *turns],
            parallel_tool_calls=not (choice and choice.disable_parallel_tool_use),
        )


class MessagesRequest(CountRequest):
    """POST /v1/messages."""

    max_tokens: int = Field(ge=1)
    temperature: Temperature = 1.0
    stop_sequences: Stop = Field(default_factory=list)
    stream: bool = False

    def to_chat(self, note: Callable[[str], None] | None) -> ChatRequest:
        chat = super().to_chat(note)
        chat.max_tokens, chat.temperature, chat.stream = self.max_tokens, self.temperature, self.stream
        chat.stop = self.stop_sequences
        return chat


def _messages(message: MessageOfBlocks, at: int, note: Callable[[str], None] | None) -> list[Message]:
    """Return the messages of a chat that one message stands for: a user's may hold results of calls too."""
    where = f"messages.{at}"
    results: list[Message] = []
    calls: list[MessageToolCall] = []
    for block in message.content:
        if isinstance(block, ToolUseBlock) and message.role == "assistant":
            calls.append(MessageToolCall(id=block.id, function=_called(block)))
        elif isinstance(block, ToolResultBlock) and message.role == "user":
            results.append(ToolResultMessage(role="tool", content=block.content, tool_call_id=block.tool_use_id))
        elif isinstance(block, ToolUseBlock | ToolResultBlock):
            kind = "tool_use" if isinstance(block, ToolUseBlock) else "tool_result"
            raise Refusal(f"{where}: a block of type {kind} cannot be the {message.role}'s.", param="messages")
    texts = _texts(message.content, where, note)
    if message.role == "assistant":
        return [AssistantMessage(role="assistant", content="".join(texts) or None, tool_calls=calls)]
    if texts or not results:
        results.append(InputMessage(role=message.role, content="".join(texts)))
    return results


def _texts(blocks: Sequence[Block], where: str, note: Callable[[str], None] | None) -> list[str]:
    for block in blocks:
        if isinstance(block, Thought):
            if note is not None:
                note("thinking blocks")
        elif isinstance(block, OtherPart):
            known = ", ".join(sorted(BLOCKS))
            raise Refusal(
                f"{where}: blocks of type {block.type[:100]!r} cannot be read, only {known}.", param=where.split(".")[0]
            )
    return [block.text for block in blocks if isinstance(block, TextBlock)]


def _called(block: ToolUseBlock) -> CalledFunction:
    unreadable = block.input.get(UNREADABLE) if set(block.input) == {UNREADABLE} else None
    written = unreadable if isinstance(unreadable, str) else json.dumps(block.input, ensure_ascii=False)
    return CalledFunction(name=block.name, arguments=written)
