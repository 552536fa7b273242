"""Decode sampled tokens to text with the tokenizer beside the model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_rl.config import TINY
from mcp_rl.tiny import weights_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcp_rl.trajectory import Segment, Trajectory

Turn = list[tuple[int, float]]
"""The tokens that the policy sampled in a turn, each with its logprob."""


class Spelling:
    """A tokenizer that decodes one token at a time, so that the pieces of a turn make up its text."""

    def __init__(self, file: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(file))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return one text per token; a character made of several tokens belongs to the last of them."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(self._tokenizer, id) or "" for id in ids]


def find_spelling(base_model: str | None, checkpoints: Sequence[Path] = ()) -> Spelling | None:
    """Find the tokenizer of the first checkpoint that has one, else the base model's; None if there is none here.

    Nothing is downloaded: a model of the hub has its tokenizer in the hub's cache, or in a checkpoint.
    """
    for file in _candidates(base_model, checkpoints):
        if file.is_file():
            try:
                return Spelling(file)
            except Exception:  # the tokenizers library raises a plain Exception for an unreadable file
                continue
    return None


def _candidates(base_model: str | None, checkpoints: Sequence[Path]) -> Iterator[Path]:
    for folder in checkpoints:
        yield folder / "tokenizer.json"
    if base_model == TINY:
        yield weights_path() / "tokenizer.json"
    elif base_model:
        yield Path(base_model) / "tokenizer.json"
        if isinstance(cached := _cached(base_model), str):
            yield Path(cached)


def _cached(base_model: str) -> object:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return try_to_load_from_cache(base_model, "tokenizer.json")
    except HFValidationError:  # a folder, not a name on the hub
        return None


def sampled_turns(trajectory: Trajectory) -> list[Turn]:
    """Return the runs of sampled tokens, in order: one for each turn of the policy."""
    return [turn for segment in trajectory.segments for turn in _turns(segment)]


def _turns(segment: Segment) -> Iterator[Turn]:
    turn: Turn = []
    for id, sampled, logprob in zip(segment.tokens, segment.sampled, segment.logprobs, strict=True):
        if sampled:
            turn.append((id, logprob))
        elif turn:
            yield turn
            turn = []
    if turn:
        yield turn


def texts(spelling: Spelling | None, turn: Turn) -> list[str]:
    """Return the text of each token, or its number if there is no tokenizer."""
    ids = [id for id, _ in turn]
    if spelling is None:
        return [f"⟨{id}⟩" for id in ids]
    return [sys.intern(piece) for piece in spelling.pieces(ids)]
