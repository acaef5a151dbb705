"""The kernels of a tensor's device, the rows that they take, and records of the compiled ones' calls."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import threading
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from graphbraid import native
from graphbraid.arguments import check_tensor
from graphbraid.errors import DataError
from graphbraid.ops import library, reference

sum_dtype = library.sum_dtype

ROW_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Dtypes that kernels over rows accept."""
_CODES = {torch.int32: 0, torch.float32: 2, torch.float64: 2, torch.float16: 2, torch.bfloat16: 4}
"""DLPack's codes of dtypes."""
LEAST_POOLED, _MOST_POOLED = 1 << 20, 1 << 28
"""Bytes from which, and up to which, rows lie in the kernels' pool.

The C library reuses smaller blocks by itself, and no mini-batch has larger rows.
"""
_WITHOUT_POOL: list[bool] = []
"""Not empty while torch's profiler counts memory."""


def backend(tensor: Tensor) -> Any:
    """Return the kernels for ``tensor``: the compiled ones on a CPU, Triton's on CUDA, or else their twins.

    The Triton kernels sum in float32; float64 on CUDA, which is used to check gradients, goes to the twins.
    """
    found = None
    if tensor.is_cpu:
        found = native.kernels()
        calls = watching()
        if calls is not None and found is not None:
            return Watched(found, calls)
    elif tensor.is_cuda and tensor.dtype != torch.float64:
        found = triton_kernels()
    return reference if found is None else found


@functools.cache
def triton_kernels() -> Any | None:
    """Return the Triton kernels, imported by the first call; None without triton or if twins are forced."""
    if native.forced_variant() == "reference" or importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module("graphbraid.ops.triton")


def check_rows(x: Tensor, name: str, num_rows: int, of: str) -> None:
    """Raise DataError unless kernels accept a matrix, with ``num_rows`` rows, one for each ``of``."""
    check_tensor(x, name)
    if x.ndim != 2 or x.shape[0] != num_rows:
        raise DataError(f"{name} must have one row per {of} ({num_rows}); got shape {tuple(x.shape)}")
    check_row_dtype(x, name)


def check_row_dtype(x: Tensor, name: str) -> None:
    """Raise DataError unless ``x`` has one of :data:`ROW_DTYPES`."""
    if not x.dtype.is_floating_point:
        raise DataError(f"{name} must be floating point; got {x.dtype}. Convert it with {name}.float().")
    if x.dtype not in ROW_DTYPES:
        raise DataError(f"{name} must be float32, float64, float16 or bfloat16; got {x.dtype}")


def check_results(rows: Tensor, addend: Tensor | None, out: Tensor | None, num_out: int) -> None:
    """Raise DataError unless a kernel can write ``num_out`` rows like ``rows``, or sums of them, to ``out``.

    ``addend`` must be such that it can be added to the first of these.
    """
    dtype, shape = rows.dtype, (num_out, rows.shape[1])
    if out is not None:
        if out.shape != shape or out.dtype not in (dtype, sum_dtype(dtype)):
            raise DataError(
                f"out must be {dtype} or {sum_dtype(dtype)} of shape {shape}; got {out.dtype} of "
                f"{tuple(out.shape)}"
            )
        apart = out.shape[1] > 1 and out.stride(1) != 1
        if out.numel() and (apart or (out.shape[0] > 1 and out.stride(0) < out.shape[1])):
            raise DataError(f"out must have contiguous rows that do not overlap; got strides {out.stride()}")
        dtype = out.dtype
    if addend is not None:
        check_addend(addend, dtype, shape)


def check_addend(addend: Tensor, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """Raise DataError unless a matrix can be added to the first rows of a result of this dtype and shape."""
    check_tensor(addend, "addend", ndim=2)
    if addend.dtype != dtype or addend.shape[0] > shape[0] or addend.shape[1] != shape[1]:
        raise DataError(
            f"addend must be {dtype} of shape (at most {shape[0]}, {shape[1]}); got {addend.dtype} of "
            f"{tuple(addend.shape)}"
        )


def check_edge_weight(weight: Tensor, num_edges: int) -> None:
    """Raise DataError unless there is a floating-point weight for each edge."""
    if check_tensor(weight, "weight", floating=True).shape != (num_edges,):
        raise DataError(
            f"weight must have one value per edge ({num_edges},); got shape {tuple(weight.shape)}"
        )


def row_contiguous(x: Tensor) -> Tensor:
    """Return ``x`` itself if its rows are contiguous and in order, else a copy."""
    by_row, by_column = x.stride()
    if by_column == 1 and by_row >= x.shape[1]:
        return x
    # The strides of an empty tensor may be anything, and contiguous() leaves them.
    return x.new_empty(x.shape) if x.numel() == 0 else x.contiguous()


def plain(x: Tensor) -> Tensor:
    """Return a tensor without autograd, as kernels take it."""
    return x.detach() if x.requires_grad else x


def new_rows(like: Tensor, num_rows: int, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return uninitialised rows like those of a matrix; large ones of the host lie in the kernels' pool."""
    dtype = like.dtype if dtype is None else dtype
    nbytes = num_rows * width * dtype.itemsize
    is_large = nbytes >= LEAST_POOLED and type(like) in (Tensor, Parameter)
    if is_large and like.is_cpu and dtype in _CODES:
        kernels: Any = native.kernels()
        if kernels and _WITHOUT_POOL and nbytes <= _MOST_POOLED:
            return torch.empty(0, dtype=dtype).set_(_counted(nbytes), 0, (num_rows, width), (width, 1))
        rows: Tensor | None = None
        if kernels and not _WITHOUT_POOL:
            rows = kernels.rows_in_pool(num_rows, width, _CODES[dtype], 8 * dtype.itemsize)
        if rows is not None:
            return rows
    return like.new_empty((num_rows, width), dtype=dtype)


def _counted(nbytes: int) -> torch.UntypedStorage:
    """Return memory of torch's. Where rows would lie in the pool, it has one byte more.

    No other block of that size has an odd number of bytes, so that a profile tells.
    """
    would_be_pooled = LEAST_POOLED <= nbytes <= _MOST_POOLED
    return torch.UntypedStorage(nbytes + would_be_pooled)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def without_pool() -> Iterator[None]:
    """Take the memory of rows from torch alone inside the ``with`` block, so that its profiler counts it.

    Rows that would lie in the pool have an odd number of bytes.
    """
    kernels: Any = native.kernels()
    _WITHOUT_POOL.append(True)
    if kernels is not None:
        kernels.count_rows(_counted)
    try:
        yield
    finally:
        _WITHOUT_POOL.pop()
        if kernels is not None and not _WITHOUT_POOL:
            kernels.count_rows(None)


Calls = list[tuple[str, tuple[Any, ...]]]
"""Recorded kernel calls: each kernel's name and positional arguments, then a dict of the others."""
_WATCHED = threading.local()
_P = ParamSpec("_P")
_R = TypeVar("_R")


def watching() -> Calls | None:
    """Return the record that this thread's calls go to now, if there is one."""
    found: Calls | None = getattr(_WATCHED, "calls", None)
    return found


@contextlib.contextmanager
def watched() -> Iterator[Calls]:
    """Record the calls of compiled kernels that this thread's operators make inside the ``with`` block."""
    calls: Calls = []
    _WATCHED.calls = calls
    try:
        yield calls
    finally:
        _WATCHED.calls = None


def recorded_whole(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a record of calls show a function as one call of its name, its results behind its arguments.

    What it calls itself is not recorded.
    """
    name = getattr(function, "__name__", "").lstrip("_")

    @functools.wraps(function)
    def call(*arguments: _P.args, **named: _P.kwargs) -> _R:
        calls = watching()
        if calls is None:
            return function(*arguments, **named)
        _WATCHED.calls = None
        try:
            result = function(*arguments, **named)
        finally:
            _WATCHED.calls = calls
        results = result if isinstance(result, tuple) else () if result is None else (result,)
        calls.append((name, (*arguments, *named.values(), *results)))
        return result

    return call


class Watched:
    """The compiled kernels, with a record of each call."""

    def __init__(self, kernels: Any, calls: Calls) -> None:
        self._native, self._calls = kernels, calls

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*arguments: Any, **named: Any) -> None:
            self._calls.append((name, (*arguments, named) if named else arguments))
            getattr(self._native, name)(*arguments, **named)

        return call
