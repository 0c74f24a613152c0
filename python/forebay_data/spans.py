"""Tokens of a text with boundaries at certain places: as generation, which begins with the tokens of a prefix, has them.

The tokens up to a boundary are those of the text up to there. What follows them are those that the longer text has more;
if it has others instead, a token goes across the boundary, and the tokens of what follows are found that spell the same.
"""

import bisect
import itertools
import unicodedata

import numpy as np

# Before a piece, each of them can keep a tokenizer from taking it for the beginning of a text, which may get a blank. The
# first that a token of the vocabulary does not join with the piece, and that makes it spell as it should, is taken.
_BEFORE = ("", "\ufdd0", "\n", "\t", ".", "a", "z", "Q", "0", "(", "_", "\u4e2d", "\u00e9", "\U0001f600", "\n\n", "x.")


def windows_at_bounds(text, bounds, tokenizer):
    """[(start, begin, bound)] for each piece [begin, bound) of the text: from `start` on the text counts for its tokens.

    A tokenizer looks for its special tokens first, and then only at what is between two of them: so that is the last of
    them that ends before the piece.
    """
    pattern = tokenizer.special_pattern
    specials = [match.span() for match in pattern.finditer(text)] if pattern else []
    ends = [end for _, end in specials]
    windows = []
    for begin, bound in zip([0, *bounds], bounds):
        last = bisect.bisect_right(ends, begin) - 1
        windows.append((specials[last][0] if last >= 0 else 0, begin, bound))
    return windows


def texts_of(text, windows):
    """What tokens_at_bounds wants the tokens of: what is before each piece, and that with the piece."""
    for start, begin, bound in windows:
        yield text[start:begin]
        yield text[start:bound]


def tokens_at_bounds(text, windows, encoded, tokenizer):
    """Tokens of `text`, whose last piece ends with it, and the number of tokens up to the end of each piece.

    `encoded` gives the tokens of texts_of, in order.
    """
    encoded, tokens, ends = iter(encoded), [], []
    for _, begin, bound in windows:
        before = next(encoded)
        tokens += continuation(before, next(encoded), text[begin:bound], text[:begin], tokenizer)
        ends.append(len(tokens))
    return np.asarray(tokens, dtype=np.uint32), ends


def continuation(before, whole, piece, text_before, tokenizer):
    """The tokens of `piece` after `text_before`, whose tokens are `before`; both together have the tokens `whole`."""
    if whole[:len(before)] == before:
        return whole[len(before):]
    # From the last token on that both have, which decoding needs to know that it is not the beginning of a text.
    same = next((at for at, (left, right) in enumerate(zip(before, whole)) if left != right), min(len(before), len(whole)))
    same = max(same - 1, 0)
    before, wanted = before[same:], _spelled(whole[same:], tokenizer)
    best, best_length = None, -1
    dropped = text_before[len(text_before.rstrip()):]  # white space, at the end of a text by some tokenizers
    for anchor, gap in itertools.product(_BEFORE, dict.fromkeys(["", dropped])):
        anchor_ids, ids = tokenizer.encode_batch([anchor, anchor + gap + piece])
        if ids[:len(anchor_ids)] != anchor_ids:
            continue
        ids = ids[len(anchor_ids):]
        spelled = _spelled(before + ids, tokenizer)
        if any(left == right for left, right in zip(spelled, wanted)):
            return ids
        length = max(map(_common_length, spelled, wanted))
        if length > best_length:
            best, best_length = ids, length
    return best


def _spelled(ids, tokenizer):
    """What the tokens spell: as they are decoded, and as they stand in the vocabulary, in case the decoder is lossy."""
    return [unicodedata.normalize("NFD", text) for text in (tokenizer.decode(ids), tokenizer.joined(ids))]


def _common_length(left, right):
    return next((at for at, (one, other) in enumerate(zip(left, right)) if one != other), min(len(left), len(right)))
