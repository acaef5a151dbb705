"""The MPI target: one program for several ranks, each with its own part of the graph."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from graphbraid.distributed import Partition
from graphbraid.files.writing import require_absent
from graphbraid.fullgraph import CompileOptions, Lowered
from graphbraid.graph import Graph
from graphbraid.signatures import typed
from graphbraid.synth.emit.folder import Sources, files_of, openmp_sources, rendered, write_folder
from graphbraid.synth.emit.memory import digest_of
from graphbraid.synth.emit.merging import Merging
from graphbraid.synth.emit.shares import RankShare, share_of
from graphbraid.synth.emit.writer import TemplateWriter
from graphbraid.synth.synthesis import Synthesis

_SOURCES = ("exchange.cpp", "ranks.cpp")
_NORM_SOURCES = ("ranks_norm.cpp",)


@typed
def write_mpi(
    synthesis: Synthesis,
    graph: Graph,
    folder: str | os.PathLike[str],
    partition: Partition,
    *,
    options: CompileOptions | None = None,
) -> Path:
    """Write a program in C++ with MPI, and OpenMP inside, that trains a model on a divided graph.

    Args:
        synthesis: the model, whose weights the program begins from, and its recipe.
        graph: the graph.
        folder: the folder to make, with its own ``README.md`` and a folder of arrays for each rank.
        partition: the owner of each node; the program runs on as many ranks as it has parts.
        options: how to lower. If None, as :func:`graphbraid.compile` does.

    Returns:
        The folder.

    Raises:
        NotLoweredError: the model needs what the target does not have, or cannot be divided among ranks; the
            message names it.
        ConfigError: the partition is of another number of nodes.
        DataError: the graph does not fit the model or the recipe.
        ResourceError: the folder exists or cannot be written.
    """
    place = Path(folder)
    require_absent(place)
    write_folder(sources_of_ranks(synthesis, graph, partition, options), synthesis.model, place)
    return place


def sources_of_ranks(
    synthesis: Synthesis, graph: Graph, partition: Partition, options: CompileOptions | None = None
) -> Sources:
    """Plan, record and write down the program of all ranks without making a file."""
    lowered, num_ranks = synthesis.lower(graph, options), partition.num_parts
    read = synthesis.program(graph, training=False)
    contexts, files, kernels, decisions = [], [], set[str](), str(lowered).splitlines()
    decisions.append(f"Divided among {num_ranks} ranks by {partition.strategy}")
    for rank in range(num_ranks):
        share = share_of(lowered, read, partition, rank)
        with torch.random.fork_rng(devices=[]):
            writer = TemplateWriter(synthesis, share, lowered.nodes.numel())
            contexts.append(writer.context())
        files.append(writer.arrays.files)
        kernels |= writer.kernels
        decisions.append(f"  rank {rank}: {_rows(share)}")
    merging = Merging(files)
    context: dict[str, Any] = merging.merged(contexts)
    numbers = [merging.numbers(rank) for rank in range(num_ranks)]
    context |= {
        "graph": graph.name,
        "ranks": num_ranks,
        "gpu": None,
        "inputs": None,
        "normalises": "batch_norm" in kernels,
        "decisions": decisions,
        "arrays": merging.arrays,
        "num_sizes": merging.num_sizes,
        "numbers": [f"0x{digest_of(of_rank):016x}" for of_rank in numbers],
    }
    context["paths"] = [context]
    plan = {f"rank-{rank}/numbers.npy": of_rank for rank, of_rank in enumerate(numbers)}
    for array in merging.arrays:
        plan |= {f"rank-{rank}/{array.name}.npy": values for rank, values in enumerate(array.tensors)}
    more = (*_SOURCES, *(_NORM_SOURCES if "batch_norm" in kernels else ()))
    return rendered(context, files_of([*openmp_sources(kernels), *more]), plan)


def _rows(share: RankShare) -> str:
    lowered: Lowered = share.lowered
    levels = range(len(lowered.blocks) + 1)
    rows = " -> ".join(f"{lowered.num_rows(level):,}" for level in levels)
    return f"{lowered.nodes.numel():,} training nodes; rows per level {rows}"


__all__ = ["sources_of_ranks", "write_mpi"]
