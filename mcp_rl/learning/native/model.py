"""The training pass of a small model with an adapter: what torch's autograd calls, and the threads that compute it.

A model of Llama's shape in float32 on a CPU, of which only a LoRA adapter learns, is computed layer by layer in
compiled functions that release the interpreter's lock. The last layer is computed for those tokens alone whose outputs
are read. Gradients are added in an order that does not depend on the number of threads.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor
from torch.autograd.function import once_differentiable

from mcp_rl.errors import EngineError
from mcp_rl.inference.cache import round_up
from mcp_rl.inference.forward import unknown_part
from mcp_rl.inference.native.compiling import Rotations
from mcp_rl.inference.native.model import in_panels, padded, rotations_of
from mcp_rl.inference.native.together import together
from mcp_rl.inference.native.vectors import WIDE
from mcp_rl.inference.policy import NATIVE, second_view
from mcp_rl.learning.adapter import ADAPTER, is_merged
from mcp_rl.learning.native.attending import attend, attend_back, gather_back
from mcp_rl.learning.native.layout import AttentionTasks
from mcp_rl.learning.native.passes import TOKENS, inward, inward_back, outward, outward_back
from mcp_rl.learning.native.records import Kept, LayerWeights, ModelSizes, Product

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from transformers import PreTrainedModel

    from mcp_rl.learning.forward.tree_batch import TreeBatch

_CHUNKS = 16
"""Parts of a tree whose gradients of the adapter are added one after the other, each computed by one thread."""
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of a layer, in the order of `LayerWeights.adapters`."""
_known: weakref.WeakKeyDictionary[Any, tuple[Any, NativeModel | None]] = weakref.WeakKeyDictionary()
"""For each model the one that computes it, if any, and the modules and trained weights by which that was decided."""


def native_model(base: PreTrainedModel) -> NativeModel | None:
    """Return what computes a model, which may have an adapter; None if it is not of the kind that is known."""
    parts = [*map(id, base.modules())], [weight.requires_grad for weight in base.parameters()]
    if base not in _known or _known[base][0] != parts:
        _known[base] = parts, NativeModel(base) if _is_known(base) else None
    return None if torch.is_autocast_enabled("cpu") else _known[base][1]


def _is_known(base: Any) -> bool:
    weights = list(base.parameters())
    if any(weight.dtype != torch.float32 or weight.device.type != "cpu" for weight in weights):
        return False
    trained = {id(weight) for weight in weights if weight.requires_grad}
    merged = [module for module in base.modules() if isinstance(module, LoraLinear) and is_merged(module)]
    of_adapters = {id(module[ADAPTER].weight) for layer in merged for module in (layer.lora_A, layer.lora_B)}
    if trained - of_adapters or sum(weight.numel() for weight in weights) > NATIVE:
        return False
    try:
        view = second_view(base)
    except EngineError:
        return False
    if unknown_part(view):
        return False
    attention, mlp = cast("Any", view).model.layers[0].self_attn, cast("Any", view).model.layers[0].mlp
    widths = (attention.head_dim, view.config.hidden_size, mlp.gate_proj.out_features)
    return not any(width % WIDE for width in widths)


class NativeModel:
    """Computes the last hidden states of a model, before its last norm, and the gradients of its adapter."""

    def __init__(self, base: PreTrainedModel) -> None:
        self._base = weakref.ref(base)
        layers = cast("Any", base).model.layers
        attention = layers[0].self_attn
        self.dim = dim = attention.head_dim
        self.shape = ModelSizes(
            heads=attention.config.num_attention_heads,
            shared=attention.config.num_key_value_heads,
            dim=dim,
            inner=layers[0].mlp.gate_proj.out_features,
            scaling=np.float32(attention.scaling),
            floor=np.float32(cast("Any", base).model.norm.variance_epsilon),
        )
        self.linear = [
            [getattr(layer.self_attn if index < 4 else layer.mlp, name) for index, name in enumerate(_PROJECTIONS)]
            for layer in layers
        ]
        self._rotations = Rotations(*np.empty((2, 0, dim), np.float32))

    def hidden(self, batch: TreeBatch) -> Tensor:
        """Return the last hidden states [P, H], normalised, of the tokens that predict sampled ones."""
        base = cast("Any", self._base())
        adapters = [adapter for layer in self.linear for linear in layer if (adapter := _adapter(linear)) is not None]
        weights = [weight for a, b, _ in adapters for weight in (a, b)]
        return base.model.norm(_OverTree.apply(self, batch, *weights))  # type: ignore[no-any-return]

    def embedded(self, tokens: Tensor) -> Any:
        with torch.no_grad():
            return cast("Any", self._base()).model.embed_tokens(tokens).numpy()

    def rotations(self, positions: Any) -> Rotations:
        """Return the rotations of tokens at these positions."""
        if (reach := int(positions.max()) + 1) > len(self._rotations.cos):
            self._rotations = rotations_of(self._base(), reach)
        return Rotations(*(part[positions] for part in self._rotations))

    @torch.no_grad()
    def layers(self) -> Iterator[tuple[LayerWeights, list[float]]]:
        """Yield each layer's weights, the adapter merged, and the scales of its adapters."""
        for linear, layer in zip(self.linear, cast("Any", self._base()).model.layers, strict=True):
            table, low_a, low_b, scales = [], [], [], []
            place_a = place_b = 0
            for module in linear:
                if (found := _adapter(module)) is None:
                    table.append([0, 0, 0, 0])
                    continue
                a, b, scale = found
                rank, room = len(a), round_up(len(a), WIDE)
                table.append([place_a, place_b, rank, room])
                low_a.append(in_panels(a, WIDE))
                low_b.append(padded(b.T * scale, WIDE).T.reshape(-1))
                scales.append(scale)
                place_a, place_b = place_a + low_a[-1].numel(), place_b + low_b[-1].numel()
            yield (
                LayerWeights(
                    inward=_product(linear[:3]),
                    outward=_product(linear[3:4]),
                    gates=_product(linear[4:6]),
                    down=_product(linear[6:]),
                    before=_gain(layer.input_layernorm),
                    after=_gain(layer.post_attention_layernorm),
                    query=_gain(getattr(layer.self_attn, "q_norm", None)),
                    key=_gain(getattr(layer.self_attn, "k_norm", None)),
                    adapters=np.array(table),
                    low_a=_joined(low_a),
                    low_b=_joined(low_b),
                ),
                scales,
            )


def _adapter(linear: Any) -> tuple[Tensor, Tensor, float] | None:
    """Return A, B and the scale of a linear layer's adapter, None if it has none that is switched on."""
    if not hasattr(linear, "lora_A") or linear.disable_adapters:
        return None
    return linear.lora_A[ADAPTER].weight, linear.lora_B[ADAPTER].weight, linear.scaling[ADAPTER]


def _product(linears: Sequence[Any]) -> Product:
    """Return linear layers of one input as one product."""
    weights, biases = [], []
    for linear in linears:
        plain = getattr(linear, "base_layer", linear)
        found = _adapter(linear)
        weights.append(plain.weight if found is None else torch.addmm(plain.weight, found[1], found[0], alpha=found[2]))
        biases.append(weights[-1].new_zeros(len(weights[-1])) if plain.bias is None else plain.bias)
    weight = torch.cat(weights)
    return Product(in_panels(weight, WIDE).numpy(), in_panels(weight.T, WIDE).numpy(), torch.cat(biases).numpy())


def _gain(norm: Any) -> Any:
    return np.empty(0, np.float32) if norm is None else norm.weight.detach().numpy()


def _joined(parts: list[Tensor]) -> Any:
    return torch.cat(parts).numpy() if parts else np.empty(0, np.float32)


class _OverTree(torch.autograd.Function):
    """The last hidden states [P, H] before the last norm, of A and B of each adapter in the model's order."""

    @staticmethod
    def forward(ctx: Any, model: NativeModel, batch: TreeBatch, *weights: Tensor) -> Tensor:
        tree, wanted = batch.mask.tree, batch.predictors.rows.numpy()
        every = np.arange(len(tree.tokens))
        rotations = model.rotations(tree.positions)
        shape, layers = model.shape, list(model.layers())
        tasks = batch.mask.plan("native", lambda: [AttentionTasks.of(tree, rows) for rows in (every, wanted)])
        kept: list[Kept] = []
        x = model.embedded(batch.tokens[0])
        for number, (layer, _) in enumerate(layers):
            mine = tasks[number == len(layers) - 1]
            now = _kept(shape, layer, x, len(mine.tree.rows))
            _together(inward, _blocks(len(every)), shape, layer, rotations, now)
            _together(attend, mine.divided(shape.shared), shape, mine.tree, now.qkv, now.attended, now.logs)
            x = np.empty((len(mine.tree.rows), x.shape[1]), np.float32)
            _together(outward, _blocks(len(x)), shape, layer, mine.tree.rows, now, x)
            kept.append(now)
        ctx.all = model, layers, kept, tasks, rotations
        return torch.from_numpy(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        model, layers, kept, tasks, rotations = ctx.all
        shape, back = model.shape, Rotations(rotations.cos, -rotations.sin)
        found: list[list[Tensor]] = []
        of_x = grads[0].contiguous().clone().numpy()
        while layers:
            (layer, scales), now, mine = layers.pop(), kept.pop(), tasks[not found]
            of_low = _LowRankGradients(layer)
            of_attended = np.empty_like(now.attended)
            deltas = np.empty_like(now.logs)
            _together(outward_back, of_low.parts(len(of_x)), shape, layer, now, of_x, of_attended, deltas)
            of_qkv = _attention_back(shape, mine, now, of_attended, deltas)
            if not found:
                of_rows, of_x = of_x, np.zeros_like(now.x)
                of_x[mine.tree.rows] = of_rows
            wanted = of_x if layers else of_x[:0]
            _together(inward_back, of_low.parts(len(now.x)), shape, layer, back, now, of_qkv, wanted)
            found.append(of_low.gradients(model.linear[len(layers)], scales))
        return None, None, *(gradient for layer in reversed(found) for gradient in layer)


def _kept(shape: ModelSizes, layer: LayerWeights, x: Any, rows: int) -> Kept:
    """Return room for what a layer keeps of its input and some rows."""
    count, of_heads, of_keys = len(x), shape.heads * shape.dim, shape.shared * shape.dim

    def room(lines: int, width: int) -> Any:
        return np.empty((lines, width), np.float32)

    return Kept(
        x=x,
        raw=room(count, of_heads + of_keys) if len(layer.query) else room(0, 0),
        qkv=room(count, of_heads + 2 * of_keys),
        attended=room(rows, of_heads),
        logs=room(rows, shape.heads),
        mid=room(rows, x.shape[1]),
        gates=room(rows, 2 * shape.inner),
    )


def _attention_back(shape: ModelSizes, tasks: AttentionTasks, kept: Kept, of_attended: Any, deltas: Any) -> Any:
    """Return the gradient of `Kept.qkv`."""
    of_qkv = np.zeros_like(kept.qkv)
    private = np.empty((shape.shared, 2, tasks.places, shape.dim), np.float32)
    for wave in tasks.waves:
        private.fill(0)
        parts = tasks.divided(shape.shared, wave)
        _together(attend_back, parts, shape, tasks.tree, kept, of_attended, deltas, private, of_qkv)
        every = [(head, wave.start, wave.stop) for head in range(shape.shared)]
        _together(gather_back, every, shape, tasks.tree, private, of_qkv)
    return of_qkv


class _LowRankGradients:
    """The gradients of a layer's adapters, a sum for each chunk of the tokens."""

    def __init__(self, layer: LayerWeights) -> None:
        self._table = layer.adapters
        self._a = np.zeros((_CHUNKS, len(layer.low_a)), np.float32)
        self._b = np.zeros((_CHUNKS, len(layer.low_b)), np.float32)

    def parts(self, count: int) -> list[tuple[Any, ...]]:
        """Return, for each chunk of so many tokens, its sums, and its first token and one past the last."""
        size = round_up(-(-count // _CHUNKS), TOKENS)
        return [
            ((self._a[chunk], self._b[chunk]), (begin, min(begin + size, count)))
            for chunk, begin in enumerate(range(0, count, size))
        ]

    def gradients(self, linears: Sequence[Any], scales: Sequence[float]) -> list[Tensor]:
        """Return the gradients of A and B of each adapter."""
        a, b, found, left = self._a.sum(0), self._b.sum(0), [], iter(scales)
        for linear, (place_a, place_b, rank, room) in zip(linears, self._table.tolist(), strict=True):
            if not rank:
                continue
            inputs, outputs = linear.in_features, linear.out_features
            of_a = a[place_a : place_a + rank * inputs].reshape(rank, inputs)
            of_b = b[place_b : place_b + outputs * room].reshape(outputs, room)[:, :rank] * next(left)
            found += [torch.from_numpy(of_a), torch.from_numpy(np.ascontiguousarray(of_b, np.float32))]
        return found


def _blocks(count: int) -> list[tuple[tuple[int, int]]]:
    """Return the bounds of so many tokens in a part for each thread, of whole blocks."""
    size = round_up(-(-count // torch.get_num_threads()), TOKENS)
    return [((begin, min(begin + size, count)),) for begin in range(0, count, size)]


def _together(function: Callable[..., Any], parts: Sequence[tuple[Any, ...]], *first: Any) -> None:
    together(function, parts, *first, threads=torch.get_num_threads())
