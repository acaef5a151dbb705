"""BufferPool: tensors for the caller whose memory is reused once nothing refers to it any more.

The engine's outputs and the parameters' gradients may be kept by the caller: as ``p.grad`` over several
steps, by an optimizer, in a list. They can therefore not lie in the arena. Autograd does not copy a gradient
that nothing else refers to, so a fresh tensor over the engine's memory becomes ``p.grad`` itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.program import View
from graphbraid.ops.cross_entropy import LentMemory

_MOST_KEPT = 3
"""Memories kept per shape; accumulating into ``p.grad`` needs two, the sum and the new gradient."""


class BufferPool:
    """Lends uninitialised tensors of one shape on the host."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> None:
        self._shape, self._dtype = tuple(shape), dtype
        self._memories: list[LentMemory] = []

    def lend(self) -> Tensor:
        """Return a tensor in memory that no other tensor uses, allocated only if all kept memory is lent."""
        if prod(self._shape) == 0:
            return torch.empty(self._shape, dtype=self._dtype)
        memory = next((m for m in self._memories if not m.is_out), None)
        if memory is None:
            if len(self._memories) == _MOST_KEPT:
                return torch.empty(self._shape, dtype=self._dtype)
            memory = LentMemory(prod(self._shape) * self._dtype.itemsize)
            self._memories.append(memory)
        return memory.lend(self._dtype).view(self._shape)

    def standing(self, loan: Tensor) -> Tensor | None:
        """Return a tensor over the memory of a loan that does not count as a loan.

        The memory lives as long as the pool. None if it is not among the kept memory.
        """
        whole = (m.whole(self._dtype) for m in self._memories)
        return next((t.view(self._shape) for t in whole if t.data_ptr() == loan.data_ptr()), None)


def copied(source: Tensor, pool: BufferPool | None, rows: Tensor | None = None) -> Tensor:
    """Copy ``source``, or its ``rows``, to memory of the pool; to new memory if there is no pool."""
    if pool is None:
        return source.clone() if rows is None else source.index_select(0, rows)
    out = pool.lend()
    return out.copy_(source) if rows is None else torch.index_select(source, 0, rows, out=out)


class ParameterGradients:
    """Collects the parameters' gradients of a backward pass, added up where a parameter is used twice.

    Args:
        on_host: whether memory is lent from pools; a device's allocator reuses its own.
    """

    def __init__(self, *, on_host: bool) -> None:
        self._on_host = on_host
        self._found: dict[int, Tensor] = {}
        self._pools: dict[int, BufferPool] = {}

    def lend(self, parameter: nn.Parameter) -> Tensor:
        """Return memory for a parameter's gradient, to be written and then passed to :meth:`give`."""
        if not self._on_host:
            return torch.empty_like(parameter, memory_format=torch.contiguous_format)
        if id(parameter) not in self._pools:
            self._pools[id(parameter)] = BufferPool(parameter.shape, parameter.dtype)
        return self._pools[id(parameter)].lend()

    def standing(self, parameter: nn.Parameter, loan: Tensor) -> Tensor | None:
        """Return :meth:`BufferPool.standing` of a loan of :meth:`lend`."""
        return self._pools[id(parameter)].standing(loan)

    def give(self, parameter: nn.Parameter, grad: Tensor) -> None:
        """Store a parameter's gradient, or add to it if the parameter is used more than once."""
        before = self._found.get(id(parameter))
        grad = grad.reshape(parameter.shape)
        self._found[id(parameter)] = grad if before is None else before.add_(grad)

    def give_part(self, parameter: nn.Parameter, view: View, grad: Tensor) -> None:
        """Store, or add to, the gradient of a parameter from that of a view of it."""
        whole = self._found.get(id(parameter))
        if whole is None:
            whole = self._found[id(parameter)] = self.lend(parameter).zero_()
        view.add_gradient(grad, whole)

    def of(self, parameter: nn.Parameter) -> Tensor | None:
        """Return a parameter's gradient so far; None if it has none."""
        return self._found.get(id(parameter))

    def take(self) -> dict[int, Tensor]:
        """Return the gradients of this backward pass, by the parameter's ``id``, and forget them."""
        found, self._found = self._found, {}
        return found
