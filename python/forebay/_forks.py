"""Forks of this process, such as the workers of a DataLoader: they have none of its threads, so objects that were made
before are not theirs to use; and they would keep stores locked when it was killed."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Any

from forebay.errors import UsageError

_holders: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()


def check_process(made_by: int, what: str) -> None:
    """UsageError: this is not the process that made it."""
    process = os.getpid()
    if process != made_by:
        raise UsageError(f"forebay: {what} of process {made_by} cannot be used in process {process}, a fork of it, "
                         f"which has none of its threads. Use it in process {made_by}, or make another one here, with "
                         "a folder of its own.")


def gives_up_locks(holder: Any, folders: Iterable[str]) -> None:
    """Forks that begin while `holder` lives keep no locks of the stores in `folders`."""
    _holders[holder] = [os.path.join(os.path.realpath(folder), "lock") for folder in folders]


def _give_up() -> None:
    locks = {lock for locks in _holders.values() for lock in locks}
    if not locks:
        return
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if os.readlink(f"/proc/self/fd/{number}") in locks:
                os.close(number)
        except OSError:  # it was that of the list
            pass


os.register_at_fork(after_in_child=_give_up)
