"""MessagePrograms: a message's steps as the programs that the kernels run, forward and backward."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphbraid.errors import DataError
from graphbraid.ops.message_reductions import SeveralReductions
from graphbraid.ops.message_steps import (
    DOT_PLACE,
    MOST_MATRICES,
    SIDES,
    MessageOp,
    MessageStep,
    StepList,
    entered_steps,
)
from graphbraid.ops.messages import MessageReduction

_OP = MessageOp
SUM, MAX, MIN, LOG_SUM_EXP, OVER_ALL = range(5)
"""Kinds of results, by the number that the kernels take."""
SQUARES = 5
"""Kind of a sum of squares, which is a sum of another step's."""
_KINDS = {"sum": SUM, "squares": SQUARES, "mean": SUM, "max": MAX, "min": MIN}


@dataclass(frozen=True, eq=False)
class KernelProgram:
    """Steps as the kernel takes them, without those that nothing reads."""

    steps: Tensor
    numbers: Tensor
    results: Tensor
    places: tuple[int, ...]
    """For each row result, the number of its matrix."""
    has_totals: bool
    """Whether any result is a sum over all edges."""

    @classmethod
    def of(
        cls,
        steps: StepList,
        rows: Sequence[tuple[int, int]],
        over_all: Sequence[tuple[int, int]] = (),
        kinds: Sequence[int] = (),
    ) -> KernelProgram:
        """Make the program of results: pairs of a place (a matrix, a parameter) and the step that fills it.

        ``kinds`` are the kinds of ``rows``. Without them, all are sums.
        """
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
        kinds = kinds or [SUM] * len(rows)
        results = [(kind, at[step], n) for n, (kind, (_, step)) in enumerate(zip(kinds, rows, strict=True))]
        results += [(OVER_ALL, at[step], place) for place, step in over_all]
        return cls(
            torch.tensor(packed),
            torch.tensor([steps.all[i].number for i in at], dtype=torch.float32),
            torch.tensor(results),
            tuple(place for place, _ in rows),
            bool(over_all),
        )


SidePrograms = tuple[KernelProgram | None, KernelProgram | None]
"""A side's programs in backward: what walks the edges, and what runs once for each node."""


class MessagePrograms:
    """A message's programs, which graphs share. The last step gives the message.

    ``alike`` says of each parameter whether it is one number, ``kinds`` how messages become rows, by numbers
    of the kernels. ``hoists`` says whether steps of sources alone, and of destinations alone, run once for
    each node.
    """

    def __init__(
        self,
        steps: tuple[MessageStep, ...],
        alike: tuple[bool, ...],
        kinds: tuple[int, ...],
        hoists: tuple[bool, ...],
    ) -> None:
        self.whole, message, score = entered_steps(steps, alike)
        self.counts = {side: 1 + max((s.first for s in steps if s.op is side), default=-1) for side in SIDES}
        """How many matrices of each side the message reads."""
        self.hoisted = {side: list[int]() for side in SIDES}
        """Steps that run once for each node, in the order in which their rows follow the side's matrices."""
        for side in (side for side, is_worth in zip(SIDES, hoists, strict=True) if is_worth):
            found = self.whole.of_one_side(side, message)
            if self.counts[side] + len(found) <= MOST_MATRICES - (score is not None):
                self.hoisted[side] = found
        leaves = {
            step: MessageStep(side, self.counts[side] + n, narrow=self.whole.all[step].narrow)
            for side, hoisted in self.hoisted.items()
            for n, step in enumerate(hoisted)
        }
        self._steps, numbers = self.whole.replaced(message, leaves)
        self._last, self.kinds = numbers[message], kinds
        self.softmax: KernelProgram | None = None
        """Computes the logarithms of a softmax's sums; None without a softmax."""
        if score is not None:
            if kinds != (SUM,) or self.counts[_OP.DESTINATION] >= MOST_MATRICES:
                raise DataError("messages with a softmax must be summed, and read at most 3 destinations")
            self._score = numbers[score]
            self.softmax = KernelProgram.of(self._steps, [(0, self._score)], kinds=[LOG_SUM_EXP])
            self.softmax_is_narrow = self.whole.all[score].narrow
        square = self._steps.add(_OP.MULTIPLY, self._last, self._last) if SQUARES in kinds else -1
        results = [(n, square if kind == SQUARES else self._last) for n, kind in enumerate(kinds)]
        of_kernel = [SUM if kind == SQUARES else kind for kind in kinds]
        self.forward = KernelProgram.of(self._steps, results, kinds=of_kernel)
        self.with_slopes = self._forward_with_slopes()
        self.at_nodes = {
            side: KernelProgram.of(self.whole, list(enumerate(hoisted)))
            for side, hoisted in self.hoisted.items()
            if hoisted
        }
        """Programs that compute the rows of :attr:`hoisted`, by side."""
        self._backward = dict[tuple[Any, ...], tuple[SidePrograms, ...]]()

    @classmethod
    @functools.lru_cache(256)
    def of(cls, *key: Any) -> MessagePrograms:
        """Return the message, made by the first call alone."""
        return cls(*key)

    def _forward_with_slopes(self) -> KernelProgram | None:
        leaves = [i for i, step in enumerate(self._steps.all) if step.op is _OP.DESTINATION]
        has_slopes = all(self._steps.has_slope(self._last, i) for i in leaves)
        if (
            self.softmax
            or self.kinds != (SUM,)
            or not leaves
            or not has_slopes
            or len(leaves) >= MOST_MATRICES
        ):
            return None
        steps = self._steps.copy()
        found = steps.gradients({self._last: steps.number(1.0)}, leaves)
        slopes = [(steps.all[i].first, slope) for i, slope in found.items()]
        return KernelProgram.of(steps, [(-1, self._last), *slopes])  # -1: the result belongs to no matrix

    def backward(
        self, wanted: tuple[tuple[bool, ...], ...], learned: tuple[bool, ...], *, has_slopes: bool
    ) -> tuple[SidePrograms, ...]:
        """Return backward's programs for sources, then for destinations.

        The first of two walks the edges, the second runs once for each node. One is None if it gives nothing
        that is wanted. ``wanted`` says of each side which of its matrices get gradients, and ``learned``
        which parameters. With ``has_slopes``, those of destinations come from slopes that forward has kept.
        """
        key = wanted, learned, has_slopes
        if key not in self._backward:
            found, left = list[SidePrograms](), learned  # parameters whose gradients no walk has given yet
            for side, of_side in zip(SIDES, wanted, strict=True):
                reaches, walks, at_nodes = any(of_side) or any(learned), None, None
                gets = (*of_side, *[reaches] * len(self.hoisted[side]))
                if has_slopes and side is _OP.DESTINATION:
                    gets = ()  # only parameters may need a walk
                if any(gets) or (side is SIDES[-1] and any(left)):
                    walks = self._gradient(side, gets, left)
                    left = left if walks is None else ()
                if self.hoisted[side] and reaches:
                    at_nodes = self._gradient_at_nodes(side, of_side, learned)
                found.append((walks, at_nodes))
            self._backward[key] = tuple(found)
        return self._backward[key]

    def _gradient(
        self, side: MessageOp, wanted: tuple[bool, ...], learned: tuple[bool, ...]
    ) -> KernelProgram | None:
        steps = self._steps.copy()
        place = self.counts[_OP.DESTINATION] + len(self.hoisted[_OP.DESTINATION])
        seeds = dict[int, int]()
        for kind in self.kinds:
            seed, place = steps.leaf(_OP.DESTINATION, place), place + 1
            if kind in (MAX, MIN):
                equal = steps.add(_OP.EQUAL, self._last, steps.leaf(_OP.DESTINATION, place))
                seed, place = steps.add(_OP.WHERE, seed, equal), place + 1
            elif kind == SQUARES:  # d(m * m) = 2 m dm; the factor 2 comes with the sum's gradient
                seed = steps.add(_OP.MULTIPLY, seed, self._last)
            before = seeds.get(self._last)
            seeds[self._last] = seed if before is None else steps.add(_OP.ADD, before, seed)
        if self.softmax is not None:
            factor = steps.softmax(self._score)
            dot = steps.leaf(_OP.DESTINATION, DOT_PLACE, narrow=self.softmax_is_narrow)
            lost = steps.add(_OP.MULTIPLY, factor, dot)
            seeds[self._score] = steps.add(_OP.MULTIPLY, lost, steps.number(-1.0))
        return _gradient_program(steps, seeds, side, wanted, learned)

    def _gradient_at_nodes(
        self, side: MessageOp, wanted: tuple[bool, ...], learned: tuple[bool, ...]
    ) -> KernelProgram | None:
        steps, first = self.whole.copy(), self.counts[side]
        seeds = {
            step: steps.leaf(side, first + n, narrow=steps.all[step].narrow)
            for n, step in enumerate(self.hoisted[side])
        }
        return _gradient_program(steps, seeds, side, wanted, learned)


def _gradient_program(
    steps: StepList,
    seeds: Mapping[int, int],
    side: MessageOp,
    wanted: Sequence[bool],
    learned: Sequence[bool],
) -> KernelProgram | None:
    """Return the program for the gradients of one side's matrices and of parameters; None if all are zero."""
    leaves = list(enumerate(steps.all))
    rows = {i: s.first for i, s in leaves if s.op is side and s.first < len(wanted) and wanted[s.first]}
    parameters = [(i, s.first) for i, s in leaves if s.op is _OP.PARAMETER]
    over_all = {i: place for i, place in parameters if place < len(learned) and learned[place]}
    found = steps.gradients(seeds, {*rows, *over_all})
    if not found:
        return None
    return KernelProgram.of(
        steps,
        [(place, found[i]) for i, place in rows.items() if i in found],
        [(place, found[i]) for i, place in over_all.items() if i in found],
    )


def native_programs(
    hoists: Sequence[bool],
    wanted: Sequence[Sequence[bool]],
    learned: Sequence[bool],
    *,
    steps: tuple[MessageStep, ...],
    alike: tuple[bool, ...],
    kinds: tuple[int, ...],
    is_one: bool,
) -> tuple[list[list[bool]], list[tuple[Any, ...] | None]]:
    """Return a message's programs, as the compiled segments of mini-batches run them.

    Arguments are as in :class:`MessagePrograms` and its :meth:`~MessagePrograms.backward`. ``is_one`` says
    that there is one reduction, and not several side by side.

    Returns:
        for each side which of the rows behind its matrices are narrow; and the programs, in the order of
        ``MessagePrograms`` in ``csrc/segments/messages.h``.
    """
    message = MessagePrograms.of(steps, alike, kinds, tuple(hoists))
    with_slopes = message.with_slopes if is_one else None
    has_slopes = with_slopes is not None
    back = message.backward(tuple(map(tuple, wanted)), tuple(learned), has_slopes=has_slopes)
    programs = message.softmax, message.forward, with_slopes
    at_nodes = (message.at_nodes.get(side) for side in SIDES)
    narrow = [[message.whole.all[step].narrow for step in message.hoisted[side]] for side in SIDES]
    found = (*programs, *at_nodes, *(one for one, _ in back), *(one for _, one in back))
    fields = [None if one is None else (one.steps, one.numbers, one.results, one.places) for one in found]
    return narrow, fields


def kinds_of(reduction: MessageReduction | SeveralReductions) -> tuple[int, ...]:
    """Return the reductions of one walk over the edges, by the numbers that the kernels take."""
    return tuple(_KINDS[one] for one in ((reduction,) if isinstance(reduction, str) else reduction.sums))


def parameters_read(
    steps: Sequence[MessageStep], count: int
) -> tuple[tuple[MessageStep, ...], tuple[tuple[int, int], ...]]:
    """Return steps that name parameters by their place among those that are read, and these.

    Each is the number of one of ``count`` parameters, and of its column, from 1; 0 stands for all of it.

    Raises:
        DataError: there is no such parameter.
    """
    named, places = list[MessageStep](), dict[tuple[int, int], int]()
    for step in steps:
        if step.op is not _OP.PARAMETER:
            named.append(step)
            continue
        if not 0 <= step.first < count:
            raise DataError(f"steps must read parameters that are given; got {step}")
        place = places.setdefault((step.first, step.second), len(places))
        named.append(replace(step, first=place, second=0))
    return tuple(named), tuple(places)


def column_of(parameter: Tensor, column: int) -> Tensor:
    """Return the column of a matrix that a step reads, by its number from 1; for 0 the whole parameter."""
    return parameter[:, column - 1] if column else parameter


def fits_kernel(
    steps: Sequence[MessageStep],
    parameters: Sequence[Tensor],
    reduction: MessageReduction | SeveralReductions,
) -> bool:
    """Return whether the kernel has these steps with this reduction."""
    try:
        named, read = parameters_read(steps, len(parameters))
        alike = tuple(column_of(parameters[at], column).numel() == 1 for at, column in read)
        MessagePrograms.of(named, alike, kinds_of(reduction), (False, False))
    except DataError:
        return False
    return reduction == "sum" or all(step.op is not _OP.SOFTMAX for step in steps)
