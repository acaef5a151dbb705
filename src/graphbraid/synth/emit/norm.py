"""Calls of batch and layer normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from graphbraid.fullgraph import NotLoweredError

if TYPE_CHECKING:
    from graphbraid.synth.emit.calls import CallWriter


def batch_statistics(w: CallWriter, at: int, x: Tensor, *rest: Any) -> list[str]:
    """Write the statistics: of the rows, which move the running ones, or the running ones themselves."""
    running_mean, running_var, training, momentum, eps, counted, moments, mean, rstd, from_rows = rest
    m = w.memory
    if running_mean is None or momentum is None:
        what = "batch normalisation without running statistics, or with their plain average"
        raise NotLoweredError("synthesis", what, "track_running_stats=True and a momentum")
    made = []
    for tensor, role in ((mean, "mean"), (rstd, "rstd")):
        m.make(tensor, role)
        made.append(m.pointer(tensor, at, role))
    running = f"{m.pointer(running_mean, at, 'mean')}, {m.pointer(running_var, at, 'variance')}"
    if not from_rows:
        return [f"running_statistics({running}, {x.shape[1]}, {eps!r}, {', '.join(made)});"]
    count = [f"++{m.counter(counted)};"] if training and counted is not None else []
    ranks = "" if moments is None else "ranks, "
    call = f"batch_statistics({ranks}{m.matrix(x, at)}, {running}, {momentum!r}, {eps!r}, {', '.join(made)});"
    return [*count, call]


def batch_norm(w: CallWriter, at: int, x: Tensor, *rest: Any) -> list[str]:
    """Write the normalisation of rows."""
    *vectors, out = rest
    matrix = w.memory.matrix
    return [f"batch_norm({matrix(x, at)}, {_pointers(w, at, *vectors)}, {matrix(out, at)});"]


def batch_norm_backward(w: CallWriter, at: int, grad: Tensor, x: Tensor, *rest: Any) -> list[str]:
    """Write the gradients."""
    *vectors, from_rows, grad_x, grad_weight, grad_bias = rest
    m, is_of_rows = w.memory, "true" if from_rows else "false"
    read = f"{m.matrix(grad, at)}, {m.matrix(x, at)}, {_pointers(w, at, *vectors)}, {is_of_rows}"
    written = f"{m.matrix(grad_x, at)}, {_pointers(w, at, grad_weight, grad_bias)}"
    return [f"batch_norm_backward({read}, {written});"]


def layer_norm(w: CallWriter, at: int, x: Tensor, *rest: Any) -> list[str]:
    """Write the normalisation of each row, which keeps its mean and reciprocal deviation for backward."""
    weight, bias, eps, out, *statistics = rest
    m = w.memory
    factors, kept = _pointers(w, at, weight, bias), _pointers(w, at, *statistics)
    return [f"layer_norm({m.matrix(x, at)}, {factors}, {eps!r}, {m.matrix(out, at)}, {kept});"]


def layer_norm_backward(w: CallWriter, at: int, grad: Tensor, x: Tensor, *rest: Any) -> list[str]:
    """Write the gradients."""
    weight, mean, rstd, grad_x, grad_weight, grad_bias = rest
    m = w.memory
    read = f"{m.matrix(grad, at)}, {m.matrix(x, at)}, {_pointers(w, at, weight, mean, rstd)}"
    written = f"{m.matrix(grad_x, at)}, {_pointers(w, at, grad_weight, grad_bias)}"
    return [f"layer_norm_backward({read}, {written});"]


def couple(w: CallWriter, at: int, _: Any, grad_x: Tensor, x: Tensor, *rest: Any) -> list[str]:
    """Write what completes the gradient of rows that several ranks normalise together."""
    statistics, weight, sums, scratch = rest
    matrices = ", ".join(w.memory.matrix(rows, at) for rows in (grad_x, x, scratch))
    return [f"couple(ranks, {matrices}, {_pointers(w, at, *statistics, weight, *sums)});"]


def _pointers(w: CallWriter, at: int, *vectors: Tensor | None) -> str:
    return ", ".join(w.memory.pointer(vector, at, "vector") for vector in vectors)


WRITERS: dict[str, Callable[..., list[str]]] = {
    "batch_statistics": batch_statistics,
    "batch_norm": batch_norm,
    "batch_norm_backward": batch_norm_backward,
    "layer_norm": layer_norm,
    "layer_norm_backward": layer_norm_backward,
    "couple": couple,
}
"""The writers by the name of the call."""

__all__ = ["WRITERS"]
