"""Backward of maxima: the halo's gradients depart before own rows', to the same bits."""

import pytest
import torch
from tests.distributed.threads import noted_calls
from tests.distributed.whole import RATES, assert_as_one_rank, blocks
from tests.fullgraph.graphs import CHANNELS, CLASSES
from tests.fullgraph.test_engine import MODELS
from tests.suites import few_of

from graphbraid.estimates.full_ranks import step_of
from graphbraid.fullgraph import Engine, Evidence
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.fullgraph.step.operations import edges as maximum
from graphbraid.fullgraph.step.operations.row_exchange import RowExchange

SPLIT = ("sage max", "sage projected max, rows of length 1", "first of equals")


pytestmark = pytest.mark.usefixtures("threads")


def model_of(name, dropout):
    if name in MODELS:
        return MODELS[name](dropout=dropout)
    pyg = pytest.importorskip("torch_geometric.nn")
    return pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES, aggr="max", dropout=dropout)


def learned(name, dropout, num_ranks, *, loops):
    torch.manual_seed(3)
    graph, parts = blocks(num_ranks, loops=loops)
    found = assert_as_one_rank(model_of(name, dropout), graph, parts, epochs=3)
    plans = [rank["engine"].runner.training_step._plan for rank in found]
    return found, [bool(plan.exchanges.source_splits) for plan in plans]


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize(
    ("dropout", "num_ranks", "loops"), few_of(((0.0, 2, False), (0.5, 3, True)), {(0.5, 3, True)})
)
def test_own_rows_apart_from_the_halo_have_the_bits_of_both_together(
    name, dropout, num_ranks, loops, monkeypatch
):
    split, has_split = learned(name, dropout, num_ranks, loops=loops)
    assert all(has_split)
    monkeypatch.setattr(maximum, "exchange_before", lambda *_: None)
    whole, has_split = learned(name, dropout, num_ranks, loops=loops)
    assert not any(has_split)
    for one, other in zip(split, whole, strict=True):
        assert one["losses"] == other["losses"]
        for key, value in one["state"].items():
            assert torch.equal(value, other["state"][key]), key


def test_it_is_predicted_for_maxima_and_not_for_attention():
    graph, _ = blocks(2)
    for name, is_split in (("sage max", True), ("gat", False)):
        alone = Engine(model_of(name, 0.0), graph, "train", CompileOptions(evidence=Evidence(rates=RATES)))
        step = step_of(alone.lowered, alone.floor())
        assert any(work.hides and work.reads for work in step.works) == is_split


@pytest.mark.slow
def test_own_rows_are_computed_between_departure_and_wait(monkeypatch):
    seen, note = noted_calls(monkeypatch)
    note(RowExchange, "begin_back", "back")
    note(RowExchange, "add", "add")
    found, _ = learned("sage max", 0.0, 2, loops=False)
    for rank in found:
        tasks = [task.name for task in rank["engine"].runner.training_step.tasks]
        halos = [number for number, name in enumerate(tasks) if name.endswith(": halo")]
        assert halos
        for halo in halos:
            assert tasks[halo + 1].endswith(": depart") and tasks[halo + 2].endswith(": own")
    assert all("back add" in " ".join(events) for events in seen.values())
