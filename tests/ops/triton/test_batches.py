"""Models on mini-batches by the Triton kernels, beside the same models as they are written."""

import copy
import importlib
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from tests.extras import NO_PYG
from tests.suites import every, few_of

pytest.importorskip("torch_geometric", reason=NO_PYG)
from tests.fullgraph import test_typed_batches as typed_batches
from tests.fullgraph.matrix.graphs import data_of
from tests.fullgraph.test_batches import LOWERED_CASES, OWN_CASES, AsWritten, in_double, run, sampled
from tests.fullgraph.test_typed_batches import MODELS as TYPED

import graphbraid
from graphbraid.fullgraph.batches.operations import check_device
from graphbraid.fullgraph.program import Attention, Messages, NotLoweredError, RelationAttention
from graphbraid.fullgraph.reading import relational
from graphbraid.ops import reference
from graphbraid.ops.attention import _DOT
from graphbraid.ops.message_kernel import aggregate_steps

pytestmark = [
    pytest.mark.filterwarnings("ignore:(invalid value|divide by zero|overflow):RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:There exist node types"),
]
BY_PART = {case.part: case for case in reversed(LOWERED_CASES) if "with edge_attr" not in case.part}
"""The first case of each part of the matrix, but for attention to features of edges, which a device lacks."""
QUICK = {"GINEConv"}


@pytest.fixture
def place(device, monkeypatch):
    """Where models run; on the CPU all operators have the kernels that a device gives them."""
    if device.type == "cpu":
        name = "graphbraid.fullgraph.batches.fusing.BatchProgram.takes_longer"
        monkeypatch.setattr(name, lambda *_, **__: False)  # as on a device
        triton_kernels = importlib.import_module("graphbraid.ops.triton")
        found = SimpleNamespace(**vars(reference) | vars(triton_kernels))
        for module in [one for name, one in sys.modules.items() if name.startswith("graphbraid.")]:
            if hasattr(module, "backend"):
                choose = lambda tensor: reference if tensor.dtype == torch.float64 else found  # noqa: E731
                monkeypatch.setattr(module, "backend", choose)

        def dot(csc, query, key, value, heads):
            read = {"sources": (key, value), "destinations": (query,)}
            return aggregate_steps(csc, _DOT, **read, width=query.shape[1], heads=heads)

        monkeypatch.setattr(relational, "dot_attention", dot)
    return device


def assert_same(case, place):
    """Two steps and an evaluation on the device, beside the model as written in double precision."""
    torch.manual_seed(5)
    model = case.make()
    twin = AsWritten(copy.deepcopy(model).double())
    model.to(place)
    batch = sampled(case.prepare(data_of("untidy")), as_pyg=True, return_edge_id=True)
    engine, there = graphbraid.compile(model), batch.to(place)
    for training in (model.training, model.training, False):
        engine.train(training)
        twin.model.train(training)
        ours, theirs = run(engine, there), run(twin, in_double(batch))
        assert engine.why is None, engine.explain()
        for one, other in zip(ours[1].values(), theirs[1].values(), strict=True):
            bound = 5e-4 * max(1.0, float(other.abs().max()))
            torch.testing.assert_close(one.cpu().double(), other, rtol=5e-4, atol=bound)
        torch.testing.assert_close(ours[0].cpu().double(), theirs[0], rtol=5e-4, atol=5e-5)


@pytest.mark.parametrize("part", few_of(BY_PART, QUICK))
def test_a_model_of_each_part_of_the_matrix_runs_on_the_device(place, part):
    assert_same(BY_PART[part], place)


# Steps are interpreted one by one in test_message_steps, too.
@pytest.mark.parametrize("name", every(13, [case.name for case in OWN_CASES], some=3))
def test_messages_of_ones_own_run_on_the_device(place, name):
    assert_same(next(case for case in OWN_CASES if case.name == name), place)


@pytest.mark.parametrize("name", few_of(TYPED, {"HGT, inputs and a head"}))
def test_models_of_node_types_run_on_the_device(place, name):
    graph = typed_batches.untidy(only_sources=name in typed_batches.HETERO)
    model = typed_batches.ready(TYPED[name], graph)
    batch = typed_batches.sampled(graph)
    expected = typed_batches.trained(model, lambda: typed_batches.as_written(model, batch), 1)[0]
    model = typed_batches.ready(TYPED[name], graph).float().to(place)
    there = batch.to(place)
    for store in there.node_stores:
        store.x = store.x.float()
    engine = graphbraid.compile(model, strict=True)
    found = typed_batches.trained(model, lambda: engine(there), 1)[0]
    torch.testing.assert_close(found, expected, rtol=5e-4, atol=5e-4, check_dtype=False, check_device=False)


@pytest.mark.parametrize(
    ("op", "lacks"),
    [
        (Mock(spec=Attention, symbol="", reads_edges=True), "features of edges has no kernel on meta"),
        (Mock(spec=Messages, symbol="", draws=True), "cannot be drawn again in backward"),
        (Mock(spec=RelationAttention, symbol=""), "no kernel of torch.float64 on meta"),
    ],
)
def test_what_a_device_lacks_is_said(op, lacks):
    with pytest.raises(NotLoweredError, match=lacks):
        check_device(op, torch.empty(0, dtype=torch.float64, device="meta"))
    check_device(op, torch.empty(0))
