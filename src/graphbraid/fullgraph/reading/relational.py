"""Readers of R-GCN's layer, PyG's and graphbraid's own: a sum of one aggregation for each relation."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, cast

from torch import nn

from graphbraid.fullgraph.program import AdjacencyMatrix, Aggregate, DestinationRows, Linear, View
from graphbraid.fullgraph.reading.calling import EDGE_TYPE
from graphbraid.fullgraph.reading.exact import Known, anything, count, flag, one_of
from graphbraid.fullgraph.reading.message_passing import OWN, SIZES, reads_pyg
from graphbraid.fullgraph.reading.reader import LayerCall, Writer, reader_of, reads
from graphbraid.graph.types import ONLY_NODE_TYPE, Relation, placed

MOST_READ = 64
"""Largest number of relations with edges: the time of lowering grows with the cube of the operations."""
_TAKES = ("x", "edge_index", "edge_type")


def _count_or_none(value: Any) -> bool:
    return value is None or count(value)


OWN_CONV = Known(
    {
        "in_channels": count,
        "out_channels": count,
        "num_relations": count,
        "num_bases": _count_or_none,
        "aggr": one_of("mean", "sum"),
        "comp": one_of(None),
        "root": one_of(None),
        "bias": one_of(None),
    },
    ("weight",),
    optional=("comp", "root", "bias"),
)
"""What graphbraid's own layer may hold."""


def sum_over_relations(
    writer: Writer, conv: Any, xs: Sequence[str], relations: Iterable[tuple[int, Relation]], node_type: int
) -> str | None:
    """Append the sum of the relations into a node type, of the type's own rows, and the bias.

    Args:
        writer: collects the operations.
        conv: a checked layer with the parameters of PyG's ``RGCNConv``.
        xs: names of the values of each type's rows.
        relations: the relations, each with the number that it has in the layer.
        node_type: number of the node type.

    Returns:
        The name of the result; None if nothing is to be added.
    """
    total = None
    if conv.root is not None:
        total = writer.add(
            Linear, writer.add(DestinationRows, xs[node_type]), weight=conv.root, view=View(turned=True)
        )
    for number, relation in relations:
        if relation.destination != node_type:
            continue
        rows = _mapped(writer, conv, xs[relation.source], number)
        kind = "mean" if conv.aggr == "mean" else "sum"
        summed = writer.add(Aggregate, rows, adjacency=AdjacencyMatrix(kind=kind, relation=relation))
        total = summed if total is None else writer.sum(summed, total)
    return None if total is None else writer.epilogue(total, bias=conv.bias)


def _mapped(writer: Writer, conv: Any, x: str, number: int) -> str:
    """Append the product of rows with a relation's matrix, which may have blocks on its diagonal alone."""
    if conv.weight.ndim == 3:
        view = View(at=(number,), turned=True)
        return writer.add(Linear, x, weight=conv.weight, view=view, mixed=conv.comp)
    _, blocks, width, _ = conv.weight.shape
    parts = [writer.columns(x, block * width, (block + 1) * width) for block in range(blocks)]
    views = [View(at=(number, block), turned=True) for block in range(blocks)]
    made = (writer.add(Linear, x, weight=conv.weight, view=v) for x, v in zip(parts, views, strict=True))
    return writer.beside(*made)


@reads_pyg(
    "rgcn_conv.RGCNConv",
    "rgcn_conv.FastRGCNConv",
    attributes=SIZES
    | {
        "aggr": one_of("mean", "add", "sum"),
        "num_relations": count,
        "num_bases": _count_or_none,
        "num_blocks": _count_or_none,
        "is_sorted": flag,
        "in_channels_l": anything,
        "_use_segment_matmul_heuristic_output": anything,
    },
    parameters=("weight", "comp", "root", "bias"),
    takes=_TAKES,
)
def _read_pyg(call: LayerCall) -> str:
    conv = call.layer
    if _adds_up_means(conv):
        raise call.refuse(
            "runs pyg_lib's segment_matmul, whose mean is over the edges of all relations together",
            "torch_geometric.backend.use_segment_matmul = False",
        )
    return _read(call)


def relations_of_layers(model: nn.Module) -> tuple[Relation, ...]:
    """Return a relation for each number of ``edge_type`` that a model's layers know; empty without such."""
    readers = ((layer, reader_of(type(layer))) for layer in model.modules())
    of_layers = (layer for layer, reader in readers if reader is not None and EDGE_TYPE in reader.takes)
    most = max((int(cast("Any", layer).num_relations) for layer in of_layers), default=0)
    names = [(ONLY_NODE_TYPE, f"relation {number}", ONLY_NODE_TYPE) for number in range(most)]
    return tuple(placed([0], [ONLY_NODE_TYPE], names))


def _adds_up_means(conv: Any) -> bool:
    """Return whether PyG takes a path on which the mean is not over the edges of each relation."""
    typing, backend = (sys.modules.get(f"torch_geometric.{name}") for name in ("typing", "backend"))
    may_take_it = getattr(typing, "WITH_SEGMM", False) and type(conv).__name__ == "RGCNConv"
    wanted = getattr(backend, "use_segment_matmul", None)
    is_plain = conv.num_bases is None and conv.num_blocks is None
    return bool(may_take_it and wanted is not False and is_plain and conv.aggr == "mean")


@reads(f"{OWN}.rgcn.RGCNConv", f"{OWN}.encoders.BasisRGCNConv", known=OWN_CONV, takes=_TAKES)
def _read(call: LayerCall) -> str:
    conv, relations = call.layer, call.edges.relations
    if len(relations) > MOST_READ:
        what = f"over {len(relations)} relations has no lowered form: reading takes up to {MOST_READ}"
        raise call.refuse(what, "mini-batches (mode='sampled')")
    if any(relation.number >= conv.num_relations for relation in relations):
        last = max(relation.number for relation in relations)
        raise call.refuse(f"has {conv.num_relations} relations, and edge_type goes up to {last}")
    numbered = [(relation.number, relation) for relation in relations]
    out = sum_over_relations(call.writer, conv, [call.x], numbered, 0)
    if out is None:
        raise call.refuse("without edges and root weight has no lowered form", "root_weight=True")
    return out
