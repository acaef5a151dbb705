"""StepPlan: what planning a training step collects, and what its tasks hand each other as they run.

A value's gradient has a buffer of its own, made by the first consumer that is met and added to by the others.
Where an operation passes a gradient on unchanged (an addition), both share one buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.lowering.levels import Block, aggregation, nodes_of, num_rows_of
from graphbraid.fullgraph.program import (
    INPUT,
    AdjacencyMatrix,
    Aggregate,
    Attention,
    Gine,
    Linear,
    Maximum,
    Operation,
    Own,
    Program,
    RowFunction,
    UnitRows,
)
from graphbraid.fullgraph.step.arena import Buffer, StepTask
from graphbraid.fullgraph.step.calls import kernels
from graphbraid.fullgraph.step.calls.repeated import Lent, Repeated, Seed
from graphbraid.fullgraph.step.calls.rows import Constant, Read, Rows, add, copy, zero
from graphbraid.fullgraph.step.calls.seeds import Seeds
from graphbraid.fullgraph.step.device_copies import DeviceCopies
from graphbraid.fullgraph.step.lending import Lender
from graphbraid.fullgraph.step.node_features import NodeFeatures
from graphbraid.fullgraph.step.planned.row_functions import FUNCTIONS
from graphbraid.graph import Graph

if TYPE_CHECKING:
    from graphbraid.fullgraph.step.planned.attention import PlannedAttention
    from graphbraid.fullgraph.step.planned.norm import PlannedNorm
    from graphbraid.fullgraph.step.planned.torch_ops import TorchOp


class StepPlan:
    """The tasks of a program's step so far, and where its values and gradients are.

    Args:
        program: lowered.
        graph: its features, in place, and edges.
        blocks: the way from each level to the next.
        training: whether there is a backward pass.
        copies: brings what a step reads to a device; None: it runs where the graph is.
    """

    def __init__(
        self,
        program: Program,
        graph: Graph,
        blocks: Sequence[Block],
        *,
        training: bool,
        copies: DeviceCopies | None,
    ) -> None:
        self.program, self.graph, self.training, self.copies = program, graph, training, copies
        self.seeds = Seeds() if copies is None else copies.seeds()
        self.host_blocks: Sequence[Block] = blocks
        """The way from each level to the next, where the graph is."""
        self.blocks: Sequence[Block] = blocks
        """The same, where the kernels run."""
        if copies is not None:
            goes_back = training and any(isinstance(op, Attention | Gine | Maximum) for op in program.ops)
            self.blocks = copies.blocks(blocks, transpose=goes_back)
        self.features = NodeFeatures(program, graph, blocks, copies)
        self.tasks: list[StepTask] = []
        self.repeated: list[Repeated] = []
        """The tasks that keep what they gave their kernels."""
        self.planning = ""
        """The value whose operation is being planned."""
        self.values: dict[str, Rows] = {}
        self.constants: dict[str, Constant] = {}
        self.grads: dict[str, Rows] = {}
        """The gradient of each value, by its name."""
        self._aggregations: dict[tuple[AdjacencyMatrix, int, bool], kernels.Map] = {}
        # Of each operation, by its value's name: what its forward leaves for its backward.
        self.torch_ops: dict[str, TorchOp] = {}
        self.attentions: dict[str, PlannedAttention] = {}
        self.norms: dict[str, PlannedNorm] = {}
        self.masks: dict[str, kernels.Mask] = {}
        self.kept: dict[str, Rows] = {}
        self.num_forwards = 0
        """Forward passes so far: which of them the matrices in the arena belong to."""
        self._found: dict[int, Tensor] = {}
        self._lenders: dict[int, Lender] = {}

    # ---- rows

    def num_rows(self, level: int) -> int:
        """Nodes of a level."""
        return num_rows_of(self.host_blocks, level, self.graph.num_nodes)

    def nodes(self, level: int) -> Tensor | None:
        """The node of each row of a level, where the kernels run; None where row v is node v."""
        return nodes_of(self.blocks, level)

    def new(self, name: str, op: Operation) -> Rows:
        """Rows as ``op``'s value has them."""
        return self.scratch(name, self.num_rows(self.program.level(op.out)), self.program.width(op.out))

    @staticmethod
    def scratch(name: str, count: int, *width: int, dtype: torch.dtype = torch.float32) -> Rows:
        """A buffer of ``count`` rows; vectors have no width."""
        return Rows(Buffer(name, (count, *width), dtype), count)

    def turned_weight(self, op: Linear) -> tuple[Rows, ...]:
        """Rows to turn ``op``'s weight in; none where no kernel needs that: only sparse features' do."""
        if self.features.path != "sparse":
            return ()
        out_channels, in_channels = op.shape
        return (self.scratch(f"{op.out}: weight by column", in_channels, out_channels),)

    def do(self, name: str, run: Callable[[], object], *touches: Rows) -> None:
        """Add a task.

        Args:
            name: the value that it makes; anything else where it makes none.
            run: the call.
            touches: all rows in the arena that it reads or writes.
        """
        self.tasks.append(StepTask(name, run, tuple(rows.buffer for rows in touches), self.planning))

    def repeat(
        self,
        name: str,
        run: Callable[..., object],
        *touches: Rows,
        seed: Seed | None = None,
        gradient_of: nn.Parameter | None = None,
    ) -> None:
        """Add a task that is one call of a kernel, on the host by what was carried over in earlier steps.

        Args:
            name: as :meth:`do`.
            run: the call, of what stays where it is; takes ``gradient_of``'s memory where that is given.
            touches: as :meth:`do`.
            seed: of the call's dropout mask, if there is one.
            gradient_of: the parameter whose gradient the kernel writes.
        """
        lent = None if gradient_of is None else self._lent_to(gradient_of)
        if self.copies is None:
            repeated = Repeated(run, seed=seed, lent=lent)
            self.repeated.append(repeated)
            self.do(name, repeated, *touches)
        elif lent is None:
            self.do(name, run, *touches)
        else:

            def lend_and_give() -> None:
                out = lent.lend()
                run(out)
                lent.give(out)

            self.do(name, lend_and_give, *touches)

    def _lent_to(self, parameter: nn.Parameter) -> Lent:
        def standing(loan: Tensor) -> Tensor | None:
            return self._lenders[id(parameter)].standing(loan)

        return Lent(lend=lambda: self.lend(parameter), give=partial(self.give, parameter), standing=standing)

    # ---- values

    def read(self, value: str) -> Read:
        """How to get a value's rows."""
        if value == INPUT and INPUT not in self.constants:
            self.constants[INPUT] = self.features.rows_of(0)
        if value in self.constants:
            constant = self.constants[value]
            return Read(lambda: constant.tensor, ())
        rows = self.values[value]
        return Read(lambda: rows.tensor, (rows,))

    def may_overwrite(self, value: str) -> bool:
        """Whether nobody reads a value but the consumer that asks: no other, and not its maker's backward."""
        alone = value in self.values and len(self.program.consumers(value)) == 1
        maker = self.program.producer(value)
        is_read = isinstance(maker, Own | UnitRows) or (isinstance(maker, Attention) and not maker.averages)
        is_read |= isinstance(maker, Maximum) and maker.ties != "first"
        is_read |= isinstance(maker, RowFunction) and FUNCTIONS[maker.kind].reads_result
        return alone and not is_read and not self.program.ends_in_epilogue(value)

    def rounded(self, op: Aggregate, x: Read) -> Read:
        """``x`` in the dtype that an aggregation reads its rows in."""
        if op.rows == torch.float32 or not x.touches:
            return x
        (rows,) = x.touches
        small = self.scratch(f"{op.out}: rounded rows", rows.count, rows.buffer.shape[1], dtype=op.rows)
        self.do(f"{op.out}: round", lambda: copy(x.get(), small.tensor), rows, small)
        return Read(lambda: small.tensor, (small,))

    def aggregation(self, op: Aggregate) -> kernels.Map:
        """The kernels of an aggregation, the same for both passes."""
        source = op.inputs[0]
        block = self.host_blocks[self.program.level(source)]
        backward = self.training and self.program.learns(source)
        key = (op.adjacency, id(block), backward)
        if key not in self._aggregations:
            how = block.bind(aggregation(op.adjacency, self.graph.csc))
            self._aggregations[key] = (
                kernels.BothWays(how)
                if self.copies is None
                else self.copies.aggregation(how, backward=backward)
            )
        return self._aggregations[key]

    # ---- gradients

    def grad_of(self, value: str) -> tuple[Rows, bool]:
        """Where a gradient with respect to ``value`` goes, and whether it is added to what stands there."""
        if value in self.grads:
            return self.grads[value], True
        op = self.program.producer(value)
        assert op is not None
        if isinstance(op, Own):  # the first rows of the gradient of what it is the start of
            whole, is_there = self.grad_of(op.inputs[0])
            if not is_there:
                self.do(f"gradient of {op.inputs[0]}: zero", lambda: zero(whole.tensor), whole)
            self.grads[value] = Rows(whole.buffer, self.num_rows(self.program.level(value)))
            return self.grads[value], True
        self.grads[value] = self.new(f"gradient of {value}", op)
        return self.grads[value], False

    def part_of_grad(self, value: str) -> tuple[Rows, Rows | None]:
        """Where a kernel that overwrites puts its part of a gradient, and the sum it then belongs to.

        Followed by the kernel's task and :meth:`add_part`.
        """
        total, is_there = self.grad_of(value)
        if not is_there:
            return total, None
        return self.scratch(f"part of the gradient of {value}", total.count, total.buffer.shape[1]), total

    def add_part(self, value: str, part: Rows, total: Rows | None) -> None:
        """Add what a kernel wrote to the sum, if there is one."""
        if total is not None:
            self.do(f"gradient of {value}", lambda: add(part.tensor, total.tensor), part, total)

    def pass_on(self, op: Operation, value: str) -> None:
        """``value``'s gradient is ``op``'s: share the buffer where ``value`` has no other consumer."""
        grad = self.grads[op.out]
        if not self.program.learns(value):
            return
        alone = len(self.program.consumers(value)) == 1
        is_changed = isinstance(self.program.producer(value), Own) or self.program.ends_in_epilogue(value)
        if alone and not is_changed and value not in self.grads:
            self.grads[value] = grad
            return
        target, is_there = self.grad_of(value)
        join = add if is_there else copy
        self.do(f"gradient of {value}", lambda: join(grad.tensor, target.tensor), grad, target)

    def lend(self, parameter: nn.Parameter) -> Tensor:
        """Memory for a parameter's gradient, to be written and then given to :meth:`give`."""
        if self.copies is not None:
            return torch.empty_like(parameter, memory_format=torch.contiguous_format)
        if id(parameter) not in self._lenders:
            self._lenders[id(parameter)] = Lender(parameter.shape, parameter.dtype)
        return self._lenders[id(parameter)].lend()

    def give(self, parameter: nn.Parameter, grad: Tensor) -> None:
        """Keep a parameter's gradient, or add to it where the parameter is used more than once."""
        before = self._found.get(id(parameter))
        grad = grad.reshape(parameter.shape)
        self._found[id(parameter)] = grad if before is None else before.add_(grad)

    def take_gradients(self) -> dict[int, Tensor]:
        """What was given in this backward pass, by the parameter's ``id``; kept here no longer."""
        found, self._found = self._found, {}
        return found
