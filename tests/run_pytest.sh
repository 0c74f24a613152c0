#!/bin/sh
# Runs pytest on the given files in the Python environment that scripts/test makes, or with the Python that
# FOREBAY_TEST_PYTHON names; exit 77 tells ctest that the test was skipped.
repo=$(cd "$(dirname "$0")/.." && pwd)
python=${FOREBAY_TEST_PYTHON:-$repo/build/test-venv/bin/python}
if ! "$python" -c 'import pytest' 2>/dev/null; then
  echo "skipped: no Python with pytest at $python; scripts/test makes one in build/test-venv"
  exit 77
fi
# No __pycache__ in the source tree. PyTorch's threads sleep while they wait for each other: the model of a test is small
# and several tests run at a time, and threads that spin then take three to seven times as long as those that compute.
exec env PYTHONDONTWRITEBYTECODE=1 OMP_WAIT_POLICY=passive "$python" -m pytest -q -rs -p no:cacheprovider "$@"
