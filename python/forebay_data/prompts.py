"""`encode`, `decode` and `eos`: what generation needs of the tokenizer, over standard input and output."""

import collections
import datetime
import json
import signal
import sys

from .errors import BadInputError, warn
from .messages import tools_of
from .row_files import lines_in
from .samples import parse_prompt, prompts_in_file, require_whole, two_bos_note
from .template import FOR_GENERATION, load_chat_template
from .tokenizer import ModelConfig, ModelTokenizer, StreamDecoder


def _say_nothing(_message):
    """A prompt that has one of those tokens is refused, so a warning of them would be noise."""


def encode(options):
    """One JSON object {"tokens": [...], "eos": [...]} for every JSON line {"prompt"} or {"messages"}; of a file with
    prompts all of them in a list, with the line of each."""
    tokenizer = ModelTokenizer(options.model, ModelConfig(options.model), _say_nothing)
    stop_ids = tokenizer.stop_ids()
    template, has_noted = None, False

    def tokens_of(record, name):
        nonlocal template, has_noted
        if options.chat and "prompt" in record:
            record = {"messages": [{"role": "user", "content": record["prompt"]}]}
        if "prompt" in record:
            text = record["prompt"]
        else:
            template = template or load_chat_template(tokenizer, options.template, datetime.datetime.now,
                                                      FOR_GENERATION)
            tools = tools_of(record, name)
            text = template.for_tools(tools).render(record["messages"], True, f"{name}: ", tools)
        require_whole(text, name)
        tokens = tokenizer.encode(text, f"{name}: ")
        if "prompt" in record:
            tokens = tokenizer.prefix_of(tokens) + tokens
        if tokenizer.has_two_bos(tokens) and not has_noted:
            has_noted = True
            warn(f"note: {name}: {two_bos_note(tokenizer)}")
        if not tokens:
            raise BadInputError(
                f"{name} has no token: the tokenizer knows nothing of what is in it. Write something else"
            )
        if problem := tokenizer.beyond_vocabulary(tokens):
            raise BadInputError(f"{name} has {problem}: leave it out")
        return tokens

    if options.prompts is not None:
        where = f"{options.prompts}:"
        return [{"tokens": tokens_of(record, f"{where}{number}: the prompt"), "eos": stop_ids, "line": number}
                for number, record in prompts_in_file(options.prompts)]
    for number, line in lines_in(sys.stdin.buffer, "standard input"):
        record = parse_prompt(line, f"standard input:{number}")
        reply = {"tokens": tokens_of(record, f"prompt {number}"), "eos": stop_ids}
        print(json.dumps(reply), flush=True)
    return None


def decode(options):
    """Text as soon as it is complete: bare, or with --format=json one JSON string for every input line: TOKEN, or
    "end", which ends a text, and another may follow. If there are several texts, either comes after the number of its text."""
    config = ModelConfig(options.model)
    tokenizer = ModelTokenizer(options.model, config, _say_nothing)
    decoders = collections.defaultdict(lambda: StreamDecoder(tokenizer))  # by the number of their text
    if options.format == "json":
        # A program listens, which decides itself what Ctrl-C means; this one ends with its input.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def emit(text):
        print(json.dumps(text) if options.format == "json" else text,
              end="\n" if options.format == "json" else "", flush=True)

    if options.stream:
        emit("")
    for number, line in enumerate(sys.stdin, 1):
        text, _, token = line.strip().rpartition(" ")
        if token == "end":
            emit(decoders[text].finish())
            del decoders[text]
            continue
        if not (token.isdecimal() and len(token) <= 10 and int(token) < config.vocab_size):
            raise BadInputError(f"standard input:{number}: {token!r} is not a token id below {config.vocab_size}")
        emit(decoders[text].push(int(token)))
    emit("".join(decoder.finish() for decoder in decoders.values()))


def eos(options):
    """Special token ids of the tokenizer, and where generation stops."""
    tokenizer = ModelTokenizer(options.model, ModelConfig(options.model), _say_nothing)
    return {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "pad": tokenizer.pad_id, "stop": tokenizer.stop_ids()}
