"""cross_entropy: the loss of classes and its gradient, found in one pass over the logits."""

from __future__ import annotations

from threading import Lock
from typing import Any
from weakref import ReferenceType, ref

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from graphbraid import native
from graphbraid.arguments import check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.scans import tracing
from graphbraid.ops.library import once_differentiable, run
from graphbraid.signatures import typed


class LentMemory:
    """Memory, of one byte or more, that is lent for as long as any tensor, view or array over it lives."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._bytes = torch.empty(nbytes, dtype=torch.uint8).numpy().data
        self._loan: ReferenceType[memoryview] | None = None

    @property
    def is_out(self) -> bool:
        """Whether something still refers to the last loan."""
        return self._loan is not None and self._loan() is not None

    def whole(self, dtype: torch.dtype) -> Tensor:
        """Return a 1-d tensor over all of it that does not count as a loan."""
        return torch.frombuffer(self._bytes, dtype=dtype)

    def lend(self, dtype: torch.dtype, count: int = -1) -> Tensor:
        """Return an uninitialised 1-d tensor of the first ``count`` elements, or of as many as there are."""
        # The storage that frombuffer makes holds this memoryview, and nothing else of this object, until it
        # is freed.
        loan = memoryview(self._bytes)
        self._loan = ref(loan)
        return torch.frombuffer(loan, dtype=dtype, count=count)


_LEAST_KEPT = 1 << 25
"""Bytes of a gradient from which its memory is kept; less the C library keeps by itself."""


@typed
def cross_entropy(
    logits: Tensor, labels: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100
) -> Tensor:
    """Return the mean cross entropy of ``logits``, as :func:`torch.nn.functional.cross_entropy` does.

    On a CPU the gradient of float32 logits is found beside the loss, so that backward has little left to do;
    the result does not depend on the number of threads. Where the same ``labels`` come again, as in training
    on a whole graph, a large gradient takes the memory of the one before it if nothing refers to that any
    more. In all other cases PyTorch's own function runs.

    Args:
        logits: ``(num_rows, num_classes)`` floating point.
        labels: ``(num_rows,)`` int64 classes, or ``ignore_index`` for rows that do not count.
        weight: ``(num_classes,)`` weight of each class, of the dtype of ``logits``. If None, all are 1.
        ignore_index: the label that means no class.

    Returns:
        A scalar: the sum of the rows' weighted losses over the sum of their weights; NaN if no row counts.

    Raises:
        DataError: the arguments do not fit each other, or on a CPU a label names no column of ``logits``; on
            a device PyTorch looks at the labels.
    """
    _check(logits, labels, weight)
    is_ours = logits.device.type == "cpu" and logits.dtype == torch.float32 and logits.numel() > 0
    is_ours = is_ours and not tracing()
    if is_ours and native.kernels() is not None and not (weight is not None and weight.requires_grad):
        out: Tensor = run(_CrossEntropy, logits, labels, weight, ignore_index)
        return out
    try:
        return F.cross_entropy(logits, labels, weight=weight, ignore_index=ignore_index)
    except IndexError as error:  # PyTorch's, if a label names no column
        raise _no_column(logits, labels, ignore_index) from error


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
        ctx.grad = _memory_of(logits, labels) if ctx.needs_input_grad[0] else None
        kernels = native.kernels()
        assert kernels is not None
        try:
            given = None if weight is None else weight.contiguous()
            rows, classes = logits.detach().contiguous(), labels.contiguous()
            with native.awake_threads():
                total, mass = kernels.cross_entropy(rows, classes, given, ignore_index, ctx.grad)
        except ValueError as error:
            raise _no_column(logits, labels, ignore_index) from error
        return torch.tensor(total / mass if mass else float("nan"), dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # there are none; PyTorch's error if an earlier backward pass freed the graph
        # Kept for another backward pass: what ctx refers to, autograd copies and never adds to.
        found = ctx.grad if float(grad) == 1.0 else ctx.grad * grad
        return found, None, None, None


_kept: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""Memory of gradients by the labels that they belong to, for as long as these live."""
_keeping = Lock()


def _memory_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return an uninitialised tensor like ``logits``, in memory that the system need not clear first."""
    nbytes = logits.numel() * logits.itemsize
    if nbytes < _LEAST_KEPT:
        return torch.empty(logits.shape)
    with _keeping:
        memory: LentMemory | None = _kept.get(labels)  # type: ignore[no-untyped-call]
        if memory is None or memory.nbytes != nbytes:
            memory = _kept[labels] = LentMemory(nbytes)
        return torch.empty(logits.shape) if memory.is_out else memory.lend(logits.dtype).view(logits.shape)


def kept_bytes(labels: Tensor) -> int:
    """Return the bytes that are kept for the gradients of losses with these ``labels``."""
    with _keeping:
        memory: LentMemory | None = _kept.get(labels)  # type: ignore[no-untyped-call]
        return 0 if memory is None else memory.nbytes


def _check(logits: Tensor, labels: Tensor, weight: Tensor | None) -> None:
    num_rows, num_classes = check_tensor(logits, "logits", ndim=2, floating=True).shape
    check_tensor(labels, "labels")
    if labels.shape != (num_rows,) or labels.dtype != torch.int64:
        raise DataError(
            f"labels must be int64 with one entry for each of the {num_rows} rows of logits; got "
            f"{labels.dtype} of shape {tuple(labels.shape)}"
        )
    if weight is None:
        return
    if check_tensor(weight, "weight").shape != (num_classes,) or weight.dtype != logits.dtype:
        raise DataError(
            f"weight must be {logits.dtype} with one entry for each of the {num_classes} columns of logits; "
            f"got {weight.dtype} of shape {tuple(weight.shape)}"
        )


def _no_column(logits: Tensor, labels: Tensor, ignore_index: int) -> DataError:
    is_wrong = (labels != ignore_index) & ((labels < 0) | (labels >= logits.shape[1]))
    row = int(is_wrong.nonzero()[0])
    return DataError(
        f"labels must name one of the {logits.shape[1]} columns of logits, or be {ignore_index} for no "
        f"class; labels[{row}] is {int(labels[row])}."
    )
