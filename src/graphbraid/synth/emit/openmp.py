"""The OpenMP target: a folder of C++ that trains by the tasks of the full-graph engine."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch
from torch import Tensor

import graphbraid
from graphbraid.errors import ConfigError, DataError
from graphbraid.files.writing import require_absent
from graphbraid.fullgraph import CompileOptions, NotLoweredError
from graphbraid.fullgraph.lowering.lower_program import lower_for_evaluation
from graphbraid.fullgraph.lowering.lowered import Lowered
from graphbraid.fullgraph.step.arena import Buffer
from graphbraid.graph import Graph
from graphbraid.signatures import typed
from graphbraid.synth.emit.calls import Calls
from graphbraid.synth.emit.memory import ArrayFile, Arrays, Memory, cpp_name, parameters_of
from graphbraid.synth.emit.recorded import RecordedStep, Task, record
from graphbraid.synth.recipe import OptimizerRecipe, Recipe
from graphbraid.synth.synthesis import Synthesis
from graphbraid.synth.weights import save_weights

FORMAT = 1
"""Version of what is written."""
_PACKAGE = Path(graphbraid.__file__).parent
_CSRC, _RUNTIME = _PACKAGE / "csrc", _PACKAGE / "synth" / "emit" / "runtime"
_SOURCES = ("arrays.cpp", "training.cpp", "kernels_dense.cpp", "kernels_epilogue.cpp", "kernels_spmm.cpp")
_OF_MAXIMUM = "kernels_spmm_max.cpp"
_KERNEL_SOURCES = ("threads.cpp", "variants.cpp")
_INCLUDE = re.compile(r'^\s*#(?:include|define GB_KERNEL_FILE) "([^"]+)"', re.MULTILINE)


@dataclass(frozen=True, eq=False, slots=True)
class Sources:
    """A synthesised program that is not yet written."""

    main: str
    cmake: str
    readme: str
    sources: tuple[Path, ...]
    """Files of the kernels and of the runtime, copied as they are."""
    arrays: tuple[ArrayFile, ...]


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
    made = sources_of(synthesis, graph, options)
    for name in ("csrc", "runtime", "plan"):
        (place / name).mkdir(parents=True)
    (place / "main.cpp").write_text(made.main, encoding="utf-8")
    (place / "CMakeLists.txt").write_text(made.cmake, encoding="utf-8")
    (place / "README.md").write_text(made.readme, encoding="utf-8")
    for source in made.sources:
        shutil.copyfile(source, place / source.parent.name / source.name)
    for array in made.arrays:
        if not array.in_store:
            np.save(place / "plan" / array.file, array.tensor.detach().contiguous().numpy())
    save_weights(synthesis.model, place / "weights")
    return place


def sources_of(synthesis: Synthesis, graph: Graph, options: CompileOptions | None = None) -> Sources:
    """Plan, record and write down a program without making a file."""
    lowered = synthesis.lower(graph, options)
    with torch.random.fork_rng(devices=[]):
        writer = _Writer(synthesis, lowered, graph)
        context = writer.context()
    sources = _files_of(writer.kernels)
    title = f"{synthesis.recipe.name}: full-graph training"
    context |= {"title": title, "version": graphbraid.__version__, "format": FORMAT, "graph": graph.name}
    context["sources"] = [f"{s.parent.name}/{s.name}" for s in sources if s.suffix == ".cpp"]
    main, cmake, readme = (_rendered(name, context) for name in ("main.cpp", "CMakeLists.txt", "README.md"))
    return Sources(main, cmake, readme, tuple(sources), tuple(writer.arrays.files))


@dataclass(frozen=True, slots=True)
class Pass:
    """A function of the program: the tasks of one pass over the model."""

    name: str
    comment: str
    tasks: list[dict[str, Any]]
    draws: bool = False
    """Whether it draws new masks of dropout."""


class _Writer:
    """Records the training and the evaluation step and describes them to the template."""

    def __init__(self, synthesis: Synthesis, lowered: Lowered, graph: Graph) -> None:
        self._recipe, self._model, self._lowered, self._graph = (
            synthesis.recipe,
            synthesis.model,
            lowered,
            graph,
        )
        read = synthesis.program(graph, training=False)
        program, blocks = lower_for_evaluation(lowered, read)
        train = RecordedStep(lowered.program, lowered.graph, lowered.blocks, training=True)
        evaluate = RecordedStep(program, lowered.graph, blocks, training=False)
        self._renumbered = lowered.row_of if blocks is lowered.blocks else None
        self._steps = record(train, self._model), record(evaluate, self._model)
        self.arrays = Arrays(lowered.graph)
        self._calls = [
            Calls(Memory(standing, self.arrays, arena))
            for standing, arena in zip(self._steps, ("train", "evaluate"), strict=True)
        ]

    @property
    def kernels(self) -> set[str]:
        """Names of the kernels that the program calls."""
        return self._calls[0].kernels | self._calls[1].kernels

    def context(self) -> dict[str, Any]:
        """Return what the template shows."""
        (train, evaluate), (trains, evaluates) = self._steps, self._calls
        forward = self._tasks(trains, train.recording.forward, lowered_text(self._lowered))
        backward = self._tasks(trains, train.recording.backward, {})
        predict = self._tasks(evaluates, evaluate.recording.forward, {})
        passes = [
            Pass("forward", "The outputs.", forward, draws=bool(trains.seeds)),
            Pass("backward", "The gradients of all parameters, from that of the outputs.", backward),
        ]
        predicts = [Pass("predict", "The outputs of all nodes, without dropout.", predict)]
        steps = [
            self._step("The training step's arena", trains, train.step, passes),
            self._step("The arena of an evaluation", evaluates, evaluate.step, predicts),
        ]
        loss, splits = self._loss(), [self._split(split) for split in self._splits()]
        return {
            "recipe": self._recipe,
            "decisions": str(self._lowered).splitlines(),
            "steps": steps,
            "loss": loss,
            "splits": splits,
            "optimizer": _optimizer(self._recipe.optimizer),
            "evaluations": _evaluations(self._recipe),
            "parameters": [
                {"name": name, "cpp": cpp_name(name), "shape": tuple(p.shape)}
                for name, p in parameters_of(self._model)
            ],
            "num_seeds": len(trains.seeds),
            "arrays": self.arrays.files,
        }

    def _tasks(self, calls: Calls, tasks: Sequence[Task], texts: dict[str, str]) -> list[dict[str, Any]]:
        written = [(task.name, calls.lines(task)) for task in tasks]
        return [{"comment": texts.get(name, name), "lines": lines} for name, lines in written if lines]

    def _step(self, title: str, calls: Calls, step: RecordedStep, passes: list[Pass]) -> dict[str, Any]:
        places = [
            {
                "name": name,
                "offset": buffer.offset,
                "what": f"{buffer.name}: {_shown(buffer)}",
            }
            for buffer, name in calls.memory.names
        ]
        arena = calls.memory.arena
        return {
            "title": title,
            "arena": arena,
            "places": places,
            "nbytes": step.arena.nbytes,
            "passes": passes,
        }

    def _loss(self) -> dict[str, Any]:
        lowered, (train, _), memory = self._lowered, self._steps, self._calls[0].memory
        assert self._graph.y is not None
        count = lowered.nodes.numel()
        rows = torch.arange(count) if lowered.rows is None else lowered.rows
        at = len(train.recording.forward)  # the task between the passes
        return {
            "output": memory.matrix(train.step.output.tensor, at),
            "grad": memory.matrix(train.step.output_grad, at),
            **self._rows(rows, self._graph.y[lowered.nodes], "train"),
        }

    def _split(self, split: str) -> dict[str, Any]:
        evaluate, memory = self._steps[1], self._calls[1].memory
        nodes = self._graph.split(split).long()
        rows = nodes if self._renumbered is None else self._renumbered[nodes]
        assert self._graph.y is not None
        at = len(evaluate.recording.forward) - 1
        output = memory.matrix(evaluate.step.output.tensor, at)
        return {"name": split, "output": output, **self._rows(rows, self._graph.y[nodes], f"split_{split}")}

    def _rows(self, rows: Tensor, labels: Tensor, name: str) -> dict[str, Any]:
        rows, labels = rows.long().contiguous(), labels.long().contiguous()
        if labels.numel() and int(labels.min()) < 0:
            raise DataError(
                f"a label is {int(labels.min())} in the rows {name!r}; leave out nodes without one"
            )
        made = [
            self.arrays.add(rows.clone(), f"{name}_rows"),
            self.arrays.add(labels.clone(), f"{name}_labels"),
        ]
        names = [f"plan.{array.name}.int64s()" for array in made]
        return {"rows": names[0], "labels": names[1], "count": rows.numel()}

    def _splits(self) -> list[str]:
        return [split for split in ("train", "val", "test") if split in self._graph.splits]


def _shown(buffer: Buffer) -> str:
    shape = " x ".join(map(str, buffer.shape))
    return f"{shape}, tasks {buffer.first} to {buffer.last}"


def lowered_text(lowered: Lowered) -> dict[str, str]:
    """Return the lines of a lowered program by the value that they compute."""
    lines = str(lowered.program).splitlines()[1:]
    return {line.split(" = ", 1)[0]: line for line in lines}


def _optimizer(recipe: OptimizerRecipe) -> dict[str, str]:
    kind = {"sgd": "kSgd", "adam": "kAdam", "adamw": "kAdamW"}[recipe.kind]
    numbers = (recipe.learning_rate, recipe.momentum, *recipe.betas, recipe.weight_decay, recipe.eps)
    return {"kind": kind, "numbers": ", ".join(map(repr, numbers))}


def _evaluations(recipe: Recipe) -> list[dict[str, Any]]:
    """Return the splits that are evaluated together, each with the condition on the epoch.

    Raises:
        NotLoweredError: no number divides the epochs of an evaluation.
    """
    epochs_of: dict[tuple[str, ...], list[int]] = {}
    for epoch, splits in enumerate(recipe.evaluations):
        if splits:
            epochs_of.setdefault(splits, []).append(epoch)
    return [{"splits": s, "condition": _condition(epochs, recipe.epochs)} for s, epochs in epochs_of.items()]


def _condition(epochs: list[int], num_epochs: int) -> str:
    every = epochs[1] - epochs[0] if len(epochs) > 1 else num_epochs
    first = epochs[0] % every
    if epochs != list(range(first, num_epochs, every)):
        what = "evaluations at epochs without a fixed distance"
        raise NotLoweredError("synthesis", what, "a condition such as epoch % 10 == 9")
    return "true" if every == 1 else f"epoch % {every} == {first}"


def _files_of(kernels: Iterable[str]) -> list[Path]:
    """Return the runtime's files, and the kernels' files that they include, in order of their names."""
    sources = [*_SOURCES, *([_OF_MAXIMUM] if any("max" in kernel for kernel in kernels) else [])]
    wanted = [_RUNTIME / name for name in sources] + [_CSRC / name for name in _KERNEL_SOURCES]
    found: dict[str, Path] = {}
    while wanted:
        file = wanted.pop()
        if file.name in found:
            continue
        if not file.is_file():
            raise ConfigError(f"this installation lacks {file}; install graphbraid from its source")
        found[file.name] = file
        for name in _INCLUDE.findall(file.read_text(encoding="utf-8")):
            inner = _RUNTIME / name if (_RUNTIME / name).is_file() else _CSRC / name
            wanted.append(inner)
    return sorted(found.values(), key=lambda file: (file.parent.name, file.name))


def _rendered(name: str, context: dict[str, Any]) -> str:
    templates = resources.files(__package__).joinpath("templates")
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    text = templates.joinpath(f"{name}.j2").read_text(encoding="utf-8")
    return environment.from_string(text).render(**context)


__all__ = ["FORMAT", "Sources", "sources_of", "write_openmp"]
