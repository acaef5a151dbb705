"""Operations as plain programs, under any lowering passes, beside the same sums written with autograd."""

import operator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fullgraph.graphs import CHANNELS, make_graph
from tests.suites import examples
from torch import nn

from graphbraid.fullgraph.lowering.costs import cost_model
from graphbraid.fullgraph.lowering.levels import aggregation, whole_graph
from graphbraid.fullgraph.lowering.passes import PASSES
from graphbraid.fullgraph.program import (
    INPUT,
    Add,
    AdjacencyMatrix,
    Aggregate,
    AlongRow,
    ColumnRange,
    Combine,
    Concat,
    DestinationRows,
    Epilogue,
    Largest,
    Leaf,
    Linear,
    Prelu,
    Product,
    Program,
    RowFunction,
    RowOfParameters,
    SmallTensor,
    View,
    itself,
)
from graphbraid.fullgraph.reading.calling import only_node_type
from graphbraid.fullgraph.step.operations.by_pytorch import FUNCTIONS
from graphbraid.fullgraph.step.plan import StepRequest
from graphbraid.fullgraph.step.planned_step import PlannedStep
from graphbraid.machine.hardware import Rates

ARGUMENTS = {
    "gelu": [("none",), ("tanh",)],
    "elu": [
        (1.0, 1.0, 1.0),
        (0.4, 1.0, 1.0),
        (1.6732632423543772, 1.0507009873554805, 1.0),
        (-0.5, 1.0, 1.0),
    ],
    "leaky_relu": [(0.2,), (-0.3,)],
    "softplus": [(1.0, 20.0), (2.0, 0.5)],
    "hardtanh": [(0.0, 6.0), (-0.2, 0.5)],
    "plus": [(1.5,)],
    "clamp": [(-0.2, 0.5), (0.0, float("inf"))],
    "pow": [(2.0,), (3.0,)],
}
POSITIVE = ("log", "sqrt", "reciprocal")
BY_AUTOGRAD = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "softplus": F.softplus,
    "hardtanh": F.hardtanh,
    "gelu": lambda x, how: F.gelu(x, approximate=how),
    "elu": lambda x, alpha, scale, _: scale * (x.clamp(min=0) + alpha * (x.clamp(max=0).exp() - 1)),
    "leaky_relu": F.leaky_relu,
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "plus": torch.add,
    "clamp": torch.clamp,
    "pow": torch.pow,
    "abs": torch.abs,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "reciprocal": torch.reciprocal,
}


def parameter(*shape, seed=0):
    return nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(seed + 7)) * 0.4)


def expected(program, graph):
    """The value and the parameters' gradients for a gradient of ones times rows, by autograd in float64."""
    found = {p: p.detach().double().requires_grad_() for p in program.parameters()}
    values = {INPUT: graph.x.double()}
    for op in program.ops:
        values[op.out] = run(op, [values[i] for i in op.inputs], found, graph)
    out = values[program.output]
    (out * weights_of(out)).sum().backward()
    return out.detach(), [p.grad for p in found.values()]


def weights_of(out):
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out.dtype)


def run(op, inputs, parameters, graph):
    x = inputs[0]
    if isinstance(op, Aggregate):
        return aggregation(op.adjacency, graph.csc).forward(torch.eye(graph.num_nodes)).double() @ x
    if isinstance(op, Linear):
        part = parameters[op.weight][op.view.at]
        part = part.t() if op.view.turned else part
        part = part if op.view.columns is None else part[:, slice(*op.view.columns)]
        product = x @ (op.view.scale * part).t()
        return product + op.view.identity * x if op.view.identity else product
    if isinstance(op, Prelu):
        return F.prelu(x, parameters[op.slope])
    if isinstance(op, RowFunction):
        return BY_AUTOGRAD[op.kind](x, *op.arguments)
    if isinstance(op, Combine):
        return sum(factor * value for factor, value in zip(op.factors, inputs, strict=True))
    if isinstance(op, Epilogue):
        assert op.act in ("none", "relu")
        y = x if op.bias is None else x + parameters[op.bias][op.bias_at].reshape(-1)
        return y.relu() if op.act == "relu" else y
    if isinstance(op, Largest):
        return torch.stack(inputs, -1).max(-1)[0]
    if isinstance(op, ColumnRange):
        return x[:, op.first : op.last]
    if isinstance(op, AlongRow):
        if op.kind == "norm":
            return x.norm(dim=1, keepdim=True)
        pieces = [x[:, at : at + op.width_out] for at in range(0, x.shape[1], op.width_out)]
        return sum(pieces) / (1 if op.kind == "sum" else len(pieces))
    if isinstance(op, RowOfParameters):
        row = value_of(op.row, parameters).reshape(-1)
        return x + row if op.adds else x * row
    if isinstance(op, Product):
        return x * inputs[1]
    return {Add: lambda: x + inputs[1], DestinationRows: lambda: x, Concat: lambda: torch.cat(inputs, 1)}[
        type(op)
    ]()


def value_of(small, parameters):
    """A small tensor in double precision."""
    arguments = [
        parameters[one.tensor]
        if isinstance(one, Leaf)
        else value_of(one, parameters)
        if isinstance(one, SmallTensor)
        else one
        for one in small.args
    ]
    return small.function(*arguments, **dict(small.kwargs))


def assert_runs(program, graph, passes=frozenset(PASSES), hoist_bytes=1 << 30):
    """The lowered program gives what the given one says."""
    blocks = whole_graph(graph.csc, program.num_levels - 1)
    rows, edges = (graph.num_nodes,) * (len(blocks) + 1), (graph.csc.num_edges,) * len(blocks)
    costs = cost_model(graph, Rates(), rows=rows, edges=edges, hoist_bytes=hoist_bytes)
    lowered = program
    for name in [name for name in PASSES if name in passes]:
        lowered = PASSES[name](lowered, costs)
    request = StepRequest(program=lowered, graph=graph, blocks=blocks, training=True)
    step = PlannedStep(request)
    step.allocate()
    value, grads = expected(program, graph)
    for _ in range(2):  # the arena is used again
        out = step.forward()
        torch.testing.assert_close(out.double(), value, rtol=1e-4, atol=2e-5)
        found = step.backward(weights_of(out))
        for p, grad in zip(program.parameters(), grads, strict=True):
            torch.testing.assert_close(found[id(p)].double(), grad, rtol=1e-4, atol=1e-4)
    evaluated = PlannedStep(replace(request, training=False))
    evaluated.allocate()
    torch.testing.assert_close(evaluated.forward().double(), value, rtol=1e-4, atol=2e-5)
    return lowered


def program_of(*ops):
    return Program(ops=ops, node_types=(only_node_type(CHANNELS),))


def first(width=6):
    return Linear(out="h", inputs=(INPUT,), weight=parameter(width, CHANNELS))


@pytest.mark.parametrize("kind", FUNCTIONS)
@pytest.mark.parametrize("is_read_again", [False, True])
def test_a_function_of_rows_and_its_gradient(kind, is_read_again):
    for arguments in ARGUMENTS.get(kind, [()]):
        ops = [first(), RowFunction(out="f", inputs=("h",), kind=kind, arguments=arguments)]
        if kind in POSITIVE:
            ops[1:1] = [RowFunction(out="e", inputs=("h",), kind="softplus", arguments=(1.0, 20.0))]
            ops[2] = RowFunction(out="f", inputs=("e",), kind=kind)
        if is_read_again:
            ops.append(Combine(out="y", inputs=("f", "h"), factors=(0.5, 2.0)))
        ops.append(Epilogue(out="z", inputs=(ops[-1].out,), bias=parameter(6, seed=1), act="relu"))
        assert_runs(program_of(*ops), make_graph())
        assert_runs(program_of(*ops[:-1]), make_graph())


SHARED = parameter(6, seed=4)
ROWS = {
    "a number": SmallTensor(itself, (Leaf(parameter(1, seed=1)),)),
    "a number without dimensions": SmallTensor(itself, (Leaf(parameter(seed=2)),)),
    "a row": SmallTensor(itself, (Leaf(parameter(1, 6, seed=3)),)),
    "a share": SmallTensor(torch.softmax, (Leaf(SHARED), 0)),
    "twice one parameter": SmallTensor(
        torch.mul, (Leaf(SHARED), SmallTensor(torch.add, (Leaf(SHARED), Leaf(parameter(6, seed=5)))))
    ),
    "one of several": SmallTensor(operator.getitem, (Leaf(SHARED), 2)),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("adds", [False, True])
def test_rows_times_and_plus_a_row_of_parameters(name, adds):
    by_row = RowOfParameters(out="y", inputs=("h",), row=ROWS[name], adds=adds)
    assert_runs(program_of(first(), by_row), make_graph())
    again = RowOfParameters(out="z", inputs=("y",), row=ROWS["twice one parameter"])
    both = Add(out="s", inputs=("y", "z"))
    assert_runs(program_of(first(), by_row, again, both), make_graph())


@pytest.mark.parametrize("kind", ["sum", "mean"])
@pytest.mark.parametrize("width", [1, 2, 3, 6])
def test_sums_of_each_row_s_pieces(kind, width):
    pieces = AlongRow(out="n", inputs=("h",), kind=kind, width_out=width)
    assert_runs(program_of(first(), pieces), make_graph())
    again = AlongRow(out="m", inputs=("h",), kind=kind, width_out=width)
    assert_runs(program_of(first(), pieces, again, Product(out="y", inputs=("n", "m"))), make_graph())


@pytest.mark.parametrize("kind", ["sum", "mean", "norm"])
def test_rows_by_a_number_of_each(kind):
    ops = [first(), AlongRow(out="n", inputs=("h",), kind=kind)]
    ops.append(RowFunction(out="g", inputs=("n",), kind="clamp", arguments=(0.3, 0.9)))
    ops.append(Product(out="y", inputs=("h", "g")))
    assert_runs(program_of(*ops), make_graph())
    assert_runs(program_of(*ops, Product(out="z", inputs=("y", "n"))), make_graph())


def test_a_norm_of_zero_has_no_gradient():
    ops = [first(), Epilogue(out="r", inputs=("h",), bias=nn.Parameter(torch.full((6,), -1e3)), act="relu")]
    assert_runs(program_of(*ops, AlongRow(out="n", inputs=("r",), kind="norm")), make_graph())


def test_operands_that_do_not_fit_are_refused():
    for op, message in (
        (ColumnRange(out="y", inputs=("h",), first=3, last=7), "takes columns 3 to 7 of 6"),
        (
            RowOfParameters(out="y", inputs=("h",), row=SmallTensor(itself, (Leaf(parameter(4)),))),
            "4 numbers",
        ),
        (AlongRow(out="y", inputs=("h",), kind="sum", width_out=4), "divides 6 columns into pieces of 4"),
        (Product(out="y", inputs=("h", INPUT)), f"6 columns by {CHANNELS}"),
    ):
        with pytest.raises(ValueError, match=message):
            program_of(first(), op)


@pytest.mark.parametrize("slopes", [1, 6])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_learned_slope(slopes, sign):
    slope = nn.Parameter(sign * parameter(slopes).detach().abs())
    program = program_of(first(), Prelu(out="y", inputs=("h",), slope=slope))
    assert_runs(program, make_graph())
    assert_runs(program_of(Prelu(out="y", inputs=(INPUT,), slope=parameter(CHANNELS))), make_graph())


@pytest.mark.parametrize(
    "view",
    [
        {"turned": True},
        {"at": (1,), "scale": -0.3},
        {"at": (2, 1), "turned": True, "scale": 0.7, "identity": 0.3},
        {"columns": (3, 9)},
    ],
)
def test_a_linear_map_by_a_view_of_a_parameter(view):
    view = View(**view)
    shape = (3,) * len(view.at) + ((6, 6) if view.columns is None else (6, 20))
    ops = [first(), Linear(out="y", inputs=("h",), weight=parameter(*shape), view=view)]
    ops.append(Epilogue(out="z", inputs=("y",), bias=parameter(3, 2, 1, 6), bias_at=(2, 1)))
    assert_runs(program_of(*ops), make_graph())


def test_values_are_combined_side_by_side_or_by_their_largest():
    graph = make_graph()
    ties = Epilogue(out="r", inputs=("h",), act="relu")
    other = Linear(out="g", inputs=(INPUT,), weight=parameter(6, CHANNELS, seed=2))
    relu = Epilogue(out="s", inputs=("g",), act="relu")
    for last in (
        Combine(out="y", inputs=("r", "s", "h"), factors=(1.0, -2.0, 1.0)),
        Combine(out="y", inputs=("r",), factors=(0.25,)),
        Concat(out="y", inputs=("r", "s", "r", "h")),
        Largest(out="y", inputs=("r", "s", "h")),
    ):
        assert_runs(program_of(*reached([first(), ties, other, relu, last])), graph)
        after = Epilogue(out="z", inputs=("y",), bias=parameter(24 if isinstance(last, Concat) else 6))
        assert_runs(program_of(*reached([first(), ties, other, relu, last, after])), graph)


def test_a_product_of_columns_side_by_side_is_a_sum_of_products():
    other = Linear(out="g", inputs=(INPUT,), weight=parameter(5, CHANNELS, seed=2))
    ops = [first(), other, Concat(out="c", inputs=("h", INPUT, "g"))]
    ops.append(Linear(out="y", inputs=("c",), weight=parameter(4, 11 + CHANNELS, seed=3)))
    lowered = assert_runs(program_of(*ops), make_graph())
    assert not any(isinstance(op, Concat | Add) for op in lowered.ops)


def powers(adjacency, count, x=INPUT):
    names = [x]
    ops = []
    for k in range(count):
        ops.append(Aggregate(out=f"p{k}", inputs=(names[-1],), adjacency=adjacency))
        names.append(f"p{k}")
    return ops, names


@pytest.mark.parametrize("is_narrow", [False, True])
def test_powers_of_the_features_and_their_sums_are_computed_once(is_narrow):
    adjacency = AdjacencyMatrix(kind="gcn", loop_scale=1.0)
    linear = Linear(out="h", inputs=(INPUT,), weight=parameter(4, CHANNELS))
    ops, names = powers(adjacency, 3, "h" if is_narrow else INPUT)
    owns = [DestinationRows(out=f"o{k}", inputs=(names[0] if k == 0 else f"o{k - 1}",)) for k in range(3)]
    owns.append(DestinationRows(out="q", inputs=(names[2],)))
    mix = Combine(out="m", inputs=("o2", "q", names[3]), factors=(0.2, 0.5, 0.3))
    ops = [linear, *ops, *owns, mix] if is_narrow else [*ops, *owns, mix, replace_input(linear, "m")]
    for passes in (frozenset(PASSES), frozenset(PASSES) - {"hoist"}, frozenset()):
        lowered = assert_runs(program_of(*ops), make_graph(), passes)
        assert any(isinstance(op, Aggregate) for op in lowered.ops) == ("hoist" not in passes)
    some = assert_runs(program_of(*ops), make_graph(), hoist_bytes=10)
    assert any(isinstance(op, Aggregate) for op in some.ops)


def replace_input(op, value):
    return Linear(out=op.out, inputs=(value,), weight=op.weight)


@settings(max_examples=examples(40))
@given(
    data=st.data(),
    passes=st.sets(st.sampled_from(sorted(PASSES))),
    hoist_bytes=st.sampled_from([0, 5000, 1 << 30]),
)
def test_programs_drawn_at_random_keep_their_numbers_under_any_passes(data, passes, hoist_bytes):
    graph = make_graph(weighted=data.draw(st.booleans()))
    ops = draw_ops(data.draw)
    assert_runs(program_of(*ops), graph, passes, hoist_bytes)


KINDS = ("linear", "aggregate", "own", "combine", "concat", "largest", "function", "bias", "add")
KINDS += ("product", "columns", "along", "row")
ADJACENCIES = (
    AdjacencyMatrix(kind="sum", weighted=True),
    AdjacencyMatrix(kind="mean", scale=-0.5),
    AdjacencyMatrix(kind="gcn", loop_scale=1.0, weighted=True, scale=0.9),
    AdjacencyMatrix(kind="laplacian sym", scale=2.0),
)


def draw_ops(draw):
    """Operations that follow each other and use older values of the same level and width."""
    ops, state = [], {INPUT: (0, CHANNELS)}
    x = INPUT
    for number in range(draw(st.integers(2, 9))):
        level, width = state[x]
        like = sorted(v for v, s in state.items() if s == (level, width) and v != x)
        other = draw(st.sampled_from(like)) if like else None
        kind = draw(st.sampled_from(KINDS))
        if kind in ("combine", "largest", "add", "product") and other is None:
            kind = "bias"
        out, change = f"v{number}", (level, width)
        if kind == "linear":
            op = Linear(out=out, inputs=(x,), weight=parameter(draw(st.integers(1, 9)), width, seed=number))
            change = (level, op.shape[0])
        elif kind == "aggregate":
            op = Aggregate(out=out, inputs=(x,), adjacency=draw(st.sampled_from(ADJACENCIES)))
            change = (level + 1, width)
        elif kind == "own":
            op, change = DestinationRows(out=out, inputs=(x,)), (level + 1, width)
        elif kind == "combine":
            op = Combine(out=out, inputs=(x, other), factors=(draw(st.sampled_from([1.0, -0.5])), 1.0))
        elif kind == "add":
            op = Add(out=out, inputs=(x, other))
        elif kind == "largest":
            op = Largest(out=out, inputs=(x, other))
        elif kind == "concat":
            beside = draw(st.sampled_from([v for v, s in state.items() if s[0] == level]))
            op = Concat(out=out, inputs=(x, beside))
            change = (level, width + state[beside][1])
        elif kind == "product":
            op = Product(out=out, inputs=(x, other))
        elif kind == "columns":
            op = ColumnRange(out=out, inputs=(x,), first=draw(st.integers(0, width - 1)), last=width)
            change = (level, width - op.first)
        elif kind == "along":
            columns = draw(st.sampled_from([one for one in range(1, width + 1) if width % one == 0]))
            kinds = st.sampled_from(["sum", "mean"])
            op = AlongRow(out=out, inputs=(x,), kind=draw(kinds), width_out=columns)
            change = (level, columns)
        elif kind == "row":
            row = SmallTensor(
                torch.sigmoid, (Leaf(parameter(draw(st.sampled_from([1, width])), seed=number)),)
            )
            op = RowOfParameters(out=out, inputs=(x,), row=row, adds=draw(st.booleans()))
        elif kind == "function":
            op = RowFunction(out=out, inputs=(x,), kind=draw(st.sampled_from(["tanh", "softmax", "silu"])))
        else:
            op = Epilogue(out=out, inputs=(x,), bias=parameter(width, seed=number), act="relu")
        ops.append(op)
        state[out] = change
        x = out
    ops.append(Linear(out="last", inputs=(x,), weight=parameter(3, state[x][1], seed=99)))
    return reached(ops)


def reached(ops):
    wanted, kept = {ops[-1].out}, []
    for op in reversed(ops):
        if op.out in wanted:
            wanted.update(op.inputs)
            kept.append(op)
    return kept[::-1]
