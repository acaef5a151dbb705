"""TemplateWriter: describes the recorded steps of training and evaluation to the template of ``main.cpp``.

A rank trains and evaluates its share of a program. With one rank, the share is the whole program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphbraid.distributed import Communicator, Partition
from graphbraid.distributed.ranks.transport import Pending, Reduction, Transport
from graphbraid.errors import DataError
from graphbraid.fullgraph import Lowered, NotLoweredError, distribute
from graphbraid.fullgraph.lowering.levels import Blocks
from graphbraid.fullgraph.lowering.lower_program import lower_for_evaluation
from graphbraid.fullgraph.program import Program
from graphbraid.fullgraph.ranks.distribute import divided
from graphbraid.fullgraph.step.plan import StepRequest
from graphbraid.fullgraph.step.tasks import Buffer
from graphbraid.ops.gather import places_of
from graphbraid.synth.emit.calls import CallWriter, Written
from graphbraid.synth.emit.layout import Fields
from graphbraid.synth.emit.memory import Arrays, Memory, cpp_name
from graphbraid.synth.emit.recorded import RecordedStep, RecordedTask, record
from graphbraid.synth.language.syntax import LOSSES, SPLITS
from graphbraid.synth.synthesis import Synthesis, targets_of
from graphbraid.synth.weights import weights_of


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class RankShare:
    """The steps that one rank runs, and the nodes whose outputs it computes."""

    lowered: Lowered
    """The training step, with the rank's own training nodes."""
    program: Program
    blocks: Blocks
    """Its edges from each level to the next."""
    row_of: Tensor | None
    """``(num_nodes,)`` int64 row of each node in an evaluation, -1 if another rank has it. None: row v is
    node v."""
    comm: Communicator | None = None
    """The ranks; the share is that of one of them. If None, there is one rank."""


def whole(lowered: Lowered, read: Program) -> RankShare:
    """Return the share of the only rank."""
    program, blocks = lower_for_evaluation(lowered, read)
    row_of = lowered.row_of if blocks is lowered.blocks else None
    return RankShare(lowered=lowered, program=program, blocks=blocks, row_of=row_of)


def share_of(lowered: Lowered, read: Program, partition: Partition, rank: int) -> RankShare:
    """Return the share of one of several ranks; see :func:`whole`."""
    mine = distribute(lowered, partition, rank)
    program, blocks = divided(*lower_for_evaluation(lowered, read), partition, rank)
    nodes = blocks[-1].after()[1]
    assert nodes is not None
    return RankShare(
        lowered=mine,
        program=program,
        blocks=blocks,
        row_of=places_of(nodes, lowered.graph.num_nodes, torch.int64),
        comm=Communicator(Unheard(rank, partition.num_parts)),
    )


class Unheard(Transport):
    """The transport of a rank whose step is recorded without the other ranks; it receives made-up values."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.rank, self.size = rank, size

    def twin(self) -> Unheard:
        """Return another one."""
        return Unheard(self.rank, self.size)

    def all_reduce(self, tensor: Tensor, op: Reduction) -> Pending:
        """Add 1 for the other ranks, so that the sum of all ranks' rows is larger than this rank's number."""
        tensor.add_(1)
        return Pending()

    def all_to_all(
        self, send: Tensor, send_bytes: Sequence[int], receive: Tensor, receive_bytes: Sequence[int]
    ) -> Pending:
        """Receive zeros."""
        receive.zero_()
        return Pending()


@dataclass(frozen=True, slots=True)
class TaskText:
    """A task of a pass."""

    comment: str
    calls: list[Written]
    complete: list[str]
    """Parameters whose gradients no later task touches."""


@dataclass(frozen=True, slots=True)
class PassText:
    """A function of the program: the tasks of one pass over the model."""

    name: str
    comment: str
    tasks: list[TaskText]
    draws: bool = False
    """Whether it draws new masks of dropout."""


class TemplateWriter:
    """Records the training and the evaluation step and describes them to the template.

    ``share`` is the part of the program that one rank trains and evaluates. New arrays are added to
    ``arrays``.
    """

    def __init__(
        self,
        synthesis: Synthesis,
        share: RankShare,
        make_calls: Callable[[Memory], CallWriter] = CallWriter,
        arrays: Arrays | None = None,
    ) -> None:
        self._recipe, self._model = synthesis.recipe, synthesis.model
        self._share, lowered = share, share.lowered
        self._graph = graph = lowered.graph
        self._targets = targets_of(graph, self._recipe)
        request = StepRequest(
            program=lowered.program, graph=graph, blocks=lowered.blocks, training=True, comm=share.comm
        )
        train = RecordedStep(request)
        evaluate = RecordedStep(replace(request, program=share.program, blocks=share.blocks, training=False))
        with torch.random.fork_rng(devices=[]):
            self._steps = record(train, self._model), record(evaluate, self._model)
        self.arrays = arrays or Arrays(graph if share.comm is None else None)
        self._calls = [
            make_calls(Memory(standing, self.arrays, arena))
            for standing, arena in zip(self._steps, ("train", "evaluate"), strict=True)
        ]

    @property
    def kernels(self) -> set[str]:
        """Names of the kernels that the program calls."""
        return self._calls[0].kernels | self._calls[1].kernels

    def context(self) -> dict[str, Any]:
        """Return the template's values."""
        (train, evaluate), (trains, evaluates) = self._steps, self._calls
        forward = self._tasks(trains, train.recording.forward, operation_texts(self._share.lowered.program))
        backward = self._tasks(trains, train.recording.backward, {})
        predict = self._tasks(evaluates, evaluate.recording.forward, operation_texts(self._share.program))
        passes = [
            PassText("forward", "The outputs.", forward, draws=bool(trains.seeds)),
            PassText("backward", "The gradients of all parameters, from that of the outputs.", backward),
        ]
        predicts = [PassText("predict", "The outputs of all nodes, without dropout.", predict)]
        steps = [
            self._step("a training step", trains, train.step, passes),
            self._step("an evaluation", evaluates, evaluate.step, predicts),
        ]
        at = len(evaluate.recording.forward) - 1
        # The splits whose accuracy is shown at the end, or in between.
        shown = (*(split for split in SPLITS if split in self._graph.splits), *self._recipe.steps.splits)
        output = evaluates.memory.matrix(evaluate.step.output.tensor, at)
        loss, splits = self._loss(), [self._split(split) for split in dict.fromkeys(shown)]
        return {
            "recipe": self._recipe,
            "steps": steps,
            "nbytes": max(step["nbytes"] for step in steps),
            "loss": loss,
            "splits": splits,
            "columns": 1 if self._recipe.loss == LOSSES[0] else self._targets.shape[1],
            "prediction": output,
            **self._weights(),
            "num_seeds": len(trains.seeds),
        }

    def _weights(self) -> dict[str, Any]:
        """Return the arrays that are saved with the model: floats, with the parameters, and counters."""
        learned = set(self._steps[0].gradients.values())  # PyTorch's optimizers leave the others as they are
        weights, of_dtype = weights_of(self._model), dict[torch.dtype, list[dict[str, Any]]]()
        for name, weight in weights.items():
            shape = f"{{{', '.join(map(str, weight.shape))}}}"
            fields = {"name": f'"{name}"', "shape": shape} | ({} if name in learned else {"learns": "false"})
            shown = {"name": name, "cpp": cpp_name(name), "fields": fields, "floats": weight.numel()}
            of_dtype.setdefault(weight.dtype, []).append(shown | {"learns": name in learned})
        floats, counters = (of_dtype.pop(dtype, []) for dtype in (torch.float32, torch.int64))
        if of_dtype:
            raise NotLoweredError("synthesis", f"weights of {next(iter(of_dtype))}", "model.float()")
        by_cpp = dict[str, str]()
        for name in weights:
            if (other := by_cpp.setdefault(cpp_name(name), name)) != name:
                what = f"the weights {other!r} and {name!r}, which have one name in C++"
                raise NotLoweredError("synthesis", what, "another name for one of them")
        return {"parameters": floats, "counters": counters}

    def _tasks(
        self, calls: CallWriter, tasks: Sequence[RecordedTask], texts: dict[str, str]
    ) -> list[TaskText]:
        written = [(task, calls.written(task)) for task in tasks]
        complete: dict[int, list[str]] = {}
        for name, at in calls.memory.last_use.items():
            complete.setdefault(at, []).append(cpp_name(name))
        return [
            TaskText(texts.get(task.name, task.name), of_task, complete.get(task.at, []))
            for task, of_task in written
        ]

    def _step(
        self, title: str, calls: CallWriter, step: RecordedStep, passes: list[PassText]
    ) -> dict[str, Any]:
        return {
            "title": title,
            "arena": calls.memory.arena,
            "places": [_place(buffer, name) for buffer, name in calls.memory.names],
            "nbytes": step.arena.nbytes,
            "made": calls.memory.made,
            "exchanges": list(calls.exchanges.values()),
            "passes": passes,
        }

    def _loss(self) -> dict[str, Any]:
        lowered, (train, _), memory = self._share.lowered, self._steps, self._calls[0].memory
        count = lowered.nodes.numel()
        rows = torch.arange(count) if lowered.rows is None else lowered.rows
        at = len(train.recording.forward)  # the task between the passes
        total = self._graph.split(self._recipe.train_split).numel()  # of all ranks
        return {
            "output": memory.matrix(train.step.output.tensor, at),
            "grad": memory.matrix(train.step.output_grad, at),
            "nodes": self._rows(rows, self._targets[lowered.nodes], "train", total),
        }

    def _split(self, split: str) -> dict[str, Any]:
        nodes, row_of = self._graph.split(split).long(), self._share.row_of
        total = nodes.numel()
        if row_of is not None:
            nodes = nodes[row_of[nodes] >= 0]
        rows = nodes if row_of is None else row_of[nodes]
        return {"name": split, "nodes": self._rows(rows, self._targets[nodes], f"split_{split}", total)}

    def _rows(self, rows: Tensor, labels: Tensor, name: str, total: int) -> Fields:
        rows, is_class = rows.long().contiguous(), self._recipe.loss == LOSSES[0]
        labels = (labels.long() if is_class else labels).contiguous()
        width = self._steps[0].step.output.tensor.shape[1]
        if is_class and labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < width:
            wrong = int(labels.min() if labels.min() < 0 else labels.max())
            what = f"a label in the rows {name!r} is {wrong}, and the model has {width} classes"
            raise DataError(f"{what}; leave out nodes without one")
        ids = self.arrays.add(rows.clone(), f"{name}_rows").name
        of_ids = self.arrays.add(labels.clone(), f"{name}_labels")
        return {
            "rows": f"plan.{ids}.int64s()",
            "labels" if is_class else "targets": f"plan.{of_ids.name}.{of_ids.reader}()",
            "count": str(rows.numel()),
            "total": str(total),
        }


def _place(buffer: Buffer, name: str) -> dict[str, Any]:
    what = f"{' x '.join(map(str, buffer.shape))}, tasks {buffer.first} to {buffer.last}"
    return {"name": name, "offset": buffer.offset, "what": what}


def operation_texts(program: Program) -> dict[str, str]:
    """Return the printed lines of a program by the name of the value that each computes."""
    lines = str(program).splitlines()[1:]
    return {line.split(" = ", 1)[0]: line for line in lines}
