"""Readers of modules that map rows to rows, by exact class; of activations and dropout in all their forms."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphbraid.fullgraph.program import Learned, NodeType, Normalise, NotLoweredError, Prelu
from graphbraid.fullgraph.reading.exact import (
    Allowed,
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
from graphbraid.fullgraph.reading.reader import (
    AFFINE,
    NEEDED,
    FunctionCall,
    LayerCall,
    Writer,
    checked_reader,
    reader_of,
    reads,
    reads_calls,
)
from graphbraid.fullgraph.reading.row_dependence import Dependence, RowWatch, is_of_torch, rows_to_try
from graphbraid.ops.epilogue import LEAKY_SLOPE

_TORCH, _PYG = "torch.nn.modules", "torch_geometric.nn"
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


@reads(f"{_TORCH}.linear.Identity", known=Known(), takes=("input",))
def _same(call: LayerCall) -> str:
    return call.x


@reads(f"{_TORCH}.dropout.Dropout", known=Known({"p": probability, "inplace": flag}), takes=("input",))
def _dropout(call: LayerCall) -> str:
    return call.writer.epilogue(call.x, p=float(call.layer.p) if call.layer.training else 0.0)


@reads(
    f"{_TORCH}.batchnorm.BatchNorm1d",
    known=Known(
        {"num_features": count, "eps": number, "affine": flag, "track_running_stats": flag}
        | {"momentum": lambda value: value is None or number(value)},
        AFFINE,
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
        AFFINE,
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
        {"in_channels": count, "eps": number, "affine": flag, "mode": one_of("node", "graph")}, AFFINE
    ),
    takes=("x", "batch", "batch_size"),
)
def _pyg_layer_norm(call: LayerCall) -> str:
    norm = call.layer
    if norm.mode == "node":
        return call.writer.add(Normalise, call.x, kind="layer", module=norm, channels=norm.in_channels)
    return call.writer.module(call.x, norm, couples_rows=True)


# ---- an embedding of all nodes


def learned_rows(writer: Writer, name: str, layer: Any, one: NodeType, num_nodes: int) -> str:
    """Append the ``(num_nodes, width)`` rows of an embedding of all nodes of a type.

    Raises:
        NotLoweredError: the embedding does more, or has other rows than the type has nodes.
    """
    check(name, layer, _EMBEDDING)
    if layer.num_embeddings != num_nodes:
        what = f"it has {layer.num_embeddings} rows, and the graph {num_nodes} nodes of {one.name!r}"
        raise NotLoweredError(name, what)
    return writer.add(Learned, one.input, table=layer.weight)


_EMBEDDING = Known(
    {"num_embeddings": anything, "embedding_dim": count, "norm_type": anything}
    | dict.fromkeys(("padding_idx", "max_norm"), one_of(None))
    | dict.fromkeys(("scale_grad_by_freq", "sparse"), one_of(False)),
    ("weight",),
)


# ---- modules that PyTorch runs, on the rows of all nodes together or by themselves


def _of_all_rows(name: str, attributes: dict[str, Any], parameters: tuple[str, ...] = ()) -> None:
    """Enter one of PyG's normalisations, which maps rows to as many columns."""

    def read(call: LayerCall) -> str:
        return call.writer.module(call.x, call.layer, couples_rows=True)

    known = Known(attributes, parameters)
    reads(f"{_PYG}.norm.{name}", known=known, takes=("x", "batch", "batch_size"))(read)


_of_all_rows("graph_norm.GraphNorm", {"in_channels": count, "eps": number}, (*AFFINE, "mean_scale"))
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


# ---- dropout


@reads_calls(F.dropout, takes={"input": NEEDED, "p": 0.5, "training": True, "inplace": False})
def _called_dropout(call: FunctionCall) -> str:
    p, training = call.constant("p", probability), call.constant("training", flag)
    return call.writer.epilogue(call.rows("input"), p=float(p) if training else 0.0)


# ---- activations: as modules, as functions and as methods of a tensor

_Arguments = Mapping[str, tuple[Any, Allowed]]
"""Arguments by name, in their order: the default value, and a test of the values that are handled."""
_UNUSED: _Arguments = {"inplace": (False, flag), "_stacklevel": (3, anything), "dtype": (None, one_of(None))}
"""Further arguments of some functions; they change no value."""


def _activation(
    write: Callable[..., str],
    module: type[nn.Module],
    functions: tuple[Any, ...],
    methods: tuple[str, ...] = (),
    *,
    kept: Mapping[str, Allowed] | None = None,
    **arguments: tuple[Any, Allowed],
) -> None:
    """Enter the readers of one activation.

    ``write`` appends the operation, called as ``write(writer, x, **arguments)``, with ``arguments`` as
    :data:`_Arguments`. The activation is a module, some functions, and methods by name. ``kept`` tests
    further attributes of the module.
    """

    def of_module(call: LayerCall) -> str:
        return write(call.writer, call.x, **{key: getattr(call.layer, key) for key in arguments})

    known = {key: allowed for key, (_, allowed) in arguments.items()} | {"inplace": flag} | dict(kept or {})
    reads(f"{module.__module__}.{module.__name__}", known=Known(known), takes=("input",))(of_module)

    def of_call(call: FunctionCall) -> str:
        for key, (_, allowed) in _UNUSED.items():
            if key in call.arguments:
                call.constant(key, allowed)
        given = {key: call.constant(key, allowed) for key, (_, allowed) in arguments.items()}
        return write(call.writer, call.rows("input"), **given)

    for function in functions:
        reads_calls(function, takes=_takes(arguments, function))(of_call)
    reads_calls(takes=_takes(arguments, None), methods=methods)(of_call)


def _takes(arguments: _Arguments, function: Any) -> dict[str, Any]:
    """Return a function's parameters with their defaults; from ``arguments`` if it has no signature."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin, or a method
        known = {key: default for key, (default, _) in arguments.items()}
        return {"input": NEEDED, **known, **({"dtype": None} if "dim" in known else {})}
    return {key: NEEDED if one.default is one.empty else one.default for key, one in parameters.items()}


def _function(kind: str, *fixed: float) -> Callable[..., str]:
    def write(writer: Writer, x: str, **arguments: Any) -> str:
        given = (a if isinstance(a, str) else float(a) for a in arguments.values())
        return writer.function(x, kind, *given, *fixed)

    return write


def _along_rows(kind: str) -> Callable[..., str]:
    return lambda writer, x, **_: writer.function(x, kind)


def _celu(writer: Writer, x: str, alpha: float) -> str:
    return writer.function(x, "elu", float(alpha), 1.0, 1 / float(alpha))


def _relu(writer: Writer, x: str) -> str:
    return writer.epilogue(x, act="relu")


def _positive(value: Any) -> bool:
    return number(value) and value > 0


_SELU = (1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0)
_ROWS = (NEEDED, one_of(1, -1))
"""The argument ``dim`` that reduces along each row of a matrix of node rows."""
_TANH = ("none", one_of("none", "tanh"))
_SIX: dict[str, Allowed] = {"min_val": one_of(0.0), "max_val": one_of(6.0)}
_softmax, _log_softmax = _along_rows("softmax"), _along_rows("log_softmax")
_activation(_relu, nn.ReLU, (F.relu, torch.relu), ("relu",))
_activation(_function("tanh"), nn.Tanh, (torch.tanh,), ("tanh",))
_activation(_function("sigmoid"), nn.Sigmoid, (torch.sigmoid,), ("sigmoid",))
_activation(_function("silu"), nn.SiLU, (F.silu,))
_activation(_function("gelu"), nn.GELU, (F.gelu,), approximate=_TANH)
_activation(_function("elu", 1.0, 1.0), nn.ELU, (F.elu,), alpha=(1.0, number))
_activation(_function("elu", *_SELU), nn.SELU, (F.selu, torch.selu))
_activation(_celu, nn.CELU, (F.celu, torch.celu), alpha=(1.0, _positive))
_activation(_function("leaky_relu"), nn.LeakyReLU, (F.leaky_relu,), negative_slope=(LEAKY_SLOPE, number))
_activation(
    _function("softplus"), nn.Softplus, (F.softplus,), beta=(1.0, _positive), threshold=(20.0, number)
)
_activation(_function("hardtanh"), nn.Hardtanh, (F.hardtanh,), min_val=(-1.0, number), max_val=(1.0, number))
_activation(_function("hardtanh", 0.0, 6.0), nn.ReLU6, (F.relu6,), kept=_SIX)
_activation(_softmax, nn.Softmax, (F.softmax, torch.softmax), ("softmax",), dim=_ROWS)
_activation(_log_softmax, nn.LogSoftmax, (F.log_softmax, torch.log_softmax), ("log_softmax",), dim=_ROWS)


@reads_calls(torch.relu_, takes={"input": NEEDED}, methods=("relu_",), in_place=True)
def _relu_in_place(call: FunctionCall) -> str:
    return _relu(call.writer, call.rows("input"))


@reads(
    "torch.nn.modules.activation.PReLU",
    known=Known({"num_parameters": anything, "init": anything}, ("weight",)),
    takes=("input",),
)
def _prelu(call: LayerCall) -> str:
    return call.writer.add(Prelu, call.x, slope=call.layer.weight)
