#!/usr/bin/env bash
# Calls the library and the commands with what nobody should give them, reads files that came to harm, and runs kernels
# beside their twins. Each case is a process of its own; its name KIND:SEED:NUMBER is all that is needed to run it again.
# Fails on a signal, a hang, a raw exception, a result that differs and a lost file of the user's; see docs/robustness.md.
#   PYTHON=.venv/bin/python scripts/fuzz.sh                     ten minutes, seed 0
#   scripts/fuzz.sh --seed 7 --kinds files,cli --seconds 60     others
#   scripts/fuzz.sh --case files:0:168                          one case, with what it did and what came of it
#   GB_FUZZ_SEED=1 GB_FUZZ_CASES=1400 scripts/fuzz.sh           as CI does
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_WAIT_POLICY=passive
exec "${PYTHON:-.venv/bin/python}" -m tests.fuzz.run "$@"
