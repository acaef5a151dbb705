#!/usr/bin/env bash
# Builds the wheel that `pip install .` installs and checks that it is whole: kernels and type marker in, sources out,
# and it runs from a folder of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir "$folder" .
"$python" -m zipfile -e "$folder"/graphbraid-*.whl "$folder/unpacked"
cd "$folder"
ls unpacked/graphbraid/_native*.so unpacked/graphbraid/py.typed >/dev/null
if find unpacked -name '*.cpp' -o -name '*.inl' | grep .; then
  echo "C++ sources of the kernels ended up in the wheel" >&2
  exit 1
fi
# -S would hide the environment's packages too; the unpacked wheel only has to come before the editable install.
PYTHONPATH="$folder/unpacked" "$python" - "$folder" <<'PY'
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
import graphbraid
from graphbraid import kernels
assert graphbraid.__file__.startswith(sys.argv[1]), graphbraid.__file__
assert kernels.active().variant != "reference", kernels.active()
print(f"wheel: {kernels.active().variant} kernels load")
PY
