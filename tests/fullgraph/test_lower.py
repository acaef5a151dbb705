"""Passes: each a pure function that leaves its decision; the record of all decisions prints, and runs."""

import dataclasses
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tests.extras import NO_PYG
from tests.fullgraph.fake_device import FakeDevice
from tests.fullgraph.graphs import CHANNELS, CLASSES, NUM_NODES, make_graph
from tests.fullgraph.test_engine import MODELS
from torch import nn

import graphbraid
from graphbraid import nn as gnn
from graphbraid.errors import ConfigError
from graphbraid.fullgraph import ALL, CompileOptions, Engine, NotLoweredError, lower
from graphbraid.fullgraph.lowering.costs import cost_model
from graphbraid.fullgraph.lowering.levels import reach, towards
from graphbraid.fullgraph.lowering.passes import PASSES, choose_input_path, fuse, hoist, order
from graphbraid.fullgraph.program import (
    INPUT,
    Add,
    AdjacencyMatrix,
    Aggregate,
    Epilogue,
    Linear,
    Messages,
    Program,
    ReadRows,
)
from graphbraid.fullgraph.reading.calling import only_node_type
from graphbraid.fullgraph.reading.read import read_model
from graphbraid.fullgraph.runner import Runner
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


# ---- decisions of the lowering


OPTIONS = CompileOptions(rates=Rates())


def model_of(name="gcn"):
    torch.manual_seed(0)
    return MODELS[name](dropout=0.0)


@pytest.mark.parametrize("name", ["gcn", "sage", "gat"])
def test_what_is_lowered_runs_as_the_engine_does(name):
    graph, model = make_graph(), model_of(name)
    lowered = lower(model, graph, options=OPTIONS)
    engine = Engine(model, graph, graph.split("train"), CompileOptions(rates=Rates()))
    assert lowered.program == engine.program
    assert torch.equal(Runner(lowered)(), engine())


def test_a_program_is_lowered_as_the_model_it_was_read_from():
    graph, model = make_graph(), model_of()
    program = read_model(model, CHANNELS)
    assert lower(program, graph, options=OPTIONS).program == lower(model, graph, options=OPTIONS).program


def test_rows_that_only_destinations_read_are_computed_for_them_alone():
    """A layer maps queries and roots of all rows, and pruned levels hold fewer destinations than sources."""
    layers = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)
    torch.manual_seed(0)
    sizes = (CHANNELS, 8), (8, CLASSES)
    convs = [(layers.TransformerConv(a, b), "x, edge_index -> x") for a, b in sizes]
    model, graph = layers.Sequential("x, edge_index", convs), make_graph()
    lowered = lower(model, graph, options=OPTIONS)
    program = lowered.program
    levels = [lowered.num_rows(level) for level in range(program.num_levels)]
    assert levels[0] > levels[1] > levels[2]
    messages = [op for op in program.ops if isinstance(op, Messages)]
    assert len(messages) == len(sizes)
    for op in messages:
        for _, role, place in op.reads:
            assert program.level(op.inputs[place]) == program.level(op.out) - (role is ReadRows.SOURCE)
    edge_index = torch.stack((graph.csc.indices.long(), graph.csc.destinations().long()))
    expected = model(graph.x, edge_index)[graph.split("train")]
    found = Engine(model, graph, graph.split("train"), OPTIONS)()
    torch.testing.assert_close(found, expected)
    parameters = [*model.parameters()]
    grads, wanted = (torch.autograd.grad(out.sin().sum(), parameters) for out in (found, expected))
    torch.testing.assert_close(grads, wanted, rtol=1e-4, atol=1e-5)


def test_lowering_neither_runs_nor_changes_anything():
    graph, model = make_graph(), model_of()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    lowered = lower(model, graph, options=OPTIONS)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(dataclasses.FrozenInstanceError):
        lowered.rows = None


def test_it_prints_rates_decisions_program_and_levels():
    graph = make_graph()
    lowered = lower(model_of(), graph, options=OPTIONS)
    lines = str(lowered).splitlines()
    nodes = graph.split("train").numel()
    assert (
        lines[0] == f"Lowered for the outputs of {nodes} of {NUM_NODES} nodes on cpu, rows stored in float32"
    )
    assert "150 GFLOP/s" in lines[1]
    for decision in lowered.program.decisions:
        assert any(line.startswith(f"  {'+' if decision.taken else '-'} {decision.name}: ") for line in lines)
    for op in lowered.program.ops:
        assert any(line.startswith(f"  {op.out} (") for line in lines)
    first = lines.index(next(line for line in lines if line.startswith("Levels")))
    for level, line in enumerate(lines[first + 1 :]):
        assert line.startswith(f"  {level}: {lowered.num_rows(level)} nodes")
        if level < len(lowered.blocks):
            assert line.endswith(f", {lowered.blocks[level].csc.num_edges} edges to the next")
    assert len(lines) - first - 1 == lowered.program.num_levels


def test_it_says_how_the_levels_nodes_stand():
    graph, model = make_graph(), model_of()
    assert "in the graph's order" in str(
        lower(model, graph, options=CompileOptions(rates=Rates(), passes=frozenset()))
    )
    pruned = lower(model, make_graph(train=3), options=OPTIONS)
    assert pruned.row_of is None
    assert "those of the last level first" in str(pruned)


def test_what_explain_says_of_the_program_is_what_the_record_says():
    graph, model = make_graph(), model_of()
    engine = graphbraid.compile(model, graph)
    shared = str(engine.lowered).splitlines()[2:]
    until = next(i for i, line in enumerate(shared) if line.startswith("Levels"))
    assert engine.explain().splitlines()[:until] == shared[:until]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"passes": frozenset({"prun"})}, "no lowering pass is called 'prun'; there are fuse"),
        ({"storage": torch.float16}, "storage must be torch.float32 or torch.bfloat16; got torch.float16"),
        ({"storage": torch.bfloat16, "device": FakeDevice()}, "storage='bfloat16' needs the CPU"),
        ({"spare_bytes": "many"}, "spare_bytes must be int or None; got 'many'"),
    ],
)
def test_unsound_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        CompileOptions(**options)


def test_a_model_without_a_lowered_form_is_refused_with_the_reason():
    class Odd(torch.nn.Module):
        def forward(self, x, edge_index):
            return x[edge_index[0]]

    with pytest.raises(NotLoweredError):
        lower(Odd(), make_graph(), options=OPTIONS)


def test_all_passes_are_the_default():
    assert CompileOptions().passes == ALL
