"""Chat templates: rendering them as transformers does, and finding what the assistant says in the result.

Templates come with models from the network, so they run in jinja2's sandbox and see plain JSON data only.
"""

import contextlib
import datetime
import json
import os
import re

import jinja2
import jinja2.ext
import jinja2.sandbox

from .bounds import bounded
from .errors import BadInputError
from .files import read_bytes

# Training data must not change from day to day, so templates that print a date get this one while packing: the
# date that Llama 3's own template falls back to. Prompts for generation get today's.
PACKING_DATE = datetime.datetime(2024, 7, 26)

# Unicode noncharacters: they never occur in valid text, so they can mark places in a rendered chat.
_BEGIN, _END = "\ufdd0", "\ufdd1"


class _GenerationBlocks(jinja2.ext.Extension):
    """{% generation %}...{% endgeneration %}: the template itself says what the assistant generates."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller):
        return f"{_BEGIN}{caller()}{_END}"


class _Namespace(jinja2.utils.Namespace):
    """namespace() without the underscore attributes that lead out of the sandbox."""

    def __init__(*args, **kwargs):  # no name of its own for self: templates may pass `self=...`
        for name in dict(*args[1:], **kwargs):
            _Namespace._check(name)
        jinja2.utils.Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name, value):
        _Namespace._check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace cannot have the attribute {name!r}")


def _raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment(now):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise_exception, namespace=_Namespace,
                               strftime_now=lambda format: now().strftime(format))
    return environment


@contextlib.contextmanager
def _at(where):
    try:
        yield
    except BadInputError as error:
        raise BadInputError(f"{where}{error}") from None


class ChatTemplate:
    def __init__(self, text, source, special_tokens, now=lambda: PACKING_DATE):
        self.text = text
        self.name = f"the chat template in {source}"
        self._special_tokens = special_tokens
        self._has_generation_blocks = re.search(r"\{%-?\s*generation\s*-?%\}", text) is not None
        try:
            with bounded(f"compiling {self.name}", "correct it, or give another one with --template"):
                self._template = _environment(now).from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise BadInputError(f"{self.name} is not valid at its line {error.lineno}: {error.message}") from None
        except RecursionError:
            raise BadInputError(f"{self.name} is nested too deeply: write it with fewer brackets and blocks in each other, or "
                                "give another one with --template") from None
        except BadInputError:
            raise
        except Exception as error:  # jinja2 and Python compile what they are given, and fail in ways of their own
            raise BadInputError(f"{self.name} cannot be compiled ({error}): correct it, or give another one with "
                                "--template") from None

    def _render_marked(self, messages, add_generation_prompt):
        try:
            return self._template.render(messages=messages, add_generation_prompt=add_generation_prompt,
                                         tools=None, documents=None, **self._special_tokens)
        except MemoryError:
            raise
        except Exception as error:  # what a template computes may fail in any way
            raise BadInputError(f"{self.name} refuses this chat: {error}") from None

    def _bounded(self, where):
        return bounded(f"{where}writing this chat with {self.name}",
                       "correct the template, give another one with --template, or shorten the chat")

    def render(self, messages, add_generation_prompt=False, where=""):
        """The rendered chat. `where`: the chat's place and ": ", which errors begin with."""
        with self._bounded(where), _at(where):
            return self._render(messages, add_generation_prompt)

    def render_with_spans(self, messages, special_texts, where=""):
        """The rendered chat, and the spans [begin, end) of its characters that the assistant generates.

        `special_texts`: the tokenizer's special tokens, of which one ends a turn.
        """
        with self._bounded(where), _at(where):
            return self._render_with_spans(messages, special_texts)

    def _render(self, messages, add_generation_prompt=False):
        text = self._render_marked(messages, add_generation_prompt)
        return _spans_between_marks(text)[0] if self._has_generation_blocks else text

    def _render_with_spans(self, messages, special_texts):
        if self._has_generation_blocks:
            return _spans_between_marks(self._render_marked(messages, False))
        text = self._render(messages)
        spans = []
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                spans.append(self._turn_span(text, messages, index, special_texts))
        return text, spans

    def _turn_span(self, text, messages, index, special_texts):
        """From where the template hands over to the assistant, to the token that ends the turn.

        Prefixes of the chat tell both places. Templates that write earlier turns otherwise than last ones (Qwen3
        drops the thinking) break the second prefix, some refuse the first: then the place of the content tells.
        """
        begin = self._length_if_prefix(text, messages[:index], True)
        end = self._length_if_prefix(text, messages[:index + 1], False)
        if begin is None or end is None:
            content_begin, content_end = self._content_span(text, messages, index)
            begin = content_begin if begin is None else begin
            end = len(text) if end is None and index + 1 == len(messages) else end
            end = content_end + _turn_end(text[content_end:], special_texts) if end is None else end
        return begin, begin + _without_trailing_space(text[begin:end], special_texts)

    def _length_if_prefix(self, text, messages, add_generation_prompt):
        try:
            prefix = self._render(messages, add_generation_prompt)
        except BadInputError:
            return None
        return len(prefix) if text.startswith(prefix) else None

    def _content_span(self, text, messages, index):
        marked = list(messages)
        marked[index] = {**messages[index], "content": _BEGIN}
        rendered = self._render_marked(marked, False)
        head, mark, tail = rendered.partition(_BEGIN)
        if not mark or not text.startswith(head) or not text.endswith(tail):
            raise BadInputError(f"{self.name} writes turn {index + 1} in a way that does not "
                                "show what the assistant says; mark it with {% generation %} blocks and pack the data "
                                "with 'forebay data pack --template=FILE'")
        return len(head), len(text) - len(tail)


def _spans_between_marks(marked):
    text, spans = "", []
    for part in re.split(f"({_BEGIN}[^{_END}]*{_END})", marked):
        inner = part.strip(_BEGIN + _END) if part.startswith(_BEGIN) else part
        if part.startswith(_BEGIN) and inner:
            spans.append((len(text), len(text) + len(inner)))
        text += inner
    return text, spans


def _turn_end(tail, special_texts):
    """How much of `tail` (what follows the content) still belongs to the turn: its end token, when it is next."""
    stripped = tail.lstrip()
    for special in special_texts:
        if stripped.startswith(special):
            return len(tail) - len(stripped) + len(special)
    return 0


def _without_trailing_space(turn, special_texts):
    """The turn's length without the white space that templates write after its end token: no model generates it."""
    stripped = turn.rstrip()
    return len(stripped) if stripped.endswith(special_texts) else len(turn)


FOR_PACKING = ("pack the data with 'forebay data pack --template=FILE', or use prompt and completion instead of "
               "messages")
FOR_GENERATION = "or give the text to continue with --prompt instead of --chat"


def load_chat_template(tokenizer, template_path=None, now=lambda: PACKING_DATE, advice=FOR_PACKING):
    """The template of --template, of chat_template.jinja or of tokenizer_config.json.

    `advice`: what else can be done where there is none.
    """
    what = "the chat template"
    in_folder = os.path.join(tokenizer.folder, "chat_template.jinja")
    path = template_path or (in_folder if os.path.lexists(in_folder) else None)
    if path is not None:
        try:
            text = read_bytes(path, what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadInputError(f"'{path}' is not UTF-8 (byte {error.start}): {what}") from None
        return ChatTemplate(text, f"'{path}'", tokenizer.special_tokens, now)
    path = os.path.join(tokenizer.folder, "tokenizer_config.json")
    text = tokenizer.settings.get("chat_template")
    if isinstance(text, list):
        named = {entry.get("name"): entry.get("template") for entry in text if isinstance(entry, dict)}
        text = named.get("default")
    if not isinstance(text, str):
        raise BadInputError(f"the model in '{tokenizer.folder}' has no chat template (neither chat_template.jinja nor "
                            f"'chat_template' in tokenizer_config.json): put its chat_template.jinja there, {advice}")
    return ChatTemplate(text, f"'{path}'", tokenizer.special_tokens, now)
