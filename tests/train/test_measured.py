"""What a run was planned by is kept in its folder: a resumed run takes the same path."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from tests.extras import NO_KERNELS
from tests.fullgraph.graphs import CHANNELS, CLASSES, make_graph

from graphbraid import native
from graphbraid import nn as gnn
from graphbraid.collective import Plan
from graphbraid.collective.plan.times import Arrangement, Duration, StageTimes
from graphbraid.errors import DataError
from graphbraid.fullgraph.lowering.passes import PASSES, choose_input_path
from graphbraid.fullgraph.rates import MeasuredRates
from graphbraid.machine.hardware import Rates
from graphbraid.train import TrainConfig, Trainer
from graphbraid.train.run_folder.folder import LOWERING, PLAN, keep, kept_evidence, kept_plan

OPTIONS = {"mode": "full", "threads": 1, "test_at_end": False, "seed": 3}
DENSE = Rates(sparse_values=1.0, binary_values=1.0)
SPARSE = Rates(multiply_flops=1.0, binary_values=1.0)


@pytest.fixture
def machine(monkeypatch):
    """Sets the rates that are found here, and says which input paths were taken since."""
    if native.kernels() is None:
        pytest.skip(NO_KERNELS)
    taken = []

    def find(rates):
        measured = MeasuredRates(rates=rates, doubt="beside another program")
        monkeypatch.setattr("graphbraid.fullgraph.rates.measured_rates", lambda _: measured)
        return taken

    def watch(program, costs):
        after = choose_input_path(program, costs)
        taken.append(after.input_path)
        return after

    monkeypatch.setitem(PASSES, "input_path", watch)
    return find


def losses(out: Path, epochs: int, **options) -> list[float]:
    torch.manual_seed(0)
    model = gnn.GCN(CHANNELS, 8, CLASSES, 2)
    result = Trainer(model, make_graph(density=0.5), **OPTIONS, epochs=epochs, out_dir=out, **options).fit()
    return [row["train_loss"] for row in result.history]


@pytest.mark.slow
def test_a_resumed_run_is_lowered_as_it_was(machine, tmp_path):
    taken = machine(DENSE)
    whole = losses(tmp_path / "whole", 4)
    losses(tmp_path / "parts", 2)
    assert set(taken) == {"dense"}
    machine(SPARSE).clear()
    assert losses(tmp_path / "parts", 4, resume=True) == whole
    assert set(taken) == {"dense"}
    losses(tmp_path / "fresh", 1)
    assert "sparse" in taken
    taken.clear()
    losses(tmp_path / "parts", 1, overwrite=True)  # a new run decides anew
    assert set(taken) == {"sparse"}


def test_a_run_of_an_earlier_version_goes_on_by_what_is_measured_now(machine, tmp_path):
    machine(DENSE)
    losses(tmp_path, 1)
    (tmp_path / LOWERING).unlink()
    taken = machine(SPARSE)
    losses(tmp_path, 2, resume=True)
    assert "sparse" in taken


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"rates": {"row_bytes": -1}, "link": {}})])
def test_a_damaged_record_is_refused(machine, tmp_path, text):
    machine(DENSE)
    losses(tmp_path, 1)
    (tmp_path / LOWERING).write_text(text)
    with pytest.raises(DataError, match=r"lowering.json .*Delete it"):
        losses(tmp_path, 2, resume=True)


def test_no_record_no_evidence(tmp_path):
    assert kept_evidence(tmp_path) is None


def make_plan(cores):
    times = StageTimes(
        workers=1, cpu=Duration(seconds=1.0), dma=Duration(seconds=0.0), model=Duration(seconds=1.0)
    )
    return Plan(
        num_batches=4,
        num_cpu=4,
        cbs=2,
        gbs=1,
        times=times,
        predicted_seconds=4.0,
        bound_seconds=4.0,
        limit="cpu",
        cores=cores,
    )


def test_a_plan_that_bits_may_depend_on_is_kept(tmp_path):
    plan = make_plan(Arrangement(workers=1, threads=1))
    keep(tmp_path, None, plan)
    config = TrainConfig(plan="auto")
    assert kept_plan(tmp_path, config) == plan
    assert kept_plan(tmp_path, dataclasses.replace(config, threads=2)) is None  # then bits depend on those
    assert kept_plan(tmp_path, TrainConfig()) is None
    (tmp_path / PLAN).write_text("{")
    with pytest.raises(DataError):
        kept_plan(tmp_path, config)


@pytest.mark.parametrize("cores", [None, Arrangement(workers=1, threads=2, turns=True)])
def test_a_plan_that_no_bit_depends_on_is_made_anew(cores, tmp_path):
    keep(tmp_path, None, make_plan(cores))
    assert not (tmp_path / PLAN).exists()
