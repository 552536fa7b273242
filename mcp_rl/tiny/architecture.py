"""The architecture of the built-in model."""

from transformers import Qwen2Config, Qwen2Tokenizer


def tiny_config(tokenizer: Qwen2Tokenizer) -> Qwen2Config:
    """Return a Qwen2 of 1.4 million parameters: 4 layers, width 128, heads of 32, output tied to the embeddings."""
    return Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
