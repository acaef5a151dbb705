#!/usr/bin/env bash
# Builds synthesised programs with AddressSanitizer and UndefinedBehaviorSanitizer and compares them with the engine:
# tests/synth with these compiler flags. The programs are executables of their own, so nothing is preloaded into Python.
#   PYTHON=.venv/bin/python scripts/sanitize_programs.sh
#   GB_SANITIZE_SHORT=1     for CI: a program for each kernel file
set -euo pipefail
cd "$(dirname "$0")/.."
all="engines_losses or multiplied_as_such or own or refused or not_finite or missing_folders"
short="(engines_losses and (SAGE-Max or GIN-Sum or GAT-Sum)) or (multiplied_as_such and options1)"
export GB_PROGRAM_FLAGS="-g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
export ASAN_OPTIONS="exitcode=66" UBSAN_OPTIONS="print_stacktrace=1:exitcode=66"
[ -z "${GB_SANITIZE_SHORT:-}" ] && chosen=$all || chosen=$short
exec "${PYTHON:-.venv/bin/python}" -m pytest -q -x -p no:cacheprovider --timeout 900 -k "$chosen" \
  tests/synth/test_openmp.py tests/synth/test_walk.py
