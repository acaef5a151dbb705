#!/usr/bin/env bash
# Compiles the kernels next to their sources, for working on them: PYTHONPATH=src then runs this tree.
#   PYTHON=.venv/bin/python scripts/build_inplace.sh
#   GB_VARIANTS=native    only this processor's fastest variant, or a list as portable,avx2
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
launcher=$(command -v ccache || true) # where it is installed, an unchanged kernel is not compiled again
cmake -S . -B build/inplace -G Ninja -DPython_EXECUTABLE="$(realpath -s "$python")" -DCMAKE_BUILD_TYPE=Release \
  -DGB_VARIANTS="${GB_VARIANTS:-all}" -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" >/dev/null
cmake --build build/inplace
cp build/inplace/_native*.so src/graphbraid/
