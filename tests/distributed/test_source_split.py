"""Backward of maxima and attention: the halo's gradients depart before own rows', to the same bits."""

import pytest
import torch
from tests.distributed.threads import noted_calls
from tests.distributed.whole import RATES, as_processes, assert_as_one_rank, blocks
from tests.fullgraph.graphs import CHANNELS, CLASSES
from tests.fullgraph.test_engine import MODELS
from tests.suites import few_of

from graphbraid import native
from graphbraid.estimates.full_ranks import step_of
from graphbraid.fullgraph import Engine, Evidence
from graphbraid.fullgraph.step.operations import edges as maximum
from graphbraid.fullgraph.step.operations import gat as attention
from graphbraid.fullgraph.step.operations.row_exchange import RowExchange

SPLIT = (
    *("sage max", "sage projected max, rows of length 1", "gat", "gat residual", "first of equals"),
    *("gat of edges", "gat of edges, loops of their own"),
)
EDGE_FEATURES = 3


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    """Threads do as processes do."""
    as_processes(monkeypatch)


def model_of(name, dropout):
    if name in MODELS:
        return MODELS[name](dropout=dropout)
    pyg = pytest.importorskip("torch_geometric.nn")
    if "of edges" in name:
        return OfEdges(pyg, dropout, OF_EDGES[name])
    return pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES, aggr="max", dropout=dropout)


OF_EDGES = {
    "gat of edges": {"fill_value": 0.5},
    "gat of edges, loops of their own": {"fill_value": "mean"},
    "gat of edges without loops": {"add_self_loops": False},
    "gat of edges under a mask": {"dropout": 0.5},
}


class OfEdges(torch.nn.Module):
    """Two layers of attention to edge features, of which the second one's rows travel."""

    def __init__(self, pyg, dropout, options):
        super().__init__()
        options = options | {"edge_dim": EDGE_FEATURES}
        self.first = pyg.GATConv(CHANNELS, 4, heads=2, **options)
        self.second = pyg.GATConv(8, CLASSES, heads=2, concat=False, **options)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x, edge_index, edge_attr):
        return self.second(self.dropout(self.first(x, edge_index, edge_attr).relu()), edge_index, edge_attr)


def graph_of(name, num_ranks, *, loops):
    """The graph, with features of its edges if the model reads them, and the owner of each node."""
    graph, parts = blocks(num_ranks, loops=loops)
    if "of edges" in name:
        draw = torch.Generator().manual_seed(4)
        graph = graph.replace(edge_attr=torch.randn(graph.num_edges, EDGE_FEATURES, generator=draw))
    return graph, parts


def learned(name, dropout, num_ranks, *, loops):
    torch.manual_seed(3)
    graph, parts = graph_of(name, num_ranks, loops=loops)
    found = assert_as_one_rank(model_of(name, dropout), graph, parts, epochs=3)
    plans = [rank["engine"].runner._train._plan for rank in found]
    return found, [bool(plan.exchanges.source_splits) for plan in plans]


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize(
    ("dropout", "num_ranks", "loops"), few_of(((0.0, 2, False), (0.5, 3, True)), {(0.5, 3, True)})
)
def test_own_rows_apart_from_the_halo_have_the_bits_of_both_together(
    name, dropout, num_ranks, loops, monkeypatch
):
    split, has_split = learned(name, dropout, num_ranks, loops=loops)
    assert all(has_split) == (native.kernels() is not None or not name.startswith("gat"))
    for module in (attention, maximum):
        monkeypatch.setattr(module, "exchange_before", lambda *_: None)
    whole, has_split = learned(name, dropout, num_ranks, loops=loops)
    assert not any(has_split)
    for one, other in zip(split, whole, strict=True):
        assert one["losses"] == other["losses"]
        for key, value in one["state"].items():
            assert torch.equal(value, other["state"][key]), key


@pytest.mark.parametrize(
    ("name", "is_split"),
    [("gat of edges", True), ("gat of edges without loops", True), ("gat of edges under a mask", False)],
)
def test_coefficients_of_edges_go_first_but_under_a_mask_as_is_predicted(name, is_split):
    """One number tells the kernel where an edge's logit is and, under dropout, which mask it draws."""
    _, has_split = learned(name, 0.0, 2, loops=True)
    if native.kernels() is not None:  # the twin of the kernel looks at all edges
        assert has_split == [is_split] * 2
    graph, _ = graph_of(name, 2, loops=True)
    alone = Engine(model_of(name, 0.0), graph, "train", evidence=Evidence(rates=RATES))
    step = step_of(alone.lowered, alone.floor())
    assert any(segment.reader_splits for segment in step.segments) == is_split


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sage max", "gat", "gat of edges"])
def test_own_rows_are_computed_between_departure_and_wait(name, monkeypatch):
    if native.kernels() is None and name.startswith("gat"):
        pytest.skip("the reference computes the halo's gradients with the others")
    seen, note = noted_calls(monkeypatch)
    note(RowExchange, "begin_back", "back")
    note(RowExchange, "add", "add")
    found, _ = learned(name, 0.0, 2, loops=False)
    for rank in found:
        tasks = [task.name for task in rank["engine"].runner._train.tasks]
        halos = [number for number, name in enumerate(tasks) if name.endswith(": halo")]
        assert halos
        for halo in halos:
            assert tasks[halo + 1].endswith(": depart") and tasks[halo + 2].endswith(": own")
    assert all("back add" in " ".join(events) for events in seen.values())
