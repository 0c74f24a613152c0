"""pytest, with a part of the cases of each parametrized test: FOREBAY_CASES=2/3 runs the second third of them.

Tests without parameters always run. scripts/test --all takes another part after each commit.
"""

import collections
import os
import re
import sys

import pytest


class Cases:
    def __init__(self, part, num_parts):
        self.part = part
        self.num_parts = num_parts

    def pytest_collection_modifyitems(self, config, items):
        tests = collections.defaultdict(list)
        for item in items:
            tests[item.nodeid.split("[", 1)[0]].append(item)
        kept = {item for cases in tests.values() for item in self._part_of(cases)}
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]

    def _part_of(self, cases):
        """One of them at least, also if there are fewer than parts."""
        first = (self.part - 1) % min(self.num_parts, len(cases))
        return cases[first::self.num_parts]


def plugins_for(text):
    """`text`: the value of FOREBAY_CASES. SystemExit: it names no part."""
    if not text:
        return []
    numbers = re.fullmatch(r"([1-9]\d?)/([1-9]\d?)", text)
    if not numbers or int(numbers[1]) > int(numbers[2]):
        sys.exit(f"FOREBAY_CASES is '{text}', and must be a part of all cases, such as 1/3")
    return [Cases(int(numbers[1]), int(numbers[2]))]


if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[1:], plugins=plugins_for(os.environ.get("FOREBAY_CASES", ""))))
