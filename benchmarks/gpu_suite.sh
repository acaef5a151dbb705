#!/usr/bin/env bash
# Everything that wants a GPU, within nine minutes: builds the kernels, runs the GPU tests, the full-graph table,
# sampled training by who prepares the batches and by where feature rows are, and the kernels' bandwidths. Results and logs go to $OUT (default: benchmarks/results).
#   PYTHON=python3 OUT=results benchmarks/gpu_suite.sh
#   benchmarks/gpu_suite.sh --smoke      the same steps on the CPU with tiny sizes
# What is missing is said and left out: without nanobind or a compiler the CPU's kernels, without pytest and
# hypothesis the tests, without PyG its rows of the table (plain PyTorch stands in). Wheels in $WHEELS (default:
# .whl, if it is there) are installed first, into a folder of their own.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
out=${OUT:-benchmarks/results}
wheels=${WHEELS:-.whl}
smoke=""
[ "${1:-}" = --smoke ] && smoke=--smoke
mkdir -p "$out"
out=$(realpath "$out")
export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 PYTHON="$python"
began=$SECONDS
failed=()

say() { printf '\n== %s (%d s)\n' "$*" $((SECONDS - began)); }
has() { "$python" -c "import importlib.util as u, sys; sys.exit(any(u.find_spec(n) is None for n in sys.argv[1:]))" "$@"; }
step() { # NAME SECONDS COMMAND...: its output is shown and kept; one that fails or takes too long is remembered
  local name=$1 limit=$2
  shift 2
  say "$name"
  timeout "$limit" "$@" 2>&1 | tee "$out/gpu_${name// /_}.log"
  local code=${PIPESTATUS[0]}
  if [ "$code" -ne 0 ]; then
    failed+=("$name")
    echo "$name: exit code $code$([ "$code" -eq 124 ] && echo " (over $limit s)")"
  fi
}

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
  step build 180 bash scripts/build_inplace.sh
else
  say "build left out"
  echo "The CPU's kernels need nanobind, cmake and ninja; the twins in PyTorch run instead. That slows what is"
  echo "prepared on the host and changes nothing on the GPU."
fi

left() { local s=$((530 - (SECONDS - began))) && echo $((s > 20 ? s : 20)); }
config=""
if has pytest hypothesis; then
  # A configuration of its own: the project's names plugins that may not be here.
  config=$(mktemp --suffix=.ini)
  cat >"$config" <<END
[pytest]
addopts = -ra --import-mode=importlib -p no:cacheprovider
pythonpath = $PWD $PWD/src
markers =
  slow: takes more than about ten seconds
  gpu: needs a CUDA device
  distributed: starts several processes
END
  step "engine tests" 110 "$python" -m pytest -q -c "$config" --rootdir "$PWD" -m gpu tests/fullgraph/test_cuda.py
  step "batching tests" 45 "$python" -m pytest -q -c "$config" --rootdir "$PWD" -m gpu \
    tests/sampling/triton/test_device_batching.py
  step "peer tests" 60 "$python" -m pytest -q -c "$config" --rootdir "$PWD" -m gpu tests/distributed/test_peers.py \
    tests/distributed/test_whole_device.py
  step "tier tests" 60 "$python" -m pytest -q -c "$config" --rootdir "$PWD" -m gpu \
    tests/sampling/test_pinning.py tests/sampling/test_peers.py tests/ops/triton/test_gather_tiered.py
else
  say "tests left out"
  echo "The tests need pytest and hypothesis. Where nothing can be fetched, bring their wheels in $wheels:"
  echo "  python3 -m pip download --only-binary=:all: -d $wheels pytest hypothesis"
fi

step "fullgraph" 140 "$python" -m benchmarks.gpu.fullgraph $smoke --budget 100 --out "$out/gpu_fullgraph.jsonl"
step "collective" 110 "$python" -m benchmarks.gpu.collective $smoke --budget 60 --repeats 1 --steps 50 --cores 2 4 16 \
  --out "$out/gpu_collective.jsonl"
step "tiers" 90 "$python" -m benchmarks.gpu.tiers $smoke --steps 50 --repeats 2 --out "$out/gpu_tiers.jsonl"
step "pipeline" 90 "$python" -m benchmarks.gpu.pipeline $smoke --out "$out/gpu_pipeline.jsonl"
step "kernels" 60 "$python" -m benchmarks.gpu.kernels $smoke --budget 40 --out "$out/gpu_kernels.jsonl"
if [ -n "$config" ] && [ -z "$smoke" ]; then # last: each of hundreds of variants is compiled first
  workers=()
  has xdist && workers=(-n 8)
  step "kernel tests" "$(left)" "$python" -m pytest -q -c "$config" --rootdir "$PWD" -m gpu "${workers[@]}" tests/ops/triton
fi

say "done"
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
