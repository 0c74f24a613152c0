"""Rows of data files: JSON lines, arrays of JSON objects, Parquet; and the text of a text file. Each with its place.

One row is in memory at a time, or a few of Parquet. Not for: what a row's columns mean (rows.py).
"""

import codecs
import contextlib
import functools
import gzip
import io
import itertools
import json
import operator
import os
import sys
import zlib
from collections import Counter
from dataclasses import dataclass

from .bounds import bounded
from .errors import BadInputError, json_type
from .files import parse_json, refuse_lfs_pointer
from .sources import DATA_FILE, PARQUET

# A line is in memory several times while its JSON is read.
MAX_LINE_BYTES = 16 << 20
_READ_BYTES = 1 << 16
# At a time of a .zst file: 4 bytes may become 128 KiB.
_ZSTD_READ_BYTES = 1 << 10
# So much of an array is looked at for the end of an element, and twice as much if it is not there.
_ELEMENT_CHARS = 1 << 12
_ROWS_AT_ONCE = 16
_BLANKS = " \t\r\n"
_MAGICS = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}


@dataclass
class Row:
    where: str      # "data.jsonl:12", for messages
    number: int     # of the line, the element or the row, from 1
    done: object    # done(): share of the file that is read
    columns: dict
    unread: tuple = ()  # names of more columns


def rows_in(file, columns, on_problem):
    """Yields every Row of a file. From Parquet files only `columns` are read.

    on_problem(BadInputError) is told of a line that is no row, and may raise it.
    """
    if file.kind == PARQUET:
        yield from _parquet_rows(file.path, columns)
        return
    with opened(file) as (stream, progress):
        first = stream.peek(_READ_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()[:1]
        if first == b"[":
            yield from _elements(stream, file.path, progress)
            return
        for number, text in lines_in(stream, file.path):
            where = f"{file.path}:{number}"
            try:
                row = Row(where, number, progress, parse_object(text, where))
            except BadInputError as error:
                on_problem(error)
            else:
                yield row


@contextlib.contextmanager
def opened(file, what=DATA_FILE):
    """(stream of the bytes that the file holds, uncompressed; a function that gives the share of it that is read)."""
    with open_regular(file.path, what) as raw:
        size_bytes = max(os.fstat(raw.fileno()).st_size, 1)
        if not file.compression:
            _refuse_other_contents(file.path, raw.peek())
        try:
            yield _uncompressed(raw, file), lambda: raw.tell() / size_bytes
        except (EOFError, zlib.error, gzip.BadGzipFile, _CompressionError) as error:
            raise BadInputError(f"'{file.path}' cannot be uncompressed ({error}): it is damaged, incomplete, or not "
                                "compressed at all: copy it again, or name it after what it holds") from None


def _refuse_other_contents(path, beginning):
    """What a file may be, and its name does not say."""
    for magic, suffix in _MAGICS.items():
        if beginning.startswith(magic):
            raise BadInputError(f"'{path}' is compressed, and its name does not say so: add {suffix} to it")
    if beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise BadInputError(f"'{path}' is not UTF-8 but UTF-16: convert it with 'iconv -f UTF-16 -t UTF-8'")


class _CompressionError(Exception):
    """What is wrong with a .zst file, as the library for it, which may not be installed, says."""


def _uncompressed(raw, file):
    if file.compression == ".gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=raw), _READ_BYTES)
    if file.compression == ".zst":
        return io.BufferedReader(_ZstdReader(raw, file.path), _READ_BYTES)
    return raw


class _ZstdReader(io.RawIOBase):
    """Frame by frame: the library's own reader takes a file that is cut off for one that is over."""

    def __init__(self, raw, path):
        try:
            import zstandard
        except ImportError:
            raise BadInputError(f"'{path}' is compressed with zstd, and the Python package 'zstandard' is not installed: run "
                                "'pip install zstandard', or uncompress it with 'zstd -d'") from None
        self._raw, self._library = raw, zstandard
        self._frame = None          # the one that has begun
        self._compressed = b""      # what is read and not uncompressed yet
        self._data = memoryview(b"")

    def readable(self):
        return True

    def readinto(self, buffer):
        while not self._data:
            self._compressed = self._compressed or self._raw.read(_ZSTD_READ_BYTES)
            if not self._compressed:
                if self._frame is not None:
                    raise _CompressionError("it ends within a frame")
                return 0
            self._uncompress()
        size_bytes = min(len(buffer), len(self._data))
        buffer[:size_bytes] = self._data[:size_bytes]
        self._data = self._data[size_bytes:]
        return size_bytes

    def _uncompress(self):
        frame = self._frame or self._library.ZstdDecompressor().decompressobj()
        try:
            self._data = memoryview(frame.decompress(self._compressed))
        except self._library.ZstdError as error:
            raise _CompressionError(error) from None
        self._frame, self._compressed = (None, frame.unused_data) if frame.eof else (frame, b"")


@contextlib.contextmanager
def open_regular(path, what):
    try:
        file = open(path, "rb")
    except FileNotFoundError:
        raise BadInputError(f"'{path}' does not exist: {what}") from None
    except IsADirectoryError:
        raise BadInputError(f"'{path}' is a folder: {what}") from None
    with file:
        refuse_lfs_pointer(path, file.peek())
        yield file


# ---- Text

def text_chunks(stream, path):
    """The stream's text in pieces of some size, without a byte order mark."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, line, is_first = 0, 1, True
    while True:
        data = stream.read(_READ_BYTES)
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            begin = offset + len(data) - len(error.object)
            raise _not_utf8(path, error.object, error.start, begin, line) from None
        offset += len(data)
        line += data.count(b"\n")
        if is_first:
            text, is_first = text.removeprefix("\ufeff"), not text
        if text:
            yield text
        if not data:
            return


def _decode(data, path, offset, first_line):
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, data, error.start, offset, first_line) from None


def _not_utf8(path, data, start, offset, first_line):
    line = first_line + data.count(b"\n", 0, start)
    return BadInputError(f"{path}:{line}: not UTF-8 at byte {offset + start} (0x{data[start]:02x}): convert the file, for "
                         "example with 'iconv -t UTF-8'")


# ---- JSON lines

def begins_with_a_row(text):
    """Whether the first line of a text is a JSON object."""
    line = text.lstrip().split("\n", 1)[0]
    try:
        return line.startswith("{") and isinstance(parse_json(line, ""), dict)
    except ValueError:
        return False


def lines_in(file, name):
    """Yields (line number, text) for each line that is not blank. `name`: for errors."""
    offset = 0
    for number in itertools.count(1):
        line = file.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        if len(line) > MAX_LINE_BYTES:
            raise BadInputError(f"{name}:{number}: the line has {len(line) + _rest_of_line(file):,} bytes, the longest that is "
                                f"read has {MAX_LINE_BYTES:,}: split the record into several lines, or put a text into a "
                                ".txt file of its own")
        text = _decode(line, name, offset, number)
        offset += len(line)
        text = text.removeprefix("\ufeff") if number == 1 else text
        if text and not text.isspace():
            yield number, text


def _rest_of_line(file):
    """The bytes up to the end of the line."""
    size_bytes, part = 0, b""
    while not part.endswith(b"\n") and (part := file.readline(MAX_LINE_BYTES)):
        size_bytes += len(part)
    return size_bytes


def parse_object(text, where):
    try:
        record = parse_json(text, where, parse=_DECODER.decode)
    except json.JSONDecodeError as error:
        raise BadInputError(f"{where}: not valid JSON at column {error.colno} ({error.msg}): every line must be one "
                            "JSON object, or the file one array of them") from None
    except ValueError as error:
        raise BadInputError(f"{where}: not valid JSON ({error})") from None
    if not isinstance(record, dict):
        raise BadInputError(f"{where}: the line holds a JSON {json_type(record)}, not an object such as "
                            '{"text": "..."}')
    return record


def _object_without_duplicates(pairs):
    value = dict(pairs)
    if len(value) != len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key '{key}' appears twice")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object_without_duplicates)


# ---- An array of JSON objects

def _elements(stream, path, progress):
    """The rows of a file that is one array, an element of which is looked at as soon as it is there."""
    text = _Lookahead(text_chunks(stream, path))
    text.skip_blanks()
    text.take(1)  # the bracket
    for number in itertools.count(1):
        text.skip_blanks()
        where = f"{path}:{text.line}: element {number} of the array"
        if number == 1 and text.starts_with("]"):
            break
        columns = _next_object(text, where)
        yield Row(where, number, progress, columns)
        text.skip_blanks()
        if text.starts_with("]"):
            break
        if not text.starts_with(","):
            raise BadInputError(f"{path}:{text.line}: not valid JSON: element {number} of the array should be followed by a comma or a "
                                f"bracket (]), not {_shown(text.peek(1))}")
        text.take(1)
    text.take(1)
    text.skip_blanks()
    if text.peek(1):
        raise BadInputError(f"{path}:{text.line}: not valid JSON: {_shown(text.peek(1))} comes after the end of the array: one array is "
                            "all that a file may hold")


def _next_object(text, where):
    if not text.starts_with("{"):
        raise BadInputError(f"{where} is no JSON object such as {{\"text\": \"...\"}}: it begins with {_shown(text.peek(1))}")
    size, before = _ELEMENT_CHARS, None
    while True:
        part = text.peek(size)
        try:
            columns, end = parse_json(part, where, parse=_DECODER.raw_decode)
            text.take(end)
            return columns
        except json.JSONDecodeError as error:
            # If a part was too short, the error in a longer one is another, unless a string does not end.
            problem, before = before, (error.msg, error.pos)
            if len(part) < size or (problem == before and "Unterminated" not in error.msg):
                raise BadInputError(f"{where}: not valid JSON at line {error.lineno}, column {error.colno} of the element "
                                    f"({error.msg})") from None
        except ValueError as error:
            raise BadInputError(f"{where}: not valid JSON ({error})") from None
        if size >= MAX_LINE_BYTES:
            raise BadInputError(f"{where} has more than {MAX_LINE_BYTES:,} characters, or does not end: split it into several, or put "
                                "a text into a .txt file of its own")
        size *= 2


def _shown(text):
    return repr(text) if text else "the end of the file"


class _Lookahead:
    """A text that comes in pieces: what is next of it, and the line where that is."""

    def __init__(self, chunks):
        self._chunks = chunks
        self._text, self._at = "", 0
        self.line = 1

    def peek(self, size):
        """The next `size` characters, or all that are left."""
        if len(self._text) - self._at < size:
            parts = [self._text[self._at:]]
            missing = size - len(parts[0])
            while missing > 0 and (chunk := next(self._chunks, "")):
                parts.append(chunk)
                missing -= len(chunk)
            self._text, self._at = "".join(parts), 0
        return self._text[self._at:self._at + size]

    def starts_with(self, character):
        return self.peek(1) == character

    def take(self, size):
        end = self._at + size
        self.line += self._text.count("\n", self._at, end)
        self._at = end

    def skip_blanks(self):
        while (character := self.peek(1)) and character in _BLANKS:
            self.take(1)


# ---- Parquet

def _parquet_rows(path, columns):
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise BadInputError(f"'{path}' is a Parquet file, and the Python package 'pyarrow' is not installed for '{sys.executable}': "
                            "run 'pip install pyarrow' for it, or write the rows as JSON lines") from None
    with open_regular(path, DATA_FILE):
        pass
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    try:
        with bounded(f"'{path}': reading its header", "write it again with smaller pages"):
            # In pages, and not whole groups of rows.
            file = pyarrow.parquet.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False)
            names, num_rows = file.schema_arrow.names, file.metadata.num_rows
        unread = tuple(name for name in names if name not in columns)
        batches = file.iter_batches(_ROWS_AT_ONCE, columns=[name for name in names if name in columns], use_threads=False)
        number = 0
        while True:
            with bounded(f"{path}: row {number + 1} and those after it: reading them", "write the file again with smaller pages"):
                batch = next(batches, None)
                rows = [] if batch is None else batch.to_pylist()
            if batch is None:
                return
            for row in rows:
                number += 1
                yield Row(f"{path}: row {number}", number, functools.partial(operator.truediv, number, num_rows), row, unread)
    except (pyarrow.ArrowException, OSError) as error:
        raise BadInputError(f"'{path}' cannot be read as a Parquet file ({error}): it is damaged, or something else") from None
