"""Errors that files and users can cause, each with the exit code of docs/cli.md, and how they are reported."""

import json
import sys


class DataProgramError(Exception):
    """A message in three parts (what failed, why, what to do) and the exit code it ends the program with."""

    exit_code = 1

    def told(self):
        """The message as it is told: of a length that can be read."""
        return shortened(str(self))


class UsageError(DataProgramError):
    exit_code = 2


class BadInputError(DataProgramError):
    exit_code = 3


class BadDataError(BadInputError):
    """With a line for each problem, all of them short already."""

    def told(self):
        return str(self)


class StorageError(DataProgramError):
    exit_code = 5


class EnvironmentProblem(DataProgramError):
    exit_code = 9


def count_of(number, noun):
    """'1 token', '7 tokens'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def json_type(value):
    return "null" if value is None else type(value).__name__


def shortened(message):
    """Cuts a long message: names and values from a file may have any length."""
    most, tail = 2000, 500
    return message if len(message) <= most else f"{message[:most - tail]} [...] {message[-tail:]}"


def warn(message):
    print(f"forebay-data: {shortened(message)}", file=sys.stderr, flush=True)


def report_error(arguments, message, exit_code):
    """To standard error and, with --format=json, as a document to standard output. Returns `exit_code`.

    `arguments` as they were typed: the error may be that they cannot be parsed.
    """
    wants_document = _has(arguments, "--format", "json")
    try:
        if wants_document:
            print(json.dumps({"error": {"message": message, "exit_code": exit_code}}), flush=True)
        if not (wants_document and _has(arguments, "--errors", "document")):
            print(f"forebay-data: error: {message}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        pass  # nobody listens any more
    return exit_code


def _has(arguments, flag, value):
    return f"{flag}={value}" in arguments or (flag, value) in zip(arguments, arguments[1:])
