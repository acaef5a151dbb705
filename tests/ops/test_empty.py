"""Operators on matrices without columns, graphs without edges and graphs without nodes, both ways."""

import pytest
import torch

from graphbraid import Csc, Graph, ops
from graphbraid.errors import DataError
from graphbraid.graph.sparse_features import SparseFeatures

GRAPHS = {
    "edges": Graph.from_edge_index(torch.tensor([[0, 1, 2, 0], [1, 2, 0, 0]]), 3).csc,
    "no edges": Csc(torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), 3),
    "no nodes": Csc(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), 0),
}
OPERATORS = {
    "spmm": lambda csc, rows: ops.spmm(csc, rows(csc.num_src), weight=rows(csc.num_edges)[:, :0].sum(1)),
    "spmm max": lambda csc, rows: ops.spmm(csc, rows(csc.num_src), "max"),
    "edge_softmax": lambda csc, rows: ops.edge_softmax(csc, rows(csc.num_edges)),
    "sddmm": lambda csc, rows: ops.sddmm(csc, rows(csc.num_dst), rows(csc.num_src)),
    "bias_act_dropout": lambda csc, rows: ops.bias_act_dropout(
        rows(csc.num_src), rows(1).squeeze(0), "relu", 0.5
    ),
    "layer_norm": lambda csc, rows: ops.layer_norm(rows(csc.num_src), None, None),
    "dense_linear": lambda csc, rows: ops.dense_linear(rows(csc.num_src), rows(2)),
    "aggregate_linear": lambda csc, rows: ops.aggregate_linear(
        ops.Aggregation(csc=csc), rows(csc.num_src), rows(2), rows(2)
    ),
    "aggregate_linear to nothing": lambda csc, rows: ops.aggregate_linear(
        ops.Aggregation(csc=csc), rows(csc.num_src), rows(0), rows(0)
    ),
    "aggregate_linear of sparse to nothing": lambda csc, rows: ops.aggregate_linear(
        ops.Aggregation(csc=csc), SparseFeatures.from_dense(rows(csc.num_src).detach()), rows(0), rows(0)
    ),
}


DTYPES = (torch.float32, torch.float64)
# Sparse features hold float32 at most.
KINDS = [
    (name, dtype) for name in OPERATORS for dtype in DTYPES if "sparse" not in name or dtype != DTYPES[1]
]


@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(("operator", "dtype"), KINDS)
def test_nothing_in_gives_nothing_or_zeros_both_ways(operator, graph, dtype, width):
    leaves = []

    def rows(count):
        leaves.append(torch.rand(count, width).to(dtype).requires_grad_())
        return leaves[-1]

    out = OPERATORS[operator](GRAPHS[graph], rows)
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert all(leaf.grad is None or leaf.grad.shape == leaf.shape for leaf in leaves)
    if graph == "no edges" and "spmm" in operator:
        assert not out.any()


@pytest.mark.parametrize("graph", GRAPHS)
def test_attention_needs_a_channel(graph):
    csc = GRAPHS[graph]
    logits = torch.zeros(csc.num_src, 2)
    with pytest.raises(DataError, match="has no channels"):
        ops.gat_attention(csc, torch.zeros(csc.num_src, 0), logits, logits)
    with pytest.raises(DataError, match="must be"):
        ops.gatv2_attention(csc, torch.zeros(csc.num_src, 0), torch.zeros(csc.num_src, 0), torch.zeros(2, 0))


def test_aggregations_write_only_into_rows_that_fit():
    csc, x = GRAPHS["edges"], torch.rand(3, 4)
    how = ops.Aggregation(csc=csc)
    for out in (torch.empty(4, 3).t(), torch.empty(3, 8)[:, ::2], torch.empty(1, 4).expand(3, 4)):
        with pytest.raises(DataError, match="out must"):
            how.forward(x, out=out)
        with pytest.raises(DataError, match="out must"):
            how.backward(x, out=out)
    for out in (torch.empty(3, 5), torch.empty(3, 4, dtype=torch.float64), torch.empty(2, 4)):
        with pytest.raises(DataError, match="out must"):
            how.forward(x, out=out)
    wide = torch.empty(3, 8)
    assert torch.equal(how.forward(x, out=wide[:, :4]), how.forward(x))
