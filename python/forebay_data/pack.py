"""Samples become rows of a packed file: long texts are cut, short samples share rows, none see each other."""

import os
from array import array

import numpy as np
import xxhash

from . import DEFAULT_SEQ, PACKER_VERSION, cache, packed_file
from .errors import BadInputError, UsageError, count_of
from .files import MAX_TOKENIZER_BYTES, PRIVATE_FOLDER, make_folder, read_bytes
from .packed_file import PackedInfo
from .samples import SampleOptions, SampleReader, require_data
from .template import load_chat_template
from .tokenizer import ModelConfig, ModelTokenizer

# Rows are built and written in blocks of about this many tokens.
BLOCK_TOKENS = 1 << 22
MAX_SEQ = 1 << 24


class Corpus:
    """All samples as two flat arrays, and the segments (at most one row long) that they are cut into."""

    def __init__(self, seq):
        self._seq = seq
        self._tokens = array("I")
        self._trained = bytearray()
        self._segment_begins = array("q")
        self._segment_lengths = array("q")
        self.num_samples = 0
        self.num_truncated = 0
        self.num_cut = 0
        self.notes = []

    def add(self, sample):
        begin, length = len(self._tokens), len(sample.tokens)
        self._tokens.frombytes(sample.tokens.tobytes())
        self._trained += sample.trained.tobytes()
        # Each further row repeats the last token of the row before it, so that the token after it is predicted too.
        step = self._seq - 1
        for offset in range(0, max(length - 1, 1), step):
            self._segment_begins.append(begin + offset)
            self._segment_lengths.append(min(self._seq, length - offset))
        self.num_samples += 1
        self.num_truncated += sample.truncated
        self.num_cut += length > self._seq

    def tokens(self):
        return np.frombuffer(self._tokens, dtype="<u4")

    def trained(self):
        return np.frombuffer(self._trained, dtype=np.uint8)

    def segments(self):
        """(begins, lengths), in the order of the samples."""
        return np.frombuffer(self._segment_begins, np.int64), np.frombuffer(self._segment_lengths, np.int64)


def assign_rows(lengths, seq):
    """The row of each segment: best fit decreasing, with rows numbered by their first segment.

    Deterministic, and within a few per cent of full rows unless segments are few or all longer than half a row.
    """
    rows = np.empty(len(lengths), dtype=np.int64)
    by_space = [[] for _ in range(seq + 1)]  # open rows by the tokens they have left
    spaces = 0                               # bit n: by_space[n] is not empty
    num_rows = 0
    for index in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[index])
        fitting = spaces >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            row = by_space[space].pop()
            if not by_space[space]:
                spaces &= ~(1 << space)
        else:
            row, space = num_rows, seq
            num_rows += 1
        rows[index] = row
        left = space - length
        if left:
            by_space[left].append(row)
            spaces |= 1 << left
    first_segment = np.full(num_rows, len(lengths))
    np.minimum.at(first_segment, rows, np.arange(len(lengths)))
    rank = np.empty(num_rows, dtype=np.int64)
    rank[np.argsort(first_segment)] = np.arange(num_rows)
    return rank[rows]


class RowBuilder:
    """Builds blocks of rows out of a corpus."""

    def __init__(self, corpus, seq):
        begins, lengths = corpus.segments()
        rows = assign_rows(lengths, seq)
        order = np.argsort(rows, kind="stable")
        self.rows, self.begins, self.lengths = rows[order], begins[order], lengths[order]
        self.num_rows = int(self.rows[-1]) + 1
        self._corpus, self._seq = corpus, seq
        # Where each segment goes in the flat rows: after the segments of the same row that come before it.
        before = np.cumsum(self.lengths) - self.lengths
        row_starts = np.searchsorted(self.rows, np.arange(self.num_rows))
        self._places = self.rows * seq + before - before[row_starts][self.rows]
        self._row_starts = np.append(row_starts, len(self.rows))

    def num_trained(self):
        """Targets: a segment's first token is none, whatever it is in its sample."""
        trained = self._corpus.trained()
        return int(sum(int(trained[b + 1:b + n].sum()) for b, n in zip(self.begins.tolist(), self.lengths.tolist())))

    def blocks(self):
        tokens, trained = self._corpus.tokens(), self._corpus.trained()
        rows_per_block = max(1, BLOCK_TOKENS // self._seq)
        for row in range(0, self.num_rows, rows_per_block):
            count = min(rows_per_block, self.num_rows - row)
            block_tokens = np.zeros(count * self._seq, dtype="<u4")
            block_flags = np.full(count * self._seq, packed_file.PADDING, dtype=np.uint8)
            chosen = slice(self._row_starts[row], self._row_starts[row + count])
            places = (self._places[chosen] - row * self._seq).tolist()
            for place, begin, length in zip(places, self.begins[chosen].tolist(), self.lengths[chosen].tolist()):
                block_tokens[place:place + length] = tokens[begin:begin + length]
                block_flags[place:place + length] = trained[begin:begin + length]
                block_flags[place] = packed_file.SEGMENT_START
            yield block_tokens.reshape(count, self._seq), block_flags.reshape(count, self._seq)


def pack(options):
    """Runs `forebay-data pack`; returns its report. `options` has the fields of the command line."""
    config = ModelConfig(options.model)
    if packed_file.is_packed(options.data):
        return accept_packed(options.data, options.model, config, options.seq)
    settle_seq(options)
    require_data(options.data)
    tokenizer = ModelTokenizer(options.model, config)
    if options.cache is None:
        check_output(options.out, options.data)
        return {**_pack_to(options.out, options, config, tokenizer), "cached": False}
    make_folder(options.cache, PRIVATE_FOLDER, "the cache of packed text",
                "give another folder, of which forebay takes $XDG_CACHE_HOME/forebay/packed when XDG_CACHE_HOME is set")
    path = os.path.join(options.cache, _cache_key(options, config, tokenizer) + ".packed")
    if packed_file.is_packed(path):
        try:
            packed = packed_file.read_info(path)
            packed_file.check_contents(path, packed)
            cache.mark_used(path)
            return {**report_of(path, packed), "cached": True}
        except BadInputError:
            pass  # damaged: packed again below
    report = _pack_to(path, options, config, tokenizer)
    cache.remove_unused(options.cache)
    return {**report, "cached": False}


def require_same_tokenizer(path, packed, folder):
    """Tokens of another tokenizer are numbers without a meaning. Where no tokenizer made them, nobody can tell."""
    tokenizer = os.path.join(folder, "tokenizer.json")
    made_by = packed.info.get("tokenizer_digest", "")
    if not made_by or not os.path.exists(tokenizer):
        return
    if made_by != xxhash.xxh3_128_hexdigest(read_bytes(tokenizer, "the model's tokenizer", MAX_TOKENIZER_BYTES)):
        raise BadInputError(f"'{path}' was packed with another tokenizer than '{tokenizer}': pack the text again with "
                            "this model, or give --model the model that it was packed for")


def accept_packed(path, folder, config, seq):
    """The report of a file that is packed already, after a check that it fits the model in `folder` and --seq."""
    packed = packed_file.read_info(path)
    require_same_tokenizer(path, packed, folder)
    if seq is not None and packed.seq != seq:
        raise BadInputError(f"'{path}' is packed in rows of {packed.seq} tokens, but --seq={seq}: pack the text again, "
                            f"or use --seq={packed.seq}")
    if packed.vocab_size > config.vocab_size:
        raise BadInputError(f"'{path}' was packed for a vocabulary of {packed.vocab_size}, the model has "
                            f"{config.vocab_size}: pack the text again with this model")
    if config.max_positions is not None and packed.longest_segment > config.max_positions:
        raise BadInputError(f"'{path}' has a sample of {packed.longest_segment} tokens in a row, the model has "
                            f"{config.max_positions} positions: pack the text again with --seq={config.max_positions}")
    packed_file.check_contents(path, packed)
    return {**report_of(path, packed), "cached": True}


def check_output(path, data):
    """--out must not replace anything but a packed file of before."""
    if path is None:
        raise UsageError("pack needs --out FILE, or --cache DIR")
    if os.path.lexists(path) and not packed_file.is_packed(path):
        raise UsageError(f"--out='{path}' exists and is no packed file: forebay does not overwrite it; choose another "
                         "name")
    if os.path.exists(path) and os.path.exists(data) and os.path.samefile(path, data):
        raise UsageError(f"--out and --data are the same file, '{path}'")


def settle_seq(options):
    """The default for text, which unlike a packed file has no rows of its own."""
    if options.seq is None:
        options.seq = DEFAULT_SEQ
    if not 2 <= options.seq <= MAX_SEQ:
        raise UsageError(f"--seq={options.seq} is impossible: give the tokens of a row, 2 to {MAX_SEQ}")


def raise_problem(message):
    raise BadInputError(message)


def read_corpus(options, config, tokenizer, on_problem=raise_problem, on_sample=None, find_unwritten=False):
    """All usable samples of --data. `on_sample` sees each of them."""
    reader = SampleReader(options.data, tokenizer, config, lambda: load_chat_template(tokenizer, options.template),
                          SampleOptions(options.seq, options.truncate, find_unwritten), on_problem)
    corpus = Corpus(options.seq)
    for sample in reader:
        corpus.add(sample)
        if on_sample is not None:
            on_sample(sample)
    corpus.notes = reader.notes()
    return corpus


def info_of(corpus, builder, options, config, tokenizer):
    info = {
        "tokenizer_digest": tokenizer.digest,
        "provenance": {
            "packer_version": PACKER_VERSION,
            "data": {"name": os.path.basename(options.data), "bytes": os.path.getsize(options.data),
                     "xxh3_128": _file_digest(options.data)},
            "seq": options.seq,
            "truncate": options.truncate,
            "eos_token_id": tokenizer.eos_id,
            "bos_token_id": tokenizer.bos_id,
            "num_truncated": corpus.num_truncated,
            "num_cut": corpus.num_cut,
            "notes": corpus.notes,
        },
    }
    return PackedInfo(rows=builder.num_rows, seq=options.seq, vocab_size=config.vocab_size,
                      tokens=int(builder.lengths.sum()), trained=builder.num_trained(), samples=corpus.num_samples,
                      longest_segment=int(builder.lengths.max()), info=info)


def report_of(path, packed):
    """What `pack` prints: stable keys, docs/formats.md."""
    provenance = packed.info["provenance"]
    return {
        "path": path,
        "rows": packed.rows,
        "seq": packed.seq,
        "tokens": packed.tokens,
        "trained": packed.trained,
        "samples": packed.samples,
        "truncated": provenance.get("num_truncated", 0),
        "cut": provenance.get("num_cut", 0),
        "padding_share": round(packed.padding_share, 6),
        "longest_segment": packed.longest_segment,
        "vocab_size": packed.vocab_size,
        "digest": packed.digest,
        "tokenizer_digest": packed.info.get("tokenizer_digest", ""),
        "notes": provenance.get("notes", []),
    }


def describe(report):
    """The report for people: a line, and one for each note."""
    return (f"{report['path']}: {count_of(report['samples'], 'sample')}, {count_of(report['tokens'], 'token')} "
            f"({report['trained']:,} trained) in {count_of(report['rows'], 'row')} of {report['seq']}, "
            f"{100 * report['padding_share']:.1f} % padding" + (", from the cache" if report["cached"] else "")
            + "".join(f"\nnote: {note}" for note in report["notes"]))


def _pack_to(path, options, config, tokenizer):
    corpus = read_corpus(options, config, tokenizer)
    builder = RowBuilder(corpus, options.seq)
    info = info_of(corpus, builder, options, config, tokenizer)
    packed_file.write_packed(path, info, builder.blocks)
    return report_of(path, info)


def _cache_key(options, config, tokenizer):
    """A digest of everything that the packed bytes depend on."""
    template = ""
    if options.template is not None:
        template = read_bytes(options.template, "the chat template").hex()
    else:
        try:
            template = load_chat_template(tokenizer).texts
        except BadInputError:
            pass  # only chats need one, and they will say so
    parts = (PACKER_VERSION, packed_file.VERSION, os.path.splitext(options.data)[1].lower(), _file_digest(options.data), tokenizer.digest,
             tokenizer.bos_id, tokenizer.eos_id, sorted(tokenizer.end_ids), sorted(tokenizer.special_tokens.items()), template, config.vocab_size,
             config.max_positions, options.seq, options.truncate)
    return xxhash.xxh3_128_hexdigest(repr(parts).encode("utf-8", "surrogatepass"))


def _file_digest(path):
    hasher = xxhash.xxh3_128()
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                hasher.update(block)
    except (FileNotFoundError, IsADirectoryError):
        raise BadInputError(f"'{path}' does not exist or is a folder: --data names a .txt, .jsonl or packed "
                            "file") from None
    return hasher.hexdigest()
