"""FusedMessages: messages made of elementwise steps, computed and reduced by one kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc
from graphbraid.ops.kernels import backend, new_rows
from graphbraid.ops.library import run
from graphbraid.ops.message_programs import (
    MAX,
    MIN,
    SQUARES,
    KernelProgram,
    MessagePrograms,
    column_of,
    kinds_of,
    parameters_read,
)
from graphbraid.ops.message_reductions import SeveralReductions
from graphbraid.ops.message_steps import (
    DOT_PLACE,
    MAX_PLACE,
    MOST_MATRICES,
    SIDES,
    ComposedMap,
    MessageOp,
    MessageStep,
    dot_products,
)
from graphbraid.ops.messages import (
    AggregateMessages,
    EdgeGradients,
    EdgeRows,
    MessageReduction,
    finish_reduction,
    gradient_of_each,
)
from graphbraid.ops.spmm import Ties

_PASSED_DESTINATIONS = 10
"""Matrices of destinations that the kernel takes: backward reads gradients and results, too."""
_EDGES_TO_HOIST = 4
"""Least edges per node for which steps that read one end alone run once per node, not once per edge."""
_OP = MessageOp
_Walk = tuple[Tensor, Tensor, Tensor | None, bool]
"""Rows and edges that a program runs on: ``indptr``, ``indices``, each edge's number (None: its place), and
whether the rows are sources."""


@dataclass(frozen=True, eq=False)
class _Given:
    """Arguments of the kernels that a message reads."""

    sources: tuple[Tensor | None, ...]
    destinations: tuple[Tensor | None, ...]
    parameters: Tensor
    edges: Tensor | None = None
    weight: Tensor | None = None

    def of(self, side: MessageOp) -> tuple[Tensor | None, ...]:
        """Return the matrices of one side."""
        return self.sources if side is _OP.SOURCE else self.destinations

    def having(self, side: MessageOp, matrices: Sequence[Tensor | None]) -> _Given:
        """Return the same with other matrices of one side."""
        kept = tuple(matrices)
        return replace(self, sources=kept) if side is _OP.SOURCE else replace(self, destinations=kept)


_KEPT_BYTES = 1 << 25
"""Most bytes of one number per edge and head that dot-product attention keeps between backward's walks."""


def keeps_logits(csc: Csc, heads: int, itemsize: int) -> bool:
    """Return whether dot-product attention keeps these numbers, by which its second walk has no products."""
    return not csc.is_own_reverse and csc.num_edges * heads * itemsize <= _KEPT_BYTES


_NO_EDGES: Mapping[str, Tensor] = {}


def dot_backward(
    csc: Csc,
    given: tuple[Any, ...],
    results: tuple[Tensor, ...],
    grad: Tensor,
    to: tuple[Tensor | None, Tensor | None, Tensor | None],
    *,
    adds: bool,
    edges: Mapping[str, Tensor] = _NO_EDGES,
) -> None:
    """Compute the gradients of dot-product attention.

    If a number for each edge and head takes little memory, these numbers are kept between the two walks over
    the edges, so that the second walk computes no products. The bits are the same.

    Args:
        csc: the edges.
        given: values, keys, queries and scale, as the kernels take them.
        results: what forward wrote: its result, the largest logits and the logarithms of the sums.
        grad: gradient of the result.
        to: gradients of values, keys and queries; None where one is not wanted.
        adds: whether to add to these, and not to write them.
        edges: features of edges, their map, its gradient and what forward kept of them, as the kernels name
            them.
    """
    shape, more = (csc.num_edges, results[1].shape[1]), dict(edges)
    keeps = to[2] is not None and any(one is not None for one in to[:2])
    keeps = keeps and keeps_logits(csc, shape[1], grad.itemsize)
    if keeps or edges:
        reverse, more["perm"] = csc.transpose()
    else:
        reverse = csc.reversed()
    if keeps:
        more["grad_logit"] = new_rows(grad, *shape)
    ways = csc.indptr, csc.indices, reverse.indptr, reverse.indices
    backend(grad).dot_backward(*ways, *given, *results, grad, *to, adds, **more)


class FusedMessages:
    """Messages of a graph's edges and their reduction, by one kernel that stores no row per edge.

    An edge's steps run in registers on some columns at a time. Costly steps that read one end alone run once
    for each node. Backward computes the steps again, once over the out-edges for the sources' gradients, and
    once over the in-edges for the destinations', unless forward has kept slopes: a sum's gradient is the same
    for all edges of a node, so it can be multiplied by the sum of what each message grows by. Sums are in the
    order of the edges, so results do not depend on the number of threads. Runs in float32.

    On the CPU a message that is dot-product attention, whose keys and values may have a linear map of edge
    features added, runs in that attention's own kernels.

    Args:
        csc: the graph or block.
        steps: the message; the last step gives it.
        reduction: how the messages to a node become one row. Nodes without any have zeros.
        width: columns of wide rows, and of the result of one reduction.
        parameters: the parameters that the message reads. Each has ``width`` numbers, one number, or one for
            each head if the step that reads it is narrow. Of a matrix, ``(width, columns)``, a step reads one
            column.
        composed: linear maps of linear maps, which steps read as further parameters.
        ties: see :class:`.BlockedMessages`.
        heads: a wide row has this many heads, one behind the other; a narrow row has a number for each.

    Raises:
        DataError: there are too many steps, or one reads something else than earlier ones and parameters.
    """

    records = False
    """Whether autograd records messages in forward."""

    def __init__(
        self,
        csc: Csc,
        steps: Sequence[MessageStep],
        reduction: MessageReduction | SeveralReductions,
        width: int,
        *,
        parameters: Sequence[Tensor] = (),
        composed: Sequence[ComposedMap] = (),
        ties: Ties = "shared",
        heads: int = 1,
    ) -> None:
        self._csc, self._width = csc, width
        self._several = reduction if isinstance(reduction, SeveralReductions) else None
        self._reduction: MessageReduction = "own" if isinstance(reduction, SeveralReductions) else reduction
        self._ties = ties if self._several is None else self._several.ties
        self._parameters, self._composed, self._heads = parameters, composed, heads
        steps, self._read = parameters_read(steps, len(parameters) + len(composed))
        self.like = torch.empty(0, dtype=torch.float32, device=csc.indptr.device)
        """A float32 tensor where the rows are."""
        self._walk: _Walk = csc.indptr, csc.indices, None, False
        self._walks_at_nodes = dict[MessageOp, _Walk]()
        self._nodes = {_OP.SOURCE: csc.num_src, _OP.DESTINATION: csc.num_dst}
        on_cpu, are_numbers = self.like.device.type == "cpu", tuple(p.numel() == 1 for p in self._columns)
        hoists = tuple(on_cpu and csc.num_edges >= _EDGES_TO_HOIST * self._nodes[side] for side in SIDES)
        self._message = MessagePrograms.of(tuple(steps), are_numbers, kinds_of(reduction), hoists)
        # Triton has no kernel of its own for dot products: there they are a message's steps like others.
        has_kernel = hasattr(backend(self.like), "dot_forward")
        self._attends = dot_products(steps) if reduction == "sum" and has_kernel else None

    @property
    def _columns(self) -> list[Tensor]:
        """The parameters, and columns of parameters, that steps read, as they are now."""
        whole = [one.detach() for one in self._parameters]
        whole += [one.of(whole) for one in self._composed]
        return [column_of(whole[at], column) for at, column in self._read]

    @property
    def count_width(self) -> int:
        """Columns of the counts that maxima and minima write for backward; 0 without any."""
        return self._width * sum(kind in (MAX, MIN) for kind in self._message.kinds)

    @property
    def reads_result(self) -> bool:
        """Whether backward reads the result."""
        return self._several is None and (self.count_width > 0 or self._message.softmax is not None)

    def writes_gradients(self, num_sources: int, num_destinations: int) -> bool:
        """Return whether backward can write the gradients of its matrices, each in memory of its own.

        Otherwise it adds to them.
        """
        of = self._attends
        return of is not None and of.key != of.value and (num_sources, num_destinations) == (2, 1)

    @property
    def _slopes(self) -> KernelProgram | None:
        return self._message.with_slopes if self._several is None else None

    @property
    def kept_widths(self) -> tuple[int, ...]:
        """Columns of the matrices of destinations that forward may keep for backward, which spare it a walk.

        They are slopes, by how much the sum of the messages grows with each row of the destinations; or a
        softmax's largest scores and the logarithms of its sums; or what several reductions are computed from.
        """
        if self._several is not None:
            return (self._width,) * len(self._message.kinds)
        if self._message.softmax is not None:
            sums = (self._heads if self._message.softmax_is_narrow else self._width,) * 2
            has_map = self._attends is not None and self._attends.edge_map
            return (*sums, self._heads * len(self._read)) if has_map else sums
        slopes = self._slopes
        return () if slopes is None else (self._width,) * (len(slopes.places) - 1)

    def forward(
        self, rows: EdgeRows, out: Tensor, count: Tensor | None = None, *, kept: Sequence[Tensor] = ()
    ) -> None:
        """Compute the reduced messages; see :meth:`.BlockedMessages.forward`.

        Args:
            rows: what the message reads; an edge weight is a vector.
            out: ``(num_dst, width)`` float32, written; wider for several reductions.
            count: ``(num_dst, count_width)`` int32, written, for the backward pass of maxima and minima; or
                None.
            kept: a matrix of ``num_dst`` rows for each of :attr:`kept_widths`, written; or none.
        """
        if self._attends is not None:
            self._attend(rows, out, kept)
            return
        given, slopes = self._given(rows), self._slopes
        if self._message.softmax is not None:
            given = self._with_sums(given, kept)
        sums: Sequence[Tensor] = [out]
        if self._several is not None:
            sums = kept or [new_rows(self.like, len(out), width) for width in self.kept_widths]
        if kept and slopes is not None:
            self._run(slopes, self._walk, given, [out, *kept], in_order=True)
        else:
            self._run(self._message.forward, self._walk, given, sums, count=count)
        self._finish(sums, count)
        if self._several is not None:
            self._several.finish(self._csc, sums, out)

    def _attended(self, rows: EdgeRows, kept: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Tensor]]:
        """Return the arguments of the kernels of dot-product attention, those of edges by name.

        The first ones are values, keys, queries and scale. Of ``kept``, the last is what edges mix to.
        """
        assert self._attends is not None
        of = self._attends
        values, keys = (rows.sources[at].detach().contiguous() for at in (of.value, of.key))
        queries = rows.destinations[of.query].detach()[: self._csc.num_dst].contiguous()
        edges = dict[str, Tensor]()
        if of.edge_map:
            weight = self._spread_parameters()[[at for at, _ in of.edge_map]]
            features = next(e for e in rows.edges if e.ndim == 2).detach()[:, : of.num_features]
            if features.shape[1] < of.num_features:
                raise DataError(
                    f"steps read {of.num_features} numbers of edges, which have {features.shape[1]}"
                )
            edges = {"edge_features": features.contiguous(), "edge_weight": weight, "mixed": kept[-1]}
        return (values, keys, queries, of.scale), edges

    def _attend(self, rows: EdgeRows, out: Tensor, kept: Sequence[Tensor]) -> Sequence[Tensor]:
        """Compute dot-product attention; return the largest logits and the logarithms of sums below these."""
        kept = kept or [new_rows(self.like, len(out), width) for width in self.kept_widths]
        given, edges = self._attended(rows, kept)
        call = backend(self.like).dot_forward
        call(self._csc.indptr, self._csc.indices, *given, out, *kept[:2], **edges)
        return kept

    def _attend_backward(
        self, rows: EdgeRows, grad: Tensor, into: EdgeGradients, out: Tensor, kept: Sequence[Tensor]
    ) -> None:
        """Compute the gradients of dot-product attention."""
        assert self._attends is not None
        csc, of = self._csc, self._attends
        query = into.destinations[of.query]
        to = into.sources[of.value], into.sources[of.key], None if query is None else query[: csc.num_dst]
        kept = kept or self._attend(rows, torch.empty_like(out), ())
        if query is not None and into.is_new:
            query[csc.num_dst :].zero_()
        given, edges = self._attended(rows, kept)
        learning = self._learning(into.parameters)
        learns_map = any(learning[self._read[at][0]] is not None for at, _ in of.edge_map)
        if learns_map:
            edges["grad_edge_weight"] = torch.empty_like(edges["edge_weight"])
        results, adds = (out, *kept[:2]), not into.is_new
        dot_backward(csc, given, results, grad.contiguous(), to, adds=adds, edges=edges)
        if learns_map:
            totals = self._zeros_of_parameters()
            totals[[at for at, _ in of.edge_map]] = edges["grad_edge_weight"]
            self._pass_on(totals, learning, into.parameters)

    def _finish(self, sums: Sequence[Tensor], count: Tensor | None) -> None:
        """Divide the sum of a mean, and count the zeros of maxima and minima among their ties."""
        if self._several is None:
            finish_reduction(self._csc, self._reduction, self._ties, sums[0], count)
            return
        extrema = [one for kind, one in zip(self._message.kinds, sums, strict=True) if kind in (MAX, MIN)]
        for number, one in enumerate(extrema):
            at = slice(number * self._width, (number + 1) * self._width)
            finish_reduction(self._csc, "max", self._ties, one, None if count is None else count[:, at])

    def backward(
        self,
        rows: EdgeRows,
        grad: Tensor,
        into: EdgeGradients,
        *,
        out: Tensor | None = None,
        count: Tensor | None = None,
        kept: Sequence[Tensor] = (),
    ) -> None:
        """Add the gradients of what the message reads; see :meth:`.BlockedMessages.backward`.

        ``into`` has no gradients of edges. ``kept`` comes from :meth:`forward`. A softmax needs ``out``, too.
        """
        if self._attends is not None:
            assert out is not None
            self._attend_backward(rows, grad, into, out, kept)
            return
        csc, given = self._csc, self._given(rows)
        more = self._gradients_of_sums(grad, out, count, kept)
        given = given.having(_OP.DESTINATION, (*given.destinations, *more))
        if self._message.softmax is not None:
            assert out is not None
            dot = more[0] * out
            if self._message.softmax_is_narrow:
                dot = dot.view(len(dot), self._heads, dot.shape[1] // self._heads).sum(2)
            given = self._with_sums(given, kept, written=bool(kept))
            places = given.destinations
            given = given.having(_OP.DESTINATION, (*places[:DOT_PLACE], dot, *places[DOT_PLACE + 1 :]))
        learning = self._learning(into.parameters)
        learned = tuple(learning[at] is not None for at, _ in self._read)
        totals, slopes = self._zeros_of_parameters(), self._slopes if kept else None
        all_targets = [
            [
                None if t is None else t[: self._nodes[side]]
                for t in _filled(of_side, self._message.counts[side])
            ]
            for side, of_side in zip(SIDES, (into.sources, into.destinations), strict=True)
        ]
        wanted = tuple(tuple(t is not None for t in to) for to in all_targets)
        programs = self._message.backward(wanted, learned, has_slopes=slopes is not None)
        for side, to, (walks, at_nodes) in zip(SIDES, all_targets, programs, strict=True):
            inner = [self._empty(step, self._nodes[side]).zero_() for step in self._message.hoisted[side]]
            gets = (*to, *inner)
            if slopes is not None and side is _OP.DESTINATION:
                for place, slope in zip(slopes.places[1:], kept, strict=True):
                    if (target := gets[place]) is not None:
                        target.addcmul_(more[0], slope)
            if walks is not None:
                walk = self._walk
                if side is _OP.SOURCE:
                    reverse, perm = csc.transpose()
                    walk = reverse.indptr, reverse.indices, perm, True
                self._run(walks, walk, given, gets, adds=True, totals=totals)
            if at_nodes is not None:
                read = replace(given, edges=None, weight=None)
                read = read.having(side, (*given.of(side)[: self._message.counts[side]], *inner))
                self._run(at_nodes, self._at_nodes(side), read, to, adds=True, totals=totals)
        self._pass_on(totals, learning, into.parameters)

    def _learning(self, to: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Return the gradients of parameters, and behind them zeros for those of composed maps."""
        reaches = any(one is not None for one in to)
        made = [torch.zeros_like(one.of(self._parameters)) if reaches else None for one in self._composed]
        return *to, *made

    def _pass_on(
        self, totals: Tensor, learning: Sequence[Tensor | None], to: Sequence[Tensor | None]
    ) -> None:
        """Add the gradients of what steps read, a row each, to those of parameters and composed maps."""
        for row, (at, column) in zip(totals, self._read, strict=True):
            if (whole := learning[at]) is not None:
                total = column_of(whole, column)
                given_to = row.sum() if total.numel() == 1 else row[: total.numel()]
                total.add_(given_to.view(total.shape))
        for composed, grad in zip(self._composed, learning[len(to) :], strict=True):
            if grad is not None:
                composed.pass_back(grad, self._parameters, to)

    def _gradients_of_sums(
        self, grad: Tensor, out: Tensor | None, count: Tensor | None, sums: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the matrices of destinations for backward: gradients; an extremum's, then the extremum."""
        if self._several is None:
            each = gradient_of_each(self._csc, self._reduction, grad, count).contiguous()
            return [each, out] if self.count_width and out is not None else [each]
        more, number = list[Tensor](), 0
        grads = self._several.gradients(self._csc, sums, grad)
        for kind, one, given in zip(self._message.kinds, sums, grads, strict=True):
            if kind in (MAX, MIN):
                assert count is not None
                of_one = count[:, number * self._width : (number + 1) * self._width]
                more += [given / of_one.clamp(min=1), one]
                number += 1
            else:
                more.append(2 * given if kind == SQUARES else given.contiguous())
        return more

    def _at_nodes(self, side: MessageOp) -> _Walk:
        """Return the walk of each node of a side alone, made once."""
        if side not in self._walks_at_nodes:
            ids = torch.arange(self._nodes[side] + 1, device=self.like.device)
            self._walks_at_nodes[side] = ids, ids[:-1].int(), None, side is _OP.SOURCE
        return self._walks_at_nodes[side]

    def _zeros_of_parameters(self) -> Tensor:
        made = self.like.new_empty(len(self._read), self._width)
        return made.zero_() if self._read else made

    def _spread_parameters(self) -> Tensor:
        """Return a row for each parameter that is read, with zeros behind its numbers."""
        rows = self._zeros_of_parameters()
        for row, parameter in zip(rows, self._columns, strict=True):
            row[: parameter.numel() if parameter.numel() > 1 else None] = parameter.detach().reshape(-1)
        return rows

    def _empty(self, step: int, number: int) -> Tensor:
        narrow = self._message.whole.all[step].narrow
        return new_rows(self.like, number, self._heads if narrow else self._width)

    def _given(self, rows: EdgeRows) -> _Given:
        """Return the arguments of the kernels, after the steps that run once for each node."""
        learned = self._spread_parameters()
        given = _Given(
            sources=self._padded(_OP.SOURCE, rows.sources),
            destinations=self._padded(_OP.DESTINATION, rows.destinations),
            parameters=learned,
        )
        for side, program in self._message.at_nodes.items():
            number = self._nodes[side]
            made = [self._empty(step, number) for step in self._message.hoisted[side]]
            self._run(program, self._at_nodes(side), given, made)
            given = given.having(side, (*given.of(side), *made))
        of_edges = [e.detach().contiguous() for e in rows.edges]
        return replace(
            given,
            edges=next((e for e in of_edges if e.ndim == 2), None),
            weight=next((e for e in of_edges if e.ndim == 1), None),
        )

    def _with_sums(self, given: _Given, kept: Sequence[Tensor], *, written: bool = False) -> _Given:
        """Return what is read with the logarithms of a softmax's sums, computed if they are not yet."""
        sums = kept or [new_rows(self.like, self._csc.num_dst, width) for width in self.kept_widths]
        if not written:
            assert self._message.softmax is not None
            self._run(self._message.softmax, self._walk, given, sums, in_order=True)
        return given.having(_OP.DESTINATION, (*_filled(given.destinations, MAX_PLACE), *sums))

    def _padded(self, side: MessageOp, rows: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        found = [one.detach().contiguous() for one in rows[: self._message.counts[side]]]
        return (*found, *[None] * (self._message.counts[side] - len(found)))

    def _run(
        self,
        program: KernelProgram,
        walk: _Walk,
        given: _Given,
        out: Sequence[Tensor | None],
        *,
        count: Tensor | None = None,
        adds: bool = False,
        in_order: bool = False,
        totals: Tensor | None = None,
    ) -> None:
        """Run a program; add its sums over all edges to ``totals``.

        Results go to their places in ``out``, or in its order.
        """
        sums = torch.zeros_like(given.parameters) if program.has_totals else None
        to = out if in_order else [out[place] for place in program.places]
        nodes = *_filled(given.sources, MOST_MATRICES), *_filled(given.destinations, _PASSED_DESTINATIONS)
        read = *nodes, given.edges, given.weight, given.parameters
        written = *_filled(to, MOST_MATRICES), count, sums
        how = self._heads, program.steps, program.numbers
        backend(given.parameters).reduce_messages(*walk, *how, *read, program.results, adds, *written)
        if totals is not None and sums is not None:
            totals += sums


def aggregate_steps(
    csc: Csc,
    steps: Sequence[MessageStep],
    *,
    sources: Sequence[Tensor] = (),
    destinations: Sequence[Tensor] = (),
    edges: Sequence[Tensor] = (),
    parameters: Sequence[Tensor] = (),
    reduction: MessageReduction | SeveralReductions = "sum",
    ties: Ties = "shared",
    width: int,
    width_out: int | None = None,
    heads: int = 1,
) -> Tensor:
    """Reduce messages made of steps, as :func:`.aggregate_messages` does, by one kernel.

    Sources, destinations and edges are float32; edges get no gradients, and are at most one matrix and one
    vector. Steps read whole rows of a matrix of ``width`` columns, or single numbers of any matrix's rows.
    All else is as in :class:`FusedMessages`. The result is ``(num_dst, width_out or width)``.
    """
    how = FusedMessages(csc, steps, reduction, width, parameters=parameters, ties=ties, heads=heads)
    sizes = len(sources), len(destinations), len(edges)
    shape = csc.num_dst, width if width_out is None else width_out
    out: Tensor = run(AggregateMessages, how, shape, sizes, {}, *sources, *destinations, *edges, *parameters)
    return out


def _filled(tensors: Sequence[Tensor | None], number: int) -> tuple[Tensor | None, ...]:
    return (*tensors, *[None] * number)[:number]
