"""The tokenizer inside a GGUF file as tokenizer.json and tokenizer_config.json."""

import json

from .errors import BadInputError

# tokenizer.ggml.token_type (llama.cpp, llama_token_type).
_CONTROL, _USER_DEFINED = 3, 4

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_BYTE_LEVEL_ONLY = {**_BYTE_LEVEL, "use_regex": False}
_DIGITS = {"type": "Digits", "individual_digits": True}


def _split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


# Regular expressions as in the tokenizer.json files that these models were published with.
_LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
                   r"\s*[\r\n]+|\s+(?!\S)|\s+")
_QWEN2_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
                  r"\s*[\r\n]+|\s+(?!\S)|\s+")

# tokenizer.ggml.pre -> pre-tokenizers, normalizer, whether whole words of the vocabulary skip the merges.
_PRE_TOKENIZERS = {
    "gpt-2": ([_BYTE_LEVEL], None, False),
    "default": ([_BYTE_LEVEL], None, False),
    "smollm": ([_DIGITS, _BYTE_LEVEL], None, False),
    "llama-bpe": ([_split(_LLAMA3_PATTERN), _BYTE_LEVEL_ONLY], None, True),
    "qwen2": ([_split(_QWEN2_PATTERN), _BYTE_LEVEL_ONLY], {"type": "NFC"}, False),
}


def convert_tokenizer(metadata, context_length):
    """(tokenizer.json, tokenizer_config.json) as objects. `metadata(key, default)` reads the GGUF file."""
    model = metadata("tokenizer.ggml.model", None)
    if model != "gpt2":
        raise BadInputError(f"the GGUF file has a '{model}' tokenizer; only byte-level BPE ('gpt2') is converted: take "
                            "tokenizer.json from the model's original folder")
    pre = metadata("tokenizer.ggml.pre", "default")
    if not isinstance(pre, str) or pre not in _PRE_TOKENIZERS:
        raise BadInputError(f"the GGUF file splits words as '{pre}', which is not supported (supported: "
                            f"{', '.join(sorted(_PRE_TOKENIZERS))}): take tokenizer.json from the model's original "
                            "folder")
    steps, normalizer, ignore_merges = _PRE_TOKENIZERS[pre]
    tokens = _list_of(str, metadata, "tokens", [])
    merges = _list_of(str, metadata, "merges", [])
    types = _list_of(int, metadata, "token_type", [1] * len(tokens))
    if not tokens or len(types) != len(tokens) or len(set(tokens)) != len(tokens):
        raise BadInputError(f"the GGUF file has {len(tokens)} tokens ({len(set(tokens))} different) with {len(types)} "
                            "types: its vocabulary is damaged")
    special = _special_tokens(metadata, tokens)
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [_added_token(index, token, kind == _CONTROL)
                         for index, (token, kind) in enumerate(zip(tokens, types)) if kind in (_CONTROL, _USER_DEFINED)],
        "normalizer": normalizer,
        "pre_tokenizer": steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps},
        "post_processor": _post_processor(metadata, special, pre, tokens),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": ignore_merges,
            "vocab": {token: index for index, token in enumerate(tokens)}, "merges": merges,
        },
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
              "model_max_length": context_length,
              **{f"{name}_token": tokens[index] for name, index in special.items()}}
    template = metadata("tokenizer.chat_template", None)
    if isinstance(template, str):
        config["chat_template"] = template
    return tokenizer, config


def special_token_ids(metadata):
    """{"bos": id, ...} of those that the file names."""
    names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    ids = {name: metadata(f"tokenizer.ggml.{key}_token_id", None) for name, key in names.items()}
    for name, index in ids.items():
        if index is not None and type(index) is not int:
            raise BadInputError(f"the GGUF file's {name} token is {repr(index)[:80]}, not a token's number")
    return {name: index for name, index in ids.items() if index is not None}


def _list_of(kind, metadata, key, default):
    values = metadata(f"tokenizer.ggml.{key}", default)
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise BadInputError(f"the GGUF file's 'tokenizer.ggml.{key}' is no list of {kind.__name__}: it is damaged")
    return values


def _special_tokens(metadata, tokens):
    special = special_token_ids(metadata)
    for name, index in special.items():
        if not 0 <= index < len(tokens):
            raise BadInputError(f"the GGUF file's {name} token is {index}, but it has {len(tokens)} tokens")
    return special


def _added_token(index, text, special):
    return {"id": index, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": special}


def _post_processor(metadata, special, pre, tokens):
    """Puts BOS before a text where the file says so (Llama 3 does without saying)."""
    if "bos" not in special or not metadata("tokenizer.ggml.add_bos_token", pre == "llama-bpe"):
        return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    bos = tokens[special["bos"]]
    template = [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    second = [{"SpecialToken": {"id": bos, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": template, "pair": template + second,
            "special_tokens": {bos: {"id": bos, "ids": [special["bos"]], "tokens": [bos]}}}


def encode_tokenizer(tokenizer):
    return json.dumps(tokenizer, ensure_ascii=False, indent=2) + "\n"
