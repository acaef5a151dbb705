"""Building and running synthesised programs; the runtime and the kernels are compiled once for all."""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.extras import PATIENCE
from tests.fullgraph.graphs import CHANNELS, CLASSES, NUM_NODES, make_graph
from tests.synth.programs import program
from torch import nn

import graphbraid
from graphbraid import Graph, datasets
from graphbraid import nn as gnn
from graphbraid.synth import (
    OptimizerRecipe,
    Recipe,
    Synthesis,
    from_model,
    from_program,
    load_weights,
    parse_program,
    train,
    write_openmp,
)
from graphbraid.synth.emit.folder import files_of
from graphbraid.synth.language.syntax import ATTENTION
from graphbraid.synth.weights import weights_of

PACKAGE = Path(graphbraid.__file__).parent
CSRC, RUNTIME = PACKAGE / "csrc", PACKAGE / "synth" / "emit" / "runtime"
LAYERS = (CHANNELS, 16, CLASSES)
SANITIZED = os.environ.get("GB_PROGRAM_FLAGS", "")
"""More options of the compiler, which scripts/sanitize_programs.sh asks for."""
TOGETHER = re.compile(os.environ.get("GB_PROGRAMS", ""))
"""The programs that are compiled as one source, by their names; all others are compiled alone."""
FLAGS = (
    *("-std=c++20", "-O0", "-fopenmp", "-Wall", "-Wextra", "-Werror", "-Wno-maybe-uninitialized"),
    *("-Wno-tautological-compare", "-DGB_WITHOUT_AVX2", "-DGB_WITHOUT_AVX512"),
    *shlex.split(SANITIZED),
)
CCACHE = shutil.which("ccache")
QUICK_BUILD = "-DONLY_PORTABLE=ON -DCMAKE_BUILD_TYPE=None"
"""Options of CMake for a test that minds neither the processor's variants nor how fast the program is."""

SOURCES = (
    *(file.name for file in sorted(RUNTIME.glob("*.cpp"))),
    "threads/threads.cpp",
    "variants/variants.cpp",
)
"""Of all programs for CPUs, as in their folders ``runtime`` and ``csrc``."""
_STANDARD = re.compile(r"^#include <.*", re.MULTILINE)
_TAKE = """#!/bin/sh
# Called as a compiler's launcher: takes an object of {objects} in place of compiling its source.
for word; do
  case $former in -o) out=$word ;; -MF) needs=$word ;; esac
  former=$word
done
made={objects}/${{former##*/}}.o
[ -n "$out" ] && [ -e "$made" ] || exec "$@"
cp "$made" "$out"
[ -z "$needs" ] || : >"$needs"
"""
MODELS = [("GCN", "Sum"), ("SAGE", "Sum"), ("SAGE", "Mean"), ("SAGE", "Max"), ("GIN", "Sum"), ("GAT", "Sum")]
# The gradient of a bias before batch normalisation is rounding noise, of which Adam makes whole steps.
OF_MODEL = {"GIN": {"optimizer": '"sgd", 0.05, 0.9'}}
OPTIMIZERS = ['"sgd", 0.1, 0.9, 0.01', '"adamw", 0.02, 0.8, 0.99, 0.1']
MORE = ("layer normalisation", "attention of both ends", "learned factor")
DROPOUT = "if (l < gnn.getLayers() - 1) { gnn.dropout(l, 0.5); }"
EVALUATE = 'if (epoch % 5 == 4) { gnn.evaluate("val"); }'


def made(model: str, aggregation: str, text: str = "", **options: str) -> Synthesis:
    """A model of 20 epochs with dropout, evaluated now and then; attention has four heads."""
    chosen = {"after_layer": DROPOUT, "after_epoch": EVALUATE} | options
    if model in ATTENTION:
        chosen["before"] = "gnn.heads(4);" + chosen.get("before", "")
    function = parse_program(text or program(model, aggregation, **chosen))
    return from_program(function, LAYERS, {"totalEpoch": 20})


def more(layers: str) -> Synthesis:
    """Models that the language has no words for: what more their layers do."""
    torch.manual_seed(0)
    if layers == "layer normalisation":
        model: nn.Module = gnn.GCN(CHANNELS, 16, CLASSES, norm="layer", dropout=0.5)
    elif layers == "attention of both ends":
        model = gnn.GATv2(CHANNELS, 16, CLASSES, heads=2, attention_dropout=0.3)
    else:
        model = gnn.GIN(CHANNELS, 16, CLASSES, 3, train_eps=True)
    # The gradient of a bias before batch normalisation is rounding noise, of which Adam makes whole steps.
    sgd = OptimizerRecipe(kind="sgd", learning_rate=0.05, momentum=0.9)
    recipe = Recipe(name="More", optimizer=sgd, epochs=20, evaluated=("val",), evaluate_every=5)
    return from_model(model, recipe)


def attending() -> Synthesis:
    """Attention with a dropout of its own."""
    torch.manual_seed(1)
    model = gnn.GAT(CHANNELS, 16, CLASSES, heads=2, out_heads=3, attention_dropout=0.4, act="elu")
    return from_model(model)


EXAMPLES = {
    file.stem: file.read_text(encoding="utf-8")
    for file in sorted((Path(__file__).parents[2] / "examples" / "synth").glob("*.gnn"))
}
SETTINGS = {"gat": {"rate": 0.01}, "choice": {"attend": True, "every": 4}}
WIDTHS = {"mixed": (CHANNELS, 16, 24, CLASSES)}
GRAPH = make_graph(train=30)
_DRAW = torch.Generator().manual_seed(7)
LABELLED = {
    "regression": GRAPH.replace(y=torch.randn(NUM_NODES, CLASSES, generator=_DRAW)),
    "labels": GRAPH.replace(y=(torch.rand(NUM_NODES, CLASSES, generator=_DRAW) < 0.3).float()),
}
"""The graphs of examples that learn something other than classes."""


def of_example(text: str, name: str = "", epochs: int = 30) -> Synthesis:
    """The text of an example, or of another program, with its settings and widths."""
    settings = {"totalEpoch": epochs} | SETTINGS.get(name, {})
    return from_program(parse_program(text), WIDTHS.get(name, LAYERS), settings)


def graph_of(name: str) -> Graph:
    """A graph that an example can be trained on."""
    return LABELLED.get(name, GRAPH)


@dataclass(frozen=True)
class Compiled:
    """What programs are built from, compiled once."""

    objects: list[Path]
    """Of the runtime and of the kernels; each is named by its source."""
    header: Path
    """Includes the standard headers of programs; the compiler takes the compiled form beside it."""


@contextlib.contextmanager
def by_one(factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """A folder of all test processes, which one at a time has: what the first makes, the others find."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    import fcntl  # not on every system that collects these tests

    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go of as the file is closed
        yield folder


def compiled(factory: pytest.TempPathFactory) -> Compiled:
    """The runtime and the kernels of every program."""
    with by_one(factory, "objects-of-programs") as folder:
        made = Compiled([folder / f"{Path(name).name}.o" for name in SOURCES], folder / "programs.h")
        if not (folder / "all").exists():
            precompile(made.header)
            compile_each(taken_along(folder), made.objects, "-include", str(made.header))
            (folder / "all").touch()
    return made


def taken_along(folder: Path) -> list[Path]:
    """Copy the sources with what they include, as programs do: what is missing shows as they compile."""
    for file in files_of(SOURCES):
        copy = folder / file.relative_to(PACKAGE if CSRC in file.parents else RUNTIME.parent)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    return [folder / ("csrc" if "/" in name else "runtime") / name for name in SOURCES]


def compile_each(sources: list[Path], objects: list[Path], *options: str) -> None:
    """Compile sources that :func:`taken_along` has copied."""
    folder = next(source.parents[1] for source in sources if source.parent.name == "runtime")
    includes = (folder / "csrc", folder / "runtime")
    with ThreadPoolExecutor(2) as pool:
        done = [
            pool.submit(compile_with, includes, *options, "-c", str(source), "-o", str(made_of))
            for source, made_of in zip(sources, objects, strict=True)
        ]
    for one in done:
        one.result()


def precompile(header: Path, *flags: str) -> None:
    """Write and compile a header of the standard headers that programs read, half of what they compile for.

    Those of the project are left to each program: it has copies of its own.
    """
    texts = [Path(__file__).with_name("golden") / "main.cpp", CSRC / "threads" / "parallel.h"]
    texts += sorted(RUNTIME.iterdir())
    found = {line for file in texts for line in _STANDARD.findall(file.read_text(encoding="utf-8"))}
    header.write_text("\n".join(sorted(found)) + "\n", encoding="utf-8")
    compile_with((), *flags, "-x", "c++-header", "-c", str(header), "-o", f"{header}.gch")


def taking(objects: Iterable[Path], folder: Path) -> Path:
    """A launcher for CMake that takes these objects, named by their sources, in place of compiling anew."""
    (folder / "taken").mkdir()
    for made_of in objects:
        (folder / "taken" / made_of.name).symlink_to(made_of)
    launcher = folder / "take"
    launcher.write_text(_TAKE.format(objects=folder / "taken"))
    launcher.chmod(0o755)
    return launcher


def compile_with(includes: tuple[Path, ...], *arguments: str) -> None:
    """Run the compiler; a warning is an error."""
    ahead = [CCACHE] if CCACHE and "-c" in arguments else []
    command = [*ahead, "g++", *FLAGS, *(f"-I{folder}" for folder in includes), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def built(synthesis: Synthesis, store: Path, parts: Compiled, folder: Path, **options) -> Path:
    """Write a program for a store and build it."""
    write_openmp(synthesis, datasets.open_store(store), folder, **options)
    includes = (folder / "csrc", folder / "runtime")
    text = ("-include", str(parts.header), str(folder / "main.cpp"))
    compile_with(includes, *text, *map(str, parts.objects), "-o", str(folder / "train"))
    return folder


@dataclass(frozen=True)
class Wanted:
    """A program that tests ask for."""

    make: Callable[[], Synthesis]
    graph: Graph = GRAPH
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the function that writes it."""
    is_alone: bool = False
    """Whether it is compiled by itself when a test asks for it, as a test that is long does."""

    def stored(self, folder: Path) -> Graph:
        """The graph, in the store that :func:`store_of` the program's folder names."""
        return datasets.open_store(datasets.save_store(self.graph, store_of(folder)))


def store_of(folder: Path) -> Path:
    """Where the store lies that a program of :class:`Together` was written for."""
    return folder.with_suffix(".store")


class Together:
    """Programs that are compiled as one source, since most of the time goes into reading headers.

    One test process compiles them for all but those that are alone.

    Args:
        factory: makes the folder.
        name: its name.
        wanted: the programs.
        write: writes one of them to a folder.
        link: compiles a source to a file, with what is taken along in a folder.
    """

    def __init__(
        self,
        factory: pytest.TempPathFactory,
        name: str,
        wanted: Mapping[str, Wanted],
        write: Callable[[Wanted, Path], object],
        link: Callable[[Path, Path, Path], None],
    ) -> None:
        self._factory, self._name, self._wanted = factory, name, wanted
        self._write, self._link = write, link

    def __getitem__(self, name: str) -> Path:
        """The folder of a program, built."""
        numbers = {one: number for number, one in enumerate(self._wanted)}
        shared = [one for one, how in self._wanted.items() if not how.is_alone and TOGETHER.search(one)]
        is_alone = name not in shared
        together = [name] if is_alone else shared
        with by_one(self._factory, f"programs-{self._name}{numbers[name] if is_alone else ''}") as place:
            if not (place / "all").exists():
                self._build(place, {one: numbers[one] for one in together})
                (place / "all").touch()
        return place / str(numbers[name])

    def _build(self, place: Path, numbers: Mapping[str, int]) -> None:
        folders = [place / str(number) for number in numbers.values()]
        for name, folder in zip(numbers, folders, strict=True):
            self._write(self._wanted[name], folder)
            assert_complete(folder)
            for room in rooms_of(folder):  # programs take along equal copies
                shutil.copytree(room, place / room.name, dirs_exist_ok=True)
        mains = {f"program_{folder.name}": next(folder.glob("main.*")) for folder in folders}
        calls = [f'  if (name == "{name}") return {name}::main_{name}(count, words);\n' for name in mains]
        text = in_one({name: main.read_text(encoding="utf-8") for name, main in mains.items()})
        text += "\n#include <cstdlib>\nint main(int count, char** words) {\n"
        text += '  const std::string name = std::getenv("PROGRAM");\n'
        text += "".join(calls) + "  return 99;\n}\n"
        source = place / f"mains{next(iter(mains.values())).suffix}"
        source.write_text(text, encoding="utf-8")
        self._link(source, place, place / "programs")
        for name, main in mains.items():
            (train := main.with_name("train")).write_text(
                f'#!/bin/sh\nPROGRAM={name} exec "{place}/programs" "$@"\n'
            )
            train.chmod(0o755)


def rooms_of(folder: Path) -> list[Path]:
    """Folders of the sources that a program takes along."""
    return [room for room in folder.iterdir() if room.name.startswith(("csrc", "runtime"))]


def assert_complete(folder: Path) -> None:
    """A program's folder has what its sources include."""
    rooms = [folder, *rooms_of(folder)]
    for file in [path for path in folder.rglob("*") if path.suffix in {".cpp", ".cu", ".cuh", ".h", ".inl"}]:
        for named in re.findall(r'^\s*#\s*include "([^"]+)"', file.read_text(encoding="utf-8"), re.MULTILINE):
            assert any((room / named).is_file() for room in (*rooms, file.parent)), f"{file} includes {named}"


def in_one(mains: dict[str, str]) -> str:
    """Programs as one source, each in a namespace of its own."""
    include = re.compile(r"^#include .*\n", re.MULTILINE)
    includes = dict.fromkeys(line for text in mains.values() for line in include.findall(text))
    bodies = []
    for name, text in mains.items():
        assert text.count("\nint main(") == text.count("namespace program {") == 1
        body = include.sub("", text).replace("\nint main(", f"\nint main_{name}(")
        bodies.append(f"namespace {name} {{\nnamespace program {{ using namespace ::program; }}\n{body}}}\n")
    return "\n".join(["".join(includes), *bodies])


def openmp_programs(factory: pytest.TempPathFactory, name: str, wanted: Mapping[str, Wanted]) -> Together:
    """Programs for CPUs."""
    parts = compiled(factory)

    def write(one: Wanted, folder: Path) -> None:
        write_openmp(one.make(), one.stored(folder), folder, **one.options)

    def link(source: Path, taken: Path, to: Path) -> None:
        text = ("-include", str(parts.header), str(source))
        compile_with((taken / "csrc", taken / "runtime"), *text, *map(str, parts.objects), "-o", str(to))

    return Together(factory, name, wanted, write, link)


def run(folder: Path, *options: str, code: int = 0, **environment: str) -> str:
    """What a program says: its output, or its errors if it is to end with another code."""
    command = [str(folder / "train"), "--home", str(folder), *options]
    given = os.environ | environment
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=given)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def losses_of(said: str) -> list[float]:
    """The losses that a program prints."""
    return [float(loss) for loss in re.findall(r"^epoch \d+ loss (\S+)", said, re.MULTILINE)]


def numbers_of(said: str, name: str) -> list[float]:
    """The numbers behind a name at the lines' beginnings."""
    return [float(value) for value in re.findall(rf"^{name} (\S+)", said, re.MULTILINE)]


def assert_trained_alike(
    said: str, saved: Path, synthesis: Synthesis, graph: Graph, other: nn.Module
) -> None:
    """Assert that a program printed the engine's losses and accuracies, and saved weights as the engine's."""
    trained = train(synthesis, graph)
    assert losses_of(said) == pytest.approx(trained.losses, rel=1e-5)
    expected = [epoch["val"] for epoch in trained.accuracies if epoch]
    assert numbers_of(said, r"epoch \d+ val") == pytest.approx(expected, abs=1e-6)
    load_weights(other, saved)
    found = weights_of(other)
    for name, weight in weights_of(synthesis.model).items():
        torch.testing.assert_close(found[name], weight, rtol=1e-3, atol=1e-4)


def assert_golden(written: Callable[[], Any], main: str, golden: Path) -> None:
    """The same input gives the same bytes, which are those of the golden files."""
    once, again = (written() for _ in range(2))
    for name, part in ((main, "main"), ("CMakeLists.txt", "cmake"), ("README.md", "readme")):
        assert getattr(once, part) == getattr(again, part), name
        assert getattr(once, part) == (golden / name).read_text(encoding="utf-8"), f"{golden / name} differs"


def assert_left_alone(synthesis: Synthesis, record: Callable[[Synthesis], object]) -> None:
    """Recording a model changes neither its weights and modes nor torch's random state."""
    before = {name: weight.clone() for name, weight in weights_of(synthesis.model).items()}
    modes, state = [module.training for module in synthesis.model.modules()], torch.get_rng_state()
    record(synthesis)
    assert torch.equal(torch.get_rng_state(), state)
    assert modes == [module.training for module in synthesis.model.modules()]
    for name, weight in weights_of(synthesis.model).items():
        assert torch.equal(before[name], weight), name
