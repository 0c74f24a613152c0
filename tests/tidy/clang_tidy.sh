#!/bin/sh
# clang_tidy.sh <build folder> <module>...: clang-tidy over every source of the modules as the build folder compiles it:
# alone, or with others in a file that CMake makes (FOREBAY_UNITY).
# Needs a build folder made with clang (scripts/build clang): g++'s warning flags are unknown to it.
set -u
repo=$(cd "$(dirname "$0")/../.." && pwd)
if ! command -v run-clang-tidy-14 >/dev/null; then
  echo "skipped: clang-tidy-14 is not there; scripts/test installs it"
  exit 77
fi
build=$(cd "$1" && pwd)
shift
modules="($(echo "$*" | tr ' ' '|'))"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run-clang-tidy-14 -p "$build" -quiet -j "$(nproc)" "^$repo/$modules/.*\\.cc\$" "^$build/$modules/.*\\.cxx\$" >"$log" 2>&1
verdict=$?
# Without the lines that say how many warnings of foreign headers were suppressed.
grep -vE '^([0-9]+ warnings? generated\.|Suppressed |Use -header-filter|clang-tidy-14 )|^$' "$log"
exit $verdict
