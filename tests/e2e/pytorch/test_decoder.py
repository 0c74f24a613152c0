"""One pass of the decoder in fp32 beside transformers on PyTorch: loss, every gradient, and the
logits of cached generation, for small random models of every family and kind of rotary scaling.

The samples are packed into one micro-batch for forebay and run one by one in PyTorch, so that the
comparison also proves that packed samples do not see each other.
"""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "training"))
import tiny_models  # noqa: E402

_SMALL = dict(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=128,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)

# What the training comparisons' models leave out.
_MORE = {
    "qwen2_window_on_upper_layers": lambda: Qwen2Config(
        **_SMALL,
        use_sliding_window=True,
        sliding_window=11,
        max_window_layers=1,
        tie_word_embeddings=True,
    ),
    "qwen3_biases_untied": lambda: Qwen3Config(
        **_SMALL, head_dim=20, attention_bias=True, tie_word_embeddings=False
    ),
    "llama_yarn_with_attention_factor": lambda: LlamaConfig(
        **_SMALL,
        rope_theta=1000.0,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 4.0,
            "attention_factor": 0.8,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "original_max_position_embeddings": 32,
        },
    ),
    # One sample is longer than the original positions, two are not.
    "llama_longrope": lambda: LlamaConfig(
        **_SMALL,
        rope_theta=1000.0,
        rope_scaling={
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.5],
            "long_factor": [1.0, 2.0, 5.0, 9.0],
            "original_max_position_embeddings": 32,
        },
    ),
    "llama_dynamic": lambda: LlamaConfig(
        **_SMALL, rope_theta=1000.0, rope_scaling={"rope_type": "dynamic", "factor": 4.0}
    ),
    "llama_proportional": lambda: LlamaConfig(
        **_SMALL,
        rope_theta=1000.0,
        rope_scaling={"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0},
    ),
}

_CONFIGS = {**tiny_models.FAMILIES, **_MORE}
_LENGTHS = (40, 23, 31)  # longer than the windows
_PADDING = 5


def _samples(vocab, seed):
    """[(tokens, targets)] with the first tokens of each sample untrained."""
    rng = np.random.default_rng(seed)
    samples = []
    for length in _LENGTHS:
        tokens = rng.integers(0, vocab, length)
        targets = np.append(tokens[1:], -1)
        targets[: length // 4] = -1
        samples.append((tokens, targets))
    return samples


def _pack(samples, scale):
    batch = {"tokens": [], "targets": [], "positions": [], "segments": [], "scale": scale}
    for tokens, targets in samples:
        batch["segments"].append([len(batch["tokens"]), len(tokens)])
        batch["tokens"] += tokens.tolist()
        batch["targets"] += targets.tolist()
        batch["positions"] += range(len(tokens))
    batch["tokens"] += [0] * _PADDING
    batch["targets"] += [-1] * _PADDING
    batch["positions"] += [0] * _PADDING
    return batch


def _pytorch(directory, samples, scale):
    """(sum of losses, gradients by name, first sample's logits); the samples run one by one."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    loss_sum, first_logits = 0.0, None
    for tokens, targets in samples:
        logits = model(torch.tensor(tokens)[None]).logits[0]
        loss = torch.nn.functional.cross_entropy(
            logits, torch.tensor(targets), ignore_index=-1, reduction="sum"
        )
        (loss * scale).backward()
        loss_sum += loss.item()
        if first_logits is None:
            first_logits = logits.detach()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return loss_sum, gradients, first_logits


def _forebay(directory, batch, tmp_path):
    batch_path, gradients_path = tmp_path / "batch.json", tmp_path / "gradients.safetensors"
    batch_path.write_text(json.dumps(batch))
    done = subprocess.run(
        [os.environ["FOREBAY_DECODER_PROBE"], str(directory), str(batch_path), str(gradients_path)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), load_file(gradients_path)


@pytest.mark.parametrize("name", sorted(_CONFIGS))
def test_loss_gradients_and_logits_equal_transformers(name, tmp_path):
    config = _CONFIGS[name]()
    tiny_models.save_random(config, tmp_path / "model", seed=1)
    samples = _samples(config.vocab_size, seed=2)
    num_trained = sum(int((targets >= 0).sum()) for _, targets in samples)
    scale = 1.0 / num_trained
    loss_sum, gradients, logits = _pytorch(tmp_path / "model", samples, scale)
    result, own_gradients = _forebay(tmp_path / "model", _pack(samples, scale), tmp_path)

    assert result["num_trained"] == num_trained
    assert result["loss_sum"] == pytest.approx(loss_sum, rel=1e-5)

    assert sorted(own_gradients) == sorted(gradients)
    whole_norm = torch.sqrt(sum(g.square().sum() for g in gradients.values())).item()
    for tensor, expected in gradients.items():
        error = (own_gradients[tensor] - expected).norm().item()
        # Gradients that are zero but for rounding (a key's bias without rotation) are measured
        # against the whole.
        assert error <= 1e-4 * expected.norm().item() + 1e-6 * whole_norm, tensor

    compared = 0
    for position, row in enumerate(result["logits"]):
        if row is not None:
            torch.testing.assert_close(torch.tensor(row), logits[position], rtol=1e-4, atol=1e-4)
            compared += 1
    assert compared == len(samples[0][0]) // 2 + 1
