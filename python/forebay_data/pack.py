"""`pack`: data becomes a packed file, or one of the cache."""

import os

import xxhash

from . import DEFAULT_SEQ, PACKER_VERSION, cache, packed_file
from .errors import BadInputError, UsageError, count_of
from .files import MAX_TOKENIZER_BYTES, PRIVATE_FOLDER, make_folder, read_bytes
from .packed_file import PackedInfo, RowSpool
from .problems import Problems
from .row_packer import RowPacker
from .samples import SampleOptions, SampleReader
from .sources import find_sources
from .template import load_chat_template
from .tokenizer import ModelConfig, ModelTokenizer

MAX_SEQ = 1 << 24


def pack(options):
    """Runs `forebay-data pack`; returns its report. `options` has the fields of the command line."""
    config = ModelConfig(options.model)
    if packed_file.is_packed(options.data):
        return accept_packed(options.data, options.model, config, options.seq)
    settle_seq(options)
    # First: who mistyped --data wants to hear of that, not of a model without a tokenizer.
    sources = find_sources(options.data)
    tokenizer = ModelTokenizer(options.model, config)
    if options.cache is None:
        check_output(options.out, sources)
        return {**_pack_to(options.out, sources, options, config, tokenizer), "cached": False}
    make_folder(options.cache, PRIVATE_FOLDER, "the cache of packed text",
                "give another folder, of which forebay takes $XDG_CACHE_HOME/forebay/packed when XDG_CACHE_HOME is set")
    path = os.path.join(options.cache, _cache_key(sources, options, config, tokenizer) + ".packed")
    if packed_file.is_packed(path):
        try:
            packed = packed_file.read_info(path)
            packed_file.check_contents(path, packed)
            cache.mark_used(path)
            return {**report_of(path, packed, sources), "cached": True}
        except BadInputError:
            pass  # damaged: packed again below
    report = _pack_to(path, sources, options, config, tokenizer)
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


def check_output(path, sources):
    """--out must not replace anything but a packed file of before."""
    if path is None:
        raise UsageError("pack needs --out FILE, or --cache DIR")
    if os.path.lexists(path) and not packed_file.is_packed(path):
        raise UsageError(f"--out='{path}' exists and is no packed file: forebay does not overwrite it; choose another "
                         "name")
    files = [file.path for source in sources for file in source.files]
    if os.path.exists(path) and any(os.path.samefile(path, file) for file in files):
        raise UsageError(f"--out and --data are the same file, '{path}'")


def settle_seq(options):
    """The default for text, which unlike a packed file has no rows of its own."""
    if options.seq is None:
        options.seq = DEFAULT_SEQ
    if not 2 <= options.seq <= MAX_SEQ:
        raise UsageError(f"--seq={options.seq} is impossible: give the tokens of a row, 2 to {MAX_SEQ}")


def make_reader(sources, options, config, tokenizer, on_problem, **more):
    """`more`: of SampleOptions."""
    return SampleReader(sources, tokenizer, config, lambda: load_chat_template(tokenizer, options.template),
                        SampleOptions(options.seq, options.truncate, options.template, **more), on_problem)


def pack_samples(reader, packer, on_sample=None):
    """All usable samples of the reader into the packer. `on_sample` sees each of them. Returns notes about the data."""
    for source in reader.sources:
        packer.begin_source(source.weight)
        for sample in reader.samples_of(source):
            packer.add(sample)
            if on_sample is not None:
                on_sample(sample)
    packer.finish()
    return reader.notes()


def info_of(packer, sources, notes, options, config, tokenizer):
    info = {
        "tokenizer_digest": tokenizer.digest,
        "provenance": {
            "packer_version": PACKER_VERSION,
            "data": [{"name": os.path.basename(source.name.rstrip("/")), "weight": float(source.weight), "files": len(source.files),
                      "bytes": source.size_bytes, "xxh3_128": source.digest, "tokens": tokens}
                     for source, tokens in zip(sources, packer.tokens_of_sources)],
            "seq": options.seq,
            "truncate": options.truncate,
            "eos_token_id": tokenizer.eos_id,
            "bos_token_id": tokenizer.bos_id,
            "num_truncated": packer.num_truncated,
            "num_cut": packer.num_cut,
            "notes": notes,
        },
    }
    return PackedInfo(rows=packer.num_rows, seq=options.seq, vocab_size=config.vocab_size, tokens=packer.num_tokens,
                      trained=packer.num_trained, samples=packer.num_samples, longest_segment=packer.longest_segment, info=info)


def report_of(path, packed, sources=()):
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
        "notes": [note for source in sources for note in source.notes] + _shares(packed) + provenance.get("notes", []),
    }


def _shares(packed):
    """What each of several sources is of the whole: weights do not say it, as sources differ in size."""
    sources = packed.info["provenance"].get("data", [])
    if len(sources) < 2:
        return []
    return [f"'{source['name']}' (weight {source['weight']:g}) gives {100 * source['tokens'] / packed.tokens:.1f} % of the tokens"
            for source in sources]


def describe(report):
    """The report for people: a line, and one for each note."""
    line = (f"{report['path']}: {count_of(report['samples'], 'sample')}, {count_of(report['tokens'], 'token')} "
            f"({report['trained']:,} trained) in {count_of(report['rows'], 'row')} of {report['seq']}, "
            f"{100 * report['padding_share']:.1f} % padding" + (", from the cache" if report["cached"] else ""))
    return "\n".join([line, *(f"note: {note}" for note in report["notes"])])


def _pack_to(path, sources, options, config, tokenizer):
    problems = Problems()
    with RowSpool(os.path.dirname(os.path.abspath(path))) as spool:
        # After a problem nothing will be written.
        packer = RowPacker(options.seq, lambda *rows: None if problems.count else spool.append(*rows))
        notes = pack_samples(make_reader(sources, options, config, tokenizer, problems.add, every_problem=True), packer)
        problems.raise_if_any()
        info = info_of(packer, sources, notes, options, config, tokenizer)
        packed_file.write_packed(path, info, spool.blocks)
    return report_of(path, info, sources)


def _cache_key(sources, options, config, tokenizer):
    """A digest of everything that the packed bytes depend on."""
    template = ""
    if options.template is not None:
        template = read_bytes(options.template, "the chat template").hex()
    else:
        try:
            template = load_chat_template(tokenizer).texts
        except BadInputError:
            pass  # only chats need one, and they will say so
    data = [(str(source.weight), source.digest) for source in sources]
    parts = (PACKER_VERSION, packed_file.VERSION, data, tokenizer.digest, tokenizer.bos_id, tokenizer.eos_id,
             sorted(tokenizer.end_ids), sorted(tokenizer.special_tokens.items()), template, config.vocab_size, config.max_positions, options.seq,
             options.truncate)
    return xxhash.xxh3_128_hexdigest(repr(parts).encode("utf-8", "surrogatepass"))
