"""Settings of the chat format: the format of tool calls, and arguments of the chat template."""

from typing import Literal

from pydantic import Field, JsonValue, field_validator

from mcp_rl.config.section import Section

_OWN = ("messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now")


class ChatConfig(Section):
    """The chat format: the format of tool calls, and arguments of the chat template."""

    format: Literal["auto", "hermes"] = "auto"
    """Format of tool calls: the template's own, detected by rendering calls; `hermes` describes the tools in the system
    prompt, for models whose template has no tools."""
    template_arguments: dict[str, JsonValue] = Field(default={})
    """Arguments of the chat template, such as `enable_thinking` or `reasoning_effort`: none, as the model's maker
    intended."""

    @field_validator("template_arguments")
    @classmethod
    def _not_ours(cls, given: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for name in given:
            if name in _OWN or not name.isidentifier():
                raise ValueError(f"a chat template is given {name!r} by every rollout: leave it out")
        return given
