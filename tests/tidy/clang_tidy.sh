#!/bin/sh
# clang_tidy.sh <build folder> <module>...: clang-tidy over every source of the modules as the build folder compiles it:
# alone, or with others in a file that CMake makes (FOREBAY_UNITY).
# Needs a build folder made with clang (scripts/build tidy): g++'s warning flags are unknown to it.
set -u
repo=$(cd "$(dirname "$0")/../.." && pwd)
if ! command -v run-clang-tidy-14 >/dev/null; then
  echo "skipped: clang-tidy-14 is not there; scripts/test installs it"
  exit 77
fi
build=$(cd "$1" && pwd)
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
pattern="($(echo "$*" | tr ' ' '|'))"
run-clang-tidy-14 -p "$build" -quiet -j "$(nproc)" "^$repo/$pattern/.*\\.cc\$" "^$build/$pattern/.*\\.cxx\$" >"$log" 2>&1
verdict=$?
# Sources that this build leaves out, as those for machines without CUDA, are looked at as if compiled like a neighbour.
known=$(grep -hE '"file":|^#include ".*\.cc"' "$build/compile_commands.json" \
  $(find "$build" -path '*/Unity/*.cxx' -not -path "$build/*/tests/*"))
left_out=
for source in $(cd "$repo" && find "$@" -name '*.cc'); do
  case $known in *"$source\""*) ;; *) left_out="$left_out $repo/$source" ;; esac
done
# shellcheck disable=SC2086
[ -z "$left_out" ] || clang-tidy-14 -p "$build" -quiet $left_out >>"$log" 2>&1 || verdict=1
# Without the lines that say how many warnings of foreign headers were suppressed.
grep -vE '^([0-9]+ warnings? generated\.|Suppressed |Use -header-filter|clang-tidy-14 )|^$' "$log"
exit $verdict
