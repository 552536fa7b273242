"""The settings that all checks of a run share, and the registry of checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import Qwen2Config

ROOT = Path(__file__).parents[2]
Figures = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """The sizes of a Qwen2 model."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    positions: int = 32768

    def config(self) -> Qwen2Config:
        from transformers import Qwen2Config

        return Qwen2Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=self.positions,
            tie_word_embeddings=True,
        )

    @property
    def layer_weights(self) -> int:
        """Number of weights of all linear layers without the output layer."""
        size = self.hidden // self.heads
        attention = self.hidden * size * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)


QWEN_HALF = Shape(896, 4864, 24, 14, 2, 151_936)
QWEN_3B = Shape(2048, 11_008, 36, 16, 2, 151_936)
SMALL = Shape(128, 192, 2, 4, 2, 512)


@dataclass(frozen=True)
class Setting:
    """The settings that all checks of a run share."""

    dry_run: bool
    half: Shape
    three: Shape
    contexts: tuple[int, int, int]
    """Tokens of a sequence."""
    prompt: int
    """Shared tokens of a group, in the check that judges sharing."""
    answer: int
    """Own tokens of a group's members."""
    episodes: int
    """Episodes that the engine samples at once."""
    sampled: int
    """Sampled tokens of each episode."""
    swaps: int
    """Swaps of adapters while vLLM samples."""
    cycles: int
    """Steps of learner and vLLM together, after a warm-up."""

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.dry_run else "cuda")


REAL = Setting(False, QWEN_HALF, QWEN_3B, (2048, 8192, 16_384), 4096, 512, 64, 256, 50, 3)
DRY = Setting(True, SMALL, SMALL, (48, 96, 160), 64, 12, 6, 8, 5, 1)


class Failed(Exception):
    """A measurement is not as it should be. The second argument is the figures."""


class Skipped(Exception):
    """The check has no meaning on this machine."""


Check = Callable[[Setting], Figures]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    """Register a check under its name."""
    CHECKS[function.__name__] = function
    return function
