"""Where the assistant speaks in a chat that a template wrote: to the character, what generation would have to produce.

A template does not tell. It is asked: what it writes of the beginnings of the chat shows where it hands over to the
assistant and where a turn is over. Templates that write, or accept, beginnings in another way than the whole show where
they put a string: it is given with marks around it, which count if the text is the same otherwise.
"""

import functools
import re
from dataclasses import dataclass

from .errors import BadInputError
from .messages import says, strings_of, with_string

# <think>, </think>, [THINK], <|START_THINKING|>, <|END_THINKING|> and the like.
_NAME = r"[^\s\[\]<>◁▷]*think[^\s\[\]<>◁▷]*[\]>▷]"
_THINKING = re.compile(r"[\[<◁]" + _NAME, re.IGNORECASE)
# With or without its first tag, which the generation prompt may end with.
_EMPTY_THINKING = re.compile(rf"\s*(?:[\[<◁]{_NAME}\s*)?[\[<◁](?:/|\|/|\|END_){_NAME}\s*", re.IGNORECASE)
# Tool calls may have any number of strings; the outer ones tell where they begin and end.
_MOST_STRINGS = 8
_NONCHARACTERS = [chr(code) for code in range(0xFDD2, 0xFDF0)]


@dataclass(frozen=True)
class TurnTokens:
    """Texts of tokens that say where a turn ends, or does not."""

    stops: tuple     # generation ends there
    specials: tuple  # all special tokens
    bos: tuple       # the token that begins a text, if there is one


def find_turns(render, messages, tokens, name):
    """(text, [(begin, end)]): the chat, and the span of its characters that the assistant generates in each of its turns.

    The span of a turn that the template drops is empty.

    `render(messages, add_generation_prompt)` is the template; what it refuses is a BadInputError. `name`: its own, for
    errors.
    """
    turns = _Turns(render, messages, tokens, name)
    return turns.text, turns.spans()


def without_space_behind_end(turn, tokens):
    """The length of a turn without the white space that templates write after its last token: no model generates it."""
    stripped = turn.rstrip()
    return len(stripped) if stripped.endswith(tokens.specials) else len(turn)


class _Turns:
    def __init__(self, render, messages, tokens, name):
        self._render, self._messages, self._tokens, self._name = render, messages, tokens, name
        self.text = render(messages, False)
        self._marks = [mark for mark in _NONCHARACTERS if mark not in self.text][:2]
        self._known_places = {}

    def spans(self):
        found, lower = [], 0
        for index, message in enumerate(self._messages):
            if message["role"] == "assistant":
                begin, end = self._span(index, lower)
                found.append((begin, max(begin, end)))
                lower = max(lower, end)
        return found

    def _span(self, index, lower):
        """(begin, end) of the turn at `index`; empty if the template drops it. It begins at `lower` or later."""
        begin = self._length_if_prefix(self._messages[:index], True)
        end = self._length_if_prefix(self._messages[:index + 1], False)
        if begin is not None and end is not None:
            length = self._plain_length(self.text[begin:end], self._messages[index])
            if length is not None:
                return begin, begin + length
        upper = self._next_said(index, lower if begin is None else begin)
        if end is not None and end <= upper:
            upper = end
        first, last = self._said(index, lower if begin is None else begin, upper)
        if first is None:
            return self._span_without_marks(index, begin, end)
        begin = self._begin_before(first, lower) if begin is None else begin
        begin, end = self._behind_empty_thinking(begin, first, index), self._end_behind(last, upper, upper == end)
        stop = _first_of(self._tokens.stops, self.text[begin:end])
        return begin, begin + stop[1] if stop else end

    def _length_if_prefix(self, messages, add_generation_prompt):
        if len(messages) == len(self._messages) and not add_generation_prompt:
            return len(self.text)
        prefix = self._rendered(messages, add_generation_prompt)
        return len(prefix) if prefix is not None and self.text.startswith(prefix) else None

    def _rendered(self, messages, add_generation_prompt=False):
        try:
            return self._render(messages, add_generation_prompt)
        except BadInputError:
            return None

    def _plain_length(self, turn, message):
        """The length of a turn that is only text with one special token at its end; None for any other."""
        stripped = turn.rstrip()
        end = max((text for text in self._tokens.specials if stripped.endswith(text)), key=len, default="")
        body = stripped[:len(stripped) - len(end)]
        is_plain = (end and end not in self._tokens.bos and (body.strip() or not says(message))
                    and not any(text in body for text in self._tokens.specials) and not _THINKING.search(body))
        return len(stripped) if is_plain else None

    def _span_without_marks(self, index, begin, end):
        """(begin, end) of a turn that is not written as it was given: changed, or not at all."""
        if begin is not None and end is not None:
            begin = self._behind_empty_thinking(begin, end, index)
            end = self._end_behind(begin, end, True)
            is_empty = not _without(self.text[begin:end], self._tokens.specials).strip()
            return (begin, begin) if is_empty and says(self._messages[index]) else (begin, end)
        if self._rendered(self._messages[:index] + self._messages[index + 1:]) == self.text:
            return 0, 0
        raise BadInputError(f"{self._name} writes turn {index + 1} in a way that does not show what the assistant says; "
                            "mark it with {% generation %} blocks and pack the data with 'forebay data pack "
                            "--template=FILE'")

    # ---- What the messages say ----

    def _said(self, index, lower, upper):
        """(first, last) place between `lower` and `upper` of what message `index` says; (None, None) if none is found."""
        found = [(begin, end) for begin, end in self._places(index) if lower <= begin and end <= upper]
        return (min(begin for begin, _ in found), max(end for _, end in found)) if found else (None, None)

    def _places(self, index):
        """[(begin, end)] of the strings of message `index` that the text has as they are."""
        if index not in self._known_places:
            self._known_places[index] = self._find_places(index)
        return self._known_places[index]

    def _find_places(self, index):
        strings = strings_of(self._messages[index])
        if len(strings) > 2 * _MOST_STRINGS:
            strings = strings[:_MOST_STRINGS] + strings[-_MOST_STRINGS:]
        return [place for path, text in strings for place in self._places_of_string(index, path, text)]

    def _places_of_string(self, index, path, text):
        begin_mark, end_mark = self._marks
        blank = len(text) - len(text.lstrip()) if text.strip() else 0
        stop = len(text.rstrip()) or len(text)
        answer = len(text) - len(text.rpartition("</think>")[2].lstrip())
        for begin, end in dict.fromkeys([(0, len(text)), (blank, stop), (min(answer, stop), stop)]):
            marked = text[:begin] + begin_mark + text[begin:end] + end_mark + text[end:]
            messages = list(self._messages)
            messages[index] = with_string(messages[index], path, marked)
            rendered = self._rendered(messages)
            if rendered is not None and _without(rendered, self._marks) == self.text:
                place = rendered.find(begin_mark), rendered.find(end_mark) - 1
                if 0 <= place[0] <= place[1]:
                    return [place]
        return []

    def _next_said(self, index, lower):
        """Where the next message begins, of which only what it says can be found."""
        for later in range(index + 1, len(self._messages)):
            first, _ = self._said(later, lower, len(self.text))
            if first is not None:
                return first
        return len(self.text)

    # ---- Where turns begin and end ----

    def _begin_before(self, first, lower):
        """The beginning of a turn that the template hands over in another way when asked for the beginning of the chat."""
        prompt = self._generation_prompt
        for header in (prompt, _THINKING.split(prompt)[0]):
            at = self.text.rfind(header, lower, first)
            if header and at >= 0:
                return at + len(header)
        lead = self._usual[0] or ""
        return first - len(lead) if self.text.endswith(lead, lower, first) else first

    def _behind_empty_thinking(self, begin, limit, index):
        """Nobody said it if the message does not have it: the template writes it into the prompt of an answer too."""
        if any(_EMPTY_THINKING.match(text) for _, text in strings_of(self._messages[index])):
            return begin
        match = _EMPTY_THINKING.match(self.text, begin, limit)
        return match.end() if match else begin

    def _end_behind(self, last, upper, is_certain):
        """The end of a turn that says nothing after `last`. Up to `upper` the text is the turn's, if that `is_certain`,
        else also what the next turn begins with."""
        tail = self.text[last:upper]
        stop = _first_of(self._tokens.stops, tail)
        if stop is not None:
            return last + stop[1]
        if is_certain:
            return last + self._length_of_certain(tail, upper)
        usual = self._usual[1]
        if usual is not None and tail.startswith(usual):
            return last + len(usual)
        special = _first_of(self._enders, tail)
        return last + (special[1] if special else 0)

    def _length_of_certain(self, tail, upper):
        """How much of a turn's `tail`, up to `upper`, is generated; at most the token after it too, which ends the turn."""
        specials = [tail.rfind(text) + len(text) for text in self._enders if text in tail]
        if specials:
            return max(specials)
        opener = _first_of([text for text in self._tokens.specials if text not in self._enders], tail)
        if opener is not None:
            return len(tail[:opener[0]].rstrip())
        stop = next((text for text in self._tokens.stops if self.text.startswith(text, upper)), "")
        # If there is only white space, the turn ends with it.
        return len(tail) + len(stop) if stop else len(tail.rstrip()) or len(tail)

    @functools.cached_property
    def _enders(self):
        """The special tokens that do not begin a turn, nor a text."""
        return [text for text in self._tokens.specials
                if text not in self._generation_prompt and text not in self._tokens.bos]

    @functools.cached_property
    def _generation_prompt(self):
        for messages, text in ((self._messages, self.text), (_QUESTION, self._rendered(_QUESTION))):
            longer = self._rendered(messages, True)
            if longer is not None and text is not None and longer.startswith(text):
                return longer[len(text):]
        return ""

    @functools.cached_property
    def _usual(self):
        """What is generated before and after what is said in the turn of the shortest chat; None if that is not told."""
        try:
            chat = _Turns(self._render, [*_QUESTION, {"role": "assistant", "content": "Yes."}], self._tokens, self._name)
        except BadInputError:
            return None, None
        begin = chat._length_if_prefix(_QUESTION, True)
        first, last = chat._said(1, begin or 0, len(chat.text))
        if first is None:
            return None, None
        lead = None if begin is None else chat.text[begin:first]
        return lead, chat.text[last:chat._end_behind(last, len(chat.text), True)]


_QUESTION = [{"role": "user", "content": "Is it?"}]


def _first_of(texts, tail):
    """(begin, end) of the first, and there the longest, of `texts` in `tail`."""
    found = [(tail.find(text), -len(text)) for text in texts if text in tail]
    begin, length = min(found, default=(0, 0))
    return (begin, begin - length) if found else None


def _without(text, parts):
    for part in parts:
        text = text.replace(part, "")
    return text
