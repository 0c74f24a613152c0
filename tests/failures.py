"""What failed in the last run of ctest in a build folder, in few lines: the output of all tests is long, and where it is
kept, its middle is often cut out.

usage: failures.py BUILD_FOLDER
"""

import pathlib
import re
import sys

LINES_OF_A_TEST = 24
COLUMNS = 220
LAST_LINES = 8  # of a test that says nothing of the kinds below

# GoogleTest's failures, those of pytest, sanitizers' reports, ctest's own words. Group 1: the lines behind it matter too.
TELLS = re.compile(r"(.*: Failure$|.*(?:ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:|Check failed))"
                   r"|\[  FAILED  \] .* \(\d+ ms\)|E   |FAILED |ERROR ")
LINES_BEHIND = 5


def failed_tests(folder):
    """Name and output of each test that failed, by ctest's own two logs."""
    outputs = {}
    for part in re.split(r"^\d+/\d+ Testing: ", (folder / "LastTest.log").read_text(errors="replace"), flags=re.MULTILINE):
        output = re.search(r"^Output:\n-+\n(.*?)(?:<end of output>|\Z)", part, flags=re.MULTILINE | re.DOTALL)
        outputs[part.split("\n", 1)[0]] = output.group(1).splitlines() if output else []
    failed = folder / "LastTestsFailed.log"  # that of an earlier run where none failed in the last
    for line in failed.read_text().splitlines() if failed.exists() else []:
        name = line.split(":", 1)[1]
        if name in outputs:
            yield name, outputs[name]


def telling_lines(output):
    kept, behind = [], 0
    for line in output:
        match = TELLS.match(line)
        if line.startswith("[ "):  # GoogleTest's next word
            behind = 0
        if match or behind > 0:
            kept.append(line[:COLUMNS])
        behind = LINES_BEHIND if match and match.group(1) else behind - 1
    return kept[:LINES_OF_A_TEST] or [line[:COLUMNS] for line in output[-LAST_LINES:]]


def print_of(build_folder):
    for name, output in failed_tests(build_folder / "Testing" / "Temporary"):
        print(f"-- {name}")
        print(*telling_lines(output), sep="\n")


if __name__ == "__main__":
    print_of(pathlib.Path(sys.argv[1]))
