"""BoundCall: the arguments that a task gives a compiled kernel in every step are passed to C++ once.

Passing an array takes microseconds, longer than a kernel runs on a small graph. The arena, a level's edges
and their coefficients do not move, so once a task has given its kernel the same memory twice, the call is
bound: its arguments stay on the C++ side, which from then on checks and runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from graphbraid import native
from graphbraid.fullgraph.step.buffer_pool import ParameterGradients
from graphbraid.ops.dropout import RowEpilogue
from graphbraid.ops.kernels import watched

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
