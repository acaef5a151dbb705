"""The CUDA target: a folder of CUDA C++ that trains on a GPU by the tasks of the full-graph engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch

from graphbraid.errors import ConfigError
from graphbraid.files.writing import require_absent
from graphbraid.fullgraph import CompileOptions
from graphbraid.graph import Graph
from graphbraid.signatures import typed
from graphbraid.synth.emit.folder import Sources, cuda_sources, files_of, rendered, write_folder
from graphbraid.synth.emit.gpu_calls import LONG_ROW, GpuCallWriter, LongRows
from graphbraid.synth.emit.memory import ArrayFile, Memory
from graphbraid.synth.emit.shares import whole
from graphbraid.synth.emit.writer import TemplateWriter
from graphbraid.synth.synthesis import Synthesis

TRANSPOSES = ("stored", "implicit")
_ALIGN, _WEIGHT_FLOATS = 256, 64
"""Bytes at which a part of the GPU's memory begins; floats at which a weight does."""


@typed
def write_cuda(
    synthesis: Synthesis,
    graph: Graph,
    folder: str | os.PathLike[str],
    *,
    options: CompileOptions | None = None,
    transpose: str = "stored",
) -> Path:
    """Write a program in CUDA C++ that trains a model on a graph, on one GPU.

    Args:
        synthesis: the model, whose weights the program begins from, and its recipe.
        graph: the graph, opened from the store that the program will be run with.
        folder: the folder to make, with its own ``README.md``.
        options: how to lower. If None, as :func:`graphbraid.compile` does: by the rates of this machine's
            processor.
        transpose: ``"stored"`` keeps the reversed edges on the GPU, where the graph is not undirected, and
            the same GPU gives the same bits. ``"implicit"`` does without: gradients are added along the edges
            by atomics, in no fixed order. Attention and maxima need them stored.

    Returns:
        The folder.

    Raises:
        NotLoweredError: the model needs what the target does not have; the message names it.
        ConfigError: there is no such ``transpose``.
        DataError: the graph does not fit the model or the recipe.
        ResourceError: the folder exists or cannot be written.
    """
    place = Path(folder)
    require_absent(place)
    made = sources_for_gpu(synthesis, graph, options, transpose=transpose)
    write_folder(made, synthesis.model, place)
    return place


def sources_for_gpu(
    synthesis: Synthesis, graph: Graph, options: CompileOptions | None = None, *, transpose: str = "stored"
) -> Sources:
    """Plan, record and write down a program without making a file."""
    if transpose not in TRANSPOSES:
        raise ConfigError(f"transpose must be {' or '.join(map(repr, TRANSPOSES))}; got {transpose!r}")
    lowered, long_rows = synthesis.lower(graph, options), LongRows(LONG_ROW)
    made: list[GpuCallWriter] = []

    def calls(memory: Memory) -> GpuCallWriter:
        made.append(GpuCallWriter(memory, long_rows, is_implicit=transpose == "implicit"))
        return made[-1]

    with torch.random.fork_rng(devices=[]):
        share = whole(lowered, synthesis.program(graph, training=False))
        writer = TemplateWriter(synthesis, share, lowered.nodes.numel(), calls)
        context = writer.context()
    files = writer.arrays.files
    memory = _memory(context, files, _workspace(made, context))
    context |= {
        "graph": graph.name,
        "ranks": 0,
        "inputs": None,
        "gpu": {
            "nbytes": sum(memory.values()),
            "workspace": memory["workspace"],
            "transpose": transpose,
        },
        "decisions": [*str(lowered).splitlines(), "GPU", *_decisions(made, memory, transpose)],
        "arrays": files,
    }
    context["paths"] = [context]
    plan = {array.file: array.tensor for array in files if not array.in_store}
    return rendered(context, files_of(cuda_sources(writer.kernels)), plan)


def _workspace(made: Sequence[GpuCallWriter], context: dict[str, Any]) -> int:
    """Return the bytes of scratch memory of the kernel that needs the most, loss and accuracy among them."""
    counts: list[int] = [rows["count"] for rows in (context["loss"], *context["splits"])]
    return 4 * max(*(calls.workspace for calls in made), *(count + count % 2 + 2 for count in counts))


def _memory(context: dict[str, Any], files: Sequence[ArrayFile], workspace: int) -> dict[str, int]:
    """Return the bytes that the program takes of the GPU, as ``runtime_cuda`` takes them."""
    floats = dict.fromkeys((True, False), 0)  # of what learns, and of what does not
    for weight in context["parameters"]:
        floats[weight["learns"]] += _aligned(prod(weight["shape"]), _WEIGHT_FLOATS)
    made = [count for step in context["steps"] for _, count in step["made"]]
    sizes = {
        "arrays": [array.tensor.numel() * array.tensor.element_size() for array in files],
        "weights": [4 * (4 * floats[True] + floats[False])],
        "arena": [context["nbytes"]],
        "between tasks": [4 * count for count in made],
        "workspace": [workspace],
    }
    return {name: sum(_aligned(size, _ALIGN) for size in of_name) for name, of_name in sizes.items()}


def _aligned(size: int, step: int) -> int:
    return -(-size // step) * step


def _decisions(made: Sequence[GpuCallWriter], memory: dict[str, int], transpose: str) -> list[str]:
    scattered = sum(calls.num_scattered for calls in made)
    how = {
        "stored": "gradients flow back over stored transposes, in order; the same GPU gives the same bits",
        "implicit": f"gradients scattered along the edges by atomics, in no fixed order, {scattered} times",
    }
    parts = ", ".join(f"{name} {nbytes:,}" for name, nbytes in memory.items())
    return [
        f"  - transpose: {transpose}: {how[transpose]}",
        f"  - long rows: a row of more than {LONG_ROW:,} edges is summed in parts",
        f"  - memory: {sum(memory.values()):,} bytes: {parts}",
    ]


__all__ = ["TRANSPOSES", "sources_for_gpu", "write_cuda"]
