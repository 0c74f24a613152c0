"""Samples become rows: long texts are cut, short samples share rows, none see each other.

Rows are made of so many tokens at a time (a window), so that memory does not grow with the data.
"""

import math
from array import array

import numpy as np

from . import packed_file

# A window has about so many tokens, or a few rows if they are very long, and at most so many segments.
WINDOW_TOKENS = 1 << 22
WINDOW_ROWS = 16
WINDOW_SEGMENTS = 1 << 18
# Rows are built in blocks of about this many tokens.
BLOCK_TOKENS = 1 << 20


class RowPacker:
    """Takes samples, and gives (tokens <u4 [n, seq], flags u1 [n, seq]) of all rows in order to `take_rows`, if that is not
    None. The counts are of what was given; finish() gives the rest.
    """

    def __init__(self, seq, take_rows=None):
        self._seq = seq
        self._take_rows = take_rows
        self._window = _Window()
        self._weight = 1
        self._segments_of_source = 0
        self.tokens_of_sources = []
        self._length = 0  # tokens of the sample so far, which may come in parts
        self.num_samples = self.num_truncated = self.num_cut = 0
        self.num_rows = self.num_tokens = self.num_trained = self.longest_segment = 0

    def begin_source(self, weight):
        """Each segment of the samples that follow is taken `weight` times: of 1/2, the first of every two, and so on."""
        self._weight = weight.numerator if weight.denominator == 1 else weight
        self._segments_of_source = 0
        self.tokens_of_sources.append(0)

    def add(self, sample):
        """A sample, or the next part of one that is long."""
        length = len(sample.tokens)
        if length <= self._seq and self._weight == 1:
            segments = [(0, length)]
        else:
            # Each further row repeats the last token of the row before it, so that the token after it is predicted too.
            step = self._seq - 1
            segments = [(offset, min(self._seq, length - offset)) for offset in range(0, max(length - 1, 1), step)
                        for _ in range(self._copies_of_next())]
        self._window.add(sample, segments)
        self.tokens_of_sources[-1] += sum(length for _, length in segments)
        was_cut = sample.continues and self._length > self._seq
        self._length = self._length + length - 1 if sample.continues else length
        self.num_samples += not sample.continues
        self.num_truncated += sample.truncated
        self.num_cut += self._length > self._seq and not was_cut
        if self._window.num_tokens >= max(WINDOW_TOKENS, WINDOW_ROWS * self._seq) or self._window.num_segments >= WINDOW_SEGMENTS:
            self.finish()

    def _copies_of_next(self):
        # The first is always there, so that no source is without any.
        index = self._segments_of_source
        self._segments_of_source += 1
        return math.ceil((index + 1) * self._weight) - math.ceil(index * self._weight)

    def finish(self):
        """Makes rows of all that was added since the last time."""
        if not self._window.num_segments:
            return
        rows = _Rows(self._window, self._seq)
        self.num_rows += rows.num_rows
        self.num_tokens += int(rows.lengths.sum())
        self.num_trained += rows.num_trained()
        self.longest_segment = max(self.longest_segment, int(rows.lengths.max()))
        if self._take_rows is not None:
            for tokens, flags in rows.blocks():
                self._take_rows(tokens, flags)
        self._window = _Window()


class _Window:
    """Samples as two flat arrays, and the segments (at most one row long) that they are cut into."""

    def __init__(self):
        self._tokens = array("I")
        self._trained = bytearray()
        self._begins = array("q")
        self._lengths = array("q")

    @property
    def num_tokens(self):
        return len(self._tokens)

    @property
    def num_segments(self):
        return len(self._begins)

    def add(self, sample, segments):
        if not segments:
            return
        begin = len(self._tokens)
        self._tokens.frombytes(sample.tokens.tobytes())
        self._trained += sample.trained.tobytes()
        for offset, length in segments:
            self._begins.append(begin + offset)
            self._lengths.append(length)

    def tokens(self):
        return np.frombuffer(self._tokens, dtype="<u4")

    def trained(self):
        return np.frombuffer(self._trained, dtype=np.uint8)

    def segments(self):
        """(begins, lengths), in the order of the samples."""
        return np.frombuffer(self._begins, np.int64), np.frombuffer(self._lengths, np.int64)


def assign_rows(lengths, seq):
    """The row of each segment: best fit decreasing, with rows numbered by their first segment.

    Deterministic, and within a few per cent of full rows unless segments are few or all longer than half a row.
    """
    rows = np.empty(len(lengths), dtype=np.int64)
    by_space = {}  # open rows by the tokens they have left
    spaces = 0     # bit n: by_space[n] is not empty
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
            by_space.setdefault(left, []).append(row)
            spaces |= 1 << left
    first_segment = np.full(num_rows, len(lengths))
    np.minimum.at(first_segment, rows, np.arange(len(lengths)))
    rank = np.empty(num_rows, dtype=np.int64)
    rank[np.argsort(first_segment)] = np.arange(num_rows)
    return rank[rows]


class _Rows:
    """The rows of a window."""

    def __init__(self, window, seq):
        begins, lengths = window.segments()
        rows = assign_rows(lengths, seq)
        order = np.argsort(rows, kind="stable")
        self._rows, self.begins, self.lengths = rows[order], begins[order], lengths[order]
        self.num_rows = int(self._rows[-1]) + 1
        self._window, self._seq = window, seq
        # Where each segment goes in the flat rows: after the segments of the same row that come before it.
        before = np.cumsum(self.lengths) - self.lengths
        row_starts = np.searchsorted(self._rows, np.arange(self.num_rows))
        self._places = self._rows * seq + before - before[row_starts][self._rows]
        self._row_starts = np.append(row_starts, len(self._rows))

    def num_trained(self):
        """Targets: a segment's first token is none, whatever it is in its sample."""
        trained = self._window.trained()
        before = np.zeros(len(trained) + 1, dtype=np.int32)
        np.cumsum(trained, out=before[1:])
        return int((before[self.begins + self.lengths] - before[self.begins + 1]).sum(dtype=np.int64))

    def blocks(self):
        tokens, trained = self._window.tokens(), self._window.trained()
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
