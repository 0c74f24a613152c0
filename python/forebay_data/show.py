"""`show`: samples as the model will see them, with the trained tokens marked. `check`: what is in the data."""

import math
import os
import sys
from collections import Counter

import numpy as np

from . import packed_file
from .errors import UsageError, count_of, warn
from .pack import MAX_SEQ, accept_packed, info_of, make_reader, pack_samples, report_of, require_same_tokenizer, settle_seq
from .problems import Problems, lines_of
from .row_packer import RowPacker
from .sources import find_sources
from .tokenizer import ModelConfig, ModelTokenizer


def show(options):
    """The first -n samples (segments, of a packed file): {"samples": [{where, tokens, trained, parts}], "more": bool,
    "notes": [...]}."""
    config = ModelConfig(options.model)
    sources = [] if packed_file.is_packed(options.data) else find_sources(options.data)
    tokenizer = ModelTokenizer(options.model, config)
    found, more, notes = [], False, [note for source in sources for note in source.notes]
    for where, tokens, trained in _first_samples(sources, options, config, tokenizer, notes):
        if len(found) == options.n:
            more = True
            break
        found.append(_shown(where, tokens, trained, tokenizer))
    return {"samples": found, "more": more, "notes": notes}


def describe_samples(report):
    begin, end = ("\x1b[1;32m", "\x1b[0m") if sys.stdout.isatty() else ("«", "»")
    lines = []
    for number, sample in enumerate(report["samples"], 1):
        lines.append(f"--- sample {number}: {sample['where']}, {count_of(sample['num_tokens'], 'token')}, "
                     f"{sample['num_trained']:,} trained (marked {begin}so{end}) ---")
        lines.append("".join(f"{begin}{part['text']}{end}" if part["trained"] else part["text"]
                             for part in sample["parts"]))
    if report["more"]:
        lines.append(f"--- there are more; -n {4 * max(1, len(report['samples']))} shows more of them ---")
    lines += [f"note: {note}" for note in report["notes"]]
    return "\n".join(lines)


def check(options):
    """Counts over all of the data, and every problem that would stop `pack`."""
    config = ModelConfig(options.model)
    sources = [] if packed_file.is_packed(options.data) else find_sources(options.data)
    tokenizer = ModelTokenizer(options.model, config)
    statistics = _Statistics(tokenizer)
    if not sources:
        report = accept_packed(options.data, options.model, config, options.seq)
        for _, tokens, trained in _packed_segments(options.data, packed_file.read_info(options.data)):
            statistics.add("packed", tokens, trained)
        return {**report, **statistics.report(), "problems": [], "num_problems": 0}
    settle_seq(options)
    problems, packer = Problems(), RowPacker(options.seq)
    reader = make_reader(sources, options, config, tokenizer, problems.add, every_problem=True, find_unwritten=True)
    notes = pack_samples(reader, packer, statistics.add_sample)
    report = {"notes": notes}
    if packer.num_samples:
        report = report_of(options.data, info_of(packer, sources, notes, options, config, tokenizer), sources)
        del report["digest"]
    return {**report, **statistics.report(), "problems": problems.first, "num_problems": problems.count}


def describe_check(report):
    lines = []
    for name, value in report.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {count:,}" for key, count in value.items())
        if name not in ("problems", "path", "notes"):
            lines.append(f"{name:26}{value:,}" if isinstance(value, int) else f"{name:26}{value}")
    lines += [f"note: {note}" for note in report["notes"]]
    return "\n".join(lines + [f"problem: {line}" for line in lines_of(report["problems"], report["num_problems"])])


def _first_samples(sources, options, config, tokenizer, notes):
    """Adds what there is to say to `notes` once all that is asked for is read."""
    if not sources:
        packed = packed_file.read_info(options.data)
        require_same_tokenizer(options.data, packed, tokenizer.folder)
        packed_file.check_contents(options.data, packed)
        yield from _packed_segments(options.data, packed)
        return
    options.seq = options.seq or config.max_positions or MAX_SEQ  # without --seq: as long as the model takes
    if options.seq < 2:
        raise UsageError(f"--seq={options.seq} is impossible: rows have at least 2 tokens")

    reader = make_reader(sources, options, config, tokenizer, warn)
    try:
        for sample in reader:
            if not sample.continues:
                yield sample.where, sample.tokens[:options.seq], sample.trained[:options.seq]
    finally:
        notes += reader.notes()


def _packed_segments(path, packed):
    """(where, tokens, trained) of every segment, row by row."""
    for row, (tokens, flags) in enumerate(zip(*packed_file.map_contents(path, packed))):
        used = int(np.count_nonzero(flags != packed_file.PADDING))
        starts = np.flatnonzero(flags & packed_file.SEGMENT_START).tolist()
        for begin, end in zip(starts, starts[1:] + [used]):
            yield (f"{os.path.basename(path)} row {row}, tokens {begin} to {end - 1}", tokens[begin:end],
                   flags[begin:end] & packed_file.TRAINED != 0)


def _shown(where, tokens, trained, tokenizer):
    """A sample as runs of tokens that are all trained or all not, with their text."""
    bounds = [0, *(np.flatnonzero(np.diff(trained)) + 1).tolist(), len(tokens)]
    parts = []
    for begin, end in zip(bounds, bounds[1:]):
        parts.append({"trained": bool(trained[begin]), "text": tokenizer.decode(tokens[begin:end])})
    return {
        "where": where, "num_tokens": len(tokens), "num_trained": int(trained.sum()), "parts": parts,
        "tokens": [{"id": int(token), "text": tokenizer.decode([token]), "trained": bool(is_trained)}
                   for token, is_trained in zip(tokens, trained)],
    }


class _Statistics:
    def __init__(self, tokenizer):
        self._tokenizer, self._eos = tokenizer, tokenizer.eos_id
        self._kinds = Counter()
        self._lengths = Counter()
        self._with_eos = self._with_trained_eos = self._with_two_bos = 0
        self._length = 0          # tokens of the last sample so far, which may come in parts
        self._found = (0, 0)      # whether it has an EOS, and a trained one

    def add_sample(self, sample):
        self.add(sample.kind, sample.tokens, sample.trained, sample.continues)

    def add(self, kind, tokens, trained, continues=False):
        had_length, had = (self._length, self._found) if continues else (0, (0, 0))
        is_eos = tokens == self._eos
        self._found = (had[0] or int(is_eos.any()), had[1] or int((is_eos & trained).any()))
        self._length = had_length + len(tokens) - continues
        self._with_eos += self._found[0] - had[0]
        self._with_trained_eos += self._found[1] - had[1]
        if continues:
            self._lengths[had_length] -= 1
        else:
            self._kinds[kind] += 1
            self._with_two_bos += bool(self._tokenizer.has_two_bos(tokens))
        self._lengths[self._length] += 1

    def report(self):
        report = {"kinds": dict(self._kinds)}
        if self._kinds:
            report["tokens_per_sample"] = _summary(+self._lengths)
        return {**report, "samples_with_eos": self._with_eos, "samples_with_trained_eos": self._with_trained_eos,
                "samples_with_doubled_bos": self._with_two_bos}


def _summary(counts):
    """What `check` says of lengths, given how many there are of each."""
    lengths = np.array(sorted(counts))
    numbers = np.array([counts[length] for length in lengths.tolist()])
    ends = np.cumsum(numbers)

    def at(share):
        """As np.quantile has it."""
        place = share * (int(ends[-1]) - 1)
        low, high = (int(lengths[np.searchsorted(ends, k, side="right")]) for k in (math.floor(place), math.ceil(place)))
        return int(low + (high - low) * (place - math.floor(place)))

    return {"min": int(lengths[0]), "median": at(0.5), "mean": round(float((lengths * numbers).sum() / ends[-1]), 1),
            "p95": at(0.95), "max": int(lengths[-1])}
