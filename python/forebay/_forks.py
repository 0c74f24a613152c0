"""Forks of this process, such as the workers of a DataLoader: they would keep stores locked when it was killed."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Any

_holders: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()


def gives_up_locks(holder: Any, folders: Iterable[Any]) -> None:
    """Forks that begin while `holder` lives keep no locks of the stores in `folders`."""
    _holders[holder] = [os.path.join(os.path.realpath(os.fsdecode(folder)), "lock") for folder in folders]


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
