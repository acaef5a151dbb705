#!/usr/bin/env bash
# Gives damaged .npy files to the readers of synthesised programs, compiled with AddressSanitizer and
# UndefinedBehaviorSanitizer: arrays with and without a digest, and folders of weights (tests/synth/fuzz/readers.cpp).
#   scripts/fuzz_readers.sh --seconds 600 --seed 1     a number of processor seconds, and where the random damage begins
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=60 seed=$RANDOM
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=$2 ;;
    --seed) seed=$2 ;;
    *) echo "usage: $0 [--seconds N] [--seed N]" >&2; exit 2 ;;
  esac
  shift 2
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
runtime=src/graphbraid/synth/emit/runtime
"${CXX:-g++}" -std=c++20 -O1 -g1 -Wall -Wextra -Werror -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all \
  -I"$runtime" -Isrc/graphbraid/csrc tests/synth/fuzz/readers.cpp "$runtime"/arrays.cpp "$runtime"/weights.cpp -o "$work/readers"
mkdir "$work/files"
echo "seed $seed"
ASAN_OPTIONS=exitcode=66 UBSAN_OPTIONS=print_stacktrace=1:exitcode=66 "$work/readers" "$work/files" "$seed" "$seconds"
