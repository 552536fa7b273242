"""Memory in bytes, by arithmetic alone; `tests/backends/plan/test_memory.py` compares it with real models.

Sources: 4 bits as in QLoRA (Dettmers et al., 2023, section 3: a float32 constant for each block of 64 weights, half a
bit more for each); optimiser states as in ZeRO (Rajbhandari et al., 2020, section 3.1); keys and values as in
grouped-query attention (Ainslie et al., 2023); activations counted as in Korthikanti et al. (2022, section 4), with the
coefficients of a gated decoder with LoRA as measured here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mcp_rl.backends.plan.machine import GIB
from mcp_rl.config.learning import ALL_LINEAR

if TYPE_CHECKING:
    from mcp_rl.backends.plan.shape import ModelShape
    from mcp_rl.config import LoraConfig

Quantisation = Literal["none", "8-bit", "4-bit"]
Dtype = Literal["float32", "bfloat16", "float16"]

CONTEXT = GIB // 2
"""Bytes in each process that computes on a GPU: CUDA's context and its libraries' workspaces."""
LOGIT_ELEMENTS = 1 << 27
"""Largest number of logits that exist at once on a GPU (`learning/forward/logprobs.py`)."""
CPU_LOGIT_ELEMENTS = 1 << 24
"""Largest number of logits that exist at once on a CPU."""
LOGIT_BYTES = 16
"""Bytes for each logit: itself in half precision and in float32, its probability, its gradient."""
MERGED_PARAMETERS = 64_000_000
"""Largest number of float32 weights of which the in-process engine keeps a copy with the adapter merged in
(`backends/samplers/weights.py`)."""
GRAPHS = GIB
"""Bytes of vLLM's CUDA graphs, and of what its allocator cannot give back."""
ASLEEP = 3 * GIB // 2
"""Bytes that a sleeping vLLM keeps: its context and its graphs."""
CPU_ENGINE = 5 * GIB // 4
"""Resident bytes of vLLM's two processes on a CPU, without weights, keys and values; measured with 0.32."""
BATCHED_TOKENS = 8192
"""Tokens of one forward pass of vLLM."""


def size_of(dtype: Dtype) -> int:
    return 4 if dtype == "float32" else 2


def weights(shape: ModelShape, quantisation: Quantisation, dtype: Dtype) -> int:
    """Return the bytes of the base model. Only its linear layers are quantised, not the embeddings and the output
    layer."""
    if quantisation == "none":
        return shape.parameters * size_of(dtype)
    bits = 8.0 + 32 / max(1, shape.hidden) if quantisation == "8-bit" else 4.5
    return shape.embedding * size_of(dtype) + int(shape.linear * bits / 8)


def adapter_parameters(shape: ModelShape, lora: LoraConfig) -> int:
    """Return the parameters of an adapter: rows plus columns of every adapted layer, times the rank (Hu et al., LoRA,
    2021, section 4.1)."""
    h, q, kv, f = shape.hidden, shape.queries, shape.keys, shape.feed_forward
    ends = {"q_proj": h + q, "k_proj": h + kv, "v_proj": h + kv, "o_proj": q + h}
    ends |= {"gate_proj": h + f, "up_proj": h + f, "down_proj": f + h}
    targets = tuple(ends) if ALL_LINEAR in lora.targets else lora.targets
    return shape.layers * lora.rank * sum(ends.get(target, 2 * h) for target in targets)


def optimizer_bytes(parameters: int, optimizer: str) -> int:
    """Return the optimiser's state for float32 parameters: two moments (AdamW), next to nothing (Adafactor), nothing
    (SGD)."""
    return {"adamw": 8, "sgd": 0}.get(optimizer, 0) * parameters + (parameters // 16 if optimizer == "adafactor" else 0)


def kv_bytes(shape: ModelShape, dtype: Dtype) -> int:
    """Return the bytes of one token's keys and values."""
    return 2 * shape.layers * shape.keys * size_of(dtype)


def activation_bytes(shape: ModelShape, lora_rank: int, *, dtype: Dtype, checkpointing: bool) -> int:
    """Return the most that one token of a forward and backward pass needs: what every layer keeps, and what one layer
    needs while its gradient is computed."""
    h, f, q, kv = shape.hidden, shape.feed_forward, shape.queries, shape.keys
    if dtype == "float32":
        kept, between, again = 24 * h + 16 * f + 14 * q + 8 * kv, 5 * h, 40 * h + 20 * f + 14 * q + 8 * kv
    else:
        kept, between, again = 12 * h + 6 * f + 6 * q + 4 * kv, 5 * h // 2, 24 * h + 11 * f + 6 * q + 8 * kv
    of_adapter = 34 * lora_rank
    if checkpointing:
        return shape.layers * between + again + of_adapter
    return shape.layers * (kept + of_adapter) + 20 * h + 6 * f


def logit_bytes(shape: ModelShape, tokens: int) -> int:
    """Return the bytes of a pass's logits, which exist in parts of a fixed size and only where a token was sampled."""
    return min(tokens * shape.vocabulary, LOGIT_ELEMENTS) * LOGIT_BYTES


def engine_working(shape: ModelShape, rows: int) -> int:
    """Return an engine's own activations: one layer at a time of a batch of prompts, and the logits of each episode."""
    return BATCHED_TOKENS * 2 * (2 * shape.feed_forward + 4 * shape.hidden) + rows * shape.vocabulary * LOGIT_BYTES
