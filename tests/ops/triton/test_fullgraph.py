"""The full-graph engine on the Triton kernels, its seeds in memory."""

import importlib

import pytest
import torch
from tests.fullgraph.fake_device import FakeDevice
from tests.fullgraph.graphs import make_graph
from tests.fullgraph.test_engine import MODELS, gradients, loss_of

from graphbraid.fullgraph import Engine
from graphbraid.fullgraph.device import HOST, NotRecordedError
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.fullgraph.step.device_copies import OURS, VARIABLE
from graphbraid.machine.hardware import Rates


class NotRecording(FakeDevice):
    """Interpreted kernels are no operators of torch, which the fake records."""

    def record(self, run):
        raise NotRecordedError("interpreted")


def results(device, name, kind):
    """Losses and gradients of two epochs, on the CPU."""
    graph = make_graph(**kind)
    torch.manual_seed(1)
    model = MODELS[name](dropout=0.4).to(device.place)
    engine = Engine(model, graph, graph.split("train"), CompileOptions(device=device, rates=Rates()))
    torch.manual_seed(7)
    found = []
    for _ in range(2):
        loss = loss_of(engine().cpu(), graph)
        found += [loss.detach(), *(grad.cpu() for grad in gradients(model, loss))]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("sage", {"symmetric": True}, marks=pytest.mark.slow),
        pytest.param("gcn", {"sparse": True, "density": 0.1}, marks=pytest.mark.slow),
        ("gcn", {"binary": "row", "density": 0.4}),
        pytest.param("gat residual", {}, marks=pytest.mark.slow),
    ],
)
def test_the_engine_trains_as_on_the_compiled_kernels(device, short_segments, monkeypatch, name, kind):
    expected = results(HOST, name, kind)
    monkeypatch.setenv(VARIABLE, OURS)
    if device.type == "cpu":
        triton_kernels = importlib.import_module("graphbraid.ops.triton")
        for module in (
            "ops.aggregation",
            "ops.attention",
            "ops.binary",
            "fullgraph.step.operations.linear",
            "fullgraph.step.operations.attention",
        ):
            loaded = importlib.import_module(f"graphbraid.{module}")
            monkeypatch.setattr(loaded, "backend", lambda tensor: triton_kernels)
        monkeypatch.setattr("graphbraid.fullgraph.step.operations.linear.seed_for", lambda rows, seed: seed)
        there = NotRecording()
    else:
        there = importlib.import_module("graphbraid.fullgraph.device").device_at(device)
    for actual, wanted in zip(results(there, name, kind), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=1e-5)
