"""Tokens of a text of any size, with a part of it in memory at a time.

A text is tokenized in pieces, so that cores share the work. Pieces end only at places around which a window shows that
cutting changes no token. A piece is tokenized together with the characters before it, whose tokens are then left out:
some tokenizers write a space before whatever a text begins with.
"""

import itertools
import re

from .errors import BadInputError
from .tokenizer import GROUP_BYTES, MAX_WHOLE_BYTES, as_array, size_in_utf8

# About so much of UTF-8 is a piece. Cuts do not depend on the machine.
PIECE_BYTES = 1 << 15
# The sizes of the windows before and after a cut, and of what comes before a piece.
WINDOW_CHARS = 256
CONTEXT_CHARS = 16
CUT_CANDIDATES = 32
# The likeliest places first; other ends of words for languages that have no blanks.
_CUT_PATTERNS = (re.compile(r"\S\n(?=\S)|\w(?= \w)"), re.compile(r"\w(?=\W)|\W(?=\w)"))


def _candidates(text, begin, end):
    for pattern in _CUT_PATTERNS:
        yield from (match.end() for match in itertools.islice(pattern.finditer(text, begin, end), CUT_CANDIDATES))


class LongText:
    """`chunks`: the text in parts of any size. `where`: its place and ": ", for errors."""

    def __init__(self, tokenizer, chunks, where=""):
        self._tokenizer = tokenizer
        self._chunks = iter(chunks)
        self._where = where
        self._before = ""       # the last characters that are tokenized already
        self._text = ""         # what comes next
        self._done_chars = 0
        self._has_more = True   # chunks after the text
        self._searched = 0      # where the search for cuts goes on

    def arrays(self):
        """Yields arrays of token ids (uint32); together they are those of the text as a whole."""
        while self._has_more or self._text:
            self._fill()
            ends = self._cuts() + ([] if self._has_more else [len(self._text)])
            for begin, end in zip([0, *ends], [*ends, len(self._text)]):
                self._require_whole(begin, end)
            if ends:
                yield from self._encode(ends)
                self._before = (self._before + self._text[:ends[-1]])[-WINDOW_CHARS:]
                self._text = self._text[ends[-1]:]
                self._done_chars += ends[-1]
                self._searched = 0

    def _fill(self):
        parts, wanted_bytes = [self._text], GROUP_BYTES if self._searched else GROUP_BYTES - size_in_utf8(self._text)
        while wanted_bytes > 0 and self._has_more:
            chunk = next(self._chunks, None)
            if chunk is None:
                self._has_more = False
            else:
                parts.append(chunk)
                wanted_bytes -= size_in_utf8(chunk)
        self._text = "".join(parts)

    def _cuts(self):
        """Places in the text, about a piece apart, where windows around them have the same tokens cut and uncut."""
        piece_chars = max(1, len(self._text) * PIECE_BYTES // max(size_in_utf8(self._text), 1))
        most = len(self._text) - WINDOW_CHARS if self._has_more else len(self._text)
        open_places, cuts = [], []
        for place in range(self._searched + piece_chars, most, piece_chars):
            open_places.append(_candidates(self._text, place, min(place + piece_chars // 2, most)))
            self._searched = place
        while open_places:
            tried = [(place, cut) for place in open_places if (cut := next(place, None)) is not None]
            good = self._good_cuts([cut for _, cut in tried])
            cuts += [cut for (_, cut), is_good in zip(tried, good) if is_good]
            open_places = [place for (place, _), is_good in zip(tried, good) if not is_good]
        return sorted(cuts)

    def _good_cuts(self, cuts):
        texts = []
        for cut in cuts:
            left, right = self._left_of(cut, WINDOW_CHARS), self._text[cut:cut + WINDOW_CHARS]
            texts += [left + right, left, self._left_of(cut, CONTEXT_CHARS), self._left_of(cut, CONTEXT_CHARS) + right]
        encoded = self._tokenizer.encode_each(texts, self._where)
        for whole, left, context, right in zip(encoded, encoded, encoded, encoded):
            yield right[:len(context)] == context and whole == left + right[len(context):]

    def _left_of(self, cut, size):
        return self._text[cut - size:cut] if cut >= size else (self._before + self._text[:cut])[-size:]

    def _encode(self, ends):
        begins = [0, *ends[:-1]]
        contexts = [self._left_of(begin, CONTEXT_CHARS) for begin in begins]
        pieces = [self._text[begin:end] for begin, end in zip(begins, ends)]
        context_ids = self._tokenizer.encode_batch(contexts, self._where)
        encoded = self._tokenizer.encode_each(map("".join, zip(contexts, pieces)), self._where, in_pieces=False)
        for ids, before, piece in zip(encoded, context_ids, pieces):
            if ids[:len(before)] != before:  # windows can deceive if merges run across thousands of characters
                [ids], before = self._tokenizer.encode_each([piece], self._where, in_pieces=False), []
            yield as_array(ids[len(before):])

    def _require_whole(self, begin, end):
        size_bytes = size_in_utf8(self._text[begin:end])
        if size_bytes > MAX_WHOLE_BYTES:
            raise BadInputError(f"{self._where}of the text from character {self._done_chars + begin + 1:,} on {size_bytes:,} bytes "
                                "would be tokenized in one piece, as it can be cut nowhere between words; at most "
                                f"{MAX_WHOLE_BYTES:,} are: break its lines, or remove what is no text")
