"""Chat templates: rendering them as transformers does. Where the assistant speaks in the result is found in turns.py.

Templates come with models from the network, so they run in jinja2's sandbox and see plain JSON data only.
"""

import contextlib
import datetime
import functools
import json
import os
import re

import jinja2
import jinja2.ext
import jinja2.sandbox

from .bounds import bounded
from .errors import BadInputError
from .files import read_bytes
from .messages import for_template
from .turns import find_turns, without_space_behind_end
from .unwritten import find_unwritten

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
    def __init__(self, text, source, special_tokens, now=lambda: PACKING_DATE, with_tools=None):
        self.texts = (text, *(with_tools.texts if with_tools else ()))
        self.name = f"the chat template in {source}"
        self._special_tokens = special_tokens
        self._with_tools = with_tools
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

    def for_tools(self, tools):
        """The template for a chat with or without tools: a model may have one for each."""
        return self if tools is None or self._with_tools is None else self._with_tools

    def _render_marked(self, messages, add_generation_prompt, tools):
        variables = {"add_generation_prompt": add_generation_prompt, "tools": tools, "documents": None,
                     **self._special_tokens}
        is_complete = all(message.get("content") is not None for message in messages)
        try:
            return self._template.render(messages=for_template(messages), **variables)
        except MemoryError:
            raise
        except Exception as error:  # what a template computes may fail in any way
            problem = f"{self.name} refuses this chat: {error}"
        if is_complete:
            raise BadInputError(problem)
        try:
            return self._template.render(messages=for_template(messages, null_content=True), **variables)
        except MemoryError:
            raise
        except Exception as error:
            raise BadInputError(f"{problem}. If that is for a turn without 'content', give it \"content\": \"\" (with null "
                                f"instead it refuses the chat too: {error})") from None

    def _bounded(self, where):
        return bounded(f"{where}writing this chat with {self.name}",
                       "correct the template, give another one with --template, or shorten the chat")

    def render(self, messages, add_generation_prompt=False, where="", tools=None):
        """The rendered chat. `where`: the chat's place and ": ", which errors begin with."""
        with self._bounded(where), _at(where):
            return self._render(messages, add_generation_prompt, tools)

    def render_with_spans(self, messages, tokens, where="", tools=None):
        """The rendered chat, and the spans [begin, end) of its characters that the assistant generates.

        `tokens`: the tokenizer's TurnTokens.
        """
        with self._bounded(where), _at(where):
            return self._render_with_spans(messages, tokens, tools)

    def unwritten(self, messages, where="", tools=None):
        """What of the chat the template writes nothing of, in words."""
        with self._bounded(where), _at(where):
            return find_unwritten(self._render, messages, tools)

    def _render(self, messages, add_generation_prompt=False, tools=None):
        text = self._render_marked(messages, add_generation_prompt, tools)
        return _spans_between_marks(text)[0] if self._has_generation_blocks else text

    def _render_with_spans(self, messages, tokens, tools):
        if not self._has_generation_blocks:
            return find_turns(functools.partial(self._render, tools=tools), messages, tokens, self.name)
        text, spans = _spans_between_marks(self._render_marked(messages, False, tools))
        return text, [(begin, begin + without_space_behind_end(text[begin:end], tokens)) for begin, end in spans]


def _spans_between_marks(marked):
    text, spans = "", []
    for part in re.split(f"({_BEGIN}[^{_END}]*{_END})", marked):
        inner = part.strip(_BEGIN + _END) if part.startswith(_BEGIN) else part
        if part.startswith(_BEGIN) and inner:
            spans.append((len(text), len(text) + len(inner)))
        text += inner
    return text, spans


FOR_PACKING = ("pack the data with 'forebay data pack --template=FILE', or use prompt and completion instead of "
               "messages")
FOR_GENERATION = "or give the text to continue with --prompt instead of --chat"


def load_chat_template(tokenizer, template_path=None, now=lambda: PACKING_DATE, advice=FOR_PACKING):
    """The template of --template, of chat_template.jinja or of tokenizer_config.json, in which 'tool_use' is for chats with tools.

    `advice`: what else can be done where there is none.
    """
    named = {"default": _read(template_path)} if template_path is not None else _templates_of_model(tokenizer)
    if "default" not in named:
        raise BadInputError(f"the model in '{tokenizer.folder}' has no chat template (neither chat_template.jinja nor "
                            f"'chat_template' in tokenizer_config.json): put its chat_template.jinja there, {advice}")
    with_tools = None
    for name in ("tool_use", "default"):
        if name in named:
            text, path = named[name]
            with_tools = template = ChatTemplate(text, f"'{path}'", tokenizer.special_tokens, now, with_tools)
    return template


def has_chat_template(tokenizer, template_path=None):
    return template_path is not None or "default" in _templates_of_model(tokenizer)


def _templates_of_model(tokenizer):
    """{name: (text, path)} of those that are used."""
    files = {"default": os.path.join(tokenizer.folder, "chat_template.jinja"),
             "tool_use": os.path.join(tokenizer.folder, "additional_chat_templates", "tool_use.jinja")}
    found = {name: _read(path) for name, path in files.items() if os.path.lexists(path)}
    if "default" in found:
        return found
    path = os.path.join(tokenizer.folder, "tokenizer_config.json")
    texts = tokenizer.settings.get("chat_template")
    if isinstance(texts, list):
        texts = {entry.get("name"): entry.get("template") for entry in texts if isinstance(entry, dict)}
    elif isinstance(texts, str):
        texts = {"default": texts}
    return {name: (text, path) for name, text in (texts or {}).items() if name in files and isinstance(text, str)}


def _read(path):
    what = "the chat template"
    try:
        return read_bytes(path, what).decode("utf-8"), path
    except UnicodeDecodeError as error:
        raise BadInputError(f"'{path}' is not UTF-8 (byte {error.start}): {what}") from None
