"""``graphbraid synth``: write a program in C++ that trains without Python."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphbraid.cli.common import (
    DebugOption,
    JsonOption,
    err_console,
    flag,
    guarded,
    path_flag,
    path_given,
    print_json,
    say,
)
from graphbraid.errors import ConfigError, DataError, ResourceError

if TYPE_CHECKING:
    from graphbraid.distributed import Partition
    from graphbraid.graph import Graph
    from graphbraid.synth.language.syntax import Function
    from graphbraid.synth.recipe import Recipe

_HIDDEN = 32
_TARGETS = ("openmp", "cuda", "mpi")


@guarded
def synth(
    *,
    program: Annotated[
        Path | None, typer.Argument(help="The program's file.", metavar="[PROGRAM]", parser=path_given)
    ] = None,
    data: Path = path_flag(..., "--data -d", "Store to train on.", metavar="STORE"),
    out: Path = path_flag(..., "--out -o", "Folder to make.", metavar="FOLDER"),
    target: str = flag("openmp", "", "What to write: openmp, cuda or mpi."),
    ranks: int | None = flag(None, "", "Of mpi: number of ranks, among which the graph is divided."),
    partition: Path | None = path_flag(
        None, "", "Of mpi: a partition's folder, a rank for each of its parts.", metavar="FOLDER"
    ),
    inputs: str | None = flag(
        None,
        "--input",
        "For openmp: forms of the features, some of dense,csr,bits. The program tries them as it starts "
        "and takes the fastest. (default: all that could be the fastest)",
    ),
    model: str | None = flag(None, "", "Take the usual program of gcn, sage, gin or gat instead of a file."),
    layers: str | None = flag(
        None,
        "",
        "Columns of the features, of each hidden layer and of the output. (default: the store's and "
        f"one hidden layer of {_HIDDEN})",
    ),
    settings: list[str] | None = flag(
        None, "--set", "NAME=NUMBER for totalEpoch and the program's own numbers; repeat it."
    ),
    build: bool = flag(False, "--build", "Build it with CMake, too."),
    run: bool = flag(False, "--run", "Build it and train."),
    json_output: JsonOption = False,
    debug: DebugOption = False,  # noqa: ARG001
) -> None:
    """Write a program in C++ with OpenMP, CUDA or MPI that trains a model on a store, without Python.

    The language is described in docs/synthesis.md. The folder has a README with the two commands that build
    and run it.

    Examples:

        graphbraid synth sage.gnn --data stores/web --out build_me

        graphbraid synth sage.gnn -d stores/web --layers 128,64,40 --set totalEpoch=50 --out build_me --run

        graphbraid synth --model gcn -d stores/web --layers 128,32,40 --out build_me

        graphbraid synth --model gcn -d stores/web --input dense,csr --out build_me

        graphbraid synth --model gcn -d stores/web --target cuda --out build_me

        graphbraid synth --model gcn -d stores/web --target mpi --ranks 4 --out build_me
    """  # noqa: D412  (typer shows the blank line between examples)
    if target not in _TARGETS:
        names = f"{', '.join(_TARGETS[:-1])} or {_TARGETS[-1]}"
        raise ConfigError(f"the target must be {names}; got {target!r}")
    _check_options(target, ranks, partition, inputs)
    paths = None if inputs is None else inputs.split(",")
    numbers = dict(_setting(text) for text in settings or [])
    from graphbraid import synth as room
    from graphbraid.fullgraph import NotLoweredError

    function = _function(program, model)
    graph = _opened(data)
    widths = _widths(layers, graph)
    synthesis = room.from_program(function, widths, numbers)
    _check_splits(function.source, synthesis.recipe, graph)
    divided = _divided(graph, ranks, partition) if target == "mpi" else None
    try:
        if divided is not None:
            folder = room.write_mpi(synthesis, graph, out, divided)
        elif target == "cuda":
            folder = room.write_cuda(synthesis, graph, out)
        else:
            folder = room.write_openmp(synthesis, graph, out, inputs=paths)
    except NotLoweredError as error:
        advice = f"; it needs {error.needed}" if error.needed else ""
        raise ConfigError(
            f"{function.source} cannot be written for {target}: {error.reason}{advice}"
        ) from error
    err = err_console()
    for place, note in function.notes:
        say(err, "[yellow]note:[/] {}", f"{function.source}:{place.line}: {note}")
    if build or run:
        _called(["cmake", "-S", str(folder), "-B", str(folder / "build")])
        _called(["cmake", "--build", str(folder / "build"), "-j", str(os.cpu_count() or 1)])
    if run:
        built = str(folder / "build" / "train")
        if divided is None:
            _called([built, "--data", str(data), "--home", str(folder)])
        else:
            _called(["mpirun", "-n", str(divided.num_parts), built, "--home", str(folder)])
    if json_output:
        shown = {"out": str(folder), "target": target, "layers": list(widths), "built": build or run}
        print_json(shown if divided is None else shown | {"ranks": divided.num_parts})
    else:
        say(err, "wrote {}; its README.md has the commands that build and run it", folder)


def _opened(data: Path) -> Graph:
    """Open the store; DataError if there is none, or it is damaged."""
    from graphbraid import datasets

    if data.is_file() or (str(data) in datasets.EMBEDDED and not data.exists()):
        raise DataError(
            f"a program reads a store, and {data} is none; make one of it: graphbraid convert {data} STORE"
        )
    return datasets.open_store(data)


def _check_splits(source: str, recipe: Recipe, graph: Graph) -> None:
    for split in (recipe.train_split, *recipe.steps.splits):
        if split not in graph.splits:
            raise DataError(
                f"{source} asks for the split {split}, and the store has {', '.join(graph.splits) or 'none'}"
                "; make the store with one: graphbraid convert --split COLUMN, or --split-seed SEED"
            )


def _check_options(target: str, ranks: int | None, partition: Path | None, inputs: str | None) -> None:
    if target != "mpi" and (ranks is not None or partition is not None):
        raise ConfigError(f"--ranks and --partition are of --target mpi; the target is {target}")
    if target == "mpi" and ranks is None and partition is None:
        raise ConfigError("--target mpi needs --ranks, or --partition with a partition's folder")
    if target != "openmp" and inputs is not None:
        raise ConfigError(f"--input is of --target openmp; the target is {target}")


def _divided(graph: Graph, ranks: int | None, folder: Path | None) -> Partition:
    """Return the partition of a folder, or a new one."""
    from graphbraid import distributed
    from graphbraid.arguments import as_count
    from graphbraid.distributed.partitioning.records import MOST_PARTS

    if folder is None:
        assert ranks is not None
        return distributed.partition(graph, as_count(ranks, "--ranks", least=1, most=MOST_PARTS))
    found = distributed.SavedPartition(folder, graph).partition()
    if ranks is not None and ranks != found.num_parts:
        raise ConfigError(f"{folder} has {found.num_parts} parts; leave out --ranks {ranks}")
    return found


def _function(program: Path | None, model: str | None) -> Function:
    """Return the program of a file, or the usual one of a model."""
    from graphbraid import synth as room

    if program is not None and model is not None:
        raise ConfigError(f"{program.name} names its model; leave out --model")
    if program is not None:
        return room.read_program(program)
    if model is not None:
        return room.standard_program(model)
    raise ConfigError("name a program's file, or take the usual program of a model, such as --model gcn")


def _setting(text: str) -> tuple[str, int | float]:
    name, _, value = text.partition("=")
    for kind in (int, float):
        try:
            return name.strip(), kind(value)
        except ValueError:
            continue
    raise ConfigError(f"--set takes NAME=NUMBER; got {text!r}")


def _widths(layers: str | None, graph: Graph) -> tuple[int, ...]:
    if layers is None:
        return graph.num_features, _HIDDEN, graph.num_classes
    try:
        return tuple(int(width) for width in layers.split(","))
    except ValueError:
        raise ConfigError(f"--layers takes numbers such as 128,32,40; got {layers!r}") from None


def _called(command: list[str]) -> None:
    """Run a command whose output goes to standard error; ResourceError if it is not there, or it fails."""
    try:
        done = subprocess.run(command, stdout=2, check=False)
    except OSError as error:
        raise ResourceError(f"cannot run {command[0]}: {error.strerror or error}") from error
    if done.returncode != 0:
        raise ResourceError(f"{command[0]} failed with code {done.returncode}; its output says why")
