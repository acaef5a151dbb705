"""Writer: describes a recorded training step and a recorded evaluation to the template of ``main.cpp``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.fullgraph import NotLoweredError
from graphbraid.fullgraph.lowering.lower_program import lower_for_evaluation
from graphbraid.fullgraph.lowering.lowered import Lowered
from graphbraid.fullgraph.step.arena import Buffer
from graphbraid.graph import Graph
from graphbraid.synth.emit.calls import Calls
from graphbraid.synth.emit.memory import Arrays, Memory, cpp_name
from graphbraid.synth.emit.recorded import RecordedStep, Task, record
from graphbraid.synth.recipe import OptimizerRecipe, Recipe
from graphbraid.synth.synthesis import Synthesis
from graphbraid.synth.weights import weights_of


@dataclass(frozen=True, slots=True)
class Pass:
    """A function of the program: the tasks of one pass over the model."""

    name: str
    comment: str
    tasks: list[dict[str, Any]]
    draws: bool = False
    """Whether it draws new masks of dropout."""


class Writer:
    """Records the training and the evaluation step and describes them to the template."""

    def __init__(self, synthesis: Synthesis, lowered: Lowered, graph: Graph) -> None:
        self._recipe, self._model = synthesis.recipe, synthesis.model
        self._lowered, self._graph = lowered, graph
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
            **self._weights(),
            "num_seeds": len(trains.seeds),
            "arrays": self.arrays.files,
        }

    def _weights(self) -> dict[str, Any]:
        """Return what is saved with the model: floats, of which parameters have gradients, and counters."""
        learned = set(self._steps[0].gradients.values())  # others PyTorch's optimizers leave as they are
        weights, of_dtype = weights_of(self._model), dict[torch.dtype, list[dict[str, Any]]]()
        for name, weight in weights.items():
            shown = {"name": name, "cpp": cpp_name(name), "shape": tuple(weight.shape)}
            of_dtype.setdefault(weight.dtype, []).append(shown | {"learns": name in learned})
        floats, counters = (of_dtype.pop(dtype, []) for dtype in (torch.float32, torch.int64))
        if of_dtype:
            raise NotLoweredError("synthesis", f"weights of {next(iter(of_dtype))}", "model.float()")
        return {"parameters": floats, "counters": counters}

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
            "made": calls.memory.made,
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
        width = self._steps[0].step.output.tensor.shape[1]
        if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < width:
            wrong = int(labels.min() if labels.min() < 0 else labels.max())
            raise DataError(
                f"a label in the rows {name!r} is {wrong}, and the model has {width} classes; leave out nodes"
                " without one"
            )
        made = [
            self.arrays.add(rows.clone(), f"{name}_rows"),
            self.arrays.add(labels.clone(), f"{name}_labels"),
        ]
        names = [f"plan.{array.name}.int64s()" for array in made]
        return {"rows": names[0], "labels": names[1], "count": rows.numel()}

    def _splits(self) -> list[str]:
        """Return the splits whose accuracy is shown at the end, or in between."""
        usual = [split for split in ("train", "val", "test") if split in self._graph.splits]
        asked = [split for splits in self._recipe.evaluations for split in splits]
        return list(dict.fromkeys((*usual, *asked)))


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
