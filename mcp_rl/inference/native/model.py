"""The weights of a model in the form that the native forward pass reads."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mcp_rl.inference.cache import round_up
from mcp_rl.inference.native.compiling import NONE, OUTPUTS, Cache, Rotations, TokenArrays, Weights
from mcp_rl.inference.native.decoding import TurnArrays, decode
from mcp_rl.inference.native.forward import embedded, into, logits_of, out_of, out_of_bounds, room_for
from mcp_rl.inference.native.guesses import CONTEXT
from mcp_rl.inference.native.together import together
from mcp_rl.inference.native.vectors import BLOCK, PANEL, WIDE
from mcp_rl.system.threads import update_threads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from mcp_rl.inference.cache import KvStore, Trunk
    from mcp_rl.inference.native.forward import Room
    from mcp_rl.inference.native.guesses import Followers

WORK = 1 << 23
"""Products of two numbers that are worth a thread: a sixth of a millisecond to half of one."""
POSITIONS = 1024
"""Positions by which the table of rotations grows."""


class FlatWeights:
    """Weights one behind the other, in the form that the compiled functions read."""

    def __init__(self) -> None:
        self.parts: list[Tensor] = []
        self.length = 0

    def add(self, tensor: Tensor) -> int:
        begin = self.length
        self.parts.append(tensor.detach().reshape(-1))
        self.length += tensor.numel()
        return begin

    def panels(self, weight: Tensor) -> int:
        """Add a weight [outputs, inputs] as [outputs / PANEL, inputs, PANEL], with outputs of 0 up to a whole panel."""
        return self.add(in_panels(weight.detach(), PANEL))

    def product(self, layers: Sequence[Any], *, unit: int = PANEL, inputs: int = 0, fill: float = 0.0) -> list[int]:
        """Add linear layers of one input as one product; return its columns.

        unit: the outputs of each layer are rounded up to a multiple of it. inputs: how many the product gets; the last
        ones are 0. fill: the bias of outputs that no layer has.
        """
        missing = max(inputs - layers[0].in_features, 0)
        weight = torch.cat([padded(F.pad(layer.weight.detach(), (0, missing)), unit) for layer in layers])
        biases = []
        for layer in layers:
            bias = layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias.detach()
            biases.append(padded(bias, unit, fill))
        bias = padded(torch.cat(biases), PANEL, fill)
        place, place_of_bias = self.panels(weight), self.add(bias)
        deltas = [getattr(layer, "delta", None) for layer in layers]
        low_a = low_b = NONE
        rank = sum(len(delta.a) for delta in deltas if delta is not None)
        if rank:
            low_a = self.panels(torch.cat([F.pad(delta.a, (0, missing)) for delta in deltas if delta is not None]))
            b = weight.new_zeros(len(bias), round_up(rank, PANEL))
            row = column = 0
            for layer, delta in zip(layers, deltas, strict=True):
                if delta is not None:
                    b[row : row + layer.out_features, column : column + len(delta.a)] = delta.b * delta.scale
                    column += len(delta.a)
                row += round_up(layer.out_features, unit)
            low_b = self.panels(b)
        return [place, place_of_bias, weight.shape[1], len(bias), low_a, low_b, round_up(rank, PANEL)]

    def joined(self) -> Any:
        return np.concatenate([part.float().numpy() for part in self.parts])  # NumPy's memory has large pages


def in_panels(weight: Tensor, width: int) -> Tensor:
    """Return a weight [outputs, inputs] as [outputs / width, inputs, width], flat, with outputs of 0 up to a whole
    panel."""
    weight = padded(weight, width)
    return weight.reshape(-1, width, weight.shape[1]).transpose(1, 2).reshape(-1)


def rotations_of(model: Any, count: int) -> Rotations:
    """Return the rotations of at least so many positions, as a model of Llama's shape makes them."""
    positions = torch.arange(round_up(count, POSITIONS))[None]
    cos, sin = (part[0].detach() for part in model.model.rotary_emb(model.model.embed_tokens.weight, positions))
    half = cos.shape[1] // 2
    return Rotations(cos.contiguous().numpy(), torch.cat((-sin[:, :half], sin[:, half:]), -1).numpy())


def padded(tensor: Tensor, unit: int, fill: float = 0.0) -> Tensor:
    """Return a tensor with entries `fill` up to a multiple of `unit` in its first dimension."""
    missing = -len(tensor) % unit
    return F.pad(tensor, (*[0, 0] * (tensor.dim() - 1), 0, missing), value=fill) if missing else tensor


@dataclass(frozen=True)
class TokenPlaces:
    """The rows and trunks to which the tokens of a forward pass belong: int64 arrays with one entry for each token."""

    slots: Any
    """The row of the store."""
    starts: Any
    """The position at which the row begins."""
    trunk_of: Any
    """The index in `trunks` of the trunk that the token attends to, or `NONE`."""
    trunks: list[Trunk]

    @staticmethod
    def of(rows: Sequence[tuple[int, int, Trunk | None]]) -> TokenPlaces:
        """Return the places of one token in each row, given its slot, its start and its trunk."""
        slots, starts, trunks = zip(*rows, strict=True)
        known = {trunk: place for place, trunk in enumerate(dict.fromkeys(t for t in trunks if t is not None))}
        trunk_of = [NONE if trunk is None else known[trunk] for trunk in trunks]
        return TokenPlaces(np.array(slots), np.array(starts), np.array(trunk_of), list(known))

    def repeated(self, counts: Sequence[int]) -> TokenPlaces:
        """Return the places of so many tokens in each row."""
        slots, starts, trunk_of = (np.repeat(each, counts) for each in (self.slots, self.starts, self.trunk_of))
        return TokenPlaces(slots, starts, trunk_of, self.trunks)

    def tokens(self, ids: Sequence[int], positions: Any) -> TokenArrays:
        """Return the tokens that have these ids and absolute positions."""
        positions = np.asarray(positions)
        return TokenArrays(np.array(ids), positions, self.slots, positions - self.starts, self.trunk_of)


def _through(
    weights: Weights,
    rotations: Rotations,
    cache: Cache,
    tokens: TokenArrays,
    layer: int,
    lines: tuple[Any, Any],
    room: Room,
    span: tuple[int, int],
) -> None:
    """Take a span of tokens out of a layer and into the next one. lines: x [tokens, width] and the queries of all."""
    x, queries = lines
    out_of(weights, cache, tokens, layer, queries, np.arange(*span), x[slice(*span)], room)
    into(weights, rotations, cache, tokens, layer + 1, lines, room, span)


def _finish(
    weights: Weights,
    cache: Cache,
    tokens: TokenArrays,
    queries: Any,
    keep: Any,
    x: Any,
    room: Room,
    out: Any,
) -> None:
    """Take the tokens in the places `keep` out of the last layer, and write their logits to out [len(keep), outputs of
    the head]: only these depend on the rest of the layer. x: their lines [len(keep), width]."""
    out_of(weights, cache, tokens, len(weights.products) - 1, queries, keep, x, room)
    logits_of(weights, x, room, out)


class NativeForward:
    """Computes what a model of Llama's shape computes, within the rounding of float32, from a copy of its weights."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        self.dim: int = self._model.model.layers[0].self_attn.head_dim
        self._weights: Weights
        self._rotations = Rotations(*np.empty((2, 0, self.dim), np.float32))
        self._most = update_threads() or torch.get_num_threads()
        self.renew()

    @torch.inference_mode()
    def renew(self) -> None:
        """Read the model's parameters and low-rank updates again."""
        numbers, products, norms = FlatWeights(), [], []
        inner = self._model.model
        for layer in inner.layers:
            attention, mlp = layer.self_attn, layer.mlp
            wide = round_up(mlp.gate_proj.out_features, WIDE)
            products += [
                numbers.product([attention.q_proj, attention.k_proj, attention.v_proj], unit=1),
                numbers.product([attention.o_proj]),
                numbers.product([mlp.gate_proj, mlp.up_proj], unit=WIDE),
                numbers.product([mlp.down_proj], inputs=wide),
            ]
            of_heads = [attention.q_norm, attention.k_norm] if hasattr(attention, "q_norm") else []
            found = [numbers.add(norm.weight) for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
            found += [numbers.add(norm.weight) for norm in of_heads] or [NONE, NONE]
            norms.append(found)
        head = [numbers.add(inner.norm.weight)]
        head += numbers.product([self._model.lm_head], unit=BLOCK, fill=-torch.inf)
        attention = inner.layers[0].self_attn
        self._weights = Weights(
            numbers=numbers.joined(),
            products=np.array(products).reshape(len(norms), 4, -1),
            norms=np.array(norms),
            head=np.array(head),
            embeddings=inner.embed_tokens.weight.detach().numpy(),
            heads=attention.q_proj.out_features // self.dim,
            shared=attention.k_proj.out_features // self.dim,
            dim=self.dim,
            scaling=np.float32(attention.scaling),
            floor=np.float32(inner.norm.variance_epsilon),
        )
        self._attended = 2 * len(norms) * attention.q_proj.out_features

    def logits(self, store: KvStore, tokens: TokenArrays, trunks: Sequence[Trunk], keep: Any = None) -> Tensor:
        """Forward tokens and store their keys and values; return the logits after those in the places `keep`, or after
        all: [len(keep), vocabulary], or more columns, all -inf, than the vocabulary has ids.

        Raises IndexError for an id that the vocabulary lacks, or a place that the store lacks.
        """
        cache = self._cache(store, trunks, tokens)
        keep = np.arange(len(tokens.ids)) if keep is None else keep
        out = np.empty((len(keep), self._weights.head[1 + OUTPUTS]), np.float32)
        fixed = self._weights, self._rotations, cache, tokens
        x = embedded(self._weights, tokens.ids)
        queries = np.empty(len(x) * self._weights.heads * self.dim, np.float32)
        parts = [(room_for(self._weights, span[1] - span[0]), span) for span in self._spans(tokens.positions)]
        together(into, parts, *fixed, 0, (x, queries), threads=len(parts))
        for layer in range(len(self._weights.products) - 1):
            together(_through, parts, *fixed, layer, (x, queries), threads=len(parts))
        lasts = [
            (keep[first:stop], x[keep[first:stop]], room_for(self._weights, stop - first), out[first:stop])
            for first, stop in self._spans(tokens.positions[keep])
        ]
        together(_finish, lasts, self._weights, cache, tokens, queries, threads=len(lasts))
        return torch.from_numpy(out)

    def decode(
        self,
        store: KvStore,
        turns: TurnArrays,
        trunks: Sequence[Trunk],
        followers: Followers,
        stops: Any,
        *,
        passes: int,
        most: int,
    ) -> None:
        """Sample ids for each row in up to so many passes, with up to `most` guessed ids in each (`decoding`).

        stops: int64, the ids that end a turn. Raises IndexError for an id that the vocabulary lacks, or a limit beyond
        the store.
        """
        last = turns.positions + turns.limits - 1
        newest = TokenArrays(turns.ids[:, CONTEXT - 1].copy(), last, turns.slots, last - turns.starts, turns.trunk_of)
        cache = self._cache(store, trunks, newest)
        parts = [
            (TurnArrays(*(each[begin:end] for each in turns)),) for begin, end in self._spans(turns.positions, passes)
        ]
        fixed = self._weights, self._rotations, cache, followers, stops, passes, most
        together(decode, parts, *fixed, threads=len(parts))

    def _cache(self, store: KvStore, trunks: Sequence[Trunk], tokens: TokenArrays) -> Cache:
        """Return what the compiled functions know of the store, with rotations for the tokens; see that it has places
        for them."""
        vocabulary = len(self._weights.embeddings)
        if (wrong := out_of_bounds(tokens, vocabulary, store.rows, store.capacity)) != NONE:
            found = tokens.ids[wrong], tokens.slots[wrong], tokens.own[wrong]
            raise IndexError(
                "id {}, row {} and place {} are not all".format(*found)
                + f" below {vocabulary}, {store.rows} and {store.capacity}"
            )
        if (reach := int(tokens.positions.max()) + 1) > len(self._rotations.cos):
            self._rotations = rotations_of(self._model, reach)
        known = [(trunk.store.data.data_ptr(), trunk.store.capacity, trunk.length) for trunk in trunks]
        return Cache(store.numbers, store.rows, store.capacity, np.array(known, np.int64).reshape(-1, 3))

    def _spans(self, positions: Any, passes: int = 1) -> list[tuple[int, int]]:
        """Split the tokens of some passes for threads into parts of about the same work, but no small work: first and
        one past the last of each part."""
        work = np.cumsum(passes * (len(self._weights.numbers) + self._attended * positions))
        threads = max(1, min(self._most, int(work[-1]) // WORK, len(work)))
        cuts = 1 + np.searchsorted(work, [work[-1] * part // threads for part in range(1, threads)])
        return list(itertools.pairwise(dict.fromkeys([0, *cuts.tolist(), len(work)])))
