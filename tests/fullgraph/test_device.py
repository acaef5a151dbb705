"""The engine on a device: what is copied there, what is recorded, what a replay must draw anew."""

import contextlib
import importlib
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from tests.extras import NO_PYG
from tests.fullgraph.fake_device import FakeDevice
from tests.fullgraph.graphs import make_graph, unlowerable
from tests.fullgraph.matrix.graphs import data_of
from tests.fullgraph.test_engine import GRAPHS, MODELS, gradients, loss_of
from tests.suites import few_of

import graphbraid
from graphbraid import native
from graphbraid.errors import ConfigError, ResourceError
from graphbraid.fullgraph import ALL, Engine, Uncompiled, estimated_bytes
from graphbraid.fullgraph.device import HOST, Cuda, NotRecordedError
from graphbraid.fullgraph.lowering.levels import reach, towards
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.fullgraph.step.device_copies import DeviceCopies
from graphbraid.graph import SparseFeatures
from graphbraid.machine.hardware import Rates

RECORDED = (
    "gcn",
    "sage",
    "sage projected max, rows of length 1",
    "mlp",
    "gin",
    "gin, learned eps",
    "gat",
    "gatv2",
)
OTHERS = ("gin", "gat", "gatv2", "batch norm, gelu")  # some of their operations may run through autograd


@pytest.fixture(autouse=True)
def twins(monkeypatch):
    """Only the twins can be recorded by the fake."""
    monkeypatch.setattr(native, "kernels", lambda: None)


def make_engine(graph, name, *, device, p=0.4, rates=None, **options):
    torch.manual_seed(1)
    model = MODELS[name](dropout=p)
    torch.manual_seed(7)
    return Engine(
        model,
        graph,
        graph.split("train"),
        CompileOptions(device=device or HOST, rates=rates or Rates(), **options),
    )


def epochs(engine, graph, count=5):
    """Loss and gradients of some epochs, with steps between."""
    optimizer = torch.optim.SGD(engine.model.parameters(), 0.1)
    results = []
    for _ in range(count):
        loss = loss_of(engine(), graph)
        results += [loss.detach().clone(), *gradients(engine.model, loss)]
        optimizer.step()
    return [*results, engine.predict()]


def assert_alike(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def poison(graph):
    """Spoil what the host has: a step on a device must not read it."""
    graph.csc.indices.data.zero_()  # by .data, so that the engine does not notice
    if graph.csc.weight is not None:
        graph.csc.weight.data.fill_(torch.nan)
    x = graph.x.values if isinstance(graph.x, SparseFeatures) else graph.x
    x.data.fill_(torch.nan)


def epochs_without_the_host(engine, graph, device):
    """Epochs after what the host has was spoilt, if they run on a device."""
    engine()
    engine.predict()
    torch.manual_seed(7)
    if device is not None:
        poison(graph)
    return epochs(engine, graph)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *few_of(product(("gcn", "sage"), GRAPHS), {"gcn"}),
        *zip((*OTHERS, "mlp"), GRAPHS, strict=True),
        ("sage projected max, rows of length 1", "directed"),
        ("gin, learned eps", "undirected"),
    ],
)
def test_trains_as_on_the_host_without_reading_the_host(name, kind):
    graph, device = make_graph(**GRAPHS[kind]), FakeDevice()
    results = []
    for where in (None, device):
        engine = make_engine(graph, name, device=where)
        results.append(epochs_without_the_host(engine, graph, where))
    assert_alike(*results)
    assert device.num_replays > 0 or name not in RECORDED


@pytest.mark.parametrize("passes", [frozenset(), frozenset({"fuse"}), ALL - {"hoist"}, ALL - {"prune"}])
@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_any_passes_train_as_on_the_host(name, passes):
    graph = make_graph(sparse=True, density=0.2)
    rates = Rates(sparse_values=1e12)  # the sparse path
    engines = [make_engine(graph, name, device=d, passes=passes, rates=rates) for d in (None, FakeDevice())]
    expected, actual = (torch.manual_seed(7) and epochs(engine, graph) for engine in engines)
    assert_alike(actual, expected)


@pytest.mark.parametrize("binary", ["ones", "row"])
def test_bits_of_binary_features_train_as_on_the_host(binary):
    results, device = [], FakeDevice()
    for where in (None, device):
        graph = make_graph(binary=binary, density=0.4)
        rates = Rates(binary_values=1e15, sparse_values=1e6)
        engine = make_engine(graph, "sage", device=where, rates=rates, spare_bytes=0)
        assert engine.program.input_path == "binary"
        engine()
        if where is device:
            moved = engine.runner.device_copies.nbytes + engine.runner.training_step.arena.nbytes
            assert moved <= engine.nbytes <= 1.1 * moved
        results.append(epochs_without_the_host(engine, graph, where))
    assert_alike(*results)


@pytest.mark.parametrize("name", ["a gate, aggr='sum'", "a gate, aggr='max'", "edge weights"])
def test_messages_of_steps_train_as_on_the_host_and_are_recorded(name):
    pytest.importorskip("torch_geometric", reason=NO_PYG)
    cases = importlib.import_module("tests.fullgraph.matrix.cases_messages").MESSAGES
    [case] = [case for case in cases if case.name == name]
    graph = graphbraid.Graph.from_pyg(case.prepare(data_of("untidy")))
    results, device = [], FakeDevice()
    for where in (HOST, device):
        torch.manual_seed(1)
        engine = Engine(case.make(), graph, torch.arange(20), CompileOptions(device=where, rates=Rates()))
        results.append([])
        for _ in range(4):
            out = engine()
            found = torch.autograd.grad(out.square().sum(), [*engine.model.parameters()], allow_unused=True)
            results[-1] += [out.detach(), *(one for one in found if one is not None)]
    assert_alike(*results)
    assert device.num_replays == 6, engine.explain()


def test_the_first_step_runs_and_the_others_are_replayed():
    graph, device = make_graph(), FakeDevice()
    engine = make_engine(graph, "gcn", device=device)
    assert "nothing has run yet" in engine.explain()
    epochs(engine, graph, 1)
    assert "to be recorded in the next step" in engine.explain()
    epochs(engine, graph, 3)
    assert (device.num_records, device.num_replays) == (2, 6)
    assert "forward and backward are recorded" in engine.explain()


def test_replays_draw_new_masks():
    graph = make_graph(train=60)
    engine = make_engine(graph, "gcn", device=FakeDevice(), p=0.5)
    outputs = []
    for _ in range(5):
        outputs.append(engine().detach())
        loss_of(engine(), graph).backward()
    distinct = {tuple(out.flatten().tolist()) for out in outputs}
    assert len(distinct) == len(outputs)


def test_what_runs_through_autograd_is_not_recorded_and_explain_says_so():
    layers = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)
    graph, device = make_graph(), FakeDevice()
    model = MODELS["layer norm, elu"](dropout=0.4)
    model.norms[0] = layers.LayerNorm(16, mode="graph")
    engine = Engine(model, graph, graph.split("train"), CompileOptions(device=device, rates=Rates()))
    epochs(engine, graph, 3)
    assert device.num_records == 0
    assert "call of its own: as written v" in engine.explain()
    assert "runs through PyTorch's autograd" in engine.explain()


class Unable(FakeDevice):
    def record(self, run):
        raise NotRecordedError("operation not permitted")


class Draws(FakeDevice):
    """Its passes draw from the host's generator, which a recording would not do again."""

    def record(self, run):
        torch.rand(())
        return run


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (Unable(), "could not record it: operation not permitted"),
        (Draws(), "draws random numbers on the host"),
    ],
)
def test_what_cannot_be_recorded_runs_as_it_is(device, reason):
    graph = make_graph()
    expected = epochs(make_engine(graph, "gcn", device=HOST), graph)
    engine = make_engine(graph, "gcn", device=device)
    assert_alike(epochs(engine, graph), expected)
    assert reason in engine.explain()


def test_a_parameter_with_other_memory_is_recorded_anew():
    graph, device = make_graph(), FakeDevice()
    engine = make_engine(graph, "gcn", device=device, p=0.0)
    epochs(engine, graph, 3)
    for parameter in engine.model.parameters():
        parameter.data = parameter.data * 2
    expected = loss_of(engine.model(graph.x, graph.csc)[graph.split("train")], graph)
    torch.testing.assert_close(loss_of(engine(), graph), expected, rtol=1e-4, atol=1e-5)
    assert device.num_records == 4


def test_modules_in_another_mode_than_recorded_run_as_they_are():
    graph, device = make_graph(), FakeDevice()
    results = []
    for where in (None, device):
        engine = make_engine(graph, "gin", device=where, p=0.0)
        found = epochs(engine, graph, 3)
        engine.model.eval()
        loss = loss_of(engine(), graph)  # by the running statistics
        found += [loss.detach(), *gradients(engine.model, loss)]
        engine.model.train()
        results.append(found + epochs(engine, graph, 2))
    assert_alike(*results)
    assert (device.num_records, device.num_replays) == (2, 8)


def test_gradients_that_a_caller_keeps_are_not_written_over():
    graph = make_graph()
    engine = make_engine(graph, "gcn", device=FakeDevice())
    epochs(engine, graph, 2)
    parameters = list(engine.model.parameters())
    first = torch.autograd.grad(loss_of(engine(), graph), parameters)
    copies = [grad.clone() for grad in first]
    torch.autograd.grad(loss_of(engine(), graph), parameters)
    for grad, copy in zip(first, copies, strict=True):
        assert torch.equal(grad, copy)


def test_too_little_memory_on_a_device_is_said_before_anything_is_moved():
    engine = make_engine(make_graph(), "gcn", device=FakeDevice(free=10_000))
    with pytest.raises(ResourceError, match=r"needs [\d,]+ MB on cpu, but 0 MB are free"):
        engine()
    assert engine.runner.device_copies.nbytes == 0


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "gat"])
def test_the_plan_counts_what_is_moved(name, kind):
    graph = make_graph(**GRAPHS[kind])
    engine = make_engine(graph, name, device=FakeDevice())
    engine()
    moved = engine.runner.device_copies.nbytes + engine.runner.training_step.arena.nbytes
    assert moved <= engine.nbytes <= 1.1 * moved


def test_the_estimate_of_a_device_holds_the_graph_too():
    graph, model = make_graph(), MODELS["gcn"]()
    device = FakeDevice()
    least = graph.csc.nbytes + graph.x.nbytes
    assert estimated_bytes(model, graph, device) > estimated_bytes(model, graph, HOST) + least


def test_levels_share_one_array_of_edges_on_a_device_too():
    graph = make_graph()
    blocks = towards(graph.csc, reach(graph.csc, graph.split("train"), 3))
    copies = DeviceCopies(FakeDevice())
    moved = copies.blocks(blocks)
    assert len({block.csc.indices.untyped_storage().data_ptr() for block in moved}) == 1
    for here, there in zip(blocks, moved, strict=True):
        assert torch.equal(here.csc.indices, there.csc.indices)
        assert torch.equal(here.sources, there.sources)
        assert here.csc.indices.data_ptr() != there.csc.indices.data_ptr()


def test_where_outputs_stop_being_finite_is_found_on_a_device():
    graph = make_graph(train=60)
    graph.x[33, 2] = torch.inf
    engine = make_engine(graph, "gcn", device=FakeDevice(), p=0.0)
    assert not torch.isfinite(engine()).all()
    assert "is the first to go wrong, at node" in engine.first_not_finite()


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("meta", "on the CPU and on CUDA devices; got meta"),
        ("cuda:99", "'cuda:99' is not here: PyTorch finds"),
    ],
)
def test_a_device_that_is_not_there_is_named(device, message):
    with pytest.raises(ConfigError, match=message):
        graphbraid.compile(MODELS["gcn"](), make_graph(), device=device)


def test_a_model_that_cannot_be_lowered_runs_on_a_device_too():
    graph, model = make_graph(), unlowerable()
    engine = graphbraid.compile(model, graph, device=FakeDevice())
    assert isinstance(engine, Uncompiled)
    F.cross_entropy(engine(), graph.y[graph.split("train")]).backward()


def test_a_recording_that_fails_gives_the_current_stream_back(monkeypatch):
    """``torch.cuda.graph`` does not: ending the capture raises before it does."""
    now = ["the model's"]

    @contextlib.contextmanager
    def stream(chosen):
        before, now[0] = now[0], chosen
        try:
            yield
        finally:
            now[0] = before

    class Graph:
        def __init__(self, graph, pool, stream, **_):
            self._stream = stream

        def __enter__(self):
            now[0] = self._stream

        def __exit__(self, *_):
            raise RuntimeError("the capture was broken")

    fakes = {
        "CUDAGraph": object,
        "Stream": lambda _: "the recording's",
        "current_stream": lambda _: now[0],
        "device": lambda _: contextlib.nullcontext(),
        "device_count": lambda: 1,
        "graph": Graph,
        "graph_pool_handle": lambda: (0, 1),
        "stream": stream,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    with pytest.raises(NotRecordedError, match="the capture was broken"):
        Cuda(torch.device("cuda", 0)).record(lambda: None)
    assert now == ["the model's"]
