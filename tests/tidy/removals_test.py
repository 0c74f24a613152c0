"""docs/design/removals.md has every call that removes, replaces or cuts files, with a reason.

removals_test.py REPOSITORY
"""

import collections
import pathlib
import re
import sys

CALLS = re.compile("|".join([
    r"::unlink(?:at)?\(", r"::rmdir\(", r"\bRemoveTree\(", r"(?:std::|::)rename(?:at)?\(", r"::f?truncate\(",
    r"\bO_TRUNC\b", r"filesystem::(?:remove|remove_all|rename|resize_file)\(", r"\bofstream\b", r"ios::trunc",
    r"shutil\.(?:rmtree|move)\(", r"os\.(?:remove|unlink|rename|replace|truncate|ftruncate|rmdir|removedirs)\(",
    r"\.(?:unlink|rmdir)\((?:missing_ok=True)?\)"]))
SUFFIXES = {".cc", ".h", ".cu", ".cuh", ".c", ".py"}
LEFT_OUT = {"tests", "bench", "examples", "docs", "scripts", "build", ".git"}


def calls_in(root):
    counts = collections.Counter()
    for top in sorted(root.iterdir()):
        if top.name in LEFT_OUT or not top.is_dir():
            continue
        for path in sorted(top.rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                found = len(CALLS.findall(path.read_text(encoding="utf-8")))
                if found:
                    counts[path.relative_to(root).as_posix()] = found
    return counts


def calls_listed(root):
    text = (root / "docs" / "design" / "removals.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| (\d+) \| (.+) \|$", text, re.MULTILINE)
    return {name: int(count) for name, count, reason in rows if reason.strip()}


def main(root):
    found, listed = calls_in(root), calls_listed(root)
    problems = [f"{name}: {found.get(name, 0)} calls, and docs/design/removals.md has reasons for "
                f"{listed.get(name, 0)}. Say there why the others lose nothing"
                for name in sorted(found.keys() | listed.keys()) if found.get(name, 0) != listed.get(name, 0)]
    # A test that finds nothing has looked in the wrong place.
    if sum(found.values()) < 40:
        problems.append(f"only {sum(found.values())} calls were found in {root}")
    print("\n".join(problems) or f"{sum(found.values())} calls, each with a reason")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
