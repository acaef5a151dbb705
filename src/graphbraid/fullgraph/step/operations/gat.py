"""GAT's attention: forward and backward, with edge features."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from graphbraid.fullgraph.program import Attention, Operation, RelationAttention
from graphbraid.fullgraph.step.arena import FirstRows
from graphbraid.fullgraph.step.operations.attention import (
    AttendedEdges,
    PlannedAttention,
    PlannedGatv2,
    PlannedRelationAttention,
)
from graphbraid.fullgraph.step.plan import PlannedClass, StepPlan
from graphbraid.graph.csc import Csc
from graphbraid.ops.attention import both_ways, needs_ids
from graphbraid.ops.kernels import backend, recorded_whole
from graphbraid.ops.linear import tall_gram, tall_product


def planned_attention(plan: StepPlan, op: Attention) -> PlannedAttention:
    """Return the planned form of an attention."""
    return (PlannedGat if op.kind == "gat" else PlannedGatv2)(plan, op)


class _GatGradients(NamedTuple):
    """The gradients that GAT's backward pass reads and writes."""

    of_heads: FirstRows
    of_rows: FirstRows
    of_logits: tuple[FirstRows, ...]
    by_source: Sequence[tuple[Tensor, FirstRows]]
    """The vectors that make logits of the rows, each with the gradient of its logits."""


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
        rows, csc, (of_source, of_own) = self._rows.tensor, self._csc, self.op.vectors
        source, own = self._logits
        tall_product(self._scored.tensor[: source.count], _spread_heads(of_source), out=source.tensor)
        tall_product(self._own.tensor[: own.count], _spread_heads(of_own), out=own.tensor)
        out, lse, *above = (part.tensor for part in self._written)
        of_edges = None if self._of_edges is None else self._of_edges.multiply()
        kept = (out, lse, *(above or (None, None)), self._first_keys, of_edges)
        logits = source.tensor, own.tensor
        backend(rows).gat_forward(csc.indptr, csc.indices, rows, *logits, *self._how, *kept)

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
        grads = _GatGradients(grad, target, to_logits, of_source)
        written = (*self._read, *self._kept, grad, target, *to_logits)
        if self._of_edges is not None:
            written = (*written, self._of_edges.grads)
        plan.do(f"gradient of {source}", partial(self._run_whole, grads), *written)
        plan.add_part(source, target, total)
        for value in dict.fromkeys((scored, own)):
            if value != source and plan.program.learns(value):
                whole, is_there = plan.grad_of(value)
                parts = [part for other, part in of_each if other == value]
                run_scored = partial(_add_to_rows, parts, whole, is_there=is_there)
                plan.do(f"gradient of {value}", run_scored, whole, *to_logits)

    def _run_whole(self, grads: _GatGradients) -> None:
        """Compute all gradients in one pass over the edges."""
        rows, of_edges = self._rows.tensor, self._of_edges
        inputs = rows, *(logit.tensor for logit in self._logits)
        kept = self._by_head.tensor, self._lse.tensor, grads.of_heads.tensor
        given = grads.of_rows.tensor, *(logit.tensor for logit in grads.of_logits)
        above = [part.tensor for part in self._above] or (None, None)
        edge_logits: tuple[Tensor | None, ...] = (None, None)
        if of_edges is not None:
            edge_logits = of_edges.logits.tensor, of_edges.grads.tensor
        ways = both_ways(self._csc, with_ids=needs_ids(rows, self._p) or of_edges is not None)
        backend(rows).gat_backward(
            *ways, *inputs, *self._how, *kept, *given, *above, self._first_keys, *edge_logits
        )
        self._give_vectors(grads.of_logits)
        if of_edges is not None:
            of_edges.give()
        _add_to_rows(grads.by_source, grads.of_rows, is_there=True)

    def _give_vectors(self, to_logits: tuple[FirstRows, ...]) -> None:
        both = self._scored.tensor, self._own.tensor
        for vector, logit, rows in zip(self.op.vectors, to_logits, both, strict=True):
            if vector.requires_grad:
                self.plan.parameters.give(vector, _own_heads(tall_gram(logit.tensor, rows[: logit.count])))


class EdgeLogits:
    """The edges' parts of one attention's logits, with their gradients and inputs.

    A part is ``<att_edge[h], W_h e>``: a product of the edge's features with a matrix that has one column per
    head and is folded anew in every step. Rows of added self-loops follow those of the edges.

    Args:
        plan: the step's plan.
        op: a GAT attention that reads edge features.
        csc: the edges that it walks.
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


PLANNED: dict[type[Operation], PlannedClass] = {
    Attention: planned_attention,
    RelationAttention: PlannedRelationAttention,
}
"""The classes of attention, by the operation that they plan."""
