"""Which calls work row by row: only these may run on some rows of a matrix, or on its rows in another order.

A call that is not known here is taken to couple all rows.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from graphbraid.fullgraph.program import itself


class Dependence(Enum):
    """How a result depends on the rows of node matrices."""

    NONE = "none"
    """It is the same whatever the rows are."""
    ALIGNED = "aligned"
    """Its first dimension are the rows, and each depends on the same row of the arguments alone."""
    COUPLED = "coupled"
    """Any other, or unknown."""


_ELEMENTWISE = """
abs acos add addcdiv addcmul asin atan atan2 celu clamp clip clone contiguous copysign cos cosh detach div
dropout elu eq erf erfc exp exp2 expm1 float floor fmod ge gelu gt hardshrink hardsigmoid hardswish hardtanh
isfinite isinf isnan le leaky_relu lerp log log10 log1p log2 logical_and logical_not logical_or logit
logsigmoid lt masked_fill maximum minimum mish mul nan_to_num ne neg pos pow reciprocal relu relu6 remainder
round rsqrt selu sgn sigmoid sign silu sin sinh softplus softshrink softsign sqrt square sub tan tanh
tanhshrink threshold truediv where xlogy
"""
_ALONG = {
    "amax": 1,
    "amin": 1,
    "argmax": 1,
    "argmin": 1,
    "cat": 1,
    "chunk": 2,
    "concat": 1,
    "cumsum": 1,
    "glu": 1,
    "log_softmax": 1,
    "logsumexp": 1,
    "mean": 1,
    "norm": 2,
    "normalize": 2,
    "prod": 1,
    "softmax": 1,
    "softmin": 1,
    "split": 2,
    "stack": 1,
    "std": 1,
    "sum": 1,
    "unsqueeze": 1,
    "var": 1,
    "vector_norm": 2,
}
"""Functions that work along a dimension, with the place of the argument that names it."""
_PRODUCTS = ("matmul", "mm", "linear")
_TABLES = {"getitem": (0, 1), "index_select": (0, 2), "embedding": (1, 0)}
"""Functions that take rows of a table by id, with the places of the table and of the ids."""
_HOMES = (torch, F, operator, torch.linalg)


def _functions(names: Iterable[str]) -> dict[Any, str]:
    """Return the functions and methods of these names, by themselves and by name."""
    found: dict[Any, str] = {}
    for name in names:
        homes = (getattr(home, name, None) for home in _HOMES)
        found |= {one: name for one in homes if callable(one)}
        found |= {name: name} if hasattr(Tensor, name) else {}
    return found


_OF_ELEMENTS = _functions(_ELEMENTWISE.split())
_OF_DIMENSIONS = _functions(_ALONG)
_OF_PRODUCTS = _functions(_PRODUCTS)
_OF_TABLES = _functions(_TABLES)
_DEFAULTS = {"normalize": 1, "cat": 0, "concat": 0, "chunk": 0, "split": 0, "stack": 0, "glu": -1}
_MODULES: tuple[type[nn.Module], ...] = (
    nn.Linear,
    nn.Identity,
    nn.Dropout,
    nn.AlphaDropout,
    nn.PReLU,
    nn.Bilinear,
    *(nn.ReLU, nn.ReLU6, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh),
    *(nn.LeakyReLU, nn.Softplus, nn.Softsign, nn.Tanhshrink, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
    *(nn.LogSigmoid, nn.RReLU, nn.Threshold, nn.Hardshrink, nn.Softshrink),
)


def is_inert(module: nn.Module | None) -> bool:
    """Return whether calling a module does nothing but return a result, unless it draws random numbers."""
    return type(module) in _MODULES


def kind_of_result(
    node: fx.Node,
    module: nn.Module | None,
    kinds: Mapping[fx.Node, Dependence],
    arguments: Mapping[fx.Node, Any],
    *,
    result: Any,
    num_rows: int,
) -> Dependence:
    """Return how the result of a call depends on rows.

    Args:
        node: the call.
        module: the module that it calls; None for a function or method.
        kinds: how the arguments that are computed depend on rows.
        arguments: what the arguments that are computed were in a trial.
        result: its result there.
        num_rows: number of rows of node matrices there.
    """
    if all(kind is Dependence.NONE for kind in kinds.values()):
        return Dependence.NONE
    if any(kind is Dependence.COUPLED for kind in kinds.values()) or num_rows < 2:
        return Dependence.COUPLED
    aligned = [arguments[one] for one, kind in kinds.items() if kind is Dependence.ALIGNED]
    constant = [arguments[one] for one, kind in kinds.items() if kind is Dependence.NONE]
    results = result if isinstance(result, tuple | list) else (result,)
    if not all(isinstance(one, Tensor) and one.shape[:1] == (num_rows,) for one in results):
        return Dependence.COUPLED
    is_row_wise = (
        _is_row_wise_module(module, aligned, results)
        if module is not None
        else _is_row_wise_call(node, kinds, aligned, constant, results)
    )
    return Dependence.ALIGNED if is_row_wise else Dependence.COUPLED


def _is_row_wise_module(module: nn.Module, aligned: list[Any], results: Sequence[Tensor]) -> bool:
    if type(module) is nn.Embedding:
        return all(isinstance(one, Tensor) for one in aligned) and module.max_norm is None
    if not all(isinstance(one, Tensor) and one.ndim > 1 for one in aligned):
        return False
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        known = type(module) in (nn.LayerNorm, nn.RMSNorm)
        return known and len(module.normalized_shape) < results[0].ndim
    return type(module) in _MODULES


def _is_row_wise_call(
    node: fx.Node,
    kinds: Mapping[fx.Node, Dependence],
    aligned: list[Any],
    constant: list[Any],
    results: Sequence[Tensor],
) -> bool:
    target = node.target
    if target in _OF_ELEMENTS:
        return _fit(aligned, constant, results[0])
    if target in _OF_PRODUCTS:
        return _multiplies_rows(node, kinds, aligned, constant, results[0])
    if target in _OF_DIMENSIONS:
        name = _OF_DIMENSIONS[target]
        ndim = results[0].ndim if name in ("stack", "unsqueeze") else _tensors_ndim(aligned)
        dims = node.kwargs.get("dim", _at(node.args, _ALONG[name], _DEFAULTS.get(name)))
        return _fit(aligned, constant, None) and ndim > 0 and _not_first(dims, ndim)
    if target in ("view", "reshape", "flatten", "repeat", torch.reshape, torch.flatten):
        return isinstance(aligned[0], Tensor) and _keeps_rows(target, node.args[1:], aligned[0].ndim)
    if target is operator.getitem and not isinstance(node.args[1], fx.Node):
        return _takes_all_rows(node.args[1], aligned[0])
    return target is itself or (target in _OF_TABLES and _takes_rows_of_table(node, kinds, aligned))


def _multiplies_rows(
    node: fx.Node,
    kinds: Mapping[fx.Node, Dependence],
    aligned: list[Any],
    constant: list[Any],
    result: Tensor,
) -> bool:
    """Return whether a product is of rows with one matrix, or of two matrices for each row."""
    if len(aligned) == 2 and node.target is not F.linear and not constant:
        return all(isinstance(one, Tensor) and one.ndim == 3 for one in aligned)
    first = node.args[0] if node.args else None
    is_first = isinstance(first, fx.Node) and kinds[first] is Dependence.ALIGNED and len(aligned) == 1
    return is_first and bool(aligned[0].ndim == 2) and result.ndim == 2


def _takes_rows_of_table(node: fx.Node, kinds: Mapping[fx.Node, Dependence], aligned: list[Any]) -> bool:
    """Return whether a call takes a row of a table of the model's for each row's id."""
    name = _OF_TABLES[node.target]
    table, ids = _TABLES[name]
    is_plain = not node.kwargs or (name == "embedding" and node.kwargs.get("max_norm") is None)
    if len(node.args) <= max(table, ids) or not is_plain or len(aligned) != 1:
        return False
    by, of = node.args[ids], node.args[table]
    is_by_id = isinstance(by, fx.Node) and kinds[by] is Dependence.ALIGNED
    is_table = isinstance(of, fx.Node) and kinds[of] is Dependence.NONE
    is_whole = len(node.args) == 2 or bool(name == "index_select" and node.args[1] == 0)
    return is_by_id and is_table and is_whole and aligned[0].dtype in (torch.int32, torch.int64)


def _fit(aligned: list[Any], constant: list[Any], result: Tensor | None) -> bool:
    """Return whether broadcasting joins each row with the same row alone."""
    ndims = {one.ndim for one in aligned if isinstance(one, Tensor)}
    if len(ndims) != 1 or not all(isinstance(one, Tensor) for one in aligned):
        return False
    ndim = ndims.pop()
    shared = all(
        not isinstance(one, Tensor) or one.ndim < ndim or (one.ndim == ndim and one.shape[0] == 1)
        for one in constant
    )
    return shared and (result is None or result.ndim == ndim)


def _tensors_ndim(aligned: list[Any]) -> int:
    return int(aligned[0].ndim) if isinstance(aligned[0], Tensor) else 0


def _at(args: tuple[Any, ...], place: int, default: Any) -> Any:
    return args[place] if len(args) > place else default


def _not_first(dims: Any, ndim: int) -> bool:
    """Return whether dimensions are given and the first is not among them."""
    several = dims if isinstance(dims, tuple | list) else (dims,)
    return bool(several) and all(type(dim) is int and -ndim <= dim < ndim and dim % ndim for dim in several)


def _keeps_rows(target: Any, shape: tuple[Any, ...], ndim: int) -> bool:
    """Return whether a change of shape leaves each row's elements in its row."""
    if target == "repeat":
        return len(shape) == ndim and type(shape[0]) is int and shape[0] == 1
    if target in ("flatten", torch.flatten):
        return type(shape[:1][0] if shape else None) is int and shape[0] >= 1
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    return len(sizes) > 1 and sizes[0] == -1 and all(type(one) is int and one > 0 for one in sizes[1:])


def _takes_all_rows(index: Any, argument: Any) -> bool:
    """Return whether an index takes all rows, in order, and constant parts of each."""
    if isinstance(argument, tuple | list):
        return type(index) is int
    parts = index if isinstance(index, tuple) else (index,)
    if not parts or parts[0] != slice(None, None, None):
        return False
    return all(part is None or part is Ellipsis or _is_constant(part) for part in parts[1:])


def _is_constant(part: Any) -> bool:
    if isinstance(part, slice):
        return all(end is None or type(end) is int for end in (part.start, part.stop, part.step))
    return type(part) is int


__all__ = ["Dependence", "is_inert", "kind_of_result"]
