#!/bin/sh
# Runs pytest on the given files in the Python environment that scripts/test makes, or with the Python that
# FOREBAY_TEST_PYTHON names; exit 77 tells ctest that the test was skipped.
repo=$(cd "$(dirname "$0")/.." && pwd)
python=${FOREBAY_TEST_PYTHON:-$repo/build/test-venv/bin/python}
if ! "$python" -c 'import pytest' 2>/dev/null; then
  echo "skipped: no Python with pytest at $python; scripts/test makes one in build/test-venv"
  exit 77
fi
# No __pycache__ in the source tree.
exec env PYTHONDONTWRITEBYTECODE=1 "$python" -m pytest -q -rs -p no:cacheprovider "$@"
