"""The parameters' gradients of one backward pass, in memory that the caller may keep."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.program import View
from graphbraid.fullgraph.step.calls.repeated import Lent
from graphbraid.fullgraph.step.lending import Lender


class ParameterGradients:
    """Collects the parameters' gradients of a backward pass, added up where a parameter is used twice.

    Args:
        on_host: whether memory is lent from a few tensors that stay; a device's allocator reuses its own.
    """

    def __init__(self, *, on_host: bool) -> None:
        self._on_host = on_host
        self._found: dict[int, Tensor] = {}
        self._lenders: dict[int, Lender] = {}

    def lent_to(self, parameter: nn.Parameter) -> Lent:
        """Return how a call that repeats gets memory for a parameter's gradient."""

        def standing(loan: Tensor) -> Tensor | None:
            return self._lenders[id(parameter)].standing(loan)

        return Lent(lend=lambda: self.lend(parameter), give=partial(self.give, parameter), standing=standing)

    def lend(self, parameter: nn.Parameter) -> Tensor:
        """Return memory for a parameter's gradient, to be written and then passed to :meth:`give`."""
        if not self._on_host:
            return torch.empty_like(parameter, memory_format=torch.contiguous_format)
        if id(parameter) not in self._lenders:
            self._lenders[id(parameter)] = Lender(parameter.shape, parameter.dtype)
        return self._lenders[id(parameter)].lend()

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

    def take_gradients(self) -> dict[int, Tensor]:
        """Return the gradients of this backward pass, by the parameter's ``id``, and forget them."""
        found, self._found = self._found, {}
        return found
