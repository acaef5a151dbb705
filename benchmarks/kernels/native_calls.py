"""What a call of the compiled module costs, for several builds of it (decision 0020).

    scripts/build_inplace.sh                              # nanobind inside
    python -m zipfile -e dist/graphbraid-*.whl unpacked   # split mode
    python -m benchmarks.kernels.native_calls src/graphbraid/_native*.so unpacked/graphbraid/_native.abi3.so

Arrays are so small that a kernel's own work hardly counts. The builds take turns in processes of their own;
each call counts by its least time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import timeit
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from graphbraid import native

CALLS, REPEATS, TURNS = 2000, 25, 3


def loaded(path: Path) -> ModuleType:
    """The module of a file, in place of the installed one."""
    native._map_openmp()
    spec = importlib.util.spec_from_file_location("graphbraid._native", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fastest = next(
        name for name in native.COMPILED_VARIANTS if module.is_compiled(name) and module.is_supported(name)
    )
    module.select(fastest)
    return module


def calls(module: ModuleType) -> dict[str, Callable[[], object]]:
    """The calls by name, from none to thirteen arguments."""
    table, out = torch.zeros(8, 16, dtype=torch.uint8), torch.zeros(4, 16, dtype=torch.uint8)
    ids = torch.arange(4)
    edges = (torch.arange(5), torch.arange(4, dtype=torch.int32))
    x, sums = torch.ones(4, 8), torch.zeros(4, 8)
    spmm = (*edges, x, None, None, None, None, 0.0, 0, False, False, None, sums)
    bound = module.bound.spmm(*spmm)
    return {
        "pool_bytes, no argument": module.pool_bytes,
        "gather_rows, three arrays": lambda: module.gather_rows(table, ids, out),
        "spmm, four arrays of thirteen arguments": lambda: module.spmm(*spmm),
        "binding spmm to its arguments": lambda: module.bound.spmm(*spmm),
        "running a bound call": bound.run,
    }


def microseconds(path: Path) -> dict[str, float]:
    """Least time of each call."""
    torch.set_num_threads(1)
    return {
        name: min(timeit.repeat(call, number=CALLS, repeat=REPEATS)) / CALLS * 1e6
        for name, call in calls(loaded(path)).items()
    }


def main() -> None:
    """Measure one build and print JSON, or several in turn and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("builds", nargs="+", type=Path, help="files of the compiled module")
    builds = parser.parse_args().builds
    if len(builds) == 1:
        print(json.dumps(microseconds(builds[0])))
        return
    least: dict[Path, dict[str, float]] = {build: {} for build in builds}
    for _ in range(TURNS):
        for build, times in least.items():
            command = [sys.executable, "-m", "benchmarks.kernels.native_calls", str(build)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            for name, time in json.loads(done.stdout.splitlines()[-1]).items():
                times[name] = min(time, times.get(name, time))
    print(f"| call | {' | '.join(build.name for build in builds)} |")
    for name, first in least[builds[0]].items():
        others = [f"{times[name]:.3f} us ({times[name] / first - 1:+.1%})" for times in least.values()]
        print(f"| {name} | {' | '.join(others)} |")


if __name__ == "__main__":
    main()
