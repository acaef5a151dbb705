"""What a training step takes of the allocator; lent memory is used again, and never too early."""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fullgraph.graphs import CHANNELS, CLASSES, make_graph
from tests.fullgraph.test_engine import MODELS, loss_of
from tests.kernels import needs_kernels
from torch.profiler import ProfilerActivity, profile

import graphbraid
from graphbraid import Graph, native
from graphbraid import nn as gnn
from graphbraid.fullgraph.program import Hoisted
from graphbraid.fullgraph.step.tasks import Arena, Buffer, BufferPool, StepTask, most_live_bytes, place
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


def graph_of(num_nodes, kind):
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
    graph = graph_of(num_nodes, kind)
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


@needs_kernels
def test_values_computed_once_leave_nothing_in_the_kernels_pool():
    graph, before = graph_of(30_000, "plain"), native.kernels().pool_bytes()
    engine = graphbraid.compile(gnn.GCN(CHANNELS, 16, CLASSES, 2), graph, spare_bytes=1 << 28)
    assert any(isinstance(op, Hoisted) for op in engine.program.ops)
    engine()
    assert native.kernels().pool_bytes() == before


@pytest.mark.parametrize("set_to_none", [True, False])
def test_an_optimizer_s_steps_take_no_gradients_anew(set_to_none):
    torch.manual_seed(0)
    model, graph = STACKS["gcn"](), graph_of(90, "plain")
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


# ---- lent memory


KEEPERS = {
    "itself": lambda t: t,
    "a view": lambda t: t[0, 1:2],
    "detached": lambda t: t.detach(),
    "an array": lambda t: t.numpy()[:1],
    "a storage": lambda t: t.untyped_storage(),
    "what autograd saved": lambda t: (t * torch.ones(2, 3, requires_grad=True)).sum(),
}


@pytest.mark.parametrize("keeper", KEEPERS)
def test_memory_that_something_reads_is_not_lent_again(keeper):
    lender = BufferPool((2, 3))
    tensor = lender.lend()
    address = tensor.data_ptr()
    kept = KEEPERS[keeper](tensor)
    del tensor
    assert lender.lend().data_ptr() != address
    del kept
    gc.collect()
    assert lender.lend().data_ptr() == address


@given(st.lists(st.integers(0, 5), max_size=40))
def test_no_two_tensors_that_live_share_a_byte(moves):
    lender, alive = BufferPool((3,)), {}
    for number, slot in enumerate(moves):
        alive[slot] = lender.lend().fill_(number), number
        for tensor, expected in alive.values():
            assert tensor.tolist() == [expected] * 3


def test_memory_of_many_kept_tensors_is_given_back():
    lender = BufferPool((4,))
    kept = [lender.lend() for _ in range(50)]
    assert len({t.data_ptr() for t in kept}) == 50
    assert len(lender._memories) < 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_lent_tensor_is_like_any_other(dtype):
    lent = BufferPool((2, 5), dtype).lend()
    assert (lent.shape, lent.dtype, lent.is_contiguous()) == ((2, 5), dtype, True)
    assert BufferPool((0, 5), dtype).lend().shape == (0, 5)
    torch.testing.assert_close(lent.fill_(2.0).mul_(3.0), torch.full((2, 5), 6.0, dtype=dtype))


# How a caller may treat p.grad between two steps.
HABITS = {
    "to none": lambda parameters, _: [setattr(p, "grad", None) for p in parameters],
    "to zero": lambda parameters, _: [p.grad.zero_() for p in parameters if p.grad is not None],
    "added up": lambda parameters, _: None,
    "kept": lambda parameters, kept: (
        kept.extend((p.grad, p.grad.clone()) for p in parameters if p.grad is not None),
        [setattr(p, "grad", None) for p in parameters],
    ),
}


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("name", ["gcn", "gat", "batch norm, gelu", "layer norm, elu"])
def test_gradients_are_the_model_s_whatever_is_done_with_them(name, habit):
    graph = make_graph(sparse=name == "gcn", density=0.3)
    torch.manual_seed(1)
    model = MODELS[name](dropout=0.0)
    engine, parameters = graphbraid.compile(model, graph), list(model.parameters())
    train = graph.split("train")

    def grads(outputs):
        kept, seen = [], []
        for parameter in parameters:
            parameter.grad = None
        for _ in range(4):
            HABITS[habit](parameters, kept)
            loss_of(outputs(), graph).backward()
            seen += [torch.zeros(()) if p.grad is None else p.grad.clone() for p in parameters]
        for gradient, copy in kept:
            assert torch.equal(gradient, copy), "a gradient that was kept has changed"
        return seen

    ours, theirs = grads(engine), grads(lambda: model(graph.x, graph.csc)[train])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=5e-5)


def test_a_gradient_becomes_the_parameter_s_without_a_copy(monkeypatch):
    lent = []
    lend = BufferPool.lend
    monkeypatch.setattr(BufferPool, "lend", lambda self: [lent.append((t := lend(self)).data_ptr()), t][1])
    graph, model = make_graph(), MODELS["sage"](dropout=0.0)
    loss_of(graphbraid.compile(model, graph)(), graph).backward()
    assert {p.grad.data_ptr() for p in model.parameters()} <= set(lent)


def test_outputs_that_are_kept_stay_as_they_are():
    graph, model = make_graph(), MODELS["gcn"](dropout=0.0)
    engine = graphbraid.compile(model, graph)
    kept = []
    for step in range(5):
        with torch.no_grad():
            next(model.parameters()).add_(0.1 * step)
        kept += [(t, t.detach().clone()) for t in (engine(), engine.predict())]
    assert kept[0][0].shape == (len(graph.split("train")), CLASSES)
    for output, copy in kept:
        assert torch.equal(output, copy)
    assert not torch.equal(kept[0][0], kept[-2][0])
