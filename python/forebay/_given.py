"""What callers give, checked before it is used: numbers that fit their type, folders, sizes and JSON. Each error is a
UsageError that names what was given."""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Iterable
from typing import Any, Union

from forebay.errors import StorageError, UsageError

Path = Union[str, bytes, "os.PathLike[str]"]

_MOST_BYTES = 2**63 - 1
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30,
          "TIB": 2**40}


def whole(value: Any, name: str, least: int, most: int) -> int:
    """A whole number of any type (NumPy's too), but no bool and no float."""
    try:
        if not isinstance(value, bool):
            number = operator.index(value)
            if least <= number <= most:
                return number
    except TypeError:
        pass
    raise UsageError(f"forebay: {name} is {_shown(value)}, and has to be a whole number from {least} to {most}.")


def real(value: Any, name: str, least: float = -math.inf, below: float = math.inf) -> float:
    """A number in [least, below), of any type that is one (a tensor of one element too); not NaN, and no text or bool.
    below: inf: infinity is allowed."""
    try:
        if not isinstance(value, (bool, str, bytes)):
            number = float(value)
            if least <= number < below or number == below == math.inf:
                return number
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    bounds = "" if least == -math.inf else f" from {least:g} on" if below == math.inf else f" in [{least:g}, {below:g})"
    raise UsageError(f"forebay: {name} is {_shown(value)}, and has to be a number{bounds}.")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def bytes_of(size: Any, name: str, least: int = 1) -> int:
    """8589934592 of "8GiB"."""
    if isinstance(size, float) and size.is_integer():
        size = int(size)
    number, unit = str(size).strip(), ""
    while number and number[-1].isalpha():
        number, unit = number[:-1], number[-1] + unit
    number = number.rstrip()
    if isinstance(size, bool) or not number.replace(".", "", 1).isdecimal() or not number[0].isdecimal() or (
            not number.isascii() or number[-1] == "." or unit.upper() not in _UNITS):
        raise UsageError(f"forebay: {name}={_shown(size)} is no size. Write bytes as a number, or \"8GiB\", or "
                         "\"500MB\".")
    before, _, behind = number.partition(".")
    num_bytes: int = int(before + behind) * _UNITS[unit.upper()] // 10 ** len(behind)
    if not least <= num_bytes <= _MOST_BYTES:
        raise UsageError(f"forebay: {name}={_shown(size)} is {num_bytes} bytes, and has to be from {least} to "
                         f"{_MOST_BYTES}.")
    return num_bytes


def folders(given: Path | Iterable[Path], name: str) -> list[str]:
    """Checks one folder or several with `folder`, whose errors it raises."""
    if isinstance(given, (str, bytes, os.PathLike)):
        return [folder(given, name)]
    try:
        listed = list(given)
    except TypeError:
        raise UsageError(f"forebay: {name} is {_shown(given)}, which names no folder. Give a path, or a list of them."
                         ) from None
    return [folder(each, name) for each in listed]


def folder(given: Path, name: str) -> str:
    """Makes a path absolute, so that it does not change with a later os.chdir(). StorageError: it is relative, and the
    current folder is gone."""
    if not isinstance(given, (str, bytes, os.PathLike)):
        raise UsageError(f"forebay: {name} has {_shown(given)}, which names no folder. Give a path.")
    path = os.fsdecode(given)
    if not path or "\0" in path or not _is_encoded(path):
        raise UsageError(f"forebay: {name} has {_shown(given)}, which names no folder: "
                         f"{'it is empty' if not path else 'no file system has such a name'}. Name it, or \".\" for "
                         "the current one.")
    if os.path.isabs(path):
        return path
    try:
        return os.path.join(os.getcwd(), path)
    except OSError as error:
        raise StorageError(f"forebay: {name}={_shown(given)} is relative to the current folder, which cannot be known: "
                           f"{error.strerror}. Name the folder from the root on.") from error


def _is_encoded(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def utf8(text: Any, name: str) -> bytes:
    """A text that C can be given."""
    if isinstance(text, str) and "\0" not in text:
        try:
            return text.encode()
        except UnicodeEncodeError:
            pass
    raise UsageError(f"forebay: {name} is {_shown(text)}, and has to be a text without zero bytes and lone surrogates.")


def json_of(user: Any, name: str = "user") -> bytes:
    """A dictionary as JSON; None: an empty one."""
    if user is None:
        return b"{}"
    if not isinstance(user, dict):
        raise UsageError(f"forebay: {name} is a {type(user).__name__}, and has to be a dictionary.")
    check_json(user, name)
    return json.dumps(user, separators=(",", ":"), ensure_ascii=False).encode()


def check_json(value: Any, name: str) -> None:
    """UsageError: JSON has no such value, or it would be another when it is read again; it is named."""
    try:
        _check_json(value, name, ())
    except RecursionError:
        raise UsageError(f"forebay: {name} is nested too deeply for JSON. Keep it in a file of your own.") from None


def _check_json(value: Any, name: str, around: tuple[int, ...]) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise _no_json(name, "a text with a lone surrogate, which no UTF-8 has")
    elif isinstance(value, int):
        if not -2**63 <= value < 2**64:
            raise _no_json(name, f"{_shown(value)}, which has more than 64 bits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _no_json(name, f"{value}, which JSON has no word for")
    elif not isinstance(value, (dict, list, tuple)):
        raise _no_json(name, f"a {type(value).__name__}")
    elif id(value) in around:
        raise _no_json(name, f"the {type(value).__name__} that it lies in")
    elif isinstance(value, dict):
        for key, each in value.items():
            if not isinstance(key, str):
                raise _no_json(f"the key {_shown(key)} of {name}", f"a {type(key).__name__} and no text")
            _check_json(key, f"the key {key!a} of {name}", ())
            _check_json(each, f"{name}[{key!r}]", (*around, id(value)))
    else:
        for number, each in enumerate(value):
            _check_json(each, f"{name}[{number}]", (*around, id(value)))


def _no_json(name: str, what: str) -> UsageError:
    return UsageError(f"forebay: {name} is {what}. A commit carries JSON: texts, finite numbers of up to 64 bits, "
                      "True, False, None, and lists and dictionaries of them.")
