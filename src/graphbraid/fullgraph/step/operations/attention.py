"""Attention over in-neighbours: what GAT and GATv2 share, GATv2 itself, and attention over relations."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, cast

import torch
from torch import Tensor

from graphbraid.fullgraph.program import Attention, RelationAttention
from graphbraid.fullgraph.reading.relational import attend
from graphbraid.fullgraph.step.arena import FirstRows, Rows
from graphbraid.fullgraph.step.operations.graph_break import PlannedByPyTorch
from graphbraid.fullgraph.step.plan import PlannedOperation, StepPlan
from graphbraid.graph.csc import Csc
from graphbraid.ops.attention import both_ways, needs_ids
from graphbraid.ops.kernels import backend, recorded_whole


class PlannedAttention(PlannedOperation[Attention]):
    """One attention of a planned step.

    For backward the kernels store one or two numbers per row and head and, for GAT, the part of the sum that
    comes from edges with a positive logit. Without edge features, nothing is stored per edge.
    """

    def __init__(self, plan: StepPlan, op: Attention) -> None:
        super().__init__(plan, op)
        level = plan.program.level(self.source)
        self._csc = plan.blocks[level].of(op.relation).csc
        self._learns = plan.training and plan.program.learns(op.out)
        self._p = op.dropout
        self._seed = plan.seeds.add() if self._p > 0 else lambda: 0
        destinations = plan.request.blocks[level].destination_nodes(plan.program.node_type(op.out))
        self._first_keys = self._keys_of(destinations) if self._p > 0 else None
        self._how: tuple[Any, ...] = ()
        self._rows = plan.rows(self.source)
        self._read: tuple[Rows, ...] = (self._rows,)
        """All rows that the kernels read."""
        width = op.heads * op.channels
        self._by_head = self._scratch("rows by head", self._csc.num_dst, width)
        self._lse = self._scratch("log-sum-exp", self._csc.num_dst, op.heads)
        self._written: tuple[FirstRows, ...] = (self._by_head, self._lse)
        self._kept: tuple[FirstRows, ...] = self._written

    @abstractmethod
    def _attend(self) -> None:
        """Run the forward kernel; write ``self._written``."""

    def forward(self) -> None:
        """Plan the value."""
        plan, op = self.plan, self.op
        out = plan.values[op.out] = plan.new(op.out, op) if op.averages else self._by_head

        def run() -> None:
            num_loops = min(self._csc.num_src, self._csc.num_dst) if op.self_loops else 0
            self._how = (op.negative_slope, num_loops, self._p, self._seed())
            self._attend()

        plan.do(f"{op.out}: by head" if op.averages else op.out, run, *self._read, *self._kept)
        if op.averages:
            plan.do(op.out, lambda: _mean_of_heads(self._by_head.tensor, out.tensor), self._by_head, out)

    def _keys_of(self, destinations: Tensor | None) -> Tensor | None:
        """Return the keys of the rows' dropout masks by node, so that a mask is the same at every level."""
        if destinations is None:
            return None
        part, copies = self.plan.request.part, self.plan.copies
        if part is not None:
            return part.first_edge[: destinations.numel()] + part.ids[: destinations.numel()]
        keys = self.plan.request.whole_edges(self.op.relation).indptr[destinations] + destinations
        return keys if copies is None else copies.array(keys)

    def _scratch(self, name: str, rows: int, width: int) -> FirstRows:
        return self.plan.scratch(f"{self.op.out}: {name}", rows, width)

    def _plan_head_grad(self, *, is_wide: bool) -> FirstRows:
        """Return the heads' gradient; for a mean of heads, that of one, or with ``is_wide`` of all."""
        op, grad = self.op, self.grad
        if not op.averages:
            return grad
        part = self._scratch("gradient by head", grad.count, (op.heads if is_wide else 1) * op.channels)

        def run() -> None:
            _repeat_heads(grad.tensor, 1 / op.heads, part.tensor)

        self.plan.do(f"{op.out}: gradient by head", run, grad, part)
        return part

    def _part_of_grad(self, width: int) -> tuple[FirstRows, FirstRows | None]:
        """Return :meth:`StepPlan.part_of_grad`, or scratch rows if the source needs no gradient."""
        if self.plan.program.learns(self.source):
            return self.plan.part_of_grad(self.source)
        return self._scratch(f"gradient of {self.source}", self._csc.num_src, width), None


class AttendedEdges:
    """The features of the edges that one attention walks, and of the self-loops that it adds.

    Args:
        plan: the step's plan.
        op: an attention that reads edge features.
        csc: the edges that it walks.
    """

    def __init__(self, plan: StepPlan, op: Attention, csc: Csc) -> None:
        self._features, self._op = plan.edge_features, op
        self._level = plan.program.level(op.inputs[0])
        self.num_loops = min(csc.num_src, csc.num_dst) if op.self_loops else 0
        self._joined = None
        if op.self_loops and isinstance(op.fill, str):
            self._joined = plan.edge_features.plan_loops(self._level, op.fill)

    @property
    def loops_differ(self) -> bool:
        """Whether each added self-loop has features of its own."""
        return self._joined is not None

    def rows(self) -> Tensor:
        """Return the ``(num_edges, num_edge_features)`` features of the edges."""
        return self._features.rows(self._level)

    def loops(self) -> Tensor:
        """Return the self-loops' current features: ``(num_loops, num_edge_features)``, or one row for all."""
        if self._joined is not None:
            return self._joined()
        weight, fill = self._op.edge_weight, self._op.fill
        assert weight is not None
        row = fill.detach() if isinstance(fill, Tensor) else torch.tensor(float(fill))
        row = row.to(weight.device, weight.dtype).reshape(1, -1)
        return row.expand(1, weight.shape[1]).contiguous()


class PlannedGatv2(PlannedAttention):
    """GATv2's attention: a logit needs the rows of both ends of its edge.

    The kernels map the features of some edges at a time wherever they need them: no mapped row is stored.
    """

    def __init__(self, plan: StepPlan, op: Attention) -> None:
        super().__init__(plan, op)
        self._own = plan.rows(op.inputs[-1])
        self._read = (*self._read, self._own)
        self._edges = AttendedEdges(plan, op, self._csc) if op.reads_edges else None

    def _inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        own = self._own.tensor[: self._csc.num_dst]
        return self._rows.tensor, own, self.op.vectors[0].detach()[0]

    def _attend(self) -> None:
        csc, inputs = self._csc, self._inputs()
        kept, more = (part.tensor for part in self._written), self._edge_arguments()
        call, keys = backend(inputs[0]).gatv2_forward, self._first_keys
        call(csc.indptr, csc.indices, *inputs, *self._how, *kept, first_keys=keys, **more)

    def _edge_arguments(self) -> dict[str, Any]:
        """Return the kernels' keyword arguments for edge features and their map; none without them."""
        edges, weight = self._edges, self.op.edge_weight
        if edges is None or weight is None:
            return {}
        loops = edges.loops() if edges.num_loops else weight.new_empty(1, weight.shape[1])
        return {
            "edge_features": edges.rows(),
            "loop_features": loops.expand(edges.num_loops, -1),
            "edge_weight": weight.detach().t().contiguous(),
        }

    def backward(self) -> None:
        """Plan a pass over the edges by destination, and one by source."""
        plan, op, csc = self.plan, self.op, self._csc
        source, own, (vector,), weight = self.source, op.inputs[-1], op.vectors, op.edge_weight
        grad = self._plan_head_grad(is_wide=True)
        target, total = self._part_of_grad(op.heads * op.channels)
        own_grad = self._scratch("gradient of own rows", csc.num_dst, op.heads * op.channels)

        def run() -> None:
            inputs, more = self._inputs(), self._edge_arguments()
            to_vector, to_weight = torch.empty_like(inputs[2]), None
            if weight is not None and weight.requires_grad:
                to_weight = weight.detach().new_empty(weight.shape[::-1])
            if more:
                more["grad_edge_weight"] = to_weight
            ways = both_ways(csc, with_ids=needs_ids(inputs[0], self._p) or bool(more))
            kept = self._by_head.tensor, self._lse.tensor, grad.tensor
            grads = target.tensor, own_grad.tensor, to_vector
            call, keys = backend(inputs[0]).gatv2_backward, self._first_keys
            call(*ways, *inputs, *self._how, *kept, *grads, first_keys=keys, **more)
            if weight is not None and to_weight is not None:
                plan.parameters.give(weight, to_weight.t().contiguous())
            if vector.requires_grad:
                plan.parameters.give(vector, to_vector)

        plan.do(f"gradient of {source}", run, *self._read, *self._kept, grad, target, own_grad)
        plan.add_part(source, target, total)
        if plan.program.learns(own):
            whole, is_there = plan.grad_of(own)

            def join() -> None:
                rows = whole.tensor[: csc.num_dst]
                rows.add_(own_grad.tensor) if is_there else rows.copy_(own_grad.tensor)

            plan.do(f"gradient of {own}", join, own_grad, whole)


class PlannedRelationAttention(PlannedByPyTorch[RelationAttention]):
    """Attention over several relations."""

    def __init__(self, plan: StepPlan, op: RelationAttention) -> None:
        super().__init__(plan, op, range(len(op.inputs)))
        block = plan.request.blocks[plan.program.level(op.out) - 1]
        self._cscs = [block.of(relation).csc for relation in op.relations]
        # Mapped keys and values, their copies side by side and the gradients of both; by head, the logits of
        # edges and their gradients; and the edges of all relations as one graph, with its transpose.
        num_src, num_edges = (
            sum(getattr(one, key) for one in self._cscs) for key in ("num_src", "num_edges")
        )
        heads: int = cast("Any", op.layer).heads
        self.other_bytes = 32 * num_src * plan.program.width(op.out) + (8 * heads + 12) * num_edges

    def computed(self, rows: list[Tensor]) -> Tensor:
        """Return the attention."""
        query, *sources = rows
        return attend(self.op.layer, query, sources, [one.edge_type for one in self.op.relations], self._cscs)


@recorded_whole
def _mean_of_heads(by_head: Tensor, out: Tensor) -> None:
    torch.mean(by_head.view(out.shape[0], -1, out.shape[1]), 1, out=out)


@recorded_whole
def _repeat_heads(rows: Tensor, factor: float, out: Tensor) -> None:
    """Write ``factor * rows`` to every head's columns of ``out``."""
    heads = out.view(-1, out.shape[1] // rows.shape[1], rows.shape[1])
    heads.copy_(rows[:, None].expand_as(heads)).mul_(factor)
