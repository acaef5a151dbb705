"""Messages made of steps on the Triton kernel, against its twin."""

import importlib

import pytest
import torch
from tests.ops.graphs import CORNERS, close, skewed, values
from tests.ops.test_message_steps import MESSAGES, WITH_SOFTMAX, both_passes, case, softmax_case
from tests.suites import few_of

from graphbraid.graph.csc import Csc
from graphbraid.ops import message_kernel, reference
from graphbraid.ops.attention import _DOT, dot_attention
from graphbraid.ops.message_kernel import aggregate_steps
from graphbraid.ops.messages import REDUCTIONS

# NumPy, which interprets the kernel, warns of what it computes in lanes that are masked.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|divide by zero|overflow):RuntimeWarning")


@pytest.fixture
def on_device(device, monkeypatch):
    """``on_device(run)``: what ``run(place)`` gives on the Triton kernel, and on its twin."""

    def both(run):
        found = []
        for kernels in (importlib.import_module("graphbraid.ops.triton"), reference):
            monkeypatch.setattr(message_kernel, "backend", lambda _, kernels=kernels: kernels)
            found.append([t.cpu() for t in run(device.type)])
        return zip(*found, strict=True)

    return both


def assert_alike(pairs):
    for ours, twin in pairs:
        bound = 2e-5 * max(1.0, float(twin.abs().max()) if twin.numel() else 1.0)
        torch.testing.assert_close(ours, twin, rtol=2e-4, atol=bound)


def passes(name, reduction, width, csc, *, slopes=False):
    def run(place):
        fused, _, rows, parameters = case(name, reduction, width, csc=csc, place=place)
        return both_passes(fused, rows, parameters, slopes=slopes)

    return run


@pytest.mark.parametrize("reduction", few_of(REDUCTIONS, {"sum", "min"}))
@pytest.mark.parametrize("name", MESSAGES)
def test_every_message_equals_its_twin(on_device, short_segments, name, reduction):
    assert_alike(on_device(passes(name, reduction, 7, skewed(10, 13))))


@pytest.mark.parametrize("width", [1, 33, 257])
def test_every_width_equals_the_twin(on_device, short_segments, width):
    assert_alike(on_device(passes("all that can be read", "sum", width, skewed(10, 13), slopes=True)))


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("reduction", ["mean", "min"])
def test_corner_graphs_equal_the_twin(on_device, short_segments, corner, reduction):
    assert_alike(on_device(passes("a gate", reduction, 5, CORNERS[corner]())))


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_extrema_need_no_counts(on_device, short_segments, reduction):
    def run(place):
        fused, _, rows, _ = case("a gate", reduction, 7, csc=skewed(10, 13), place=place)
        out = torch.full_like(rows.destinations[0], torch.nan)
        fused.forward(rows, out)
        return [out]

    assert_alike(on_device(run))


@pytest.mark.parametrize("name", WITH_SOFTMAX)
@pytest.mark.parametrize(("heads", "channels"), [(1, 5), (3, 8)])
def test_a_softmax_equals_its_twin(on_device, short_segments, name, heads, channels):
    def run(place):
        made, leaves, *_ = softmax_case(name, heads, channels, csc=skewed(10, 13), place=place)
        grad = torch.randn(made.shape, generator=torch.Generator().manual_seed(1)).to(place)
        found = torch.autograd.grad(made, leaves, grad, allow_unused=True)
        return [made.detach(), *(one for one in found if one is not None)]

    assert_alike(on_device(run))


def test_dot_attention_on_the_kernel_equals_that_on_the_cpu(on_device, short_segments):
    csc, heads = skewed(10, 13), 2
    rows = [values(count, 6, seed=seed) for seed, count in enumerate((10, 13, 13))]
    expected = dot_attention(csc, *rows, heads)

    def run(place):
        there = Csc(csc.indptr.to(place), csc.indices.to(place), csc.num_src)
        query, key, value = (one.to(place) for one in rows)
        if place != "cpu":
            return [dot_attention(there, query, key, value, heads)]
        how = {"sources": (key, value), "destinations": (query,), "width": 6, "heads": heads}
        return [aggregate_steps(there, _DOT, **how)]

    for ours, twin in on_device(run):
        close(ours, expected)
        close(twin, expected)
