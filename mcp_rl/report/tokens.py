"""Sampled tokens as text, by the tokenizer that lies beside the model."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from mcp_rl.config import TINY
from mcp_rl.trajectory import Segment, Trajectory

Turn = list[tuple[int, float]]
"""The tokens that the policy sampled in one turn, each with its logprob."""


class Spelling:
    """A tokenizer that spells one token at a time, so that the pieces of a turn make up its text."""

    def __init__(self, file: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(file))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """One text per token; a character that several tokens make up stands with the last of them."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(self._tokenizer, id) or "" for id in ids]


def find_spelling(base_model: str | None, checkpoints: Sequence[Path] = ()) -> Spelling | None:
    """The tokenizer of the first of these folders that has one, else the base model's; None where none is here.

    Nothing is downloaded: a model of the hub has its tokenizer in the hub's cache, or in a checkpoint.
    """
    for file in _candidates(base_model, checkpoints):
        if file.is_file():
            try:
                return Spelling(file)
            except Exception:  # the tokenizers library raises plain Exception for a file that it cannot read
                continue
    return None


def _candidates(base_model: str | None, checkpoints: Sequence[Path]) -> Iterator[Path]:
    for folder in checkpoints:
        yield folder / "tokenizer.json"
    if base_model == TINY:
        yield Path(__file__).parents[1] / "tiny" / "weights" / "tokenizer.json"
    elif base_model:
        yield Path(base_model) / "tokenizer.json"
        if isinstance(cached := _cached(base_model), str):
            yield Path(cached)


def _cached(base_model: str) -> object:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return try_to_load_from_cache(base_model, "tokenizer.json")
    except HFValidationError:  # a folder, not a name of the hub
        return None


def sampled_turns(trajectory: Trajectory) -> list[Turn]:
    """The runs of tokens that the policy sampled, in order: one for each of its turns."""
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
    """What the page shows for each token: its text, or its number where nothing spells it."""
    ids = [id for id, _ in turn]
    if spelling is None:
        return [f"⟨{id}⟩" for id in ids]
    return [sys.intern(piece) for piece in spelling.pieces(ids)]
