"""The floor: by hand for a known program, a row for every task, and nothing changed by measuring."""

import dataclasses
import itertools
import json

import pytest
import torch
from tests.fullgraph.fake_device import FakeDevice
from tests.fullgraph.graphs import CHANNELS, CLASSES, NUM_NODES, make_graph
from tests.kernels import needs_kernels

import graphbraid
from graphbraid import nn as gnn
from graphbraid.errors import ResourceError
from graphbraid.fullgraph.device import Host
from graphbraid.fullgraph.explain.floor import StepTimes, TaskTime, TimedStep, floor_of
from graphbraid.fullgraph.explain.ledger import Ledger, Work
from graphbraid.fullgraph.lowering.costs import cost_model
from graphbraid.fullgraph.lowering.levels import whole_graph
from graphbraid.fullgraph.lowering.locality import cached_share
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.fullgraph.program import AdjacencyMatrix, Aggregate, Attention, Epilogue, Linear, Program
from graphbraid.fullgraph.reading.calling import only_node_type
from graphbraid.fullgraph.step.plan import StepRequest
from graphbraid.graph.csc import Csc
from graphbraid.machine.hardware import Rates

RATES = Rates(
    multiply_flops=1e9,
    row_bytes=1e6,
    cached_row_bytes=1e8,
    outer_row_bytes=5e6,
    stream_bytes=1e7,
    outer_stream_bytes=2e7,
    sparse_values=1e6,
    binary_values=1e6,
    exponentials=1e7,
)
MULTIPLIES_SLOWLY = dataclasses.replace(RATES, multiply_flops=1e3)
MODELS = {
    "gcn": lambda: gnn.GCN(CHANNELS, 8, CLASSES, 3, dropout=0.5),
    "batch": lambda: gnn.GCN(CHANNELS, 8, CLASSES, 3, norm="batch"),
    "sage": lambda: gnn.GraphSAGE(CHANNELS, 8, CLASSES, 2),
    "max": lambda: gnn.GraphSAGE(CHANNELS, 8, CLASSES, 3, aggr="max"),
    "gin": lambda: gnn.GIN(CHANNELS, 8, CLASSES, 2),
    "gat": lambda: gnn.GAT(CHANNELS, 8, CLASSES, 2, dropout=0.5),
    "gatv2": lambda: gnn.GATv2(CHANNELS, 8, CLASSES, 2),
}


def weight(out_channels, in_channels):
    return torch.nn.Parameter(torch.ones(out_channels, in_channels))


def two_layers():
    """Transform and aggregate, aggregate and transform: (80, 12) -> (80, 8) -> (80, 5)."""
    relu = Epilogue(out="b", inputs=("a",), bias=torch.nn.Parameter(torch.ones(8)), act="relu")
    ops = (
        Linear(out="a", inputs=("x",), weight=weight(8, CHANNELS)),
        Aggregate(out="b", inputs=("a",), adjacency=AdjacencyMatrix(kind="sum"), after=relu),
        Aggregate(out="c", inputs=("b",), adjacency=AdjacencyMatrix(kind="mean")),
        Linear(out="d", inputs=("c",), weight=weight(5, 8)),
    )
    return Program(ops=ops, node_types=(only_node_type(CHANNELS),))


def make_ledger(program, graph, caches=None):
    edges = (graph.csc.num_edges,) * 2
    costs = cost_model(graph, RATES, rows=(NUM_NODES,) * 3, edges=edges, hoist_bytes=0)
    blocks = whole_graph(graph.csc, program.num_levels - 1)
    return Ledger(program, blocks, lambda *_: NUM_NODES, costs, caches)


def test_a_floor_at_other_rates_keeps_the_work_and_the_times():
    program, graph = two_layers(), make_graph()
    floor = floor_of(program, make_ledger(program, graph), RATES, num_nodes=NUM_NODES)
    twice = Rates(**{name: 2 * rate for name, rate in dataclasses.asdict(RATES).items()})
    faster = floor.at(twice)
    assert faster.floor_seconds == pytest.approx(floor.floor_seconds / 2)
    assert faster.rates == twice
    assert [o.work for o in faster.operations] == [o.work for o in floor.operations]
    assert faster.at(RATES) == floor
    assert RATES.fastest(twice) == twice.fastest(RATES) == twice


def test_the_floor_of_a_known_program_by_hand():
    graph, program = make_graph(), two_layers()
    ledger, edges = make_ledger(program, graph), graph.csc.num_edges
    ids = 4 * edges + 8 * (NUM_NODES + 1)
    x, wide, narrow = (4 * NUM_NODES * width for width in (CHANNELS, 8, 5))
    linear, first, second, last = program.ops
    assert ledger.forward(linear) == Work(
        stream_bytes=x + wide + 4 * 8 * CHANNELS, flops=2 * NUM_NODES * 8 * CHANNELS
    )
    gathered = {"cached_bytes": 64.0 * edges, "flops": 2 * edges * 8}  # rows of 32 bytes move whole lines
    assert ledger.forward(first) == Work(stream_bytes=2 * wide + ids, **gathered)
    assert ledger.forward(second) == Work(stream_bytes=2 * wide + ids, **gathered)
    # backward: the second linear map's input learns, the first one's does not
    assert ledger.backward(last) == Work(
        stream_bytes=narrow + 2 * wide + 2 * 4 * 5 * 8, flops=2 * 2 * NUM_NODES * 5 * 8
    )
    assert ledger.backward(second) == Work(stream_bytes=2 * wide + ids, **gathered)
    assert ledger.backward(first) == Work(stream_bytes=3 * wide + ids, **gathered)  # where the relu was 0
    assert ledger.backward(linear) == Work(
        stream_bytes=wide + x + 4 * 8 * CHANNELS, flops=2 * NUM_NODES * 8 * CHANNELS
    )
    floor = floor_of(program, ledger, RATES, num_nodes=15)
    streams = [x + wide + 384, 2 * wide + ids, 2 * wide + ids, wide + narrow + 160, 2 * 15 * 20]
    streams += [15 * 20 + narrow, narrow + 2 * wide + 320, 2 * wide + ids, 3 * wide + ids, wide + x + 384]
    assert [operation.work.stream_bytes for operation in floor.operations] == streams
    assert floor.floor_seconds == pytest.approx(sum(streams) / 1e7)  # memory is the slowest of all here
    assert floor.ratio is None


def test_rows_with_self_loops_read_their_own_row_too():
    loops = AdjacencyMatrix(kind="sum", loop_scale=1.0)
    ops = (Aggregate(out="a", inputs=("x",), adjacency=loops),)
    program, graph = Program(ops=ops, node_types=(only_node_type(CHANNELS),)), make_graph()
    work = make_ledger(program, graph).forward(program.ops[0])
    assert work.cached_bytes == 64.0 * graph.csc.num_edges + 4 * CHANNELS * NUM_NODES


def test_a_floor_is_the_longest_of_memory_cache_arithmetic_and_bits():
    work = {"stream_bytes": 1e7, "random_bytes": 1e6, "cached_bytes": 1e8, "flops": 1e9}
    assert Work(**work).seconds(RATES) == 2.0
    assert Work(**work, outer_stream_bytes=1e7, outer_bytes=1e6).seconds(RATES) == pytest.approx(2.7)
    assert Work(**work | {"cached_bytes": 3e8}).seconds(RATES) == 3.0
    assert Work(**work | {"flops": 4e9}).seconds(RATES) == 4.0
    assert Work(**work, bit_seconds=5.0).seconds(RATES) == 5.0
    assert Work(flops=1e9, exponentials=2e7).seconds(RATES) == 3.0  # one after the other


@needs_kernels
def test_rows_that_the_cache_does_not_hold_come_from_memory_at_random():
    graph, program = make_graph(), two_layers()
    csc, cache_bytes = graph.csc, 16 * 2 * 32  # 16 pairs of rows of 8 columns
    share = cached_share(Csc(csc.indptr, csc.indices // 2, csc.num_src), None, 16)
    assert 0 < share < 1
    work = make_ledger(program, graph, (cache_bytes, cache_bytes)).forward(program.ops[1])
    assert work.random_bytes == pytest.approx((1 - share) * csc.num_edges * 64)
    assert work.stream_bytes == 4 * NUM_NODES * 8 + 4 * csc.num_edges + 8 * (NUM_NODES + 1)
    holds_all = make_ledger(program, graph, (1 << 20, 1 << 20)).forward(program.ops[1])
    assert (holds_all.stream_bytes, holds_all.random_bytes) == (0, 0)
    assert holds_all.cached_bytes >= csc.num_edges * 64


@needs_kernels
def test_rows_from_memory_come_at_the_rate_that_was_measured_in_a_region_of_their_size():
    graph, program = make_graph(), two_layers()
    asked, cache = [], 16 * 2 * 32

    def row_rate(region_bytes, row_bytes):
        asked.append((region_bytes, row_bytes))
        return 5e5

    costs = make_ledger(program, graph)._facts
    blocks = whole_graph(graph.csc, 2)
    ledger = Ledger(program, blocks, lambda *_: NUM_NODES, costs, (cache, cache), row_rate=row_rate)
    work = ledger.forward(program.ops[1])
    assert asked == [(NUM_NODES * 32, 32)]
    assert work.random_rate == 5e5
    assert work.seconds(RATES) == pytest.approx(work.stream_bytes / 1e7 + work.random_bytes / 5e5)
    assert "0.0005 at random" in str(floor_of(program, ledger, RATES, num_nodes=NUM_NODES))
    fits = Ledger(program, blocks, lambda *_: NUM_NODES, costs, (1 << 20, 1 << 20), row_rate=row_rate)
    assert fits.forward(program.ops[1]).random_rate == 0
    assert len(set(asked)) == 1


@needs_kernels
def test_values_of_sparse_features_read_rows_of_a_table_that_a_cache_may_hold():
    graph = make_graph(density=0.25)
    program = two_layers().rewritten(two_layers().ops, input_path="sparse")
    weight_bytes, reads = 4 * 8 * CHANNELS, float((graph.x != 0).float().mean()) * NUM_NODES * CHANNELS
    work = make_ledger(program, graph, (weight_bytes // 2, 1 << 20)).forward(program.ops[0])
    assert work.outer_bytes == pytest.approx(reads * 64 / 2)  # a core's cache holds half of the weight's rows
    assert work.cached_bytes == pytest.approx(reads * 64)
    back = make_ledger(program, graph, (weight_bytes, 2 * weight_bytes)).backward(program.ops[0])
    share = 2 * weight_bytes / (4 * 8 * NUM_NODES)  # of the gradient's rows
    assert back.random_bytes == pytest.approx((1 - share) * reads * 64)


def test_gat_reads_one_row_of_gradients_for_each_edge_whose_heads_are_averaged_one_head():
    graph = make_graph()
    for concat, width in ((True, 64), (False, 32)):
        layer, nodes = gnn.GATConv(CHANNELS, 32, heads=2, concat=concat), torch.arange(NUM_NODES)
        lowered = graphbraid.compile(layer, graph, nodes=nodes).lowered
        op = next(op for op in lowered.program.ops if type(op).__name__ == "Attention")
        costs = dataclasses.replace(lowered.costs, rates=MULTIPLIES_SLOWLY)
        ledger = Ledger(lowered.program, lowered.blocks, lowered.num_rows, costs, None)
        csc = lowered.blocks[0].of(None).csc
        edges = csc.num_edges
        forward, back = ledger.forward(op), ledger.backward(op)
        assert (forward.flops, forward.exponentials) == (2 * edges * 64, 2 * edges)
        assert back.cached_bytes == 4 * width * (edges + csc.num_dst)  # and the self-loops
        assert back.flops == 2 * 2 * edges * 64  # the row times a coefficient, and times the own row
        assert back.exponentials == 0  # forward might keep them


def test_gat_may_sum_before_its_product():
    graph, heads, width = make_graph(), 2, 128
    lowered = graphbraid.compile(gnn.GATConv(CHANNELS, 64, heads=heads), graph, nodes=torch.arange(2)).lowered
    product, op = (next(o for o in lowered.program.ops if type(o) is kind) for kind in (Linear, Attention))
    costs = dataclasses.replace(lowered.costs, rates=MULTIPLIES_SLOWLY)
    ledger = Ledger(lowered.program, lowered.blocks, lowered.num_rows, costs, None)
    num_src, num_dst = (lowered.num_rows(*lowered.program.place(one)) for one in (product.out, op.out))
    assert num_dst < num_src
    through = heads * (num_src + lowered.blocks[0].of(None).csc.num_edges)
    assert ledger.forward(product) == ledger.backward(product) == Work()
    assert ledger.forward(op).flops == 2 * CHANNELS * (num_dst * width + through)
    assert ledger.backward(op).flops == 2 * CHANNELS * (2 * num_dst * width + through)


@needs_kernels
def test_rows_that_a_cores_cache_does_not_hold_come_from_the_one_behind_it():
    graph, program = make_graph(), two_layers()
    csc, inner, rows = graph.csc, 16 * 2 * 32, NUM_NODES * 32  # 16 pairs of rows of 8 columns
    missed = (1 - cached_share(Csc(csc.indptr, csc.indices // 2, csc.num_src), None, 16)) * csc.num_edges * 64
    streams, gathered = rows + 4 * csc.num_edges + 8 * (NUM_NODES + 1), 64 * csc.num_edges
    work = {"flops": 2 * csc.num_edges * 8, "cached_bytes": gathered}
    aggregate = program.ops[1]
    # the outer cache holds everything: the rows' first reads are among those that miss
    found = make_ledger(program, graph, (inner, 1 << 20)).forward(aggregate)
    assert found == Work(outer_stream_bytes=streams, outer_bytes=pytest.approx(missed), **work)
    # it holds the rows alone: each comes from memory once
    found = make_ledger(program, graph, (inner, rows)).forward(aggregate)
    assert found == Work(
        stream_bytes=streams + rows, outer_bytes=pytest.approx(max(0, missed - rows)), **work
    )
    # it holds a few: what misses there is not found there
    few = make_ledger(program, graph, (inner, 2 * inner)).forward(aggregate)
    assert few.random_bytes > 0
    assert few.random_bytes + few.outer_bytes == pytest.approx(missed)
    # and a product of matrices that only the outer cache holds
    product = make_ledger(program, graph, (inner, 1 << 20)).forward(program.ops[0])
    assert product.outer_stream_bytes == 4 * NUM_NODES * (CHANNELS + 8) + 4 * 8 * CHANNELS


@pytest.mark.parametrize("path", ["sparse", "binary"])
def test_features_cross_the_memory_in_the_form_that_products_read(path):
    graph = make_graph(density=0.25, binary="ones")
    program = two_layers().rewritten(two_layers().ops, input_path=path)
    ledger = make_ledger(program, graph)
    work, cells = ledger.forward(program.ops[0]), NUM_NODES * CHANNELS
    density = float((graph.x != 0).float().mean())
    features = {"sparse": 8 * density * cells, "binary": cells / 8}[path]
    assert work.stream_bytes == pytest.approx(features + 4 * NUM_NODES * 8 + 4 * 8 * CHANNELS)
    assert work.flops == pytest.approx({"sparse": 2 * 8 * density * cells, "binary": 0}[path])
    assert work.bit_seconds == (RATES.binary_seconds(NUM_NODES, CHANNELS, 8) if path == "binary" else 0)


@pytest.mark.parametrize("name", MODELS)
def test_every_task_has_a_row(name):
    engine = graphbraid.compile(MODELS[name](), make_graph(weighted=name == "gcn"))
    floor = engine.floor(measure=True)
    rows = [task.name for operation in floor.operations for task in operation.tasks]
    planned = [task.name for task in engine.runner.training_step.plan.tasks if task.name != "loss"]
    assert sorted(rows) == sorted([*planned, "outputs", "gradient of the outputs"])
    assert all(operation.floor_seconds >= 0 for operation in floor.operations)
    assert floor.step_seconds > 0
    assert floor.ratio == floor.step_seconds / floor.floor_seconds
    assert json.loads(json.dumps(floor.to_json()))["ratio"] == floor.ratio


def test_times_are_those_between_two_looks_at_the_clock():
    graph, program = make_graph(), two_layers()
    ticks = itertools.count()
    blocks = whole_graph(graph.csc, 2)
    request = StepRequest(program=program, graph=graph, blocks=blocks, training=True)
    timed = TimedStep(request, wait=lambda: None, clock=lambda: float(next(ticks)))
    timed.allocate()
    times = timed.measured(None, NUM_NODES, repeats=3)
    assert {task.seconds for task in times.tasks} == {1.0}  # also of handing outputs and their gradient over
    assert [task.name for task in times.tasks if not task.operation] == ["outputs", "gradient of the outputs"]
    assert times.seconds == 1.0  # steps that nobody looks into
    floor = floor_of(program, make_ledger(program, graph), RATES, num_nodes=NUM_NODES, times=times)
    assert floor.between_seconds == 1.0 - sum(task.seconds for task in times.tasks)


@pytest.mark.parametrize("name", ["gcn", "batch", "gat"])
def test_measuring_changes_nothing(name):
    """Measure between forward and backward; compare outputs, gradients, statistics and what comes next."""

    def train(*, measure):
        torch.manual_seed(3)
        model, graph = MODELS[name](), make_graph()
        engine, found = graphbraid.compile(model, graph), []
        for _ in range(2):
            out = engine()
            if measure:
                engine.explain(measure=True)
            out.square().sum().backward()
            found += [out.detach().clone(), *[p.grad.clone() for p in model.parameters()]]
        return [*found, *model.buffers(), torch.get_rng_state(), engine.predict()]

    for plain, measured in zip(train(measure=False), train(measure=True), strict=True):
        assert torch.equal(plain, measured)


def test_explain_prints_the_floor_and_the_times_when_asked(monkeypatch):
    engine = graphbraid.compile(gnn.GCN(CHANNELS, 8, CLASSES, 2), make_graph())
    said = engine.explain()
    assert "ms is the least a step can take" in said
    assert "measured steps" not in said
    name = engine.program.ops[0].out
    times = StepTimes(
        tasks=(
            TaskTime(name="first", operation=name, backward=False, seconds=2.0),
            TaskTime(name="second", operation=name, backward=False, seconds=1.0),
        ),
        seconds=5.0,
    )
    monkeypatch.setattr(TimedStep, "measured", lambda *_: times)
    said = engine.explain(measure=True)
    assert "5000.000 ms is the median of measured steps" in said
    assert "2000.000 ms of it between the tasks" in said
    row = next(line for line in said.splitlines() if f"-> {name}" in line)
    assert "3000.000" in row
    assert sum(line.strip().startswith(("first", "second")) for line in said.splitlines()) == 2


def test_a_copy_that_does_not_fit_is_refused(monkeypatch):
    engine = graphbraid.compile(gnn.GCN(CHANNELS, 8, CLASSES, 2), make_graph())
    monkeypatch.setattr(Host, "free_bytes", lambda _: 100)
    with pytest.raises(ResourceError, match="the whole graph needs"):
        engine.floor(measure=True)


def test_a_device_is_measured_too():
    graph = make_graph()
    model, nodes = gnn.GCN(CHANNELS, 8, CLASSES, 2), graph.split("train")
    engine = graphbraid.fullgraph.Engine(
        model, graph, nodes, CompileOptions(rates=RATES, device=FakeDevice())
    )
    floor = engine.floor(measure=True)
    assert floor.step_seconds > 0
    assert not any(operation.work.random_bytes for operation in floor.operations)  # no cache is modelled
