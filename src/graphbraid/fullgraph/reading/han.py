"""Reading PyG's ``HANConv``: its forward is traced, and its attention among relations stays one call.

The attention of each relation is GAT's. The results of all relations into a type are then weighed by means
over all rows of the type: PyTorch runs this part as PyG has it, and needs all rows.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor, fx, nn

from graphbraid.fullgraph import program as ir
from graphbraid.fullgraph.reading.aggregations import PYG
from graphbraid.fullgraph.reading.exact import check_parameter, count, is_from, number, probability
from graphbraid.fullgraph.reading.reader import NodeRows, Writer, as_linear
from graphbraid.graph.types import Relation

_HOME = f"{PYG}.han_conv"


class RelationWeights(nn.Module):
    """The attention among relations of one ``HANConv``: the target of its call in a trace."""

    def __init__(self, layer: nn.Module, group: Any) -> None:
        super().__init__()
        self.q, self.k_lin, self._group = layer._parameters["q"], layer._modules["k_lin"], group

    def forward(self, *rows: Tensor) -> Tensor:
        """Return the weighted sum of the rows that each relation gives."""
        out: Tensor = self._group([*rows], self.q, self.k_lin)[0]
        return out

    @property
    def __name__(self) -> str:
        return "HANConv's attention among relations"


def is_han(layer: nn.Module) -> bool:
    """Return whether a layer is PyG's ``HANConv`` itself."""
    return type(layer).__name__ == "HANConv" and is_from(type(layer), _HOME)


@contextmanager
def recorded_weights(model: nn.Module) -> Iterator[None]:
    """Record the attention among relations of each ``HANConv`` as one call, in a trace of this thread."""
    layers = {id(one._modules.get("k_lin")): one for one in model.modules() if is_han(one)}
    home: Any = sys.modules.get(_HOME)
    group, thread = getattr(home, "group", None), threading.get_ident()
    if not layers or group is None or getattr(group, "__module__", "") != _HOME:
        yield
        return

    def record(xs: Sequence[Any], q: Any, k_lin: nn.Module) -> Any:
        tracer = next((one.tracer for one in xs if isinstance(one, fx.Proxy)), None)
        layer = layers.get(id(k_lin))
        if threading.get_ident() != thread or tracer is None or layer is None:
            return group(xs, q, k_lin)
        made: Any = tracer.create_proxy("call_function", RelationWeights(layer, group), tuple(xs), {})
        return made[0], made[1]

    home.group = record
    try:
        yield
    finally:
        home.group = group


def ends_of(node: fx.Node) -> list[tuple[Any, str]]:
    """Return the heads and the vector's name that the logits of sources, and of destinations, are made of."""
    found = []
    for key in ("alpha_j", "alpha_i"):
        products: Any = node.kwargs[key]
        for _ in range(2):  # made a matrix, which is the sum by head of these
            products = products.args[0]
        heads, vector = products.args
        found.append((heads, str(vector.target)))
    return found


def attention_of_relation(
    writer: Writer, layer: Any, ends: Sequence[tuple[str, nn.Parameter]], relation: Relation
) -> str:
    """Append a relation's attention: GAT's, with the logits of the rows and vectors of its two ends.

    ``ends`` has, of the sources and of the destinations, the rows and the ``(1, heads, channels)`` vector.
    """
    rows, vectors = writer.on_one_level(*(one for one, _ in ends)), tuple(one for _, one in ends)
    for vector in vectors:
        check_parameter("HANConv", "its vectors", vector)
    if not (count(layer.heads) and number(layer.negative_slope) and probability(layer.dropout)):
        raise ir.NotLoweredError("HANConv", "its heads, slope or dropout are no plain numbers")
    channels = writer.width(rows[0]) // layer.heads
    if any(one.shape != (1, layer.heads, channels) for one in vectors):
        raise ir.NotLoweredError("HANConv", "its vectors have other heads or channels than its rows")
    return writer.add(
        ir.Attention,
        rows[0],
        writer.add(ir.DestinationRows, rows[1]),
        kind="gat",
        heads=layer.heads,
        channels=channels,
        concat=True,
        negative_slope=layer.negative_slope,
        self_loops=False,
        dropout=float(layer.dropout) if layer.training else 0.0,
        vectors=vectors,
        own_rows=True,
        relation=relation,
    )


def read_weights(writer: Writer, of: RelationWeights, rows: Sequence[str]) -> tuple[NodeRows]:
    """Append the call; the weights themselves have no form."""
    if as_linear("k_lin", cast("nn.Module", of.k_lin)) is None:
        raise ir.NotLoweredError("k_lin", "it is no plain linear layer", "Linear")
    values = writer.on_one_level(*rows)
    if len({(writer.width(one), writer.node_type(one)) for one in values}) > 1:
        raise ir.NotLoweredError("HANConv", "it weighs rows of several widths or types")
    places = tuple(map(ir.FromInput, range(len(values))))
    call = ir.WrittenCall(target=of, args=places, kwargs={}, name=of.__name__)
    width = writer.width(values[0])
    return (NodeRows(writer.add(ir.Break, *values, calls=(call,), width_out=width, couples_rows=True)),)
