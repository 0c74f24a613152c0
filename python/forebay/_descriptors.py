"""Opens files with descriptors above 2: if a program closed its standard streams, its output would otherwise go into a
file of ours."""

from __future__ import annotations

import fcntl
import os
from typing import Any

_FIRST = 3


def above_standard_streams(descriptor: int) -> int:
    """The descriptor itself, or a duplicate with a higher number in its place. OSError: there is none."""
    if descriptor >= _FIRST:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST)
    finally:
        os.close(descriptor)


def _opener(path: str, flags: int) -> int:
    return above_standard_streams(os.open(path, flags | os.O_CLOEXEC, 0o666))


def open_to_write(path: str, mode: str, **options: Any) -> Any:
    """Does what open() does, with a descriptor above 2."""
    return open(path, mode, opener=_opener, **options)
