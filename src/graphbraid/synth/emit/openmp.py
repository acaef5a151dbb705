"""The OpenMP target: a folder of C++ that trains by the tasks of the full-graph engine."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from graphbraid.files.writing import require_absent
from graphbraid.fullgraph import CompileOptions
from graphbraid.graph import Graph
from graphbraid.signatures import typed
from graphbraid.synth.emit.folder import Sources, files_of, openmp_sources, rendered, write_folder
from graphbraid.synth.emit.shares import whole
from graphbraid.synth.emit.writer import Writer
from graphbraid.synth.synthesis import Synthesis


@typed
def write_openmp(
    synthesis: Synthesis,
    graph: Graph,
    folder: str | os.PathLike[str],
    *,
    options: CompileOptions | None = None,
) -> Path:
    """Write a program in C++ with OpenMP that trains a model on a graph.

    Args:
        synthesis: the model, whose weights the program begins from, and its recipe.
        graph: the graph, opened from the store that the program will be run with.
        folder: the folder to make, with its own ``README.md``.
        options: how to lower. If None, as :func:`graphbraid.compile` does.

    Returns:
        The folder.

    Raises:
        NotLoweredError: the model needs what the target does not have; the message names it.
        DataError: the graph does not fit the model or the recipe.
        ResourceError: the folder exists or cannot be written.
    """
    place = Path(folder)
    require_absent(place)
    write_folder(sources_of(synthesis, graph, options), synthesis.model, place)
    return place


def sources_of(synthesis: Synthesis, graph: Graph, options: CompileOptions | None = None) -> Sources:
    """Plan, record and write down a program without making a file."""
    lowered = synthesis.lower(graph, options)
    with torch.random.fork_rng(devices=[]):
        share = whole(lowered, synthesis.program(graph, training=False))
        writer = Writer(synthesis, share, lowered.nodes.numel())
        context = writer.context()
    context |= {
        "graph": graph.name,
        "ranks": 0,
        "gpu": None,
        "decisions": str(lowered).splitlines(),
        "arrays": writer.arrays.files,
    }
    plan = {array.file: array.tensor for array in writer.arrays.files if not array.in_store}
    return rendered(context, files_of(openmp_sources(writer.kernels)), plan)


__all__ = ["sources_of", "write_openmp"]
