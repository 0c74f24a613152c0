"""The folder of packed files that `pack --cache` keeps: files are marked as used, and old ones give way to new ones.

Whoever reads one holds a shared flock on it (data/packed_file.cc does), so that a long run keeps its data.
"""

import contextlib
import fcntl
import os
import time

UNUSED_DAYS = 30
# Temporary files of packers that were killed: a packer at work writes to its own all the time.
ABANDONED_DAYS = 1
_DAY_S = 24 * 60 * 60


def mark_used(path):
    # Not to be able to (a cache of somebody else's) costs a packing at most.
    with contextlib.suppress(OSError):
        os.utime(path)


def remove_unused(folder):
    """Removes what no run has used for UNUSED_DAYS; other files than the cache's own are left."""
    now = time.time()
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            days = ABANDONED_DAYS if ".packed.tmp" in entry.name else UNUSED_DAYS
            if not (entry.name.endswith(".packed") or ".packed.tmp" in entry.name):
                continue
            with contextlib.suppress(OSError):
                if entry.is_file(follow_symlinks=False) and now - entry.stat().st_mtime > days * _DAY_S:
                    _remove_unless_in_use(entry.path)


def _remove_unless_in_use(path):
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError: somebody reads it
        os.unlink(path)
