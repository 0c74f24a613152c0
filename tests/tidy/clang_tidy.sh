#!/bin/sh
# clang_tidy.sh <build folder>: clang-tidy over every source of ours that the build folder compiles.
# Needs a build folder made with clang (scripts/build clang): g++'s warning flags are unknown to it.
set -u
repo=$(cd "$(dirname "$0")/../.." && pwd)
if ! command -v run-clang-tidy-14 >/dev/null; then
  echo "skipped: clang-tidy-14 is not there; scripts/test installs it"
  exit 77
fi
modules='(base|device|memory|aio|measure|swap|optimizer|replay|data|model|train|tools)'
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run-clang-tidy-14 -p "$1" -quiet -j "$(nproc)" "^$repo/$modules/.*\\.cc\$" >"$log" 2>&1
verdict=$?
# Without the lines that say how many warnings of foreign headers were suppressed.
grep -vE '^([0-9]+ warnings? generated\.|Suppressed |Use -header-filter|clang-tidy-14 )|^$' "$log"
exit $verdict
