"""`gguf`: a GGUF file as a Hugging Face model folder, with the values that transformers reads from it.

Source of names and of the row order of q and k: llama.cpp, convert_hf_to_gguf.py (LlamaModel.permute).
"""

import json
import os

import numpy as np

from .errors import BadInputError, EnvironmentProblem, UsageError
from .files import Progress, make_folder, write_text
from .gguf_tokenizer import convert_tokenizer, encode_tokenizer, special_token_ids
from .safetensors_writer import write_safetensors

_ARCHITECTURES = {
    # GGUF's name: (transformers' class, model_type, q and k rows are permuted)
    "llama": ("LlamaForCausalLM", "llama", True),
    "qwen2": ("Qwen2ForCausalLM", "qwen2", False),
}
_BLOCK_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_WEIGHTS_FILE = "model.safetensors"


class _GgufFile:
    def __init__(self, path):
        try:
            import gguf
        except ImportError:
            raise EnvironmentProblem("converting GGUF files needs the Python package 'gguf': install it with "
                                     "'pip install gguf'") from None
        if not os.path.isfile(path):
            raise BadInputError(f"'{path}' does not exist: --gguf names the file to convert")
        self.path = path
        self._dequantize = gguf.quants.dequantize
        try:
            self._reader = gguf.GGUFReader(path)
        except (ValueError, IndexError, KeyError, OverflowError) as error:
            raise BadInputError(f"'{path}' is no GGUF file that can be read, or is damaged: {error}") from None
        self.architecture = self.metadata("general.architecture", None)
        self.tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def metadata(self, key, default):
        field = self._reader.fields.get(key)
        return default if field is None else field.contents()

    def setting(self, key, default):
        """One of the architecture's own values."""
        return self.metadata(f"{self.architecture}.{key}", default)

    def require(self, key):
        value = self.setting(key, None)
        if value is None:
            raise BadInputError(f"'{self.path}' has no '{self.architecture}.{key}': it is incomplete")
        return value

    def shape(self, name):
        return tuple(int(size) for size in reversed(self.tensors[name].shape))

    def values(self, name):
        """The tensor as float32 in the order of its Hugging Face shape."""
        tensor = self.tensors[name]
        try:
            values = self._dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            raise BadInputError(f"'{self.path}': '{name}' is quantised as {tensor.tensor_type.name}, which the package "
                                "'gguf' cannot undo: take another file of this model") from None
        return values.reshape(self.shape(name))


def convert(options):
    """Runs `forebay-data gguf`; returns its report."""
    file = _GgufFile(options.gguf)
    if file.architecture not in _ARCHITECTURES:
        raise BadInputError(f"'{options.gguf}' holds a '{file.architecture}' model; supported: "
                            f"{', '.join(_ARCHITECTURES)}")
    if file.setting("rope.scaling.type", "none") != "none" or "rope_freqs.weight" in file.tensors:
        raise BadInputError(f"'{options.gguf}' scales its rotary positions, which this conversion does not carry over: "
                            "take the model's original folder")
    if os.path.lexists(os.path.join(options.out, _WEIGHTS_FILE)):
        raise UsageError(f"'{options.out}' holds a model already: forebay does not overwrite it; choose another --out")
    names = _map_names(file)
    config = _make_config(file, options.dtype, tied="lm_head.weight" not in names)
    tokenizer, tokenizer_config = convert_tokenizer(file.metadata, int(file.require("context_length")))
    if len(tokenizer["model"]["vocab"]) > config["vocab_size"]:
        raise BadInputError(f"'{options.gguf}' has {len(tokenizer['model']['vocab'])} tokens but an embedding of "
                            f"{config['vocab_size']} rows: it is damaged")
    make_folder(options.out)
    write_text(os.path.join(options.out, "config.json"), _encode(config))
    write_text(os.path.join(options.out, "tokenizer.json"), encode_tokenizer(tokenizer))
    write_text(os.path.join(options.out, "tokenizer_config.json"), _encode(tokenizer_config))
    write_text(os.path.join(options.out, "generation_config.json"), _encode(_make_generation_config(file)))
    shapes = {name: file.shape(source) for name, source in names.items()}
    # The weights come last: a folder that has them is complete.
    write_safetensors(os.path.join(options.out, _WEIGHTS_FILE), shapes, options.dtype.upper(),
                      _converted(file, names, config))
    return {"path": options.out, "architecture": config["architectures"][0], "dtype": options.dtype,
            "tensors": len(shapes), "parameters": int(sum(np.prod(shape, dtype=np.int64) for shape in shapes.values())),
            "vocab_size": config["vocab_size"]}


def describe(report):
    return (f"{report['path']}: {report['architecture']}, {report['parameters']:,} parameters in {report['tensors']} "
            f"{report['dtype']} tensors")


def _map_names(file):
    """{Hugging Face name: GGUF name}, sorted; every tensor of the file must have its place."""
    names = {}
    for source in file.tensors:
        stem, _, kind = source.rpartition(".")
        target = _OUTER_TENSORS.get(stem)
        if target is None and stem.startswith("blk."):
            _, block, part = (stem.split(".") + ["", ""])[:3]
            if part in _BLOCK_TENSORS and block.isdecimal():
                target = f"model.layers.{block}.{_BLOCK_TENSORS[part]}"
        if target is None or kind not in ("weight", "bias"):
            raise BadInputError(f"'{file.path}': the tensor '{source}' has no place in a {file.architecture} model")
        names[f"{target}.{kind}"] = source
    expected = {f"model.layers.{block}.{part}.weight" for block in range(int(file.require("block_count")))
                for part in _BLOCK_TENSORS.values()} | {"model.embed_tokens.weight", "model.norm.weight"}
    missing = sorted(expected - set(names))
    if missing:
        raise BadInputError(f"'{file.path}' lacks {len(missing)} tensors, the first being '{missing[0]}': it is "
                            "incomplete, or one part of several")
    return dict(sorted(names.items()))


def _make_config(file, dtype, tied):
    class_name, model_type, _ = _ARCHITECTURES[file.architecture]
    hidden, heads = int(file.require("embedding_length")), int(file.require("attention.head_count"))
    special = special_token_ids(file.metadata)
    config = {
        "architectures": [class_name],
        "model_type": model_type,
        "vocab_size": file.shape("token_embd.weight")[0],
        "hidden_size": hidden,
        "intermediate_size": int(file.require("feed_forward_length")),
        "num_hidden_layers": int(file.require("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(file.setting("attention.head_count_kv", heads)),
        "head_dim": int(file.setting("attention.key_length", hidden // heads)),
        "hidden_act": "silu",
        "max_position_embeddings": int(file.require("context_length")),
        "rms_norm_eps": _shortest(file.require("attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(file.setting("rope.freq_base", 10000.0)),
        "initializer_range": 0.02,
        "tie_word_embeddings": tied,
        "use_cache": True,
        "torch_dtype": {"bf16": "bfloat16", "f32": "float32"}[dtype],
        **{f"{name}_token_id": special[name] for name in ("bos", "eos", "pad") if name in special},
    }
    if model_type == "llama":
        config.update(attention_bias="blk.0.attn_q.bias" in file.tensors,
                      mlp_bias="blk.0.ffn_up.bias" in file.tensors)
    return config


def _make_generation_config(file):
    special = special_token_ids(file.metadata)
    return {f"{name}_token_id": special[name] for name in ("bos", "eos", "pad") if name in special}


def _converted(file, names, config):
    permuted = _ARCHITECTURES[file.architecture][2]
    progress = Progress(f"converting {os.path.basename(file.path)}", len(names))
    for done, (name, source) in enumerate(names.items()):
        progress.update(done)
        values = file.values(source)
        if permuted and ".attn_q." in source:
            values = unpermute(values, config["num_attention_heads"])
        elif permuted and ".attn_k." in source:
            values = unpermute(values, config["num_key_value_heads"])
        yield name, values
    progress.close()


def unpermute(values, num_heads):
    """Rows of q and k from GGUF's order (pairs that rotate together are neighbours) to Hugging Face's (halves)."""
    half = values.shape[0] // num_heads // 2
    return values.reshape(num_heads, half, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _shortest(value):
    """The shortest decimal that is the same float32: GGUF's 9.999999747378752e-06 is 1e-05."""
    return float(str(np.float32(value)))


def _encode(value):
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
