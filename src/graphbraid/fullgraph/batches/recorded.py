"""Runs of a program on mini-batches, recorded on a device for a few sizes that batches are padded to.

A recording starts all kernels of a pass by one call. Its addresses and sizes are fixed, so each batch is
copied into memory that stays. Behind a batch's own rows and edges is padding: rows of zeros. The last row of
each level has all padding edges. They come from the last row but one of the level before, which has none, so
that sums over padding do not grow from level to level. No padding row reaches one of the batch's, and nothing
reads its results. So padding is in no sum of the batch's, and its gradients are zeros.

A zero times an infinite slope would be NaN in the gradients of parameters. So programs with divisions,
exponentials or functions of infinite slopes are not recorded. Nor are those whose rows depend on the number
of rows.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.batches.edges import BatchEdges, LevelEdges, Levels
from graphbraid.fullgraph.batches.fusing import BatchProgram
from graphbraid.fullgraph.batches.operations import BatchRun
from graphbraid.fullgraph.device import HOST, Device, NotRecordedError, device_at
from graphbraid.graph.csc import Csc
from graphbraid.ops import Aggregation
from graphbraid.ops.library import once_differentiable
from graphbraid.ops.message_steps import MessageOp, MessageStep
from graphbraid.ops.messages import as_learned
from graphbraid.ops.rng import draw_seed, given_rows, given_seeds, rows_given

_MOST_SIZES = 4
"""Sizes of each program that are recorded; each holds a batch and its steps' memory."""
_GRAIN = 64
"""Rooms are multiples of this number."""
_PADDING = 2
"""Least rows of padding: the last one has all padding edges, and the one before it is their source."""
_NOTHING, _HOST = "nothing has run yet", "the host records nothing"
_FACTORS = ("weight", "src_scale", "dst_scale", "loop")
_STEEP = {"log", "sqrt", "reciprocal", "pow", "exp"}
"""Functions whose slope in a row of padding may be infinite: at zero, or at a sum over many edges."""


class RecordedBatches:
    """Runs programs on batches, by recordings where the device has any.

    A size has room for an eighth more rows and edges than the batch that it was made for. The second batch
    that fits a size is recorded. A pass whose gradients are still to be computed is not written over: until
    then batches run call by call, as those do that cannot be recorded. Streams take turns: a pass waits for
    the work on the stream of the pass before.

    Args:
        device: where to record; None for the device of the rows.
    """

    def __init__(self, device: Device | None = None) -> None:
        self._device = device
        self._sizes: weakref.WeakKeyDictionary[BatchProgram, dict[Hashable, list[_Size]]] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()
        self.why_not = _NOTHING
        """Why the last batch ran call by call; empty if it ran by a recording."""

    def outputs(self, run: BatchRun) -> Tensor:
        """Return the outputs of a run, which has not begun."""
        found = self._recorded(run)
        if isinstance(found, str):
            self.why_not = found
            return run.outputs()
        self.why_not = ""
        return run.watched(found)

    def lines(self) -> list[str]:
        """Return the lines of ``explain()`` about the last batch; none on the host."""
        if self.why_not in (_NOTHING, _HOST):
            return []
        return [f"Runs call by call: {self.why_not}." if self.why_not else "Its passes are recorded."]

    def _recorded(self, run: BatchRun) -> Tensor | str:
        """Return the outputs by a recording, or why there is none."""
        rows = next(iter(run.features.values()))
        device = self._device or (device_at(rows.device) if rows.is_cuda else HOST)
        if device.is_host:
            return _HOST
        if why := next(_reasons(run), ""):
            return why
        learns = torch.is_grad_enabled() and bool(_learned(run.program))
        with self._lock:
            key = learns, rows.dtype, rows.device
            sizes = self._sizes.setdefault(run.program, {}).setdefault(key, [])
            size = next((one for one in sizes if one.fits(run)), None)
            if size is None:
                if len(sizes) == _MOST_SIZES:
                    return f"batches have had more than {_MOST_SIZES} sizes"
                sizes.append(_Size(run, device, learns=learns))
                return "it is the first batch of this size and form"
            return size.outputs(run)


def _reasons(run: BatchRun) -> Iterator[str]:
    """Yield why a run cannot be recorded with padding; nothing if it can."""
    program = run.program
    if torch.is_inference_mode_enabled():
        yield "inference mode keeps no memory that later steps may write to"
    if program.last_coupled >= 0:
        yield "results depend on the number of rows, which padding changes"
    if run.reads_edge_rows:
        yield "features or weights of edges are read in the order of the batch's list"
    if any(rows.requires_grad for rows in run.features.values()):
        yield "the features require a gradient"
    for op in program.ops:
        if isinstance(op, ir.Break):
            yield f"{op.details()} is run by PyTorch"
        if isinstance(op, ir.RowFunction) and op.kind in _STEEP:
            yield f"{op.symbol} {op.details()} may have no finite slope at rows of padding"
        if isinstance(op, ir.Normalise) and not op.module.eps:
            yield f"{op.symbol} {op.details()} divides rows of padding by zero"
        if isinstance(op, ir.Messages) and (not op.steps or op.edges is not None):
            yield "messages run on blocks of edges, or on edges that the model computes"
        if isinstance(op, ir.Messages) and any(_is_steep(op.steps, step) for step in op.steps):
            yield f"{op.symbol} {op.details()} may have no finite slope at rows of padding"
        adds_loops = getattr(op, "self_loops", False) or getattr(op, "loop_scale", 0)
        if adds_loops or (isinstance(op, ir.AggregateLinear | ir.Aggregate) and op.adjacency.loop_scale):
            sizes = (run.levels.edges(*key).csc for key in _keys_of(program, op))
            if any(csc.num_dst > csc.num_src for csc in sizes):
                yield "there are fewer sources than destinations, which have self-loops"


def _is_steep(steps: Sequence[MessageStep], step: MessageStep) -> bool:
    """Return whether a step of a message divides by a row, or is an exponential outside of a softmax."""
    if step.op is MessageOp.DIVIDE:
        return steps[step.second].op not in (MessageOp.NUMBER, MessageOp.PARAMETER)
    return step.op is MessageOp.EXP


class _Size:
    """Room for batches of at most one size, and the passes that are recorded on it.

    Args:
        run: of the first batch, which has not begun.
        device: where passes are recorded.
        learns: whether gradients are wanted.
    """

    def __init__(self, run: BatchRun, device: Device, *, learns: bool) -> None:
        self.device, self.learns = device, learns
        self.rows = [tuple(map(_room, counts)) for counts in run.levels.sizes]
        self.edges = {key: tuple(map(_room, counts)) for key, counts in _edge_sizes(run).items()}
        self._forms = _forms_of(run)
        self._first: Levels | None = run.levels
        """Levels of the first batch: its backward pass shows which edges are read by source."""
        self._passes: _Passes | None = None
        self._why_not = ""

    def fits(self, run: BatchRun) -> bool:
        """Return whether a batch fits, and fills at least half of the room."""
        own, room = (
            [count for counts in (*rows, *edges.values()) for count in counts]
            for rows, edges in ((run.levels.sizes, _edge_sizes(run)), (self.rows, self.edges))
        )
        has_room = all(one + _PADDING <= most for one, most in zip(own, room, strict=True))
        fills = sum(room) <= 2 * sum(own) + _GRAIN * len(own)
        return has_room and fills and self._forms == _forms_of(run)

    def outputs(self, run: BatchRun) -> Tensor | str:
        """Return a batch's outputs by the recorded passes, or why there are none."""
        if self._passes is not None and not self._passes.reads_the_model:
            self._passes = None
        if self._passes is None and not self._why_not:
            try:
                self._passes = self._record(run)
            except NotRecordedError as error:
                self._why_not = f"the device could not record it: {error}"
            except torch.OutOfMemoryError:  # call by call, a batch may still fit
                self._why_not = "the device lacks the memory for a recording"
        return self._why_not if self._passes is None else self._passes.outputs(run)

    def _record(self, run: BatchRun) -> _Passes:
        first, self._first = self._first, None
        read = {key for key in self.edges if first is not None and first.edges(*key).csc.has_reverse}
        return _Passes(self, run, read or {*self.edges})


class _Passes:
    """The recorded passes of a program, and the memory that they read.

    Args:
        size: the room of each array.
        run: of a batch that fits, which has not begun.
        by_source: the edges that are read by source, too.
    """

    def __init__(self, size: _Size, run: BatchRun, by_source: set[tuple[int, int]]) -> None:
        # The program is not kept: it is the weak key of its recordings, which end with it.
        self._learns, self._device = size.learns, size.device
        self.parameters = _learned(run.program) if size.learns else ()
        self.read = _read_by(run.program)
        """The parameters and buffers that the passes read."""
        self._memory = [one.detach() for one in self.read]
        """Their memory, which must live as long as the recordings."""
        self._copies: list[tuple[Tensor, Callable[[BatchRun], Tensor], _Padding]] = []
        self._features = {
            name: self._copied(run, partial(_rows_named, name), size.rows[at.level][at.node_type])
            for name, at in ((name, run.program.place(name)) for name in run.features)
        }
        self._rows = {
            name: self._copied(run, partial(_ids_of, name, number), size.rows[0][number])
            for number, name in enumerate(rows_given() or ())
        }
        """Ids of the nodes of each type, where dropout's masks are drawn for them."""
        self._edges = {
            key: self._fixed_edges(run, key, room, by_source=key in by_source)
            for key, room in size.edges.items()
        }
        self._seeds, self._last_stream = list[Tensor](), None
        self._waiting: weakref.ref[Any] | None = None
        self.number = 0
        """Counts the forward passes."""
        self._fill(run)
        compute = partial(self._compute, run.program, size.rows)
        with torch.set_grad_enabled(size.learns):
            with given_seeds(self._new_seeds()), given_rows(self._rows or None):  # compiles the kernels
                compute()
            self.grad = torch.zeros_like(self._out)
            self._differentiate()
            with given_seeds(iter(self._seeds)), given_rows(self._rows or None):
                self._forward = size.device.record(compute)
            self._backward = size.device.record(self._differentiate)

    def outputs(self, run: BatchRun) -> Tensor | str:
        """Return a batch's outputs."""
        if self._waiting is not None and self._waiting() is not None:
            return "gradients of an earlier batch of this size are still to be computed"
        self._last_stream = self._device.follow(self._last_stream)
        with torch.no_grad():
            self._fill(run)
            for seed in self._seeds:
                seed.fill_(draw_seed())
        count = run.levels.num_rows(run.program.place(run.program.output))
        out: Tensor = _Replay.apply(self, count, *self.parameters)  # type: ignore[no-untyped-call]
        return out

    def forward(self, token: object) -> Tensor:
        """Replay the forward pass; the next one waits for the gradients while ``token`` lives."""
        self.number += 1
        self._waiting = weakref.ref(token) if self._learns else None
        self._forward()
        return self._out

    def backward(self, grad: Tensor) -> list[Tensor | None]:
        """Replay the backward pass; return the parameters' gradients."""
        self.grad.zero_()[: len(grad)] = grad
        self._backward()
        self._waiting = None
        return [None if one is None else one.clone() for one in self._grads]

    @property
    def reads_the_model(self) -> bool:
        """Whether the parameters and buffers are still in the memory that the passes read."""
        pairs = zip(self.read, self._memory, strict=True)
        return all(one.data_ptr() == before.data_ptr() for one, before in pairs)

    def _compute(self, program: BatchProgram, rows: Sequence[tuple[int, ...]]) -> None:
        made = {
            key: LevelEdges(csc, csc, {how: replace(map_, csc=csc) for how, map_ in maps.items()})
            for key, (make, maps) in self._edges.items()
            for csc in (make(),)
        }
        levels = Levels(BatchEdges(relations=(), num_nodes=()), rows, made=made)
        self._out = BatchRun(program, levels, self._features, {}, {}).outputs()

    def _differentiate(self) -> None:
        found: tuple[Tensor | None, ...] = ()
        if self.parameters:
            how: dict[str, bool] = {"allow_unused": True, "retain_graph": True}
            with as_learned(self.parameters):
                found = torch.autograd.grad(self._out, self.parameters, self.grad, **how)
        self._grads = found

    def _new_seeds(self) -> Iterator[Tensor]:
        while True:
            some = next(iter(self._features.values()))
            self._seeds.append(some.new_zeros(1, dtype=torch.int64))
            yield self._seeds[-1]

    def _fill(self, run: BatchRun) -> None:
        """Copy a batch into the memory that the passes read."""
        for to, of, padding in self._copies:
            given = of(run).detach()
            to[: len(given)] = given
            padding(to, len(given))

    def _copied(
        self, run: BatchRun, of: Callable[[BatchRun], Tensor], room: int, padding: _Padding | None = None
    ) -> Tensor:
        """Return memory for an array of each batch; it is padded with zeros unless ``padding`` is given."""
        given = of(run).detach()
        to = given.new_zeros((room, *given.shape[1:]))
        self._copies.append((to, of, padding or _pad_with(0)))
        return to

    def _fixed_edges(
        self, run: BatchRun, key: tuple[int, int], room: tuple[int, ...], *, by_source: bool
    ) -> tuple[Callable[[], Csc], dict[tuple[ir.AdjacencyMatrix, torch.dtype], Aggregation]]:
        """Return a function that views the edges between two levels, and their linear maps."""
        num_src, num_dst, num_edges = room

        def csc_of(one: BatchRun) -> Csc:
            return one.levels.edges(*key).csc

        def reverse_of(one: BatchRun) -> Csc:
            return csc_of(one).transpose()[0]

        indptr = self._copied(run, lambda one: csc_of(one).indptr, num_dst + 1, _pad_indptr(num_edges))
        indices = self._copied(run, lambda one: csc_of(one).indices, num_edges, _pad_with(num_src - 2))
        weight = None
        if csc_of(run).weight is not None:
            weight = self._copied(run, partial(_weight_of, key), num_edges)
        by = None
        if by_source:
            each = torch.arange(num_edges, device=indptr.device)
            by = (
                self._copied(run, lambda one: reverse_of(one).indptr, num_src + 1, _pad_indptr(num_edges, 2)),
                self._copied(run, lambda one: reverse_of(one).indices, num_edges, _pad_with(num_dst - 1)),
                self._copied(run, lambda one: csc_of(one).transpose()[1], num_edges, _pad_with(each)),
            )

        def make() -> Csc:
            # Views, since the hubs of an ``indptr`` are kept for as long as the tensor lives.
            csc = Csc(indptr[:], indices[:], num_src, weight, trusted=True)
            if by is not None:
                own = None if weight is None else weight[by[2]]
                csc.keep_transpose(Csc(by[0][:], by[1][:], num_dst, own, trusted=True), by[2])
            return csc

        sizes = dict(zip(_FACTORS, (num_edges, num_src, num_dst, min(num_src, num_dst)), strict=True))
        maps = {}
        for how in _maps_of(run, key):
            real = _map_over(run, key, how)
            fixed: dict[str, Any] = {
                name: self._copied(run, partial(_factor, key, how, name), count)
                for name, count in sizes.items()
                if getattr(real, name) is not None
            }
            maps[how] = replace(real, **fixed)
        return make, maps


class _Replay(torch.autograd.Function):
    """The recorded passes as one operation on the parameters."""

    @staticmethod
    def forward(ctx: Any, passes: _Passes, count: int, *_parameters: nn.Parameter) -> Tensor:
        ctx.passes = passes
        ctx.versions = [one._version for one in passes.read]
        ctx.token = _Token()
        out = passes.forward(ctx.token)[:count].clone()
        ctx.number = passes.number
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # there are none; PyTorch's error if an earlier backward pass freed the graph
        if ctx.number != ctx.passes.number:
            raise RuntimeError(
                "a later batch has been computed in the same memory; call backward() before it"
            )
        if ctx.versions != [one._version for one in ctx.passes.read] or not ctx.passes.reads_the_model:
            raise RuntimeError(
                "a parameter or buffer was changed between engine() and this backward pass; call backward() "
                "before optimizer.step()"
            )
        return None, None, *ctx.passes.backward(grad)


class _Token:
    """Lives as long as the autograd graph of a pass."""


def _rows_named(name: str, run: BatchRun) -> Tensor:
    return run.features[name]


def _ids_of(name: str, number: int, run: BatchRun) -> Tensor:
    """Return the ids of the nodes of a type that have rows at the first level; places if none are given."""
    count, ids = run.levels.sizes[0][number], (rows_given() or {}).get(name)
    if ids is None:
        return torch.arange(count, device=next(iter(run.features.values())).device)
    return ids[:count]


def _weight_of(key: tuple[int, int], run: BatchRun) -> Tensor:
    weight = run.levels.edges(*key).csc.weight
    assert weight is not None
    return weight


def _factor(
    key: tuple[int, int], how: tuple[ir.AdjacencyMatrix, torch.dtype], name: str, run: BatchRun
) -> Tensor:
    """Return one of the coefficients of a linear map over a batch's edges."""
    found: Tensor | None = getattr(_map_over(run, key, how), name)
    assert found is not None
    return found


_Padding = Callable[[Tensor, int], None]
"""Fills the rows of an array after the first ones, which are padding."""


def _pad_with(value: int | Tensor) -> _Padding:
    """Return a function that pads an array with a number, or with rows of another array."""

    def pad(to: Tensor, count: int) -> None:
        to[count:] = value[count:] if isinstance(value, Tensor) else value

    return pad


def _pad_indptr(num_edges: int, from_end: int = 1) -> _Padding:
    """Return a function that gives all padding edges to the last row, or to a row before it."""

    def pad(to: Tensor, count: int) -> None:
        to[count:] = to[count - 1]
        to[-from_end:] = num_edges

    return pad


def _room(count: int) -> int:
    """Return a number with about an eighth more, and at least ``_PADDING`` more."""
    return ((count + count // 8 + _PADDING - 1) // _GRAIN + 1) * _GRAIN


def _learned(program: BatchProgram) -> tuple[nn.Parameter, ...]:
    return tuple(dict.fromkeys(p for op in program.ops for p in op.parameters() if p.requires_grad))


def _read_by(program: BatchProgram) -> tuple[Tensor, ...]:
    modules = [module for op in program.ops if isinstance(module := getattr(op, "module", None), nn.Module)]
    buffers = [buffer for module in modules for buffer in module.buffers()]
    return (*(p for op in program.ops for p in op.parameters()), *buffers)


def _keys_of(program: BatchProgram, op: ir.Operation) -> list[tuple[int, int]]:
    """Return level and relation of the edges that an operation reads."""
    if not op.moves or isinstance(op, ir.DestinationRows):
        return []
    if isinstance(op, ir.RelationAttention):
        return [(program.place(op.out).level - 1, relation.number) for relation in op.relations]
    return [(program.place(op.inputs[0]).level, 0 if op.walks is None else op.walks.number)]


def _edge_sizes(run: BatchRun) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Return the numbers of sources, destinations and edges of all edges that a program reads."""
    keys = dict.fromkeys(key for op in run.program.ops for key in _keys_of(run.program, op))
    cscs = {key: run.levels.edges(*key).csc for key in keys}
    return {key: (csc.num_src, csc.num_dst, csc.num_edges) for key, csc in cscs.items()}


def _maps_of(run: BatchRun, key: tuple[int, int]) -> list[tuple[ir.AdjacencyMatrix, torch.dtype]]:
    """Return the linear maps over some edges, but for plain sums and means, which have no coefficients."""
    dtype = next(iter(run.features.values())).dtype
    found = (
        op.adjacency
        for op in run.program.ops
        if isinstance(op, ir.AggregateLinear | ir.Aggregate) and key in _keys_of(run.program, op)
    )
    return [(one, dtype) for one in dict.fromkeys(found) if one.kind not in ("sum", "mean") or one.scale != 1]


def _map_over(
    run: BatchRun, key: tuple[int, int], how: tuple[ir.AdjacencyMatrix, torch.dtype]
) -> Aggregation:
    """Return a linear map over a batch's edges; GCN's skips stored self-loops even if there are none."""
    found = run.levels.edges(*key).aggregation(*how)
    return replace(found, skip_loops=True) if how[0].kind == "gcn" and found.loop_scale else found


def _forms_of(run: BatchRun) -> list[tuple[Any, ...]]:
    """Return the forms of a batch's linear maps: all about their coefficients but the values."""
    maps = (_map_over(run, key, how) for key in _edge_sizes(run) for how in _maps_of(run, key))
    return [
        (how.mean, how.loop_scale, how.skip_loops, *(getattr(how, name) is None for name in _FACTORS))
        for how in maps
    ]
