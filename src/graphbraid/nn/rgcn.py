"""RGCNConv, the layer of relational graph convolutional networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from graphbraid.arguments import as_count, check_choice, check_tensor
from graphbraid.errors import DataError
from graphbraid.graph.csc import Csc, coo_to_csc, index_dtype
from graphbraid.graph.scans import first_out_of_range, tracing
from graphbraid.nn.adjacency import MadeOfTensors, as_csc
from graphbraid.nn.linear import as_widths, glorot
from graphbraid.nn.pyg_layers import pyg_layer
from graphbraid.ops.aggregation import Aggregation
from graphbraid.ops.library import opaque
from graphbraid.ops.linear import dense_linear
from graphbraid.ops.relations import Relations, relation_columns, relation_sums
from graphbraid.signatures import typed

AGGREGATIONS = ("mean", "sum", "add")
MOST_RELATIONS = 1 << 16

_ADJACENCIES = MadeOfTensors()


@typed
class RGCNConv(nn.Module):
    r"""Relational layer of "Modeling Relational Data with Graph Convolutional Networks".

    .. math:: x'_v = W_0 x_v + b + \sum_r \frac{1}{|N_r(v)|} \sum_{u \in N_r(v)} W_r x_u

    Equal to PyTorch Geometric's layer of the same name, with the same parameters (``weight``, ``comp``,
    ``root``, ``bias``); relations are aggregated without a temporary for each
    (:mod:`graphbraid.ops.relations`).

    Args:
        in_channels: width of the input.
        out_channels: width of the output.
        num_relations: number of relations.
        num_bases: number of matrices that the weights of all relations are mixed from. If None, each relation
            has its own.
        aggr: ``"mean"`` or ``"sum"`` over the in-neighbours of a relation.
        root_weight: whether to add the node's own transformed row.
        bias: whether to learn an additive bias.

    Raises:
        ConfigError: an option is invalid.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_relations: int,
        *,
        num_bases: int | None = None,
        aggr: str = "mean",
        root_weight: bool = True,
        bias: bool = True,
    ):
        super().__init__()
        self.in_channels, self.out_channels = as_widths(in_channels, out_channels)
        self.num_relations = as_count(num_relations, "num_relations", least=1, most=MOST_RELATIONS)
        check_choice(aggr, "aggr", AGGREGATIONS)
        self.aggr, self.num_bases = "mean" if aggr == "mean" else "sum", num_bases
        count = num_relations
        if num_bases is not None:
            count = as_count(num_bases, "num_bases", least=1, most=MOST_RELATIONS)
        self.weight = nn.Parameter(torch.empty(count, in_channels, out_channels))
        self.comp = None if num_bases is None else nn.Parameter(torch.empty(num_relations, count))
        self.root = nn.Parameter(torch.empty(in_channels, out_channels)) if root_weight else None
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew, as PyG's layer does."""
        for weight in (self.weight, self.comp, self.root):
            glorot(weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def to_pyg(self) -> nn.Module:
        """Return PyG's ``RGCNConv`` with a copy of the weights."""
        same = ("in_channels", "out_channels", "num_relations", "num_bases", "aggr")
        return pyg_layer(
            self, *same, kind="RGCNConv", root_weight=self.root is not None, bias=self.bias is not None
        )

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        """Apply the layer to nodes of one type.

        Args:
            x: ``(num_nodes, in_channels)`` rows.
            edge_index: ``(2, num_edges)`` integers: sources and destinations.
            edge_type: ``(num_edges,)`` integers: the relation of each edge, in ``[0, num_relations)``.

        Raises:
            DataError: ``x``, an id or a relation does not fit.
        """
        check_tensor(x, "x", ndim=2, floating=True)
        if x.shape[1] != self.in_channels:
            raise DataError(f"x must have {self.in_channels} columns (in_channels); got {tuple(x.shape)}")
        count = self.num_relations
        cscs = relations_of(edge_index, edge_type, x.shape[0], count)
        relations = self.relations(cscs, [0] * count, [0] * count, [x.shape[0]])
        (out,) = self.combine([x], relations, range(count))
        return out if self.bias is None else out + self.bias

    def relations(
        self, cscs: Sequence[Csc], sources: Sequence[int], destinations: Sequence[int], num_dst: Sequence[int]
    ) -> Relations:
        """Return the layer's aggregations over adjacencies between numbered types."""
        return Relations(
            hows=tuple(Aggregation(csc=csc, mean=self.aggr == "mean") for csc in cscs),
            sources=tuple(sources),
            destinations=tuple(destinations),
            num_dst=tuple(num_dst),
        )

    def combine(self, xs: Sequence[Tensor], relations: Relations, numbers: Sequence[int]) -> list[Tensor]:
        """Compute the layer without its bias.

        Args:
            xs: ``(num_rows, in_channels)`` for each type.
            relations: the layer's aggregations between the types.
            numbers: for each aggregation, the number of its relation in the layer.

        Returns:
            For each type ``(num_dst, out_channels)``.
        """
        weights = self.weight if self.comp is None else torch.einsum("rb,bio->rio", self.comp, self.weight)
        own = [weights[number] for number in numbers]
        if self.out_channels < self.in_channels:
            return self._transform_first(xs, relations, own)
        return self._aggregate_first(xs, relations, own)

    def _aggregate_first(
        self, xs: Sequence[Tensor], relations: Relations, weights: Sequence[Tensor]
    ) -> list[Tensor]:
        columns = relation_columns(relations, xs, own=self.root is not None)
        outs = []
        for number, rows in enumerate(columns):
            stacked = [weights[relation] for relation in relations.into(number)]
            stacked += [] if self.root is None else [self.root]
            outs.append(_product(rows, torch.cat(stacked)) if stacked else self._nothing(rows))
        return outs

    def _transform_first(
        self, xs: Sequence[Tensor], relations: Relations, weights: Sequence[Tensor]
    ) -> list[Tensor]:
        hs, addends = [], []
        for number, x in enumerate(xs):
            side_by_side = [weights[relation] for relation in relations.of_source(number)]
            hs.append(_product(x, torch.cat(side_by_side, 1)) if side_by_side else x[:, :0])
            rows = x[: relations.num_dst[number]]
            addends.append(self._nothing(rows) if self.root is None else _product(rows, self.root))
        dtype = torch.promote_types(hs[0].dtype, addends[0].dtype)
        return list(
            relation_sums(relations, [h.to(dtype) for h in hs], [addend.to(dtype) for addend in addends])
        )

    def _nothing(self, rows: Tensor) -> Tensor:
        return rows.new_zeros(rows.shape[0], self.out_channels)

    def extra_repr(self) -> str:
        """Return channels and relations, as shown by ``print``."""
        return f"{self.in_channels}, {self.out_channels}, num_relations={self.num_relations}"


def _product(x: Tensor, weight: Tensor) -> Tensor:
    return dense_linear(x, weight.t())


def relations_of(
    edge_index: Tensor, edge_type: Tensor, num_nodes: int, num_relations: int
) -> tuple[Csc, ...]:
    """Return the adjacency of each relation of an edge list, cached with its tensors, or raise DataError."""
    as_csc(edge_index, num_nodes)  # checks the list, and keeps what it has checked
    check_edge_type(edge_type, edge_index.shape[1])
    if tracing():
        arrays = iter(_arrays_of(edge_index, edge_type, num_nodes, num_relations))
        return tuple(Csc(next(arrays), next(arrays), num_nodes, trusted=True) for _ in range(num_relations))
    sizes = num_nodes, num_relations
    return _ADJACENCIES.get([edge_type, edge_index], sizes, lambda: _made(edge_index, edge_type, *sizes))


def _shapes(a: Any) -> list[Tensor]:
    found = []
    for _ in range(a.num_relations):
        size = torch.library.get_ctx().new_dynamic_size()
        indices = a.edge_index.new_empty(size, dtype=index_dtype(a.num_nodes))
        found += [a.edge_index.new_empty(a.num_nodes + 1, dtype=torch.int64), indices]
    return found


@opaque("csc_of_relations", _shapes)
def _arrays_of(
    edge_index: Tensor, edge_type: Tensor, num_nodes: int, num_relations: int
) -> tuple[Tensor, ...]:
    made = _made(edge_index, edge_type, num_nodes, num_relations)
    return tuple(array for csc in made for array in (csc.indptr, csc.indices))


def _made(edge_index: Tensor, edge_type: Tensor, num_nodes: int, num_relations: int) -> tuple[Csc, ...]:
    check_relations(edge_type, num_relations)
    order = edge_type.long().argsort(stable=True)
    counts = torch.bincount(edge_type.long(), minlength=num_relations).tolist()
    src, dst = edge_index.detach()[:, order].long().unbind()
    lists = zip(torch.split(src, counts), torch.split(dst, counts), strict=True)
    return tuple(coo_to_csc(s, d, num_nodes, num_nodes, keep_perm=False)[0] for s, d in lists)


def check_edge_type(edge_type: Tensor, num_edges: int) -> None:
    """Raise DataError unless ``edge_type`` is a vector of integers, one for each edge."""
    check_tensor(edge_type, "edge_type", ndim=1)
    if edge_type.is_floating_point() or edge_type.dtype == torch.bool:
        raise DataError(f"edge_type must be integers; got {edge_type.dtype}")
    if edge_type.shape[0] != num_edges:
        raise DataError(f"edge_type must have one relation per edge ({num_edges}); got {edge_type.shape[0]}")


def check_relations(edge_type: Tensor, num_relations: int) -> None:
    """Raise DataError unless all relations are in ``[0, num_relations)``."""
    at = first_out_of_range(edge_type.long(), num_relations)
    if at >= 0:
        raise DataError(
            f"edge_type must be in [0, {num_relations}) (num_relations); edge_type[{at}] is "
            f"{int(edge_type[at])}"
        )
