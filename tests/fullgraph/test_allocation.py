"""The steady state: what a training step still takes of the allocator, counted by torch's profiler."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fullgraph.graphs import CHANNELS, CLASSES
from torch.profiler import ProfilerActivity, profile

import graphbraid
from graphbraid import Graph
from graphbraid import nn as gnn
from graphbraid.fullgraph.step.tasks import Arena, Buffer, StepTask, most_live_bytes, place
from graphbraid.graph.csc import Csc, coo_to_csc
from graphbraid.graph.sparse_features import SparseFeatures

SEED_BYTES = 8  # a dropout mask's seed is drawn as a tensor of one number
OPTIONS = {"norm": "layer", "dropout": 0.3}
STACKS = {  # no kernel of these leaves anything behind
    "gcn": lambda: gnn.GCN(CHANNELS, 16, CLASSES, 3, dropout=0.3),
    "gcn, layer norm, elu": lambda: gnn.GCN(CHANNELS, 16, CLASSES, 3, act="elu", **OPTIONS),
    "sage": lambda: gnn.GraphSAGE(CHANNELS, 16, CLASSES, 2, dropout=0.3),
    "sage sum": lambda: gnn.GraphSAGE(CHANNELS, 16, CLASSES, 2, aggr="sum"),
    "sage max": lambda: gnn.GraphSAGE(CHANNELS, 16, CLASSES, 2, aggr="max", project=True),
    "mlp": lambda: gnn.MLP(CHANNELS, 16, CLASSES, 2),
}
OTHERS = {  # these take vectors of a layer's width
    "gin": lambda: gnn.GIN(CHANNELS, 16, CLASSES, 2),
    "gin, learned eps": lambda: gnn.GIN(CHANNELS, 16, CLASSES, 2, train_eps=True),
    "sage, rows of length 1": lambda: gnn.GraphSAGE(CHANNELS, 16, CLASSES, 2, normalize=True),
    "gat": lambda: gnn.GAT(CHANNELS, 16, CLASSES, 2, heads=2),
    "gatv2": lambda: gnn.GATv2(CHANNELS, 16, CLASSES, 2, heads=2),
}
GRAPHS = ("plain", "weighted", "sparse", "columns first")


def make_graph(num_nodes, kind):
    draw = torch.Generator().manual_seed(0)
    ends = torch.randint(num_nodes, (2, 6 * num_nodes), generator=draw)
    csc, _ = coo_to_csc(*ends, num_nodes, num_nodes)
    if kind == "weighted":
        csc = Csc(csc.indptr, csc.indices, num_nodes, torch.rand(csc.num_edges, generator=draw))
    x = torch.randn(num_nodes, CHANNELS, generator=draw)
    if kind == "sparse":
        x = SparseFeatures.from_dense(x * (x > 1.5))
    elif kind == "columns first":
        x = x.t().contiguous().t()
    return Graph(csc=csc, x=x, splits={"train": torch.arange(0, num_nodes, 3)})


def allocations(run):
    """Bytes of each allocation that ``run`` makes on the CPU."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        run()
    events = recorded.profiler.kineto_results.events()
    return [e.nbytes() for e in events if e.name() == "[memory]" and e.nbytes() > 0]


def steady(model, num_nodes, kind):
    """Allocations of forward and backward once they have run a few times, and of a prediction."""
    graph = make_graph(num_nodes, kind)
    engine, grad = graphbraid.compile(model, graph), torch.ones(len(graph.split("train")), CLASSES)

    def step():
        model.zero_grad()
        engine().backward(grad)

    for _ in range(3):
        step()
        engine.predict()
    return allocations(step), allocations(engine.predict)


def test_what_is_allocated_is_counted():
    assert allocations(lambda: torch.zeros(1000)) == [4000]


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("name", STACKS)
def test_a_step_allocates_nothing_but_its_seeds(name, kind):
    torch.manual_seed(0)
    model = STACKS[name]()
    training, predicting = steady(model, 90, kind)
    assert set(training) <= {SEED_BYTES}
    assert len(training) <= model.num_layers - 1
    assert predicting == []


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("name", OTHERS)
def test_what_a_step_allocates_does_not_grow_with_the_graph(name, kind):
    torch.manual_seed(0)
    model = OTHERS[name]()
    small, large = (steady(model, count, kind) for count in (90, 360))
    assert small == large


@pytest.mark.parametrize("set_to_none", [True, False])
def test_an_optimizer_s_steps_take_no_gradients_anew(set_to_none):
    torch.manual_seed(0)
    model, graph = STACKS["gcn"](), make_graph(90, "plain")
    engine, optimizer = graphbraid.compile(model, graph), torch.optim.Adam(model.parameters(), fused=True)
    grad = torch.ones(len(graph.split("train")), CLASSES)

    def step():
        optimizer.zero_grad(set_to_none=set_to_none)
        engine().backward(grad)
        optimizer.step()

    for _ in range(4):
        step()
    largest = max(4 * p.numel() for p in model.parameters())
    assert max(allocations(step)) < largest


INTERVALS = st.lists(
    st.tuples(st.integers(1, 4000), st.integers(0, 30), st.integers(0, 10)), min_size=1, max_size=40
)


def buffers_of(intervals):
    return [
        Buffer(str(i), (rows, 1), first=first, last=first + length)
        for i, (rows, first, length) in enumerate(intervals)
    ]


@given(INTERVALS)
def test_buffers_alive_together_stand_apart(intervals):
    buffers = buffers_of(intervals)
    total = place(buffers)
    for i, a in enumerate(buffers):
        assert 0 <= a.offset <= total - a.nbytes
        for b in buffers[:i]:
            together = a.first <= b.last and b.first <= a.last
            assert not together or a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
    assert most_live_bytes(buffers) <= total <= sum(b.nbytes for b in buffers)


def test_buffers_that_follow_each_other_share_bytes():
    a, b, c = (Buffer(name, (100, 8)) for name in "abc")
    tasks = [StepTask("1", lambda: None, (a, b)), StepTask("2", lambda: None, (b, c))]
    arena = Arena(tasks)
    assert arena.nbytes == arena.least_bytes == 2 * a.nbytes
    assert arena.separate_bytes == 3 * a.nbytes
    arena.allocate()
    assert a.tensor.data_ptr() == c.tensor.data_ptr()
    assert a.tensor.data_ptr() % 64 == 0
    assert a.tensor.shape == (100, 8)


def test_a_kept_buffer_outlives_the_last_task():
    a, b = Buffer("a", (10, 1)), Buffer("b", (10, 1))
    tasks = [StepTask("1", lambda: None, (a,)), StepTask("2", lambda: None, (b,))]
    assert Arena(tasks).nbytes == a.nbytes
    assert Arena(tasks, keep=[a]).nbytes == 2 * a.nbytes


def test_each_dtype_gets_its_bytes():
    half, wide = Buffer("h", (7, 3), torch.bfloat16), Buffer("w", (7, 3), torch.float64)
    arena = Arena([StepTask("1", lambda: None, (half, wide))])
    arena.allocate()
    half.tensor.fill_(1)
    wide.tensor.fill_(2)
    assert (half.tensor == 1).all()
    assert (wide.tensor == 2).all()
    assert arena.nbytes == 64 + 192
