#!/usr/bin/env bash
# Runs the C++ core under sanitizers: an instrumented build of _native, loaded by the tests that reach it.
#   PYTHON=.venv/bin/python scripts/sanitize.sh [address] [thread] [programs]     all when none is named
#   GB_SANITIZE_SHORT=1    for CI: only the portable variant, not optimised, as that takes longer than it saves;
#                          reports name lines but no variables, and undefined behaviour, whose reports take a third of the
#                          time to compile, ends the process by SIGILL, where pytest names the test; of a product of
#                          parameters the cases that `make test` runs, none of the tests of what stands in Python alone on
#                          entries that the others call as well, none that start Python anew, which take most of their
#                          time for that, and none that measure processor time; the long form is for a change of the core and
#                          for a release
#   GB_SANITIZE_TESTS=...  these test paths instead
#   GB_SANITIZE_BUILD=1    address and thread are only built, for a later call
#
# address: AddressSanitizer with UndefinedBehaviorSanitizer.
# thread:  ThreadSanitizer. Plain threads replace OpenMP (GB_STD_THREADS), whose runtime it cannot see into.
# programs: synthesised programs under the first two, by scripts/sanitize_programs.sh.
#
# Both forms call every entry of the core: tests/ops/test_native_arguments.py fails where one is not called.
#
# Python and torch are not instrumented; the sanitizer's runtime is preloaded and sees every access of the core, and
# every allocation and lock of the process. A finding ends the test process at once with exit code 66, or by SIGILL.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
compiler=${CXX:-g++}
short=${GB_SANITIZE_SHORT:-}
variants=all debug=-g cases="not slow or rest"
declare -A optimize=([address]=-O1 [thread]=-O1)
[ -z "$short" ] || variants=portable debug=-g1 optimize=([address]=-O0 [thread]=-O0) cases="not slow"
[ $# -gt 0 ] || { set -- address thread; [ -n "${GB_SANITIZE_TESTS:-}" ] || set -- "$@" programs; }

# Builds build/sanitize-NAME/python/graphbraid: this tree's Python files with the instrumented module.
build() {
  local name=$1 flags=$2 folder=build/sanitize-$1
  cmake -S . -B "$folder" -G Ninja -DGB_VARIANTS="$variants" -DPython_EXECUTABLE="$python" -DCMAKE_CXX_COMPILER="$compiler" \
    -DCMAKE_CXX_COMPILER_LAUNCHER="$(command -v ccache || true)" \
    -DCMAKE_BUILD_TYPE=None -DGB_OPTIMIZE="${optimize[$name]}" -DCMAKE_CXX_FLAGS="$debug -fno-omit-frame-pointer $flags" >/dev/null
  cmake --build "$folder" --parallel "$(nproc)" >"$folder/build.log" || { tail -n 20 "$folder/build.log"; return 1; }
  # Tests that run beside it may be writing bytecode, which is copied below.
  [ -z "${GB_SANITIZE_BUILD:-}" ] || return 0
  rm -rf "$folder/python"
  mkdir -p "$folder/python"
  cp -rp src/graphbraid "$folder/python/graphbraid" # with the times of its files, by which Python knows its bytecode
  rm -rf "$folder"/python/graphbraid/_native*.so
  cp "$folder"/_native*.so "$folder/python/graphbraid/"
  # An editable install would come before PYTHONPATH: take its finder away.
  cat >"$folder/python/sitecustomize.py" <<'PY'
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
PY
}

# Runs the tests with the sanitizer's runtime and, for its exceptions, the C++ runtime loaded before all else.
run_tests() {
  local name=$1 library=$2
  shift 2
  local folder=$PWD/build/sanitize-$name
  local preload
  preload="$("$compiler" -print-file-name="$library") $("$compiler" -print-file-name=libstdc++.so.6)"
  # One process makes sure of the build and runs the tests: to import torch takes seconds here.
  local run='import sys, pytest, graphbraid.native as k; assert k.active().variant != "reference", k.active(); import graphbraid._native as n; print(n.__file__); sys.exit(pytest.main(sys.argv[1:]))'
  # Nor, where threads are watched, of forked processes: the sanitizer knows no threads begun after a fork.
  local chosen="not memory"
  [ "$name" = thread ] && chosen+=" and not fork"
  [ -z "$short" ] || chosen+=" and not another_process and not two_processes and not rows_widened and not widens"
  [ -z "$short" ] || chosen+=" and not back_to_the_system and not can_be_had and not processor_time"
  # Many draws of one thread, in which no other can be seen: 9 of 226 seconds.
  [ -z "$short" ] || [ "$name" = address ] || chosen+=" and not normalised_degrees and not one_after_the_other and not square_of_its"
  # setarch -R: the sanitizers' shadow memory and address randomisation do not always agree.
  local under=(env "PYTHONPATH=$folder/python" "LD_PRELOAD=$preload" "$@" setarch -R "$python")
  # Not the tests of peak memory: red zones and shadow memory are not what they measure; nor the Triton kernels, which
  # the core has no part in. Standard error stays uncaptured: the report of a process that ends at once would be lost.
  "${under[@]}" -c "$run" -q -x --capture=sys -p no:cacheprovider --timeout 900 -m "$cases" -k "$chosen" \
    "${ignored[@]}" "${tests[@]}"
}

left_out=({ops,sampling}/triton ops/test_triton.py sampling/test_triton_sampler.py)
[ -z "$short" ] || left_out+=(sampling/test_loader_processes.py ops/test_idle_threads.py
  sampling/test_{pyg_batches,pyg_cases,pyg_link_cases,pyg_options,loader_face,minibatch,pinning,peers}.py
  sampling/typed/test_loader.py graph/test_{interop,memory,types}.py
  features/test_{scores_auto,under_a_limit}.py)
ignored=()
for path in "${left_out[@]}"; do
  [ -e "tests/$path" ] || { echo "sanitize.sh leaves out tests/$path, which is not there" >&2; exit 1; }
  ignored+=("--ignore=tests/$path")
done

tests=()
if [ -n "${GB_SANITIZE_TESTS:-}" ]; then
  read -r -a tests <<<"$GB_SANITIZE_TESTS"
else
  for path in tests/sampling tests/ops tests/graph tests/features tests/loader; do [ -e "$path" ] && tests+=("$path"); done
fi

declare -A flags_of=([address]="-fsanitize=address,undefined -fno-sanitize-recover=all" [thread]="-fsanitize=thread -DGB_STD_THREADS")
[ -z "$short" ] || flags_of[address]+=" -fsanitize-undefined-trap-on-error"

# All that belongs to one sanitizer, one after the other.
lane() {
  local name=$1
  if [ "$name" = programs ]; then
    echo "== synthesised programs"
    PYTHON=$python scripts/sanitize_programs.sh
    return
  fi
  echo "== building for the $name sanitizer"
  build "$name" "${flags_of[$name]}"
  [ -z "${GB_SANITIZE_BUILD:-}" ] || return 0
  echo "== tests under the $name sanitizer"
  case $name in
    address)
      # Leaks: Python keeps much until the end, so only what the core itself loses would count; see suppressions. Objects
      # of the core that a process loses are looked for by tests/ops/test_leaks.py.
      run_tests address libasan.so \
        "ASAN_OPTIONS=detect_leaks=0:exitcode=66:abort_on_error=0:handle_segv=0:allocator_may_return_null=1" \
        "UBSAN_OPTIONS=print_stacktrace=1:exitcode=66"
      ;;
    thread)
      run_tests thread libtsan.so \
        "TSAN_OPTIONS=exitcode=66:halt_on_error=1:second_deadlock_stack=1:suppressions=$PWD/scripts/tsan.supp" \
        "OMP_NUM_THREADS=1"
      ;;
  esac
}

for name in "$@"; do
  [ "$name" = programs ] || [ -n "${flags_of[$name]:-}" ] || { echo "sanitize.sh knows address, thread and programs, not $name" >&2; exit 2; }
done

# Side by side: while one waits for its single test process, the other has cores to build on.
declare -A running=()
mkdir -p build
for name in "$@"; do
  (set -e; lane "$name") >"build/sanitize-$name.log" 2>&1 &
  running[$name]=$!
done
failed=0
for name in "$@"; do
  status=0
  wait "${running[$name]}" || status=$?
  cat "build/sanitize-$name.log"
  [ "$status" -eq 0 ] || { echo "sanitize.sh: $name ended with $status" >&2; failed=$status; }
done
exit "$failed"
