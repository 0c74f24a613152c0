"""What the columns of a row mean: a text, a prompt with its completion, or a chat, in the forms that data is published in.

KINDS is the one list of forms. Not for: reading the rows (row_files.py), tokens (samples.py).
"""

from dataclasses import dataclass

from .errors import BadInputError, json_type
from .files import parse_json

# Who speaks, in ShareGPT's words and others', as chat templates have it.
ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant",
         "model": "assistant", "observation": "tool", "function_response": "tool", "function_call": "assistant"}
# Those of chat templates, in any letters; "function" was OpenAI's before "tool".
STANDARD_ROLES = {**{name: name for name in ("system", "developer", "user", "assistant", "tool")}, "function": "tool"}
# Parts of a content that are text.
_TEXT_PARTS = ("text", "input_text", "output_text")
# What Alpaca's authors put before and after the instruction.
ALPACA = ("Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
          "### Instruction:\n{instruction}\n\n### Response:\n")
ALPACA_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. Write a response "
    "that appropriately completes the request.\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n")
_MAX_UNUSED = 32


@dataclass(frozen=True)
class RowKind:
    name: str
    needed: tuple           # columns that make it
    also: tuple             # columns that it uses if they are there
    convert: object         # (columns, where, has_template) to (Sample.kind, record)


def _plain(kind):
    return lambda columns, where, has_template: (kind, columns)


def _prompt(columns, where, has_template):
    prompt, completion = columns["prompt"], columns["completion"]
    if isinstance(prompt, list) != isinstance(completion, list):
        raise BadInputError(f"{where}: of 'prompt' and 'completion' one is a list of messages, the other is not: write both as texts, "
                            "or both as messages")
    if not isinstance(prompt, list):
        return "prompt", {"prompt": prompt, "completion": completion}
    prompt = chat_turns(prompt, where, "'prompt'")
    completion = chat_turns(completion, where, "'completion'")
    # What the assistant said before is a part of the prompt.
    asked = [{**turn, "train": False} if isinstance(turn, dict) and turn.get("role") == "assistant" else turn for turn in prompt]
    return _chat(asked + completion, columns)


def _messages(name):
    def convert(columns, where, has_template):
        turns = chat_turns(columns[name], where, f"'{name}'")
        system, first = _system(columns, where), turns[0]
        if system and isinstance(first, dict) and first.get("role") == "system":
            if first.get("content") != columns["system"]:
                raise BadInputError(f"{where}: 'system' and the first turn of '{name}' are two system prompts: leave one "
                                    "out")
            system = []
        return _chat(system + turns, columns)
    return convert


def _alpaca(columns, where, has_template):
    for key in ("instruction", "input", "output"):
        if not isinstance(columns.get(key, ""), str):
            raise BadInputError(f"{where}: '{key}' is a JSON {json_type(columns[key])}; it must be a string")
    question = columns.get("input", "")
    if has_template():
        asked = columns["instruction"] + (f"\n{question}" if question else "")
        return "messages", {"messages": [*_system(columns, where), {"role": "user", "content": asked},
                                         {"role": "assistant", "content": columns["output"]}]}
    if _system(columns, where):
        raise BadInputError(f"{where}: 'system' needs a chat template, and the model has none: give one with 'forebay data pack "
                            "--template=FILE', or leave 'system' out")
    prompt = (ALPACA_WITH_INPUT if question else ALPACA).format(instruction=columns["instruction"], input=question)
    return "prompt", {"prompt": prompt, "completion": columns["output"]}


_TEXT = RowKind("text", ("text",), (), _plain("text"))
_ALPACA = RowKind("Alpaca", ("instruction", "output"), ("input", "system"), _alpaca)
KINDS = (
    _TEXT,
    RowKind("prompt and completion", ("prompt", "completion"), ("tools",), _prompt),
    RowKind("messages", ("messages",), ("system", "tools"), _messages("messages")),
    RowKind("ShareGPT", ("conversations",), ("system", "tools"), _messages("conversations")),
    _ALPACA,
)
_NEEDED = frozenset(name for kind in KINDS for name in kind.needed)
COLUMNS = _NEEDED | {name for kind in KINDS for name in kind.also}


class RowReader:
    """Turns rows into records; `unused` has the names of columns that none of them needed.

    has_template(): whether the model has a chat template.
    """

    def __init__(self, has_template):
        self._has_template = has_template
        self.unused = {}
        self._names = self._kind = self._used = None  # those of the row before, which most are like

    def record(self, row):
        """(Sample.kind, record) of a Row. BadInputError that names it."""
        names = [name for name, value in row.columns.items() if value is not None]
        if (names, len(row.columns)) != self._names:
            self._kind = kind = _kind_of(names, row)
            self._names = names, len(row.columns)
            self._used = [name for name in kind.needed + kind.also if name in names or name in kind.needed]
            if len(self.unused) < _MAX_UNUSED:
                self.unused.update(dict.fromkeys(name for name in [*names, *row.unread] if name not in self._used))
        return self._kind.convert({name: row.columns[name] for name in self._used}, row.where, self._has_template)

    def notes(self):
        if not self.unused:
            return []
        names = ", ".join(f"'{name[:100]}'" for name in list(self.unused)[:_MAX_UNUSED])
        return [f"columns that are not used: {names}" + (" and others" if len(self.unused) >= _MAX_UNUSED else "")]


def _kind_of(columns, row):
    """`columns`: names of those of the row that are not null."""
    kinds = _complete(columns) or _complete(row.columns)[:1]
    if kinds == [_TEXT, _ALPACA]:
        return _ALPACA  # as Alpaca is published: the text is the other columns in the prompt of its authors
    # A text may be an answer, or a prompt with it; a chat is whole, whatever is next to it.
    also = [name for name in columns if name in _NEEDED and name != "text"] if kinds == [_TEXT] else []
    if len(kinds) == 1 and not also:
        return kinds[0]
    if kinds:
        forms = [_quoted(kind.needed, " with ") for kind in kinds] + [f"'{name}'" for name in also if len(kinds) == 1]
        raise BadInputError(f"{row.where}: the columns {', '.join(forms)} do not make a sample together, as more than one form of it is "
                            "there: leave all but one out")
    names = [*row.columns, *row.unread]
    unknown = sorted(name for name in names if name not in COLUMNS)
    problem = f"the keys {_quoted(names, ', ') or '(none)'} do not make a sample"
    if unknown:
        others = f" and {len(unknown) - 1:,} more ({_quoted(unknown[1:], ', ')})" if len(unknown) > 1 else ""
        problem = f"unknown key '{unknown[0]}'{others}"
    wanted = ", or ".join(_quoted(kind.needed, " and ") for kind in KINDS)
    raise BadInputError(f"{row.where}: {problem}; a row has either {wanted}: rename its columns")


def _complete(columns):
    return [kind for kind in KINDS if all(name in columns for name in kind.needed)]


def _quoted(names, between):
    return between.join(f"'{name}'" for name in names[:_MAX_UNUSED])


# ---- Chats

def chat_turns(turns, where, what):
    """A list of messages in any of the forms, as {"role", "content", ...}. What is no such list is left to samples.py."""
    if isinstance(turns, str):
        try:
            turns = parse_json(turns, f"{where}: {what}")
        except ValueError:
            raise BadInputError(f"{where}: {what} is a text; it must be a list of messages") from None
    if not isinstance(turns, list) or not turns:
        raise BadInputError(f"{where}: {what} must be a list of at least one {{\"role\", \"content\"}} object")
    return [_turn(turn, number, where) if isinstance(turn, dict) else turn for number, turn in enumerate(turns, 1)]


def _turn(turn, number, where):
    # Parquet has every key in every turn.
    turn = {key: value for key, value in turn.items() if value is not None or key == "content"}
    if "content" not in turn and "value" in turn:
        turn["content"] = turn.pop("value")
    if "role" not in turn and "from" in turn:
        turn = _from_share_gpt(turn, number, where)
    if isinstance(turn.get("role"), str):
        turn["role"] = STANDARD_ROLES.get(turn["role"].lower(), turn["role"])
    if isinstance(turn.get("function_call"), dict) and "tool_calls" not in turn:  # OpenAI's before "tool_calls"
        turn["tool_calls"] = [{"type": "function", "function": turn.pop("function_call")}]
    content = turn.get("content")
    if isinstance(content, list) and content:
        turn = {**turn, "content": "".join(_part_text(part, index, number, where) for index, part in enumerate(content, 1))}
    return turn


def _from_share_gpt(turn, number, where):
    rest = {key: value for key, value in turn.items() if key != "from"}
    speaker, value = turn["from"], turn.get("content")
    role = ROLES.get(speaker.lower(), speaker) if isinstance(speaker, str) else speaker
    if speaker != "function_call" or not isinstance(value, str):
        return {"role": role, **rest}
    try:
        calls = parse_json(value, f"{where}: message {number}")
        calls = [{"type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
                 for call in (calls if isinstance(calls, list) else [calls])]
    except (ValueError, KeyError, TypeError):
        raise BadInputError(f"{where}: message {number} is a function_call, and its value is not JSON with 'name' and 'arguments': "
                            "correct it") from None
    return {"role": role, **rest, "content": "", "tool_calls": calls}


def _part_text(part, index, number, where):
    kind = part.get("type", "text") if isinstance(part, dict) else None
    if kind in _TEXT_PARTS and isinstance(part.get("text"), str):
        return part["text"]
    what = f"of type {kind!r}"[:100] if isinstance(part, dict) else f"a JSON {json_type(part)}"
    raise BadInputError(f"{where}: the content of message {number} is a JSON list, whose part {index} is {what}; only text is "
                        'trained on: write {"type": "text", "text": "..."}, or leave the row out')


def _system(columns, where):
    """The first turn that a column of its own gives, of which some data leaves most empty."""
    system = columns.get("system", "")
    if not isinstance(system, str):
        raise BadInputError(f"{where}: 'system' is a JSON {json_type(system)}; it must be a string")
    return [{"role": "system", "content": system}] if system else []


def _chat(messages, columns):
    tools = {"tools": columns["tools"]} if "tools" in columns else {}
    return "messages", {"messages": messages, **tools}


def trained_turns(messages, where):
    """(messages without what says whether they are trained, for each of the assistant's whether it is trained)."""
    plain, trained = [], []
    for number, message in enumerate(messages, 1):
        is_trained = True
        for key in ("train", "weight"):
            value = message.get(key)
            if value is None:
                continue
            if value not in (0, 1):
                raise BadInputError(f"{where}: '{key}' of message {number} is {value!r}: a turn is trained (1 or true) or not (0 or "
                                    "false), and to no other degree")
            if key == "train" and value and message["role"] != "assistant":
                raise BadInputError(f"{where}: message {number} is of role '{message['role']}' and is to be trained ('train'): only "
                                    "what the assistant says is: leave 'train' out there")
            is_trained = is_trained and bool(value)
        plain.append({key: value for key, value in message.items() if key not in ("train", "weight")})
        if message["role"] == "assistant":
            trained.append(is_trained)
    return plain, trained
