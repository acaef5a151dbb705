"""Writing and building synthesised programs, timed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.synth import compile_once


def timed_build(write: Callable[[], Path], objects: Path, *configured: str) -> dict[str, Any]:
    """Write a program, build it as its README says, and return how long both took, and the binary's size.

    Args:
        write: writes it, and returns its folder.
        objects: a folder for what programs of this run have in common. It is compiled once, and counts in
            each of them with the seconds that this took.
        configured: further options of CMake.
    """
    started = time.perf_counter()
    folder = write()
    wrote = time.perf_counter()
    build, log = folder / "build", objects / "log"
    objects.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    launcher = f"-DCMAKE_CXX_COMPILER_LAUNCHER={sys.executable};{compile_once.__file__};{objects}"
    for command in (["cmake", "-S", folder, "-B", build, launcher, *configured], ["cmake", "--build", build]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    built = time.perf_counter()
    sources = [tuple(map(float, line.split())) for line in log.read_text().splitlines()]
    return {
        "write_s": wrote - started,
        "build_s": built - wrote + sum(compiling - now for now, compiling in sources),
        "binary_mb": (build / "train").stat().st_size / 1e6,
    }
