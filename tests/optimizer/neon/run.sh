#!/bin/sh
# run.sh INCLUDE: the tests of the update kernels on ARM, with NEON and SVE, in an emulator. INCLUDE: the folder with `forebay/`.
# Where there is no compiler for ARM or no emulator the test is skipped; scripts/test --full installs both.
set -eu
include=$1
repo=$(cd "$(dirname "$0")/../../.." && pwd)
gtest=/usr/src/googletest/googletest
compiler=$(command -v aarch64-linux-gnu-g++ || command -v aarch64-linux-gnu-g++-12 || true)
emulator=$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)
if [ -z "$compiler" ] || [ -z "$emulator" ] || [ ! -e $gtest/src/gtest-all.cc ]; then
  echo "skipped: g++ for aarch64, qemu-aarch64 or the sources of googletest are missing; scripts/test --full installs them"
  exit 77
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# Highway and xxHash are headers, the same for all processors. Behind the compiler's own: beside them lie those of the host.
# As optimizer/CMakeLists.txt: no fused multiply-add.
flags="-std=c++20 -O2 -ffp-contract=off -I$include -I$gtest/include -I$gtest -idirafter /usr/include"
kernels=$repo/optimizer/kernels
tests=$repo/tests/optimizer
# shellcheck disable=SC2086  # flags are words
for source in $kernels/gradient_norm_ref.cc $kernels/gradient_norm_simd.cc $kernels/update_ref.cc \
  $kernels/update_adam_simd.cc $kernels/update_other_simd.cc $tests/update_test.cc $tests/gradient_norm_test.cc \
  $tests/neon/targets.cc $gtest/src/gtest-all.cc $gtest/src/gtest_main.cc; do
  $compiler $flags -c "$source" -o "$out/$(basename "$source" .cc).o"
done
$compiler -static "$out"/*.o -o "$out/neon_test"
# A test that dies would ask the emulator for a fork of all of it.
"$emulator" "$out/neon_test" --gtest_brief=1 --gtest_filter='-*Death*:*Exhaustive*' </dev/null
# Vectors of SVE are as long as a CPU likes: 128 and 2048 bits.
for bytes in 16 256; do
  "$emulator" -cpu max,sve-default-vector-length=$bytes "$out/neon_test" --gtest_brief=1 \
    --gtest_filter='GradientNorm.Every*:*UpdateDigestTest*:*TrainingValues*' </dev/null
done
