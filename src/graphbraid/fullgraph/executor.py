"""Executor: the tasks of a program's training step and their buffers, made once and run every epoch.

Forward tasks run the operations in order; backward tasks run their adjoints in reverse. A value's gradient
has a buffer of its own, made by the first consumer that is met and added to by the others. Where an operation
passes a gradient on unchanged (an addition), both share one buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from graphbraid.fullgraph import kernels
from graphbraid.fullgraph.arena import Arena, Buffer, Task
from graphbraid.fullgraph.levels import Step, aggregation
from graphbraid.fullgraph.placement import Placement, input_bytes
from graphbraid.fullgraph.planned_attention import PlannedAttention, plan_attention
from graphbraid.fullgraph.planned_norm import PlannedNorm, plan_norm
from graphbraid.fullgraph.program import (
    INPUT,
    Add,
    Aggregate,
    Attention,
    Epilogue,
    Hoisted,
    Linear,
    Module,
    Normalise,
    Op,
    Own,
    Program,
)
from graphbraid.fullgraph.seeds import Seeds
from graphbraid.fullgraph.torch_ops import TorchOp
from graphbraid.graph import Graph
from graphbraid.ops.dense import tall_gram, tall_product
from graphbraid.sparse_features import SparseFeatures


@dataclass(eq=False, slots=True)
class Rows:
    """The first rows of a buffer: what a value is kept in."""

    buffer: Buffer
    count: int

    @property
    def tensor(self) -> Tensor:
        """``(count, width)``."""
        return self.buffer.tensor[: self.count]


@dataclass(eq=False, slots=True)
class Constant:
    """A matrix that no step changes, made when the executor is allocated."""

    shape: tuple[int, int]
    make: Callable[[], Tensor]
    is_copy: bool
    """Whether it takes memory of its own."""
    _tensor: Tensor | None = None

    @property
    def tensor(self) -> Tensor:
        """The matrix."""
        if self._tensor is None:
            self._tensor = self.make()
        return self._tensor

    @property
    def nbytes(self) -> int:
        """Bytes it adds to what is loaded."""
        return 4 * self.shape[0] * self.shape[1] if self.is_copy else 0


class Executor:
    """Runs a program over a graph. Planned when made; :meth:`allocate` takes the memory.

    Args:
        program: lowered.
        graph: its features, in place, and edges.
        steps: the way from each level to the next.
        training: whether there is a backward pass, and dropout and batch normalisation train.
        placement: brings what a step reads to a device; None: it runs where the graph is. Constants are made
            where the graph is, too, and then brought there.
    """

    def __init__(
        self,
        program: Program,
        graph: Graph,
        steps: Sequence[Step],
        *,
        training: bool,
        placement: Placement | None = None,
    ) -> None:
        self.program, self.graph, self.training, self.placement = program, graph, training, placement
        self.steps, self.host_steps = steps, steps
        self._placed_bytes = 0 if placement is None else -placement.nbytes
        self.seeds = Seeds() if placement is None else placement.seeds()
        if placement is not None:
            attends = training and any(isinstance(op, Attention) for op in program.ops)
            self.steps = placement.steps(steps, transpose=attends)
        self._values: dict[str, Rows] = {}
        self._grads: dict[str, Rows] = {}
        self._constants: dict[str, Constant] = {}
        self._aggregations: dict[int, kernels.Map] = {}
        self._torch_ops: dict[str, TorchOp] = {}
        self._attentions: dict[str, PlannedAttention] = {}
        self._norms: dict[str, PlannedNorm] = {}
        self._masks: dict[str, kernels.Mask] = {}
        self._dense: Tensor | None = None
        self._input: kernels.DenseInput | kernels.SparseInput | None = None
        self._gradients: dict[int, Tensor] = {}
        self._tasks: list[Task] = []
        self.num_forwards = 0
        """Calls of :meth:`forward` so far: which of them the matrices in the arena belong to."""
        self.is_allocated = False
        for op in program.ops:
            self._forward(op)
        self._forward_tasks = len(self._tasks)
        self.output = self._values[program.output]
        if training:
            self._grads[program.output] = Rows(
                Buffer("gradient of the output", self.output.buffer.shape), self.output.count
            )
            self._do("loss", lambda: None, self.output, self._grads[program.output])
            for op in reversed(program.ops):
                if program.learns(op.out):
                    self._backward(op)
        self.arena = Arena(self._tasks, keep=[] if training else [self.output.buffer])
        if placement is not None:
            self._placed_bytes += placement.nbytes + self._input_bytes()

    @property
    def nbytes(self) -> int:
        """Bytes it takes beside the graph: the arena and the constants; on a device also what is copied."""
        constants = sum(constant.nbytes for constant in self._constants.values())
        return self.arena.nbytes + constants + self._placed_bytes

    def allocate(self) -> None:
        """Take the memory and compute what is computed once."""
        if self._multiplies_input():
            self._input = self._make_input()
        for constant in self._constants.values():
            _ = constant.tensor
        if self._input is None or isinstance(self._input, kernels.SparseInput) or self.placement is not None:
            self._dense = None
        self.arena.allocate(torch.device("cpu") if self.placement is None else self.placement.place)
        self.is_allocated = True

    @torch.no_grad()
    def forward(self) -> Tensor:
        """Run the operations; ``(num_rows, width)`` outputs, valid until the next call of either pass."""
        self.num_forwards += 1
        self.seeds.draw()
        self._run_forward()
        return self.output.tensor

    @torch.no_grad()
    def backward(self, grad: Tensor, rows: Tensor | None = None) -> dict[int, Tensor]:
        """Run the adjoints of the last :meth:`forward`.

        Args:
            grad: gradient of the outputs, or of those in ``rows``.
            rows: int64 rows of the output that ``grad`` belongs to; the others' gradient is 0.

        Returns:
            The gradient of each parameter that learns, by its ``id``.
        """
        target = self._grads[self.program.output].tensor
        if rows is None:
            target.copy_(grad)
        else:
            target.zero_().index_copy_(0, rows, grad)
        return self._run_backward()

    def _run_forward(self) -> None:
        for task in self._tasks[: self._forward_tasks]:
            task.run()

    def _run_backward(self) -> dict[int, Tensor]:
        self._gradients = {}
        for task in self._tasks[self._forward_tasks + 1 :]:
            task.run()
        return self._gradients

    def run_by_torch(self) -> list[str]:
        """The operations that run through PyTorch's autograd."""
        return [f"{op.symbol} {op.out}" for op in self.program.ops if op.out in self._torch_ops]

    def first_not_finite(self) -> str:
        """Where forward first goes wrong, in words; runs it once more, operation by operation."""
        with torch.no_grad():
            for task in self._tasks[: self._forward_tasks]:
                task.run()
                if task.name not in self._values:  # it only copies
                    continue
                bad = (~torch.isfinite(self._values[task.name].tensor)).any(1).nonzero()
                if len(bad):
                    nodes = self.nodes(self.program.level(task.name))
                    node = int(bad[0]) if nodes is None else int(nodes[bad[0]])
                    return f"{self._place(task.name)} is the first to go wrong, at node {node}"
        return "every layer's rows are finite: the loss itself overflows"

    def _place(self, value: str) -> str:
        """A value's operation and layer: a linear map before an aggregation belongs to the layer after it."""
        op = self.program.producer(value)
        ahead = isinstance(op, Linear) and any(c.moves for c in self.program.consumers(value))
        return f"layer {self.program.level(value) + ahead} ({op.symbol if op else 'input'})"

    # ---- rows, levels, buffers

    def num_rows(self, level: int) -> int:
        """Nodes of a level."""
        if level < len(self.steps):
            return self.steps[level].csc.num_src
        return self.steps[-1].csc.num_dst if self.steps else self.graph.num_nodes

    def nodes(self, level: int) -> Tensor | None:
        """The node of each row of a level; None where row v is node v."""
        return _nodes(self.steps, level)

    def _host_nodes(self, level: int) -> Tensor | None:
        """:meth:`nodes`, where the graph is."""
        return _nodes(self.host_steps, level)

    def _multiplies_input(self) -> bool:
        return any(op.inputs[0] == INPUT and isinstance(op, Linear) for op in self.program.ops)

    def _input_bytes(self) -> int:
        """What :meth:`_make_input` takes on a device."""
        assert self.graph.x is not None
        path = str(self.program.settings.get("input_path"))
        nodes = _nodes(self.host_steps, 0)
        return input_bytes(self.graph.x, nodes, path) if self._multiplies_input() else 0

    def _make_input(self) -> kernels.DenseInput | kernels.SparseInput:
        x, nodes = self.graph.x, self._host_nodes(0)
        assert x is not None
        made: kernels.DenseInput | kernels.SparseInput
        if self.program.settings.get("input_path") == "sparse":
            sparse = x if isinstance(x, SparseFeatures) else SparseFeatures.from_dense(x)
            made = kernels.SparseInput(sparse.to(torch.float32), nodes)
        else:
            made = kernels.DenseInput(self._dense_features(), nodes)
        return made if self.placement is None else made.placed(self.placement)

    def _there(self, constant: Tensor) -> Tensor:
        return constant if self.placement is None else self.placement.matrix(constant)

    def _dense_features(self) -> Tensor:
        """All nodes' features in float32: the graph's own where they are so already."""
        if self._dense is None:
            x = self.graph.x
            assert x is not None
            self._dense = (x.to_dense() if isinstance(x, SparseFeatures) else x).to(torch.float32)
        return self._dense

    def _features_of(self, level: int) -> Constant:
        """``(num_rows, in_channels)`` features of a level's nodes."""
        nodes = self._host_nodes(level)

        def make() -> Tensor:
            x = self._dense_features()
            return self._there(x if nodes is None else x.index_select(0, nodes))

        x = self.graph.x
        as_it_is = nodes is None and isinstance(x, Tensor) and x.dtype == torch.float32
        is_copy = not as_it_is or self.placement is not None
        return Constant((self.num_rows(level), self.program.in_channels), make, is_copy)

    def _read(self, value: str) -> tuple[Callable[[], Tensor], tuple[Rows, ...]]:
        """How to get a value's rows, and the buffers that takes."""
        if value == INPUT and INPUT not in self._constants:
            self._constants[INPUT] = self._features_of(0)
        if value in self._constants:
            constant = self._constants[value]
            return lambda: constant.tensor, ()
        rows = self._values[value]
        return lambda: rows.tensor, (rows,)

    def _new(self, name: str, op: Op) -> Rows:
        level = self.program.level(op.out)
        rows = self.num_rows(level)
        return Rows(Buffer(name, (rows, self.program.width(op.out))), rows)

    def _do(self, name: str, run: Callable[[], object], *touches: Rows) -> None:
        self._tasks.append(Task(name, run, tuple(t.buffer for t in touches)))

    def _aggregation(self, op: Aggregate) -> kernels.Map:
        key, source = id(op), op.inputs[0]
        if key not in self._aggregations:
            step = self.host_steps[self.program.level(source)]
            how = step.bind(aggregation(op.adjacency, self.graph.csc))
            backward = self.training and self.program.learns(source)
            self._aggregations[key] = (
                how if self.placement is None else self.placement.aggregation(how, backward=backward)
            )
        return self._aggregations[key]

    # ---- forward

    def _forward(self, op: Op) -> None:
        plan = {
            Linear: self._forward_linear,
            Aggregate: self._forward_aggregate,
            Own: self._forward_own,
            Add: self._forward_add,
            Epilogue: self._forward_epilogue,
            Hoisted: self._forward_hoisted,
            Normalise: lambda op: self._norms.update({op.out: plan_norm(self, op)}),
            Attention: lambda op: self._attentions.update({op.out: plan_attention(self, op)}),
            Module: self._forward_module,
        }[type(op)]
        plan(op)  # type: ignore[operator]

    def _forward_hoisted(self, op: Hoisted) -> None:
        def make() -> Tensor:
            whole = aggregation(op.adjacency, self.graph.csc)
            return self._there(kernels.hoisted(whole, self._dense_features(), self._host_nodes(1)))

        shape = (self.num_rows(1), self.program.in_channels)
        self._constants[op.out] = Constant(shape, make, is_copy=True)

    def _forward_linear(self, op: Linear) -> None:
        out, weight, add = self._result(op), op.weight, len(op.inputs) == 2
        if op.inputs[0] == INPUT:
            self._do(op.out, lambda: self._the_input.multiply(weight.detach(), out.tensor, add=add), out)
            return
        x, touches = self._read(op.inputs[0])
        self._do(
            op.out, lambda: tall_product(x(), weight.detach().t(), out=out.tensor, add=add), out, *touches
        )

    @property
    def _the_input(self) -> kernels.DenseInput | kernels.SparseInput:
        assert self._input is not None
        return self._input

    def _result(self, op: Op) -> Rows:
        """Where ``op`` writes: over its second input, which it adds to and nothing else reads, or anew."""
        if len(op.inputs) < 2:
            self._values[op.out] = self._new(op.out, op)
        elif self._may_overwrite(op.inputs[1]):
            self._values[op.out] = self._values[op.inputs[1]]
        else:
            out = self._values[op.out] = self._new(op.out, op)
            addend, touches = self._read(op.inputs[1])
            self._do(f"{op.out}: copy", lambda: _copy(addend(), out.tensor), out, *touches)
        return self._values[op.out]

    def _may_overwrite(self, value: str) -> bool:
        """Whether nobody reads a value but the consumer that asks: no other, and not its maker's backward."""
        alone = value in self._values and len(self.program.consumers(value)) == 1
        maker = self.program.producer(value)
        is_read = isinstance(maker, Own | Epilogue) or (isinstance(maker, Attention) and not maker.averages)
        return alone and not is_read

    def _forward_aggregate(self, op: Aggregate) -> None:
        how, add = self._aggregation(op), len(op.inputs) == 2
        out = self._result(op)
        x, touches = self._rounded(op, *self._read(op.inputs[0]))

        def run() -> None:
            kernels.aggregate(how, x(), out.tensor, out.tensor if add else None)

        self._do(op.out, run, out, *touches)

    def _rounded(
        self, op: Aggregate, x: Callable[[], Tensor], touches: tuple[Rows, ...]
    ) -> tuple[Callable[[], Tensor], tuple[Rows, ...]]:
        """``x`` in the dtype that an aggregation reads its rows in."""
        if op.rows == torch.float32 or not touches:
            return x, touches
        (rows,) = touches
        width = rows.buffer.shape[1]
        small = Rows(Buffer(f"{op.out}: rounded rows", (rows.count, width), op.rows), rows.count)
        self._do(f"{op.out}: round", lambda: _copy(x(), small.tensor), *touches, small)
        return lambda: small.tensor, (small,)

    def _forward_own(self, op: Own) -> None:
        level = self.program.level(op.out)
        if op.inputs[0] == INPUT:
            self._constants[op.out] = self._features_of(level)
        else:
            self._values[op.out] = Rows(self._values[op.inputs[0]].buffer, self.num_rows(level))

    def _forward_add(self, op: Add) -> None:
        out = self._result(op)
        first, touches = self._read(op.inputs[0])
        self._do(op.out, lambda: _add(first(), out.tensor), out, *touches)

    def _forward_epilogue(self, op: Epilogue) -> None:
        source, p = op.inputs[0], op.p if self.training else 0.0
        nodes = self.nodes(self.program.level(op.out))
        x, touches = self._read(source)
        out = self._values[source] if self._may_overwrite(source) else self._new(op.out, op)
        self._values[op.out] = out
        seed = self.seeds.add() if p > 0 else lambda: 0

        def run() -> None:
            mask = self._masks[op.out] = kernels.Mask(p, seed(), nodes if p > 0 else None)
            kernels.epilogue(x(), op.bias, op.act, mask, out.tensor)

        self._do(op.out, run, out, *touches)

    def _forward_module(self, op: Module) -> None:
        x, touches = self._read(op.inputs[0])
        out = self._values[op.out] = self._new(op.out, op)
        torch_op = TorchOp(op.module, op.parameters(), keep_graph=self.training)
        self._torch_ops[op.out] = torch_op
        self._do(op.out, lambda: _copy(torch_op.forward(x()), out.tensor), out, *touches)

    # ---- backward

    def _backward(self, op: Op) -> None:
        plan = {
            Linear: self._backward_linear,
            Aggregate: self._backward_aggregate,
            Own: self._backward_own,
            Add: self._backward_add,
            Epilogue: self._backward_epilogue,
            Normalise: lambda op: self._norms[op.out].plan_backward(),
            Attention: lambda op: self._attentions[op.out].plan_backward(),
            Module: self._backward_module,
        }[type(op)]
        plan(op)  # type: ignore[operator]

    def _grad_of(self, value: str) -> tuple[Rows, bool]:
        """Where a gradient with respect to ``value`` goes, and whether it is added to what stands there."""
        if value in self._grads:
            return self._grads[value], True
        op = self.program.producer(value)
        assert op is not None
        if isinstance(op, Own):  # the first rows of the gradient of what it is the start of
            whole, is_there = self._grad_of(op.inputs[0])
            if not is_there:
                self._do(f"gradient of {op.inputs[0]}: zero", lambda: _zero(whole.tensor), whole)
            self._grads[value] = Rows(whole.buffer, self.num_rows(self.program.level(value)))
            return self._grads[value], True
        self._grads[value] = self._new(f"gradient of {value}", op)
        return self._grads[value], False

    def _pass_on(self, op: Op, value: str) -> None:
        """``value``'s gradient is ``op``'s: share the buffer where ``value`` has no other consumer."""
        grad = self._grads[op.out]
        if not self.program.learns(value):
            return
        producer = self.program.producer(value)
        alone = len(self.program.consumers(value)) == 1 and not isinstance(producer, Own | Epilogue)
        if alone and value not in self._grads:
            self._grads[value] = grad
            return
        target, add = self._grad_of(value)
        run = _add if add else _copy
        self._do(f"gradient of {value}", lambda: run(grad.tensor, target.tensor), grad, target)

    def _backward_linear(self, op: Linear) -> None:
        grad, source = self._grads[op.out], op.inputs[0]
        if len(op.inputs) == 2:
            self._pass_on(op, op.inputs[1])
        self._weight_grad(op, grad)
        if self.program.learns(source):
            target, add = self._grad_of(source)
            weight = op.weight

            def run() -> None:
                tall_product(grad.tensor, weight.detach(), out=target.tensor, add=add)

            self._do(f"gradient of {source}", run, grad, target)

    def _weight_grad(self, op: Linear, grad: Rows) -> None:
        weight = op.weight
        if not weight.requires_grad:
            return
        name = f"gradient of {op.out}'s weight"
        if op.inputs[0] == INPUT:
            self._do(name, lambda: self._give(weight, self._the_input.weight_grad(grad.tensor)), grad)
        else:
            x, touches = self._read(op.inputs[0])
            self._do(name, lambda: self._give(weight, tall_gram(grad.tensor, x())), grad, *touches)

    def _give(self, parameter: nn.Parameter, grad: Tensor) -> None:
        """Keep a parameter's gradient, or add to it where the parameter is used more than once."""
        before = self._gradients.get(id(parameter))
        grad = grad.reshape(parameter.shape)
        self._gradients[id(parameter)] = grad if before is None else before.add_(grad)

    def _backward_aggregate(self, op: Aggregate) -> None:
        grad, source, how = self._grads[op.out], op.inputs[0], self._aggregation(op)
        if len(op.inputs) == 2:
            self._pass_on(op, op.inputs[1])
        if not self.program.learns(source):
            return
        given, touches = self._rounded(op, lambda: grad.tensor, (grad,))
        target, add = self._grad_of(source)

        def run() -> None:
            kernels.aggregate_backward(how, given(), target.tensor, target.tensor if add else None)

        self._do(f"gradient of {source}", run, target, *touches)

    def _backward_own(self, op: Own) -> None:
        """Its gradient is the start of its source's, and was written there."""

    def _backward_add(self, op: Add) -> None:
        for value in op.inputs:
            self._pass_on(op, value)

    def _backward_epilogue(self, op: Epilogue) -> None:
        grad, source, out = self._grads[op.out], op.inputs[0], self._values[op.out]
        alone = len(self.program.consumers(source)) == 1 and source not in self._grads
        if alone and not isinstance(self.program.producer(source), Own):
            target = self._grads[source] = grad
            add = False
        else:
            target, add = Rows(Buffer(f"gradient through {op.out}", grad.buffer.shape), grad.count), True

        def run() -> None:
            bias = op.bias
            grad_bias = None if bias is None or not bias.requires_grad else torch.empty_like(bias)
            kernels.epilogue_backward(
                grad.tensor, out.tensor, op.act, self._masks[op.out], target.tensor, grad_bias
            )
            if bias is not None and grad_bias is not None:
                self._give(bias, grad_bias)

        self._do(f"gradient of {source}", run, grad, out, target)
        if add and self.program.learns(source):
            final, is_there = self._grad_of(source)
            join = _add if is_there else _copy
            self._do(f"gradient of {source}", lambda: join(target.tensor, final.tensor), target, final)

    def _backward_module(self, op: Module) -> None:
        grad, torch_op, source = self._grads[op.out], self._torch_ops[op.out], op.inputs[0]
        target, add = self._grad_of(source) if self.program.learns(source) else (None, False)

        def run() -> None:
            to_input, to_parameters = torch_op.backward(grad.tensor)
            if target is not None:
                (_add if add else _copy)(to_input, target.tensor)
            for parameter, gradient in zip(op.parameters(), to_parameters, strict=True):
                self._give(parameter, gradient)

        written = () if target is None else (target,)
        self._do(f"gradient of {source}", run, grad, *self._read(source)[1], *written)


def _nodes(steps: Sequence[Step], level: int) -> Tensor | None:
    if level < len(steps):
        return steps[level].sources
    return steps[-1].destinations if steps else None


def _zero(target: Tensor) -> None:
    target.zero_()


def _copy(source: Tensor, target: Tensor) -> None:
    target.copy_(source)


def _add(source: Tensor, target: Tensor) -> None:
    target.add_(source)
