"""Errors that files and users can cause, each with the exit code of docs/cli.md."""


class DataProgramError(Exception):
    """A message in three parts (what failed, why, what to do) and the exit code it ends the program with."""

    exit_code = 1


class UsageError(DataProgramError):
    exit_code = 2


class BadInputError(DataProgramError):
    exit_code = 3


class StorageError(DataProgramError):
    exit_code = 5


class EnvironmentProblem(DataProgramError):
    exit_code = 9


def count_of(number, noun):
    """'1 token', '7 tokens'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
