"""Building synthesised programs for a GPU: on the processor, where their kernels run too, and with nvcc."""

import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
from tests.synth.building import CSRC, PACKAGE, RUNTIME, Together, Wanted, by_one, compile_with, precompile

from graphbraid.synth import write_cuda
from graphbraid.synth.emit import cuda

CUDA = PACKAGE / "synth" / "emit" / "runtime_cuda"
STUBS = Path(__file__).with_name("stubs")
"""What nvcc's own installation lacks: cuBLAS's declarations."""
_INCLUDES = (CSRC, RUNTIME, CUDA)
_ON_HOST = "-DGB_ON_HOST"


class HostPrograms:
    """Programs whose kernels run on the processor; each source is compiled once for all test processes.

    Args:
        factory: makes the folder of objects.
    """

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        with by_one(factory, "objects-on-host") as folder:
            self._header = folder / "programs.h"
            if not self._header.with_suffix(".h.gch").exists():
                precompile(self._header, _ON_HOST)

    def together(self, name: str, wanted: Mapping[str, Wanted]) -> Together:
        """Programs that are compiled as one."""

        def write(one: Wanted, folder: Path) -> None:
            options = dict(one.options)
            with mock.patch.object(cuda, "LONG_ROW", options.pop("long_row", cuda.LONG_ROW)):
                write_cuda(one.make(), one.stored(folder), folder, **options)

        return Together(self._factory, name, wanted, write, self._link)

    def _link(self, source: Path, taken: Path, to: Path) -> None:
        objects = map(str, self.objects_of(taken))
        self._compile(source, taken, to.with_suffix(".o"), "-include", str(self._header))
        compile_with((), str(to.with_suffix(".o")), *objects, "-o", str(to))

    def objects_of(self, folder: Path) -> list[Path]:
        """The objects of what a program takes along, each named by its source."""
        sources = [file for room in folder.glob("runtime*") for file in room.iterdir()]
        wanted = [file for file in sources if file.suffix in {".cpp", ".cu"} and file.name != "gemm.cu"]
        with by_one(self._factory, "objects-on-host") as place, ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda source: self._object(source, place), sorted(wanted)))

    def _object(self, source: Path, place: Path) -> Path:
        made = place / f"{source.name}.o"
        if not made.exists():
            self._compile(source, source.parents[1], made)
        return made

    @staticmethod
    def _compile(source: Path, program: Path, to: Path, *options: str) -> None:
        """Compile a source, with the headers that a program takes along."""
        includes = tuple(program / room for room in ("csrc", "runtime", "runtime_cuda"))
        compile_with(includes, *options, _ON_HOST, "-x", "c++", "-c", str(source), "-o", str(to))


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
