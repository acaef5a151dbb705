"""Gradients of own rows go on through the linear map before an exchange while others' travel."""

import pytest
import torch
from tests.distributed.threads import noted_calls
from tests.distributed.whole import RATES, assert_as_one_rank, blocks
from tests.fullgraph.graphs import CHANNELS, CLASSES
from tests.fullgraph.test_engine import MODELS
from tests.suites import few_of

from graphbraid import native
from graphbraid.estimates.full_ranks import step_of
from graphbraid.fullgraph import Engine, Evidence
from graphbraid.fullgraph.lowering.options import CompileOptions
from graphbraid.fullgraph.step.operations import edges as maximum
from graphbraid.fullgraph.step.operations.row_exchange import RowExchange
from graphbraid.fullgraph.step.plan import StepRequest
from graphbraid.synth.emit.recorded import RecordedStep

MANY = ("gcn", "sage", "sage projected", "gin", "gat", "gatv2", "sage projected max, rows of length 1")


pytestmark = pytest.mark.usefixtures("threads")


def plan_of(rank):
    """The training step's plan of a rank."""
    return rank["engine"].runner.training_step.plan


def names_of(rank):
    """The names of the training step's tasks."""
    return [task.name for task in plan_of(rank).tasks]


@pytest.mark.parametrize("name", few_of(MANY, {"gcn", "sage projected", "gatv2"}))
@pytest.mark.parametrize("num_blocks", [2, 3])
def test_losses_are_those_of_one_rank(name, num_blocks):
    """Models have dropout, whose masks are drawn in the same order, and rows go to two ranks."""
    torch.manual_seed(3)
    found = assert_as_one_rank(MODELS[name](dropout=0.5), *blocks(num_blocks), epochs=6)
    assert all(rank["losses"] == found[0]["losses"] for rank in found)


def test_gradients_are_waited_for_after_the_linear_map():
    torch.manual_seed(3)
    for rank in assert_as_one_rank(MODELS["gcn"](dropout=0.5), *blocks(2), epochs=2):
        plan, names = plan_of(rank), names_of(rank)
        assert plan.exchanges.gone_back
        for out in plan.exchanges.gone_back:
            wait = names.index(f"gradient of {out}: wait")
            own = names.index(f"gradient of {out}'s weight: own")
            assert names.index(f"gradient of {out}: depart") < own < wait
            assert wait < names.index(f"gradient of {out}'s weight")


def test_a_weight_that_is_not_learned_has_no_gradient():
    torch.manual_seed(3)
    model = MODELS["gcn"]()
    model.convs[2].lin.weight.requires_grad_(False)
    for rank in assert_as_one_rank(model, *blocks(2), epochs=4):
        assert len(plan_of(rank).exchanges.gone_back) == 1
        assert not any(name.endswith("'s weight: own") for name in names_of(rank))


@pytest.mark.parametrize("name", ["gcn without loops", "gcn improved, wide"])
@pytest.mark.parametrize("num_blocks", few_of((2, 3), {3}))
def test_a_first_layer_goes_back_before_what_others_send_has_come(name, num_blocks):
    """Its mask is known, so gradients by own edges and of the rows that were sent are added up at the end."""
    torch.manual_seed(3)
    for rank in assert_as_one_rank(MODELS[name](dropout=0.5), *blocks(num_blocks), epochs=6):
        plan, names = plan_of(rank), names_of(rank)
        ((first,), (last,)) = plan.exchanges.first_back, plan.exchanges.gone_back
        wait = names.index(f"gradient of {last}: wait")
        assert names.index(f"gradient of {first}'s weight: own") < wait
        assert wait < names.index(f"gradient of {first}'s weight")


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_a_first_layer_learns_what_it_may(part):
    torch.manual_seed(3)
    model = MODELS["gcn plain sum"](dropout=0.5)
    of_first = [p for name, p in model.named_parameters() if name.startswith("convs.0") and part in name]
    assert len(of_first) == 1
    of_first[0].requires_grad_(False)
    for rank in assert_as_one_rank(model, *blocks(2), epochs=4):
        assert plan_of(rank).exchanges.first_back


@pytest.mark.skipif(native.kernels() is None, reason="programs are written from the compiled kernels' calls")
def test_a_generated_program_computes_gradients_once():
    torch.manual_seed(3)
    for rank in assert_as_one_rank(MODELS["gcn"](), *blocks(2), epochs=1):
        lowered, comm = rank["engine"].runner.lowered, rank["engine"].ranks.comm
        step = RecordedStep(
            StepRequest(
                program=lowered.program, graph=lowered.graph, blocks=lowered.blocks, training=True, comm=comm
            )
        )
        assert not step.plan.exchanges.gone_back


SPLIT = ("sage max", "sage projected max, rows of length 1", "first of equals")


def model_of(name, dropout):
    if name in MODELS:
        return MODELS[name](dropout=dropout)
    pyg = pytest.importorskip("torch_geometric.nn")
    return pyg.GraphSAGE(CHANNELS, 8, 2, CLASSES, aggr="max", dropout=dropout)


def learned(name, dropout, num_ranks, *, loops):
    torch.manual_seed(3)
    graph, parts = blocks(num_ranks, loops=loops)
    found = assert_as_one_rank(model_of(name, dropout), graph, parts, epochs=3)
    plans = [rank["engine"].runner.training_step.plan for rank in found]
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
        tasks = [task.name for task in rank["engine"].runner.training_step.plan.tasks]
        halos = [number for number, name in enumerate(tasks) if name.endswith(": halo")]
        assert halos
        for halo in halos:
            assert tasks[halo + 1].endswith(": depart") and tasks[halo + 2].endswith(": own")
    assert all("back add" in " ".join(events) for events in seen.values())
