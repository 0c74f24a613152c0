"""Exceptions: one for each code of the C interface, which are the exit codes of the program `forebay`.

Each is also the built-in exception that a caller would look for.
"""

from __future__ import annotations

import ctypes
from typing import Any


class ForebayError(Exception):
    """A message that says what failed, why, and what to do about it."""

    exit_code = 1


class InternalError(ForebayError, RuntimeError):
    """A bug in forebay."""

    exit_code = 1


class UsageError(ForebayError, ValueError):
    """A mistake of the caller's; nothing was changed."""

    exit_code = 2


class NotSupportedError(UsageError, NotImplementedError):
    """Asks for what forebay does not do; the message names the way out."""


class BadInputError(ForebayError, ValueError):
    """A model or data that is not valid."""

    exit_code = 3


class DoesNotFitError(ForebayError, MemoryError):
    """Found before starting: too little memory or disk."""

    exit_code = 4


class StorageError(ForebayError, OSError):
    """An I/O operation failed."""

    exit_code = 5


class OutOfMemoryError(ForebayError, MemoryError):
    """Memory ran out while running."""

    exit_code = 6


class NumericalError(ForebayError, ArithmeticError):
    """Values that are not finite."""

    exit_code = 7


class CorruptError(ForebayError):
    """A store that is damaged, or another one than expected."""

    exit_code = 8


class EnvironmentProblem(ForebayError, RuntimeError):
    """The machine: a lock, a kernel feature, a thread that cannot be had."""

    exit_code = 9


class StoppedError(ForebayError):
    """A call that was ended by `Layers.stop`."""

    exit_code = 75


_BY_CODE: dict[int, type[ForebayError]] = {
    kind.exit_code: kind
    for kind in (InternalError, UsageError, BadInputError, DoesNotFitError, StorageError, OutOfMemoryError,
                 NumericalError, CorruptError, EnvironmentProblem, StoppedError)
}


def check(library: Any, code: int, message: ctypes.c_void_p) -> None:
    """Raises the exception of `code`, if it is not 0, with the message that the library gave, which is freed."""
    if code == 0:
        return
    text = f"forebay failed with code {code} and gave no message"
    if message.value is not None:
        text = ctypes.string_at(message.value).decode("utf-8", "replace")
        library.forebay_free(message)
    raise _BY_CODE.get(code, InternalError)(text)
