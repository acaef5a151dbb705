"""Every exported operator refuses tensors that do not fit, by graphbraid's own errors that name them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.ops.graphs import skewed
from torch import Tensor

from graphbraid import Csc, Graph, SparseFeatures, ops
from graphbraid.errors import ConfigError, DataError

CSC: Csc = skewed()
NUM_SRC, NUM_DST, NUM_EDGES = CSC.num_src, CSC.num_dst, CSC.num_edges
HOW = ops.Aggregation(csc=CSC)
X = torch.rand(NUM_SRC, 4)
SPARSE = SparseFeatures.from_dense(torch.eye(4))

OPERATORS: dict[str, tuple[Callable[..., Any], dict[str, Tensor]]] = {
    "spmm": (lambda x, weight: ops.spmm(CSC, x, weight=weight), {"x": X, "weight": torch.rand(NUM_EDGES)}),
    "spmm max": (
        lambda x, weight: ops.spmm(CSC, x, "max", weight=weight),
        {"x": X, "weight": torch.rand(NUM_EDGES)},
    ),
    "aggregate": (
        lambda x, weight, addend: ops.aggregate(HOW, x, weight=weight, addend=addend),
        {"x": X, "weight": torch.rand(NUM_EDGES), "addend": torch.rand(NUM_DST, 4)},
    ),
    "aggregate_linear": (
        lambda x, weight, root_weight: ops.aggregate_linear(HOW, x, weight, root_weight),
        {"x": X, "weight": torch.rand(3, 4), "root_weight": torch.rand(3, 4)},
    ),
    "Aggregation.forward": (HOW.forward, {"x": X}),
    "sddmm": (
        lambda dst_rows, src_rows: ops.sddmm(CSC, dst_rows, src_rows),
        {"dst_rows": torch.rand(NUM_DST, 4), "src_rows": X},
    ),
    "edge_softmax": (lambda logits: ops.edge_softmax(CSC, logits), {"logits": torch.rand(NUM_EDGES, 2)}),
    "gat_attention": (
        lambda x, src_logit, dst_logit: ops.gat_attention(CSC, x, src_logit, dst_logit),
        {"x": X, "src_logit": torch.rand(NUM_SRC, 2), "dst_logit": torch.rand(NUM_DST, 2)},
    ),
    "gatv2_attention": (
        lambda x_src, x_dst, att: ops.gatv2_attention(CSC, x_src, x_dst, att),
        {"x_src": X, "x_dst": torch.rand(NUM_DST, 4), "att": torch.rand(2, 2)},
    ),
    "dense_linear": (ops.dense_linear, {"weight": torch.rand(3, 4), "bias": torch.rand(3)}),
    "bias_act_dropout": (ops.bias_act_dropout, {"x": X, "bias": torch.rand(4)}),
    "layer_norm": (ops.layer_norm, {"weight": torch.rand(4), "bias": torch.rand(4)}),
    "batch_norm": (ops.batch_norm, {"weight": torch.rand(4), "bias": torch.rand(4)}),
    "sparse_linear": (lambda weight: ops.sparse_linear(SPARSE, weight), {"weight": torch.rand(3, 4)}),
    "gather_rows": (ops.gather_rows, {"ids": torch.tensor([0, 1])}),
}
# Arguments whose number of rows is the call's own to choose are given here, and spoiled in other ways only.
FREE_ROWS: dict[str, dict[str, Tensor]] = {
    "dense_linear": {"x": X},
    "layer_norm": {"x": X},
    "batch_norm": {"x": X},
    "gather_rows": {"x": X},
}
ANY_ROWS = {
    ("aggregate", "addend"),
    ("bias_act_dropout", "x"),
    ("gather_rows", "ids"),
    ("gatv2_attention", "att"),
    ("sparse_linear", "weight"),
}
ANY_DTYPE = {("gather_rows", "x")}
# Converted exactly from any floating-point dtype.
COEFFICIENTS = {
    "spmm",
    "spmm max",
    "aggregate",
    "gat_attention",
    "layer_norm",
    "batch_norm",
    "bias_act_dropout",
}
ANY_SHAPE = {("dense_linear", "x", "cube")}
SPOILED: dict[str, Callable[[Tensor], Tensor]] = {
    "0-d": lambda t: t.flatten()[0],
    "cube": lambda t: t.reshape(1, 1, *t.shape),
    "complex": lambda t: t.to(torch.complex64),
    "bool": lambda t: t.bool(),
    "uint8": lambda t: t.to(torch.uint8),
    "float8": lambda t: t.float().to(torch.float8_e4m3fn),
    "sparse": lambda t: t.to_sparse(),
    "meta": lambda t: t.to("meta"),
}
DTYPES = {"complex", "bool", "uint8", "float8"}


def cases():
    for name, (call, tensors) in OPERATORS.items():
        free = FREE_ROWS.get(name, {})
        sound = {**free, **tensors}
        for argument in sound:
            ways = {
                way: spoil
                for way, spoil in SPOILED.items()
                if not (way in DTYPES and (name, argument) in ANY_DTYPE)
            }
            if (name in COEFFICIENTS and argument != "x") or argument == "att":
                del ways["float8"]
            if argument in tensors and (name, argument) not in ANY_ROWS:
                ways["a row less"] = lambda t: t[:-1]
                ways["a row more"] = lambda t: torch.cat([t, t[-1:]])
            for way, spoil in ways.items():
                if (name, argument, way) not in ANY_SHAPE:
                    yield pytest.param(call, sound, argument, spoil, id=f"{name}-{argument}-{way}")


@pytest.mark.parametrize(("call", "sound", "argument", "spoil"), [*cases()])
def test_a_tensor_that_does_not_fit_is_refused(call, sound, argument, spoil):
    call(**sound)
    with pytest.raises(DataError) as error:
        call(**{**sound, argument: spoil(sound[argument])})
    assert argument.removeprefix("src_").removeprefix("dst_") in str(error.value)


@pytest.mark.parametrize(
    ("call", "sound", "argument"),
    [
        pytest.param(call, {**FREE_ROWS.get(name, {}), **tensors}, argument, id=f"{name}-{argument}")
        for name, (call, tensors) in OPERATORS.items()
        for argument, tensor in {**FREE_ROWS.get(name, {}), **tensors}.items()
        if tensor.is_floating_point()
    ],
)
def test_a_lazily_negated_tensor_is_read_as_what_it_shows_or_refused(call, sound, argument):
    lazy = {**sound, argument: torch._neg_view(sound[argument])}
    try:
        found = call(**lazy)
    except DataError as error:
        assert argument.removeprefix("src_").removeprefix("dst_") in str(error)
    else:
        expected = call(**{**sound, argument: -sound[argument]})
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.spmm(CSC, X, "min"), "reduce must be one of 'sum', 'mean', 'max'; got 'min'"),
        (lambda: ops.spmm(CSC, X, ["sum"]), "reduce must be"),
        (lambda: ops.bias_act_dropout(X, p=1.0), "p must be a number in [0, 1); got 1.0"),
        (lambda: ops.bias_act_dropout(X, p=float("nan")), "got nan"),
        (lambda: ops.bias_act_dropout(X, act="tanh"), "act must be one of"),
        (lambda: ops.sparse_dropout(SPARSE, -1, training=True), "p must be a number in [0, 1]; got -1"),
        (lambda: ops.layer_norm(X, eps=float("inf")), "eps must be a number of at least 0; got inf"),
        (
            lambda: ops.gat_attention(CSC, X, torch.rand(NUM_SRC, 2), torch.rand(NUM_DST, 2), dropout=1.5),
            "dropout must be a number in [0, 1); got 1.5",
        ),
        (
            lambda: ops.gat_attention(
                CSC, X, torch.rand(NUM_SRC, 2), torch.rand(NUM_DST, 2), negative_slope=float("inf")
            ),
            "negative_slope must be a finite number; got inf",
        ),
    ],
)
def test_a_number_out_of_bounds_is_refused(call, message):
    with pytest.raises(ConfigError) as error:
        call()
    assert message in str(error.value)


GRAPHS = {
    "edges": Graph.from_edge_index(torch.tensor([[0, 1, 2, 0], [1, 2, 0, 0]]), 3).csc,
    "no edges": Csc(torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), 3),
    "no nodes": Csc(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), 0),
}
OPERATORS_ON_NOTHING = {
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


FLOATS = (torch.float32, torch.float64)
# Sparse features hold float32 at most.
KINDS = [
    (name, dtype)
    for name in OPERATORS_ON_NOTHING
    for dtype in FLOATS
    if "sparse" not in name or dtype != FLOATS[1]
]


@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(("operator", "dtype"), KINDS)
def test_nothing_in_gives_nothing_or_zeros_both_ways(operator, graph, dtype, width):
    leaves = []

    def rows(count):
        leaves.append(torch.rand(count, width).to(dtype).requires_grad_())
        return leaves[-1]

    out = OPERATORS_ON_NOTHING[operator](GRAPHS[graph], rows)
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
