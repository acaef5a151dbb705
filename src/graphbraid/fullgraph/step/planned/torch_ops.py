"""Operations of a program that run through PyTorch's autograd: modules without a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


class TorchOp:
    """A differentiable function of a matrix; its graph lives from :meth:`forward` to :meth:`backward`.

    Args:
        function: maps the input to the result.
        parameters: the function's parameters.
        keep_graph: whether :meth:`backward` will be called.
    """

    def __init__(
        self, function: Callable[[Tensor], Tensor], parameters: Sequence[nn.Parameter], *, keep_graph: bool
    ) -> None:
        self._function, self._parameters, self._keeps = function, list(parameters), keep_graph
        self._leaf: Tensor | None = None
        self._out: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the detached result."""
        if not self._keeps:
            return self._function(x)
        with torch.enable_grad():
            # .data, since other buffers of the arena may be written before backward, which autograd would
            # take for a change of this one.
            self._leaf = x.data.requires_grad_()
            self._out = self._function(self._leaf)
        return self._out.detach()

    def backward(self, grad: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the gradients of the input and of the parameters, and free the graph."""
        assert self._leaf is not None
        assert self._out is not None
        wanted = [self._leaf, *self._parameters]
        grads = torch.autograd.grad(self._out, wanted, grad, allow_unused=True)
        found = [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, grads, strict=True)]
        self._leaf, self._out = None, None
        return found[0], found[1:]
