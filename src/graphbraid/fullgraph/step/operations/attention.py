"""Attention over in-neighbours: GAT's and GATv2's, forward and backward, and attention over relations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from graphbraid import native
from graphbraid.fullgraph.program import Attention, RelationAttention
from graphbraid.fullgraph.reading.relational import attend
from graphbraid.fullgraph.step.operations.by_pytorch import PlannedByPyTorch
from graphbraid.fullgraph.step.plan import PlannedOperation, StepPlan
from graphbraid.fullgraph.step.tasks import FirstRows, Rows
from graphbraid.graph.csc import Csc
from graphbraid.ops.attention import both_ways, needs_ids
from graphbraid.ops.kernels import backend, recorded_whole
from graphbraid.ops.linear import tall_gram, tall_product


class PlannedAttention(PlannedOperation[Attention]):
    """One attention of a planned step.

    For backward the kernels store one or two numbers per row and head and, for GAT, the part of the sum that
    comes from edges with a positive logit. Without edge features, nothing is stored per edge.
    """

    def __init__(self, plan: StepPlan, op: Attention) -> None:
        super().__init__(plan, op)
        level = plan.program.level(self.source)
        self._csc = plan.blocks[level].of(op.relation).csc
        self.keeps_result = not op.averages
        self._learns = plan.training and plan.program.learns(op.out)
        self._p = op.dropout
        self._seed = plan.seeds.add() if self._p > 0 else lambda: 0
        destinations = plan.request.blocks[level].after(plan.program.node_type(op.out))[1]
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
    """The features of the edges ``csc`` that one attention walks, and of the self-loops that it adds."""

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
    torch.mean(by_head.view(out.shape[0], by_head.shape[1] // out.shape[1], out.shape[1]), 1, out=out)


@recorded_whole
def _repeat_heads(rows: Tensor, factor: float, out: Tensor) -> None:
    """Write ``factor * rows`` to every head's columns of ``out``."""
    heads = out.view(-1, out.shape[1] // rows.shape[1], rows.shape[1])
    heads.copy_(rows[:, None].expand_as(heads)).mul_(factor)


class PlannedGat(PlannedAttention):
    """GAT's attention: per head, a logit is the sum of a number of the source and one of the destination."""

    def __init__(self, plan: StepPlan, op: Attention) -> None:
        super().__init__(plan, op)
        csc, heads = self._csc, op.heads
        self._scored, self._own = (plan.rows(value) for value in _scored(op))
        self._read = tuple({id(rows): rows for rows in (*self._read, self._scored, self._own)}.values())
        self._logits = (
            self._scratch("source logits", csc.num_src, heads),
            self._scratch("destination logits", csc.num_dst, heads),
        )
        self._above: tuple[FirstRows, ...] = ()
        if self._learns and plan.copies is None:  # other devices' kernels need neither
            self._above = (
                self._scratch("rows above", csc.num_dst, heads * op.channels),
                self._scratch("share above", csc.num_dst, heads),
            )
        self._written = (*self._written, *self._above)
        self._kept = (*self._written, *self._logits)
        self._of_edges = EdgeLogits(plan, op, csc) if op.reads_edges else None
        if self._of_edges is not None:
            self._kept = (*self._kept, self._of_edges.logits)

    def _attend(self) -> None:
        rows, csc, vectors = self._rows.tensor, self._csc, self._kernel_vectors()
        if vectors is None:
            of_each = zip((self._scored, self._own), self._logits, self.op.vectors, strict=True)
            for scored, logit, vector in of_each:
                tall_product(scored.tensor[: logit.count], _spread_heads(vector), out=logit.tensor)
        out, lse, *above = (part.tensor for part in self._written)
        of_edges = None if self._of_edges is None else self._of_edges.multiply()
        kept = (out, lse, *(above or (None, None)), self._first_keys, of_edges)
        logits, more = (logit.tensor for logit in self._logits), () if vectors is None else (vectors,)
        backend(rows).gat_forward(csc.indptr, csc.indices, rows, *logits, *self._how, *kept, *more)

    def _kernel_vectors(self) -> Tensor | None:
        """Return the vectors ``(2, heads * channels)`` if the kernels make the logits, as compiled ones can.

        They do this while the rows are in the cache, also for the logits' gradients. A record of the calls,
        which becomes a program, holds products of its own instead.
        """
        is_compiled = backend(self._rows.tensor) is native.kernels()
        if not is_compiled or self._of_edges is not None or {*_scored(self.op)} != {self.source}:
            return None
        return torch.cat([vector.detach() for vector in self.op.vectors]).flatten(1)

    def backward(self) -> None:
        """Plan a pass over the edges by source, then the gradients of rows and vectors from the logits'."""
        plan, op, source, (scored, own) = self.plan, self.op, self.source, _scored(self.op)
        grad = self._plan_head_grad(is_wide=False)
        target, total = self._part_of_grad(op.heads * op.channels)
        to_logits = tuple(
            self._scratch("gradient of logits", logit.count, op.heads) for logit in self._logits
        )
        of_each = list(zip((scored, own), zip(op.vectors, to_logits, strict=True), strict=True))
        of_source = [part for value, part in of_each if value == source]
        written = (*self._read, *self._kept, grad, target, *to_logits)
        if self._of_edges is not None:
            written = (*written, self._of_edges.grads)

        def run() -> None:
            if not self._run_whole(grad, target, to_logits):
                _add_to_rows(of_source, target, is_there=True)

        plan.do(f"gradient of {source}", run, *written)
        plan.add_part(source, target, total)
        for value in dict.fromkeys((scored, own)):
            if value != source and plan.program.learns(value):
                whole, is_there = plan.grad_of(value)
                parts = [part for other, part in of_each if other == value]
                run_scored = partial(_add_to_rows, parts, whole, is_there=is_there)
                plan.do(f"gradient of {value}", run_scored, whole, *to_logits)

    def _run_whole(self, grad: FirstRows, to_rows: FirstRows, to_logits: tuple[FirstRows, ...]) -> bool:
        """Compute all gradients in one pass over the edges.

        Returns:
            Whether the rows' gradient has the part that comes through the logits.
        """
        rows, of_edges, vectors = self._rows.tensor, self._of_edges, self._kernel_vectors()
        through = () if vectors is None else (vectors, torch.empty_like(vectors))
        inputs = rows, *(logit.tensor for logit in self._logits)
        kept = self._by_head.tensor, self._lse.tensor, grad.tensor
        given = to_rows.tensor, *(logit.tensor for logit in to_logits)
        above = [part.tensor for part in self._above] or (None, None)
        edge_logits: tuple[Tensor | None, ...] = (None, None)
        if of_edges is not None:
            edge_logits = of_edges.logits.tensor, of_edges.grads.tensor
        ways = both_ways(self._csc, with_ids=needs_ids(rows, self._p) or of_edges is not None)
        backend(rows).gat_backward(
            *ways, *inputs, *self._how, *kept, *given, *above, self._first_keys, *edge_logits, *through
        )
        both = self._scored.tensor, self._own.tensor
        for number, (vector, logit) in enumerate(zip(self.op.vectors, to_logits, strict=True)):
            if not vector.requires_grad:
                continue
            if through:
                to_vector = through[1][number]
            else:
                to_vector = _own_heads(tall_gram(logit.tensor, both[number][: logit.count]))
            self.plan.parameters.give(vector, to_vector)
        if of_edges is not None:
            of_edges.give()
        return bool(through)


class EdgeLogits:
    """The edges' parts of one attention's logits, with their gradients and inputs.

    A part is ``<att_edge[h], W_h e>``: a product of the edge's features with a matrix that has one column per
    head and is folded anew in every step. Rows of added self-loops follow those of the edges.
    """

    def __init__(self, plan: StepPlan, op: Attention, csc: Csc) -> None:
        assert op.edge_weight is not None
        assert op.edge_vector is not None
        self._parameters, self._op, self._num_edges = plan.parameters, op, csc.num_edges
        self._weight, self._vector = op.edge_weight, op.edge_vector
        self._edges = AttendedEdges(plan, op, csc)
        count = csc.num_edges + self._edges.num_loops
        self.logits = plan.scratch(f"{op.out}: edge logits", count, op.heads)
        self.grads = plan.scratch(f"{op.out}: gradient of edge logits", count, op.heads)
        self._ones = torch.ones(self._edges.num_loops, 1)

    def multiply(self) -> Tensor:
        """Compute :attr:`logits`."""
        folded, out = self._folded().t(), self.logits.tensor
        tall_product(self._edges.rows(), folded, out=out[: self._num_edges])
        if self._edges.loops_differ:
            tall_product(self._edges.loops(), folded, out=out[self._num_edges :])
        elif self._op.self_loops:
            out[self._num_edges :] = self._edges.loops() @ folded
        return out

    def give(self) -> None:
        """Hand the parameters' gradients to the plan, computed from :attr:`grads`."""
        edges, loops = self.grads.tensor[: self._num_edges], self.grads.tensor[self._num_edges :]
        to_folded = tall_gram(edges, self._edges.rows())
        if self._edges.loops_differ:
            to_folded += tall_gram(loops, self._edges.loops())
        elif self._op.self_loops:
            to_folded += tall_gram(loops, self._ones) * self._edges.loops()
        by_head, vector = self._by_head(), self._vector.detach()[0]
        if self._weight.requires_grad:
            self._parameters.give(self._weight, vector[:, :, None] * to_folded[:, None])
        if self._vector.requires_grad:
            self._parameters.give(self._vector, (by_head * to_folded[:, None]).sum(-1))

    def _by_head(self) -> Tensor:
        """Return the weight as ``(heads, channels, num_edge_features)``."""
        return self._weight.detach().view(self._op.heads, self._op.channels, -1)

    def _folded(self) -> Tensor:
        """Return the folded matrix, ``(heads, num_edge_features)``."""
        return (self._by_head() * self._vector.detach()[0][:, :, None]).sum(1)


def _scored(op: Attention) -> tuple[str, str]:
    """Return the values whose rows give the sources' and the destinations' coefficients."""
    return (op.inputs[0], op.inputs[1]) if op.own_rows else (op.inputs[-1], op.inputs[-1])


def _add_to_rows(parts: Sequence[tuple[Tensor, FirstRows]], target: FirstRows, *, is_there: bool) -> None:
    """Add the part of the rows' gradient that comes from their logits. Source logits cover all rows."""
    for i, (vector, logit) in enumerate(parts):
        into = target.tensor[: logit.count]
        tall_product(logit.tensor, _spread_heads(vector).t(), out=into, add=is_there or i > 0)


@recorded_whole
def _spread_heads(vector: Tensor) -> Tensor:
    """Return ``(heads * channels, heads)``: each head's vector in its own rows, zeros elsewhere."""
    heads = vector.shape[1]
    own = torch.eye(heads, dtype=vector.dtype, device=vector.device)
    return (vector.detach()[0][:, :, None] * own[:, None]).flatten(0, 1)


@recorded_whole
def _own_heads(gram: Tensor) -> Tensor:
    """Return the ``(heads, channels)`` diagonal blocks of ``(heads, heads * channels)``."""
    heads = gram.shape[0]
    return gram.view(heads, heads, -1).diagonal(dim1=0, dim2=1).t().contiguous()
