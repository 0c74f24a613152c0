"""`encode`, `decode` and `eos`: what generation needs of the tokenizer, over standard input and output."""

import datetime
import json
import signal
import sys

from .errors import BadInputError
from .samples import lines_in, parse_prompt, prompts_in_file, require_whole
from .template import FOR_GENERATION, load_chat_template
from .tokenizer import ModelConfig, ModelTokenizer, StreamDecoder


def encode(options):
    """One JSON object {"tokens": [...], "eos": [...]} for every JSON line {"prompt"} or {"messages"}; of a file with
    prompts all of them in a list, with the line of each."""
    tokenizer = ModelTokenizer(options.model, ModelConfig(options.model))
    stop_ids = tokenizer.stop_ids()
    template = None

    def tokens_of(record, name):
        nonlocal template
        if options.chat and "prompt" in record:
            record = {"messages": [{"role": "user", "content": record["prompt"]}]}
        if "prompt" in record:
            text = record["prompt"]
        else:
            template = template or load_chat_template(tokenizer, options.template, datetime.datetime.now,
                                                      FOR_GENERATION)
            text = template.render(record["messages"], True, f"{name}: ")
        require_whole(text, name)
        tokens = tokenizer.encode(text, f"{name}: ")
        if "prompt" in record:
            tokens = tokenizer.prefix_ids + tokens
        if not tokens:
            raise BadInputError(
                f"{name} has no token: the tokenizer knows nothing of what is in it. Write something else"
            )
        return tokens

    if options.prompts is not None:
        where = f"{options.prompts}:"
        return [{"tokens": tokens_of(record, f"{where}{number}: the prompt"), "eos": stop_ids, "line": number}
                for number, record in prompts_in_file(options.prompts)]
    for number, _, line in lines_in(sys.stdin.buffer, "standard input"):
        record = parse_prompt(line, f"standard input:{number}")
        reply = {"tokens": tokens_of(record, f"prompt {number}"), "eos": stop_ids}
        print(json.dumps(reply), flush=True)
    return None


def decode(options):
    """Text as soon as it is complete: bare, or with --format=json one JSON string for every input line. The line
    "end" ends a text, and another may follow."""
    config = ModelConfig(options.model)
    tokenizer = ModelTokenizer(options.model, config)
    decoder = StreamDecoder(tokenizer)
    if options.format == "json":
        # A program listens, which decides itself what Ctrl-C means; this one ends with its input.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def emit(text):
        print(json.dumps(text) if options.format == "json" else text,
              end="\n" if options.format == "json" else "", flush=True)

    if options.stream:
        emit("")
    for number, line in enumerate(sys.stdin, 1):
        if line.strip() == "end":
            emit(decoder.finish())
            decoder = StreamDecoder(tokenizer)
            continue
        text = line.strip()
        if not (text.isdecimal() and len(text) <= 10 and int(text) < config.vocab_size):
            raise BadInputError(f"standard input:{number}: {text!r} is not a token id below {config.vocab_size}")
        emit(decoder.push(int(text)))
    emit(decoder.finish())


def eos(options):
    """Special token ids of the tokenizer, and where generation stops."""
    tokenizer = ModelTokenizer(options.model, ModelConfig(options.model))
    return {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "pad": tokenizer.pad_id, "stop": tokenizer.stop_ids()}
