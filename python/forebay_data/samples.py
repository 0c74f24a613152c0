"""Text files and JSON lines become samples: token ids, and which of them are trained.

The rules are docs/formats.md, "From text to samples".
"""

import itertools
import json
import os
import stat
from collections import Counter
from dataclasses import dataclass

import numpy as np

from .errors import BadInputError, count_of
from .files import Progress, parse_json, refuse_lfs_pointer
from .messages import check_messages, check_text, tools_of
from .notes import Notes
from .spans import continuation, texts_of, tokens_at_bounds, windows_at_bounds
from .tokenizer import GROUP_BYTES, MAX_WHOLE_BYTES, size_in_utf8

RECORD_KINDS = {"text": ("text",), "prompt": ("prompt", "completion"), "messages": ("messages",)}
# That a chat may have beside its messages.
CHAT_KEYS = {"tools"}

# At most so many records, and texts of GROUP_BYTES, are tokenized together: enough to use every core.
BATCH_RECORDS = 1024
# A text of more characters than this is tokenized in pieces.
LONG_TEXT_CHARS = 1 << 19
# A line is in memory several times while its JSON is read.
MAX_LINE_BYTES = 16 << 20
# A chat is tokenized up to each of its turns: so much of it in all, which takes minutes.
MAX_CHAT_BYTES = 1 << 30
# The purpose of a file, in errors.
DATA_FILE = "--data names a .txt, .jsonl or packed file"
PROMPT_FILE = "--prompts names a .txt or .jsonl file"


@dataclass
class Sample:
    where: str             # "data.jsonl:12", for messages
    kind: str              # a key of RECORD_KINDS
    tokens: np.ndarray     # uint32
    trained: np.ndarray    # bool: this token is a prediction target; never the first
    truncated: bool = False


@dataclass(frozen=True)
class SampleOptions:
    seq: int               # tokens per row
    truncate: bool = False
    find_unwritten: bool = False  # what a chat template writes nothing of, which takes a while: for notes


class SampleReader:
    """Iterates over the samples of a file; `read_bytes` says how far it got.

    `on_problem(message)` is told about samples that cannot be trained on; it may raise to stop there. Files that
    cannot be read at all (not UTF-8, not JSON, unknown keys) always raise BadInputError.
    """

    def __init__(self, path, tokenizer, config, load_template, options, on_problem):
        self.path = path
        self._tokenizer = tokenizer
        self._config = config
        self._load_template = load_template
        self._template = None
        self._options = options
        self._on_problem = on_problem
        self._notes = Notes()
        self._limit = min(options.seq, config.max_positions or options.seq)
        tokenizer.require_eos()

    def __iter__(self):
        suffix = os.path.splitext(self.path)[1].lower()
        if suffix == ".txt":
            samples = self._text_file()
        elif suffix in (".jsonl", ".json"):
            samples = self._json_lines()
        else:
            raise BadInputError(f"'{self.path}' is neither a packed file, nor named .txt or .jsonl: name it after what "
                                "it holds")
        found = False
        for sample in samples:
            found = True
            if self._tokenizer.has_two_bos(sample.tokens):
                self._notes.add(sample.where, two_bos_note(self._tokenizer))
            if self._is_usable(sample):
                yield sample
        if not found:
            raise BadInputError(f"'{self.path}' has no text: data is empty")

    def notes(self):
        """What became of the samples so far that whoever gave them may not expect."""
        return self._notes.lines()

    # ---- Files to records ----

    def _text_file(self):
        with _open(self.path, DATA_FILE) as file:
            text = _decode(file.read(), self.path, 0, 1).removeprefix("\ufeff")
        if not text.strip():
            return
        progress = Progress(f"tokenizing {os.path.basename(self.path)}", len(text))
        ids = self._tokenizer.encode_long(text, progress, f"{self.path}: ")
        progress.close()
        yield self._text_sample(self.path, ids)

    def _json_lines(self):
        progress = Progress(f"tokenizing {os.path.basename(self.path)}", os.path.getsize(self.path))
        plans = {"text": self._plan_text, "prompt": self._plan_prompt, "messages": self._plan_chat}
        batch, batch_bytes = [], 0
        for number, end, text in _lines_of(self.path, DATA_FILE):
            where = f"{self.path}:{number}"
            kind, record = parse_record(text, where)
            texts, make = plans[kind](where, record)
            batch.append((number, texts, make))
            batch_bytes += sum(map(size_in_utf8, texts))
            if len(batch) == BATCH_RECORDS or batch_bytes >= GROUP_BYTES:
                yield from self._encode(batch)
                batch, batch_bytes = [], 0
                progress.update(end)
        yield from self._encode(batch)
        progress.close()

    # ---- Records to samples ----

    def _encode(self, batch):
        """Tokenizes many records at once: every record asks for the texts it needs and makes its sample of them."""
        if not batch:
            return
        first, last = batch[0][0], batch[-1][0]
        lines = f":{first}" if first == last else f", lines {first} to {last}"
        encoded = self._tokenizer.encode_each(itertools.chain.from_iterable(texts for _, texts, _ in batch),
                                              f"{self.path}{lines}: ")
        for _, texts, make in batch:
            yield make(list(itertools.islice(encoded, len(texts))))

    def _plan_text(self, where, record):
        text = record["text"]
        if len(text) > LONG_TEXT_CHARS:
            return [], lambda _: self._text_sample(where, self._tokenizer.encode_long(text, where=f"{where}: "))
        return [text], lambda ids: self._text_sample(where, np.asarray(ids[0], dtype=np.uint32))

    def _text_sample(self, where, ids):
        around = self._tokenizer.prefix_of(ids), self._tokenizer.suffix_of(ids)
        before, after = (np.asarray(part, dtype=np.uint32) for part in around)
        tokens = np.concatenate([before, ids, after])
        return _sample(where, "text", tokens, np.ones(len(tokens), dtype=bool))

    def _plan_prompt(self, where, record):
        prompt, completion = record["prompt"], record["completion"]
        require_whole(prompt + completion, f"{where}: 'prompt' with 'completion'")

        def make(ids):
            before = self._tokenizer.prefix_of(ids[0]) + ids[0]
            completed = continuation(ids[0], ids[1], completion, prompt, self._tokenizer)
            tokens = np.asarray(before + completed + self._tokenizer.suffix_of(completed), dtype=np.uint32)
            return self._fit(_sample(where, "prompt", tokens, np.arange(len(tokens)) >= len(before)))
        return [prompt, prompt + completion], make

    def _plan_chat(self, where, record):
        try:
            if self._template is None:
                self._template = self._load_template()
        except BadInputError as error:
            raise BadInputError(f"{where}: {error}") from None
        tools = tools_of(record, where)
        template = self._template.for_tools(tools)
        text, spans = template.render_with_spans(record["messages"], self._tokenizer.turn_tokens, f"{where}: ", tools)
        spans = [span for span in spans if span[0] < span[1]]
        require_whole(text, f"{where}: the chat, as {template.name} writes it,")
        if self._options.find_unwritten:
            for what in template.unwritten(record["messages"], f"{where}: ", tools):
                self._notes.add(where, f"{template.name} writes nothing of {what}: it is not trained")
        bounds = sorted({bound for span in spans for bound in span} | {len(text)})
        windows = windows_at_bounds(text, bounds, self._tokenizer)
        texts = texts_of(text, windows)
        size_bytes = sum(begin + bound - 2 * start for start, begin, bound in windows) * size_in_utf8(text) // max(len(text), 1)
        if size_bytes > MAX_CHAT_BYTES:
            raise BadInputError(f"{where}: the chat has {size_in_utf8(text):,} bytes, and the assistant speaks in {len(spans):,} "
                                f"places of it: tokenized up to each of them that is {size_bytes:,} bytes, of which at most "
                                f"{MAX_CHAT_BYTES:,} are taken: split it into several chats")

        def make(ids):
            # A text longer than a group is tokenized on demand.
            ids = ids or self._tokenizer.encode_each(texts, f"{where}: ")
            tokens, ends = tokens_at_bounds(text, windows, ids, self._tokenizer)
            trained = np.zeros(len(tokens), dtype=bool)
            position_of = {0: 0, **dict(zip(bounds, ends))}
            for begin, end in spans:
                trained[position_of[begin]:position_of[end]] = True
            return self._fit(_sample(where, "messages", tokens, trained))
        return list(texts) if size_bytes <= GROUP_BYTES else [], make

    def _fit(self, sample):
        """Prompts and chats that are longer than a row: an error, or cut with --truncate."""
        if len(sample.tokens) <= self._limit or not self._options.truncate:
            return sample
        return Sample(sample.where, sample.kind, sample.tokens[:self._limit], sample.trained[:self._limit], True)

    def _longer_rows(self, separator):
        """The advice to raise --seq, where the model has positions for more."""
        positions = self._config.max_positions
        return f"raise --seq{separator}" if positions is None or self._options.seq < positions else ""

    def _is_usable(self, sample):
        length, where = len(sample.tokens), sample.where
        positions = self._config.max_positions
        in_row = min(length, self._options.seq)
        beyond = self._tokenizer.beyond_vocabulary(sample.tokens)
        if beyond is not None:
            self._on_problem(f"{where}: the sample has {beyond}: leave it out of the text, or take a model that has a row "
                             "for it")
        elif positions is not None and in_row > positions:
            self._on_problem(f"{where}: the sample has {count_of(length, 'token')}, rows of --seq={self._options.seq} "
                             f"would hold {in_row} of them, but the model has {positions} positions (config.json): use "
                             f"--seq={positions} or less")
        elif sample.kind != "text" and length > self._options.seq:
            kind = "chat" if sample.kind == "messages" else "prompt and completion"
            self._on_problem(f"{where}: the {kind} has {count_of(length, 'token')}, a row has "
                             f"--seq={self._options.seq}: {self._longer_rows(', ')}shorten the sample, or cut it with "
                             "--truncate")
        elif not sample.trained.any():
            reason = {"text": "its text is empty", "prompt": "its completion is empty",
                      "messages": "no turn of the assistant says anything"}[sample.kind]
            if sample.truncated:
                reason = (f"cutting it to {self._limit} tokens left only the prompt; {self._longer_rows(' or ')}"
                          "shorten it")
            self._on_problem(f"{where}: the sample has no trained token: {reason}")
        else:
            return True
        return False


def two_bos_note(tokenizer):
    return (f"it begins with two BOS tokens ('{tokenizer.special_tokens['bos_token']}'), which the model has never seen: leave "
            "the one in the data out, or the one in the chat template")


def parse_record(text, where):
    """(kind, record) of one JSON line, checked."""
    record = _parse_object(text, where)
    keys = set(record)
    for kind, wanted in RECORD_KINDS.items():
        if keys - (CHAT_KEYS if kind == "messages" else set()) == set(wanted):
            _check_record(kind, record, where)
            return kind, record
    known = {key for wanted in RECORD_KINDS.values() for key in wanted}
    unknown = sorted(keys - known)
    problem = f"unknown key '{unknown[0]}'" if unknown else f"the keys {_quoted(record)} do not make a sample"
    raise BadInputError(f"{where}: {problem}; a line has either 'text', or 'prompt' and 'completion', or 'messages', "
                        "and nothing else")


def _lines_of(path, what):
    with _open(path, what) as file:
        yield from lines_in(file, path)


def lines_in(file, name):
    """Yields (line number, offset of its end in bytes, text) for each line that is not blank. `name`: for errors."""
    end = 0
    for number in itertools.count(1):
        line = file.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        if len(line) > MAX_LINE_BYTES:
            raise BadInputError(f"{name}:{number}: the line has {len(line) + _rest_of_line(file):,} bytes, the longest that is "
                                f"read has {MAX_LINE_BYTES:,}: split the record into several lines, or put a text into a "
                                ".txt file of its own")
        text = _decode(line, name, end, number)
        end += len(line)
        text = text.removeprefix("\ufeff") if number == 1 else text
        if text.strip():
            yield number, end, text


def _rest_of_line(file):
    """The bytes up to the end of the line."""
    size_bytes, part = 0, b""
    while not part.endswith(b"\n") and (part := file.readline(MAX_LINE_BYTES)):
        size_bytes += len(part)
    return size_bytes


def require_whole(text, what):
    """Refuses what is tokenized as a whole and is too long for that."""
    size_bytes = size_in_utf8(text)
    if size_bytes > MAX_WHOLE_BYTES:
        raise BadInputError(f"{what} has {size_bytes:,} bytes; a prompt, a completion or a chat has at most "
                            f"{MAX_WHOLE_BYTES:,}: shorten it, or make several records of it")


def prompts_in_file(path):
    """(line number, checked record) of every prompt in a .txt file, a prompt to a line, or a .jsonl file."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in (".txt", ".jsonl", ".json"):
        raise BadInputError(f"'{path}' is named neither .txt nor .jsonl: name it after what it holds, plain prompts or "
                            "JSON objects, one per line")
    found = [(number, {"prompt": text.rstrip("\r\n")} if suffix == ".txt" else parse_prompt(text, f"{path}:{number}"))
             for number, _, text in _lines_of(path, PROMPT_FILE)]
    if not found:
        raise BadInputError(f"'{path}' has no prompts: every line of it is blank")
    return found


def parse_prompt(text, where):
    """{"prompt": str} or {"messages": [...]} of one JSON line, checked."""
    record = _parse_object(text, where)
    kind = "prompt" if set(record) == {"prompt"} else "messages" if set(record) - CHAT_KEYS == {"messages"} else None
    if kind is None:
        raise BadInputError(f"{where}: the keys {_quoted(record)} do not make a prompt; a line has either 'prompt' or "
                            "'messages'")
    _check_record(kind, record, where)
    return record


def _parse_object(text, where):
    try:
        record = parse_json(text, where, object_pairs_hook=_object_without_duplicates)
    except json.JSONDecodeError as error:
        raise BadInputError(f"{where}: not valid JSON at column {error.colno} ({error.msg}): every line must be one "
                            "JSON object") from None
    except ValueError as error:
        raise BadInputError(f"{where}: not valid JSON ({error})") from None
    if not isinstance(record, dict):
        raise BadInputError(f"{where}: the line holds a JSON {type(record).__name__}, not an object such as "
                            '{"text": "..."}')
    return record


def _check_record(kind, record, where):
    if kind == "messages":
        check_messages(record["messages"], where)
        tools_of(record, where)
        return
    for key, value in record.items():
        check_text(value, f"'{key}'", where)


def _object_without_duplicates(pairs):
    value = dict(pairs)
    if len(value) != len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key '{key}' appears twice")
    return value


def _quoted(keys):
    return ", ".join(f"'{key}'" for key in keys) or "(none)"


def _sample(where, kind, tokens, trained):
    trained[:1] = False  # nothing comes before it that could predict it
    return Sample(where, kind, tokens, trained)


def require_data(path):
    """Asked first: who mistyped --data wants to hear of that, not of a model without a tokenizer."""
    _open(path, DATA_FILE).close()


def _open(path, what):
    try:
        if not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path):
            # It is read twice, and a pipe without a writer would be waited for without a word.
            raise BadInputError(f"'{path}' is no regular file: {what}")
        file = open(path, "rb")
        refuse_lfs_pointer(path, file.peek())
        return file
    except FileNotFoundError:
        raise BadInputError(f"'{path}' does not exist: {what}") from None
    except IsADirectoryError:
        raise BadInputError(f"'{path}' is a folder: {what}") from None


def _decode(data, path, offset, first_line):
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise BadInputError(f"{path}:{line}: not UTF-8 at byte {offset + error.start} (0x{data[error.start]:02x}): "
                            "convert the file, for example with 'iconv -t UTF-8'") from None
