"""What full-graph training on a GPU is compared with: PyG, and plain PyTorch where PyG is not installed.

``scatter`` gathers a row per edge and adds them up by ``index_add_``: what PyG's layers do with an
``edge_index``. ``torch.sparse`` multiplies by a CSR matrix, as they do with a sparse adjacency.
``pyg-compiled`` is ``pyg`` under ``torch.compile``.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphbraid import Graph
from graphbraid.fullgraph.step.device_copies import csr_of
from graphbraid.nn.gcn import gcn_norm
from graphbraid.ops.aggregation import Aggregation

Forward = Callable[[], Tensor]
KINDS = ("gcn", "sage", "gin", "gat")
COMPILED = "pyg-compiled"


def has_pyg() -> bool:
    """Whether PyTorch Geometric is installed."""
    return importlib.util.find_spec("torch_geometric") is not None


def names(kind: str) -> list[str]:
    """The peers of a model, by name."""
    plain = [] if kind == "gat" else ["scatter", "torch.sparse"]
    return (["pyg", "pyg-csr", COMPILED] if has_pyg() else []) + plain


def make(name: str, model: nn.Module, graph: Graph, place: torch.device) -> Forward:
    """The outputs of all nodes by a peer, from the parameters of ``model`` (of :mod:`graphbraid.nn`).

    Args:
        name: of :func:`names`.
        model: its parameters are used, and trained, in place.
        graph: on the CPU; what the peer needs of it is copied.
        place: where to run.
    """
    x = graph.dense_x().float().to(place)
    if name.startswith("pyg"):
        forward = _pyg(model, graph, x, csr=name == "pyg-csr")
        if name != COMPILED:
            return forward
        with torch.no_grad():
            forward()  # GCNConv keeps the normalised edges: compiled code need not
        torch._dynamo.reset()
        return torch.compile(forward, backend="inductor" if place.type == "cuda" else "eager")
    return _plain(model, graph, x, csr=name == "torch.sparse")


def _pyg(model: nn.Module, graph: Graph, x: Tensor, *, csr: bool) -> Forward:
    from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

    kind, convs = type(model.convs[0]).__name__, []
    for ours in model.convs:
        ends = () if kind == "GINConv" else (ours.in_channels, ours.out_channels)
        if kind == "GCNConv":
            conv = GCNConv(*ends, cached=not csr, normalize=not csr)
        elif kind == "SAGEConv":
            conv = SAGEConv(*ends)
        elif kind == "GINConv":
            convs.append(GINConv(nn.Identity(), eps=ours.initial_eps).to(x.device))
            convs[-1].nn = nn.Sequential(*map(_plain_layer, ours.nn))  # PyG draws what it is given anew
            continue
        else:
            conv = GATConv(*ends, heads=ours.heads, concat=ours.concat)
        conv = conv.to(x.device)
        for key, parameter in ours.named_parameters():  # the same parameters, not copies
            owner = conv.get_submodule(key.rpartition(".")[0])
            assert getattr(owner, key.rpartition(".")[2]).shape == parameter.shape, key
            setattr(owner, key.rpartition(".")[2], parameter)
        convs.append(conv)
    how = _whole(kind, graph) if kind == "GCNConv" else Aggregation(csc=graph.csc)  # the layer divides
    adjacency = (csr_of(how) if csr else graph.to_edge_index()).to(x.device)

    def forward() -> Tensor:
        rows = x
        for i, conv in enumerate(convs):
            rows = conv(F.relu(rows) if i else rows, adjacency)
        return rows

    return forward


def _plain_layer(ours: nn.Module) -> nn.Module:
    """torch's own layer with the same parameters."""
    if not isinstance(ours, nn.Linear):
        return ours
    plain = nn.Linear(ours.in_features, ours.out_features, device="meta")
    plain.weight, plain.bias = ours.weight, ours.bias
    return plain


def _plain(model: nn.Module, graph: Graph, x: Tensor, *, csr: bool) -> Forward:
    kind = type(model.convs[0]).__name__
    matrix = csr_of(_whole(kind, graph)).to(x.device)
    aggregate = _by_matrix(matrix) if csr else _by_scatter(matrix)

    def forward() -> Tensor:
        rows = x
        for i, conv in enumerate(model.convs):
            rows = F.relu(rows) if i else rows
            if kind == "GCNConv":
                rows = aggregate(conv.lin(rows)) + conv.bias
            elif kind == "GINConv":
                rows = conv.nn(aggregate(rows) + (1 + conv.initial_eps) * rows)
            else:
                rows = conv.lin_l(aggregate(rows)) + conv.lin_r(rows)
        return rows

    return forward


def _whole(kind: str, graph: Graph) -> Aggregation:
    if kind == "GCNConv":
        return gcn_norm(graph.csc)
    return Aggregation(csc=graph.csc, mean=kind == "SAGEConv")


def _by_matrix(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transposed = matrix.to_sparse_csc().t()

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows):  # noqa: ARG004
            return matrix @ rows

        @staticmethod
        def backward(ctx, grad):  # noqa: ARG004
            return transposed @ grad

    return Product.apply


def _by_scatter(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    src, weight = matrix.col_indices().long(), matrix.values()[:, None]
    num_dst = matrix.shape[0]
    dst = torch.repeat_interleave(
        torch.arange(num_dst, device=src.device), matrix.crow_indices().long().diff()
    )

    def aggregate(rows: Tensor) -> Tensor:
        messages = rows.index_select(0, src) * weight
        return messages.new_zeros(num_dst, rows.shape[1]).index_add_(0, dst, messages)

    return aggregate
