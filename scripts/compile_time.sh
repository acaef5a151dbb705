#!/usr/bin/env bash
# Seconds of processor time that compiling the kernels takes, longest file first, and their sum: one job, no ccache.
# Threads that share a core take more each, so nothing else should run meanwhile.
#   PYTHON=.venv/bin/python scripts/compile_time.sh
#   GB_VARIANTS=native    as the Makefile compiles for this machine, instead of all variants
set -euo pipefail
if [ "${1:-}" = --one ]; then # CMake calls it so, with each compiler's command
  log=$2
  shift 2
  "$@"
  times >"$log.now"
  for source; do :; done
  # The second line: what the children of this shell took, user and system.
  awk -v file="${source##*/}" 'NR == 2 { split($1, u, "[ms]"); split($2, s, "[ms]")
    printf "%7.1f  %s\n", 60 * (u[1] + s[1]) + u[2] + s[2], file }' "$log.now" >>"$log"
  exit
fi
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake -S . -B "$folder/build" -G Ninja -DPython_EXECUTABLE="$(realpath -s "$python")" -DCMAKE_BUILD_TYPE=Release \
  -DGB_VARIANTS="${GB_VARIANTS:-all}" \
  -DCMAKE_CXX_COMPILER_LAUNCHER="$PWD/scripts/compile_time.sh;--one;$folder/seconds" >/dev/null
cmake --build "$folder/build" -j1 >"$folder/build.log" || { cat "$folder/build.log" >&2; exit 1; }
sort -rn "$folder/seconds"
awk '{ sum += $1 } END { printf "%7.1f  in all, %d files\n", sum, NR }' "$folder/seconds"
