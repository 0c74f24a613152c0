"""The log of QEMU's block driver `blklogwrites`: what a guest wrote to its disk, and when it asked for that to be durable.
The format is that of the Linux kernel's dm-log-writes (Documentation/admin-guide/device-mapper/log-writes.rst)."""

import dataclasses
import os
import random
import struct

_MAGIC = 0x6A736677736872
_FLUSH, _FUA, _DISCARD, _MARK = 1, 2, 4, 8
SECTOR_BYTES = 512
# What is written at once or not at all. A disk may tear at its sectors; but of ext4's superblock, which has two of 512
# bytes, no half would do. (That the store does not care is proven on the simulated disk.)
ATOM_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class Write:
    """`where` in the log lie the bytes; durable: it was not done before it was on the disk (FUA)."""

    offset: int
    size: int
    where: int
    durable: bool


def read_log(path):
    """The writes in order, cut into epochs at each flush: [[Write...]...]. The last epoch was not flushed."""
    epochs = [[]]
    with open(path, "rb") as log:
        magic, version, entries, sector_bytes = struct.unpack("<QQQI", log.read(28))
        assert (magic, version, sector_bytes) == (_MAGIC, 1, SECTOR_BYTES), (hex(magic), version, sector_bytes)
        at = sector_bytes
        for _ in range(entries):
            log.seek(at)
            sector, sectors, flags, marked = struct.unpack("<QQQQ", log.read(32))
            at += sector_bytes
            assert not flags & (_DISCARD | _MARK) and not marked, (flags, marked)
            if flags & _FLUSH:
                epochs.append([])
            if sectors:
                epochs[-1].append(Write(sector * SECTOR_BYTES, sectors * SECTOR_BYTES, at, bool(flags & _FUA)))
                at += sectors * sector_bytes
        assert at <= os.path.getsize(path), "the log is shorter than its entries"
    return epochs


class Disk:
    """An image to which the writes of a log are done, from the first on."""

    def __init__(self, log_path, image_path):
        self._log = open(log_path, "rb")  # pylint: disable=consider-using-with
        self._image = open(image_path, "r+b", buffering=0)  # pylint: disable=consider-using-with

    def do(self, writes):
        for write in writes:
            self._log.seek(write.where)
            self._put(write.offset, self._log.read(write.size))

    def do_some(self, writes, seed):
        """What a power cut may leave of writes that were not flushed: those that came before it, of each all, nothing or
        some of its blocks; all of those that passed the cache by (FUA)."""
        rng = random.Random(seed)
        for write in writes[:rng.randint(0, len(writes))]:
            fate = 1 if write.durable else rng.random()
            if fate < 0.4:
                continue
            self._log.seek(write.where)
            data = self._log.read(write.size)
            if fate >= 0.7:
                self._put(write.offset, data)
                continue
            for at in range(0, write.size, ATOM_BYTES):
                if rng.random() < 0.5:
                    self._put(write.offset + at, data[at:at + ATOM_BYTES])

    def _put(self, offset, data):
        self._image.seek(offset)
        assert self._image.write(data) == len(data)

    def close(self):
        self._log.close()
        self._image.close()
