"""What becomes of data that whoever gave it may not expect, and that is no error: said once, with where it is first."""

import os

_MOST = 20


class Notes:
    def __init__(self):
        self._places = {}  # {what: [the first place, how many there are]}

    def add(self, where, what):
        """`where`: "folder/data.jsonl:12", of which the folder is left out: notes go into packed files."""
        self._places.setdefault(what, [os.path.basename(where), 0])[1] += 1

    def lines(self):
        lines = [f"{first}: {what}" + (f" (and in {count - 1:,} more)" if count > 1 else "")
                 for what, (first, count) in self._places.items()]
        return lines[:_MOST] + ([f"{len(lines) - _MOST:,} notes more"] if len(lines) > _MOST else [])
