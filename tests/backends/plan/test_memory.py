"""The memory formulas against real models on the CPU, to the byte where possible."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from mcp_rl.backends.base.base_model import load_base
from mcp_rl.backends.plan import memory
from mcp_rl.backends.plan.memory import Dtype
from mcp_rl.backends.plan.shape import KNOWN, ModelShape, model_shape, shape_of
from mcp_rl.config import TINY, LoraConfig, TrainConfig
from mcp_rl.inference.cache import KvStore
from mcp_rl.inference.policy import Policy
from mcp_rl.learning.adapter import add_adapter, full_copy
from mcp_rl.learning.forward.logprobs import sampled_logprobs
from mcp_rl.learning.forward.tree_attention import use_tree_attention
from mcp_rl.learning.learner import Learner
from tests.learning.tensor_memory import TensorMemory
from tests.learning.test_tree_memory import batch_of

DTYPES: list[tuple[Dtype, torch.dtype]] = [("float32", torch.float32), ("bfloat16", torch.bfloat16)]
_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 97,
    "max_position_embeddings": 2048,
    "pad_token_id": None,
}
RANK = 8


def described(model_type: str, **changes: Any) -> dict[str, Any]:
    """Return the config.json of a small model of a type."""
    return AutoConfig.for_model(model_type, **{**_SMALL, **changes}).to_dict()


def built(config: dict[str, Any], dtype: torch.dtype) -> PreTrainedModel:
    kind = config["model_type"]
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **{key: value for key, value in config.items() if key != "model_type"}), dtype=dtype
    )
    return model


def nbytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("name", KNOWN)
def test_published_models_have_transformers_parameter_counts(name: str) -> None:
    with torch.device("meta"):
        model = built(KNOWN[name], torch.bfloat16)
    assert shape_of(name, KNOWN[name], "").parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("qwen2", {}),
        ("qwen3", {}),
        ("qwen3", {"attention_bias": True}),
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("mistral", {}),
        ("gemma", {"head_dim": 32}),
        ("smollm3", {}),
        ("granite", {}),
        ("phi3", {}),
    ],
)
def test_the_formula_counts_every_parameter(kind: str, changes: dict[str, Any], tied: bool) -> None:
    config = described(kind, **changes, tie_word_embeddings=tied)
    with torch.device("meta"):
        model = built(config, torch.float32)
    assert shape_of("any", config, "").parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "dtype"), DTYPES)
def test_base_adapter_and_optimiser_to_the_byte(name: Dtype, dtype: torch.dtype) -> None:
    config = described("qwen2", tie_word_embeddings=True)
    shape, lora = shape_of("any", config, ""), LoraConfig(rank=8)
    base = built(config, dtype)
    assert nbytes(base.parameters()) == memory.weights(shape, "none", name)
    adapted = add_adapter(base, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, base_name="any", seed=0)
    learner = Learner(adapted, TrainConfig(lora=lora))
    trained = memory.adapter_parameters(shape, lora)
    assert nbytes(learner.parameters.values()) == 4 * trained
    _one_step(learner)
    assert nbytes(p.grad for p in learner.parameters.values()) == 4 * trained
    assert _remembered(learner) == memory.optimizer_bytes(trained, "adamw")


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_training_every_weight_to_the_byte(optimizer: Any) -> None:
    config = described("qwen2", tie_word_embeddings=False)
    shape = shape_of("any", config, "")
    learner = Learner(full_copy(built(config, torch.bfloat16)), TrainConfig(method="full", optimizer=optimizer))
    _one_step(learner)
    assert nbytes(learner.parameters.values()) == 4 * shape.parameters
    assert _remembered(learner) == memory.optimizer_bytes(shape.parameters, optimizer)


def test_adafactor_keeps_almost_no_state() -> None:
    config = described("qwen2", hidden_size=256, intermediate_size=512)
    shape = shape_of("any", config, "")
    learner = Learner(full_copy(built(config, torch.float32)), TrainConfig(method="full", optimizer="adafactor"))
    _one_step(learner)
    assert _remembered(learner) <= memory.optimizer_bytes(shape.parameters, "adafactor")


def _one_step(learner: Learner) -> None:
    for parameter in learner.parameters.values():
        parameter.grad = torch.ones_like(parameter)
    learner.optimizer.step()


def _remembered(learner: Learner) -> int:
    """Return the bytes of an optimiser's state, without its step counts."""
    states = learner.optimizer.state.values()
    return nbytes(value for state in states for key, value in state.items() if key != "step")


@pytest.mark.parametrize(("name", "dtype"), DTYPES)
def test_keys_and_values_match_the_engine(name: Dtype, dtype: torch.dtype) -> None:
    base, _ = load_base(TINY)
    store = KvStore(Policy(base.to(dtype)).shape, rows=5, capacity=128)  # type: ignore[arg-type]
    assert nbytes([store.data]) == 5 * 128 * memory.kv_bytes(model_shape(TINY), name)


def test_four_bit_weights_match_bitsandbytes() -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    weight = torch.randn(256, 512)
    packed, state = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    shape = model_shape(TINY)
    linear = memory.weights(shape, "4-bit", "bfloat16") - 2 * shape.embedding
    assert nbytes([packed, state.absmax]) / weight.numel() == pytest.approx(linear / shape.linear, rel=1e-3)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    ("hidden", "inner", "layers", "heads", "kv_heads", "head_dim"),
    [(64, 350, 4, 4, 1, 16), (128, 450, 3, 8, 2, 16)],
)
def test_activations_are_estimated_slightly_high(
    hidden: int, inner: int, layers: int, heads: int, kv_heads: int, head_dim: int, checkpointing: bool
) -> None:
    config = described(
        "qwen2",
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
    )
    shape = shape_of("any", config, "")
    for dtype, full in (("bfloat16", False), ("float32", False), ("float32", True)):
        counted = _bytes_for_a_token(config, shape, dtype, full, checkpointing)
        said = memory.activation_bytes(shape, 0 if full else RANK, dtype=dtype, checkpointing=checkpointing)  # type: ignore[arg-type]
        assert counted <= said <= 1.35 * counted, (dtype, full, counted, said)


def _bytes_for_a_token(config: dict[str, Any], shape: ModelShape, dtype: str, full: bool, checkpointing: bool) -> float:
    """Return the peak memory that each further token adds, from forward and backward passes of two sizes."""
    base = built(config, getattr(torch, dtype))
    use_tree_attention(base)
    targets = LoraConfig().targets
    model = full_copy(base) if full else add_adapter(base, rank=RANK, alpha=8, targets=targets, base_name="", seed=0)
    tokens, peaks = [], []
    for count in (4, 12):
        batch = batch_of(count, own=40, prompt=100)
        model.zero_grad()
        with TensorMemory() as counted:
            logprobs, _ = sampled_logprobs(model, batch, activation_checkpointing=checkpointing)
            logprobs.sum().backward()  # type: ignore[no-untyped-call]
        tokens.append(batch.tokens.numel())
        peaks.append(counted.peak)
    return (peaks[1] - peaks[0]) / (tokens[1] - tokens[0])
