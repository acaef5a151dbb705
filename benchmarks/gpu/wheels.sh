#!/usr/bin/env bash
# Downloads into .whl (or $WHEELS) what graphbraid and its tests import and a bare GPU machine lacks: it has PyTorch,
# Triton, PyG, Lightning, torchmetrics, SciPy, pyarrow, typer, pytest, hypothesis, nanobind, cmake and ninja.
# gpu_suite.sh installs them there, without a network. Fails above 64 MiB, the most that travels.
#   PYTHON=python3 TARGET=3.12 benchmarks/gpu/wheels.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
wheels=${WHEELS:-.whl}
packages=(pydantic pydantic_core annotated-types typing-inspection lark pymetis lightning-fabric lightning-utilities xxhash)
pins=()
for name in "${packages[@]}"; do pins+=("$(grep -i "^$name==" constraints.txt)"); done
rm -rf "$wheels"
"${PYTHON:-python3}" -m pip --disable-pip-version-check download --quiet --no-deps --only-binary=:all: \
  --python-version "${TARGET:-3.12}" --implementation cp \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 --platform manylinux_2_17_x86_64 --platform any \
  --dest "$wheels" "${pins[@]}"
size=$(du -sk "$wheels" | cut -f1)
echo "$(find "$wheels" -type f | wc -l) wheels in $wheels, $size KiB"
[ "$size" -lt 65536 ]
