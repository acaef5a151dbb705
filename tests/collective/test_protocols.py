"""Operators are held to their protocols when they are made; what they may have beside them is used."""

import dataclasses
import functools

import pytest
import torch
from benchmarks.common.emulated import EmulatedAccelerator, EmulatedTransfer
from tests.collective.emulation import FAST, make_context

from graphbraid.collective import register
from graphbraid.collective.hardware import cuda
from graphbraid.collective.hardware.cpu import CpuBatching, NoMarks, NoTransfer
from graphbraid.collective.run.operators import Operators, can_look_ahead
from graphbraid.collective.run.stages import Accelerator
from graphbraid.errors import ConfigError


@pytest.fixture(autouse=True)
def registered():
    """A device of the caller's whose operators are the CPU's, until a test registers others."""
    register("transfer", "npu")(NoTransfer)
    register("model", "npu")(NoMarks)


class Npu:
    hardware, host = "npu", "cpu"


def operators(**options):
    return Operators.of(dataclasses.replace(make_context(Npu()), **options))


def test_operators_without_anything_optional_do():
    found = operators()
    assert found.device_batching is found.batching_ahead is None
    assert not found.is_resident
    assert isinstance(Npu(), Accelerator)
    assert not isinstance(torch.device("cpu"), Accelerator)


class Callable:
    def __init__(self, context):
        pass

    def __call__(self, *arguments):
        return None


class Nothing:
    def __init__(self, context):
        pass


@pytest.mark.parametrize(
    ("stage", "factory", "message"),
    [
        ("batching", Nothing, r"stage 'batching' on 'npu', a Nothing, does not fit: .*an epoch and a step"),
        ("transfer", Callable, r"stage 'transfer' on 'npu', a Callable, does not fit: .*free\(batch\)"),
        ("transfer", lambda context: None, r"'npu', a NoneType, does not fit"),
        (
            "model",
            Callable,
            r"stage 'model' on 'npu', a Callable, does not fit: .*begin\(batch\).*end\(batch\)",
        ),
    ],
)
def test_what_a_factory_makes_must_fit_its_stage(stage, factory, message):
    register(stage, "npu")(factory)
    with pytest.raises(ConfigError, match=message):
        operators()


def test_an_optional_method_that_is_none_is_refused():
    class Counted(CpuBatching):
        stage_seconds = {"sample": 0.0}  # noqa: RUF012

    register("batching", "npu")(Counted)
    with pytest.raises(
        ConfigError, match="a Counted, has an attribute 'stage_seconds' that must be a method"
    ):
        operators()


def test_seconds_must_be_told_for_each_stage():
    found = operators()
    assert found.stage_seconds() == {"sample": 0.0, "gather": 0.0, "batches": 0.0}
    found.cpu_batching(0, 0)
    assert found.stage_seconds()["batches"] == 1
    found.cpu_batching.stage_seconds = lambda: {"sample": 1.0}
    with pytest.raises(ConfigError, match="must give 'sample', 'gather' and 'batches'; it gives 'sample'"):
        found.stage_seconds()
    uncounted = dataclasses.replace(found, cpu_batching=Callable(None))
    assert uncounted.stage_seconds() == {"sample": 0.0, "gather": 0.0, "batches": 0.0}


def test_a_device_that_begins_ahead_and_one_that_says_where_its_parts_lie():
    class Ahead(CpuBatching):
        placement = {"topology": "device", "features": "device"}  # noqa: RUF012

        def begin(self, epoch, step):
            pass

    register("batching", "npu")(Ahead)
    found = operators()
    assert found.batching_ahead is found.device_batching
    assert found.is_resident
    Ahead.placement = {"topology": "device", "features": "host"}
    assert not operators().is_resident


def test_look_ahead_is_said_by_the_factory_and_never_passed_over():
    device = EmulatedAccelerator(FAST)
    device.hardware = "npu"
    context = dataclasses.replace(make_context(device), lookahead=True)
    assert not can_look_ahead(context)
    register("transfer", "npu")(functools.partial(EmulatedTransfer))
    with pytest.raises(
        ConfigError, match="sets completes_rows, which is read from its factory: set it there"
    ):
        Operators.of(context)

    def factory(context):
        return EmulatedTransfer(context)

    factory.completes_rows = True
    register("transfer", "npu")(factory)
    assert can_look_ahead(context)
    assert Operators.of(context).row_buffer is not None
    register("transfer", "npu")(EmulatedTransfer)
    assert Operators.of(context).row_buffer is not None


def test_a_device_batches_on_one_stream_that_waits_for_what_was_queued(monkeypatch):
    """Runs share the sampler, which serves one stream; it may read what the model's stream makes."""

    class Stream:
        def __init__(self, device):
            self.device, self.waited = device, []

        def wait_stream(self, other):
            self.waited.append(other)

    device, streams = torch.device("cuda", 0), functools.cache(Stream)
    monkeypatch.setattr(cuda, "_device_of", lambda _: device)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", streams)
    cuda._sampling_stream.cache_clear()
    try:
        first, second = (cuda.CudaBatching(make_context(device)) for _ in range(2))
    finally:
        cuda._sampling_stream.cache_clear()
    assert first._stream is second._stream
    assert first._stream.waited == 2 * [streams(device)]
