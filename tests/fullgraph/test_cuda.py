"""The engine on a CUDA device beside the same on the CPU; run by benchmarks/gpu_suite.sh."""

import copy
import importlib

import pytest
import torch
from tests.extras import NO_PYG
from tests.fullgraph.graphs import CHANNELS, CLASSES, make_graph
from tests.fullgraph.test_device import GRAPHS, epochs
from tests.fullgraph.test_engine import MODELS

import graphbraid
from graphbraid import Trainer
from graphbraid import nn as gnn
from graphbraid.fullgraph import Engine
from graphbraid.fullgraph.device import Cuda, NotRecordedError, device_at
from graphbraid.fullgraph.rates import measure
from graphbraid.fullgraph.step.device_copies import OURS, SPARSE, VARIABLE

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def cuda():
    """The device."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device; test_device.py runs the engine's logic on one made of the CPU")
    return device_at(torch.device("cuda"))


def trained(graph, name, place, *, p, **options):
    """Losses, gradients and predictions of some epochs, on the CPU, and the engine."""
    torch.manual_seed(1)
    model = MODELS[name](dropout=p).to(place)
    there = graph.replace(y=graph.y.to(place))
    engine = graphbraid.compile(model, there, **options)
    assert isinstance(engine, Engine)
    torch.manual_seed(7)
    return [t.cpu() for t in epochs(engine, there)], engine


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("name", MODELS)
def test_trains_as_on_the_cpu(name, kind):
    graph = make_graph(**GRAPHS[kind])
    expected, _ = trained(graph, name, "cpu", p=0.4)
    actual, _ = trained(graph, name, "cuda", p=0.4)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "gat", "gatv2", "mlp"])
def test_passes_are_recorded(name):
    _, engine = trained(make_graph(), name, "cuda", p=0.4)
    assert "forward and backward are recorded" in engine.explain(), engine.explain()


@pytest.mark.parametrize("forced", [OURS, SPARSE])
def test_both_kernels_can_be_recorded(monkeypatch, forced):
    monkeypatch.setenv(VARIABLE, forced)
    graph = make_graph(symmetric=True)
    expected, _ = trained(graph, "gcn", "cpu", p=0.0)
    actual, engine = trained(graph, "gcn", "cuda", p=0.0)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert "forward and backward are recorded" in engine.explain(), engine.explain()


def test_two_runs_give_the_same_bits(monkeypatch):
    monkeypatch.setenv(VARIABLE, OURS)
    first, second = (trained(make_graph(), "sage", "cuda", p=0.4)[0] for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


def test_no_step_waits_for_the_device():
    _, engine = trained(make_graph(), "gcn", "cuda", p=0.4)
    torch.cuda.set_sync_debug_mode("error")
    try:
        engine().sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_rates_are_those_of_a_card(cuda):
    rates = measure(cuda)
    assert isinstance(cuda, Cuda)
    assert rates.stream_bytes > 1e10
    assert rates.multiply_flops > 1e11
    assert 0 < cuda.seconds(lambda: torch.ones(10, device="cuda")) < 1
    assert cuda.free_bytes() > 0


def test_the_trainer_compiles_for_the_device():
    torch.manual_seed(0)
    model = gnn.GCN(CHANNELS, 16, CLASSES, 2, dropout=0.4)
    trainer = Trainer(model, make_graph(), mode="full", device="cuda", epochs=5, lr=0.01)
    result = trainer.fit()
    assert trainer.runner.engine is not None, trainer.uncompiled_reason
    assert len(result.history) == 5


def test_what_a_recording_cannot_hold_is_an_error_of_ours(cuda):
    x = torch.ones(3, device="cuda")
    with pytest.raises(NotRecordedError):
        cuda.record(lambda: x.sum().item())
    replay = cuda.record(lambda: x.add_(1))  # and the next one works
    replay()
    assert x.tolist() == [2, 2, 2]


@pytest.mark.parametrize("name", ["GCN", "SAGE", "GAT", "a gate", "a maximum"])
def test_batches_are_recorded(name):
    pytest.importorskip("torch_geometric", reason=NO_PYG)
    recorded = importlib.import_module("tests.fullgraph.test_recorded_batches")
    torch.manual_seed(1)
    model, given = recorded.MODELS[name](), recorded.batches()
    expected, _ = recorded.steps(graphbraid.compile(copy.deepcopy(model)), given)
    engine = graphbraid.compile(model.cuda())
    found, reasons = recorded.steps(engine, [batch.to("cuda") for batch in given])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4, check_device=False)
    assert reasons[-1] == "", engine.explain()
