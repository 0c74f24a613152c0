"""Packed token files, byte for byte as docs/formats.md describes them; data/packed_file.h is the other reader."""

import contextlib
import json
import os
import struct
import tempfile
from dataclasses import dataclass, field

import numpy as np
import xxhash

from .errors import BadInputError, StorageError
from .files import PRIVATE, atomic_writer

MAGIC = b"FBPACKED"
VERSION = 2
BLOCK_BYTES = 4096
MAX_INFO_BYTES = 1 << 24
# magic, version, info_bytes, rows, seq, vocab_size, tokens, trained, samples, longest_segment, content digest, digest of the
# rows' checksums
_HEADER = struct.Struct("<8sIIQQQQQQQ16s16s")
_HEADER_DIGEST = struct.Struct("<Q")  # XXH3-64 of the header before it and of the info, in the block's last 8 bytes

TRAINED, SEGMENT_START, PADDING = 1, 2, 4


@dataclass
class PackedInfo:
    rows: int
    seq: int
    vocab_size: int
    tokens: int             # without padding
    trained: int
    samples: int
    longest_segment: int
    info: dict = field(default_factory=dict)  # {"tokenizer_digest": ..., "provenance": {...}}
    digest: str = ""
    info_bytes: int = 0     # of the encoded info
    checksums_digest: bytes = b""

    @property
    def padding_share(self):
        return 1 - self.tokens / (self.rows * self.seq)

    @property
    def tokens_offset(self):
        return BLOCK_BYTES + _round_up(self.info_bytes)

    @property
    def flags_offset(self):
        return self.tokens_offset + 4 * self.rows * self.seq

    @property
    def checksums_offset(self):
        return self.flags_offset + self.rows * self.seq


def is_packed(path):
    if not os.path.isfile(path):  # a pipe would be waited for
        return False
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def write_packed(path, info, blocks):
    """Writes a file and sets info.digest; `blocks()` gives (tokens <u4 [n, seq], flags u1 [n, seq]) of all rows in order, three
    times."""
    content = _content_hasher(info)
    info_bytes = _encode_info(info.info)
    info.info_bytes = len(info_bytes)
    with atomic_writer(path, PRIVATE) as file:
        file.seek(BLOCK_BYTES)
        file.write(info_bytes.ljust(_round_up(len(info_bytes)), b"\0"))
        for part in (0, 1):
            for block in blocks():
                data = np.ascontiguousarray(block[part]).data
                content.update(data)
                file.write(data)
        checksums = xxhash.xxh3_128()
        for block in _row_checksums(blocks(), content.digest()):
            checksums.update(block.data)
            file.write(block.data)
        header = _HEADER.pack(MAGIC, VERSION, len(info_bytes), info.rows, info.seq, info.vocab_size, info.tokens,
                              info.trained, info.samples, info.longest_segment, content.digest(),
                              checksums.digest())
        header = header.ljust(BLOCK_BYTES - _HEADER_DIGEST.size, b"\0")
        file.seek(0)
        file.write(header + _HEADER_DIGEST.pack(xxhash.xxh3_64_intdigest(header + info_bytes)))
    info.digest = content.hexdigest()


class RowSpool:
    """Rows on their way into a packed file, which begins with how many they are. In `folder`, under no name."""

    def __init__(self, folder):
        self._folder = folder
        with self._errors():
            self._parts = [tempfile.TemporaryFile(dir=folder) for _ in range(2)]
        self._shapes = []

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        for file in self._parts:
            with contextlib.suppress(OSError):  # it has been told already what could not be written
                file.close()

    def append(self, tokens, flags):
        """tokens: <u4 [n, seq], flags: u1 [n, seq]."""
        with self._errors():
            for file, part in zip(self._parts, (tokens, flags)):
                file.write(part.data)
        self._shapes.append(tokens.shape)

    def blocks(self):
        """Yields what was appended."""
        for file in self._parts:
            file.seek(0)
        for shape in self._shapes:
            yield tuple(_read_array(file, dtype, shape) for file, dtype in zip(self._parts, ("<u4", "u1")))

    @contextlib.contextmanager
    def _errors(self):
        try:
            yield
        except OSError as error:
            raise StorageError(f"writing rows to a temporary file in '{self._folder}' failed: {error.strerror}. Check the space and "
                               "the permissions there: twice the size of the packed file is needed") from error


def _read_array(file, dtype, shape):
    array = np.empty(shape, dtype)
    file.readinto(array.data.cast("B"))
    return array


def write_rows(path, tokens, flags, vocab_size):
    """Writes rows that were made elsewhere (a trainer's own packing, a benchmark's random tokens): tokens and flags
    [rows, seq]. Every segment counts as a sample."""
    segment = np.cumsum((flags & SEGMENT_START) != 0)
    info = PackedInfo(
        rows=tokens.shape[0], seq=tokens.shape[1], vocab_size=vocab_size,
        tokens=int(np.count_nonzero((flags & PADDING) == 0)), trained=int(np.count_nonzero(flags & TRAINED)),
        samples=int(segment[-1]), longest_segment=int(np.bincount(segment[flags.ravel() & PADDING == 0]).max()),
        info={"tokenizer_digest": "", "provenance": {"source": "rows"}})
    write_packed(path, info, lambda: [(tokens.astype("<u4"), flags.astype("u1"))])


def read_info(path):
    """Header and info of a packed file, checked against the file's size. BadInputError."""
    with open(path, "rb") as file:
        header = file.read(BLOCK_BYTES)
        if len(header) < BLOCK_BYTES:
            raise _broken(path, f"its header has {len(header)} of {BLOCK_BYTES} bytes")
        magic, version, info_bytes, *counts, digest, checksums_digest = _HEADER.unpack_from(header)
        if magic != MAGIC:
            raise BadInputError(f"'{path}' is not a packed token file; make one with 'forebay data pack'")
        if version != VERSION:
            raise BadInputError(f"'{path}' has version {version} of the packed format, this program reads "
                                f"{VERSION}: pack the text again")
        if info_bytes > MAX_INFO_BYTES:
            raise _broken(path, f"its info claims {info_bytes} bytes")
        info = file.read(info_bytes)
    (header_digest,) = _HEADER_DIGEST.unpack_from(header, BLOCK_BYTES - _HEADER_DIGEST.size)
    if xxhash.xxh3_64_intdigest(header[:-_HEADER_DIGEST.size] + info) != header_digest:
        raise _broken(path, "its header does not match its checksum")
    packed = PackedInfo(*counts, info=_decode_info(path, info), digest=digest.hex(), info_bytes=info_bytes,
                        checksums_digest=checksums_digest)
    if packed.rows < 1 or packed.seq < 2 or packed.rows * packed.seq >= 2**48:
        raise _broken(path, f"it claims {packed.rows} rows of {packed.seq} tokens")
    expected = packed.checksums_offset + 8 * packed.rows
    if os.path.getsize(path) != expected:
        raise _broken(path, f"it has {os.path.getsize(path)} bytes, its header says {expected}")
    return packed


def map_contents(path, packed):
    """(tokens [rows, seq], flags [rows, seq]) as read-only views of the file."""
    shape = (packed.rows, packed.seq)
    tokens = np.memmap(path, dtype="<u4", mode="r", offset=packed.tokens_offset, shape=shape)
    flags = np.memmap(path, dtype="u1", mode="r", offset=packed.flags_offset, shape=shape)
    return tokens, flags


def check_contents(path, packed):
    """Compares the digests of tokens and flags, and of the rows' checksums, with the header's. BadInputError."""
    content, checksums = _content_hasher(packed), xxhash.xxh3_128()
    # Read and not mapped: pages that are mapped count as the program's memory.
    with open(path, "rb") as file:
        file.seek(packed.tokens_offset)
        for hasher, size_bytes in ((content, 5 * packed.rows * packed.seq), (checksums, 8 * packed.rows)):
            while size_bytes and (data := file.read(min(size_bytes, 1 << 22))):
                hasher.update(data)
                size_bytes -= len(data)
    if content.hexdigest() != packed.digest:
        raise _broken(path, "its tokens do not match their checksum")
    if checksums.digest() != packed.checksums_digest:
        raise _broken(path, "the checksums of its rows do not match theirs")


def _content_hasher(info):
    return xxhash.xxh3_128(struct.pack("<QQ", info.rows, info.seq))


def _row_checksums(blocks, digest):
    """Of each block's rows, [n] <u8. They depend on the digest of all of the file, so that a row of another is noticed."""
    seed = int.from_bytes(digest[:8], "little")
    for tokens, flags in blocks:
        rows = zip(np.ascontiguousarray(tokens), np.ascontiguousarray(flags))
        yield np.array([_row_checksum(*row, (seed + i) % 2**64) for i, row in enumerate(rows)], "<u8")
        seed += len(tokens)


def _row_checksum(tokens, flags, seed):
    return xxhash.xxh3_64_intdigest(flags.data, xxhash.xxh3_64_intdigest(tokens.data, seed))


def _encode_info(info):
    return json.dumps(info, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _decode_info(path, encoded):
    try:
        info = json.loads(encoded.decode("utf-8"))
    except (ValueError, RecursionError):
        info = None
    if not isinstance(info, dict) or not isinstance(info.get("provenance"), dict):
        raise _broken(path, "its info is not the JSON object that it should be")
    return info


def _round_up(size):
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def _broken(path, problem):
    return BadInputError(f"the packed file '{path}' is damaged: {problem}. Pack the text again")
