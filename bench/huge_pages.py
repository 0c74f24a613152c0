"""Huge pages for the benchmarks that run fio at its best. Needs root."""

import contextlib
import pathlib
import sys

HUGE_PAGES = pathlib.Path("/proc/sys/vm/nr_hugepages")


@contextlib.contextmanager
def reserved_huge_pages(count):
    """`count` pages of 2 MiB beside those that are reserved already, given back at the end. Yields whether that worked."""
    before = int(HUGE_PAGES.read_text())
    try:
        HUGE_PAGES.write_text(str(before + count))
        enough = int(HUGE_PAGES.read_text()) >= before + count
    except OSError:
        enough = False
    if not enough:
        print("huge pages cannot be reserved here: fio runs with ordinary buffers, forebay with transparent huge pages where it can",
              file=sys.stderr)
    try:
        yield enough
    finally:
        with contextlib.suppress(OSError):
            HUGE_PAGES.write_text(str(before))
