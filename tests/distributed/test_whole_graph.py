"""Ranks that divide a whole graph learn what one rank does: every model, graph and partition."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.distributed.threads import noted_calls, run_threads
from tests.distributed.whole import assert_as_one_rank, mixed, owners
from tests.fullgraph.graphs import CHANNELS, CLASSES, make_graph
from tests.fullgraph.test_engine import GRAPHS, MODELS
from tests.modules import module_of
from tests.suites import every, few_of

import graphbraid
from graphbraid import nn as gnn
from graphbraid.distributed import STRATEGIES, Division, partition, report_of
from graphbraid.errors import ConfigError
from graphbraid.fullgraph import ALL, CompileOptions, NotLoweredError, Ranks, distribute, lower
from graphbraid.fullgraph.program import Exchange, Hoisted, Messages, ReadRows
from graphbraid.fullgraph.reading.watch import options_of
from graphbraid.fullgraph.step.features import LinearMap
from graphbraid.fullgraph.step.operations.row_exchange import RowExchange
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.machine.hardware import Rates

DIVISIBLE = sorted(MODELS.keys() - {"mlp"})
PAIRS = (CHANNELS, 8), (8, CLASSES)
QUICK = ("gcn", "sage max", "gat", "batch norm, gelu")


pytestmark = pytest.mark.usefixtures("threads")


def make_model(name, **options):
    torch.manual_seed(3)
    return MODELS[name](**options)


@pytest.mark.parametrize("size", few_of((2, 3, 4), {3}))
@pytest.mark.parametrize("name", few_of(DIVISIBLE, QUICK))
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_losses_of_every_model_are_those_of_one_rank(name, size, dropout):
    assert_as_one_rank(make_model(name, dropout=dropout), make_graph(), mixed(size))


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("name", few_of(["gcn", "sage", "sage max", "gin", "gat", "gatv2"], {"gcn"}))
def test_so_they_are_on_graphs_of_every_kind(name, kind):
    assert_as_one_rank(make_model(name, dropout=0.3), make_graph(**GRAPHS[kind]), mixed(3))


@pytest.mark.slow
@pytest.mark.parametrize("left_out", every(2, sorted(ALL)))
def test_so_they_are_whatever_pass_is_left_out(left_out):
    model = gnn.GraphSAGE(CHANNELS, 16, CLASSES, 3, norm="layer", dropout=0.5)
    assert_as_one_rank(model, make_graph(), mixed(3), passes=ALL - {left_out}, epochs=6)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", few_of(STRATEGIES, {"metis", "streaming"}))
def test_every_strategy_divides_the_work(strategy):
    if strategy == "metis":
        pytest.importorskip("pymetis")
    graph = make_graph(symmetric=True)
    assert_as_one_rank(make_model("gcn"), graph, partition(graph, 3, strategy=strategy), epochs=5)


@pytest.mark.slow
@pytest.mark.parametrize("name", every(2, QUICK))
def test_a_rank_without_any_node_takes_part(name):
    assert_as_one_rank(make_model(name, dropout=0.5), make_graph(), owners([0, 3] * 40, 4), epochs=6)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["first", "between"])
@pytest.mark.parametrize("size", [2, 4])
def test_batch_normalisation_is_by_all_ranks_rows(size, place):
    model = gnn.GCN(CHANNELS, 16, CLASSES, 3, norm="batch", dropout=0.2)
    if place == "first":  # before any row has travelled
        pytest.importorskip("torch_geometric")
        model = NormFirst()
    graph = make_graph(train=60)
    found = assert_as_one_rank(model, graph, mixed(size), epochs=10)
    exchanges = [op for op in found[0]["engine"].program.ops if isinstance(op, Exchange)]
    assert exchanges


class NormFirst(torch.nn.Module):
    """Normalises the features' rows before they are aggregated."""

    def __init__(self):
        super().__init__()
        from torch_geometric.nn import GCNConv

        self.first = torch.nn.Linear(CHANNELS, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.conv = GCNConv(16, CLASSES)

    def forward(self, x, edge_index):
        return self.conv(self.norm(self.first(x)).relu(), edge_index)


@pytest.mark.slow
def test_edge_features_stay_with_their_edges():
    pyg = pytest.importorskip("torch_geometric.nn")
    graph = make_graph()
    attr = torch.randn(graph.num_edges, 3, generator=torch.Generator().manual_seed(2))
    model = module_of(
        lambda self, x, edge_index, edge_attr: self.second(
            self.first(x, edge_index, edge_attr).relu(), edge_index, edge_attr
        ),
        first=pyg.GATv2Conv(CHANNELS, 8, edge_dim=3),
        second=pyg.GATConv(8, CLASSES, edge_dim=3),
    )
    assert_as_one_rank(model, graph.replace(edge_attr=attr), mixed(3), epochs=6)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_queries_and_roots_of_own_rows_do_not_travel(size):
    """Pruned levels map queries for their destinations alone, and messages of theirs read no other rank's."""
    pyg = pytest.importorskip("torch_geometric.nn")
    convs = [(pyg.TransformerConv(*channels), "x, edge_index -> x") for channels in PAIRS]
    model = pyg.Sequential("x, edge_index", [convs[0], torch.nn.Tanh(), convs[1]])
    for rank in assert_as_one_rank(model, make_graph(), mixed(size), epochs=6):
        program = rank["engine"].program
        for op in program.ops:
            if not isinstance(op, Messages):
                continue
            sources = {place for _, role, place in op.reads if role is ReadRows.SOURCE}
            received = {place for place in range(len(op.inputs)) if _is_received(program, op.inputs[place])}
            assert received <= sources


def _is_received(program, value):
    return isinstance(program.producer(value), Exchange)


@pytest.mark.slow
def test_attention_whose_destinations_have_rows_of_their_own():
    pyg = pytest.importorskip("torch_geometric.nn")
    of_pairs = module_of(
        lambda self, x, edge_index: self.second((self.first(x, edge_index).relu(), x), edge_index),
        first=pyg.GATConv((CHANNELS, CHANNELS), 8),
        second=pyg.GATConv((8, CHANNELS), CLASSES, add_self_loops=False),
    )
    assert_as_one_rank(of_pairs, make_graph(), mixed(3), epochs=6)


@st.composite
def divided_graphs(draw):
    """A graph with any edges, self-loops and repeated ones among them, and any owner of each node."""
    num_nodes = draw(st.integers(2, 12))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=30))
    src, dst = (torch.tensor([edge[i] for edge in edges], dtype=torch.int64) for i in range(2))
    csc, _ = coo_to_csc(src, dst, num_nodes, num_nodes)
    random = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    if draw(st.booleans()):
        csc = Csc(csc.indptr, csc.indices, num_nodes, torch.rand(csc.num_edges, generator=random) + 0.1)
    train = draw(st.lists(node, min_size=1, unique=True))
    graph = Graph(
        csc=csc,
        x=torch.randn(num_nodes, CHANNELS, generator=random),
        y=torch.randint(0, CLASSES, (num_nodes,), generator=random),
        splits={"train": torch.tensor(train)},
    )
    size = draw(st.integers(1, 4))
    parts = draw(st.lists(st.integers(0, size - 1), min_size=num_nodes, max_size=num_nodes))
    return graph, owners(parts, size)


@pytest.mark.slow
@given(divided=divided_graphs(), name=st.sampled_from(DIVISIBLE), dropout=st.sampled_from([0.0, 0.5]))
def test_any_graph_divided_in_any_way(divided, name, dropout):
    graph, parts = divided
    assert_as_one_rank(make_model(name, dropout=dropout), graph, parts, epochs=3)


# ---- what travels


@pytest.mark.parametrize("name", ["gcn", "sage", "gat"])
def test_without_pruning_the_rows_sent_are_those_of_the_partition_report(name):
    graph, parts = make_graph(train=60), mixed(3)
    report = report_of(parts, Division(graph, parts).outlines)
    passes = ALL - {"prune"}
    found = assert_as_one_rank(make_model(name), graph, parts, passes=passes, epochs=1)
    for rank, said in enumerate(found):
        sent = sum(line[rank] for line in report.halo)
        received = sum(report.halo[rank])
        rows = said["engine"].runner.training_step.exchanged_rows
        assert rows
        assert set(rows.values()) == {(sent, received)}


@pytest.mark.slow
def test_with_few_training_nodes_fewer_rows_travel():
    graph, parts = make_graph(train=3), mixed(3)
    model = make_model("gcn")
    counts = []
    for passes in (ALL, ALL - {"prune"}):
        found = assert_as_one_rank(model, graph, parts, passes=passes, epochs=1)
        steps = [one["engine"].runner.training_step for one in found]
        counts.append(sum(sum(rows) for step in steps for rows in step.exchanged_rows.values()))
    assert counts[0] < counts[1]


@pytest.mark.slow
def test_bytes_on_the_wire_are_those_of_the_rows():
    graph, parts = make_graph(train=60), mixed(2)
    one, three = (assert_as_one_rank(make_model("sage"), graph, parts, epochs=epochs) for epochs in (1, 3))
    for few, many in zip(one, three, strict=True):
        engine = many["engine"]
        comm, rows = engine.ranks.comm, engine.runner.training_step.exchanged_rows
        widths = {value: engine.program.width(value) for value in rows}
        step = sum(4 * widths[value] * sum(counts) for value, counts in rows.items())
        assert comm.sent_bytes - few["engine"].ranks.comm.sent_bytes == 2 * step


def test_hoisted_features_need_no_exchange():
    lowered = lower(make_model("gcn"), make_graph(), "train", CompileOptions(rates=Rates()))
    assert any(isinstance(op, Hoisted) for op in lowered.program.ops)
    part = distribute(lowered, mixed(2), 1)
    exchanged = [op.inputs[0] for op in part.program.ops if isinstance(op, Exchange)]
    assert len(exchanged) == 2  # before the second and the third aggregation


# ---- what is refused


def test_a_model_without_edges_is_refused():
    lowered = lower(make_model("mlp"), make_graph(), "train", CompileOptions(rates=Rates()))
    with pytest.raises(NotLoweredError, match="reads no edges"):
        distribute(lowered, mixed(2), 0)


def test_a_partition_of_another_graph_or_another_rank_is_refused():
    lowered = lower(make_model("gcn"), make_graph(), "train", CompileOptions(rates=Rates()))
    with pytest.raises(ConfigError, match="the partition is of 79 nodes, and the graph has 80"):
        distribute(lowered, mixed(2, 79), 0)
    with pytest.raises(ConfigError, match="rank must be"):
        distribute(lowered, mixed(2), 2)


OTHERS = {  # what one of two ranks has, and what it is told
    "dropout": ({"dropout": 0.2}, "rank 0 has model's dropout '0.5', rank 1 has '0.2'"),
    "heads": ({"heads": 1}, r"rank 0 has model's convs\.0\.out_channels '4', rank 1 has '8'"),
    "slope": ({}, r"rank 0 has model's convs\.1\.negative_slope '0\.2', rank 1 has '0\.4'"),
    "features": ({}, "rank 0 has graph's features"),
    "edges": ({}, "rank 0 has graph's edges"),
    "nodes": ({}, "rank 0 has training nodes"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_ranks_with_another_model_or_graph_of_the_same_shapes_are_refused(what):
    """Each would train, to losses that are of neither."""
    changes, says = OTHERS[what]

    def compiled(comm):
        odd = comm.rank == 1
        options = {"heads": 2, "dropout": 0.5} | (changes if odd else {})
        model, graph = gnn.GAT(CHANNELS, 8, CLASSES, **options), make_graph()
        nodes = graph.splits["train"]
        if what == "slope" and odd:
            model.convs[1].negative_slope = 0.4
        elif what == "features" and odd:
            graph = graph.replace(x=graph.x * 2)
        elif what == "edges" and odd:
            csc = graph.csc
            graph = graph.replace(csc=Csc(csc.indptr, csc.indices.flip(0), csc.num_src))
        elif what == "nodes" and odd:
            nodes = nodes.flip(0)
        graphbraid.compile(model, graph, nodes=nodes, ranks=Ranks(comm=comm, partition=mixed(2)))

    with pytest.raises(ConfigError, match=says):
        run_threads(2, compiled)


def test_the_options_of_a_model_are_known_whatever_holds_them():
    class Model(torch.nn.Module):
        def __init__(self, act, scale, names):
            super().__init__()
            self.act, self.options, self._names = partial(act, 0.1), {"scale": [scale]}, names
            self.table, self.other = torch.arange(3) * scale, object()
            self.conv = pyg.SAGEConv(4, 4, aggr="mean" if scale == 1 else "max")

    pyg = pytest.importorskip("torch_geometric.nn")
    first = options_of(Model(F.leaky_relu, 1, {"a", "b", "c"}))
    assert first == options_of(Model(F.leaky_relu, 1, {"c", "b", "a"}))
    assert (first["act"], first["options"]) == (
        "[torch.nn.functional.leaky_relu, [0.1], []]",
        "[['scale', [1]]]",
    )
    assert "other" not in first  # which text would tell by its address
    second = options_of(Model(F.elu, 2, {"a"}))
    assert {name for name in first if first[name] != second.get(name)} == {
        *("act", "options", "_names", "table", "conv.aggr", "conv.aggr_module class")
    }
    assert options_of(Model(F.elu, 2, {"a" * 500}))["_names"].startswith("['aaa")
    frozen = Model(F.elu, 2, {"a"}).requires_grad_(False)
    assert options_of(frozen)["conv.lin_l.weight requires_grad"] == "False"


@pytest.mark.parametrize(("name", "overlaps"), [("gcn", True), ("sage", True), ("gat", False)])
def test_sums_begin_while_rows_travel(name, overlaps, monkeypatch):
    """Between the departure of rows or gradients and the wait for them an aggregation runs, both ways."""
    seen, note = noted_calls(monkeypatch)
    note(RowExchange, "begin", "depart")
    note(RowExchange, "begin_back", "depart back")
    note(RowExchange, "wait", "wait")
    note(LinearMap, "forward", "sum")
    note(LinearMap, "backward", "sum back")
    found = assert_as_one_rank(make_model(name), make_graph(), mixed(2), epochs=1)
    text = [" ".join(events) for events in seen.values() if "depart" in events]
    assert len(text) == len(found)
    for events in text:
        assert ("depart sum wait sum" in events) == overlaps
        assert ("sum back depart back sum back wait" in events) == overlaps


class Operands(torch.nn.Module):
    """Products of rows, rows of parameters, columns, and a learned row for each node."""

    def __init__(self, num_nodes):
        super().__init__()
        pyg = pytest.importorskip("torch_geometric").nn
        self.conv1, self.conv2 = pyg.GCNConv(CHANNELS + 4, 16), pyg.GCNConv(8, CLASSES)
        self.rows, self.scale = torch.nn.Embedding(num_nodes, 4), torch.nn.Parameter(torch.rand(8))
        self.alpha = torch.nn.Parameter(torch.tensor([0.3, 0.6]))

    def forward(self, x, edge_index):
        x = self.conv1(torch.cat([x, self.rows.weight], 1), edge_index)
        a, b = x.chunk(2, dim=-1)
        x = (1 - self.alpha[0]) * a * torch.sigmoid(b) + self.scale * b
        return self.conv2(x / x.norm(dim=1, keepdim=True).clamp(min=0.1), edge_index)


@pytest.mark.parametrize("size", few_of((2, 3, 4), {3}))
def test_operands_and_learned_rows_are_divided_too(size):
    graph = make_graph()
    assert_as_one_rank(Operands(graph.num_nodes), graph, mixed(size))
