"""The choice between two kernels: both compute the map, the faster is taken, once, and the rest is said."""

import pytest
import torch
from tests.fullgraph.fake_device import FakeDevice
from tests.fullgraph.graphs import make_graph
from tests.fullgraph.test_engine import MODELS, loss_of
from tests.ops.graphs import CORNERS, skewed, values
from tests.ops.test_epilogue import epilogue_for
from tests.ops.test_spmm import COEFFICIENTS, arguments

from graphbraid.fullgraph import Engine
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.fullgraph.step.device_copies import (
    OURS,
    SPARSE,
    VARIABLE,
    DeviceMap,
    Picker,
    csr_of,
    multiply,
)
from graphbraid.machine.hardware import Rates
from graphbraid.ops.aggregation import Aggregation, follow_up


def aggregation_of(csc, wanted):
    """The aggregation with the coefficients that the kernels are tested with."""
    _, _, _, *factors, loop_scale, _, skip, mean, _ = arguments(csc, values(csc.num_src, 1), wanted)
    weight, src, dst, loop = factors
    return Aggregation(
        csc=csc,
        weight=weight,
        src_scale=src,
        dst_scale=dst,
        loop=loop,
        loop_scale=loop_scale,
        skip_loops=skip,
        mean=mean,
    )


@pytest.mark.parametrize("wanted", COEFFICIENTS)
@pytest.mark.parametrize("corner", CORNERS)
def test_the_matrix_is_the_map(corner, wanted):
    how = aggregation_of(CORNERS[corner](), COEFFICIENTS[wanted])
    x = values(how.csc.num_src, 7)
    expected = how.forward(x)
    out = torch.full_like(expected, torch.nan)
    multiply(csr_of(how), x, None, out)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    addend = values(how.csc.num_dst, 7, seed=3)[: how.csc.num_dst // 2]
    multiply(csr_of(how), x, addend, out)
    torch.testing.assert_close(out, how.forward(x, addend=addend), rtol=1e-4, atol=1e-5)
    both = values(how.csc.num_dst, 7, seed=4)
    expected = how.forward(x, addend=both.clone())
    multiply(csr_of(how), x, both, both)
    torch.testing.assert_close(both, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("clock", "name"), [((2.0, 1.0), SPARSE), ((1.0, 2.0), OURS)])
def test_the_faster_is_taken_and_measured_once_per_width(clock, name):
    how, device = aggregation_of(skewed(10, 13), COEFFICIENTS["all"]), FakeDevice(clock=clock * 2)
    picker = Picker(device.seconds, forced=None)
    picked = DeviceMap(how, None, picker)
    for width in (5, 5, 9, 5):
        x = values(13, width)
        out = torch.full((10, width), torch.nan)
        picked.forward(x, out)
        torch.testing.assert_close(out, how.forward(x), rtol=1e-4, atol=1e-5)
    assert [choice.name for choice in picker.choices] == [name, name]
    assert [choice.width for choice in picker.choices] == [5, 9]
    assert device.num_timed == 4
    assert f"rows of 5: {name} (graphbraid {clock[0]:g}e+03 ms, torch.sparse" in str(picker.choices[0])


def test_measuring_writes_nothing_that_counts():
    how = aggregation_of(skewed(10, 13), COEFFICIENTS["plain"])
    x, out = values(13, 5), values(10, 5, seed=2)
    expected = how.forward(x, addend=out.clone())
    DeviceMap(how, None, Picker(FakeDevice().seconds)).forward(x, out, out)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("name", [OURS, SPARSE])
def test_an_epilogue_follows_whichever_kernel_runs(name):
    how, after = aggregation_of(skewed(10, 13), COEFFICIENTS["all"]), epilogue_for(10, 5, torch.float32)
    x, out, expected = values(13, 5), torch.full((10, 5), torch.nan), torch.empty(10, 5)
    DeviceMap(how, None, Picker(FakeDevice().seconds, forced=name)).forward(x, out, None, after)
    follow_up(how.forward(x, out=expected), after)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [OURS, SPARSE])
def test_the_environment_can_force_either(monkeypatch, name):
    monkeypatch.setenv(VARIABLE, name)
    device = FakeDevice()
    picker = Picker(device.seconds)
    how = aggregation_of(skewed(10, 13), COEFFICIENTS["all"])
    x, out = values(13, 5), torch.empty(10, 5)
    DeviceMap(how, None, picker).forward(x, out)
    torch.testing.assert_close(out, how.forward(x), rtol=1e-4, atol=1e-5)
    assert (picker.choices[0].name, device.num_timed) == (name, 0)
    assert VARIABLE in picker.choices[0].reason


def fails(_):
    raise RuntimeError("not built with sparse\nmore")


@pytest.mark.parametrize(
    ("options", "dtype", "reason"),
    [
        ({"free_bytes": lambda: 100}, torch.float32, "0 MB are free"),
        ({}, torch.bfloat16, "not measured for torch.bfloat16"),
        ({"seconds": fails}, torch.float32, "torch.sparse failed: not built with sparse"),
    ],
)
def test_where_nothing_can_be_measured_ours_is_taken_and_the_reason_kept(options, dtype, reason):
    picker = Picker(**{"seconds": FakeDevice().seconds} | options)
    how = aggregation_of(skewed(10, 13), COEFFICIENTS["plain"])
    x, out = values(13, 5, dtype=dtype), torch.empty(10, 5, dtype=dtype)
    DeviceMap(how, None, picker).forward(x, out)
    torch.testing.assert_close(out, how.forward(x))
    assert picker.choices[0].name == OURS
    assert reason in str(picker.choices[0])


def test_who_asks_for_the_same_bits_gets_ours():
    picker = Picker(FakeDevice(clock=(2.0, 1.0)).seconds)
    torch.use_deterministic_algorithms(True)
    try:
        how = aggregation_of(skewed(10, 13), {})
        DeviceMap(how, None, picker).forward(values(13, 5), torch.empty(10, 5))
    finally:
        torch.use_deterministic_algorithms(False)
    assert picker.choices[0].name == OURS
    assert "same bits" in picker.choices[0].reason


@pytest.mark.parametrize("forced", [OURS, SPARSE])
def test_the_engine_trains_with_either_and_says_which(monkeypatch, forced):
    graph = make_graph(symmetric=True)
    torch.manual_seed(1)
    model = MODELS["gcn"](dropout=0.0)
    expected = loss_of(model(graph.x, graph.csc)[graph.split("train")], graph)
    monkeypatch.setenv(VARIABLE, forced)
    engine = Engine(model, graph, graph.split("train"), CompileOptions(device=FakeDevice(), rates=Rates()))
    loss = loss_of(engine(), graph)
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    assert f": {forced} (" in engine.explain()


def test_layers_that_aggregate_alike_share_one_choice():
    graph = make_graph(train=60)
    model = MODELS["gcn"](dropout=0.0)
    device = FakeDevice()
    engine = Engine(
        model, graph, graph.split("train"), CompileOptions(passes=frozenset(), device=device, rates=Rates())
    )
    loss_of(engine(), graph).backward()
    widths = [choice.width for choice in engine.runner.device_copies.picker.choices]
    assert len(widths) == 4  # 16 columns and the classes, forward and backward
    engine.predict()
    assert len(engine.runner.device_copies.picker.choices) == 4
