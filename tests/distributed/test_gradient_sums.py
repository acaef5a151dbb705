"""Sums of gradients that begin while backward still computes others: right whatever else the loss holds."""

import copy
import types

import pytest
import torch
import torch.nn.functional as F
from tests.distributed.threads import run_threads
from tests.distributed.whole import RATES, as_processes, blocks
from tests.fullgraph.test_engine import MODELS

from graphbraid.distributed.ranks.gradients import GradientSum
from graphbraid.fullgraph import Engine, Evidence, Ranks
from graphbraid.fullgraph.lowering.options import CompileOptions

EVIDENCE = Evidence(rates=RATES)


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    """Threads do as processes do, and all masks have one seed."""
    as_processes(monkeypatch)
    monkeypatch.setattr("graphbraid.fullgraph.step.tasks.draw_seed", lambda: 11)


def loss_of(outputs, labels, model, penalty):
    loss = F.cross_entropy(outputs, labels, reduction="sum")
    return loss + penalty * next(model.parameters()).square().sum()


def gradients_of_ranks(name, *, listens, penalty=0.0):
    """Each rank's sums after each of three equal steps, its own gradients of the last, and what was told."""
    torch.manual_seed(3)
    model = MODELS[name](dropout=0.3)
    graph, parts = blocks(2)

    def run(comm):
        own_model = copy.deepcopy(model)
        ranks = Ranks(comm=comm, partition=parts)
        engine = Engine(own_model, graph, "train", CompileOptions(evidence=EVIDENCE), ranks=ranks)
        sums = GradientSum(comm, own_model.parameters(), num_extra=1, bucket_bytes=0)
        names, told = {id(p): name for name, p in own_model.named_parameters()}, []

        def listener(parameter, gradient):
            told.append((names[id(parameter)], gradient.clone()))
            sums.begin(parameter, gradient)

        ranks.listen(listener if listens else None)
        labels, found = graph.y[ranks.owned(graph.splits["train"])], []
        for _ in range(3):
            own_model.zero_grad()
            told.clear()
            loss = loss_of(engine(), labels, own_model, penalty)
            sums.arm()
            loss.backward()
            mine = copied(own_model)
            assert sums.finish([comm.rank + 1.0]) == [3.0]
            found.append(copied(own_model))
        sums.close()
        return found, mine, list(told)

    return run_threads(2, run)


def test_something_is_done_while_sums_are_on_their_way():
    def run(comm):
        model, events, begin = torch.nn.Linear(2, 1), [], comm.all_reduce

        def noted(tensor):
            events.append("begun")
            handle = begin(tensor)
            return types.SimpleNamespace(wait=lambda: (events.append("waited for"), handle.wait())[1])

        comm.all_reduce = noted
        sums = GradientSum(comm, model.parameters(), num_extra=1)
        model(torch.ones(1, 2)).sum().backward()
        assert sums.finish([1.0], lambda: events.append("meanwhile")) == [2.0]
        sums.close()
        return events

    for events in run_threads(2, run):
        assert events == ["begun", "begun", "meanwhile", "waited for", "waited for"]


def copied(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"mlp"}))
def test_each_gradient_is_told_of_once_and_whole(name):
    (_, mine, told), (_, _, other) = gradients_of_ranks(name, listens=True)
    assert [key for key, _ in told] == [key for key, _ in other]
    assert len(told) == len(mine)
    assert {key for key, _ in told} == set(mine)
    for key, gradient in told:
        assert torch.equal(gradient, mine[key]), key


@pytest.mark.parametrize("name", ["gcn", "gat", "gin, learned eps"])
@pytest.mark.parametrize("penalty", [0.0, 0.1])
def test_sums_are_those_made_at_the_end(name, penalty):
    early = gradients_of_ranks(name, listens=True, penalty=penalty)
    late = gradients_of_ranks(name, listens=False, penalty=penalty)
    for (steps, _, _), (expected, _, _) in zip(early, late, strict=True):
        for step, wanted in zip(steps, expected, strict=True):
            assert step.keys() == wanted.keys()
            for key, value in step.items():
                torch.testing.assert_close(value, wanted[key], rtol=1e-5, atol=1e-5)
    for key, value in early[0][0][-1].items():
        assert torch.equal(value, early[1][0][-1][key]), key


def test_the_last_layers_sum_begins_before_its_rows_gradients_travel():
    torch.manual_seed(3)
    graph, parts = blocks(2)
    model = MODELS["gcn"]()

    def run(comm):
        ranks = Ranks(comm=comm, partition=parts)
        engine = Engine(copy.deepcopy(model), graph, "train", CompileOptions(evidence=EVIDENCE), ranks=ranks)
        return [task.name for task in engine.runner.training_step.plan.tasks]

    for names in run_threads(2, run):
        told = [i for i, name in enumerate(names) if name.endswith("gradients are whole")]
        back = [i for i, name in enumerate(names) if name.endswith(": depart")]
        assert len(told) >= 3
        assert told[0] < back[0]
        assert sum(i < back[-1] for i in told) >= 2
