"""Limits of memory and processor time for work that a file from elsewhere decides on: a template, a tokenizer, a line.

Where Python asks for more memory, there is an error as for any bad input. A library that asks for more, or anything that
computes for too long, ends the process, whatever it is doing; the process that watches this one (supervisor.py) then
says what it was, which is noted in memory that both share.
"""

import functools
import mmap
import os
import resource
import signal
import threading

from .errors import BadInputError

# Beside what the process has already. Much more than any ordinary chat, line or group of texts takes.
MEMORY_BYTES = 256 << 20
# The sum of all threads. Ordinary work takes milliseconds to a second, so a slow machine stays far below.
CPU_SECONDS = 60

_NOTE_BYTES = 4096
_NOTE_END = b"\0"
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")

note = mmap.mmap(-1, _NOTE_BYTES)  # shared with processes that are forked off


@functools.cache
def _statm_of(process):
    """Kept open: a look at it is a part of every row."""
    return os.open(f"/proc/{process}/statm", os.O_RDONLY | os.O_CLOEXEC)


def _counted_bytes():
    """What RLIMIT_DATA counts of this process."""
    return int(os.pread(_statm_of(os.getpid()), 256, 0).split()[5]) * _PAGE_BYTES


# The limits are of the whole process: one block at a time.
_one = threading.Lock()


class bounded:
    """A block that may take `scale` times the limits. BadInputError from a block that needs more memory.

    `what` and `cure` are for that error: "what took more than so much of ...: cure". Blocks are not nested. A block waits
    for that of another thread.
    """

    def __init__(self, what, cure, scale=1):
        self._what, self._cure, self._scale = what, cure, max(scale, 1)

    def __enter__(self):
        _one.acquire()
        try:
            self._begin()
        except BaseException:  # a signal's too: another thread may wait
            _one.release()
            raise

    def _begin(self):
        self._before = resource.getrlimit(resource.RLIMIT_DATA)
        given = [limit for limit in self._before if limit != resource.RLIM_INFINITY]
        most = _counted_bytes() + int(self._scale * MEMORY_BYTES)
        _write_note(self._what, self._cure, self._scale)
        resource.setrlimit(resource.RLIMIT_DATA, (min([most, *given]), self._before[1]))
        signal.setitimer(signal.ITIMER_PROF, self._scale * CPU_SECONDS)

    def __exit__(self, kind, error, trace):
        try:
            signal.setitimer(signal.ITIMER_PROF, 0)
            resource.setrlimit(resource.RLIMIT_DATA, self._before)
            note[:1] = _NOTE_END
        finally:
            _one.release()
        if kind is not None and issubclass(kind, MemoryError):
            raise BadInputError(_too_much(self._what, _memory_text(self._scale), self._cure)) from None


def _write_note(*parts):
    text = "\0".join(map(str, parts)).encode("utf-8", "backslashreplace")
    if len(text) >= _NOTE_BYTES:  # of a long path, whose beginning says enough
        text = "\0".join([str(parts[0])[:500] + "...", *map(str, parts[1:])]).encode("utf-8", "backslashreplace")
    note[:len(text) + 1] = text + _NOTE_END


def death_message(signal_number):
    """What a process died of in a bounded block, by the note of it; None: it was in none."""
    if note[:1] == _NOTE_END:
        return None
    what, cure, scale = bytes(note).split(_NOTE_END)[:3]
    what, cure, scale = what.decode(), cure.decode(), float(scale)
    if signal_number == signal.SIGPROF:
        return _too_much(what, f"{scale * CPU_SECONDS:,.0f} s of processor time", cure)
    # A library aborts if an allocation is refused; the kernel kills if memory runs out.
    if signal_number in (signal.SIGABRT, signal.SIGKILL):
        return _too_much(what, _memory_text(scale), cure)
    return f"{what} ended with {signal.Signals(signal_number).name}: {cure}"


def _memory_text(scale):
    return f"{scale * MEMORY_BYTES / (1 << 20):,.0f} MiB of memory"


def _too_much(what, limit, cure):
    return f"{what} takes more than {limit}, which is the limit: {cure}"
