#!/usr/bin/env bash
# Builds synthesised programs with AddressSanitizer and UndefinedBehaviorSanitizer and compares them with the engine:
# tests/synth with these compiler flags. The programs are executables of their own, so nothing is preloaded into Python.
# Before it, their readers get damaged files (scripts/fuzz_readers.sh).
#   PYTHON=.venv/bin/python scripts/sanitize_programs.sh     with programs of several ranks where mpicxx is on the PATH
#   GB_SANITIZE_SHORT=1     for CI: a program of one rank for each kernel file, not optimised, which undefined behaviour ends
#                           by SIGILL and without a report
set -euo pipefail
cd "$(dirname "$0")/.."
all="engines_losses or multiplied_as_such or own or refused or not_finite or missing_folders"
short="(engines_losses and (SAGE-Max or GIN-Sum or GAT-Sum)) or (multiplied_as_such and options1)"
export GB_PROGRAM_FLAGS="-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
export ASAN_OPTIONS="exitcode=66" UBSAN_OPTIONS="print_stacktrace=1:exitcode=66"
chosen=$all
tests=(tests/synth/test_openmp.py tests/synth/test_walk.py)
if [ -n "${GB_SANITIZE_SHORT:-}" ]; then
  chosen=$short GB_PROGRAM_FLAGS+=" -O0 -fsanitize-undefined-trap-on-error" # as scripts/sanitize.sh
  export GB_PROGRAMS="^(SAGE Max|GIN Sum|GAT Sum|zeros .*'ones'.*)$" # those of the short form's tests, as one source
elif command -v mpicxx >/dev/null; then
  tests+=(tests/synth/test_mpi.py)
  # Open MPI does not free all it allocates, in modules that it has unloaded by then: no suppression can name them.
  if mpirun --version | grep -q "Open MPI"; then ASAN_OPTIONS+=":detect_leaks=0"; fi
fi
if [ -n "${GB_SANITIZE_SHORT:-}" ]; then
  scripts/fuzz_readers.sh --seconds 10 --seed 1
else
  scripts/fuzz_readers.sh --seconds 60
fi
# The first test waits for the compiler, which in .ci/run has the lowest priority beside all other steps.
exec "${PYTHON:-.venv/bin/python}" -m pytest -q -x -p no:cacheprovider --timeout 2400 -k "$chosen" \
  "${tests[@]}"
