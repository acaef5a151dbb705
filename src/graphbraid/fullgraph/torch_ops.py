"""Operations of a program that run through PyTorch's autograd: attention, modules without a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.program import Attention
from graphbraid.ops import gat_attention, gatv2_attention
from graphbraid.topology import Csc


class TorchOp:
    """A differentiable function of matrices; its graph lives from :meth:`forward` to :meth:`backward`.

    Args:
        function: maps the inputs to the result.
        parameters: what it learns.
        keep_graph: whether :meth:`backward` will be called.
    """

    def __init__(
        self, function: Callable[..., Tensor], parameters: Sequence[nn.Parameter], *, keep_graph: bool
    ) -> None:
        self._function, self._parameters, self._keeps = function, list(parameters), keep_graph
        self._leaves: list[Tensor] = []
        self._out: Tensor | None = None

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """The result, without history."""
        if not self._keeps:
            return self._function(*inputs)
        with torch.enable_grad():
            # .data: other buffers of the arena may be written before backward, which autograd would take
            # for a change of these.
            self._leaves = [i.data.requires_grad_() for i in inputs]
            self._out = self._function(*self._leaves)
        return self._out.detach()

    def backward(self, grad: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Gradients of the inputs and of the parameters; frees the graph."""
        assert self._out is not None
        wanted = self._leaves + self._parameters
        grads = torch.autograd.grad(self._out, wanted, grad, allow_unused=True)
        found = [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, grads, strict=True)]
        split = len(self._leaves)
        self._leaves, self._out = [], None
        return found[:split], found[split:]


def attention_function(op: Attention, csc: Csc, training: bool) -> Callable[..., Tensor]:
    """GAT's or GATv2's attention over the edges of ``csc``."""
    from graphbraid.nn.gat import head_dot

    options = {
        "negative_slope": op.negative_slope,
        "self_loops": op.self_loops,
        "dropout": op.dropout if training else 0.0,
    }

    def run(rows: Tensor, own: Tensor | None = None) -> Tensor:
        if op.kind == "gat":
            att_src, att_dst = op.vectors
            logits = head_dot(rows, att_src), head_dot(rows[: csc.num_dst], att_dst)
            out = gat_attention(csc, rows, *logits, **options)  # type: ignore[arg-type]
        else:
            own = rows[: csc.num_dst] if own is None else own
            out = gatv2_attention(csc, rows, own, op.vectors[0][0], **options)  # type: ignore[arg-type]
        return out if op.concat else out.view(-1, op.heads, op.channels).mean(1)

    return run
