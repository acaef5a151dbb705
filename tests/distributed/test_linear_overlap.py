"""Gradients of own rows go on through the linear map before an exchange while others' travel."""

import pytest
import torch
from tests.distributed.whole import assert_as_one_rank, blocks
from tests.fullgraph.test_engine import MODELS
from tests.suites import few_of

from graphbraid import native
from graphbraid.fullgraph.step.plan import StepRequest
from graphbraid.synth.emit.recorded import RecordedStep

MANY = ("gcn", "sage", "sage projected", "gin", "gat", "gatv2", "sage projected max, rows of length 1")


pytestmark = pytest.mark.usefixtures("threads")


def plan_of(rank):
    """The training step's plan of a rank."""
    return rank["engine"].runner.training_step._plan


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
        assert not step._plan.exchanges.gone_back
