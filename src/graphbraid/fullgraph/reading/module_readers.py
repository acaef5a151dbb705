"""Readers of modules that map rows to rows, by exact class."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.fullgraph.program import Normalise
from graphbraid.fullgraph.reading.exact import (
    Known,
    anything,
    check,
    count,
    flag,
    number,
    one_of,
    probability,
    refuse_changed,
)
from graphbraid.fullgraph.reading.reader import LayerCall, Writer, checked_reader, no_reader, reader_of, reads
from graphbraid.fullgraph.reading.row_dependence import Dependence, RowWatch, is_of_torch, rows_to_try

_TORCH, _PYG = "torch.nn.modules", "torch_geometric.nn"
_AFFINE = ("weight", "bias")
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def rowwise(writer: Writer, name: str, module: nn.Module, x: str) -> str:
    """Append the operations of a module that maps rows to rows, or of a sequence of such modules.

    Raises:
        NotLoweredError: the module has no lowered form.
    """
    if type(module) is nn.Sequential:
        check(name, module, Known(children=None))
        for key, child in module.named_children():
            x = rowwise(writer, f"{name}.{key}", child, x)
        return x
    if (out := run_by_torch(writer, name, module, x)) is not None:
        return out
    reader = checked_reader(name, module, rows_only=True)
    return reader.read(LayerCall(writer, name, module, x))


def as_linear(name: str, module: nn.Module) -> Any:
    """Return the module if it is a plain linear layer; None for any other class.

    Raises:
        NotLoweredError: it is a linear layer, but holds something that is not handled.
    """
    reader = reader_of(type(module))
    if reader is None or reader.read is not _linear:
        return None
    check(name, module, reader.known)
    return module


def checked_linear(call: LayerCall, key: str, *, has_bias: bool | None = None) -> Any:
    """Return the linear layer that a layer holds under a name.

    Raises:
        NotLoweredError: there is none, or something else.
    """
    module = call.layer._modules.get(key)
    if module is None:
        raise call.refuse(f"without a linear layer {key!r} has no lowered form")
    linear = as_linear(f"{call.name}.{key}", module)
    if linear is None:
        raise no_reader(f"{call.name}.{key}", module)
    if has_bias is not None and (linear.bias is not None) != has_bias:
        raise call.refuse(f"with a bias of its own in {key!r} has no lowered form")
    return linear


@reads(
    f"{_TORCH}.linear.Linear",
    known=Known({"in_features": anything, "out_features": anything}, _AFFINE),  # known from the weight
    takes=("input",),
)
@reads(
    "graphbraid.nn.linear.Linear",
    known=Known({"in_features": anything, "out_features": anything, "init": anything}, _AFFINE),
)
@reads(
    f"{_PYG}.dense.linear.Linear",
    known=Known(
        dict.fromkeys(("in_channels", "out_channels", "weight_initializer", "bias_initializer"), anything),
        _AFFINE,
    ),
)
def _linear(call: LayerCall) -> str:
    return call.writer.linear(call.x, call.layer)


@reads(f"{_TORCH}.linear.Identity", known=Known(), takes=("input",))
def _same(call: LayerCall) -> str:
    return call.x


@reads(f"{_TORCH}.dropout.Dropout", known=Known({"p": probability, "inplace": flag}), takes=("input",))
def _dropout(call: LayerCall) -> str:
    return call.writer.epilogue(call.x, p=float(call.layer.p) if call.layer.training else 0.0)


@reads(
    f"{_TORCH}.batchnorm.BatchNorm1d",
    known=Known(
        {
            "num_features": count,
            "eps": number,
            "momentum": lambda value: value is None or number(value),
            "affine": flag,
            "track_running_stats": flag,
        },
        _AFFINE,
        buffers=_STATISTICS,
    ),
    takes=("input",),
)
def _batch_norm(call: LayerCall) -> str:
    norm = call.layer
    return call.writer.add(Normalise, call.x, kind="batch", module=norm, channels=norm.num_features)


@reads(
    f"{_TORCH}.normalization.LayerNorm",
    known=Known(
        {
            "normalized_shape": lambda shape: isinstance(shape, tuple) and len(shape) == 1,
            "eps": number,
            "elementwise_affine": flag,
        },
        _AFFINE,
    ),
    takes=("input",),
)
def _layer_norm(call: LayerCall) -> str:
    norm = call.layer
    return call.writer.add(Normalise, call.x, kind="layer", module=norm, channels=norm.normalized_shape[0])


@reads(
    f"{_PYG}.norm.batch_norm.BatchNorm",
    known=Known({"in_channels": count, "allow_single_element": flag}, children=("module",)),
)
def _pyg_batch_norm(call: LayerCall) -> str:
    norm = call.layer
    checked_reader(f"{call.name}.module", norm.module, rows_only=True)
    if norm.allow_single_element:
        return call.writer.module(call.x, norm, couples_rows=True)
    return call.writer.add(
        Normalise, call.x, kind="batch", module=norm.module, channels=norm.module.num_features
    )


@reads(
    f"{_PYG}.norm.layer_norm.LayerNorm",
    known=Known(
        {"in_channels": count, "eps": number, "affine": flag, "mode": one_of("node", "graph")}, _AFFINE
    ),
    takes=("x", "batch", "batch_size"),
)
def _pyg_layer_norm(call: LayerCall) -> str:
    norm = call.layer
    if norm.mode == "node":
        return call.writer.add(Normalise, call.x, kind="layer", module=norm, channels=norm.in_channels)
    return call.writer.module(call.x, norm, couples_rows=True)


# ---- modules that PyTorch runs, on the rows of all nodes together or by themselves


def _of_all_rows(name: str, attributes: dict[str, Any], parameters: tuple[str, ...] = ()) -> None:
    """Enter one of PyG's normalisations, which maps rows to as many columns."""

    def read(call: LayerCall) -> str:
        return call.writer.module(call.x, call.layer, couples_rows=True)

    known = Known(attributes, parameters)
    reads(f"{_PYG}.norm.{name}", known=known, takes=("x", "batch", "batch_size"))(read)


_of_all_rows("graph_norm.GraphNorm", {"in_channels": count, "eps": number}, (*_AFFINE, "mean_scale"))
_of_all_rows("pair_norm.PairNorm", {"scale": number, "scale_individually": flag, "eps": number})
_of_all_rows("graph_size_norm.GraphSizeNorm", {})
_of_all_rows("mean_subtraction_norm.MeanSubtractionNorm", {})


def run_by_torch(writer: Writer, name: str, module: nn.Module, x: str) -> str | None:
    """Append a call of a module of PyTorch's without a reader, if it works row by row; else return None.

    It is tried on rows of numbers.

    Raises:
        NotLoweredError: it is a module of PyTorch's that had a method replaced.
    """
    is_plain = is_of_torch(module) and not any(True for _ in module.buffers())
    if not is_plain or reader_of(type(module)) is not None or getattr(module, "inplace", False):
        return None
    refuse_changed(name, module)
    [count] = rows_to_try(module, 1, others=[writer.width(x)])
    rows = torch.linspace(0.1, 0.9, count * writer.width(x)).view(count, -1)
    rows = rows.to(next(module.parameters(), rows))
    watch = RowWatch(count, [rows])
    try:
        with torch.random.fork_rng(), torch.no_grad(), watch:
            out = module(rows)
    except Exception:  # whatever it raises on rows of another width, as written it may raise again
        return None
    is_rows = isinstance(out, Tensor) and watch.kind_of(out) is Dependence.ALIGNED and not watch.draws
    if (
        not is_rows
        or out.shape[:1] != (count,)
        or out.ndim != 2
        or out.dtype != rows.dtype
        or not out.numel()
    ):
        return None
    return writer.module(x, module, width=int(out.shape[1]), couples_rows=False)
