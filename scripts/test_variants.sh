#!/usr/bin/env bash
# Runs the tests that reach a kernel once under each kernel variant this processor has; says which it lacks. Not those
# that run every variant by themselves, nor those of what no variant changes: Triton's kernels, threads and processes, and,
# where kernels are compiled, the graph's, whose native functions have one text for every processor, and the loaders',
# which take kernels no other way than the samplers' own tests: gcov finds no branch of a kernel's instance that only they
# reach. The variants run side by side, one process each, since importing and collecting takes a third of the time.
#   PYTHON=.venv/bin/python scripts/test_variants.sh [pytest arguments]
#   GB_BUT_ACTIVE=1    not the variant that is chosen where none is forced, since the whole suite ran under it
#   GB_VARIANTS_SHORT=1    for CI: of a product of parameters the cases that `make test-all` runs, and those that `make test`
#                          runs for the reference, which has no compiled instance for a pair of values to choose; not the
#                          portable variant, under which the sanitizers' short form runs the same tests, and which the whole
#                          suite compares with the others in tests of each variant
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
ignored=()
for path in tests/{ops,sampling}/triton tests/ops/test_{triton,idle_threads}.py \
  tests/sampling/test_{triton_sampler,threads,loader_processes}.py; do
  [ -e "$path" ] || { echo "test_variants.sh leaves out $path, which is not there" >&2; exit 1; }
  ignored+=("--ignore=$path")
done

cases="(not slow or rest) and not each_variant"
[ -z "${GB_VARIANTS_SHORT:-}" ] || cases+=" and not long"
but=
[ -z "${GB_BUT_ACTIVE:-}" ] || but=$("$python" -c "from graphbraid import native; print(native.active().variant)")
chosen=()
for variant in avx512 avx2 portable reference; do
  if [ "$variant" = "$but" ]; then
    echo "== kernels $variant: the whole suite runs under it"
    continue
  fi
  if [ "$variant" = portable ] && [ -n "${GB_VARIANTS_SHORT:-}" ]; then
    echo "== kernels portable: the sanitizers' short form runs under it"
    continue
  fi
  if ! reason=$("$python" - "$variant" <<'PY'
import sys
from graphbraid import native
reason = None if sys.argv[1] == "reference" else native.unsupported_reason(sys.argv[1])
print(reason or "")
sys.exit(reason is not None)
PY
  ); then
    # Only a processor may lack a variant; kernels that do not load or were not compiled are a failure of the build.
    case "$reason" in
      "this processor"*) echo "== kernels $variant: skipped, $reason"; continue ;;
      *) echo "== kernels $variant: $reason" >&2; exit 1 ;;
    esac
  fi
  chosen+=("$variant")
done

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
declare -A running=()
for variant in "${chosen[@]}"; do
  tests=(tests/ops tests/nn tests/sampling/test_{sampler,constrained,link_loader}.py)
  marked=$cases
  if [ "$variant" = reference ]; then
    tests=(tests/ops tests/nn tests/sampling tests/graph)
    [ -z "${GB_VARIANTS_SHORT:-}" ] || marked="not slow and not each_variant"
  fi
  GRAPHBRAID_KERNELS=$variant OMP_WAIT_POLICY=passive "$python" -m pytest -q -p no:cacheprovider \
    -m "$marked" "${ignored[@]}" "${tests[@]}" "$@" >"$logs/$variant" 2>&1 &
  running[$variant]=$!
done

failed=0
for variant in "${chosen[@]}"; do
  status=0
  wait "${running[$variant]}" || status=$?
  echo "== kernels $variant"
  cat "$logs/$variant"
  [ "$status" -eq 0 ] || { echo "the tests under $variant ended with $status" >&2; failed=$status; }
done
exit "$failed"
