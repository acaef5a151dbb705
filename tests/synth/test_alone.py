"""Programs are built by their README's two commands where there is neither Python nor graphbraid.

A mount namespace hides the project's folder, the environment with its packages, and every python: what a
program needed of them would be missing.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.distributed.whole import owners
from tests.extras import PATIENCE
from tests.fullgraph.graphs import NUM_NODES, make_graph
from tests.kernels import needs_kernels
from tests.synth.building import (
    EXAMPLES,
    GRAPH,
    QUICK_BUILD,
    Compiled,
    graph_of,
    in_one,
    losses_of,
    of_example,
    taking,
)
from tests.synth.on_host import HostPrograms, nvcc
from tests.synth.ranks import MPI, environment, parts_of_programs, tool

from graphbraid import Graph, datasets
from graphbraid.synth import Synthesis, load_weights, train, write_cuda, write_mpi, write_openmp
from graphbraid.synth.emit.cuda import sources_for_gpu

pytestmark = [needs_kernels, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
HIDDEN = {ROOT, Path(sys.prefix), Path(torch.__file__).parents[1]}
GRAPHS = {
    "plain": GRAPH,
    "weighted": make_graph(train=30, weighted=True),
    "bags of words": make_graph(train=30, density=0.2, binary="row"),
}
CASES = [
    pytest.param(example, graph, marks=() if (example, graph) == ("listing1", "plain") else pytest.mark.long)
    for example in EXAMPLES
    for graph in GRAPHS
]
EARLY = 6
"""Epochs whose losses are compared closely: another variant's rounding grows from epoch to epoch."""


def made(example: str) -> Synthesis:
    return of_example(EXAMPLES[example], example, epochs=12)


def graph_for(example: str, graph: str) -> Graph:
    """A graph, with labels that the example can learn."""
    return GRAPHS[graph].replace(y=graph_of(example).y)


def alone(script: str, folder: Path) -> str:
    """What a script says where all of the project is hidden."""
    path = [place for place in os.environ["PATH"].split(os.pathsep) if not is_hidden(Path(place))]
    path.insert(0, str(folder.parent / "mpi" / "bin"))
    if any(
        shutil.which(name, path=os.pathsep.join(path)) is None for name in ("unshare", "cmake", "g++", "make")
    ):
        pytest.skip("there is no unshare, CMake, g++ or make outside of the environment")
    pythons = {file for place in path for file in Path(place).glob("python*") if file.is_file()}
    hide = [f"mount -t tmpfs none {shlex.quote(str(place))}" for place in sorted(HIDDEN) if place.is_dir()]
    hide = [
        f"[ ! -d {shlex.quote(str(place))} ] || {line}"
        for place, line in zip(sorted(HIDDEN), hide, strict=True)
    ]
    hide += [f"mount --bind /dev/null {shlex.quote(str(file.resolve()))}" for file in sorted(pythons)]
    hide += ["! command -v python3", f'[ -z "$(ls {shlex.quote(str(ROOT))})" ]']
    command = ["unshare", "--map-root-user", "--mount", "sh", "-ec", "\n".join([*hide, script])]
    given = environment() | {"PATH": os.pathsep.join(path)}
    given.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, timeout=PATIENCE)
    if "unshare failed" in done.stderr or "Operation not permitted" in done.stderr:
        # This user may not make namespaces: the build is shown without hiding anything.
        done = subprocess.run(
            ["sh", "-ec", script], cwd=folder, env=given, capture_output=True, text=True, timeout=PATIENCE
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def is_hidden(place: Path) -> bool:
    """Whether a folder is hidden, or one of an environment of Python, whose tools need it."""
    if (place.parent / "pyvenv.cfg").is_file() or (place / "pyvenv.cfg").is_file():
        return True
    return any(place == hidden or hidden in place.parents for hidden in HIDDEN)


def commands_of(folder: Path, options: str, store: Path) -> str:
    """The README's two commands, with options of CMake that make the build short."""
    readme = (folder / "README.md").read_text(encoding="utf-8")
    commands = [line.strip() for line in readme.splitlines() if line.startswith("    ")]
    assert len(commands) == 2
    script = "\n".join(commands).replace("-B build &&", f"-B build {options} &&")
    return script.replace("STORE", str(store))


def assert_as_the_engine(said: str, folder: Path, example: str, graph: Graph) -> None:
    load_weights(made(example).model, folder / "trained")
    expected = train(made(example), graph).losses
    assert losses_of(said)[:EARLY] == pytest.approx(expected[:EARLY], rel=1e-5)
    assert losses_of(said) == pytest.approx(expected, rel=1e-3)


@pytest.fixture(scope="module")
def rank_parts(tmp_path_factory) -> Compiled:
    return parts_of_programs(tmp_path_factory)


@pytest.fixture(scope="module")
def gpu_programs(tmp_path_factory) -> HostPrograms:
    return HostPrograms(tmp_path_factory)


@pytest.fixture
def store(example: str, graph: str, tmp_path: Path) -> Path:
    return datasets.save_store(graph_for(example, graph), tmp_path / "store")


@pytest.mark.parametrize(("example", "graph"), CASES)
def test_openmp(example, graph, store, parts, tmp_path):
    folder = write_openmp(made(example), datasets.open_store(store), tmp_path / "out")
    options = f"{QUICK_BUILD} -DCMAKE_CXX_COMPILER_LAUNCHER={taking(parts.objects, tmp_path)}"
    said = alone(commands_of(folder, options, store), folder)
    assert_as_the_engine(said, folder, example, graph_for(example, graph))


@pytest.mark.parametrize(("example", "graph"), CASES)
def test_mpi(example, graph, store, rank_parts, tmp_path):
    bring_mpi(tmp_path / "mpi")
    partition = owners([node % 3 for node in range(NUM_NODES)], 3)
    folder = write_mpi(made(example), datasets.open_store(store), tmp_path / "out", partition)
    of_ranks = {f"{source.name}.o" for source in MPI.glob("*.cpp")}
    objects = [made_of for made_of in rank_parts.objects if made_of.name not in of_ranks]
    options = f"{QUICK_BUILD} -DCMAKE_CXX_COMPILER_LAUNCHER={taking(objects, tmp_path)}"
    said = alone(commands_of(folder, options, store), folder)
    assert_as_the_engine(said, folder, example, graph_for(example, graph))


@pytest.mark.parametrize(("example", "graph"), CASES)
def test_cuda_on_the_host(example, graph, store, gpu_programs, tmp_path):
    folder = write_cuda(made(example), datasets.open_store(store), tmp_path / "out")
    launcher = taking(gpu_programs.objects_of(folder), tmp_path)
    options = f"-DON_HOST=ON -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_COMPILER_LAUNCHER={launcher}"
    said = alone(commands_of(folder, options, store), folder)
    assert_as_the_engine(said, folder, example, graph_for(example, graph))


def bring_mpi(folder: Path) -> None:
    """Copy an MPI that lies in the environment, which is hidden, to a folder of its own."""
    home = Path(tool("mpicxx")).parents[1]
    if not is_hidden(home):
        return
    libraries = home / "lib" / "mpich"  # what the library of MPICH's wheel brings along
    if libraries.is_dir():
        shutil.copytree(libraries, folder / "lib" / "mpich")
    for room, names in (("bin", "*mpi*"), ("bin", "hydra*"), ("lib", "libmpi*"), ("include", "mpi*")):
        (folder / room).mkdir(parents=True, exist_ok=True)
        for file in (home / room).glob(names):
            if file.is_file():
                shutil.copy2(file, folder / room / file.name)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.long
def test_nvcc_compiles_the_examples_without_a_warning(graph, tmp_path):
    texts = {name: sources_for_gpu(made(name), graph_for(name, graph)).main for name in EXAMPLES}
    (tmp_path / "mains.cu").write_text(in_one(texts), encoding="utf-8")
    nvcc(tmp_path / "mains.cu", tmp_path / "mains.o")
