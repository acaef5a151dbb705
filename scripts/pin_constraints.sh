#!/usr/bin/env bash
# Rewrites constraints.txt: installs everything in a fresh environment, keeping the pins of torch and of triton, which
# torch's CUDA builds ask for by version, and freezes it.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mapfile -t pins < <(grep -E '^(torch|triton)==' constraints.txt)
"${PYTHON:-python3}" -m venv "$folder/venv"
pip=("$folder/venv/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install --quiet "${pins[@]}" scikit-build-core nanobind cmake ninja
"${pip[@]}" install --quiet --no-build-isolation '.[dev]'
{
  sed -n '/^#/p' constraints.txt
  "${pip[@]}" freeze --exclude graphbraid | sed -E 's/^(torch==[^+]*)\+.*/\1/'
} >"$folder/constraints.txt"
mv "$folder/constraints.txt" constraints.txt
