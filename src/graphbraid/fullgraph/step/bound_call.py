"""Calls of kernels in a step: bound ones, and epilogues with the seeds and masks of their dropout.

Passing an array takes microseconds, longer than a kernel runs on a small graph. The arena, a level's edges
and their coefficients do not move, so once a task has given its kernel the same memory twice, the call is
bound: its arguments stay on the C++ side, which from then on checks and runs them (:class:`BoundCall`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid import native
from graphbraid.fullgraph.step.arena import ParameterGradients
from graphbraid.ops import reference
from graphbraid.ops.dropout import RowEpilogue, draw_seed
from graphbraid.ops.epilogue import ACTIVATION_CODES, LEAKY_SLOPE
from graphbraid.ops.kernels import backend, watched


class Seeds:
    """Seeds that each mask draws when it is made; a repeated forward pass gets the same seeds."""

    def __init__(self) -> None:
        self.repeats = False
        """Whether the running forward pass repeats an earlier one."""
        self._drawn: list[int] = []

    def drawn(self) -> tuple[int, ...]:
        """Return the seeds of the last forward pass. :meth:`put_back` takes them to repeat the pass."""
        return tuple(self._drawn)

    def put_back(self, drawn: Sequence[int]) -> None:
        """Give the next forward pass the seeds of an earlier one."""
        self._drawn = list(drawn)

    def add(self) -> Callable[[], int | Tensor]:
        """Add a mask; return a function that gives its seed, to be called once in every forward pass."""
        number = len(self._drawn)
        self._drawn.append(0)

        def seed() -> int:
            if not self.repeats:
                self._drawn[number] = draw_seed()
            return self._drawn[number]

        return seed

    def draw(self) -> None:
        """Prepare the seeds of a forward pass; nothing to do if masks draw their own."""


class SeedsInMemory(Seeds):
    """Seeds in memory that kernels read as they run, so that a recorded pass gets new masks.

    They are drawn in the order of the masks, so that a generator's state gives the same masks as on the CPU.
    """

    def __init__(self, place: torch.device) -> None:
        super().__init__()
        self._place = place
        self._slots: list[Tensor] = []

    def add(self) -> Callable[[], int | Tensor]:
        """Add a mask; return a function that gives its seed, a ``(1,)`` int64 tensor."""
        number = len(self._drawn)
        self._drawn.append(0)
        return lambda: self._slots[number]

    def draw(self) -> None:
        """Write the seeds of the next forward pass."""
        if len(self._slots) < len(self._drawn):
            self._slots = list(torch.zeros(len(self._drawn), 1, dtype=torch.int64, device=self._place))
        self.put_back([draw_seed() for _ in self._slots])

    def put_back(self, drawn: Sequence[int]) -> None:
        """Write the seeds of an earlier forward pass."""
        super().put_back(drawn)
        for slot, seed in zip(self._slots, drawn, strict=True):
            slot.fill_(seed)  # passed with the kernel launch: no copy, no synchronization


@dataclass(frozen=True, eq=False, slots=True)
class Mask:
    """A dropout mask, which depends on the seed and on each row's node, not on the row's position."""

    p: float
    seed: int | Tensor = 0
    """A number, or a ``(1,)`` int64 tensor that kernels read as they run."""
    nodes: Tensor | None = None
    """``(num_rows,)`` int64 node of each row; None if row v is node v."""


class EpilogueMask:
    """The mask of one epilogue: its forward pass draws it, and its backward pass reads it again.

    Args:
        p: probability of dropping an element.
        seeds: the step's seeds.
        nodes: ``(num_rows,)`` int64 node of each row. If None, row v is node v.
    """

    def __init__(self, p: float, seeds: Seeds, nodes: Tensor | None) -> None:
        self._p, self._nodes = p, nodes
        self._seed: Callable[[], int | Tensor] = seeds.add() if p > 0 else lambda: 0
        self._last = Mask(p)

    def of_forward(self) -> Mask:
        """Draw the mask for the forward pass, and return it."""
        self._last = Mask(self._p, self._seed(), self._nodes if self._p > 0 else None)
        return self._last

    def of_backward(self, nodes: Tensor | None = None) -> Mask:
        """Return the mask that was drawn last, for all rows or for rows of these nodes."""
        if nodes is None or self._p == 0:
            return self._last
        return replace(self._last, nodes=nodes)

    def seed(self, mask: Callable[[], Mask]) -> MaskSeed | None:
        """Return the seed of a bound call with ``mask``, one of the masks above; None without dropout."""
        if self._p == 0:
            return None
        return MaskSeed(draw=lambda: mask().seed, drawn=lambda: self._last.seed)


def epilogue(x: Tensor, bias: Tensor | None, act: str, mask: Mask, out: Tensor) -> None:
    """Compute ``out = dropout(act(x + bias))``; ``out`` may be ``x``."""
    factors, *how, ids = row_epilogue(bias, act, mask, x)
    backend(x).epilogue(x, factors, *how, out, ids)


def row_epilogue(bias: Tensor | None, act: str, mask: Mask, like: Tensor) -> RowEpilogue:
    """Return the same epilogue for a kernel to fuse; ``like`` says the device of its rows."""
    return RowEpilogue(
        bias=bias,
        act=ACTIVATION_CODES[act],
        slope=LEAKY_SLOPE,
        p=mask.p,
        seed=seed_for(like, mask.seed),
        ids=mask.nodes,
    )


def epilogue_backward(  # noqa: PLR0917 - in the order of the kernel's
    grad: Tensor, out: Tensor, act: str, mask: Mask, grad_x: Tensor, grad_bias: Tensor | None
) -> None:
    """Compute the gradients of :func:`epilogue`; ``grad_x`` may be ``grad``."""
    how = (ACTIVATION_CODES[act], LEAKY_SLOPE, mask.p, seed_for(grad, mask.seed))
    backend(grad).epilogue_backward(grad, out, *how, grad_x, grad_bias, mask.nodes)


def seed_for(rows: Tensor, seed: int | Tensor) -> int | Tensor:
    """Return a mask's seed as ``rows``' kernels take it: compiled CPU kernels take only numbers."""
    by_value = rows.device.type == "cpu" and backend(rows) is not reference
    return int(seed) if by_value else seed


_TRIES = 4
"""After this many watched runs without two alike, a call is no longer watched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskSeed:
    """The seed of a call's dropout mask."""

    draw: Callable[[], Any]
    """Draws the seed of the next run."""
    drawn: Callable[[], Any]
    """Returns the seed of the last run."""


class BoundCall:
    """A call of one kernel that runs in every step.

    The first two runs are watched, and the arguments of the first are kept alive until the second is done.
    Memory that both runs gave the kernel is therefore not a temporary copy, which could not have got the same
    address twice.

    Args:
        run: calls the kernel and does nothing else; takes the gradient's memory, if any, as its argument.
        seed: the seed of the call's dropout mask. If None, it has no mask.
        gradient_of: the parameter whose gradient the kernel writes, and the pool of its memory. If None, the
            kernel writes memory that does not move.
    """

    __slots__ = ("_bound", "_gradient_of", "_run", "_seed", "_seen", "_tries")

    def __init__(
        self,
        run: Callable[..., object],
        *,
        seed: MaskSeed | None = None,
        gradient_of: tuple[nn.Parameter, ParameterGradients] | None = None,
    ) -> None:
        self._run, self._seed = run, seed
        self._gradient_of = gradient_of
        self.forget()

    def forget(self) -> None:
        """Release all arguments and watch again, because a parameter has moved."""
        self._bound: dict[int, Any] = {}
        self._seen: tuple[list[Any], tuple[Any, ...]] | None = None
        self._tries = 0

    def __call__(self) -> None:
        """Run the kernel."""
        out = self._lend()
        bound = self._bound.get(0 if out is None else out.data_ptr())
        if bound is None:
            self._look(out)
        else:
            if self._seed is not None:
                bound.set_seed(self._seed.draw())
            bound.run()
        self._give(out)

    def run_once(self) -> None:
        """Run the kernel with its arguments passed anew, so that a record of calls sees them."""
        out = self._lend()
        self._run(*(() if out is None else (out,)))
        self._give(out)

    def _lend(self) -> Tensor | None:
        if self._gradient_of is None:
            return None
        parameter, gradients = self._gradient_of
        return gradients.lend(parameter)

    def _give(self, out: Tensor | None) -> None:
        if out is not None and self._gradient_of is not None:
            parameter, gradients = self._gradient_of
            gradients.give(parameter, out)

    def _look(self, out: Tensor | None) -> None:
        given = () if out is None else (out,)
        if self._tries >= _TRIES:
            self._run(*given)
            return
        self._tries += 1
        with watched() as calls:
            self._run(*given)
        call = self._standing(calls, out)
        if call is None:
            self._tries = _TRIES
            return
        name, arguments = call
        seen = self._memory_of(arguments, out)
        if self._seen is not None and self._seen[0] == seen:
            bind = getattr(native.kernels().bound, name)  # type: ignore[union-attr]
            self._bound[0 if out is None else out.data_ptr()] = bind(*arguments)
            self._tries = 0  # to watch again for the pool's other memories
            if out is None:
                self._seen = None
                return
        self._seen = seen, arguments

    def _standing(
        self, calls: list[tuple[str, tuple[Any, ...]]], out: Tensor | None
    ) -> tuple[str, tuple[Any, ...]] | None:
        """Return the run's only call, with lent arguments replaced; None unless it can be bound."""
        kernels = native.kernels()
        if kernels is None or len(calls) != 1 or not hasattr(kernels.bound, calls[0][0]):
            return None
        ((name, arguments),) = calls
        if out is None or self._gradient_of is None:
            return name, arguments
        parameter, gradients = self._gradient_of
        stays = gradients.standing(parameter, out)
        places = [i for i, given in enumerate(arguments) if _is(given, out)]
        if stays is None or len(places) != 1:
            return None
        (place,) = places
        return name, (*arguments[:place], stays.view(arguments[place].shape), *arguments[place + 1 :])

    def _memory_of(self, arguments: tuple[Any, ...], out: Tensor | None) -> list[Any]:
        """Return the identity of a call's arguments, except lent memory and the seed."""
        seed = None if self._seed is None else self._seed.drawn()
        found: list[Any] = []
        for given in arguments:
            if isinstance(given, RowEpilogue):
                found += self._memory_of(given, out)
            elif isinstance(given, Tensor):
                where = 0 if out is not None and _is(given, out) else given.data_ptr()
                found.append((where, given.shape, given.stride(), given.dtype))
            else:
                found.append("seed" if seed is not None and type(given) is int and given == seed else given)
        return found


def _is(given: object, out: Tensor) -> bool:
    return isinstance(given, Tensor) and given.data_ptr() == out.data_ptr() and given.numel() == out.numel()
