"""Small random models of every family, made by transformers itself."""

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

_COMMON = dict(
    vocab_size=259,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    bos_token_id=256,
    eos_token_id=257,
    pad_token_id=258,
)

FAMILIES = {
    "llama_tied": lambda: LlamaConfig(**_COMMON, tie_word_embeddings=True),
    "llama_biases_llama3_rope": lambda: LlamaConfig(
        **_COMMON,
        tie_word_embeddings=False,
        attention_bias=True,
        mlp_bias=True,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "llama_linear_rope": lambda: LlamaConfig(
        **_COMMON, head_dim=24, rope_scaling={"rope_type": "linear", "factor": 2.0}
    ),
    "mistral_window": lambda: MistralConfig(**_COMMON, sliding_window=9),
    "qwen2": lambda: Qwen2Config(**_COMMON),
    "qwen3_yarn": lambda: Qwen3Config(
        **_COMMON,
        head_dim=32,
        tie_word_embeddings=True,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": 128,
        },
    ),
    "gpt2": lambda: GPT2Config(
        vocab_size=259,
        n_embd=64,
        n_layer=3,
        n_head=4,
        n_positions=256,
        bos_token_id=256,
        eos_token_id=257,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
}


def make(family, directory, seed=0):
    """Writes the model folder and returns its vocabulary size."""
    return save_random(FAMILIES[family](), directory, seed)


def save_random(config, directory, seed=0):
    """Writes a model folder with random weights for `config` and returns its vocabulary size."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            # Larger than the usual initialisation, so that every path carries weight in the comparison.
            if parameter.dim() > 1:
                parameter.normal_(0, 0.1)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(directory)
    return config.vocab_size
