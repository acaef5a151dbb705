"""Backward of maxima and attention: the halo's gradients depart before own rows', to the same bits."""

import pytest
import torch
from tests.distributed.test_row_split import blocks
from tests.distributed.threads import noted_calls
from tests.distributed.whole import as_processes, assert_as_one_rank
from tests.fullgraph.graphs import CHANNELS, CLASSES
from tests.fullgraph.test_engine import MODELS
from tests.suites import few_of

from graphbraid import native
from graphbraid.fullgraph.step.calls.travel import Travel
from graphbraid.fullgraph.step.planned import attention, maximum

SPLIT = ("sage max", "sage projected max, rows of length 1", "gat", "gat residual", "first of equals")


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    """Threads do as processes do."""
    as_processes(monkeypatch)


def model_of(name, dropout):
    if name != "first of equals":
        return MODELS[name](dropout=dropout)
    pyg = pytest.importorskip("torch_geometric.nn")
    return pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES, aggr="max", dropout=dropout)


def learned(name, dropout, num_ranks, *, loops):
    torch.manual_seed(3)
    found = assert_as_one_rank(model_of(name, dropout), *blocks(num_ranks, loops=loops), epochs=3)
    plans = [rank["engine"].runner._train._plan for rank in found]
    return found, [bool(plan.divided.source_splits) for plan in plans]


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize(
    ("dropout", "num_ranks", "loops"), few_of(((0.0, 2, False), (0.5, 3, True)), {(0.5, 3, True)})
)
def test_own_rows_apart_from_the_halo_have_the_bits_of_both_together(
    name, dropout, num_ranks, loops, monkeypatch
):
    split, has_split = learned(name, dropout, num_ranks, loops=loops)
    assert all(has_split) == (native.kernels() is not None or not name.startswith("gat"))
    for module in (attention, maximum):
        monkeypatch.setattr(module, "exchange_before", lambda *_: None)
    whole, has_split = learned(name, dropout, num_ranks, loops=loops)
    assert not any(has_split)
    for one, other in zip(split, whole, strict=True):
        assert one["losses"] == other["losses"]
        for key, value in one["state"].items():
            assert torch.equal(value, other["state"][key]), key


@pytest.mark.parametrize("name", ["sage max", "gat"])
def test_own_rows_are_computed_between_departure_and_wait(name, monkeypatch):
    if native.kernels() is None and name == "gat":
        pytest.skip("the reference computes the halo's gradients with the others")
    seen, note = noted_calls(monkeypatch)
    note(Travel, "begin_back", "back")
    note(Travel, "add", "add")
    found, _ = learned(name, 0.0, 2, loops=False)
    for rank in found:
        tasks = [task.name for task in rank["engine"].runner._train._plan.tasks]
        halos = [number for number, name in enumerate(tasks) if name.endswith(": halo")]
        assert halos
        for halo in halos:
            assert tasks[halo + 1].endswith(": depart") and tasks[halo + 2].endswith(": own")
    assert all("back add" in " ".join(events) for events in seen.values())
