"""Memory of an update: no vocabulary-size matrix of the batch, and less with activation checkpointing."""

import pytest
import torch
from transformers import PreTrainedModel

from mcp_rl.learning.forward.logprobs import sampled_logprobs
from mcp_rl.learning.forward.tree import build_tree
from mcp_rl.learning.forward.tree_attention import use_tree_attention
from mcp_rl.learning.forward.tree_batch import TreeBatch
from tests.learning.architectures import VOCABULARY, architecture
from tests.learning.tensor_memory import TensorMemory


def batch_of(count: int, own: int = 12, prompt: int = 40, *, shared: bool = True) -> TreeBatch:
    """Make a batch of `count` sequences that share a prompt and whose own tokens were sampled."""
    draw = torch.Generator().manual_seed(0)
    begin = torch.randint(VOCABULARY, (prompt,), generator=draw).tolist()
    sequences = [begin + torch.randint(VOCABULARY, (own,), generator=draw).tolist() for _ in range(count)]
    tree = build_tree([s[:-1] for s in sequences], shared=shared)
    predictors = torch.cat([torch.from_numpy(tree.sequence(i))[prompt - 1 :] for i in range(count)])
    return TreeBatch.of(tree, predictors, torch.tensor([s[prompt:] for s in sequences]).flatten())


def update(model: PreTrainedModel, batch: TreeBatch, *, checkpointing: bool = False) -> TensorMemory:
    """Run forward and backward over the whole batch; the gradients stay on the parameters."""
    model.zero_grad()
    with TensorMemory() as memory:
        logprobs, entropy = sampled_logprobs(model, batch, 0.9, activation_checkpointing=checkpointing)
        (logprobs.sum() + 0.1 * entropy.sum()).backward()
    return memory


def gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", ["Qwen2", "Gemma2", "GPT2", "OPT", "GptOss"])
def test_checkpointed_activations_give_the_same_gradients(name: str) -> None:
    model = architecture(name)()
    use_tree_attention(model)
    batch = batch_of(4)
    update(model, batch)
    kept = gradients(model)
    update(model, batch, checkpointing=True)
    torch.testing.assert_close(gradients(model), kept, atol=0, rtol=0)
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_checkpointed_activations_take_less_memory() -> None:
    model = architecture("Llama", num_hidden_layers=8)()
    use_tree_attention(model)
    batch = batch_of(24)
    kept, checkpointed = update(model, batch).peak, update(model, batch, checkpointing=True).peak
    assert checkpointed < 0.5 * kept


def test_no_vocabulary_size_matrix_of_the_batch_is_ever_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_rl.learning.forward.logprobs.CHUNK_ELEMENTS", 1 << 17)
    model = architecture("Llama", vocab_size=8192)()
    use_tree_attention(model)
    weights = model.get_output_embeddings().weight.numel()
    memory = update(model, batch := batch_of(20, own=20))
    assert len(batch.predictors.rows) * 8192 > 3 * weights
    assert memory.largest <= 4 * weights


def test_memory_grows_with_the_tokens_of_the_tree() -> None:
    model = architecture("Llama", num_hidden_layers=4)()
    use_tree_attention(model)
    parameters = 4 * sum(p.numel() for p in model.parameters())
    batches = {count: batch_of(count, prompt=200) for count in (8, 16, 32)}
    peaks = {count: update(model, batch).peak - parameters for count, batch in batches.items()}
    for count in (16, 32):
        assert peaks[count] / peaks[8] < 1.15 * batches[count].tokens.numel() / batches[8].tokens.numel()
    assert update(model, batch_of(32, prompt=200, shared=False)).peak - parameters > 5 * peaks[32]
