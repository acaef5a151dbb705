"""Programs on mini-batches, recorded on a device made of the host: padding, replays, and what is refused."""

import copy
import gc
import weakref
from unittest.mock import Mock

import pytest
import torch
from tests.beside_pyg import pyg
from tests.fullgraph.fake_device import FakeDevice
from tests.fullgraph.matrix.cases_messages import MESSAGES
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES, data_of
from tests.fullgraph.matrix.models import Stack
from tests.fullgraph.test_batches import run
from tests.suites import few_of
from torch import nn

import graphbraid
from graphbraid import native
from graphbraid.fullgraph.batches.recorded import RecordedBatches
from graphbraid.fullgraph.device import NotRecordedError
from graphbraid.loader import NeighborLoader

CLOSE = {"rtol": 1e-3, "atol": 1e-4}
WITHOUT_LOOPS = {"add_self_loops": False}
"""The twin drops stored loops, whose number differs between batches: nothing that the fake can record."""
OWN = {case.name: case.make for case in MESSAGES}
MODELS = {
    "GCN": lambda: pyg.GCN(CHANNELS, 8, 2, CLASSES, dropout=0.4),
    "SAGE": lambda: pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES, dropout=0.4),
    "SAGE max": lambda: pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES, aggr="max"),
    "GIN": lambda: pyg.GIN(CHANNELS, 8, 2, CLASSES),
    "GAT": lambda: pyg.GAT(CHANNELS, 8, 2, CLASSES, heads=2, dropout=0.4, **WITHOUT_LOOPS),
    "GATv2": lambda: pyg.GAT(CHANNELS, 8, 2, CLASSES, heads=2, v2=True, **WITHOUT_LOOPS),
    "layer norm": lambda: pyg.GCN(CHANNELS, 8, 2, CLASSES, norm="layer_norm", norm_kwargs={"mode": "node"}),
    "TransformerConv": lambda: Stack(pyg.TransformerConv),
    "a gate": OWN["a gate, aggr='sum'"],
    "a maximum": OWN["a gate, aggr='max'"],
}


@pytest.fixture(autouse=True)
def twins(monkeypatch):
    """Only the twins can be recorded by the fake."""
    monkeypatch.setattr(native, "kernels", lambda: None)


def batches(count=6, **options):
    """Batches of some sizes, without features of edges."""
    data = data_of("untidy")
    data.edge_attr = data.edge_weight = None
    seeds = torch.arange(3 * count) % data.num_nodes
    options = {"batch_size": 3, "input_nodes": seeds, "seed": 3, "return_edge_id": False} | options
    with NeighborLoader(data, num_neighbors=[3, 2], **options) as loader:
        return [batch.to_data() if batch.layout == "subgraph" else batch for batch in loader]


def engine_on(model, device):
    engine = graphbraid.compile(model)
    engine._runner.recorded = RecordedBatches(device)
    return engine


def steps(engine, given, seed=7):
    """Outputs and gradients on each batch, with steps of SGD between, and why each one was not replayed."""
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(engine.parameters(), 0.1)
    found, reasons = [], []
    for batch in given:
        found.append(run(engine, batch)[:2])
        reasons.append(engine._runner.recorded.why_not)
        optimizer.step()
    return found, reasons


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
@pytest.mark.parametrize("name", few_of(MODELS, {"GCN", "SAGE", "a maximum"}))
def test_recorded_steps_are_those_of_the_engine(name, layout):
    torch.manual_seed(1)
    model = MODELS[name]()
    given, device = batches(layout=layout), FakeDevice()
    expected, _ = steps(engine_on(copy.deepcopy(model), None), given)
    engine = engine_on(model, device)
    found, reasons = steps(engine, given)
    torch.testing.assert_close(found, expected, **CLOSE)
    assert reasons == ["it is the first batch of this size and form", *[""] * (len(given) - 1)]
    assert device.num_replays == 2 * (len(given) - 1)
    assert engine.explain().endswith("Its passes are recorded.")


def test_an_evaluation_is_recorded_by_itself_with_the_running_statistics():
    torch.manual_seed(1)
    model = pyg.GIN(CHANNELS, 8, 2, CLASSES, norm="batch_norm").eval()
    given, device = batches(), FakeDevice()
    engine, plain = engine_on(model, device), engine_on(copy.deepcopy(model), None)
    with torch.no_grad():
        for number, batch in enumerate(given):
            torch.testing.assert_close(engine(batch), plain(batch), **CLOSE)
            assert bool(engine._runner.recorded.why_not) == (number == 0)
    assert device.num_replays == device.num_records * (len(given) - 1) / 2 == len(given) - 1


def test_stored_self_loops_are_not_those_of_the_recorded_batch():
    """GCN's map skips them where there are any."""
    torch.manual_seed(1)
    model, device, draw = pyg.GCN(CHANNELS, 8, 2, CLASSES), FakeDevice(), torch.Generator().manual_seed(0)
    engine, plain = engine_on(model, device), engine_on(copy.deepcopy(model), None)
    x, edges = torch.randn(40, CHANNELS, generator=draw), torch.randint(40, (2, 150), generator=draw)
    edges = edges[:, edges[0] != edges[1]]
    with_loops = torch.cat([edges, torch.arange(7).expand(2, -1)], 1)
    for one in (edges, edges, with_loops, with_loops, edges, with_loops):
        torch.testing.assert_close(engine(x, one), plain(x, one), **CLOSE)


def test_masks_are_drawn_anew_in_the_order_of_the_engines():
    torch.manual_seed(1)
    model, batch = pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES, dropout=0.5), batches()[0]
    engine, plain = engine_on(model, FakeDevice()), engine_on(copy.deepcopy(model), None)
    found, _ = steps(engine, [batch] * 4)
    expected, _ = steps(plain, [batch] * 4)
    torch.testing.assert_close(found, expected, **CLOSE)


def test_a_batch_whose_gradients_are_not_computed_yet_is_not_written_over():
    torch.manual_seed(1)
    model, (one, other, *_) = pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES), batches()
    engine = engine_on(model, FakeDevice())
    parameters = list(engine.parameters())
    expected = [torch.autograd.grad(engine(batch).square().sum(), parameters) for batch in (one, other)]
    outputs = [engine(batch) for batch in (one, other)]
    assert "gradients of an earlier batch" in engine._runner.recorded.why_not
    found = [torch.autograd.grad(out.square().sum(), parameters) for out in outputs]
    torch.testing.assert_close(found, expected, **CLOSE)
    engine(one)  # whose gradients nobody wants
    engine(other)
    assert engine._runner.recorded.why_not == ""


def test_backward_through_memory_that_was_written_over_is_an_error():
    torch.manual_seed(1)
    engine = engine_on(pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES), FakeDevice())
    one, other, *_ = batches()
    for batch in (one, other):
        engine(batch).sum().backward()
    out = engine(one)
    out.sum().backward(retain_graph=True)
    engine(other)
    with pytest.raises(RuntimeError, match="a later batch has been computed in the same memory"):
        out.sum().backward()
    out = engine(one)
    with torch.no_grad():
        next(engine.parameters()).add_(1)
    with pytest.raises(RuntimeError, match="a parameter or buffer was changed"):
        out.sum().backward()


def test_other_memory_of_a_parameter_is_recorded_anew():
    torch.manual_seed(1)
    model, given, device = pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES), batches(), FakeDevice()
    engine = engine_on(model, device)
    steps(engine, given[:3])
    assert device.num_records == 2
    for parameter in model.parameters():
        parameter.data = parameter.data * 2
    torch.testing.assert_close(
        run(engine, given[3]), run(engine_on(copy.deepcopy(model), None), given[3]), **CLOSE
    )


def test_batches_of_other_sizes_get_memory_of_their_own_up_to_a_number():
    torch.manual_seed(1)
    device, reasons = FakeDevice(), []
    engine = engine_on(pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES), device)
    for count in (100, 400, 1_600, 6_400, 25_600):
        draw = torch.Generator().manual_seed(count)
        x = torch.randn(count, CHANNELS, generator=draw)
        edges = torch.randint(count, (2, 3 * count), generator=draw)
        for _ in range(2):
            engine(x, edges).sum().backward()
            reasons.append(engine._runner.recorded.why_not)
    assert (
        reasons
        == ["it is the first batch of this size and form", ""] * 4
        + ["batches have had more than 4 sizes"] * 2
    )


def test_sums_of_padding_do_not_grow_from_level_to_level():
    """In float32, 30 sums of hundreds of padding edges, one after the other, are infinite."""

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.conv = nn.Linear(CHANNELS, 4), pyg.GraphConv(4, 4)
            for parameter in self.conv.parameters():
                nn.init.constant_(parameter, 0.1)

        def forward(self, x, edge_index):
            x = self.lin(x)
            for _ in range(30):
                x = self.conv(x, edge_index)
            return x

    torch.manual_seed(1)
    model, draw = Deep(), torch.Generator().manual_seed(0)
    engine, plain = engine_on(model, FakeDevice()), engine_on(copy.deepcopy(model), None)
    for count in (1000, 1000, 600):
        x, edges = (
            torch.randn(1000, CHANNELS, generator=draw),
            torch.randint(1000, (2, count), generator=draw),
        )
        for one in (engine, plain):
            one.zero_grad()
            one(x, edges).sum().backward()
        grads = [[p.grad for p in one.parameters()] for one in (engine, plain)]
        torch.testing.assert_close(*grads, **CLOSE)
    assert engine._runner.recorded.why_not == ""


def test_recordings_end_with_their_program():
    torch.manual_seed(1)
    model, given = pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES).eval(), batches()
    engine = engine_on(model, FakeDevice())
    programs = []
    with torch.no_grad():
        for number in range(8):
            model.dropout.p = 0.1 * number
            for batch in given[:2]:
                engine(batch)
            assert engine._runner.recorded.why_not == ""
            programs.append(weakref.ref(engine._runner.last))
    gc.collect()
    assert len(engine._runner.recorded._sizes) == sum(one() is not None for one in programs) == 4


def test_rows_of_another_dtype_are_not_copied_into_the_first_ones_memory():
    model, (batch, *_) = pyg.SimpleConv(), batches()
    engine = engine_on(model, FakeDevice())
    for dtype in (torch.float32, torch.float32, torch.float64, torch.float64):
        out = engine(batch.x.to(dtype), batch.edge_index)
        assert out.dtype == dtype
        torch.testing.assert_close(out, model(batch.x.to(dtype), batch.edge_index))


@pytest.mark.parametrize("change", ["memory", "a frozen parameter"])
def test_backward_does_not_read_what_was_replaced_after_forward(change):
    """The memory would have been given back, and backward would have read what others wrote there."""
    torch.manual_seed(1)
    model, (batch, *_) = pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES), batches()
    weight = model.convs[1].lin_l.weight.requires_grad_(change == "memory")
    engine = engine_on(model, FakeDevice())
    for _ in range(2):
        out = engine(batch)
    assert engine._runner.recorded.why_not == ""
    if change == "memory":
        weight.data = weight.data * 2
    else:
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="a parameter or buffer was changed"):
        out.sum().backward()


def test_passes_wait_for_the_stream_of_the_passes_before():
    class Streams(FakeDevice):
        given = ()

        def follow(self, last):
            self.given += (last,)
            return len(self.given)

    torch.manual_seed(1)
    device, given = Streams(), batches()
    steps(engine_on(pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES), device), given[:4])
    assert device.given == (None, 1, 2)


class RowRatio(pyg.MessagePassing):
    """Its slope in a row of zeros is infinite: a gradient of zero became NaN in all parameters."""

    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o, bias=False)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_i, x_j):
        return x_j / x_i


class RowPower(RowRatio):
    def message(self, x_i, x_j):
        return torch.exp(x_i + x_j)


class Full(FakeDevice):
    def record(self, run):
        raise torch.OutOfMemoryError


class Unable(FakeDevice):
    def record(self, run):
        raise NotRecordedError("operation not permitted")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: pyg.GIN(CHANNELS, 8, 2, CLASSES, norm="batch_norm"), "depend on the number of rows"),
        (lambda: pyg.GCN(CHANNELS, 8, 2, CLASSES, act=torch.frac), "is run by PyTorch"),
        (lambda: pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES, act=torch.log), "no finite slope at rows of padding"),
        (lambda: pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES, act=torch.exp), "no finite slope at rows of padding"),
        (lambda: Stack(RowRatio), "no finite slope at rows of padding"),
        (lambda: Stack(RowPower), "no finite slope at rows of padding"),
        (lambda: Stack(pyg.SAGEConv, between=nn.LayerNorm(8, eps=0.0)), "divides rows of padding by zero"),
        (OWN["a network of both ends, aggr='add'"], "messages run on blocks of edges"),
    ],
)
def test_what_padding_may_change_is_not_recorded(make, reason):
    torch.manual_seed(1)
    engine = engine_on(make(), FakeDevice())
    steps(engine, batches()[:2])
    assert reason in engine._runner.recorded.why_not, engine.explain()


def test_what_the_device_cannot_record_runs_call_by_call():
    torch.manual_seed(1)
    model, given = pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES), batches()
    expected, _ = steps(engine_on(copy.deepcopy(model), None), given)
    found, reasons = steps(engine_on(model, Unable()), given)
    torch.testing.assert_close(found, expected, **CLOSE)
    assert reasons[-1] == "the device could not record it: operation not permitted"
    engine = engine_on(model, Full())
    steps(engine, given[:2])
    assert engine._runner.recorded.why_not == "the device lacks the memory for a recording"
    features = given[0].x.clone().requires_grad_()
    engine = engine_on(model, FakeDevice())
    for _ in range(2):
        engine(features, given[0].edge_index)
    assert engine._runner.recorded.why_not == "the features require a gradient"


def test_other_devices_than_cuda_record_nothing():
    recorded = RecordedBatches()
    recorded.outputs(Mock(features={"x": torch.empty(3, 4, device="meta")}))
    assert recorded.why_not == "the host records nothing"
