"""How a layer of PyG reduces messages, and what else readers of graph layers share: attributes and checks.

Messages are reduced by one reduction of a kernel, by several, or as the layer's class is written.
Aggregations are recognised by their exact classes. How a maximum divides its gradient among equal messages is
found by running it.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.reading.exact import (
    Allowed,
    Known,
    anything,
    check,
    check_parameter,
    count,
    flag,
    is_from,
    one_of,
)
from graphbraid.fullgraph.reading.message_trial import traced_message
from graphbraid.fullgraph.reading.reader import LayerCall, Reader, checked_linear, reads
from graphbraid.fullgraph.reading.trace_context import SCATTERS, TORCH_SCATTER, names_in
from graphbraid.ops.message_reductions import REDUCTIONS_OF_SEVERAL, SCALERS, SeveralReductions
from graphbraid.ops.messages import MessageReduction
from graphbraid.ops.spmm import TIES, Ties

_LAYERS = "torch_geometric.nn"
HOME = f"{_LAYERS}.conv.message_passing"
"""Module of PyG's ``MessagePassing``."""
AGGREGATIONS: dict[str, tuple[str, MessageReduction]] = {
    "add": ("SumAggregation", "sum"),
    "sum": ("SumAggregation", "sum"),
    "mean": ("MeanAggregation", "mean"),
    "max": ("MaxAggregation", "max"),
    "min": ("MinAggregation", "min"),
}
"""PyG's aggregation modules and the reductions, by the names in ``aggr``."""
_AGGR = f"{_LAYERS}.aggr"
_BY_DESTINATION = {
    *(
        f"{_AGGR}.basic.{name}Aggregation"
        for name in ("Sum", "Mean", "Max", "Min", "Mul", "Var", "Std", "Softmax", "PowerMean")
    ),
    *(f"{_AGGR}.quantile.{name}Aggregation" for name in ("Quantile", "Median")),
    f"{_AGGR}.fused.FusedAggregation",
    f"{_AGGR}.multi.MultiAggregation",
    f"{_AGGR}.scaler.DegreeScalerAggregation",
}
"""PyG's aggregations that reduce the messages of each destination by themselves."""
_INSIDE = {"torch.nn.modules.container.ModuleList", "torch.nn.modules.linear.Linear"}
_INSIDE |= {f"{_LAYERS}.dense.linear.Linear"}
"""Modules inside these aggregations."""
_OWN_AGGREGATES = {f"{_LAYERS}.conv.eg_conv.EGConv"}
"""Layers of PyG whose own ``aggregate`` also reduces the messages of each destination by themselves."""


def base_of(layer: nn.Module) -> Any:
    """Return PyG's ``MessagePassing``, from which a layer's class is made."""
    return next(kind for kind in type(layer).__mro__ if kind.__module__ == HOME)


def why_not_reduced(layer: Any) -> tuple[str, str] | None:
    """Return why a layer's aggregation is not known here, and a known replacement; None if it is known."""
    base = base_of(layer)
    definer = next(kind for kind in type(layer).__mro__ if "aggregate" in vars(kind))
    if definer is not base and _name_of(definer) not in _OWN_AGGREGATES:
        needed = "a message of its own alone, or an aggregate that calls scatter"
        return ("it has an aggregate of its own", needed) if reduction_of(layer) is None else None
    for module in layer.aggr_module.modules():
        if _name_of(type(module)) not in _BY_DESTINATION | _INSIDE or not is_from(
            type(module), type(module).__module__
        ):
            what = f"its aggregation holds {type(module).__name__}, which is not known here"
            return what, "one of PyG's sums, means, extrema, moments, quantiles or softmax"
    return None


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def reduction_of(layer: Any) -> str | None:
    """Return the name of a layer's sum, mean, maximum or minimum; None if its ``aggregate`` is another."""
    if type(layer).aggregate is not base_of(layer).aggregate:
        return _scattered(layer)
    if not isinstance(layer.aggr, str) or layer.aggr not in AGGREGATIONS:
        return None
    expected = getattr(sys.modules[f"{_AGGR}.basic"], AGGREGATIONS[layer.aggr][0])
    return layer.aggr if type(layer.aggr_module) is expected else None


def _scattered(layer: Any) -> str | None:
    """Return how an own ``aggregate`` reduces, if it only passes its arguments to a ``scatter``."""
    # A trace runs the method, which may keep things in attributes: they are compared and put back.
    held, names = dict(vars(layer)), list(inspect.signature(layer.aggregate).parameters)
    computed = frozenset(names) - {"ptr"}
    try:
        traced = traced_message("", layer, dict.fromkeys(names), computed, fx.Proxy, method="aggregate")
    except ir.NotLoweredError:
        return None
    finally:
        found = dict(vars(layer))
        vars(layer).clear()
        vars(layer).update(held)
    if found.keys() != held.keys() or any(found[key] is not value for key, value in held.items()):
        return None  # it keeps something
    *calls, output = [node for node in traced.graph.nodes if node.op != "placeholder"]
    target: Any = calls[0].target if len(calls) == 1 and output.args[0] is calls[0] else None
    reductions = _scatters().get(target)
    if reductions is None:
        return None
    call = inspect.signature(target).bind(*calls[0].args, **calls[0].kwargs)
    call.apply_defaults()
    found = call.arguments
    ends = [str(getattr(found[key], "target", found[key])) for key in ("src", "index", "dim_size")]
    fits = ends == [names[0], "index", "dim_size"] and found["dim"] in (0, layer.node_dim)
    reduction: str = found.get("reduce", reductions[0])
    return reduction if fits and found.get("out") is None and reduction in reductions else None


def _scatters() -> dict[Any, tuple[str, ...]]:
    """Return the functions that reduce by index, with the reductions that the kernels have, too."""
    theirs = names_in(TORCH_SCATTER)
    found: dict[Any, tuple[str, ...]] = {sys.modules["torch_geometric.utils"].scatter: tuple(AGGREGATIONS)}
    found |= {theirs[name]: kinds for name, kinds in SCATTERS.items() if name in theirs}
    return {inspect.unwrap(function): kinds for function, kinds in found.items()}  # a trace has replaced them


# ---- several aggregations side by side, such as PNA's, as reductions of one kernel

TIES_OF_MESSAGES: tuple[Ties, ...] = ("shared", "shared with zero")
"""Ways in which the kernel can share the gradient of equal messages."""


def several_reductions(
    layer: Any, shape: tuple[int, ...], refuse: Callable[[str], ir.NotLoweredError]
) -> SeveralReductions | None:
    """Return the reductions of messages that a layer's aggregation computes; None if it is of another kind.

    Its aggregation is made of PyG's own classes. ``shape`` is that of an edge's message.
    """
    module, scalers, averages = layer.aggr_module, ("identity",), None
    if type(layer).aggregate is not base_of(layer).aggregate:
        return None
    if type(module).__name__ == "DegreeScalerAggregation":
        scalers, averages, module = tuple(module.scaler), module, module.aggr
        learned = any(isinstance(one, nn.Parameter) for one in (averages.avg_deg_lin, averages.avg_deg_log))
        if learned or not set(SCALERS).issuperset(scalers):
            return None
    parts = [module]
    if type(module).__name__ == "MultiAggregation":
        parts = list(module.aggrs) if module.mode == "cat" or len(module.aggrs) == 1 else parts
    names = tuple(type(one).__name__.removesuffix("Aggregation").lower() for one in parts)
    inner = [one for part in parts for one in part.modules()]
    is_whole = not any(getattr(one, key, False) for one in inner for key in ("semi_grad", "_deterministic"))
    if not is_whole or len(set(names)) < len(names) or not set(REDUCTIONS_OF_SEVERAL).issuperset(names):
        return None
    simple: Any = sys.modules["torch_geometric.nn.conv.simple_conv"]
    extrema = [simple.SimpleConv(aggr=name) for name in names if name in ("max", "min")]
    ties: Ties = "shared"
    try:
        for one in extrema:
            ties = ties_of(one, refuse, known=(ties,) if one is not extrema[0] else TIES_OF_MESSAGES)
    except ir.NotLoweredError:  # no kernel shares their gradients so, or not all share them alike
        return None
    return SeveralReductions(names=names, shape=shape, ties=ties, scalers=scalers, averages=averages)


def temperature_of(layer: Any) -> float | nn.Parameter | None:
    """Return the temperature of a layer's softmax aggregation; None if the aggregation is another.

    A gradient without that of the softmax (``semi_grad``) is another.
    """
    module = layer.aggr_module
    if _name_of(type(module)) != f"{_AGGR}.basic.SoftmaxAggregation" or module.semi_grad:
        return None
    is_own = type(layer).aggregate is not base_of(layer).aggregate or getattr(module, "_deterministic", False)
    return module.t if type(module.t) in (int, float, nn.Parameter) and not is_own else None


# ---- how PyG's maximum divides its gradient among equal messages, found by running it on two of them, once
#
# It depends on the kernel that PyG chooses: ``torch.scatter_reduce`` shares the gradient, and counts its own
# initial zero where the maximum is 0; ``torch.sparse.mm`` and torch-scatter give all of it to one message.

_Shares = tuple[tuple[float, ...], tuple[float, ...]]
SHARES: dict[_Shares, Ties] = {
    ((1.0, 0.0), (1.0, 0.0)): "first",
    ((0.5, 0.5), (0.5, 0.5)): "shared",
    ((0.5, 0.5), (1 / 3, 1 / 3)): "shared with zero",
}
"""Kinds by the gradients of two equal messages: first of two ones, then of two zeros."""


def shares_of(largest: Callable[[Tensor], Tensor], like: Tensor) -> _Shares:
    """Return the gradients of the first two of equal messages, ones and then zeros.

    ``largest`` returns the maximum or minimum of the messages, as many as ``like`` has.
    """
    found = []
    for value in (1.0, 0.0):
        given = torch.full_like(like, value, requires_grad=True)
        (grad,) = torch.autograd.grad(largest(given).sum(), given)
        found.append(tuple(round(share * 6) / 6 for share in grad.reshape(len(like), -1)[:2, 0].tolist()))
    return found[0], found[1]


def ties_of(
    layer: Any,
    refuse: Callable[[str], ir.NotLoweredError],
    *,
    sparse: bool = False,
    known: Collection[Ties] = TIES,
    scatter: str | None = None,
) -> Ties:
    """Return how PyG divides the gradient of a layer's maximum or minimum among equal messages.

    ``known`` are the ways that the caller has an operation for. If ``sparse``, the edges are a sparse matrix.
    ``scatter`` is ``max`` or ``min``, where the layer calls PyG's ``scatter`` in place of its aggregation.

    Raises:
        NotLoweredError: no operation treats ties in this way, or PyG itself fails.
    """
    device = next((one.device for one in layer.parameters()), torch.device("cpu"))
    aggr = scatter or layer.aggr
    what, deterministic = f"with aggr={aggr!r}", not scatter and layer.aggr_module._deterministic
    try:
        seen = _probe(aggr, sparse, layer.fuse, deterministic, device)
    except (RuntimeError, NotImplementedError, ImportError) as error:
        raise refuse(f"{what} fails by itself here: {error}") from error
    found = SHARES.get(seen)
    in_race = found == "first" and device.type != "cpu"  # the first may win by chance
    if found is None or found not in known or in_race:
        shares = " and ".join(str(tuple(round(share, 3) for share in pair)) for pair in seen)
        raise refuse(f"{what} shares the gradient of two equal ones and two zeros as {shares}")
    return found


@functools.cache
def _probe(aggr: str, sparse: bool, fuse: bool, deterministic: bool, device: torch.device) -> _Shares:
    """Return the gradients of two equal messages to a third node: of ones, and of zeros.

    The message is that of PyG's ``SimpleConv``, the row itself, as SAGEConv's is.
    """
    simple: Any = sys.modules["torch_geometric.nn.conv.simple_conv"]
    with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng():
        layer = simple.SimpleConv(aggr=aggr)
        layer.fuse, layer.aggr_module._deterministic = fuse, deterministic
        edges = torch.tensor([[0, 1], [2, 2]], device=device)
        if sparse:
            edges = _sparse(edges.flip(0))
        return shares_of(lambda x: layer(x, edges)[2], torch.ones(3, 1, device=device))


def _sparse(places: Tensor) -> Tensor:
    with warnings.catch_warnings():  # PyTorch has warned the user already about the model's own sparse matrix
        warnings.simplefilter("ignore")
        ones = torch.ones(places.shape[1], device=places.device)
        return torch.sparse_coo_tensor(places, ones, (3, 3)).to_sparse_csr()


PYG, OWN = "torch_geometric.nn.conv", "graphbraid.nn"
"""Modules that hold the classes."""
WEIGHTED = ("x", "edge_index", "edge_weight")
"""Arguments of PyG's layers that read edge weights."""
SIZES: dict[str, Allowed] = {"in_channels": anything, "out_channels": count}
"""Numbers of columns, which most layers hold; the input's stays -1 in a lazily initialised layer."""
MESSAGE_PASSING: dict[str, Allowed] = {"aggr": one_of("add", "sum"), "flow": one_of("source_to_target")}
"""Attributes of PyG's ``MessagePassing``; its hooks must be empty, which is checked for every module."""
MESSAGE_PASSING |= {"node_dim": one_of(-2, 0), "fuse": flag, "_decomposed_layers": one_of(1)}
MESSAGE_PASSING |= {"_explain": one_of(None, False), "_edge_mask": one_of(None), "_loop_mask": one_of(None)}
_INSPECTED = ("inspector", "_apply_sigmoid", "_user_args", "_fused_user_args", "_edge_user_args")
MESSAGE_PASSING |= dict.fromkeys(_INSPECTED, anything)
_HOOKS = ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
MESSAGE_PASSING |= {f"_{name}_forward{pre}_hooks": anything for name in _HOOKS for pre in ("", "_pre")}


def is_hgt(layer: nn.Module) -> bool:
    """Return whether a layer is PyG's ``HGTConv`` or of a subclass of it."""
    return any(is_from(kind, f"{PYG}.hgt_conv") for kind in type(layer).__mro__)


def pyg_layer(
    attributes: Mapping[str, Allowed], children: tuple[str, ...] = (), **known: tuple[str, ...]
) -> Known:
    """Return the attributes that a layer of PyG may hold: its own and those of its base class."""
    return Known({**MESSAGE_PASSING, **attributes}, children=("aggr_module", *children), **known)


_Read = TypeVar("_Read", bound=Callable[..., str])


def reads_pyg(
    *classes: str,
    attributes: Mapping[str, Allowed],
    takes: tuple[str, ...] = WEIGHTED,
    weights: bool = True,
    **more: Any,
) -> Callable[[_Read], _Read]:
    """Enter a function as the reader of PyG's layers, each ``file.Class`` of ``torch_geometric.nn.conv``.

    ``attributes`` tests plain attributes besides those of PyG's base class. If not ``weights``, edges may
    have none: some layers use them only if they come in a sparse matrix. ``more`` are further fields of
    :class:`.Reader` and of :class:`.Known`.
    """
    known = {key: more.pop(key) for key in list(more) if key not in Reader.__dataclass_fields__}

    def enter(read: _Read) -> _Read:
        def checked(call: LayerCall) -> str:
            _check_aggregation(call)
            if call.edges.weighted and not weights:
                raise call.refuse("on edges with weights has no lowered form", "edges without weights")
            return read(call)

        names = (f"{PYG}.{name}" for name in classes)
        reads(*names, known=pyg_layer(attributes, **known), takes=takes, **more)(checked)
        return read

    return enter


def own_layer(
    attributes: Mapping[str, Allowed], children: tuple[str, ...], **known: tuple[str, ...]
) -> Known:
    """Return the attributes that a layer of graphbraid may hold. A bias of None is no parameter."""
    known = {"optional": ("bias",)} | known
    return Known({**attributes, "bias": one_of(None)}, children=children, **known)


def _check_aggregation(call: LayerCall) -> None:
    """Refuse a layer of PyG whose aggregation module is not the one that its ``aggr`` names."""
    module, (expected, _) = call.layer.aggr_module, AGGREGATIONS[call.layer.aggr]
    home = sys.modules.get("torch_geometric.nn.aggr.basic")
    if type(module) is not getattr(home, expected, None):
        raise call.refuse(f"with an aggregation of its own, {type(module).__name__}")
    check(f"{call.name}.aggr_module", module, Known({"_deterministic": flag}))


# ---- operations


def narrows(weight: Tensor) -> bool:
    """Return whether a weight makes rows narrower, so that they are aggregated after it."""
    out_channels, in_channels = weight.shape
    return bool(out_channels < in_channels)


def reduced(call: LayerCall, x: str, weight: nn.Parameter, *, weighted: bool = False) -> str:
    """Append the sum, mean or maximum over in-neighbours that a layer's ``aggr`` names, times a weight."""
    conv, writer, over = call.layer, call.writer, call.edges.relation
    if conv.aggr == "max":
        is_pyg = hasattr(conv, "aggr_module")
        ties: Ties = ties_of(conv, call.refuse, sparse=call.edges.sparse) if is_pyg else "shared"
        return writer.add(ir.Linear, writer.add(ir.Maximum, x, ties=ties, relation=over), weight=weight)
    kind = "mean" if conv.aggr == "mean" else "sum"
    adjacency = ir.AdjacencyMatrix(kind=kind, weighted=weighted, relation=over)
    return writer.add(ir.Aggregate, writer.add(ir.Linear, x, weight=weight), adjacency=adjacency)


def plus_own(call: LayerCall, out: str, key: str) -> str:
    """Add a linear map, without bias, of the destinations' own rows."""
    own = call.writer.add(ir.DestinationRows, call.own)
    linear = checked_linear(call, key, has_bias=False)
    return call.writer.sum(call.writer.add(ir.Linear, own, weight=linear.weight), out)


def loop_scale(call: LayerCall) -> float:
    """Return the factor of a node's own row in GIN's sum; 0 if :func:`plus_scaled` is to add the row."""
    eps = call.layer.eps
    if isinstance(eps, nn.Parameter):
        check_parameter(call.name, "eps", eps)
    return 0.0 if isinstance(eps, nn.Parameter) or call.several else 1.0 + float(eps)


def plus_scaled(call: LayerCall, x: str, out: str) -> str:
    """Add the destinations' own rows times ``1 + eps`` to GIN's sum, unless it has them by a constant."""
    eps, writer = call.layer.eps, call.writer
    if isinstance(eps, nn.Parameter):
        return writer.sum(writer.add(ir.Scale, writer.add(ir.DestinationRows, x), factor=eps), out)
    return writer.combine((1.0, out), (1.0 + float(eps), x)) if call.several else out
