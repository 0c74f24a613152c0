"""Prints rope_reference.h: what transformers computes for each RoPE scaling. Needs torch and transformers.

python3 make_rope_reference.py | clang-format-14 --style=file > rope_reference.h
"""
import torch
import transformers
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

LONGROPE = {"rope_type": "longrope", "short_factor": [1 + i / 16 for i in range(16)],
            "long_factor": [1 + i / 2 for i in range(16)]}
CASES = {
    "Default": dict(rope_theta=100000.0),
    "Linear": dict(rope_theta=10000.0, rope_scaling={"type": "linear", "factor": 4.0}),
    "Llama3": dict(rope_theta=500000.0, rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}),
    "Yarn": dict(rope_theta=1000000.0, rope_scaling={
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}),
    "YarnWithMscale": dict(rope_theta=10000.0, rope_scaling={
        "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 16.0,
        "beta_slow": 2.0, "mscale": 0.707, "mscale_all_dim": 1.2, "truncate": False}),
    "Dynamic": dict(rope_theta=10000.0, rope_scaling={"type": "dynamic", "factor": 4.0}),
    "ShortLongRope": dict(rope_theta=10000.0, rope_scaling=LONGROPE | {"original_max_position_embeddings": 4096}),
    "LongLongRope": dict(rope_theta=10000.0, rope_scaling=LONGROPE | {"original_max_position_embeddings": 1000}),
    "Proportional": dict(rope_theta=10000.0, rope_scaling={
        "rope_type": "proportional", "factor": 2.0, "partial_rotary_factor": 0.3}),
}


def literal(value):
    text = "%.9g" % value
    return text + ("f" if "." in text or "e" in text else ".0f")


def main():
    print(f"""// What transformers {transformers.__version__} computes (LlamaRotaryEmbedding, head_dim 32, 131072 positions):
// inverse frequencies, cosines at position 1000 and sines at position 7. Made by make_rope_reference.py.
#pragma once

#include <array>

namespace forebay {{

struct RopeReference {{
  float attention_factor;
  std::array<float, 16> inv_freq;
  std::array<float, 16> cos_at_1000;
  std::array<float, 16> sin_at_7;
}};
""")
    for name, settings in CASES.items():
        config = LlamaConfig(hidden_size=64, num_attention_heads=2, head_dim=32, max_position_embeddings=131072,
                             **settings)
        embedding = LlamaRotaryEmbedding(config)
        cos, sin = embedding(torch.zeros(1, 2, 1), torch.tensor([[1000, 7]]))
        rows = [embedding.inv_freq, cos[0, 0, :16], sin[0, 1, :16]]
        text = ", ".join("{" + ", ".join(literal(x) for x in row.tolist()) + "}" for row in rows)
        print(f"inline constexpr RopeReference k{name}Rope = {{{literal(embedding.attention_scaling)}, {text}}};")
    print("\n}  // namespace forebay")


if __name__ == "__main__":
    main()
