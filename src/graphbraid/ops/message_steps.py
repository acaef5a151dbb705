"""Messages as lists of elementwise steps, and their gradients, which are such lists, too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from graphbraid.errors import DataError

MOST_MATRICES, MOST_STEPS = 4, 256
"""Matrices of sources, of destinations, and steps of a message that the kernel takes."""
DOT_PLACE, MAX_PLACE, LOG_PLACE = 4, 5, 6
"""Places, among the matrices of destinations, of what a softmax reads: the product of gradient and result,
the largest scores, and the logarithms of the sums of exponentials below these."""


class MessageOp(IntEnum):
    """Operation of a step for each edge ``u -> v``, by the number that the kernels take.

    The first seven read a row: row ``u`` of a matrix of the sources, row ``v`` of one of the destinations,
    the edge's own row, its weight, a parameter's row, a number, or one number of the edge's own row. A weight
    or number fills the row. All others compute a row from the rows of one or two earlier steps. Those from
    ``RELU_GRADIENT`` to ``WHERE`` are for backward. A softmax runs over the edges of a destination, number by
    number. It must be a factor of a message that is summed; kernels get it as an exponential.
    """

    SOURCE = 0
    DESTINATION = 1
    EDGE = 2
    WEIGHT = 3
    PARAMETER = 4
    NUMBER = 5
    EDGE_NUMBER = 6
    ADD = 7
    SUBTRACT = 8
    MULTIPLY = 9
    DIVIDE = 10
    RELU_GRADIENT = 11
    LEAKY_RELU_GRADIENT = 12
    SIGMOID_GRADIENT = 13
    TANH_GRADIENT = 14
    ABS_GRADIENT = 15
    EQUAL = 16
    WHERE = 17
    RELU = 18
    LEAKY_RELU = 19
    SIGMOID = 20
    TANH = 21
    EXP = 22
    ABS = 23
    SUM_COLUMNS = 24
    SPREAD = 25
    SOFTMAX = 26


_OP = MessageOp
CHANGES_WIDTH = (_OP.SUM_COLUMNS, _OP.SPREAD)
SIDES = (_OP.SOURCE, _OP.DESTINATION)
_OF_EDGES = (_OP.EDGE, _OP.WEIGHT, _OP.EDGE_NUMBER)
_COSTLY = (_OP.DIVIDE, _OP.SIGMOID, _OP.TANH, _OP.EXP)


@dataclass(frozen=True, slots=True)
class MessageStep:
    """One step of a message."""

    op: MessageOp
    first: int = 0
    """The matrix, parameter or column that is read, or the step; 0 where nothing is."""
    second: int = 0
    """The other step of those that read two. Of a parameter that is a matrix, the column that is read, from
    1: the kernel gets it as a parameter of its own."""
    number: float = 0.0
    """The number, or the slope below zero."""
    narrow: bool = False
    """Whether the row has one number for each head and not all columns."""


_ONE = MessageStep(_OP.NUMBER, number=1.0)


class StepList:
    """Steps, each once, with the widths of their rows.

    A narrow row that meets a wide one is spread over its heads' columns.
    """

    def __init__(self) -> None:
        self.all: list[MessageStep] = []
        self.alike = set[int]()
        """Leaves with the same number in all columns, which are read as narrow or wide rows."""
        self._known = dict[MessageStep, int]()

    def copy(self) -> StepList:
        """Return a list that grows by itself."""
        made = StepList()
        made.all, made.alike, made._known = self.all[:], self.alike.copy(), self._known.copy()
        return made

    def leaf(self, op: MessageOp, at: int = 0, *, number: float = 0.0, narrow: bool = False) -> int:
        """Return the number of a step that reads a row."""
        return self._entered(MessageStep(op, at, 0, number, narrow))

    def add(self, op: MessageOp, *of: int, number: float = 0.0) -> int:
        """Return the number of a step that computes a row from those of others."""
        if op in CHANGES_WIDTH:
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
        narrow = self.all[score].narrow
        largest, log = (self.leaf(_OP.DESTINATION, at, narrow=narrow) for at in (MAX_PLACE, LOG_PLACE))
        # One after the other: a score of 1e5 and its sum's logarithm have no digits in common.
        return self.add(_OP.EXP, self.add(_OP.SUBTRACT, self.add(_OP.SUBTRACT, score, largest), log))

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
        """Return whether a message's numbers depend only on the number of the leaf's row in their column."""
        reaches = list[bool]()
        for i in range(message + 1):
            reached = [j for j in self.reads(i) if reaches[j]]
            reaches.append(i == leaf or bool(reached))
            if reached and self.all[i].op in CHANGES_WIDTH:
                return False
        return not self.all[leaf].narrow

    def of_one_side(self, side: MessageOp, message: int) -> list[int]:
        """Return costly steps of one side alone, if another step reads them or they are the message."""
        sides, costs = list[set[MessageOp]](), list[bool]()
        for i, step in enumerate(self.all):
            reads = self.reads(i)
            own = {step.op} if step.op in (*SIDES, *_OF_EDGES) else set[MessageOp]()
            if step.op is _OP.DESTINATION and step.first in (MAX_PLACE, LOG_PLACE):
                own.add(_OP.EDGE)  # a softmax's sums, which its edges must give first
            sides.append(own.union(*(sides[j] for j in reads)))
            costs.append(step.op in _COSTLY or any(costs[j] for j in reads))
        read = {message} | {j for i in range(len(self.all)) if sides[i] != {side} for j in self.reads(i)}
        return sorted(i for i in read if sides[i] == {side} and costs[i])

    def replaced(self, message: int, leaves: Mapping[int, MessageStep]) -> tuple[StepList, dict[int, int]]:
        """Return steps that read some of these as rows, and the number of each among them."""
        made, numbers = StepList(), dict[int, int]()
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
        """Append the steps of gradients; return the gradient's step for each wanted leaf that has one.

        ``seeds`` have, for each step that is differentiated, the step that is its gradient.
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
        """Yield the parts that a step's gradient adds to the gradients of the steps that it reads."""
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
        elif step.op in CHANGES_WIDTH and takes_x:
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
"""Function -> the operation that makes its gradient from the result's, and the other row that this reads."""


def entered_steps(steps: Sequence[MessageStep], alike: Sequence[bool]) -> tuple[StepList, int, int | None]:
    """Return a message's steps, each once, the message as a wide row, and what is under a softmax if any is.

    Raises:
        DataError: there are too many steps, one reads a later one, or a softmax is no factor of the message.
    """
    if not 1 <= len(steps) <= MOST_STEPS:
        raise DataError(f"a message must have 1 to {MOST_STEPS} steps; got {len(steps)}")
    made, numbers, score = StepList(), list[int](), None
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
        numbers.append(made.leaf(step.op, step.first, number=step.number, narrow=step.narrow))
        is_alike = step.op is _OP.PARAMETER and alike[step.first]
        if is_alike or step.op in (_OP.NUMBER, _OP.WEIGHT, _OP.EDGE_NUMBER):
            made.alike.add(numbers[-1])
    return made, made.wide(numbers[-1]), score


class ComposedMap(NamedTuple):
    """A linear map behind another one, as one matrix: ``outer[:, first:last] @ [inner, bias]``.

    ``outer``, ``inner`` and ``bias`` are places among a message's parameters. Steps read the columns of the
    matrix as those of a parameter, whose number follows those of the parameters.
    """

    outer: int
    first: int
    last: int
    inner: int
    bias: int
    """-1: there is none, and no last column."""

    def of(self, parameters: Sequence[Tensor]) -> Tensor:
        """Return the matrix, ``(out_channels, in_channels)`` and a column for the bias."""
        return parameters[self.outer][:, self.first : self.last] @ self._inner(parameters)

    def pass_back(self, grad: Tensor, parameters: Sequence[Tensor], to: Sequence[Tensor | None]) -> None:
        """Add the gradients of the parameters to ``to``, from that of the matrix."""
        of_inner = parameters[self.outer][:, self.first : self.last].detach().t() @ grad
        if (outer := to[self.outer]) is not None:
            outer[:, self.first : self.last].addmm_(grad, self._inner(parameters).detach().t())
        if (inner := to[self.inner]) is not None:
            inner.add_(of_inner[:, : inner.shape[1]])
        if self.bias >= 0 and (bias := to[self.bias]) is not None:
            bias.add_(of_inner[:, -1])

    def _inner(self, parameters: Sequence[Tensor]) -> Tensor:
        inner = parameters[self.inner]
        return inner if self.bias < 0 else torch.cat((inner, parameters[self.bias][:, None]), 1)


@dataclass(frozen=True, slots=True)
class DotProducts:
    """Dot-product attention: values times the softmax of ``scale`` times the products of queries and keys."""

    query: int
    """The matrix of the destinations that has the queries."""
    key: int
    value: int
    """Those of the sources that have keys and values."""
    scale: float
    dropout: float = 0.0
    """Probability with which a coefficient is dropped, which only compiled segments of mini-batches do."""
    edge_map: tuple[tuple[int, int], ...] = ()
    """The linear map of edge features that is added to keys and values: for each feature the parameter and
    its column, as steps name them. Behind these may stand the bias. Empty if there is no map."""
    num_features: int = 0
    """Number of features that the map reads: the first ones."""


def dot_products(steps: Sequence[MessageStep]) -> DotProducts | None:
    """Return the operands of a message that is only dot-product attention; else None.

    Keys and values may both have the same linear map of edge features added to them.
    """

    def factors(of: MessageStep, op: MessageOp) -> tuple[MessageStep, MessageStep] | None:
        """Return the two steps that one multiplies, that of the given operation first."""
        if of.op is not _OP.MULTIPLY:
            return None
        one, other = steps[of.first], steps[of.second]
        return (one, other) if one.op is op else (other, one) if other.op is op else None

    def terms(of: MessageStep) -> list[MessageStep]:
        """Return the steps that a sum adds up, in order."""
        return [of] if of.op is not _OP.ADD else [*terms(steps[of.first]), *terms(steps[of.second])]

    def with_map(of: MessageStep) -> tuple[MessageStep, tuple[tuple[int, int], ...], int] | None:
        """Return the row of a source, the map of edge features that is added to it, and their number."""
        columns, bias, rows = dict[int, tuple[int, int]](), list[tuple[int, int]](), list[MessageStep]()
        for term in terms(of):
            if (mapped := factors(term, _OP.EDGE_NUMBER)) is not None and not mapped[1].narrow:
                number, column = mapped
                if column.op is not _OP.PARAMETER or number.first in columns:
                    return None
                columns[number.first] = column.first, column.second
            elif term.op is _OP.PARAMETER and not term.narrow:
                bias.append((term.first, term.second))
            else:
                rows.append(term)
        if len(rows) != 1 or rows[0].op is not _OP.SOURCE or len(bias) > bool(columns):
            return None
        in_order = *(columns[at] for at in sorted(columns)), *bias
        return (rows[0], in_order, len(columns)) if [*sorted(columns)] == [*range(len(columns))] else None

    found, scale = factors(steps[-1], _OP.SOFTMAX), 1.0
    if found is None or (values := with_map(found[1])) is None:
        return None
    score = steps[found[0].first]
    while score.op is not _OP.SUM_COLUMNS:
        if (scaled := factors(score, _OP.NUMBER)) is not None:
            scale, score = scale * scaled[0].number, scaled[1]
        elif score.op is _OP.DIVIDE and (by := steps[score.second]).op is _OP.NUMBER and by.number:
            scale, score = scale / by.number, steps[score.first]
        else:
            return None
    products = factors(steps[score.first], _OP.DESTINATION)
    keys = None if products is None else with_map(products[1])
    if products is None or keys is None or keys[1:] != values[1:]:
        return None
    ends = products[0], keys[0], values[0]
    query, key, value = (one.first for one in ends)
    if any(one.narrow for one in ends):
        return None
    return DotProducts(query, key, value, scale, edge_map=keys[1], num_features=keys[2])


def _check_softmax(steps: Sequence[MessageStep], place: int) -> None:
    """Raise DataError unless the message is a softmax times something that does not depend on it."""
    last = steps[-1]
    is_factor = last.op is _OP.MULTIPLY and (last.first == place) != (last.second == place)
    read = {i for step in steps[:-1] if step.op >= _OP.ADD for i in (step.first, step.second)}
    if not is_factor or place in read or len(steps) < place + 2:
        raise DataError(
            "a softmax must be one factor of the message, its last step, and read by nothing else"
        )
