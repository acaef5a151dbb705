"""The OpenMP target: a folder of C++ that trains by the tasks of the full-graph engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphbraid.files.writing import require_absent
from graphbraid.fullgraph import CompileOptions, Lowered
from graphbraid.graph import Graph
from graphbraid.signatures import typed
from graphbraid.synth.emit.folder import Sources, files_of, openmp_sources, rendered, write_folder
from graphbraid.synth.emit.inputs import LOWERED, inputs_of, shown, trial_of
from graphbraid.synth.emit.memory import Arrays, Content
from graphbraid.synth.emit.shares import whole
from graphbraid.synth.emit.writer import TemplateWriter
from graphbraid.synth.synthesis import Synthesis


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
            ``"bits"``; it takes the one that is the fastest where it runs. If None, all that could be.

    Returns:
        The folder.

    Raises:
        NotLoweredError: the model needs what the target does not have; the message names it.
        ConfigError: there is no such form of the features.
        DataError: the graph does not fit the model or the recipe.
        ResourceError: the folder exists or cannot be written.
    """
    place = Path(folder)
    require_absent(place)
    write_folder(sources_of(synthesis, graph, options, inputs=inputs), synthesis.model, place)
    return place


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
    made = _Made(synthesis, graph)
    if len(paths.names) == 1 and not paths.is_asked:
        made.add(paths.names[0], usual, None)
    else:
        for name in paths.names:
            made.add(name, synthesis.lower(graph, options, input_path=LOWERED[name]), LOWERED[name])
    trial = trial_of(program, made.lowered) if len(paths.names) > 1 else None
    tried = trial.rows if trial else ()
    context = made.contexts[0] | {
        "graph": graph.name,
        "ranks": 0,
        "gpu": None,
        "paths": made.contexts,
        "inputs": shown(paths, trial),
    }
    plan = made.plan | {array.file: array.tensor for array in tried}
    return rendered(context, files_of(openmp_sources(made.kernels, paths.names)), plan)


class _Made:
    """The training steps of a program, one for each input path, in one folder."""

    def __init__(self, synthesis: Synthesis, graph: Graph) -> None:
        self._synthesis, self._graph = synthesis, graph
        self._written: dict[Content, str] = {}
        self.lowered: dict[str, Lowered] = {}
        self.contexts: list[dict[str, Any]] = []
        self.kernels: set[str] = set()
        self.plan: dict[str, Tensor] = {}

    def add(self, name: str, lowered: Lowered, input_path: str | None) -> None:
        """Record the step of a lowered program.

        Args:
            name: the input path's.
            lowered: the program.
            input_path: what lowering was asked for; if None, the evaluation has a path of its own.
        """
        is_alone = input_path is None
        arrays = Arrays(lowered.graph, "" if is_alone else f"{name}/", None if is_alone else self._written)
        read = self._synthesis.program(self._graph, training=False, input_path=input_path)
        with torch.random.fork_rng(devices=[]):
            writer = TemplateWriter(
                self._synthesis, whole(lowered, read), lowered.nodes.numel(), arrays=arrays
            )
            context = writer.context()
        context |= {"name": name, "decisions": str(lowered).splitlines(), "arrays": arrays.files}
        self.lowered[name] = lowered
        self.contexts.append(context)
        self.kernels |= writer.kernels
        self.plan |= {array.file: array.tensor for array in arrays.files if not array.in_store}


__all__ = ["sources_of", "write_openmp"]
