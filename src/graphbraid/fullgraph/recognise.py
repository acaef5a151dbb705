"""Reads a model into a program: graphbraid's own models layer by layer, others by tracing ``forward``."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from graphbraid.fullgraph.program import (
    INPUT,
    Add,
    Adjacency,
    Aggregate,
    Attention,
    Epilogue,
    Linear,
    Maximum,
    Module,
    Normalise,
    Op,
    Own,
    Program,
    Scale,
    UnitRows,
)
from graphbraid.nn.models import MLP, GraphModel
from graphbraid.ops.epilogue import LEAKY_SLOPE

EDGE_WEIGHT = "edge_weight"
"""Name of the argument in which a model takes the graph's edge weights."""
CONVOLUTIONS = ("GCNConv", "SAGEConv", "GINConv", "GATConv", "GATv2Conv")


class NotLoweredError(Exception):
    """A part of a model that no operation stands for.

    Attributes:
        part: the module or call, by name.
        reason: why, as a sentence.
    """

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(f"{part}: {reason}")
        self.part, self.reason = part, reason


def read_model(model: nn.Module, in_channels: int) -> Program:
    """The program of a model.

    Args:
        model: of :mod:`graphbraid.nn`, or called as ``model(x, edge_index)`` or ``model(x, edge_index,
            edge_weight)`` with PyG's GCN, SAGE, GIN, GAT or GATv2 layers and row-wise modules and functions
            between them.
        in_channels: columns of the features.

    Raises:
        NotLoweredError: names what cannot be read.
    """
    writer = Writer()
    out = _read_own(writer, model) if isinstance(model, GraphModel) else _read_traced(writer, model)
    if not writer.ops or writer.ops[-1].out != out:
        raise NotLoweredError(type(model).__name__, "its last operation is not what it returns")
    try:
        return Program(ops=tuple(writer.ops), in_channels=in_channels)
    except ValueError as error:
        raise NotLoweredError(type(model).__name__, str(error)) from None


class Writer:
    """Collects operations, naming their values in order."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def add(self, make: type[Op], *inputs: str, **fields: Any) -> str:
        """Append an operation; returns its value's name."""
        out = f"v{len(self.ops)}"
        self.ops.append(make(out=out, inputs=inputs, **fields))
        return out

    def on_one_level(self, first: str, second: str) -> tuple[str, str]:
        """Both values at the later one's level: of the other, the rows of that level's nodes."""
        while (ahead := self._level(first) - self._level(second)) != 0:
            if ahead < 0:
                first = self.add(Own, first)
            else:
                second = self.add(Own, second)
        return first, second

    def _level(self, value: str) -> int:
        op = next((op for op in self.ops if op.out == value), None)
        return 0 if op is None else self._level(op.inputs[0]) + op.moves

    def epilogue(self, x: str, *, bias: Any = None, act: str = "none", p: float = 0.0) -> str:
        """Bias, activation and dropout, each as an operation of its own; nothing where there is none."""
        if bias is not None:
            x = self.add(Epilogue, x, bias=bias)
        if act != "none":
            x = self.add(Epilogue, x, act=act)
        return self.add(Epilogue, x, p=p) if p > 0 else x

    def linear(self, x: str, module: Any) -> str:
        """A linear layer."""
        return self.epilogue(self.add(Linear, x, weight=module.weight), bias=module.bias)


# ---- layers


@dataclass(frozen=True)
class Convolutions:
    """Reads graph convolutions of graphbraid and PyG, which share the names of their parts."""

    writer: Writer
    weighted: bool
    """Whether the graph's edge weights reach the layers."""
    with_bias: bool
    """Whether the bias is part of the layer; graphbraid's models add it themselves."""

    def read(self, name: str, conv: Any, x: str) -> str:
        """One layer.

        Raises:
            NotLoweredError: it has an option that no operation stands for.
        """
        kind = type(conv).__name__
        if kind not in CONVOLUTIONS:
            raise NotLoweredError(name, f"no operation stands for {kind}")
        try:
            out, bias = getattr(self, f"_{kind.removesuffix('Conv').lower()}")(conv, x)
        except _UnreadableError as error:
            raise NotLoweredError(name, f"{kind} {error} has no lowered form") from None
        return self.writer.epilogue(out, bias=bias if self.with_bias else None)

    def _gcn(self, conv: Any, x: str) -> tuple[str, Any]:
        z = self.writer.add(Linear, x, weight=conv.lin.weight)
        adjacency = Adjacency(kind="sum", weighted=self.weighted)
        if conv.normalize:
            loops = (2.0 if conv.improved else 1.0) if conv.add_self_loops else 0.0
            adjacency = Adjacency(kind="gcn", loop_scale=loops, weighted=self.weighted)
        return self.writer.add(Aggregate, z, adjacency=adjacency), conv.bias

    def _sage(self, conv: Any, x: str) -> tuple[str, Any]:
        aggr = {"add": "sum"}.get(str(conv.aggr), str(conv.aggr))
        _refuse(aggr not in ("mean", "sum", "max"), f"with aggr={conv.aggr!r}")
        rows = x
        if getattr(conv, "lin", None) is not None:  # project
            rows = self.writer.epilogue(self.writer.linear(x, conv.lin), act="relu")
        if aggr == "max":
            out = self.writer.add(Linear, self.writer.add(Maximum, rows), weight=conv.lin_l.weight)
        else:
            rows = self.writer.add(Linear, rows, weight=conv.lin_l.weight)
            out = self.writer.add(Aggregate, rows, adjacency=Adjacency(kind=aggr))
        if getattr(conv, "lin_r", None) is not None:
            out = self._plus_own(out, x, conv.lin_r)
        if not conv.normalize:
            return out, conv.lin_l.bias
        return self.writer.add(UnitRows, self.writer.epilogue(out, bias=conv.lin_l.bias)), None

    def _gin(self, conv: Any, x: str) -> tuple[str, Any]:
        learns_eps = isinstance(conv.eps, nn.Parameter)
        adjacency = Adjacency(kind="sum", loop_scale=0.0 if learns_eps else 1.0 + float(conv.eps))
        layers = list(conv.nn) if isinstance(conv.nn, nn.Sequential) else [conv.nn]
        bias = None
        if layers and _is_linear(layers[0]):  # W (A x) = A (W x): lowering chooses
            first = layers.pop(0)
            x, bias = self.writer.add(Linear, x, weight=first.weight), first.bias
        out = self.writer.add(Aggregate, x, adjacency=adjacency)
        if learns_eps:
            own = self.writer.add(Scale, self.writer.add(Own, x), factor=conv.eps)
            out = self.writer.add(Add, own, out)
        out = self.writer.epilogue(out, bias=bias)
        for layer in layers:
            out = rowwise(self.writer, "nn", layer, out)
        return out, None

    def _gat(self, conv: Any, x: str) -> tuple[str, Any]:
        _refuse(getattr(conv, "lin", None) is None, "with two input widths")
        _refuse(getattr(conv, "lin_edge", None) is not None, "with edge features")
        rows = self.writer.add(Linear, x, weight=conv.lin.weight)
        summed = self.writer.epilogue(rows, p=float(getattr(conv, "row_dropout", 0.0)))
        inputs = (rows,) if summed == rows else (summed, rows)
        return self._attend("gat", conv, x, inputs, (conv.att_src, conv.att_dst))

    def _gatv2(self, conv: Any, x: str) -> tuple[str, Any]:
        _refuse(getattr(conv, "lin_edge", None) is not None, "with edge features")
        rows = self.writer.linear(x, conv.lin_l)
        own = () if conv.share_weights else (self.writer.linear(self.writer.add(Own, x), conv.lin_r),)
        return self._attend("gatv2", conv, x, (rows, *own), (conv.att,))

    def _attend(
        self, kind: str, conv: Any, x: str, inputs: tuple[str, ...], vectors: tuple[Any, ...]
    ) -> tuple[str, Any]:
        out = self.writer.add(
            Attention,
            *inputs,
            kind=kind,
            heads=conv.heads,
            channels=conv.out_channels,
            concat=conv.concat,
            negative_slope=conv.negative_slope,
            self_loops=conv.add_self_loops,
            dropout=float(conv.dropout),
            vectors=vectors,
        )
        if getattr(conv, "res", None) is not None:
            out = self._plus_own(out, x, conv.res)
        return out, conv.bias

    def _plus_own(self, out: str, x: str, linear: Any) -> str:
        own = self.writer.add(Own, x)
        return self.writer.add(Add, self.writer.add(Linear, own, weight=linear.weight), out)


class _UnreadableError(Exception):
    """An option that no operation stands for, in a few words."""


def _refuse(condition: bool, option: str) -> None:
    if condition:
        raise _UnreadableError(option)


_ACTIVATIONS: dict[type[nn.Module], Callable[[Any], str | None]] = {
    nn.ReLU: lambda _: "relu",
    nn.ELU: lambda m: "elu" if m.alpha == 1.0 else None,
    nn.LeakyReLU: lambda m: "leaky_relu" if m.negative_slope == LEAKY_SLOPE else None,
    nn.Identity: lambda _: "none",
}


def rowwise(writer: Writer, name: str, module: nn.Module, x: str) -> str:
    """A module that maps rows to rows.

    Raises:
        NotLoweredError: no operation stands for it.
    """
    if isinstance(module, nn.Sequential):
        for key, child in module.named_children():
            x = rowwise(writer, f"{name}.{key}", child, x)
        return x
    if _is_linear(module):
        return writer.linear(x, module)
    act = _ACTIVATIONS.get(type(module), lambda _: None)(module)
    if act is not None or isinstance(module, nn.Dropout):
        p = float(module.p) if isinstance(module, nn.Dropout) else 0.0
        return writer.epilogue(x, act=act or "none", p=p)
    if (fields := _norm_fields(module)) is not None:
        return writer.add(Normalise, x, **fields)
    return writer.add(Module, x, **_module_fields(name, module))


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or (type(module).__name__ == "Linear" and hasattr(module, "weight"))


def _norm_fields(module: nn.Module) -> dict[str, Any] | None:
    """What :class:`Normalise` takes of a module; None where it has something of its own to it."""
    inner: Any = module
    if (
        _is_pyg_norm(module)
        and hasattr(module, "module")
        and not getattr(module, "allow_single_element", False)
    ):
        inner = module.module
    # Not of a subclass: it may do anything, and one that computes its weight has no parameter of that name.
    if type(inner) is nn.BatchNorm1d:
        return {"kind": "batch", "module": inner, "channels": inner.num_features}
    if type(inner) is nn.LayerNorm and len(inner.normalized_shape) == 1:
        return {"kind": "layer", "module": inner, "channels": inner.normalized_shape[0]}
    if _is_pyg_norm(inner) and getattr(inner, "mode", None) == "node":
        return {"kind": "layer", "module": inner, "channels": inner.in_channels}
    return None


def _is_pyg_norm(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch_geometric.nn.norm") and type(module).__name__ in (
        "BatchNorm",
        "LayerNorm",
    )


def _module_fields(name: str, module: nn.Module) -> dict[str, Any]:
    if _is_pyg_norm(module):  # with an option that makes it more than Normalise
        return {"module": module, "width_out": module.in_channels, "couples_rows": True}
    if isinstance(module, nn.BatchNorm1d):
        return {"module": module, "width_out": module.num_features, "couples_rows": True}
    if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
        return {"module": module, "width_out": module.normalized_shape[0], "couples_rows": False}
    if isinstance(module, nn.ELU | nn.LeakyReLU | nn.GELU | nn.SiLU | nn.Tanh | nn.Sigmoid):
        return {"module": module, "width_out": None, "couples_rows": False}
    raise NotLoweredError(name, f"no operation stands for {type(module).__name__}")


# ---- graphbraid's models


def _read_own(writer: Writer, model: GraphModel) -> str:
    x = writer.epilogue(INPUT, p=model.input_dropout)
    convolutions = Convolutions(writer, weighted=True, with_bias=False)
    last = model.num_layers - 1
    for i, conv in enumerate(model.convs):
        bias = conv.bias
        if isinstance(model, MLP):
            x = writer.add(Linear, x, weight=conv.weight)
        else:
            x = convolutions.read(f"convs.{i}", conv, x)
        if type(conv).__name__ != "GINConv":
            x = writer.epilogue(x, bias=bias)
        if i == last:
            break
        if model.norms is not None:
            x = rowwise(writer, f"norms.{i}", model.norms[i], x)
        x = _activation(writer, model.act, x)
        x = writer.epilogue(x, p=model.dropout)
    return x


def _activation(writer: Writer, act: str, x: str) -> str:
    if act == "gelu":
        return writer.add(Module, x, module=nn.GELU(), width_out=None, couples_rows=False)
    return writer.epilogue(x, act=act)


# ---- other models, by tracing


class _Tracer(fx.Tracer):
    """Keeps graph convolutions and normalisation whole."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_norm = isinstance(m, nn.BatchNorm1d | nn.LayerNorm) or _is_pyg_norm(m)
        is_conv = type(m).__name__ in CONVOLUTIONS or _is_pyg_conv(m)
        return is_conv or is_norm or super().is_leaf_module(m, module_qualified_name)


def _is_pyg_conv(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch_geometric.nn.conv")


def _read_traced(writer: Writer, model: nn.Module) -> str:
    was_training = model.training
    model.train()  # so that dropout written as training=self.training is seen
    try:
        traced = _Tracer().trace(model)
    except Exception as error:  # whatever a user's forward may raise under tracing
        raise NotLoweredError(type(model).__name__, f"its forward cannot be traced ({error})") from error
    finally:
        model.train(was_training)
    reader = _TraceReader(writer, model)
    for node in traced.nodes:
        reader.read(node)
    assert reader.out is not None
    return reader.out


class _TraceReader:
    """Turns the nodes of a trace into operations."""

    def __init__(self, writer: Writer, model: nn.Module) -> None:
        self._writer, self._modules = writer, dict(model.named_modules())
        self._values: dict[fx.Node, str] = {}
        self._inputs: list[fx.Node] = []
        self._edge_weight: fx.Node | None = None
        self.out: str | None = None

    def read(self, node: fx.Node) -> None:
        """Read the next node."""
        if node.op == "placeholder":
            if not self._inputs:
                self._values[node] = INPUT
            self._inputs.append(node)
            if node.target == EDGE_WEIGHT:
                self._edge_weight = node
        elif node.op == "output":
            self.out = self._value(node, node.args[0])
        elif node.op == "call_module":
            self._values[node] = self._module(node)
        elif node.op in ("call_function", "call_method"):
            self._values[node] = self._call(node)
        elif node.op != "get_attr" or node.users:
            raise NotLoweredError(str(node.target), "a tensor of the model's own takes part in its forward")

    def _value(self, node: fx.Node, arg: Any) -> str:
        if isinstance(arg, fx.Node) and arg in self._values:
            return self._values[arg]
        raise NotLoweredError(str(node.target), f"its argument {arg} is not a matrix of node rows")

    def _module(self, node: fx.Node) -> str:
        name, module = str(node.target), self._modules[str(node.target)]
        x = self._value(node, node.args[0])
        others = [given for given in (*node.args[1:], *node.kwargs.values()) if given is not None]
        if type(module).__name__ not in CONVOLUTIONS:
            if _is_pyg_conv(module):
                raise NotLoweredError(name, f"no operation stands for {type(module).__name__}")
            if others:
                raise NotLoweredError(name, "it takes more than the rows")
            return rowwise(self._writer, name, module, x)
        if not others or len(self._inputs) < 2 or others[0] is not self._inputs[1]:
            raise NotLoweredError(name, "it takes other edges than the model's own edge_index")
        weighted = self._edge_weight is not None and others[1:] == [self._edge_weight]
        if len(others) > 1 and not (weighted and type(module).__name__ == "GCNConv"):
            raise NotLoweredError(
                name, f"it takes more than the rows, edge_index and, of a GCNConv, the model's {EDGE_WEIGHT}"
            )
        return Convolutions(self._writer, weighted=weighted, with_bias=True).read(name, module, x)

    def _call(self, node: fx.Node) -> str:
        target, args, options = node.target, node.args, dict(node.kwargs)
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        if target in (operator.add, torch.add, operator.iadd) or name in ("add", "add_"):
            first, second = self._writer.on_one_level(*(self._value(node, a) for a in args[:2]))
            return self._writer.add(Add, first, second)
        x = self._value(node, args[0])
        rest = {k: v for k, v in options.items() if k != "inplace"}
        if target in (F.relu, torch.relu) or name in ("relu", "relu_"):
            return self._writer.epilogue(x, act="relu")
        if target is F.dropout:
            return self._dropout(node, x, args[1:], rest)
        if target is F.elu and rest.pop("alpha", 1.0) == 1.0 and len(args) == 1 and not rest:
            return self._writer.epilogue(x, act="elu")
        slope: Any = rest.pop("negative_slope", args[1] if len(args) > 1 else LEAKY_SLOPE)
        if target is F.leaky_relu and slope == LEAKY_SLOPE and not rest:
            return self._writer.epilogue(x, act="leaky_relu")
        raise NotLoweredError(name, "no operation stands for this call")

    def _dropout(self, node: fx.Node, x: str, args: tuple[Any, ...], options: dict[str, Any]) -> str:
        given = dict(zip(("p", "training"), args, strict=False)) | options
        if isinstance(given.get("training", True), fx.Node) or not isinstance(
            given.get("p", 0.5), int | float
        ):
            raise NotLoweredError("dropout", "its probability or switch is computed")
        return self._writer.epilogue(x, p=float(given.get("p", 0.5))) if given.get("training", True) else x
