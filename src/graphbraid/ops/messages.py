"""aggregate_messages: any function of an edge's rows, reduced over in-neighbours on blocks of edges."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from graphbraid.arguments import shown
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph.csc import Csc
from graphbraid.ops.gather import add_rows
from graphbraid.ops.kernels import backend, check_row_dtype, new_rows, recorded_whole
from graphbraid.ops.library import inverse_degrees, once_differentiable, run
from graphbraid.ops.message_reductions import OrderedScatters
from graphbraid.ops.rng import draw_seed
from graphbraid.ops.spmm import TIES, Ties
from graphbraid.signatures import typed

MessageReduction = Literal["sum", "mean", "max", "min", "own"]
REDUCTIONS: tuple[MessageReduction, ...] = ("sum", "mean", "max", "min")
"""The reductions that need nothing from the message but a row per edge."""
_BLOCK_FLOATS = 1 << 18
"""Elements of a block's messages: a megabyte, so that a few temporaries of a message stay in the cache."""
_DEVICE_BLOCK_FLOATS = 1 << 24
"""The same on a device, whose kernels need many edges to be busy: 64 MiB."""
_LEAST_EDGES = 256
"""Edges of a block at any width: calls of PyTorch cost some microseconds each."""


@typed
def aggregate_messages(
    csc: Csc,
    message: Callable[..., Tensor],
    *,
    sources: Sequence[Tensor] = (),
    destinations: Sequence[Tensor] = (),
    edges: Sequence[Tensor] = (),
    parameters: Sequence[Tensor] = (),
    reduction: MessageReduction = "sum",
    ties: Ties = "shared",
    shape: tuple[int, ...] | None = None,
    by_destination: bool = False,
    draws: bool = False,
    edge_width: int | None = None,
) -> Tensor:
    """Reduce the messages of all edges ``u -> v`` to rows of their destinations.

    The message runs on some thousand edges at a time, whose rows stay in the cache; in backward once more,
    unless these are all edges.
    Memory is taken for those edges and not for all. Sums are added edge by edge in order, so results do not
    depend on the number of threads.

    Args:
        csc: the graph or block.
        message: takes one matrix with a row per edge for each of ``sources``, then ``destinations``, then
            ``edges``; returns ``(num_edges, ...)``. Each row of its result may depend only on the same row of
            its arguments, and it must give the same each time: it may run twice.
        sources: each ``(num_src, ...)``; the message gets row ``u``.
        destinations: each ``(at least num_dst, ...)``; the message gets row ``v``.
        edges: each ``(num_edges, ...)``, in the order of ``csc``; the message gets the edge's own row.
        parameters: the tensors beside these that the message reads and that need gradients.
        reduction: ``sum``, ``mean``, ``max`` or ``min``, where nodes without messages have zeros; or ``own``,
            with ``by_destination``: the message returns a row for each destination instead.
        ties: which of several equal messages receive a maximum's or minimum's gradient; not ``first``.
        shape: the shape of one edge's message. If None, it is found by running the message on no edges.
        by_destination: whether a row of the message may depend on all edges of its destination. All of these
            are then in one block, whatever their number. The message also takes ``index``, an int64 vector
            with the destination of each edge, and ``num_rows``, the number of destinations of the block.
        draws: whether the message draws random numbers from torch's generator on the CPU. Backward then draws
            the same.
        edge_width: elements of one edge's message where ``reduction`` is ``own``. If None, those of a row.

    Returns:
        ``(num_dst, ...)`` of the message's dtype.

    Raises:
        ConfigError: ``reduction`` or ``ties`` is not one of those, or ``draws`` on another device.
        DataError: rows do not fit the graph, or the message returns something else than one row per edge.
    """
    if reduction not in (*REDUCTIONS, "own"):
        raise ConfigError(f"reduction must be one of {', '.join(REDUCTIONS)} or own; got {reduction!r}")
    if ties not in TIES[1:]:
        raise ConfigError(f"ties must be one of {', '.join(TIES[1:])}; got {ties!r}")
    if reduction == "own" and not by_destination:
        raise ConfigError("reduction='own' needs by_destination=True")
    if draws and csc.indptr.device.type != "cpu":
        raise ConfigError("draws=True needs the CPU: backward repeats the draws of the CPU's generator alone")
    if not (sources or destinations or edges):
        raise DataError("a message needs rows to read: sources, destinations or edges")
    counts = (csc.num_src, "source"), (csc.num_dst, "destination"), (csc.num_edges, "edge")
    for group, (number, of) in zip((sources, destinations, edges), counts, strict=True):
        for rows in group:
            check_row_dtype(rows, f"{of} rows")
            found = rows.shape[0] if rows.ndim else -1
            if found != number and not (of == "destination" and found > number):
                raise DataError(f"{of} rows must be {number}; got shape {tuple(rows.shape)}")
    if not all(isinstance(one, Tensor) for one in parameters):
        raise DataError(f"parameters must be tensors; got {shown(parameters)}")
    if shape is None:
        if by_destination:
            _check_takes_destinations(message)
        of_block = {"index": csc.indptr.new_zeros(0), "num_rows": 0} if by_destination else {}
        with torch.no_grad():
            none = (rows.detach()[:0] for rows in (*sources, *destinations, *edges))
            of_none = message(*none, **of_block).shape
        if len(of_none) == 0 or of_none[0] != 0:
            raise DataError(
                f"the message must return one row per edge; of no edges it returned {tuple(of_none)}"
            )
        shape = tuple(of_none[1:])
    blocked = BlockedMessages(
        csc,
        message,
        reduction,
        math.prod(shape),
        parameters=parameters,
        ties=ties,
        by_destination=by_destination,
        edge_width=edge_width,
    )
    sizes = len(sources), len(destinations), len(edges)
    drawn = {"seed": draw_seed()} if draws else {}
    tensors = *sources, *destinations, *edges, *parameters
    out: Tensor = run(AggregateMessages, blocked, blocked.shape, sizes, drawn, *tensors)
    return out.view(csc.num_dst, *shape)


def _check_takes_destinations(message: Callable[..., Tensor]) -> None:
    try:
        inspect.signature(message).bind_partial(index=None, num_rows=None)
    except ValueError:  # of a function of C, which has no signature
        return
    except TypeError as error:
        raise ConfigError(
            f"with by_destination=True a message also takes index= and num_rows=; this one does not: {error}"
        ) from error


class AggregateMessages(torch.autograd.Function):
    """Messages reduced by :class:`BlockedMessages`, or by the kernel of steps, which may keep more rows."""

    @staticmethod
    def forward(
        ctx: Any,
        how: Any,
        shape: tuple[int, int],
        sizes: tuple[int, int, int],
        drawn: dict[str, int],
        *tensors: Tensor,
    ) -> Tensor:
        """Return the ``shape`` of rows that ``how`` makes; ``drawn`` has the seed, if messages draw."""
        rows = _edge_rows(sizes, tensors)
        out = new_rows(next(iter((*rows.sources, *rows.destinations, *rows.edges))), *shape)
        count = new_rows(out, shape[0], how.count_width, torch.int32) if how.count_width else None
        keeps = any(ctx.needs_input_grad)
        kept = [new_rows(out, shape[0], width) for width in how.kept_widths if keeps]
        wanted = {"wanted": ctx.needs_input_grad[4 : 4 + sum(sizes)]} if keeps and how.records else {}
        ctx.ran = how.forward(rows, out, count, **({"kept": kept} if kept else drawn | wanted))
        ctx.how, ctx.sizes, ctx.drawn = how, sizes, drawn
        ctx.parameters = [(one, one.detach()) for one in tensors[sum(sizes) :]] if keeps else []
        ctx.save_for_backward(*tensors, out if how.reads_result else None, count, *kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the tensors that messages read."""
        if not all(one.is_set_to(before) for one, before in ctx.parameters):
            raise RuntimeError(
                "a parameter was given other data between a call and its backward pass, which computes the "
                "messages once more; call backward() before optimizer.step()"
            )
        needs, tensors = ctx.needs_input_grad[4:], ctx.saved_tensors
        (out, count, *kept), tensors = tensors[len(needs) :], tensors[: len(needs)]
        a, b, c = accumulate(ctx.sizes)
        is_new = b == len(tensors) and ctx.how.writes_gradients(a, b - a)
        make = _unwritten if is_new else _zeros
        into = [make(t) if needed else None for t, needed in zip(tensors, needs, strict=True)]
        to = EdgeGradients(
            sources=tuple(into[:a]),
            destinations=tuple(into[a:b]),
            edges=tuple(into[b:c]),
            parameters=tuple(into[c:]),
            is_new=is_new,
        )
        more = {"kept": kept} if kept else ctx.drawn
        if (ran := ctx.ran) is not None:
            more = more | {"ran": ran}
            if not torch._C._autograd._get_current_graph_task_keep_graph():
                ctx.ran = None
        learned = [t for t, needed in zip(tensors[c:], needs[c:], strict=True) if needed]
        with as_learned(learned):
            ctx.how.backward(_edge_rows(ctx.sizes, tensors), grad, to, out=out, count=count, **more)
        return None, None, None, None, *into


def _edge_rows(sizes: tuple[int, int, int], tensors: Sequence[Tensor]) -> EdgeRows:
    a, b, c = accumulate(sizes)
    return EdgeRows(sources=tuple(tensors[:a]), destinations=tuple(tensors[a:b]), edges=tuple(tensors[b:c]))


def _zeros(like: Tensor) -> Tensor:
    """Return zeros in rows, as the kernels write them, also for a transposed matrix."""
    if like.ndim == 2:
        return _unwritten(like).zero_()
    return torch.zeros_like(like, memory_format=torch.contiguous_format)


def _unwritten(like: Tensor) -> Tensor:
    return new_rows(like, *like.shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class EdgeRows:
    """The rows that a message reads of each edge ``u -> v``, as tuples of matrices."""

    sources: tuple[Tensor, ...] = ()
    """Each ``(num_src, ...)``: row ``u`` is read."""
    destinations: tuple[Tensor, ...] = ()
    """Each ``(at least num_dst, ...)``: row ``v`` is read."""
    edges: tuple[Tensor, ...] = ()
    """Each ``(num_edges, ...)``: the edge's own row is read, in the order of the graph."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EdgeGradients:
    """Tensors to which gradients are added, in the order of :class:`EdgeRows`; None for those without."""

    sources: tuple[Tensor | None, ...] = ()
    destinations: tuple[Tensor | None, ...] = ()
    edges: tuple[Tensor | None, ...] = ()
    parameters: tuple[Tensor | None, ...] = ()
    is_new: bool = False
    """Whether the tensors, each memory of its own, hold nothing yet and are written;
    see :meth:`.FusedMessages.writes_gradients`."""


def finish_reduction(
    csc: Csc, reduction: MessageReduction, ties: Ties, out: Tensor, count: Tensor | None
) -> None:
    """Divide sums of messages to get means, and count the zero of a maximum or minimum among its ties."""
    if reduction == "mean":
        divide_by_degrees(csc, out, out)
    if count is not None and ties == "shared with zero":
        count.add_((out == 0) & (csc.indptr.diff() > 0)[:, None])


def gradient_of_each(csc: Csc, reduction: MessageReduction, grad: Tensor, count: Tensor | None) -> Tensor:
    """Return the gradient of each message that has one, from that of the ``(num_dst, width)`` result."""
    if reduction in ("max", "min"):
        return grad if count is None else divide_by_counts(grad, count)  # None: messages have no columns
    if reduction != "mean":
        return grad
    found = torch.empty_like(grad)
    divide_by_degrees(csc, grad, found)
    return found


@recorded_whole
def divide_by_degrees(csc: Csc, x: Tensor, out: Tensor) -> None:
    """Write the rows of destinations divided by their in-degrees, or by 1 where these are 0."""
    torch.mul(x, inverse_degrees(csc, x.dtype)[:, None], out=out)


@recorded_whole
def divide_by_counts(grad: Tensor, count: Tensor) -> Tensor:
    """Return the share of each message in the gradient of a maximum or minimum."""
    return grad / count.clamp(min=1)


@contextmanager
def as_learned(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Make leaves that were frozen after the forward pass require gradients inside the ``with`` block.

    Their hooks on gradients are set aside: autograd calls these later, for the gradient of the whole.
    """
    held: list[tuple[Any, Any, bool]] = [
        (one, one._backward_hooks, one.requires_grad) for one in tensors if one.is_leaf
    ]
    held = [(one, hooks, learns) for one, hooks, learns in held if hooks or not learns]
    try:
        for one, _, _ in held:
            one._backward_hooks = None
            one.requires_grad_()
        yield
    finally:
        for one, hooks, learns in held:
            one._backward_hooks = hooks
            one.requires_grad_(learns)


class BlockedMessages:
    """Messages of a graph's edges and their reduction by destination, block by block.

    A block is some thousand edges in the graph's order. The message runs on a block's rows alone, so that
    memory is taken for a block and not for all edges; backward runs it once more under autograd. Sums are
    added in the order of the edges, so results do not depend on the number of threads.

    Arguments are as in :func:`aggregate_messages`. A row of the result has ``width`` elements, and so has an
    edge's message, unless ``reduction`` is ``own`` and ``edge_width`` is given.
    """

    kept_widths: tuple[int, ...] = ()
    """Columns of the matrices that forward keeps for backward: none."""

    def __init__(
        self,
        csc: Csc,
        message: Callable[..., Tensor],
        reduction: MessageReduction,
        width: int,
        *,
        parameters: Sequence[Tensor] = (),
        ties: Ties = "shared",
        by_destination: bool = False,
        edge_width: int | None = None,
    ) -> None:
        self._csc, self._reduction, self._ties = csc, reduction, ties
        self._message, self._by_destination = message, by_destination
        self._width, self._parameters = width, parameters
        floats = _BLOCK_FLOATS if csc.indptr.device.type == "cpu" else _DEVICE_BLOCK_FLOATS
        self._step = max(_LEAST_EDGES, floats // max(1, edge_width or width))
        work = csc.num_edges + csc.num_dst * by_destination
        self.records = csc.indptr.device.type == "cpu" and 0 < work <= self._step
        """Whether autograd may record the messages in forward, as all edges are one block: they run once."""

    @property
    def shape(self) -> tuple[int, int]:
        """Shape ``(num_dst, width)`` of the result."""
        return self._csc.num_dst, self._width

    @property
    def selects(self) -> bool:
        """Whether the reduction is a maximum or minimum; backward then reads the result."""
        return self._reduction in ("max", "min")

    reads_result = selects

    @property
    def count_width(self) -> int:
        """Columns of the counts that a maximum or minimum writes for backward; 0 without any."""
        return self._width if self.selects else 0

    def forward(
        self,
        rows: EdgeRows,
        out: Tensor,
        count: Tensor | None = None,
        *,
        seed: int | None = None,
        wanted: Sequence[bool] = (),
    ) -> _Ran | None:
        """Compute the reduced messages.

        Args:
            rows: what the message reads.
            out: ``(num_dst, width)``, contiguous, written.
            count: ``(num_dst, width)`` int32, written: how many messages share a maximum's or minimum's
                gradient. Needed for backward of these alone.
            seed: where the message's random numbers start in this step; None if it draws none.
            wanted: which of the rows want gradients, if backward is to get what this returns; see
                :attr:`records`.
        """
        ran: _Ran | None = None
        out.zero_()
        if count is not None:
            count.zero_()
        with torch.no_grad():
            for block in self._blocks():
                if wanted:  # torch.utils.checkpoint's hooks would run the whole model again for them alone
                    with torch.autograd.graph.saved_tensors_hooks(_itself, _itself):
                        ran = self._run(block, rows, wanted, seed)
                found = self._made(block, block.gathered(rows), seed) if ran is None else ran.found.detach()
                if self._reduction == "own":
                    last = block.first_row + block.indptr.numel() - 1
                    out[block.first_row : last] = found.reshape(-1, self._width)
                    continue
                found = found.reshape(len(block.indices), self._width)
                if self.selects:
                    self._select(block, found, out, count)
                else:
                    add_rows(found.contiguous(), block.destinations, out)
        finish_reduction(self._csc, self._reduction, self._ties, out, count)
        return ran

    def writes_gradients(self, _num_sources: int, _num_destinations: int) -> bool:
        """Return False: blocks of edges add to the gradients."""
        return False

    def backward(
        self,
        rows: EdgeRows,
        grad: Tensor,
        into: EdgeGradients,
        *,
        out: Tensor | None = None,
        count: Tensor | None = None,
        seed: int | None = None,
        ran: _Ran | None = None,
    ) -> None:
        """Add the gradients of what the message reads to ``into``.

        ``grad`` is that of the ``(num_dst, width)`` result. A maximum or minimum needs the result and the
        count of :meth:`forward`. With ``ran``, which that returned, the messages do not run again.
        """
        grad = gradient_of_each(self._csc, self._reduction, grad.contiguous(), count)
        learned = [(p, g) for p, g in zip(self._parameters, into.parameters, strict=True) if g is not None]
        for block in self._blocks():
            targets = block.targets(into)
            again = ran or self._run(block, rows, [target is not None for target in targets], seed)
            found = again.found
            if not found.requires_grad:
                continue
            if self._reduction == "own":
                given = grad[block.first_row : block.first_row + block.indptr.numel() - 1]
            else:
                given = grad.index_select(0, block.destinations)
            if out is not None and self.selects:
                given = given.masked_fill_(
                    found.detach().reshape(given.shape) != out.index_select(0, block.destinations), 0
                )
            wanted = [leaf for leaf, target in zip(again.leaves, targets, strict=True) if target is not None]
            wanted += [parameter for parameter, _ in learned]
            with as_learned(self._parameters):
                keeps = ran is not None
                found_grads = torch.autograd.grad(
                    found, wanted, given.view_as(found), retain_graph=keeps, allow_unused=True
                )
            grads = iter(found_grads)
            for target in targets:
                if target is not None and (one := next(grads)) is not None:
                    target(one)
            for (_, total), one in zip(learned, grads, strict=True):
                if one is not None:
                    total.add_(one)

    def _run(self, block: _Block, rows: EdgeRows, wanted: Sequence[bool], seed: int | None) -> _Ran:
        """Run the message on a block under autograd."""
        leaves = [
            one.requires_grad_(learns) for one, learns in zip(block.gathered(rows), wanted, strict=True)
        ]
        with torch.enable_grad():
            return _Ran(leaves, self._made(block, leaves, seed))

    def _made(self, block: _Block, rows: Sequence[Tensor], seed: int | None) -> Tensor:
        """Run the message on a block's rows. Each block draws from a seed of its own."""
        if not self._by_destination:
            return self._drawn(rows, {}, block, seed)
        with torch.inference_mode(False):  # its tensors count no writes, by which OrderedScatters decides
            index, indptr = block.destinations.long() - block.first_row, block.indptr
            # One more node before, with two edges: some aggregations fail if the first has none, or if there
            # is one edge in all.
            pads = self._reduction == "own" and (len(index) < 2 or int(indptr[1]) == 0)
            if pads:
                index = torch.cat((index.new_zeros(2), index + 1))
                indptr = torch.cat((indptr.new_zeros(1), indptr + 2))
        if pads:
            rows = [torch.cat((one.new_zeros(2, *one.shape[1:]), one)) for one in rows]
        with OrderedScatters(index, indptr):
            made = self._drawn(rows, {"index": index, "num_rows": len(indptr) - 1}, block, seed)
        return made[1:] if pads else made

    def _drawn(
        self, rows: Sequence[Tensor], of_block: dict[str, Any], block: _Block, seed: int | None
    ) -> Tensor:
        if seed is None:
            return self._message(*rows, **of_block)
        with torch.random.fork_rng(devices=()):
            at = block.first + block.first_row + 1  # different for each block
            torch.default_generator.manual_seed((seed + 0x9E3779B97F4A7C15 * at) % (1 << 63))
            return self._message(*rows, **of_block)

    def _blocks(self) -> Iterator[_Block]:
        if self._by_destination:
            yield from self._blocks_of_rows()
            return
        csc, indptr = self._csc, self._csc.indptr
        starts = torch.arange(0, csc.num_edges, self._step, device=indptr.device)
        ends = (starts + self._step).clamp_(max=csc.num_edges)
        first_rows = torch.searchsorted(indptr, starts, right=True).sub_(1).tolist()
        end_rows = torch.searchsorted(indptr, ends).tolist()
        for start, end, first, last in zip(starts.tolist(), ends.tolist(), first_rows, end_rows, strict=True):
            local = indptr[first : last + 1].clamp(start, end).sub_(start)
            rows = torch.arange(first, last, dtype=csc.indices.dtype, device=indptr.device)
            yield _Block(start, first, local, csc.indices[start:end], rows.repeat_interleave(local.diff()))

    def _blocks_of_rows(self) -> Iterator[_Block]:
        """Yield blocks. A block has at least one destination, and all edges of its destinations."""
        csc, first = self._csc, 0
        # A row counts as an edge, so that rows without edges end blocks, too.
        ends = csc.indptr + torch.arange(csc.num_dst + 1, device=csc.indptr.device)
        while first < csc.num_dst:
            limit = int(ends[first]) + self._step
            last = max(first + 1, int(torch.searchsorted(ends, limit, right=True)) - 1)
            local = csc.indptr[first : last + 1]
            start, end = int(local[0]), int(local[-1])
            rows = torch.arange(first, last, dtype=csc.indices.dtype, device=local.device)
            # An own reduction may give nodes without edges other rows than 0.
            if start < end or self._reduction == "own":
                destinations = rows.repeat_interleave(local.diff())
                yield _Block(start, first, local - start, csc.indices[start:end], destinations)
            first = last

    def _select(self, block: _Block, found: Tensor, out: Tensor, count: Tensor | None) -> None:
        """Join a block's messages to the largest or least so far."""
        shape = block.indptr.numel() - 1, self._width
        best, shared = found.new_empty(shape), found.new_empty(shape, dtype=torch.int32)
        each = torch.arange(len(block.indices), dtype=block.indices.dtype, device=found.device)
        rows = (found.neg() if self._reduction == "min" else found).contiguous()
        backend(rows).spmm_max(block.indptr, each, rows, None, TIES.index("shared"), best, shared)
        if self._reduction == "min":
            best.neg_().add_(0.0)  # 0 rather than -0 where there are no messages
        row = block.first_row
        if block.first > int(self._csc.indptr[row]):  # the row began in an earlier block
            before, new = out[row], best[0].clone()
            best[0] = torch.minimum(before, new) if self._reduction == "min" else torch.maximum(before, new)
            shared[0] *= new == best[0]
            if count is not None:
                shared[0] += count[row] * (before == best[0])
        out[row : row + shape[0]] = best
        if count is not None:
            count[row : row + shape[0]] = shared


@dataclass(frozen=True, eq=False, slots=True)
class _Block:
    """Some edges in succession, with the rows at both ends."""

    first: int
    """Number of the first edge."""
    first_row: int
    """The first destination row."""
    indptr: Tensor
    """``(num_rows + 1,)``: which of these edges lead to each of the rows from ``first_row`` on."""
    indices: Tensor
    """``(num_edges,)`` source of each edge."""
    destinations: Tensor
    """``(num_edges,)`` destination of each edge."""

    def gathered(self, rows: EdgeRows) -> list[Tensor]:
        """Return the block's rows, in the order in which the message takes them."""
        end = self.first + len(self.indices)
        found = [x.detach().index_select(0, self.indices) for x in rows.sources]
        found += [x.detach().index_select(0, self.destinations) for x in rows.destinations]
        return found + [e.detach()[self.first : end] for e in rows.edges]

    def targets(self, into: EdgeGradients) -> list[Callable[[Tensor], object] | None]:
        """Return what adds the gradients of the block's rows, or None, in the same order."""
        end = self.first + len(self.indices)
        adds: list[Callable[[Tensor], object] | None] = []
        for ids, targets in ((self.indices, into.sources), (self.destinations, into.destinations)):
            adds += [None if t is None else _adding(ids, t) for t in targets]
        return adds + [None if t is None else t[self.first : end].add_ for t in into.edges]


@dataclass(frozen=True, eq=False, slots=True)
class _Ran:
    """A block's messages under autograd."""

    leaves: Sequence[Tensor]
    """The rows that they read."""
    found: Tensor


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _adding(ids: Tensor, target: Tensor) -> Callable[[Tensor], None]:
    def add(rows: Tensor) -> None:
        if len(ids):
            add_rows(rows.reshape(len(ids), -1), ids, target.view(target.shape[0], -1))

    return add
