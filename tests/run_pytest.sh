#!/bin/sh
# Runs pytest on the given files in the Python environment that scripts/test makes, or with the Python that
# FOREBAY_TEST_PYTHON names; exit 77 tells ctest that the test was skipped. What the user has measured, packed or compiled
# before, and tests that run at the same time, change no test: each call has a HOME, a cache and temporary folders of its
# own, which are removed at its end. FOREBAY_CASES=1/3 runs a part of the cases (run_cases.py).
repo=$(cd "$(dirname "$0")/.." && pwd)
python=${FOREBAY_TEST_PYTHON:-$repo/build/test-venv/bin/python}
if ! "$python" -c 'import pytest' 2>/dev/null; then
  echo "skipped: no Python with pytest at $python; scripts/test makes one in build/test-venv"
  exit 77
fi
# A short name: sockets have paths of at most 107 bytes.
own=$(mktemp -d "${TMPDIR:-/tmp}/fb.XXXXXX") || exit 1
trap 'rm -rf "$own"' EXIT
trap 'exit 1' HUP INT TERM
mkdir "$own/home" "$own/cache" "$own/tmp" || exit 1
chmod 755 "$own"  # as /tmp: some programs run as another user
# No __pycache__ in the source tree. PyTorch's threads sleep while they wait for each other: the model of a test is small
# and several tests run at a time, and threads that spin then take three to seven times as long as those that compute.
env HOME="$own/home" XDG_CACHE_HOME="$own/cache" TMPDIR="$own/tmp" PYTHONDONTWRITEBYTECODE=1 OMP_WAIT_POLICY=passive \
  "$python" "$repo/tests/run_cases.py" -q -rs -p no:cacheprovider --basetemp="$own/p" "$@"
