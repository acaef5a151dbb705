"""Passes: each a pure function that leaves its decision; what they do to small programs, and why."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.fullgraph.graphs import CHANNELS, CLASSES, NUM_NODES, make_graph
from torch import nn

from graphbraid import nn as gnn
from graphbraid.fullgraph.lowering.costs import cost_model
from graphbraid.fullgraph.lowering.levels import reach, towards
from graphbraid.fullgraph.lowering.passes import PASSES, choose_input_path, fuse, hoist, order
from graphbraid.fullgraph.program import INPUT, Add, AdjacencyMatrix, Aggregate, Epilogue, Linear, Program
from graphbraid.fullgraph.reading.calling import only_node_type
from graphbraid.fullgraph.reading.read import read_model
from graphbraid.machine.hardware import Rates


def costs(graph, num_blocks=2, **changes):
    made = cost_model(
        graph,
        Rates(),
        rows=(graph.num_nodes,) * (num_blocks + 1),
        edges=(graph.csc.num_edges,) * num_blocks,
        hoist_bytes=1 << 30,
    )
    return replace(made, **changes)


def names(program):
    return [op.symbol for op in program.ops]


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_returns_a_new_program_with_its_decision_and_leaves_the_old_alone(name):
    program = read_model(gnn.GCN(CHANNELS, 8, CLASSES, 2), CHANNELS)
    before = str(program)
    after = PASSES[name](program, costs(make_graph()))
    assert str(program) == before
    assert [d.name for d in after.decisions] == [name.replace("_", " ")]
    assert PASSES[name](program, costs(make_graph())) == after


def test_hoisting_leaves_no_aggregation_in_the_first_layer():
    program = read_model(gnn.GCN(CHANNELS, 8, CLASSES, 2), CHANNELS)
    hoisted = hoist(program, costs(make_graph()))
    assert names(program).count("aggregate") == 2
    assert names(hoisted).count("aggregate") == 1
    assert hoisted.ops[0].symbol == "constant"


@pytest.mark.parametrize("changes", [{"hoist_bytes": 10}])
def test_hoisting_keeps_to_its_memory(changes):
    program = read_model(gnn.GCN(CHANNELS, 8, CLASSES, 2), CHANNELS)
    after = hoist(program, costs(make_graph(), **changes))
    assert after.ops == program.ops
    assert "would take" in after.decisions[-1].what


def test_input_dropout_is_never_hoisted_over():
    program = read_model(gnn.GCN(CHANNELS, 8, CLASSES, 2, input_dropout=0.2), CHANNELS)
    assert hoist(program, costs(make_graph())).ops == program.ops


@pytest.mark.parametrize(("density", "path"), [(0.001, "sparse"), (1.0, "dense")])
def test_the_input_path_follows_the_density(density, path):
    program = read_model(gnn.GCN(CHANNELS, 16, CLASSES, 2), CHANNELS)
    after = choose_input_path(program, costs(make_graph(), density=density, in_channels=2000))
    assert after.settings["input_path"] == path


@pytest.mark.parametrize(("density", "path"), [(0.001, "sparse"), (0.3, "binary"), (1.0, "binary")])
def test_the_input_path_of_binary_features_follows_the_density(density, path):
    program = read_model(gnn.GCN(CHANNELS, 16, CLASSES, 2), CHANNELS)
    given = costs(make_graph(), density=density, in_channels=2000, is_binary=True)
    after = choose_input_path(program, given)
    assert after.input_path == path
    decision = after.decisions[-1]
    assert decision.taken
    assert ("one number in each row" in decision.what) == (path == "binary")
    assert all(f"{other}, " in decision.instead_of for other in {"dense", "sparse", "binary"} - {path})


def test_binary_features_are_not_hoisted_over():
    program = read_model(gnn.GCN(CHANNELS, 8, CLASSES, 2), CHANNELS)
    program = program.rewritten(program.ops, input_path="binary")
    after = hoist(program, costs(make_graph()))
    assert after.ops == program.ops
    assert "stay binary" in after.decisions[-1].what


@pytest.mark.parametrize(("width_in", "width_out", "first"), [(4, 64, "aggregate"), (64, 4, "linear")])
def test_order_aggregates_at_the_narrower_side(width_in, width_out, first):
    weight = nn.Parameter(torch.ones(width_in, CHANNELS)), nn.Parameter(torch.ones(width_out, width_in))
    adjacency = AdjacencyMatrix(kind="sum")
    for start in ("linear", "aggregate"):
        ops = [
            Linear(out="h", inputs=(INPUT,), weight=weight[0]),
            Linear(out="z", inputs=("h",), weight=weight[1]),
            Aggregate(out="y", inputs=("z",), adjacency=adjacency),
        ]
        if start == "aggregate":
            ops[1:] = [
                Aggregate(out="z", inputs=("h",), adjacency=adjacency),
                Linear(out="y", inputs=("z",), weight=weight[1]),
            ]
        program = Program(ops=tuple(ops), node_types=(only_node_type(CHANNELS),))
        after = order(program, costs(make_graph(), num_blocks=1))
        assert names(after)[1] == first, (start, str(after))


def test_fusing_merges_bias_activation_and_dropout_but_never_out_of_order():
    bias = nn.Parameter(torch.zeros(4))
    make = {
        "bias": lambda o, i: Epilogue(out=o, inputs=(i,), bias=bias),
        "act": lambda o, i: Epilogue(out=o, inputs=(i,), act="relu"),
        "drop": lambda o, i: Epilogue(out=o, inputs=(i,), p=0.5),
    }
    weight = nn.Parameter(torch.ones(4, CHANNELS))

    def fused(*order):
        ops = [Linear(out="v0", inputs=(INPUT,), weight=weight)]
        ops += [make[kind](f"v{i + 1}", f"v{i}") for i, kind in enumerate(order)]
        after = fuse(Program(ops=tuple(ops), node_types=(only_node_type(CHANNELS),)), costs(make_graph())).ops
        return [after[0].after.details(), *(op.details() for op in after[1:])]

    assert fused("bias", "act", "drop") == ["bias, relu, dropout 0.5"]
    assert fused("drop", "act") == ["dropout 0.5", "relu"]
    assert fused("act", "bias") == ["relu", "bias"]
    assert fused("act", "act") == ["relu", "relu"]


@pytest.mark.parametrize("layer", ["linear", "aggregate"])
@pytest.mark.parametrize("read_twice", [False, True])
def test_an_epilogue_joins_the_kernel_before_it_unless_others_read_its_rows(layer, read_twice):
    weight, bias = nn.Parameter(torch.ones(4, CHANNELS)), nn.Parameter(torch.zeros(4))
    ops = [
        Linear(out="h", inputs=(INPUT,), weight=weight),
        Aggregate(out="s", inputs=("h",), adjacency=AdjacencyMatrix(kind="sum")),
    ][: 1 + (layer == "aggregate")]
    rows = ops[-1].out
    ops.append(Epilogue(out="y", inputs=(rows,), bias=bias, act="relu"))
    if read_twice:
        ops.append(Add(out="z", inputs=("y", rows)))
    program = Program(ops=tuple(ops), node_types=(only_node_type(CHANNELS),))
    after = fuse(program, costs(make_graph(), num_blocks=1))
    joined = [op for op in after.ops if getattr(op, "after", None)]
    assert len(joined) == (not read_twice)
    if joined:
        assert after.output == "y"
        assert "made in the cache by the kernel before" in after.decisions[-1].what
        assert after.decisions[-1].saves.startswith(f"{8 * 4 * NUM_NODES / 1e6:.3g} MB an epoch")
        assert set(map(id, after.parameters())) == {id(weight), id(bias)}
        assert "then bias, relu" in str(after)


def test_an_addition_joins_the_kernel_that_makes_one_side():
    program = read_model(gnn.GraphSAGE(CHANNELS, 8, CLASSES, 1), CHANNELS)
    assert any(isinstance(op, Add) for op in program.ops)
    assert not any(isinstance(op, Add) for op in fuse(program, costs(make_graph(), 1)).ops)


def test_a_program_that_reads_what_is_not_made_is_refused():
    with pytest.raises(ValueError, match="reads z, which is not made"):
        Program(ops=(Epilogue(out="y", inputs=("z",)),), node_types=(only_node_type(3),))
    with pytest.raises(ValueError, match="multiplies 3 columns by a weight of 4"):
        Program(
            ops=(Linear(out="y", inputs=(INPUT,), weight=nn.Parameter(torch.ones(2, 4))),),
            node_types=(only_node_type(3),),
        )


def test_levels_are_nested_and_hold_every_edge_of_the_nodes_that_count():
    graph = make_graph()
    seeds = graph.split("train")
    reached = reach(graph.csc, seeds, 2)
    blocks = towards(graph.csc, reached)
    assert reached.edges(graph.csc) == tuple(block.csc.num_edges for block in blocks)
    assert torch.equal(blocks[-1].destinations, seeds)
    for earlier, later in pairwise(blocks):
        assert torch.equal(earlier.destinations, later.sources)
    for block in blocks:
        assert torch.equal(block.sources[: block.csc.num_dst], block.destinations)
        assert len(block.sources.unique()) == len(block.sources)
        for row, node in enumerate(block.destinations.tolist()):
            begin, end = graph.csc.indptr[node], graph.csc.indptr[node + 1]
            ours = block.csc.indices[block.csc.indptr[row] : block.csc.indptr[row + 1]].long()
            assert torch.equal(block.sources[ours], graph.csc.indices[begin:end].long())
