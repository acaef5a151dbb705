"""Maxima and attention begin with rows that read no halo, and learn what one rank does."""

import pytest
import torch
from tests.distributed.threads import noted_calls
from tests.distributed.whole import as_processes, assert_as_one_rank, owners
from tests.fullgraph.graphs import CHANNELS, CLASSES
from tests.fullgraph.test_engine import MODELS

from graphbraid import native
from graphbraid import nn as gnn
from graphbraid.fullgraph.step.calls.travel import Travel
from graphbraid.fullgraph.step.planned.exchanges import row_split
from graphbraid.fullgraph.step.planned.exchanges.row_split import RowSplit
from graphbraid.graph import Graph
from graphbraid.graph.csc import coo_to_csc
from graphbraid.synth.emit.recorded import RecordedStep

NODES = 60


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    """Threads do as processes do."""
    as_processes(monkeypatch)


def blocks(num_blocks, *, loops=False):
    """A graph whose blocks are joined by few edges, with a node without any, and the owner of each node."""
    draw = torch.Generator().manual_seed(1)
    part_of = torch.arange(NODES) % num_blocks  # ids do not follow the blocks
    src, dst = torch.randint(NODES, (2, 900), generator=draw)
    kept = (part_of[src] == part_of[dst]) & (dst != 7) & (loops | (src != dst))
    cross = torch.tensor([[0, 1, 2, 5], [1, 2, 3, 4]])
    src, dst = torch.cat((src[kept], cross[0])), torch.cat((dst[kept], cross[1]))
    csc, _ = coo_to_csc(src, dst, NODES, NODES)
    graph = Graph(
        csc=csc,
        x=torch.randn(NODES, CHANNELS, generator=draw),
        y=torch.randint(CLASSES, (NODES,), generator=draw),
        splits={"train": torch.randperm(NODES, generator=draw)[:40]},
    )
    return graph, owners(part_of, num_blocks)


def splits_of(found):
    """The row splits that each rank has made."""
    return [
        [
            split
            for split in rank["engine"].runner._train._plan.divided.row_splits.values()
            if split is not None
        ]
        for rank in found
    ]


@pytest.mark.parametrize(
    "name", ["sage max", "sage projected max, rows of length 1", "gat", "gat residual", "gatv2"]
)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_losses_are_those_of_one_rank(name, dropout):
    torch.manual_seed(3)
    found = assert_as_one_rank(MODELS[name](dropout=dropout), *blocks(2), epochs=6)
    assert all(splits_of(found))


def test_the_first_of_equal_maxima_stays_the_first():
    pyg = pytest.importorskip("torch_geometric.nn")

    class First(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = pyg.SAGEConv(CHANNELS, 8, aggr="max")
            self.second = pyg.SAGEConv(8, CLASSES, aggr="max")

        def forward(self, x, edge_index):
            return self.second(self.first(x, edge_index).relu(), edge_index)

    torch.manual_seed(3)
    found = assert_as_one_rank(First(), *blocks(3), epochs=6)
    assert all(splits_of(found))


@pytest.mark.slow
def test_stored_self_loops_wait_with_the_loops_that_attention_adds():
    torch.manual_seed(3)
    found = assert_as_one_rank(MODELS["gat"](dropout=0.5), *blocks(2, loops=True), epochs=6)
    assert not any(splits_of(found))
    torch.manual_seed(3)
    model = gnn.GAT(CHANNELS, 16, CLASSES, 2, heads=4, add_self_loops=False)
    assert all(splits_of(assert_as_one_rank(model, *blocks(2, loops=True), epochs=6)))


def test_where_too_few_rows_could_begin_all_wait(monkeypatch):
    monkeypatch.setattr(row_split, "LEAST_SHARE", 0.9)
    graph, _ = blocks(2)
    torch.manual_seed(3)
    mixed = owners(torch.randint(2, (NODES,), generator=torch.Generator().manual_seed(0)), 2)
    assert not any(splits_of(assert_as_one_rank(MODELS["sage max"](), graph, mixed, epochs=2)))


@pytest.mark.parametrize("name", ["sage max", "gat"])
def test_inner_rows_are_computed_between_departure_and_wait(name, monkeypatch):
    seen, note = noted_calls(monkeypatch)
    note(Travel, "begin_packed", "depart")
    note(Travel, "wait", "wait")
    note(RowSplit, "put", "outer")
    torch.manual_seed(3)
    found = assert_as_one_rank(MODELS[name](), *blocks(2), epochs=1)
    for rank in found:
        plan = rank["engine"].runner._train._plan
        names = [task.name.rpartition(": ")[2] for task in plan.tasks]
        assert names[names.index("inner rows") + 1] == "wait"
        assert "rows depart" in names[: names.index("inner rows")]
    texts = [" ".join(events) for events in seen.values() if "depart" in events]
    assert len(texts) == len(found)
    assert all("depart wait outer" in text for text in texts)


@pytest.mark.skipif(native.kernels() is None, reason="programs are written from the compiled kernels' calls")
def test_a_generated_program_waits_for_all_rows():
    torch.manual_seed(3)
    for rank in assert_as_one_rank(MODELS["sage max"](), *blocks(2), epochs=1):
        lowered, comm = rank["engine"].runner.lowered, rank["engine"].ranks.comm
        step = RecordedStep(lowered.program, lowered.graph, lowered.blocks, training=True, comm=comm)
        assert not any(task.name.endswith("inner rows") for task in step._plan.tasks)
