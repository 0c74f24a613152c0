"""The command line: one subcommand per job. Results on standard output, progress and errors on standard error.

With --format=json there is one JSON document on standard output, also for an error: {"error": {message, exit_code}}.
An error is on standard error too, except with --errors=document, for programs that report it themselves.
"""

import argparse
import difflib
import json
import os
import signal
import sys

from . import DEFAULT_SEQ
from .errors import DataProgramError, UsageError, report_error, shortened


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UsageError(f"{message}; see '{self.prog} --help'")

    def parse_known_args(self, args=None, namespace=None):
        # argparse speaks of flags that are missing first, which a misspelled one may be.
        if self._subparsers is None:
            self._refuse_unknown_flags(args)
        return super().parse_known_args(args, namespace)

    def _refuse_unknown_flags(self, arguments):
        for argument in arguments:
            if argument == "--":
                return
            name = argument.split("=", 1)[0]
            # With a blank it is a value to argparse.
            if not name.startswith("--") or " " in argument or name in self._option_string_actions:
                continue
            nearest = difflib.get_close_matches(name, self._option_string_actions, n=1)
            self.error(f"unknown flag '{name}'" + (f"; did you mean '{nearest[0]}'?" if nearest else ""))


def _add_data_arguments(parser, default_seq):
    parser.add_argument("--model", required=True, help="Hugging Face model folder (config.json, tokenizer.json)")
    parser.add_argument("--data", required=True, action="append", metavar="PATH[:WEIGHT]",
                        help="texts, rows or chats: a file or a folder of them, with how often an epoch passes over it; "
                             "several with commas between them, or given several times; or one packed file")
    parser.add_argument("--seq", type=int, help=f"tokens per row (default: {default_seq}; a packed file has its own)")
    parser.add_argument("--truncate", action="store_true", help="cut over-long prompts and chats instead of refusing")
    parser.add_argument("--template", help="chat template to use instead of the model's")


def _make_parser():
    parser = _Parser(prog="forebay-data", allow_abbrev=False,
                     description="Text to packed tokens, prompts, and GGUF files for forebay.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--format", choices=("text", "json"), default="text")
    common.add_argument("--errors", choices=("all", "document"), default="all",
                        help="'document': with --format=json leave them off standard error")

    def add(name, text):
        return commands.add_parser(name, help=text, description=text, parents=[common], allow_abbrev=False)

    packer = add("pack", "tokenize and pack data into a file, or into a cache folder")
    _add_data_arguments(packer, DEFAULT_SEQ)
    target = packer.add_mutually_exclusive_group()
    target.add_argument("--out", help="packed file to write")
    target.add_argument("--cache", help="folder of packed files, named after a digest of what they depend on")

    shower = add("show", "print samples with their trained tokens marked")
    _add_data_arguments(shower, "the model's positions")
    shower.add_argument("-n", "--n", type=int, default=2, help="how many")

    checker = add("check", "count samples and tokens, and find every sample that cannot be trained on")
    _add_data_arguments(checker, DEFAULT_SEQ)

    encoder = add("encode", 'tokens of prompts: JSON lines {"prompt"} or {"messages"} on standard input')
    encoder.add_argument("--model", required=True)
    encoder.add_argument("--prompts", help="instead: a file of prompts, one per line; .jsonl as on standard input, or "
                                           ".txt of plain text")
    encoder.add_argument("--chat", action="store_true", help="a prompt is a user's turn of the chat template")
    encoder.add_argument("--template", help="chat template to use instead of the model's")

    decoder = add("decode", "text of tokens: one id per line on standard input")
    decoder.add_argument("--model", required=True)
    decoder.add_argument("--stream", action="store_true", help="begin with an empty text when ready for tokens")

    add("eos", "special tokens, and where generation stops").add_argument("--model", required=True)

    converter = add("gguf", "convert a GGUF file to a Hugging Face model folder")
    converter.add_argument("--gguf", required=True, help="file to convert")
    converter.add_argument("--out", required=True, help="folder to make")
    converter.add_argument("--dtype", choices=("bf16", "f32"), default="bf16", help="of the weights written")
    return parser


def _functions_of(command):
    """Returns what computes the command's report and what tells it to people; None: it is told as JSON.
    Modules are imported where they are used: `gguf` is needed by one command only."""
    if command in ("encode", "decode", "eos"):
        from . import prompts
        return getattr(prompts, command), None
    if command == "gguf":
        from . import gguf_convert
        return gguf_convert.convert, gguf_convert.describe
    if command == "pack":
        from . import pack
        return pack.pack, pack.describe
    from . import show
    return getattr(show, command), show.describe_samples if command == "show" else show.describe_check


def _run(options, compute, describe):
    """Returns the exit code."""
    report = compute(options)
    if describe is None:
        if report is not None:
            print(json.dumps(report))
        return 0
    print(json.dumps(report, ensure_ascii=False) if options.format == "json" else describe(report))
    return 3 if report.get("num_problems") else 0


def _interrupt(number, frame):
    # Once: a terminal sends it to the process that waits for this one too, which sends it on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def main(arguments):
    # Whatever the locale says: data and the forebay binary speak UTF-8.
    sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    sys.stdout.reconfigure(encoding="utf-8")
    sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        options = _make_parser().parse_args(arguments)
        if "data" in options:
            options.data = ",".join(options.data)
        functions = _functions_of(options.command)
        # From here on Ctrl-C cleans up: temporary files are removed on the way out. Not before: Python's imports would
        # tell of it, or forget it.
        signal.signal(signal.SIGINT, _interrupt)
        code = _run(options, *functions)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        return code
    except DataProgramError as error:
        return report_error(arguments, error.told(), error.exit_code)
    except BrokenPipeError:
        # Who reads has seen enough (| head). What is still buffered goes nowhere, without a word at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 5
    except OSError as error:
        name = f" of '{error.filename}'" if error.filename is not None else ""
        return report_error(arguments, shortened(f"input or output{name} failed: {error.strerror or error}"), 5)
    except MemoryError:
        return report_error(arguments, "memory ran out. Allow more of it (ulimit -v), or split the data into several files and "
                            "pack them apart", 6)
    except KeyboardInterrupt:
        return 75
