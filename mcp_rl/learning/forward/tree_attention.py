"""Make a model attend over prefix trees, after checking that its logits are those of each sequence alone."""

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionMaskInterface, PreTrainedModel

from mcp_rl.errors import ConfigError
from mcp_rl.learning.forward.attention import NAME, PROBE, STOCK, hidden_states, rounding
from mcp_rl.learning.forward.output_layer import logits_of
from mcp_rl.learning.forward.tree import build_tree
from mcp_rl.learning.forward.tree_mask import TreeMask

_ATTENTION = {"full_attention", "sliding_attention", "global"}
_asked: ContextVar[list[int] | None] = ContextVar("_asked", default=None)


@dataclass(frozen=True)
class _Listening(TreeMask):
    """A mask that records the windows that layers pass to their attention."""

    windows: list[int | None] = field(default_factory=list)

    def window(self, size: int | None) -> int | None:
        self.windows.append(size)
        return super().window(size)


def _note_window(*args: Any, local_size: int | None = None, **kwargs: Any) -> None:
    """Instead of making a mask, which a tree does not need, record the window or chunk that the model asks for."""
    asked = _asked.get()
    if asked is not None and local_size:
        asked.append(local_size)


AttentionMaskInterface.register(PROBE, _note_window)


def use_tree_attention(model: PreTrainedModel) -> None:
    """Make a model attend over trees; from then on its forward works only inside `attending`. A model with its own
    attention is checked and left unchanged.

    Raises ConfigError, in one sentence, for a model that would not compute exactly what it computes without a tree:
    with recurrent layers, or with windows or positions that do not reach its attention.
    """
    name, config = type(model).__name__, model.config.get_text_config()
    if config._attn_implementation == NAME:
        return
    layers = {*(getattr(config, "layer_types", None) or ()), *(getattr(config, "attention_layers", None) or ())}
    if other := sorted(layers - _ATTENTION):
        raise ConfigError(
            f"{name} cannot be trained here: in its layers of type {', '.join(other)} a token depends on others "
            "in ways that a shared prefix does not keep."
        )
    stock = config._attn_implementation
    tokens = check_tokens(model)
    sequences = [tokens[:12], tokens[:6] + tokens[12:18], tokens[:9] + tokens[18:24]]  # a tree that branches twice
    alone = logits_alone(model, sequences)
    exchangeable = model._can_set_attn_implementation()
    if exchangeable:
        model.set_attn_implementation(PROBE)
    reason = _reason_against(model, sequences, alone)
    if exchangeable:
        model.set_attn_implementation(stock if reason else NAME)
    if reason:
        raise ConfigError(f"{name} cannot be trained here: {reason}.")
    if exchangeable:
        object.__setattr__(model, STOCK, stock)


def _reason_against(model: PreTrainedModel, sequences: list[list[int]], alone: Tensor) -> str:
    """Return why the model cannot be used; an empty string if it can."""
    token = _asked.set([])
    try:
        together, windows = _together(model, sequences)
        ignored = set(_asked.get() or ()) - set(windows)
    except Exception as error:
        return f"with shared prefixes it fails ({f'{type(error).__name__}: {error}'.splitlines()[0][:200]})"
    finally:
        _asked.reset(token)
    if ignored:
        return f"its layers do not tell their attention that it ends after {min(ignored)} tokens"
    difference = float((together - alone).abs().mean() / alone.std())
    if not difference <= rounding(model):
        return f"with shared prefixes it computes other logits than without, by {difference:.2g} of their deviation"
    return ""


def check_tokens(model: PreTrainedModel) -> list[int]:
    """Return 24 tokens, spread over the vocabulary, to check a model with."""
    vocabulary = model.config.get_text_config().vocab_size
    return [(7919 * i + 11) % vocabulary for i in range(24)]


@torch.no_grad()
def logits_alone(model: PreTrainedModel, sequences: list[list[int]]) -> Tensor:
    """Return the logits [all tokens, V] of each sequence alone, one after another."""
    logits = [model(torch.tensor([s], device=model.device), use_cache=False).logits[0] for s in sequences]
    return torch.cat(logits).float()


@torch.no_grad()
def _together(model: PreTrainedModel, sequences: list[list[int]]) -> tuple[Tensor, list[int | None]]:
    """Return the logits of all sequences computed as a tree, and the windows of the layers."""
    tree, device = build_tree(sequences, 1), model.device
    plain = TreeMask.of(tree).to(device)
    mask = _Listening(tree, plain.enter, plain.leave, plain.positions)
    tokens, positions = (torch.from_numpy(part)[None].to(device) for part in (tree.tokens, tree.positions))
    hidden = hidden_states(model, tokens, positions, mask)
    paths = torch.cat([torch.from_numpy(tree.sequence(i)) for i in range(len(sequences))]).to(device)
    return logits_of(model, hidden[paths]).float(), mask.windows


def check_length(model: PreTrainedModel, longest: int) -> None:
    """Raise ConfigError if sequences of this length turn positions by other frequencies than shorter ones (rotary
    embeddings of type `longrope` and `dynamic`), so that the two cannot share keys."""
    config = model.config.get_text_config()
    rotary = getattr(config, "rope_parameters", None) or {}
    for kind in [rotary] if "rope_type" in rotary else rotary.values():
        limit = {
            "longrope": kind.get("original_max_position_embeddings"),
            "dynamic": config.max_position_embeddings,
        }.get(str(kind.get("rope_type")))
        if limit is not None and longest > limit:
            raise ConfigError(
                f"Episodes of {longest} tokens cannot be trained on together: beyond {limit} tokens "
                f"{type(model).__name__} turns positions by other frequencies; keep episodes shorter."
            )
