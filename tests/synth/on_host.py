"""Building synthesised programs for a GPU: on the processor, where their kernels run too, and with nvcc."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.extras import PATIENCE
from tests.synth.building import CSRC, PACKAGE, RUNTIME, compile_with, precompile

from graphbraid import datasets
from graphbraid.synth import Synthesis, write_cuda

CUDA = PACKAGE / "synth" / "emit" / "runtime_cuda"
STUBS = Path(__file__).with_name("stubs")
"""What nvcc's own installation lacks: cuBLAS's declarations."""
_INCLUDES = (CSRC, RUNTIME, CUDA)
_ON_HOST = "-DGB_ON_HOST"


class HostPrograms:
    """Programs whose kernels run on the processor; each source is compiled once.

    Args:
        folder: where objects are put.
    """

    def __init__(self, folder: Path) -> None:
        if shutil.which("g++") is None:
            pytest.skip("there is no g++")
        self._folder, self._objects = folder, dict[str, Path]()
        self._header = folder / "programs.h"
        precompile(self._header, _ON_HOST)

    def built(self, synthesis: Synthesis, store: Path, folder: Path, **options) -> Path:
        """Write a program for a store and build it."""
        write_cuda(synthesis, datasets.open_store(store), folder, **options)
        objects = self.objects_of(folder)
        self._compile(folder / "main.cu", folder, folder / "main.o", "-include", str(self._header))
        compile_with((), str(folder / "main.o"), *map(str, objects), "-o", str(folder / "train"))
        return folder

    def objects_of(self, folder: Path) -> list[Path]:
        """The objects of what a program takes along, each named by its source."""
        sources = [file for room in folder.glob("runtime*") for file in room.iterdir()]
        wanted = [file for file in sources if file.suffix in {".cpp", ".cu"} and file.name != "gemm.cu"]
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(self._object, sorted(wanted)))

    def _object(self, source: Path) -> Path:
        if source.name not in self._objects:
            made = self._folder / f"{source.name}.o"
            self._compile(source, source.parents[1], made)
            self._objects[source.name] = made
        return self._objects[source.name]

    @staticmethod
    def _compile(source: Path, program: Path, to: Path, *options: str) -> None:
        """Compile a source of a program, with the headers that the program takes along."""
        includes = tuple(program / room for room in ("csrc", "runtime", "runtime_cuda"))
        compile_with(includes, *options, _ON_HOST, "-x", "c++", "-c", str(source), "-o", str(to))


def run_on_host(folder: Path, *options: str, code: int = 0, **environment: str) -> str:
    """What a program says: its output, or its errors if it is to end with another code."""
    command = [str(folder / "train"), "--home", str(folder), *options]
    given = os.environ | environment
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=given)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def in_one(mains: dict[str, str]) -> str:
    """Programs as one source, each in a namespace of its own: most of the time goes into reading headers."""
    include = re.compile(r"^#include .*\n", re.MULTILINE)
    includes = dict.fromkeys(line for text in mains.values() for line in include.findall(text))
    bodies = []
    for name, text in mains.items():
        assert text.count("\nint main(") == text.count("namespace program {") == 1
        body = include.sub("", text).replace("\nint main(", f"\nint main_{name}(")
        bodies.append(f"namespace {name} {{\nnamespace program {{ using namespace ::program; }}\n{body}}}\n")
    return "\n".join(["".join(includes), *bodies])


def nvcc(source: Path, to: Path) -> None:
    """Compile a source for two architectures; a warning of nvcc or of the compiler behind it is an error.

    It is read for the older one alone: no source asks which it is compiled for.
    """
    found = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if found is None:
        pytest.skip("there is no nvcc")
    targets = ["-gencode=arch=compute_80,code=[sm_80,sm_90]"]
    warnings = ["-Werror=all-warnings", "-Xcompiler=-Wall,-Wextra,-Werror"]
    includes = [f"-I{folder}" for folder in (*_INCLUDES, *(() if _has_cublas() else (STUBS,)))]
    command = [found, "-std=c++20", *targets, *warnings, *includes, "-c", str(source), "-o", str(to)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stderr, done.stderr


def _has_cublas() -> bool:
    return Path("/usr/local/cuda/include/cublas_v2.h").is_file()
