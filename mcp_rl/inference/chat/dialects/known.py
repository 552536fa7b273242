"""All known formats of tool calls, in the order in which they are tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.inference.chat.dialects.bare import LLAMA, MISTRAL, PHI
from mcp_rl.inference.chat.dialects.hermes import HERMES
from mcp_rl.inference.chat.dialects.special import DEEPSEEK, GEMMA, HARMONY, LFM
from mcp_rl.inference.chat.dialects.tagged import GLM, XML

if TYPE_CHECKING:
    from mcp_rl.inference.chat.dialects.dialect import Dialect

DIALECTS: tuple[Dialect, ...] = (HERMES, XML, GLM, HARMONY, GEMMA, DEEPSEEK, LFM, MISTRAL, PHI, LLAMA)
