"""Data becomes samples: token ids, and which of them are trained.

The rules are docs/formats.md, "From text to samples".
"""

import functools
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from .errors import BadInputError, count_of
from .files import Progress
from .long_text import LongText
from .messages import check_messages, check_text, says, tools_of
from .notes import Notes
from .row_files import begins_with_a_row, lines_in, open_regular, opened, parse_object, rows_in, text_chunks
from .rows import COLUMNS, STANDARD_ROLES, RowReader, chat_turns, trained_turns
from .sources import TEXT
from .spans import continuation, texts_of, tokens_at_bounds, windows_at_bounds
from .template import has_chat_template
from .tokenizer import GROUP_BYTES, MAX_WHOLE_BYTES, as_array, size_in_utf8

# What a prompt may have next to its messages.
CHAT_KEYS = {"tools"}
# At most so many records, and texts of GROUP_BYTES, are tokenized together: enough to use every core.
BATCH_RECORDS = 4096
# A text of more characters than this is tokenized in pieces.
LONG_TEXT_CHARS = 1 << 16
# About so many tokens of a long text are a sample of their own.
PART_TOKENS = 1 << 16
# A chat is tokenized up to each of its turns: so much of it in all, which takes minutes.
MAX_CHAT_BYTES = 1 << 30
# The purpose of a file, in errors.
PROMPT_FILE = "--prompts names a .txt or .jsonl file"


@dataclass
class Sample:
    where: str              # "data.jsonl:12", for messages
    kind: str               # "text", "prompt" or "messages"
    tokens: np.ndarray      # uint32
    trained: np.ndarray     # bool: this token is a prediction target; never the first
    truncated: bool = False
    untrained: str = ""     # why nothing of it is trained, if so and if its kind does not say it
    continues: bool = False # the next part of a long text: it begins with the last token of the part before, which ends with a row


@dataclass(frozen=True)
class SampleOptions:
    seq: int                # tokens per row
    truncate: bool = False
    template: str = None    # of --template; None: the model's
    every_problem: bool = False   # go on after what is no sample
    find_unwritten: bool = False  # note what a chat template writes nothing of, which takes a while


class SampleReader:
    """Gives the samples of sources, one after the other.

    `on_problem(message)` is told about samples that cannot be trained on; it may raise to stop there. What is no sample
    at all (not UTF-8, not JSON, unknown columns) raises BadInputError; with `every_problem` it is a problem too.
    """

    def __init__(self, sources, tokenizer, config, load_template, options, on_problem):
        self.sources = sources
        self._tokenizer = tokenizer
        self._config = config
        self._load_template = load_template
        self._template = None
        self._options = options
        self._on_problem = on_problem
        self._notes = Notes()
        self._limit = min(options.seq, config.max_positions or options.seq)
        tokenizer.require_eos()
        self._rows = RowReader(functools.cache(lambda: has_chat_template(tokenizer, options.template)))
        self._thread = ThreadPoolExecutor(1)
        self._batch = None  # rows, and what gives the tokens of their texts
        self._num_bad_rows = 0

    def __iter__(self):
        for source in self.sources:
            yield from self.samples_of(source)

    def samples_of(self, source):
        found = is_usable = False
        problems_before = self._num_bad_rows
        for file in source.files:
            for sample in self._samples_in(file):
                found = True
                if not sample.continues or is_usable:
                    is_usable = self._is_in_vocabulary(sample) and (sample.continues or self._is_usable(sample))
                if not sample.continues and self._tokenizer.has_two_bos(sample.tokens):
                    self._notes.add(sample.where, two_bos_note(self._tokenizer))
                if is_usable:
                    yield sample
        if not found and self._num_bad_rows == problems_before:
            self._on_bad_row(BadInputError(f"'{source.name}' has no text: data is empty"))

    def notes(self):
        """What became of the data that whoever gave it may not expect."""
        return self._rows.notes() + self._notes.lines()

    # ---- Files to records

    def _samples_in(self, file):
        try:
            yield from self._text_file(file) if file.kind == TEXT else self._row_file(file)
        except BadInputError as error:
            self._batch = None
            self._on_bad_row(error)

    def _on_bad_row(self, error):
        self._num_bad_rows += 1
        if not self._options.every_problem:
            raise error
        self._on_problem(str(error))

    def _text_file(self, file):
        with opened(file) as (stream, _):
            first = next(filter(str.strip, text_chunks(stream, file.path)), None)
        if first is None:
            return
        if begins_with_a_row(first):
            self._notes.add(file.path, "it looks like rows and is read as one text, for its name: name it .jsonl if its "
                                       "rows are meant")
        with opened(file) as (stream, done), Progress(f"tokenizing {os.path.basename(file.path)}", 1) as progress:
            yield from self._long_text(file.path, _watched(text_chunks(stream, file.path), done, progress))

    def _row_file(self, file):
        plans = {"text": self._plan_text, "prompt": self._plan_prompt, "messages": self._plan_chat}
        batch, batch_bytes = [], 0
        with Progress(f"tokenizing {os.path.basename(file.path)}", 1) as progress:
            for row in self._rows_in(file):
                try:
                    kind, record = self._rows.record(row)
                    check_record(kind, record, row.where)
                except BadInputError as error:
                    self._on_bad_row(error)
                    continue
                if kind == "messages":
                    self._require_template(row.where)
                try:
                    is_long = kind == "text" and len(record["text"]) > LONG_TEXT_CHARS
                    texts, make = ([], None) if is_long else plans[kind](row.where, record)
                except BadInputError as error:
                    self._on_bad_row(error)
                    continue
                if not is_long:
                    batch.append((row, texts, make))
                    batch_bytes += sum(map(size_in_utf8, texts))
                if is_long or len(batch) == BATCH_RECORDS or batch_bytes >= GROUP_BYTES:
                    yield from self._encode(batch, file.path)
                    batch, batch_bytes = [], 0
                    progress.update(row.done())
                if is_long:
                    yield from self._encode([], file.path)
                    yield from self._long_text(row.where, [record["text"]])
            yield from self._encode(batch, file.path)
            yield from self._encode([], file.path)

    def _rows_in(self, file):
        try:
            yield from rows_in(file, COLUMNS, self._on_bad_row)
        except BadInputError as error:  # where the next row begins cannot be told
            self._on_bad_row(error)

    # ---- Records to samples

    def _encode(self, batch, path):
        """Tokenizes many records at once: every record asks for the texts it needs and makes its sample of them.

        Gives the samples of the batch before, while those of this one are tokenized.
        """
        before, self._batch = self._batch, None
        if batch:
            first, last = batch[0][0], batch[-1][0]
            where = first.where if first is last else f"{path}, rows {first.number} to {last.number}"
            texts = [text for _, texts, _ in batch for text in texts]
            self._batch = batch, self._thread.submit(list, self._tokenizer.encodings_of(texts, f"{where}: "))
        if before is not None:
            encoded = iter(before[1].result())
            for _, texts, make in before[0]:
                yield make([encoding.ids for encoding in itertools.islice(encoded, len(texts))])

    def _plan_text(self, where, record):
        return [record["text"]], lambda ids: _text_sample(where, as_array([
            *self._tokenizer.prefix_of(ids[0]), *ids[0], *self._tokenizer.suffix_of(ids[0])]))

    def _long_text(self, where, chunks):
        """The text in samples of whole rows, so that little of it is in memory."""
        rows_tokens = self._options.seq - 1  # except for the token that the next row begins with
        held, continues = as_array([]), False
        for ids in self._arrays_of_text(where, chunks):
            held = np.concatenate([held, ids])
            # A part ends before the last token, so that there is another part.
            end = (len(held) - 2) // rows_tokens * rows_tokens
            if end >= PART_TOKENS:
                yield _text_sample(where, held[:end + 1], continues)
                held, continues = held[end:], True
        yield _text_sample(where, held, continues)

    def _arrays_of_text(self, where, chunks):
        """Its tokens, with what comes before the first and after the last."""
        last = []
        for ids in LongText(self._tokenizer, chunks, f"{where}: ").arrays():
            if not len(last):
                yield as_array(self._tokenizer.prefix_of(ids))
            yield ids
            last = ids if len(ids) else last
        yield as_array(self._tokenizer.suffix_of(last))

    def _plan_prompt(self, where, record):
        prompt, completion = record["prompt"], record["completion"]
        require_whole(prompt + completion, f"{where}: 'prompt' with 'completion'")
        if not completion.strip():
            self._notes.add(where, "its completion is empty: only the token that ends it is trained")

        def make(ids):
            before = self._tokenizer.prefix_of(ids[0]) + ids[0]
            completed = continuation(ids[0], ids[1], completion, prompt, self._tokenizer)
            tokens = np.asarray(before + completed + self._tokenizer.suffix_of(completed), dtype=np.uint32)
            return self._fit(_sample(where, "prompt", tokens, np.arange(len(tokens)) >= len(before)))
        return [prompt, prompt + completion], make

    def _require_template(self, where):
        try:
            if self._template is None:
                self._template = self._load_template()
        except BadInputError as error:
            raise BadInputError(f"{where}: {error}") from None

    def _plan_chat(self, where, record):
        messages, is_trained = trained_turns(record["messages"], where)
        roles = dict.fromkeys(message["role"] for message in messages)
        for role in [role for role in roles if role not in STANDARD_ROLES]:
            self._notes.add(where, f"turns of the role '{role[:100]}' are not trained, as they are not the assistant's")
        if any(message["role"] == "assistant" and not says(message) for message in messages):
            self._notes.add(where, "a turn of the assistant is empty: only the token that ends it is trained")
        tools = tools_of(record, where)
        template = self._template.for_tools(tools)
        text, spans = template.render_with_spans(messages, self._tokenizer.turn_tokens, f"{where}: ", tools)
        spans = [span for span in _spans_of(spans, is_trained, where, template) if span[0] < span[1]]
        require_whole(text, f"{where}: the chat, as {template.name} writes it,")
        if self._options.find_unwritten:
            for what in template.unwritten(messages, f"{where}: ", tools):
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
            sample = self._fit(_sample(where, "messages", tokens, trained))
            if "assistant" not in roles:
                sample.untrained = (f"no turn of the assistant says anything: its roles are {_quoted(roles)}, and none is "
                                    "'assistant'")
            return sample
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

    def _is_in_vocabulary(self, sample):
        beyond = self._tokenizer.beyond_vocabulary(sample.tokens)
        if beyond is not None:
            self._on_problem(f"{sample.where}: the sample has {beyond}: leave it out of the text, or take a model that has a "
                             "row for it")
        return beyond is None

    def _is_usable(self, sample):
        length, where = len(sample.tokens), sample.where
        positions = self._config.max_positions
        in_row = min(length, self._options.seq)
        if positions is not None and in_row > positions:
            self._on_problem(f"{where}: the sample has {count_of(length, 'token')}, rows of --seq={self._options.seq} "
                             f"would hold {in_row} of them, but the model has {positions} positions (config.json): use "
                             f"--seq={positions} or less")
        elif sample.kind != "text" and length > self._options.seq:
            kind = "chat" if sample.kind == "messages" else "prompt and completion"
            self._on_problem(f"{where}: the {kind} has {count_of(length, 'token')}, a row has "
                             f"--seq={self._options.seq}: {self._longer_rows(', ')}shorten the sample, or cut it with "
                             "--truncate")
        elif not np.count_nonzero(sample.trained):
            reason = sample.untrained or {"text": "its text is empty", "prompt": "its completion is empty",
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


def check_record(kind, record, where):
    if kind == "messages":
        check_messages(record["messages"], where)
        return
    for key, value in record.items():
        check_text(value, f"'{key}'", where)


def _spans_of(spans, is_trained, where, template):
    """The spans of turns that are to be trained."""
    if all(is_trained):
        return spans
    if len(spans) != len(is_trained):
        raise BadInputError(f"{where}: the data says of some turns that they are not trained ('train' or 'weight'), and {template.name} "
                            f"marks {len(spans)} places for the {len(is_trained)} turns of the assistant, so it cannot be told which "
                            "these are: leave empty turns out, or give another template with --template")
    return list(itertools.compress(spans, is_trained))


def _watched(chunks, done, progress):
    for chunk in chunks:
        yield chunk
        progress.update(done())


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
             for number, text in _prompt_lines(path)]
    if not found:
        raise BadInputError(f"'{path}' has no prompts: every line of it is blank")
    return found


def _prompt_lines(path):
    with open_regular(path, PROMPT_FILE) as file:
        yield from lines_in(file, path)


def parse_prompt(text, where):
    """{"prompt": str} or {"messages": [...]} of one JSON line, checked."""
    record = parse_object(text, where)
    kind = "prompt" if set(record) == {"prompt"} else "messages" if set(record) - CHAT_KEYS == {"messages"} else None
    if kind == "messages":
        record["messages"] = chat_turns(record["messages"], where, "'messages'")
    if kind is None:
        raise BadInputError(f"{where}: the keys {_quoted(record)} do not make a prompt; a line has either 'prompt' or "
                            "'messages'")
    check_record(kind, record, where)
    return record


def _quoted(keys):
    return ", ".join(f"'{key}'" for key in keys) or "(none)"


def _text_sample(where, tokens, continues=False):
    return _sample(where, "text", tokens, np.ones(len(tokens), dtype=bool), continues)


def _sample(where, kind, tokens, trained, continues=False):
    trained[:1] = False  # nothing comes before it that could predict it
    return Sample(where, kind, tokens, trained, continues=continues)
