"""`gguf`: a GGUF file as a Hugging Face model folder, with the values that transformers reads from it.

Source of names and of the row order of q and k: llama.cpp, convert_hf_to_gguf.py (LlamaModel.permute).
"""

import json
import math
import os

import numpy as np

from .errors import BadInputError, UsageError
from .files import FOLDER_FOR_OTHERS, Progress, make_folder, write_text
from .gguf_file import GgufFile
from .gguf_tokenizer import convert_tokenizer, encode_tokenizer, special_token_ids
from .safetensors_writer import write_safetensors
from .tokenizer import load_tokenizer

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


def convert(options):
    """Runs `forebay-data gguf`; returns its report."""
    file = GgufFile(options.gguf)
    if not isinstance(file.architecture, str) or file.architecture not in _ARCHITECTURES:
        raise BadInputError(f"'{options.gguf}' holds a '{file.architecture}' model; supported: "
                            f"{', '.join(_ARCHITECTURES)}")
    if file.setting("rope.scaling.type", "none") != "none" or "rope_freqs.weight" in file.tensors:
        raise BadInputError(f"'{options.gguf}' scales its rotary positions, which this conversion does not carry over: "
                            "take the model's original folder")
    if os.path.lexists(os.path.join(options.out, _WEIGHTS_FILE)):
        raise UsageError(f"'{options.out}' holds a model already: forebay does not overwrite it; choose another --out")
    names = _map_names(file)
    config = _make_config(file, options.dtype, tied="lm_head.weight" not in names)
    _check_shapes(file, names, config)
    tokenizer, tokenizer_config = _convert_tokenizer(file)
    if len(tokenizer["model"]["vocab"]) > config["vocab_size"]:
        raise BadInputError(f"'{options.gguf}' has {len(tokenizer['model']['vocab'])} tokens but an embedding of "
                            f"{config['vocab_size']} rows: it is damaged")
    make_folder(options.out, FOLDER_FOR_OTHERS)
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


def _convert_tokenizer(file):
    """(tokenizer.json, tokenizer_config.json), which the tokenizers library accepts."""
    try:
        tokenizer, config = convert_tokenizer(file.metadata, file.integer("context_length"))
    except BadInputError as error:
        raise BadInputError(f"'{file.path}': {error}") from None
    load_tokenizer(f"the tokenizer in '{file.path}'", encode_tokenizer(tokenizer).encode("utf-8"))
    return tokenizer, config


def _map_names(file):
    """{Hugging Face name: GGUF name}, sorted; every tensor of the file must have its place."""
    names = {}
    num_blocks = file.integer("block_count")
    # More blocks than tensors cannot be complete; their names are not even listed then.
    known_blocks = {str(block) for block in range(min(num_blocks, len(file.tensors)))}
    for source in file.tensors:
        stem, _, kind = source.rpartition(".")
        target = _OUTER_TENSORS.get(stem)
        if target is None and stem.startswith("blk."):
            _, block, part = (stem.split(".") + ["", ""])[:3]
            if part in _BLOCK_TENSORS and block in known_blocks:
                target = f"model.layers.{block}.{_BLOCK_TENSORS[part]}"
        if target is None or kind not in ("weight", "bias"):
            raise BadInputError(f"'{file.path}': the tensor '{source}' has no place in a {file.architecture} model")
        names[f"{target}.{kind}"] = source
    expected = [f"model.layers.{block}.{part}.weight" for block in range(min(num_blocks, len(file.tensors) + 1))
                for part in _BLOCK_TENSORS.values()] + ["model.embed_tokens.weight", "model.norm.weight"]
    missing = sorted(set(expected) - set(names))
    if missing:
        raise BadInputError(f"'{file.path}' lacks {len(missing)} tensors, the first being '{missing[0]}': it is "
                            "incomplete, or one part of several")
    return dict(sorted(names.items()))


def _make_config(file, dtype, tied):
    class_name, model_type, _ = _ARCHITECTURES[file.architecture]
    hidden, heads = file.integer("embedding_length"), file.integer("attention.head_count")
    special = special_token_ids(file.metadata)
    config = {
        "architectures": [class_name],
        "model_type": model_type,
        "vocab_size": file.shape("token_embd.weight")[0],
        "hidden_size": hidden,
        "intermediate_size": file.integer("feed_forward_length"),
        "num_hidden_layers": file.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.integer("attention.head_count_kv", heads),
        "head_dim": file.integer("attention.key_length", hidden // heads),
        "hidden_act": "silu",
        "max_position_embeddings": file.integer("context_length"),
        "rms_norm_eps": file.real("attention.layer_norm_rms_epsilon"),
        "rope_theta": file.real("rope.freq_base", 10000.0),
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


def _check_shapes(file, names, config):
    """Every tensor against the sizes of the configuration, before anything is written."""
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    if config["head_dim"] % 2:
        raise BadInputError(f"'{file.path}' has heads of {config['head_dim']} values, but positions rotate pairs: it is "
                            "damaged")
    vocabulary = (config["vocab_size"], hidden)
    shapes = {"embed_tokens": vocabulary, "lm_head": vocabulary, "q_proj": (queries, hidden), "k_proj": (keys, hidden),
              "v_proj": (keys, hidden), "o_proj": (hidden, queries), "gate_proj": (mlp, hidden),
              "up_proj": (mlp, hidden), "down_proj": (hidden, mlp)}
    for name, source in names.items():
        _, part, kind = ("." + name).rsplit(".", 2)
        wanted = shapes.get(part, (hidden,))  # norms
        if kind == "bias":
            wanted = wanted[:1]
        if file.shape(source) != wanted:
            raise BadInputError(f"'{file.path}': '{source}' has the shape {list(file.shape(source))}, but the settings "
                                f"make it {list(wanted)}: the file is damaged")


def _make_generation_config(file):
    special = special_token_ids(file.metadata)
    return {f"{name}_token_id": special[name] for name in ("bos", "eos", "pad") if name in special}


def _converted(file, names, config):
    permuted = _ARCHITECTURES[file.architecture][2]
    sizes = {source: math.prod(file.shape(source)) for source in names.values()}
    progress = Progress(f"converting {os.path.basename(file.path)}", sum(sizes.values()))
    done = 0
    for name, source in names.items():
        progress.update(done)
        done += sizes[source]
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


def _encode(value):
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
