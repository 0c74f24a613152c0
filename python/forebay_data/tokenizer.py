"""The tokenizer of a model folder and what forebay needs to know about it."""

import contextlib
import functools
import itertools
import os
import re
from array import array
from dataclasses import dataclass

import numpy as np
import tokenizers
import xxhash

from .bounds import MEMORY_BYTES, bounded
from .errors import BadInputError, warn
from .files import MAX_TOKENIZER_BYTES, read_bytes, read_json, read_json_if_present
from .turns import TurnTokens

# Texts are tokenized together up to this size in UTF-8: the library takes some 400 bytes of memory for each of their tokens,
# and each core needs some texts. Not by the number of cores: a long text is cut within groups, on every machine the same.
GROUP_BYTES = 1 << 19
# What bounds.MEMORY_BYTES are for.
_BOUNDED_BYTES = 1 << 20
# The most that is tokenized as a whole: of a prompt, a chat, or what can be cut nowhere.
MAX_WHOLE_BYTES = 4 << 20
# That the library takes for each byte of a tokenizer.json: some 20.
_MEMORY_PER_BYTE = 32

ADAPTER_CONFIG = "adapter_config.json"
SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


class ModelConfig:
    """The two limits that data must respect, from config.json."""

    def __init__(self, folder):
        self._folder = folder
        path = os.path.join(folder, "config.json")
        if not os.path.lexists(path) and os.path.lexists(os.path.join(folder, ADAPTER_CONFIG)):
            raise BadInputError(f"'{folder}' has an adapter ({ADAPTER_CONFIG}) and no model: merge it with the model that it "
                                "was made for (merge_and_unload of PEFT, then save_pretrained)")
        what = "a model folder has a config.json; give --model the folder of a Hugging Face model"
        self.json = read_json(path, what)
        self.vocab_size = self._positive_int(path, "vocab_size")
        if self.vocab_size is None:
            raise BadInputError(f"'{path}' has no 'vocab_size'; add the number of rows of the embedding")
        self.max_positions = self._positive_int(path, "max_position_embeddings", "n_positions")

    def _positive_int(self, path, *keys):
        """The first key that is there, or None."""
        for key in keys:
            value = self.json.get(key)
            if value is None:
                continue
            number = _whole_number(value)
            if number is None or not 0 < number < 2**31:
                raise BadInputError(f"'{path}': '{key}' is {value!r}; it must be a whole number from 1 to 2147483647")
            return number
        return None

    def eos_ids(self):
        return _token_ids(self.json.get("eos_token_id"), os.path.join(self._folder, "config.json"))


class ModelTokenizer:
    """tokenizer.json with its special tokens, checked against the model's vocabulary.

    `warn` is told of what is wrong only for texts that have it.
    """

    def __init__(self, folder, config, warn=warn):
        self.folder = folder
        self._config = config
        path = os.path.join(folder, "tokenizer.json")
        contents = read_bytes(path, "a tokenizer is needed to turn text into tokens; copy the tokenizer.json of the "
                                    "model here (transformers writes one with save_pretrained)", MAX_TOKENIZER_BYTES)
        self._path = path
        self._tokenizer = load_tokenizer(f"'{path}'", contents)
        self.settings = read_json_if_present(os.path.join(folder, "tokenizer_config.json"), "the tokenizer's settings")
        last = max(self._tokenizer.get_vocab(with_added_tokens=False).values(), default=-1)
        if last >= config.vocab_size:
            raise BadInputError(f"'{path}' has token ids up to {last}, but the model's vocabulary has "
                                f"{config.vocab_size} (config.json): this tokenizer belongs to another model")
        added = self._tokenizer.get_added_tokens_decoder()
        beyond = [f"'{token.content}' ({i})" for i, token in sorted(added.items()) if i >= config.vocab_size]
        self._has_beyond = bool(beyond)
        if beyond:
            warn(f"'{path}' adds {', '.join(beyond[:3])}{' and others' if len(beyond) > 3 else ''} past the model's "
                 f"vocabulary of {config.vocab_size} (config.json): a sample that has one is refused")
        self.special_tokens = self._read_special_tokens()
        self.bos_id = self._id_of("bos_token")
        self.eos_id = self._id_of("eos_token")
        self.pad_id = self._id_of("pad_token")
        if self.eos_id is None:
            self.eos_id = next((i for i in config.eos_ids() if i < config.vocab_size), None)
        self.special_texts = tuple(token.content for token in added.values() if token.special)
        # What the tokenizer itself puts before a text (BOS, or nothing).
        self.prefix_ids = self._find_prefix()
        self.digest = xxhash.xxh3_128_hexdigest(contents)  # of tokenizer.json; the C++ side computes the same

    def _usable(self):
        """Around the use of a tokenizer that could be loaded, but whose parts may contradict each other."""
        return _library_errors(f"the tokenizer in '{self._path}' cannot be used, so it is damaged")

    def _read_special_tokens(self):
        """{"eos_token": "<|im_end|>", ...}: tokenizer_config.json, then special_tokens_map.json."""
        fallback = read_json_if_present(os.path.join(self.folder, "special_tokens_map.json"), "the special tokens")
        tokens = {}
        for name in SPECIAL_TOKEN_NAMES:
            value = self.settings.get(name, fallback.get(name))
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str):
                tokens[name] = value
        return tokens

    def _id_of(self, name):
        text = self.special_tokens.get(name)
        return None if text is None else self._tokenizer.token_to_id(text)

    def _find_prefix(self):
        with self._usable(), self._bounded("", 0):
            full = self._tokenizer.encode("a", add_special_tokens=True)
        return [i for i, _ in itertools.takewhile(lambda pair: pair[1], zip(full.ids, full.special_tokens_mask))]

    def prefix_of(self, ids):
        """What the tokenizer puts before a text with these tokens: nothing if it begins so already, as with a BOS of its own."""
        return [] if list(ids[:len(self.prefix_ids)]) == self.prefix_ids else self.prefix_ids

    def suffix_of(self, ids):
        """EOS; nothing if the tokens end already as generation does."""
        return [] if len(ids) and int(ids[-1]) in self.end_ids else [self.require_eos()]

    def has_two_bos(self, ids):
        """Whether the tokens begin with BOS twice, which no training has taught a model."""
        return self.bos_id not in (None, self.eos_id) and len(ids) > 1 and ids[0] == ids[1] == self.bos_id

    @functools.cached_property
    def end_ids(self):
        """Where a sample ends without another EOS, and a turn of a chat does."""
        return frozenset([*self.stop_ids(), self.require_eos()])

    @functools.cached_property
    def turn_tokens(self):
        """The texts that tell where a turn of a chat ends."""
        texts = [self._tokenizer.id_to_token(i) for i in sorted(self.end_ids)]
        bos = self.special_tokens.get("bos_token")
        return TurnTokens(tuple(filter(None, texts)), self.special_texts, (bos,) if bos else ())

    @functools.cached_property
    def special_pattern(self):
        """Finds the special tokens in a text, as far as their places do not depend on what is around them; None: it has none."""
        texts = [token.content for token in self._tokenizer.get_added_tokens_decoder().values()
                 if token.special and token.content and not token.normalized and not token.single_word]
        return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True)))) if texts else None

    def require_eos(self):
        if self.eos_id is None:
            raise BadInputError(f"the tokenizer in '{self.folder}' names no EOS token, so samples could not be ended: "
                                "set 'eos_token' in tokenizer_config.json to a token of the vocabulary")
        problem = self.beyond_vocabulary([self.eos_id])
        if problem is not None:
            raise BadInputError(f"the tokenizer in '{self.folder}' ends samples with {problem}: set 'eos_token' in "
                                "tokenizer_config.json to another token")
        return self.eos_id

    def beyond_vocabulary(self, ids):
        """The first of the tokens that the model has no row for, in words; None: it has one for each."""
        if not self._has_beyond:
            return None
        ids = np.asarray(ids)
        beyond = ids[ids >= self._config.vocab_size]
        if not len(beyond):
            return None
        return (f"the token '{self._tokenizer.id_to_token(int(beyond[0]))}' ({beyond[0]}), which the model's vocabulary of "
                f"{self._config.vocab_size} (config.json) does not have")

    def encode_each(self, texts, where="", in_pieces=True):
        """Yields the token ids (a list) of each text as it stands, without special tokens around it.

        As encodings_of() has it.
        """
        return (encoding.ids for encoding in self.encodings_of(texts, where, in_pieces))

    def encodings_of(self, texts, where="", in_pieces=True):
        """Yields for each text what has its token ids as `ids`: a list that is made each time.

        As many texts are tokenized together as bounds allow, and large ones in pieces with `in_pieces`. `where`: their
        place and ": ", for errors.
        """
        group, group_bytes = [], 0
        for text in texts:
            size_bytes = size_in_utf8(text)
            is_large = in_pieces and size_bytes > 2 * GROUP_BYTES
            if group and (is_large or group_bytes + size_bytes > GROUP_BYTES):
                yield from self._encode_group(group, group_bytes, where)
                group, group_bytes = [], 0
            if is_large:
                from .long_text import LongText
                yield _Encoding([token for ids in LongText(self, [text], where).arrays() for token in ids.tolist()])
                continue
            group.append(text)
            group_bytes += size_bytes
        yield from self._encode_group(group, group_bytes, where)

    def encode_batch(self, texts, where=""):
        return list(self.encode_each(texts, where))

    def encode(self, text, where=""):
        return self.encode_batch([text], where)[0]

    def _encode_group(self, texts, size_bytes, where):
        if not texts:
            return []
        with self._usable(), self._bounded(where, size_bytes):
            return self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)

    def _bounded(self, where, size_bytes):
        return bounded(f"{where}tokenizing with '{self._path}'",
                       "take the tokenizer.json that the model was published with, or shorten the text",
                       size_bytes / _BOUNDED_BYTES)

    def decode(self, ids, skip_special_tokens=False):
        with self._usable(), self._bounded("", 4 * len(ids)):
            return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)

    def joined(self, ids):
        """The tokens as the vocabulary has them, one after the other."""
        return "".join(self._tokenizer.id_to_token(int(i)) or "" for i in ids)

    def stop_ids(self):
        """Where generation ends: generation_config.json's list; else config.json's, and where training ends a text."""
        path = os.path.join(self.folder, "generation_config.json")
        value = read_json_if_present(path, "the settings of generation").get("eos_token_id")
        own = [] if self.eos_id is None else [self.eos_id]
        return _token_ids(value, path) or list(dict.fromkeys(self._config.eos_ids() + own))


@dataclass
class _Encoding:
    """As the library has them of a text that is not large."""

    ids: list


class StreamDecoder:
    """Text from tokens one at a time; a character whose bytes span tokens comes out whole, with its last token."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self._ids = []      # from the last emitted token group on: what decides the next text
        self._emitted = 0   # how many of them are already in the output

    def _texts(self):
        done = self._tokenizer.decode(self._ids[:self._emitted], skip_special_tokens=True)
        return done, self._tokenizer.decode(self._ids, skip_special_tokens=True)

    def push(self, token):
        self._ids.append(token)
        done, text = self._texts()
        if len(text) <= len(done) or text.endswith("\ufffd"):
            return ""
        self._ids = self._ids[self._emitted:]
        self._emitted = len(self._ids)
        return text[len(done):]

    def finish(self):
        done, text = self._texts()
        self._ids, self._emitted = [], 0
        return text[len(done):]


@contextlib.contextmanager
def _library_errors(problem):
    """What the library raises as a BadInputError that begins with `problem`."""
    try:
        yield
    except BaseException as error:  # the Rust side raises bare Exception and, on a panic, BaseException
        if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)):
            raise
        raise BadInputError(f"{problem}: {error}") from None


def size_in_utf8(text):
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def as_array(ids):
    return np.frombuffer(array("I", ids), dtype=np.uint32)


def load_tokenizer(what, contents):
    """The library's tokenizer from the bytes of a tokenizer.json; `what` names it in errors."""
    with (_library_errors(f"{what} is no tokenizer that this version of 'tokenizers' ({tokenizers.__version__}) reads"),
          bounded(f"loading {what}", "take the tokenizer.json that the model was published with",
                  1 + _MEMORY_PER_BYTE * len(contents) / MEMORY_BYTES)):
        tokenizer = tokenizers.Tokenizer.from_buffer(contents)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    with _library_errors(f"{what} cannot be used, so it is damaged"):
        # Starts the library's threads: their stacks are no part of what a text may take.
        tokenizer.encode_batch_fast(["", ""])
    return tokenizer


def _whole_number(value):
    """The number that a JSON number is, 32768.0 too; None: it is none."""
    if type(value) is float and value.is_integer():
        return int(value)
    return value if type(value) is int else None


def _token_ids(value, path):
    """The ids that 'eos_token_id' of the file names. null and -1 say that there is none."""
    ids = [_whole_number(i) for i in (value if isinstance(value, list) else [value]) if i is not None]
    if any(i is None or not -1 <= i < 2**31 for i in ids):
        raise BadInputError(f"'{path}': 'eos_token_id' is {value!r}; it must be a token id (a whole number from 0 to "
                            "2147483647) or a list of them")
    return [i for i in ids if i != -1]
