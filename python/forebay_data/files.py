"""Reading small files with clear errors, writing files atomically, and reporting progress."""

import contextlib
import json
import os
import sys
import time

from .bounds import bounded
from .errors import BadInputError, StorageError

SHORT_JSON_CHARS = 1 << 16
# As base/json.h has both.
MAX_CONFIG_BYTES = 16 << 20
MAX_TOKENIZER_BYTES = 256 << 20
# Modes of files: a model is for whoever the umask lets read it, tokens of somebody's data are not.
FOR_OTHERS, PRIVATE = 0o666, 0o600
FOLDER_FOR_OTHERS, PRIVATE_FOLDER = 0o777, 0o700

# What stands in a checkout in place of a file that Git LFS has not fetched.
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def read_bytes(path, what, most_bytes=MAX_CONFIG_BYTES):
    """The whole file; `what` says in errors what the file is for."""
    try:
        with open(path, "rb") as file:
            contents = file.read(most_bytes + 1)
    except FileNotFoundError:
        raise BadInputError(f"'{path}' does not exist: {what}") from None
    except IsADirectoryError:
        raise BadInputError(f"'{path}' is a folder, not a file: {what}") from None
    refuse_lfs_pointer(path, contents)
    if len(contents) > most_bytes:
        raise BadInputError(f"'{path}' has more than {most_bytes:,} bytes, the most that is read of it: {what}")
    return contents


def refuse_lfs_pointer(path, beginning):
    """`beginning`: of the contents, more than a line of them."""
    if beginning.startswith(_LFS_POINTER):
        raise BadInputError(f"'{path}': this is a Git LFS pointer, not the file itself; run git lfs pull")


def parse_json(text, where, parse=json.loads):
    """`parse`, with a ValueError in words that say what to change; JSONDecodeError of a syntax error."""
    try:
        # The limits are out of reach of a short text, and setting them takes longer than reading it.
        if len(text) < SHORT_JSON_CHARS:
            return parse(text)
        with bounded(f"{where}: reading its JSON", "leave out what is not needed of it"):
            return parse(text)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise ValueError("lists and objects are nested too deeply in it") from None
    except ValueError as error:
        # Python names a function of its own as the cure.
        if "integer string conversion" in str(error):
            raise ValueError(f"a number has more than {sys.get_int_max_str_digits()} digits") from None
        raise


def read_json(path, what):
    """A JSON object from a file; BadInputError names the line of a syntax error."""
    try:
        value = parse_json(read_bytes(path, what).decode("utf-8-sig"), f"'{path}'")
    except UnicodeDecodeError as error:
        raise BadInputError(f"'{path}' is not UTF-8 (byte {error.start}): {what}") from None
    except json.JSONDecodeError as error:
        raise BadInputError(f"'{path}' is not valid JSON at line {error.lineno}, column {error.colno} "
                            f"({error.msg}): {what}") from None
    except ValueError as error:
        raise BadInputError(f"'{path}' is not valid JSON ({error}): {what}") from None
    if not isinstance(value, dict):
        raise BadInputError(f"'{path}' holds a JSON {type(value).__name__}, not an object: {what}")
    return value


def read_json_if_present(path, what):
    return read_json(path, what) if os.path.lexists(path) else {}


@contextlib.contextmanager
def atomic_writer(path, mode=FOR_OTHERS):
    """Opens a binary file that replaces `path` when the block succeeds, and leaves nothing behind when it does not.

    Never through a symbolic link, flushed to the device before it gets its name.
    """
    folder = os.path.dirname(os.path.abspath(path))
    temporary = f"{path}.tmp{os.getpid()}"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb", buffering=1 << 20) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
        folder_descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder_descriptor)
        finally:
            os.close(folder_descriptor)
    except OSError as error:
        raise StorageError(f"writing '{path}' failed: {error.strerror}. Nothing was replaced; check the space and "
                           f"the permissions of '{folder}'") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def write_text(path, text):
    with atomic_writer(path) as file:
        file.write(text.encode("utf-8"))


def make_folder(path, mode, what="the folder", fix="check the path and its permissions"):
    """mkdir -p, with `mode` for every folder that it makes. `what` and `fix` are for the error."""
    try:
        _make_folders(path, mode)
    except OSError as error:
        raise StorageError(f"creating {what} '{path}' failed: {error.strerror}; {fix}") from error


def _make_folders(path, mode):
    # os.makedirs gives its mode to the last folder alone.
    if os.path.isdir(path):
        return
    above = os.path.dirname(path.rstrip("/"))
    if above:
        _make_folders(above, mode)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):  # it is when another process made it meanwhile
            raise


class Progress:
    """Lines on standard error about work that takes more than two seconds: one live line on a terminal."""

    def __init__(self, label, total):
        self._label = label
        self._total = max(total, 1)
        self._begin_s = time.monotonic()
        self._next_s = self._begin_s + 2
        self._live = False

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()

    def update(self, done):
        now = time.monotonic()
        if now < self._next_s:
            return
        terminal = sys.stderr.isatty()
        self._next_s = now + (0.5 if terminal else 10)
        self._live = terminal
        line = f"forebay-data: {self._label} {100 * done / self._total:.0f} %"
        if done > 0:
            left_s = round((now - self._begin_s) * (self._total - done) / done)
            line += f", {left_s // 60}m{left_s % 60:02}s left" if left_s >= 60 else f", {left_s} s left"
        print(f"\r{line}\x1b[K" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)

    def close(self):
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
