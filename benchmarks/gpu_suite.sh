#!/usr/bin/env bash
# Everything that wants a GPU, within eleven minutes: builds the kernels, then runs benchmarks.gpu.suite, whose three
# tiers are a case of each kernel and route (90 s), all tests that want a card (4 min), and measurements (5 min).
# Rows and logs go to $OUT (default: benchmarks/results); other options are the suite's.
#   PYTHON=python3 OUT=results benchmarks/gpu_suite.sh [--tiers a,b] [--only NAMES] [--resume results/gpu_suite.jsonl]
#   benchmarks/gpu_suite.sh --smoke      the same steps on the CPU with tiny sizes
# Wheels in $WHEELS (default: .whl, made by benchmarks/gpu/wheels.sh) are installed first, into a folder of their own.
# Without nanobind, cmake or ninja the twins in PyTorch take the place of the CPU's kernels.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
out=${OUT:-benchmarks/results}
wheels=${WHEELS:-.whl}
smoke=""
[ "${1:-}" = --smoke ] && smoke=--smoke && shift
mkdir -p "$out"
out=$(realpath "$out")
export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 PYTHON="$python"

say() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }
has() { "$python" -c "import importlib.util as u, sys; sys.exit(any(u.find_spec(n) is None for n in sys.argv[1:]))" "$@"; }
if compgen -G "$wheels/*.whl" >/dev/null; then
  site=$(mktemp -d)
  "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" "$wheels"/*.whl &&
    export PYTHONPATH="$PYTHONPATH:$site"
fi

say "what is here"
"$python" - <<'END'
import importlib.util
import platform

import torch

print(f"Python {platform.python_version()}, torch {torch.__version__}")
if torch.cuda.is_available():
    print(f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}")
else:
    print("no CUDA device that PyTorch can use")
for name in ("triton", "torch_geometric", "nanobind", "pytest", "hypothesis", "lightning_fabric", "pydantic"):
    print(f"{name}: {'here' if importlib.util.find_spec(name) else 'missing'}")
END
if [ -z "$smoke" ] && ! "$python" -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then
  echo "There is no CUDA device here. benchmarks/gpu_suite.sh --smoke runs the same steps on the CPU."
  exit 1
fi

if "$python" -c "import sys; from graphbraid import native; sys.exit(native.kernels() is None)"; then
  say "the compiled kernels are built already"
elif [ -z "$smoke" ] && has nanobind && command -v cmake >/dev/null && command -v ninja >/dev/null; then
  say build
  GB_VARIANTS=native timeout 180 bash scripts/build_inplace.sh || echo "The kernels cannot be built; their twins run."
else
  say "build left out"
  echo "The CPU's kernels need nanobind, cmake and ninja; the twins in PyTorch run instead. That slows what is"
  echo "prepared on the host and changes nothing on the GPU."
fi

exec "$python" -m benchmarks.gpu.suite ${smoke:+"$smoke"} --out "$out" "$@"
