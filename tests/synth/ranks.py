"""Building and running synthesised programs of several ranks, where there is MPI."""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from benchmarks.synth.program import OPEN_MPI, mpi_tool
from tests.extras import PATIENCE
from tests.synth.building import CSRC, FLAGS, PACKAGE, RUNTIME, Compiled, Together, Wanted, by_one, compiled

from graphbraid.distributed import Partition
from graphbraid.graph import Graph
from graphbraid.synth import Synthesis, write_mpi

MPI = PACKAGE / "synth" / "emit" / "runtime_mpi"
GOLDEN = Path(__file__).with_name("golden") / "mpi"
NO_MPI = "there is no mpicxx and mpirun on the PATH or beside Python (pip install mpich)"


def tool(name: str) -> str:
    """The path of a tool of MPI; the test is skipped where there is none."""
    found = mpi_tool(name)
    if found is None:
        pytest.skip(NO_MPI)
    return found


def parts_of_programs(factory: pytest.TempPathFactory) -> Compiled:
    """The kernels, the runtime, and what ranks tell each other."""
    with by_one(factory, "objects-of-ranks") as folder:
        header, sources = folder / "programs.h", sorted(MPI.glob("*.cpp"))
        objects = [folder / f"{source.name}.o" for source in sources]
        if not (folder / "all").exists():
            for source, made_of in zip(sources, objects, strict=True):
                _compile("-c", str(source), "-o", str(made_of))
            text = (GOLDEN / "main.cpp").read_text(encoding="utf-8")
            header.write_text(
                "\n".join(re.findall(r"^#include .*", text, re.MULTILINE)) + "\n", encoding="utf-8"
            )
            _compile("-x", "c++-header", "-c", str(header), "-o", f"{header}.gch")
            (folder / "all").touch()
    return Compiled([*objects, *compiled(factory).objects], header)


def rank_programs(factory: pytest.TempPathFactory, name: str, wanted: Mapping[str, Wanted]) -> Together:
    """Programs of several ranks; the options of each have its partition."""
    parts = parts_of_programs(factory)

    def link(source: Path, _: Path, to: Path) -> None:
        _compile("-include", str(parts.header), str(source), *map(str, parts.objects), "-o", str(to))

    def write(one: Wanted, folder: Path) -> None:
        write_mpi(one.make(), one.graph, folder, **one.options)

    return Together(factory, name, wanted, write, link)


def built_for_ranks(
    synthesis: Synthesis, graph: Graph, partition: Partition, parts: Compiled, folder: Path, **options
) -> Path:
    """Write a program for the ranks of a partition and build it."""
    write_mpi(synthesis, graph, folder, partition, **options)
    text = ("-include", str(parts.header), str(folder / "main.cpp"))
    _compile(*text, *map(str, parts.objects), "-o", str(folder / "train"))
    return folder


def _compile(*arguments: str) -> None:
    includes = [f"-I{room}" for room in (CSRC, RUNTIME, MPI)]
    without = ["-DMPICH_SKIP_MPICXX", "-DOMPI_SKIP_MPICXX"]
    command = [tool("mpicxx"), *FLAGS, *without, *includes, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def command_of(folder: Path, num_ranks: int, *options: str) -> list[str]:
    """The command that runs a program."""
    return [tool("mpirun"), "-n", str(num_ranks), str(folder / "train"), "--home", str(folder), *options]


def environment() -> dict[str, str]:
    """The environment of a program of several ranks."""
    return os.environ | OPEN_MPI | {"OMP_NUM_THREADS": "1"}


def run_ranks(folder: Path, num_ranks: int, *options: str, code: int = 0) -> str:
    """What a program says: its output, or its errors if it is to end with another code."""
    command = command_of(folder, num_ranks, *options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment())
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def processes_of(folder: Path) -> list[int]:
    """The processes that run a folder's program."""
    found = []
    for entry in Path("/proc").iterdir():
        if not re.fullmatch(r"\d+", entry.name):
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        if words[0].decode() == str(folder / "train"):
            found.append(int(entry.name))
    return found
