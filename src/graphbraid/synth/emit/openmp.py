"""The OpenMP target: a folder of C++ that trains by the tasks of the full-graph engine.

Which form of the features is the fastest depends on their zeros and on the machine that runs the program.
So the training step is written for each form that could be the fastest. The program tries their products on
some of the features' rows before it reads anything else (``runtime/input_choice.h``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphbraid import arguments
from graphbraid.errors import ConfigError
from graphbraid.fullgraph import CompileOptions, Lowered, NotLoweredError
from graphbraid.fullgraph.lowering.passes import input_seconds, input_width, split
from graphbraid.fullgraph.program import INPUT, Aggregate, Hoisted, Linear, Program
from graphbraid.graph import Graph
from graphbraid.graph.scaled_features import Features
from graphbraid.ops.binary import dense_chunks, is_binary
from graphbraid.signatures import typed
from graphbraid.synth.emit.folder import Sources, openmp_sources, rendered, write_folder
from graphbraid.synth.emit.memory import ArrayFile, Arrays, Content
from graphbraid.synth.emit.writer import TemplateWriter, whole
from graphbraid.synth.synthesis import Synthesis

LOWERED = {"dense": "dense", "csr": "sparse", "bits": "binary"}
"""Input paths -> their names in lowering."""
MARGIN = 8.0
"""A path is written if, by this machine's rates, it is at most this many times slower than the fastest. The
ratios of rates differ less than that from machine to machine."""
MOST_DENSITY = 0.5
"""Above this share of nonzero features, CSR takes more memory than dense rows."""
TRIED_VALUES = 1 << 18
"""Number of nonzero features in the rows that a program tries."""
LEAST_ROWS = 256


@dataclass(frozen=True, eq=False, slots=True)
class InputPaths:
    """The input paths that a program has."""

    names: tuple[str, ...]
    why: str
    """Reason for these paths, as a clause."""


@dataclass(frozen=True, eq=False, slots=True)
class PathTrial:
    """The trial by which a program with several paths chooses one when it starts."""

    shape: tuple[int, int, int]
    """Rows and columns of the features, and columns of the weights that they are multiplied by."""
    dense_rows: int
    """Rows that the dense path multiplies: fewer than all if these are features that are aggregated once."""
    density: float
    """Share of the features that are not zero."""
    rows: tuple[ArrayFile, ...]
    """``indptr``, ``indices`` and values of some rows in CSR."""
    spared: int
    """Numbers that the other paths read in each step's forward aggregations and the dense path does not: it
    aggregates the features once, before the first step."""


def inputs_of(program: Program, lowered: Lowered, asked: Sequence[str] | None) -> InputPaths:
    """Return the input paths that a program gets; ConfigError if it cannot have one that is asked for.

    If ``asked`` is None, these are all that could be the fastest.
    """
    x = lowered.graph.x
    assert x is not None
    if asked is not None:
        return InputPaths(_checked(asked, x, _allowed(program, lowered)), "others were not asked for")
    if not _allowed(program, lowered):
        return InputPaths(("dense",), "the features are read by something other than a linear map")
    density = lowered.costs.density
    if density > MOST_DENSITY:
        name = next(name for name, path in LOWERED.items() if path == lowered.program.input_path)
        return InputPaths((name,), f"{100 * density:.3g}% of the features are not zero")
    costs, chosen = replace(lowered.costs, is_binary=True), split(program, lowered.costs)
    found = input_seconds(chosen, costs)
    product = 2 * costs.rates.multiply_seconds(costs.rows[0], costs.in_channels, input_width(chosen))
    # What the dense path saves elsewhere is added to each path, so that all seconds are above 0.
    spared = max(0.0, product - found["dense"])
    seconds = {name: found[path] + spared for name, path in LOWERED.items()}
    limit = MARGIN * min(seconds.values())
    # is_binary reads all features: it is asked only if bits could be the fastest.
    if seconds["bits"] <= limit and not is_binary(x):
        del seconds["bits"]
        limit = MARGIN * min(seconds.values())
    names = sorted((name for name in seconds if seconds[name] <= limit), key=lambda name: seconds[name])
    return InputPaths(tuple(names), f"the others take at least {MARGIN:g} times as long")


def trial_of(program: Program, lowered: dict[str, Lowered]) -> PathTrial:
    """Return the trial of a program's paths."""
    first = next(iter(lowered.values()))
    x, costs = first.graph.x, first.costs
    assert x is not None
    rows = zip(("trial_indptr", "trial_indices", "trial_values"), _some_rows(x, costs.density), strict=True)
    reads = {name: _aggregated(of_path) for name, of_path in lowered.items()}
    spared = max(reads.values()) - reads["dense"] if "dense" in reads else 0
    return PathTrial(
        shape=(costs.rows[0], costs.in_channels, input_width(split(program, costs))),
        dense_rows=_dense_rows(lowered["dense"]) if "dense" in lowered else 0,
        density=costs.density,
        rows=tuple(ArrayFile(name, f"{name}.npy", False, part) for name, part in rows),
        spared=spared,
    )


def _allowed(program: Program, lowered: Lowered) -> bool:
    """Return whether lowering may choose how the features are multiplied."""
    return (
        not program.by_relation
        and program.width(INPUT) > 0
        and "input_path" in lowered.options.passes
        and bool(input_width(split(program, lowered.costs)))
    )


def _checked(asked: Sequence[str], x: Features, allowed: bool) -> tuple[str, ...]:
    if not isinstance(asked, Sequence):
        raise ConfigError(f"inputs must be a list of input paths; got {arguments.shown(asked)}")
    for name in asked:
        if name not in LOWERED:
            raise ConfigError(f"there is no input path {name!r}; there are {', '.join(LOWERED)}")
    if not asked or len(set(asked)) < len(asked):
        raise ConfigError(f"input paths must be some of {', '.join(LOWERED)}, each once; got {list(asked)}")
    if set(asked) != {"dense"} and not allowed:
        what = f"the path {next(name for name in asked if name != 'dense')}"
        raise NotLoweredError(what, "something other than a linear map reads the features", "dense")
    if "bits" in asked and not is_binary(x):
        what = "a node's features other than zero are not all one number"
        raise NotLoweredError("the path bits", what, "csr or dense")
    return tuple(asked)


def _aggregated(lowered: Lowered) -> int:
    """Return how many numbers the aggregations of a step read in one direction."""
    program, edges = lowered.program, lowered.costs.edges
    return sum(
        edges[program.level(op.inputs[0])] * program.width(op.inputs[0])
        for op in program.ops
        if isinstance(op, Aggregate)
    )


def _dense_rows(lowered: Lowered) -> int:
    """Return the most rows that a weight multiplies, of the features or of values computed from them once."""
    program, costs = lowered.program, lowered.costs
    constant = {INPUT, *(op.out for op in program.ops if isinstance(op, Hoisted))}
    products = [op for op in program.ops if isinstance(op, Linear) and constant & set(op.inputs)]
    return max((costs.rows[program.level(op.out)] for op in products), default=costs.rows[0])


def _some_rows(x: Features, density: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return evenly spaced rows in CSR: int64 ``indptr``, int32 ``indices`` and float32 values."""
    num_rows, per_row = x.shape[0], max(density * x.shape[1], 1.0)
    count = min(num_rows, max(LEAST_ROWS, int(TRIED_VALUES / per_row)))
    ids = torch.arange(count) * num_rows // max(count, 1)
    lengths, columns, values = [], [torch.empty(0, dtype=torch.int64)], [torch.empty(0)]
    for _, rows in dense_chunks(x, ids):
        row, column = rows.nonzero(as_tuple=True)
        lengths.append(torch.bincount(row, minlength=len(rows)))
        columns.append(column)
        values.append(rows[row, column])
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), *lengths)).cumsum(0)
    return indptr, torch.cat(columns).to(torch.int32), torch.cat(values)


@typed
def write_openmp(
    synthesis: Synthesis,
    graph: Graph,
    folder: str | os.PathLike[str],
    *,
    options: CompileOptions | None = None,
    inputs: Sequence[str] | None = None,
) -> Path:
    """Write a program in C++ with OpenMP that trains a model on a graph.

    Args:
        synthesis: the model, whose weights the program begins from, and its recipe.
        graph: the graph, opened from the store that the program will be run with.
        folder: the folder to make, with its own ``README.md``.
        options: how to lower. If None, as :func:`graphbraid.compile` does.
        inputs: the forms in which the program can multiply the features, some of ``"dense"``, ``"csr"`` and
            ``"bits"``. It takes the fastest one where it runs. If None, all that could be the fastest.

    Returns:
        The folder.

    Raises:
        NotLoweredError: the target lacks something that the model needs; the message names it.
        ConfigError: there is no such form of the features.
        DataError: the graph does not fit the model or the recipe.
        ResourceError: the folder exists or cannot be written.
    """
    return write_folder(folder, synthesis.model, lambda: sources_of(synthesis, graph, options, inputs=inputs))


def sources_of(
    synthesis: Synthesis,
    graph: Graph,
    options: CompileOptions | None = None,
    *,
    inputs: Sequence[str] | None = None,
) -> Sources:
    """Plan, record and write down a program without making a file."""
    usual, program = synthesis.lower(graph, options), synthesis.program(graph)
    paths = inputs_of(program, usual, inputs)
    is_alone = len(paths.names) == 1 and inputs is None
    lowered, contexts, plan = dict[str, Lowered](), list[dict[str, Any]](), dict[str, Tensor]()
    kernels, written = set[str](), dict[Content, str]()
    for name in paths.names:
        path = None if is_alone else LOWERED[name]  # None: lowering chooses; evaluation may differ
        step = usual if is_alone else synthesis.lower(graph, options, input_path=path)
        arrays = Arrays(step.graph, "" if is_alone else f"{name}/", None if is_alone else written)
        read = synthesis.program(graph, training=False, input_path=path)
        writer = TemplateWriter(synthesis, whole(step, read), arrays=arrays)
        about = {"name": name, "decisions": str(step).splitlines(), "arrays": arrays.files}
        contexts.append(writer.context() | about)
        lowered[name] = step
        kernels |= writer.kernels
        plan |= {array.file: array.tensor for array in arrays.files if not array.in_store}
    trial = trial_of(program, lowered) if len(paths.names) > 1 else None
    plan |= {array.file: array.tensor for array in (trial.rows if trial else ())}
    context = contexts[0] | {
        "graph": graph.name,
        "paths": contexts,
        "inputs": {"names": paths.names, "why": paths.why, "trial": trial},
    }
    return rendered(context, openmp_sources(kernels, paths.names), plan)
