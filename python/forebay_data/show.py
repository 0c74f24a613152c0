"""`show`: samples as the model will see them, with the trained tokens marked. `check`: what is in the data."""

import os
import sys
from collections import Counter

import numpy as np

from . import packed_file
from .errors import UsageError, count_of
from .pack import (MAX_SEQ, RowBuilder, accept_packed, info_of, read_corpus, report_of, require_same_tokenizer,
                   settle_seq)
from .samples import SampleOptions, SampleReader, require_data
from .template import load_chat_template
from .tokenizer import ModelConfig, ModelTokenizer

MAX_PROBLEMS_SHOWN = 20


def show(options):
    """The first -n samples (segments, of a packed file): {"samples": [{where, tokens, trained, parts}], "more": bool}."""
    config = ModelConfig(options.model)
    require_data(options.data)
    tokenizer = ModelTokenizer(options.model, config)
    found, more = [], False
    for where, tokens, trained in _first_samples(options, config, tokenizer):
        if len(found) == options.n:
            more = True
            break
        found.append(_shown(where, tokens, trained, tokenizer))
    return {"samples": found, "more": more}


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
    return "\n".join(lines)


def check(options):
    """Counts over all of the data, and every problem that would stop `pack`."""
    config = ModelConfig(options.model)
    require_data(options.data)
    tokenizer = ModelTokenizer(options.model, config)
    statistics = _Statistics(tokenizer)
    if packed_file.is_packed(options.data):
        report = accept_packed(options.data, options.model, config, options.seq)
        for _, tokens, trained in _packed_segments(options.data, packed_file.read_info(options.data)):
            statistics.add("packed", tokens, trained)
        return {**report, **statistics.report(), "problems": [], "num_problems": 0}
    settle_seq(options)
    problems = []
    corpus = read_corpus(options, config, tokenizer, problems.append,
                         lambda sample: statistics.add(sample.kind, sample.tokens, sample.trained), find_unwritten=True)
    report = {"notes": corpus.notes}
    if corpus.num_samples:
        builder = RowBuilder(corpus, options.seq)
        report |= report_of(options.data, info_of(corpus, builder, options, config, tokenizer))
        del report["digest"]
    return {**report, **statistics.report(), "problems": problems[:MAX_PROBLEMS_SHOWN], "num_problems": len(problems)}


def describe_check(report):
    lines = []
    for name, value in report.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {count:,}" for key, count in value.items())
        if name not in ("problems", "path", "notes"):
            lines.append(f"{name:26}{value:,}" if isinstance(value, int) else f"{name:26}{value}")
    lines += [f"note: {note}" for note in report["notes"]]
    return "\n".join(lines + [f"problem: {problem}" for problem in report["problems"]])


def _first_samples(options, config, tokenizer):
    if packed_file.is_packed(options.data):
        packed = packed_file.read_info(options.data)
        require_same_tokenizer(options.data, packed, tokenizer.folder)
        packed_file.check_contents(options.data, packed)
        yield from _packed_segments(options.data, packed)
        return
    seq = options.seq or config.max_positions or MAX_SEQ  # without --seq: as long as the model takes
    if seq < 2:
        raise UsageError(f"--seq={seq} is impossible: rows have at least 2 tokens")

    def note(message):
        print(f"forebay-data: {message}", file=sys.stderr)

    reader = SampleReader(options.data, tokenizer, config, lambda: load_chat_template(tokenizer, options.template),
                          SampleOptions(seq, options.truncate), note)
    for sample in reader:
        yield sample.where, sample.tokens[:seq], sample.trained[:seq]


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
        self._lengths = []
        self._with_eos = self._with_trained_eos = self._with_two_bos = 0

    def add(self, kind, tokens, trained):
        self._kinds[kind] += 1
        self._lengths.append(len(tokens))
        is_eos = tokens == self._eos
        self._with_eos += bool(is_eos.any())
        self._with_trained_eos += bool((is_eos & trained).any())
        self._with_two_bos += bool(self._tokenizer.has_two_bos(tokens))

    def report(self):
        report = {"kinds": dict(self._kinds)}
        if self._lengths:
            lengths = np.asarray(self._lengths)
            report["tokens_per_sample"] = {
                "min": int(lengths.min()), "median": int(np.median(lengths)), "mean": round(float(lengths.mean()), 1),
                "p95": int(np.percentile(lengths, 95)), "max": int(lengths.max())}
        return {**report, "samples_with_eos": self._with_eos, "samples_with_trained_eos": self._with_trained_eos,
                "samples_with_doubled_bos": self._with_two_bos}
