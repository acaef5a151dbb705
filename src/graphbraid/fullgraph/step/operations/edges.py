"""Operations along edges that are no linear maps of rows: maxima over in-neighbours, and messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.lowering.levels import computed_between
from graphbraid.fullgraph.step.operations.linear import epilogue_backward, row_epilogue
from graphbraid.fullgraph.step.operations.row_exchange import (
    SourcePart,
    exchange_before,
    plan_by_source,
    source_split,
    whole_part,
)
from graphbraid.fullgraph.step.plan import PlannedOperation, StepPlan
from graphbraid.fullgraph.step.tasks import FirstRows, Mask, Rows
from graphbraid.graph.csc import Csc
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.kernels import backend, row_contiguous
from graphbraid.ops.linear import tall_gram, tall_product
from graphbraid.ops.message_kernel import FusedMessages
from graphbraid.ops.messages import BlockedMessages, EdgeGradients, EdgeRows
from graphbraid.ops.spmm import TIES

_PartRun = tuple[Callable[[SourcePart], None], tuple[Rows, ...]]
"""A call that computes the gradients of a part's rows, and the other rows that it touches."""


class PlannedMaximum(PlannedOperation[ir.Maximum]):
    """A maximum over in-neighbours; the winning edges, or how many tie, are stored if backward needs them."""

    def forward(self) -> None:
        """Plan the value."""
        plan, op, csc, ties = self.plan, self.op, self._csc, TIES.index(self.op.ties)
        self.keeps_result = op.ties != "first"
        x, out = plan.rows(self.source), plan.result(op)
        width = plan.program.width(op.out)
        kept: list[Rows] = []
        if plan.training and plan.program.learns(self.source):
            self._found = plan.scratch(f"{op.out}: winners", out.count, width, dtype=torch.int32)
            kept = [self._found]

        def run() -> None:
            rows = x.tensor.contiguous()  # the user's features may have another memory layout
            found = kept[0].tensor if kept else None
            backend(rows).spmm_max(csc.indptr, csc.indices, rows, None, ties, out.tensor, found)

        plan.do(op.out, run, out, *kept, x)

    def backward(self) -> None:
        """Plan to give each element's gradient to the edge that won it, or to all that tie."""
        plan, op, source, csc = self.plan, self.op, self.source, self._csc
        maker = exchange_before(plan, source)
        target, total = plan.part_of_grad(source)
        run, touches = (self._to_the_first if op.ties == "first" else self._to_all)(target)
        if maker is not None:
            plan_by_source(plan, maker, source_split(plan, csc, maker), run, target, *touches)
            return
        plan.do(f"gradient of {source}", lambda: run(whole_part(csc)), target, *touches)
        plan.add_part(source, target, total)

    @property
    def _csc(self) -> Csc:
        return self.plan.blocks[self.plan.program.level(self.source)].of(self.op.relation).csc

    def _to_the_first(self, target: FirstRows) -> _PartRun:
        grad, winner = self.grad, self._found

        def run(part: SourcePart) -> None:
            edges = part.indptr, part.indices, part.perm, part.forward_indptr
            into = target.tensor[part.rows]
            backend(grad.tensor).spmm_max_backward(*edges, grad.tensor, None, winner.tensor, into)

        return run, (grad, winner)

    def _to_all(self, target: FirstRows) -> _PartRun:
        plan, op, grad, count = self.plan, self.op, self.grad, self._found
        x, largest = plan.rows(self.source), plan.values[op.out]
        share = plan.scratch(f"{op.out}: shares", grad.count, grad.width)

        def divide() -> None:
            share.tensor.copy_(count.tensor)  # of the same dtype, or PyTorch would make a copy
            torch.div(grad.tensor, share.tensor, out=share.tensor)

        def run(part: SourcePart) -> None:
            rows, into = x.tensor[part.rows], target.tensor[part.rows]
            edges = part.indptr, part.indices
            backend(grad.tensor).spmm_max_shared_backward(
                *edges, share.tensor, None, largest.tensor, rows, into
            )

        plan.do(f"{op.out}: shares", divide, grad, count, share)
        return run, (share, largest, x)


class PlannedGine(PlannedOperation[ir.Gine]):
    """GINE's rectified sum.

    If the edge features go through a linear map, the mapped rows are computed in every step and stored for
    backward, which overwrites them with their gradients; the node rows' gradients are sums of those. Without
    a map, the graph's edge features are used in place, and backward computes the signs of the terms again.
    """

    def __init__(self, plan: StepPlan, op: ir.Gine) -> None:
        super().__init__(plan, op)
        self._level = plan.program.level(self.source)
        self._csc = plan.blocks[self._level].of(None).csc
        self._num_loops = self._csc.num_dst if op.loop_scale != 0 else 0
        self._mapped: FirstRows | None = None

    def forward(self) -> None:
        """Plan the mapped edge rows, if there is a map, and the value."""
        plan, op, csc = self.plan, self.op, self._csc
        x, out = plan.rows(self.source), plan.result(op)
        weight, bias = op.weight, op.bias
        if weight is not None:
            mapped = self._mapped = plan.scratch(f"{op.out}: edges", csc.num_edges, weight.shape[0])

            def multiply() -> None:
                added, into = None if bias is None else bias.detach(), mapped.tensor
                after = row_epilogue(added, "none", Mask(0.0), into)
                tall_product(self._features(), weight.detach().t(), out=into, after=after)

            plan.do(f"{op.out}: edges", multiply, mapped)

        def run() -> None:
            rows, edges = row_contiguous(x.tensor), self._edges()
            how = op.loop_scale, self._num_loops
            backend(rows).gine(csc.indptr, csc.indices, rows, edges, *how, out.tensor)

        plan.do(op.out, run, out, x, self._mapped)

    def backward(self) -> None:
        """Plan the gradients of the edge features' map, in place of the mapped rows, and of the input."""
        plan, op, grad, csc, mapped = self.plan, self.op, self.grad, self._csc, self._mapped
        x = plan.rows(self.source)
        learns = mapped is not None and any(p.requires_grad for p in op.parameters())
        if mapped is not None and learns:

            def run_edges() -> None:
                rows, into = row_contiguous(x.tensor), mapped.tensor
                backend(rows).gine_edge_backward(csc.indptr, csc.indices, rows, into, grad.tensor, into)

            plan.do(f"gradient of {op.out}'s edges", run_edges, grad, mapped, x)
            plan.do(f"gradient of {op.out}'s map of edges", lambda: self._give_map(mapped.tensor), mapped)

        def run(out: Tensor) -> None:
            reverse, perm = csc.transpose()
            rows = None if learns else row_contiguous(x.tensor)
            edges, how = (reverse.indptr, reverse.indices, perm), (op.loop_scale, self._num_loops)
            backend(grad.tensor).gine_backward(*edges, grad.tensor, rows, self._edges(), *how, out)

        plan.write_grad(self.source, run, grad, x, mapped)

    def _features(self) -> Tensor:
        return self.plan.edge_features.rows(self._level)

    def _edges(self) -> Tensor:
        """Return the rows of the edges that are added, while a task runs."""
        return self._features() if self._mapped is None else self._mapped.tensor

    def _give_map(self, rows: Tensor) -> None:
        """Give the gradients of the map's weight and bias from those of the mapped rows."""
        parameters, weight, bias = self.plan.parameters, self.op.weight, self.op.bias
        if weight is not None and weight.requires_grad:
            parameters.give(weight, tall_gram(rows, self._features(), out=parameters.lend(weight)))
        if bias is not None and bias.requires_grad:
            into = parameters.lend(bias)
            # Overwrites the rows with themselves; its sums do not depend on the number of threads.
            epilogue_backward(rows, rows, "none", Mask(0.0), rows, into)
            parameters.give(bias, into)


class PlannedMessages(PlannedOperation[ir.Messages]):
    """The reduction of a user's messages. Nothing is stored per edge; backward runs the messages again."""

    def __init__(self, plan: StepPlan, op: ir.Messages) -> None:
        super().__init__(plan, op)
        self.keeps_result = op.reads_result
        self._level = plan.program.level(self.source)
        self._ends = [
            [at for _, role, at in op.reads if role is end]
            for end in (ir.ReadRows.SOURCE, ir.ReadRows.DESTINATION)
        ]
        """Numbers of the inputs whose rows are read of the sources, and of the destinations."""
        csc, self._computed = plan.blocks[self._level].of(op.relation).csc, tuple[Tensor, ...]()
        if op.edges is not None:
            block = plan.request.blocks[self._level].of(None)
            csc, self._computed = computed_between(op.edges, plan.request.whole_edges(None), block)
        how: dict[str, Any] = {"parameters": op.used, "ties": op.ties}
        self._how: BlockedMessages | FusedMessages
        if op.steps:
            how |= {"heads": op.heads, "composed": op.composed}
            self._how = FusedMessages(csc, op.steps, op.several or op.reduction, op.edge_width, **how)
        else:
            how |= {"by_destination": op.by_destination, "edge_width": op.edge_width}
            self._how = BlockedMessages(csc, op.run, op.reduction, op.width_out, **how)
        self._seed = plan.seeds.add() if op.draws else None
        self._drawn: dict[str, Any] = {}
        self._count: FirstRows | None = None
        self._kept: list[FirstRows] = []

    def forward(self) -> None:
        """Plan the value."""
        plan, op, out = self.plan, self.op, self.plan.result(self.op)
        has_backward = plan.training and plan.program.learns(op.out)
        if has_backward and (width := self._how.count_width):
            self._count = plan.scratch(f"{op.out}: shares", out.count, width, dtype=torch.int32)
        if has_backward:
            self._kept = [
                plan.scratch(f"{op.out}: kept {number}", out.count, width)
                for number, width in enumerate(self._how.kept_widths)
            ]
        inputs, count = self._inputs, self._count

        def run() -> None:
            self._drawn = {} if self._seed is None else {"seed": self._seed()}
            self._how.forward(
                self._rows(), out.tensor, None if count is None else count.tensor, **self._kept_rows()
            )

        plan.do(op.out, run, out, count, *self._kept, *inputs)

    def backward(self) -> None:
        """Plan one more run of the messages, which gives the gradients of the inputs and parameters."""
        plan, op, grad = self.plan, self.op, self.grad
        learned = [value for value in dict.fromkeys(op.inputs) if plan.program.learns(value)]
        parts = {value: plan.part_of_grad(value) for value in learned}
        if not learned and not any(parameter.requires_grad for parameter in op.used):
            return
        out, count = plan.values[op.out], self._count
        targets = [target for target, _ in parts.values()]
        is_new = False
        if isinstance(self._how, FusedMessages) and len({*op.inputs}) == len(op.reads):
            is_new = self._how.writes_gradients(*map(len, self._ends))

        def run() -> None:
            for target in targets[len(targets) * is_new :]:
                target.tensor.zero_()
            lend = plan.parameters.lend
            totals = [lend(parameter).zero_() if parameter.requires_grad else None for parameter in op.used]
            tensors = {value: target.tensor for value, (target, _) in parts.items()}
            sources, destinations = (tuple(tensors.get(op.inputs[at]) for at in end) for end in self._ends)
            rows = self._rows()
            into = EdgeGradients(
                sources=sources,
                destinations=destinations,
                edges=(None,) * len(rows.edges),
                parameters=tuple(totals),
                is_new=is_new,
            )
            kept = None if count is None else count.tensor
            self._how.backward(rows, grad.tensor, into, out=out.tensor, count=kept, **self._kept_rows())
            for parameter, total in zip(op.used, totals, strict=True):
                if total is not None:
                    plan.parameters.give(parameter, total)

        plan.do(f"gradient of {self.source}", run, grad, out, count, *self._kept, *self._inputs, *targets)
        for value, (target, total) in parts.items():
            plan.add_part(value, target, total)

    def _kept_rows(self) -> dict[str, Any]:
        """Return the rows that forward keeps for backward, beside a maximum's count."""
        return {"kept": [rows.tensor for rows in self._kept]} if self._kept else self._drawn

    @property
    def _inputs(self) -> list[Rows]:
        return [self.plan.rows(value) for value in self.op.inputs]

    def _rows(self) -> EdgeRows:
        """Return the rows that the messages read, while a task runs."""
        inputs, reads = self._inputs, self.op.reads
        sources, destinations = (tuple(inputs[at].tensor for at in end) for end in self._ends)
        edges = []
        for _, role, at in reads:
            if role is ir.ReadRows.FEATURES:
                edges.append(self.plan.edge_features.rows(self._level))
            elif role is ir.ReadRows.COMPUTED:
                edges.append(self._computed[at])
            elif role is ir.ReadRows.WEIGHT:
                edges.append(self._weights)
        return EdgeRows(sources=sources, destinations=destinations, edges=tuple(edges))

    @cached_property
    def _weights(self) -> Tensor:
        """The weights of the level's edges."""
        request, relation = self.plan.request, self.op.relation
        whole = request.whole_edges(relation)
        found = request.blocks[self._level].of(relation).bind(Aggregation(csc=whole, weight=whole.weight))
        weight, copies = found.weight, self.plan.copies
        assert weight is not None
        weight = weight.detach().to(torch.float32)
        return weight if copies is None else copies.matrix(weight)
