"""Scans of the arrays that kernels read by index, made once, where a public call takes them.

Each reads its array once, in parallel, and stops at the first wrong value. Where the compiled kernels cannot
run, its plain PyTorch twin uses temporaries of at most a million elements.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from graphbraid import native
from graphbraid.arguments import check_tensor
from graphbraid.errors import DataError

T = TypeVar("T")
_SCAN = 1 << 20
ID_DTYPES = (torch.int32, torch.int64)
_MODES = torch._C._TorchDispatchModeKey
_TRACERS = _MODES.FAKE, _MODES.PROXY, _MODES.FUNCTIONAL


def unchanged(*names: str) -> Callable[[type[T]], type[T]]:
    """Make attributes of a class raise DataError once their tensor was changed in place.

    Checks and cached results hold only for the values at that time. A kernel that reads by a changed index
    would read outside of its arrays. torch counts the changes made through a tensor or a view of it. It does
    not count changes made through NumPy, ``.data`` or another process, nor any to a tensor of inference mode:
    such changes are the caller's risk, as with ``trusted=True``.
    """

    def with_guards(cls: type[T]) -> type[T]:
        for name in names:
            if name in vars(cls):  # a slot, which stays reachable by another name
                setattr(cls, f"_kept_{name}", vars(cls)[name])
            setattr(cls, name, _Unchanged(name))
        if "__setstate__" not in vars(cls):  # that of a frozen class with slots sets each field
            cls.__setstate__ = set_state  # type: ignore[attr-defined]
        return cls

    def set_state(self: Any, state: Any) -> None:
        """Make a copy of an instance. Changes are counted anew, since a copied tensor's count begins at 0."""
        held = state if isinstance(state, dict) else {**(state[0] or {}), **state[1]}
        for key, value in held.items():
            if key != "_versions":
                name = key.removeprefix("_kept_")
                object.__setattr__(self, name if name in names else key, value)

    return with_guards


class Versioned:
    """Base of classes with slots whose arrays are watched by :func:`unchanged`."""

    __slots__ = ("_versions",)
    _versions: dict[str, int | None]
    """The number of changes that each array had when it was set; None if they are not counted."""


class _Unchanged:
    """One array of an instance, which is refused if it was changed since it was set."""

    def __init__(self, name: str) -> None:
        self._name, self._kept = name, f"_kept_{name}"

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        if owner is None:
            return self
        tensor = getattr(owner, self._kept)
        if is_dynamo_compiling():  # it has no versions; the operators that it calls check again
            return tensor
        version = owner._versions[self._name]
        if version is not None and tensor._version != version:
            raise DataError(
                f"{self._name} of {type(owner).__name__} was changed in place after it was checked; make a "
                "new one from a changed copy (clone()), since results of the old values are kept"
            )
        return tensor

    def __set__(self, owner: Any, tensor: Any) -> None:
        object.__setattr__(owner, self._kept, tensor)
        if not is_dynamo_compiling():
            is_counted = isinstance(tensor, Tensor) and not tensor.is_inference()
            if (versions := getattr(owner, "_versions", None)) is None:
                object.__setattr__(owner, "_versions", versions := {})
            versions[self._name] = tensor._version if is_counted else None


def tracing() -> bool:
    """Return whether torch.compile, torch.export or another tracer of torch records the calls now.

    Tensors may then have no memory for a kernel; :mod:`graphbraid.ops.library` calls what torch can record.
    """
    # torch.compile takes the first for True; every other tracer has one of the modes.
    return is_dynamo_compiling() or (
        torch._C._len_torch_dispatch_stack() > 0
        and any(torch._C._get_dispatch_mode(key) is not None for key in _TRACERS)
    )


def outside_of_transforms() -> AbstractContextManager[Any]:
    """Leave inference mode and transforms of ``torch.func``, which make tensors that only they may read.

    What is kept for later calls is made outside of them.
    """
    is_transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return _outside() if is_transformed or torch.is_inference_mode_enabled() else nullcontext()


@contextmanager
def _outside() -> Iterator[None]:
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    with torch.inference_mode(False), temporarily_clear_interpreter_stack():
        yield


def is_plain(table: Tensor) -> bool:
    """Return whether a table is plain memory, so that kernels may copy its rows.

    Otherwise torch takes the rows: of a subclass, of a sparse, nested or quantised table, of a lazy view, and
    of a table that needs a gradient.
    """
    is_dense = table.layout == torch.strided and not (table.is_nested or table.is_quantized)
    is_view = table.is_conj() or table.is_neg()
    return type(table) in (Tensor, torch.nn.Parameter) and is_dense and not (is_view or table.requires_grad)


def first_out_of_range(ids: Tensor, bound: int) -> int:
    """Return the position of the first of 1-d ``ids`` outside ``[0, bound)``, or -1.

    While torch traces, ids have no values and the result is -1; operators check the ids as they run.
    """
    if tracing():
        return -1
    kernels = native_for(ids)
    if kernels is not None:
        return int(kernels.first_out_of_range(ids.contiguous(), bound))
    return first_where(ids, lambda part: (part < 0) | (part >= bound))


def first_fall(indptr: Tensor) -> int:
    """Return the first row whose entry of ``indptr`` is larger than the next one, or -1."""
    kernels = native_for(indptr)
    if kernels is not None:
        return int(kernels.first_fall(indptr.contiguous()))
    for begin in range(0, indptr.numel() - 1, _SCAN):
        part = indptr[begin : begin + _SCAN + 1]
        row = _first_true(part[1:] < part[:-1])
        if row >= 0:
            return begin + row
    return -1


def first_below(values: Tensor, least: int) -> int:
    """Return the position of the first of 1-d int64 ``values`` below ``least`` (at most 0), or -1."""
    kernels = native_for(values)
    if kernels is not None:
        return int(kernels.first_below(values.contiguous(), least))
    return first_where(values, lambda part: part < least)


def first_unsound_weight(weight: Tensor, *, may_be_negative: bool = True) -> int:
    """Return the position of the first of 1-d ``weight`` that is not finite (or is negative), or -1."""
    weight = weight.detach()
    kernels = native_for(weight)
    if kernels is not None and weight.dtype == torch.float32:
        return int(kernels.first_unsound_weight(weight.contiguous(), may_be_negative))
    return first_where(
        weight, lambda part: ~part.isfinite() if may_be_negative else ~(part.isfinite() & (part >= 0))
    )


def first_where(values: Tensor, wrong: Callable[[Tensor], Tensor]) -> int:
    """Return the position of the first of 1-d ``values`` for which ``wrong`` is True, or -1."""
    for begin in range(0, values.numel(), _SCAN):
        position = _first_true(wrong(values[begin : begin + _SCAN]))
        if position >= 0:
            return begin + position
    return -1


def check_ids(ids: Tensor, bound: int, what: str) -> None:
    """Raise DataError unless ``ids`` are 1-d int32 or int64 in ``[0, bound)``; it names the first."""
    check_tensor(ids, what)
    if ids.ndim != 1 or ids.dtype not in ID_DTYPES:
        raise DataError(
            f"{what} must be a 1-d int32 or int64 tensor; got {ids.dtype} of shape {tuple(ids.shape)}"
        )
    position = first_out_of_range(ids, bound)
    if position >= 0:
        raise DataError(
            f"{what} must be node ids in [0, {bound}); position {position} holds {int(ids[position])}"
        )


def check_csc(indptr: Tensor, indices: Tensor, *, num_src: int) -> None:
    """Compare shapes, dtypes, devices and ends of ``indptr`` in constant time; DataError names the array."""
    check_tensor(indptr, "indptr")
    check_tensor(indices, "indices")
    if indptr.dtype != torch.int64 or indptr.ndim != 1 or indptr.numel() < 1:
        raise DataError(
            f"indptr must be a non-empty 1-d int64 tensor; got {indptr.dtype} of shape {tuple(indptr.shape)}"
        )
    if indices.dtype not in ID_DTYPES or indices.ndim != 1:
        raise DataError(
            f"indices must be 1-d int32 or int64; got {indices.dtype} of shape {tuple(indices.shape)}"
        )
    if not (indptr.is_contiguous() and indices.is_contiguous()):
        raise DataError("indptr and indices must be contiguous; make them so with .contiguous()")
    if indptr.device != indices.device:
        raise DataError(f"indptr and indices must be on one device; got {indptr.device} and {indices.device}")
    if int(indptr[0]) != 0 or int(indptr[-1]) != indices.numel():
        raise DataError(
            f"indptr must run from 0 to the number of edges ({indices.numel()}); "
            f"it runs from {int(indptr[0])} to {int(indptr[-1])}"
        )
    if num_src < 0:
        raise DataError(f"num_src must not be negative; got {num_src}")


def check_indptr(indptr: Tensor, what: str) -> None:
    """Raise DataError that names ``what`` and the first row where ``indptr`` decreases."""
    row = first_fall(indptr)
    if row >= 0:
        raise DataError(
            f"{what} must never fall; it goes from {int(indptr[row])} at position {row} "
            f"to {int(indptr[row + 1])} at {row + 1}"
        )


def check_columns(indptr: Tensor, indices: Tensor, bound: int, what: str) -> None:
    """Raise DataError for the first decrease of ``indptr``, or index outside ``[0, bound)`` and its row."""
    check_indptr(indptr, f"indptr of {what}" if what else "indptr")
    position = first_out_of_range(indices, bound)
    if position < 0:
        return
    row = row_of(indptr, position)
    if what:
        raise DataError(
            f"columns of {what} must be in [0, {bound}); indices[{position}], in the row of node {row}, is "
            f"{int(indices[position])}"
        )
    raise DataError(
        f"indices must be source nodes in [0, {bound}); indices[{position}], an in-edge of node {row}, is "
        f"{int(indices[position])}"
    )


def check_weight(weight: Tensor, num_edges: int, what: str = "edge weights", name: str = "weight") -> None:
    """Raise DataError unless edge weights are ``(num_edges,)`` float32 and finite; it names the first."""
    check_tensor(weight, what)
    if weight.dtype != torch.float32 or weight.shape != (num_edges,):
        raise DataError(
            f"{what} must be torch.float32 of shape ({num_edges},); got {weight.dtype} of "
            f"{tuple(weight.shape)}"
        )
    position = first_unsound_weight(weight)
    if position >= 0:
        raise DataError(f"{what} must be finite; {name}[{position}] is {float(weight[position])}")


def check_finite(rows: Tensor, first: int, name: str = "x") -> None:
    """Raise DataError that names the first number of rows from ``first`` on, its row and column."""
    finite = rows.isfinite()
    if not bool(finite.all()):
        row, column = (int(i) for i in (~finite).nonzero()[0])
        raise not_finite(name, first + row, column, float(rows[row, column]))


def not_finite(name: str, row: int, column: int, value: float) -> DataError:
    """Return the error of a feature that is inf or NaN."""
    return DataError(
        f"features must be finite; {name}[{row}, {column}] is {value}. Replace it, e.g. with "
        f"{name}.nan_to_num()"
    )


def row_of(indptr: Tensor, position: int) -> int:
    """Return the row of ``indptr`` that holds a position."""
    return int(torch.searchsorted(indptr, position, right=True)) - 1


def _first_true(flags: Tensor) -> int:
    return int(flags.int().argmax()) if bool(flags.any()) else -1


def native_for(values: Tensor) -> Any | None:
    """Return the compiled kernels if they can read a tensor, else None."""
    return native.kernels() if values.device.type == "cpu" else None
