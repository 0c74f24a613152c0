"""The folders of an engine's store, and copies of a store."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import weakref

from forebay._descriptors import above_standard_streams, open_to_write
from forebay._given import folder as folder_of
from forebay.errors import StorageError

_LOCK = "lock"
_STORE = "store"
_CHUNK = 64 << 20
# Where the kernel or the filesystem copies nothing by itself: read and write.
_CANNOT = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP)


class Scratch:
    """A folder below `parent` for a store that goes with its process. What a killed process has left is removed when
    the next one comes."""

    def __init__(self, parent: str) -> None:
        parent = folder_of(parent, "nvme_path")
        try:
            os.makedirs(parent, exist_ok=True)
            self._lock = -1
            number = 0
            while self._lock < 0:
                self._folder = os.path.join(parent, f"forebay-scratch-{number}")
                self._lock = _lock(self._folder)
                number += 1
            _remove_unused(parent, number)
        except OSError as error:
            raise StorageError(f"forebay: there is no folder for the state below nvme_path={parent}: "
                               f"{error.strerror}. Name a folder that can be written to.") from error
        self._process = os.getpid()
        _HELD.add(self)
        self.clear()

    @property
    def store(self) -> str:
        return os.path.join(self._folder, _STORE)

    def clear(self) -> None:
        shutil.rmtree(self.store, ignore_errors=True)

    def remove(self) -> None:
        """Does nothing in a process that was forked."""
        if self._lock >= 0 and self._process == os.getpid():
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
        self._lock = -1

    def give_up_lock(self) -> None:
        """In a fork, such as a worker of a DataLoader: it would hold the folder when its program was killed."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


_HELD: weakref.WeakSet[Scratch] = weakref.WeakSet()

def _give_up_locks() -> None:
    for scratch in _HELD:
        scratch.give_up_lock()


os.register_at_fork(after_in_child=_give_up_locks)


def _lock(folder: str) -> int:
    """Makes the folder, and returns a descriptor that holds it; -1: another process does."""
    path = os.path.join(folder, _LOCK)
    while True:
        os.makedirs(folder, exist_ok=True)
        try:
            lock = above_standard_streams(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except FileNotFoundError:
            continue  # it was removed in between
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(path) and os.path.samestat(os.fstat(lock), os.stat(path)):
                return lock
        except BlockingIOError:
            os.close(lock)
            return -1
        except FileNotFoundError:
            pass
        os.close(lock)  # a file that its owner removed


def _remove_unused(parent: str, number: int) -> None:
    while os.path.isdir(folder := os.path.join(parent, f"forebay-scratch-{number}")):
        lock = _lock(folder)
        if lock >= 0:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
        number += 1


def copy_store(source: str, target: str, what: str) -> None:
    """Copies the folder of a store that is at rest, durably. On a filesystem that shares blocks (XFS, btrfs) no data
    are written. StorageError: there is no room; `target` is then removed.

    what: for the error, such as "checkpoint global_step5".
    """
    num_bytes = sum(os.path.getsize(path) for path, _ in _files(source, target))
    try:
        for path, copy in _files(source, target):
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            _copy_file(path, copy)
        for folder, _, _ in os.walk(target):
            sync_folder(folder)
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise StorageError(f"forebay: {what} needs a copy of the state, {num_bytes} bytes from {source} to {target}: "
                           f"{error.strerror}. Remove checkpoints that are not needed, or choose another disk."
                           ) from error


def _files(source: str, target: str) -> list[tuple[str, str]]:
    return [(os.path.join(folder, name), os.path.join(target, os.path.relpath(folder, source), name))
            for folder, _, names in sorted(os.walk(source)) for name in sorted(names) if name != _LOCK]


def _copy_file(source: str, target: str) -> None:
    with open(source, "rb", buffering=0) as reader, open_to_write(target, "wb", buffering=0) as writer:
        try:
            while os.copy_file_range(reader.fileno(), writer.fileno(), _CHUNK) > 0:
                pass
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            shutil.copyfileobj(reader, writer, _CHUNK)
        os.fsync(writer.fileno())


def sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
