"""FusedMessages: messages made of elementwise steps, computed and reduced by one kernel."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc
from graphbraid.ops.kernels import backend, new_rows
from graphbraid.ops.library import once_differentiable, run
from graphbraid.ops.messages import (
    EdgeGradients,
    EdgeRows,
    MessageReduction,
    finish_reduction,
    gradient_of_each,
)
from graphbraid.ops.spmm import Ties

MOST_MATRICES, MOST_STEPS = 4, 48
"""Matrices of sources, of destinations, and steps of a message that the kernel takes."""
_PASSED_DESTINATIONS = 6
"""Matrices of destinations that the kernel takes: backward reads the gradient and the result, too."""
_DOT, _LSE = 4, 5
"""Places among these of what a softmax reads: the product of gradient and result, and the logarithms of its
sums."""
_FLOAT = torch.empty(0, dtype=torch.float32)
_EDGES_TO_HOIST = 4
"""Edges for each node from which on steps of one end are computed once for each node."""


class MessageOp(IntEnum):
    """What a step computes for each edge ``u -> v``, by the number that the kernels take.

    The first six read rows: ``u`` of a matrix of the sources, ``v`` of one of the destinations, the edge's
    own, its weight, a parameter's, or a number; a weight or number fills the row. All others compute a row
    from those of one or two earlier steps. Those named after gradients and behind them are what backward is
    made of. A softmax is over the edges of a destination, number by number; what it gives is the factor of a
    message that is summed, and kernels get it as an exponential.
    """

    SOURCE = 0
    DESTINATION = 1
    EDGE = 2
    WEIGHT = 3
    PARAMETER = 4
    NUMBER = 5
    ADD = 6
    SUBTRACT = 7
    MULTIPLY = 8
    DIVIDE = 9
    RELU_GRADIENT = 10
    LEAKY_RELU_GRADIENT = 11
    SIGMOID_GRADIENT = 12
    TANH_GRADIENT = 13
    ABS_GRADIENT = 14
    EQUAL = 15
    WHERE = 16
    RELU = 17
    LEAKY_RELU = 18
    SIGMOID = 19
    TANH = 20
    EXP = 21
    ABS = 22
    SUM_COLUMNS = 23
    SPREAD = 24
    SOFTMAX = 25


_OP = MessageOp
_CHANGES_WIDTH = (_OP.SUM_COLUMNS, _OP.SPREAD)
_SIDES = (_OP.SOURCE, _OP.DESTINATION)
_COSTLY = (_OP.DIVIDE, _OP.SIGMOID, _OP.TANH, _OP.EXP)
_SUM, _MAX, _MIN, _LOG_SUM_EXP, _OVER_ALL = range(5)
"""Kinds of results, by the number that the kernels take."""


@dataclass(frozen=True, slots=True)
class MessageStep:
    """One step of a message."""

    op: MessageOp
    first: int = 0
    """The matrix or parameter that is read, or the step; 0 where nothing is."""
    second: int = 0
    """The other step of those that read two."""
    number: float = 0.0
    """The number, or the slope below zero."""
    narrow: bool = False
    """Whether the row has one number for each head and not all columns."""


_ONE = MessageStep(_OP.NUMBER, number=1.0)


class _StepList:
    """Steps, each once, with the widths of their rows.

    A narrow row that meets a wide one is spread over its heads' columns.
    """

    def __init__(self) -> None:
        self.all: list[MessageStep] = []
        self.alike = set[int]()
        """Leaves with the same number in all columns, which are read as narrow or wide rows."""
        self._known = dict[MessageStep, int]()

    def copy(self) -> _StepList:
        """Return a list that grows by itself."""
        made = _StepList()
        made.all, made.alike, made._known = self.all[:], self.alike.copy(), self._known.copy()
        return made

    def leaf(self, op: MessageOp, at: int = 0, *, number: float = 0.0, narrow: bool = False) -> int:
        """Return the number of a step that reads a row."""
        return self._entered(MessageStep(op, at, 0, number, narrow))

    def add(self, op: MessageOp, *of: int, number: float = 0.0) -> int:
        """Return the number of a step that computes a row from those of others."""
        if op in _CHANGES_WIDTH:
            narrow = op is _OP.SUM_COLUMNS
        else:
            told = [self.all[i].narrow for i in of if i not in self.alike]
            narrow = bool(told) and all(told)
            if not narrow:
                of = tuple(self.wide(i) for i in of)
            if op is _OP.MULTIPLY and self.all[of[0]] == _ONE and of[1] not in self.alike:
                return of[1]
        return self._entered(MessageStep(op, of[0], of[1] if len(of) > 1 else 0, number, narrow))

    def wide(self, i: int) -> int:
        """Return a step with a wide row of the same numbers."""
        return self.add(_OP.SPREAD, i) if self.all[i].narrow else i

    def number(self, value: float) -> int:
        """Return a step with the number in each column."""
        made = self.leaf(_OP.NUMBER, number=value)
        self.alike.add(made)
        return made

    def softmax(self, score: int) -> int:
        """Return the step of a softmax over a destination's edges."""
        sums = self.leaf(_OP.DESTINATION, _LSE, narrow=self.all[score].narrow)
        return self.add(_OP.EXP, self.add(_OP.SUBTRACT, score, sums))

    def _entered(self, step: MessageStep) -> int:
        if step not in self._known:
            self._known[step] = len(self.all)
            self.all.append(step)
        return self._known[step]

    def reads(self, i: int) -> tuple[int, ...]:
        """Return the steps that a step reads."""
        step = self.all[i]
        if step.op < _OP.ADD:
            return ()
        return (step.first, step.second) if step.op <= _OP.WHERE else (step.first,)

    def has_slope(self, message: int, leaf: int) -> bool:
        """Return whether each number of a message depends on the one number of a leaf's row in its column."""
        reaches = list[bool]()
        for i in range(message + 1):
            reached = [j for j in self.reads(i) if reaches[j]]
            reaches.append(i == leaf or bool(reached))
            if reached and self.all[i].op in _CHANGES_WIDTH:
                return False
        return not self.all[leaf].narrow

    def of_one_side(self, side: MessageOp, message: int) -> list[int]:
        """Return the costly steps that read one side alone and that others read, or are the message."""
        sides, costs = list[set[MessageOp]](), list[bool]()
        for i, step in enumerate(self.all):
            reads = self.reads(i)
            own = {step.op} if step.op in (*_SIDES, _OP.EDGE, _OP.WEIGHT) else set[MessageOp]()
            sides.append(own.union(*(sides[j] for j in reads)))
            costs.append(step.op in _COSTLY or any(costs[j] for j in reads))
        read = {message} | {j for i in range(len(self.all)) if sides[i] != {side} for j in self.reads(i)}
        return sorted(i for i in read if sides[i] == {side} and costs[i])

    def replaced(self, message: int, leaves: Mapping[int, MessageStep]) -> tuple[_StepList, dict[int, int]]:
        """Return steps that read some of these as rows, and the number of each among them."""
        made, numbers = _StepList(), dict[int, int]()
        for i in range(message + 1):
            step = leaves.get(i, self.all[i])
            if step.op < _OP.ADD:
                numbers[i] = made.leaf(step.op, step.first, number=step.number, narrow=step.narrow)
                if i in self.alike:
                    made.alike.add(numbers[i])
            else:
                numbers[i] = made.add(step.op, *(numbers[j] for j in self.reads(i)), number=step.number)
        return made, numbers

    def gradients(self, seeds: Mapping[int, int], wanted: Collection[int]) -> dict[int, int]:
        """Append the steps of a gradient.

        Args:
            seeds: for each step that is differentiated the step that is its gradient.
            wanted: the leaves for which gradients are wanted.

        Returns:
            the gradient's step for each of these that has one.
        """
        needed, found = list[bool](), dict(seeds)
        for i in range(max(seeds) + 1):
            needed.append(i in wanted or any(needed[j] for j in self.reads(i)))
        for i in reversed(range(len(needed))):
            if i in found and needed[i]:
                for to, made in self._passed_on(i, found[i], needed):
                    found[to] = self._joined(found[to], made) if to in found else made
        return {i: found[i] for i in wanted if i in found}

    def _joined(self, one: int, other: int) -> int:
        if self.all[one].narrow != self.all[other].narrow:  # of a number that is the same in all columns
            one, other = (i if self.all[i].narrow else self.add(_OP.SUM_COLUMNS, i) for i in (one, other))
        return self.add(_OP.ADD, one, other)

    def _passed_on(self, i: int, grad: int, needed: Sequence[bool]) -> Iterable[tuple[int, int]]:
        """Give what a step's gradient adds to those of the steps that it reads."""
        step, add = self.all[i], self.add
        x, y = step.first, step.second
        takes_x, takes_y = (j in self.reads(i) and needed[j] for j in (x, y))
        if step.op in (_OP.ADD, _OP.SUBTRACT):
            if takes_x:
                yield x, grad
            if takes_y:
                yield y, grad if step.op is _OP.ADD else add(_OP.MULTIPLY, grad, self.number(-1.0))
        elif step.op is _OP.MULTIPLY:
            if takes_x:
                yield x, add(_OP.MULTIPLY, grad, y)
            if takes_y:
                yield y, add(_OP.MULTIPLY, grad, x)
        elif step.op is _OP.DIVIDE:
            part = add(_OP.DIVIDE, grad, y)
            if takes_x:
                yield x, part
            if takes_y:
                yield y, add(_OP.MULTIPLY, add(_OP.MULTIPLY, part, i), self.number(-1.0))
        elif step.op in _CHANGES_WIDTH and takes_x:
            yield x, add(_OP.SPREAD if step.op is _OP.SUM_COLUMNS else _OP.SUM_COLUMNS, grad)
        elif step.op in _GRADIENTS and takes_x:
            op, of = _GRADIENTS[step.op]
            yield x, add(op, grad, i if of == "result" else x, number=step.number)


_GRADIENTS = {
    _OP.RELU: (_OP.RELU_GRADIENT, "result"),
    _OP.LEAKY_RELU: (_OP.LEAKY_RELU_GRADIENT, "argument"),
    _OP.SIGMOID: (_OP.SIGMOID_GRADIENT, "result"),
    _OP.TANH: (_OP.TANH_GRADIENT, "result"),
    _OP.EXP: (_OP.MULTIPLY, "result"),
    _OP.ABS: (_OP.ABS_GRADIENT, "argument"),
}
"""What makes the gradient of a function from the result's, and what else it reads."""


@dataclass(frozen=True, eq=False)
class _Program:
    """Steps as the kernel takes them, without those that nothing reads."""

    steps: Tensor
    numbers: Tensor
    results: Tensor
    places: tuple[int, ...]
    """The number of the matrix that each row result is of."""

    @classmethod
    def of(
        cls,
        steps: _StepList,
        rows: Sequence[tuple[int, int]],
        over_all: Sequence[tuple[int, int]] = (),
        kind: int = _SUM,
    ) -> _Program:
        """Make one from results: places of matrices or parameters, each with the step that it gets."""
        used, waiting = set[int](), [step for _, step in (*rows, *over_all)]
        while waiting:
            if (i := waiting.pop()) not in used:
                used.add(i)
                waiting += steps.reads(i)
        at = {i: n for n, i in enumerate(sorted(used))}
        packed = []
        for i in at:
            step = steps.all[i]
            reads = [at[j] for j in steps.reads(i)] or [step.first]
            packed.append([step.op, *(*reads, 0)[:2], step.narrow])
        results = [(kind, at[step], n) for n, (_, step) in enumerate(rows)]
        results += [(_OVER_ALL, at[step], place) for place, step in over_all]
        return cls(
            torch.tensor(packed),
            torch.tensor([steps.all[i].number for i in at], dtype=torch.float32),
            torch.tensor(results),
            tuple(place for place, _ in rows),
        )


@dataclass(frozen=True, eq=False)
class _Walk:
    """The rows and edges that a program runs on."""

    indptr: Tensor
    indices: Tensor
    by_source: bool
    perm: Tensor | None = None

    @classmethod
    def of_nodes(cls, count: int, by_source: bool) -> _Walk:
        """Return the walk of each node alone."""
        return cls(torch.arange(count + 1), torch.arange(count, dtype=torch.int32), by_source)


@dataclass(frozen=True, eq=False)
class _Given:
    """What a message reads, as the kernels take it."""

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


class _Message:
    """A message's programs, which graphs share.

    Args:
        steps: the message; the last step gives it.
        alike: for each parameter, whether it is one number.
        kind: how messages become one row, by the number that the kernels take.
        hoists: whether steps of the sources alone, and of the destinations alone, run once for each node.
    """

    def __init__(
        self, steps: tuple[MessageStep, ...], alike: tuple[bool, ...], kind: int, hoists: tuple[bool, ...]
    ) -> None:
        self.whole, message, score = _entered(steps, alike)
        self.counts = {side: 1 + max((s.first for s in steps if s.op is side), default=-1) for side in _SIDES}
        """How many matrices of each side the message reads."""
        self.hoisted = {side: list[int]() for side in _SIDES}
        """Steps that run once for each node, in the order in which their rows follow the side's matrices."""
        for side in (side for side, is_worth in zip(_SIDES, hoists, strict=True) if is_worth):
            found = self.whole.of_one_side(side, message)
            if self.counts[side] + len(found) <= MOST_MATRICES - (score is not None):
                self.hoisted[side] = found
        leaves = {
            step: MessageStep(side, self.counts[side] + n, narrow=self.whole.all[step].narrow)
            for side, hoisted in self.hoisted.items()
            for n, step in enumerate(hoisted)
        }
        self._steps, numbers = self.whole.replaced(message, leaves)
        self._last, self._selects = numbers[message], kind != _SUM
        self.softmax: _Program | None = None
        """What computes the logarithms of a softmax's sums."""
        if score is not None:
            if self._selects or self.counts[_OP.DESTINATION] >= MOST_MATRICES:
                raise DataError("messages with a softmax must be summed, and read at most 3 destinations")
            self._score = numbers[score]
            self.softmax = _Program.of(self._steps, [(0, self._score)], kind=_LOG_SUM_EXP)
            self.softmax_is_narrow = self.whole.all[score].narrow
        self.forward = _Program.of(self._steps, [(0, self._last)], kind=kind)
        self.with_slopes = self._forward_with_slopes()
        self.at_nodes = {
            side: _Program.of(self.whole, list(enumerate(hoisted)))
            for side, hoisted in self.hoisted.items()
            if hoisted
        }
        """What computes the rows of :attr:`hoisted`."""
        self._backward = dict[tuple[Any, ...], _Program | None]()

    @classmethod
    @functools.lru_cache(256)
    def of(cls, *key: Any) -> _Message:
        """Return the message, made by the first call alone."""
        return cls(*key)

    def _forward_with_slopes(self) -> _Program | None:
        leaves = [i for i, step in enumerate(self._steps.all) if step.op is _OP.DESTINATION]
        has_slopes = all(self._steps.has_slope(self._last, i) for i in leaves)
        if self.softmax or self._selects or not leaves or not has_slopes or len(leaves) >= MOST_MATRICES:
            return None
        steps = self._steps.copy()
        found = steps.gradients({self._last: steps.number(1.0)}, leaves)
        slopes = [(steps.all[i].first, slope) for i, slope in found.items()]
        return _Program.of(steps, [(-1, self._last), *slopes])  # the result's place is none of a matrix

    def gradient(
        self, side: MessageOp, to: Sequence[Tensor | None], learned: tuple[bool, ...], *, is_last: bool
    ) -> _Program | None:
        """Return the program of one walk of backward; None if it gives nothing that is wanted."""
        wanted = tuple(t is not None for t in to)
        key = side, wanted, learned
        if not any(wanted) and not (is_last and any(learned)):
            return None
        if key not in self._backward:
            steps = self._steps.copy()
            place = self.counts[_OP.DESTINATION] + len(self.hoisted[_OP.DESTINATION])
            seed = steps.leaf(_OP.DESTINATION, place)
            if self._selects:
                equal = steps.add(_OP.EQUAL, self._last, steps.leaf(_OP.DESTINATION, place + 1))
                seed = steps.add(_OP.WHERE, seed, equal)
            seeds = {self._last: seed}
            if self.softmax is not None:
                factor = steps.softmax(self._score)
                dot = steps.leaf(_OP.DESTINATION, _DOT, narrow=self.softmax_is_narrow)
                lost = steps.add(_OP.MULTIPLY, factor, dot)
                seeds[self._score] = steps.add(_OP.MULTIPLY, lost, steps.number(-1.0))
            self._backward[key] = _gradient_program(steps, seeds, side, wanted, learned)
        return self._backward[key]

    def gradient_at_nodes(
        self, side: MessageOp, to: Sequence[Tensor | None], learned: tuple[bool, ...]
    ) -> _Program | None:
        """Return the program of what runs once for each node, in backward."""
        wanted = tuple(t is not None for t in to)
        key = "at nodes", side, wanted, learned
        if key not in self._backward:
            steps, first = self.whole.copy(), self.counts[side]
            seeds = {
                step: steps.leaf(side, first + n, narrow=steps.all[step].narrow)
                for n, step in enumerate(self.hoisted[side])
            }
            self._backward[key] = _gradient_program(steps, seeds, side, wanted, learned)
        return self._backward[key]


def _entered(steps: Sequence[MessageStep], alike: Sequence[bool]) -> tuple[_StepList, int, int | None]:
    """Return a message's steps, each once, the message as a wide row, and what is under a softmax if any is.

    Raises:
        DataError: they read what is not there, or a softmax is no factor of the message.
    """
    if not 1 <= len(steps) <= MOST_STEPS:
        raise DataError(f"a message must have 1 to {MOST_STEPS} steps; got {len(steps)}")
    made, numbers, score = _StepList(), list[int](), None
    for place, step in enumerate(steps):
        if step.op >= _OP.ADD:
            of = (step.first, step.second) if step.op <= _OP.WHERE else (step.first,)
            if any(not 0 <= i < len(numbers) for i in of):
                raise DataError(f"steps must read earlier ones; got {step} as number {len(numbers)}")
            if step.op is _OP.SOFTMAX:
                _check_softmax(steps, place)
                score = numbers[step.first]
                numbers.append(made.softmax(score))
                continue
            named = [made.wide(numbers[i]) if step.op is _OP.SUM_COLUMNS else numbers[i] for i in of]
            numbers.append(made.add(step.op, *named, number=step.number))
            continue
        if step.op is _OP.PARAMETER and not 0 <= step.first < len(alike):
            raise DataError(f"steps must read parameters that are given; got {step}")
        numbers.append(made.leaf(step.op, step.first, number=step.number, narrow=step.narrow))
        is_alike = step.op is _OP.PARAMETER and alike[step.first]
        if is_alike or step.op in (_OP.NUMBER, _OP.WEIGHT):
            made.alike.add(numbers[-1])
    return made, made.wide(numbers[-1]), score


def _check_softmax(steps: Sequence[MessageStep], place: int) -> None:
    """Raise DataError unless the message is a softmax times something that does not depend on it."""
    last = steps[-1]
    is_factor = last.op is _OP.MULTIPLY and (last.first == place) != (last.second == place)
    read = {i for step in steps[:-1] if step.op >= _OP.ADD for i in (step.first, step.second)}
    if not is_factor or place in read or len(steps) < place + 2:
        raise DataError(
            "a softmax must be one factor of the message, its last step, and read by nothing else"
        )


def _gradient_program(
    steps: _StepList,
    seeds: Mapping[int, int],
    side: MessageOp,
    wanted: Sequence[bool],
    learned: Sequence[bool],
) -> _Program | None:
    """Return what computes the gradients of matrices of one side, and of parameters; None if none has any."""
    leaves = list(enumerate(steps.all))
    rows = {i: s.first for i, s in leaves if s.op is side and s.first < len(wanted) and wanted[s.first]}
    parameters = [(i, s.first) for i, s in leaves if s.op is _OP.PARAMETER]
    over_all = {i: place for i, place in parameters if place < len(learned) and learned[place]}
    found = steps.gradients(seeds, {*rows, *over_all})
    if not found:
        return None
    return _Program.of(
        steps,
        [(place, found[i]) for i, place in rows.items() if i in found],
        [(place, found[i]) for i, place in over_all.items() if i in found],
    )


class FusedMessages:
    """Messages of a graph's edges and their reduction, by one kernel that stores no row per edge.

    An edge's steps run in registers on some columns at a time. Costly steps that read one end alone run once
    for each node. Backward computes the steps again, once over the out-edges for the sources' gradients, and
    once over the in-edges for the destinations', unless forward has kept slopes: a sum's gradient is the same
    for all edges of a node, so it can be multiplied by the sum of what each message grows by. Sums are in the
    order of the edges, so results do not depend on the number of threads. Runs in float32.

    Args:
        csc: the graph or block.
        steps: the message; the last step gives it.
        reduction: how the messages to a node become one row. Nodes without any have zeros.
        width: columns of wide rows and of the result.
        parameters: what the message reads beside the rows, each of ``width`` numbers, of one, or of one for
            each head where the step that reads it is narrow.
        ties: see :class:`.BlockedMessages`.
        heads: a wide row has this many heads, one behind the other; a narrow row has a number for each.

    Raises:
        DataError: there are too many steps, or one reads something else than earlier ones and parameters.
    """

    def __init__(
        self,
        csc: Csc,
        steps: Sequence[MessageStep],
        reduction: MessageReduction,
        width: int,
        *,
        parameters: Sequence[Tensor] = (),
        ties: Ties = "shared",
        heads: int = 1,
    ) -> None:
        self._csc, self._reduction, self._width, self._ties = csc, reduction, width, ties
        self._parameters, self._heads = parameters, heads
        self._nodes = {_OP.SOURCE: csc.num_src, _OP.DESTINATION: csc.num_dst}
        self._message = _Message.of(
            tuple(steps),
            tuple(parameter.numel() == 1 for parameter in parameters),
            {"max": _MAX, "min": _MIN}.get(reduction, _SUM),
            tuple(csc.num_edges >= _EDGES_TO_HOIST * self._nodes[side] for side in _SIDES),
        )

    @property
    def selects(self) -> bool:
        """Whether the reduction is a maximum or minimum; backward then reads the result."""
        return self._reduction in ("max", "min")

    @property
    def reads_result(self) -> bool:
        """Whether backward reads the result."""
        return self.selects or self._message.softmax is not None

    @property
    def kept_widths(self) -> tuple[int, ...]:
        """Columns of the matrices of destinations that forward may keep for backward, which spare it a walk.

        They are slopes, by how much the sum of the messages grows with each row of the destinations, or the
        logarithms of a softmax's sums.
        """
        if self._message.softmax is not None:
            return (self._heads if self._message.softmax_is_narrow else self._width,)
        slopes = self._message.with_slopes
        return () if slopes is None else (self._width,) * (len(slopes.places) - 1)

    def forward(
        self, rows: EdgeRows, out: Tensor, count: Tensor | None = None, *, kept: Sequence[Tensor] = ()
    ) -> None:
        """Compute the reduced messages; see :meth:`.BlockedMessages.forward`.

        Args:
            rows: what the message reads; an edge weight is a vector.
            out: ``(num_dst, width)`` float32, written.
            count: ``(num_dst, width)`` int32, written, for a maximum or minimum alone.
            kept: a matrix of ``num_dst`` rows for each of :attr:`kept_widths`, written; or none.
        """
        if self.selects and count is None:
            count = torch.empty(out.shape, dtype=torch.int32)
        walk = _Walk(self._csc.indptr, self._csc.indices, by_source=False)
        given, slopes = self._given(rows), self._message.with_slopes
        if self._message.softmax is not None:
            given = self._with_sums(given, kept or None)
        if kept and slopes is not None:
            self._run(slopes, walk, given, [out, *kept], in_order=True)
        else:
            self._run(self._message.forward, walk, given, [out], count=count)
        finish_reduction(self._csc, self._reduction, self._ties, out, count)

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

        ``into`` has none of edges. ``kept`` are those of :meth:`forward`. A softmax needs ``out``, too.
        """
        csc, given = self._csc, self._given(rows)
        more = [gradient_of_each(csc, self._reduction, grad, count).contiguous()]
        more += [out] if self.selects and out is not None else []
        given = given.having(_OP.DESTINATION, (*given.destinations, *more))
        if self._message.softmax is not None:
            assert out is not None
            dot = more[0] * out
            if self._message.softmax_is_narrow:
                dot = dot.view(len(dot), self._heads, -1).sum(2)
            given = self._with_sums(given, kept or None, written=bool(kept))
            places = given.destinations
            given = given.having(_OP.DESTINATION, (*places[:_DOT], dot, *places[_DOT + 1 :]))
        learned = tuple(total is not None for total in into.parameters)
        totals = torch.zeros_like(given.parameters)
        left = learned  # the parameters whose gradients no walk has given yet
        for side, targets in zip(_SIDES, (into.sources, into.destinations), strict=True):
            number = self._nodes[side]
            to = [None if t is None else t[:number] for t in targets[: self._message.counts[side]]]
            to += [None] * (self._message.counts[side] - len(to))
            reaches = any(t is not None for t in to) or any(learned)
            inner = [
                self._empty(step, number).zero_() if reaches else None for step in self._message.hoisted[side]
            ]
            gets = (*to, *inner)
            if kept and (slopes := self._message.with_slopes) and side is _OP.DESTINATION:
                for place, slope in zip(slopes.places[1:], kept, strict=True):
                    if (target := gets[place]) is not None:
                        target.addcmul_(more[0], slope)
                gets = ()  # no walk, if it is not for parameters
            program = self._message.gradient(side, gets, left, is_last=side is _SIDES[-1])
            if program is not None:
                walk = _Walk(csc.indptr, csc.indices, by_source=False)
                if side is _OP.SOURCE:
                    reverse, perm = csc.transpose()
                    walk = _Walk(reverse.indptr, reverse.indices, True, perm)
                totals += self._run(program, walk, given, gets, adds=True)
                left = ()
            if (
                inner
                and reaches
                and (program := self._message.gradient_at_nodes(side, to, learned)) is not None
            ):
                read = replace(given, edges=None, weight=None)
                read = read.having(side, (*given.of(side)[: self._message.counts[side]], *inner))
                totals += self._run(program, _Walk.of_nodes(number, side is _OP.SOURCE), read, to, adds=True)
        for row, parameter, total in zip(totals, self._parameters, into.parameters, strict=True):
            if total is not None:
                given_to = row.sum() if parameter.numel() == 1 else row[: parameter.numel()]
                total.add_(given_to.view(total.shape))

    def _empty(self, step: int, number: int) -> Tensor:
        narrow = self._message.whole.all[step].narrow
        return new_rows(_FLOAT, number, self._heads if narrow else self._width)

    def _given(self, rows: EdgeRows) -> _Given:
        """Return what the kernels read, with what runs once for each node computed."""
        learned = torch.zeros(len(self._parameters), self._width)
        for row, parameter in zip(learned, self._parameters, strict=True):
            row[: parameter.numel() if parameter.numel() > 1 else None] = parameter.detach().reshape(-1)
        given = _Given(
            sources=self._padded(_OP.SOURCE, rows.sources),
            destinations=self._padded(_OP.DESTINATION, rows.destinations),
            parameters=learned,
        )
        for side, program in self._message.at_nodes.items():
            number = self._nodes[side]
            made = [self._empty(step, number) for step in self._message.hoisted[side]]
            self._run(program, _Walk.of_nodes(number, side is _OP.SOURCE), given, made)
            given = given.having(side, (*given.of(side), *made))
        of_edges = [e.detach().contiguous() for e in rows.edges]
        return replace(
            given,
            edges=next((e for e in of_edges if e.ndim == 2), None),
            weight=next((e for e in of_edges if e.ndim == 1), None),
        )

    def _with_sums(self, given: _Given, kept: Sequence[Tensor] | None, *, written: bool = False) -> _Given:
        """Return what is read with the logarithms of a softmax's sums, computed if they are not yet."""
        (sums,) = kept or [new_rows(_FLOAT, self._csc.num_dst, self.kept_widths[0])]
        if not written:
            assert self._message.softmax is not None
            walk = _Walk(self._csc.indptr, self._csc.indices, by_source=False)
            self._run(self._message.softmax, walk, given, [sums])
        return given.having(_OP.DESTINATION, (*_filled(given.destinations, _LSE), sums))

    def _padded(self, side: MessageOp, rows: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        found = [one.detach().contiguous() for one in rows[: self._message.counts[side]]]
        return (*found, *[None] * (self._message.counts[side] - len(found)))

    def _run(
        self,
        program: _Program,
        walk: _Walk,
        given: _Given,
        out: Sequence[Tensor | None],
        *,
        count: Tensor | None = None,
        adds: bool = False,
        in_order: bool = False,
    ) -> Tensor:
        """Run a program; return the sums over all edges.

        Results go to their places in ``out``, or in its order.
        """
        totals = torch.zeros_like(given.parameters)
        to = out if in_order else [out[place] for place in program.places]
        over_all = bool((program.results[:, 0] == _OVER_ALL).any())
        backend(given.parameters).reduce_messages(
            walk.indptr,
            walk.indices,
            walk.perm,
            walk.by_source,
            self._heads,
            program.steps,
            program.numbers,
            *_filled(given.sources, MOST_MATRICES),
            *_filled(given.destinations, _PASSED_DESTINATIONS),
            given.edges,
            given.weight,
            given.parameters,
            program.results,
            adds,
            *_filled(to, MOST_MATRICES),
            count,
            totals if over_all else None,
        )
        return totals


def fits_kernel(
    steps: Sequence[MessageStep], parameters: Sequence[Tensor], reduction: MessageReduction
) -> bool:
    """Return whether the kernel has these steps with this reduction."""
    kind = {"max": _MAX, "min": _MIN}.get(reduction, _SUM)
    try:
        _Message.of(tuple(steps), tuple(one.numel() == 1 for one in parameters), kind, (False, False))
    except DataError:
        return False
    return reduction == "sum" or all(step.op is not _OP.SOFTMAX for step in steps)


def aggregate_steps(
    csc: Csc,
    steps: Sequence[MessageStep],
    *,
    sources: Sequence[Tensor] = (),
    destinations: Sequence[Tensor] = (),
    edges: Sequence[Tensor] = (),
    parameters: Sequence[Tensor] = (),
    reduction: MessageReduction = "sum",
    ties: Ties = "shared",
    width: int,
    heads: int = 1,
) -> Tensor:
    """Reduce messages made of steps, as :func:`.aggregate_messages` does, by one kernel.

    Args:
        csc: the graph or block.
        steps: the message; see :class:`FusedMessages`.
        sources: float32 matrices of ``num_src`` rows.
        destinations: float32 matrices of at least ``num_dst`` rows.
        edges: float32, at most one matrix and one vector; they get no gradients.
        parameters: see :class:`FusedMessages`.
        reduction: ``sum``, ``mean``, ``max`` or ``min``.
        ties: see :class:`.BlockedMessages`.
        width: columns of the result.
        heads: see :class:`FusedMessages`.

    Returns:
        ``(num_dst, width)`` float32.
    """
    how = FusedMessages(csc, steps, reduction, width, parameters=parameters, ties=ties, heads=heads)
    sizes = len(sources), len(destinations), len(edges)
    out: Tensor = run(
        _AggregateSteps, how, (csc.num_dst, width), sizes, *sources, *destinations, *edges, *parameters
    )
    return out


class _AggregateSteps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, how: FusedMessages, shape: tuple[int, int], sizes: tuple[int, int, int], *tensors: Tensor
    ) -> Tensor:
        rows = _edge_rows(sizes, tensors)
        out = new_rows(_FLOAT, *shape)
        count = new_rows(_FLOAT, *shape, torch.int32) if how.selects else None
        keeps = any(ctx.needs_input_grad)
        kept = [new_rows(_FLOAT, shape[0], width) for width in how.kept_widths if keeps]
        how.forward(rows, out, count, kept=kept)
        ctx.how, ctx.sizes = how, sizes
        ctx.save_for_backward(*tensors, out if how.reads_result else None, count, *kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needs, tensors = ctx.needs_input_grad[3:], ctx.saved_tensors
        (out, count, *kept), tensors = tensors[len(needs) :], tensors[: len(needs)]
        rows = _edge_rows(ctx.sizes, tensors)
        into = [None if not needed else _zeros(t) for t, needed in zip(tensors, needs, strict=True)]
        a, b, c = accumulate(ctx.sizes)
        targets = EdgeGradients(
            sources=tuple(into[:a]), destinations=tuple(into[a:b]), parameters=tuple(into[c:])
        )
        ctx.how.backward(rows, grad.contiguous(), targets, out=out, count=count, kept=kept)
        return None, None, None, *into


def _edge_rows(sizes: tuple[int, int, int], tensors: Sequence[Tensor]) -> EdgeRows:
    a, b, c = accumulate(sizes)
    return EdgeRows(sources=tuple(tensors[:a]), destinations=tuple(tensors[a:b]), edges=tuple(tensors[b:c]))


def _zeros(like: Tensor) -> Tensor:
    return new_rows(like, *like.shape).zero_() if like.ndim == 2 else torch.zeros_like(like)


def _filled(tensors: Sequence[Tensor | None], number: int) -> tuple[Tensor | None, ...]:
    return (*tensors, *[None] * number)[:number]


__all__ = ["FusedMessages", "MessageOp", "MessageStep", "aggregate_steps", "fits_kernel"]
