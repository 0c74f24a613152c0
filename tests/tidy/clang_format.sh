#!/bin/sh
# Every C++ file is as clang-format-14 writes it. To repair: scripts/format.
repo=$(cd "$(dirname "$0")/../.." && pwd)
if ! command -v clang-format-14 >/dev/null; then
  echo "skipped: clang-format-14 is not there; scripts/test installs it"
  exit 77
fi
exec "$repo/scripts/format" --check
