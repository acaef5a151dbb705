"""Ranks that share batches normalise by the rows of the whole batch, as one rank does."""

import functools
from types import SimpleNamespace

import pytest
import torch
from tests.distributed import norm_training
from tests.distributed.ranks import run
from tests.distributed.threads import run_threads

from graphbraid.fullgraph.batches.rank_norms import RankNorms

pytestmark = pytest.mark.distributed
SIZES = (2, *(pytest.param(size, marks=pytest.mark.long) for size in (3, 4)))
"""The drawn models are trained on 4 ranks, too."""
FEW = {0: 2, 6: 2, 12: 4, 18: 4, 24: 0, 30: 0}
"""The first of six models that a number draws, and how many ranks train them in `make test-all`, if any."""


def _mark(size, first):
    return [pytest.mark.slow] * (first > 6) if size == FEW[first] else [pytest.mark.long]


DRAWN = [pytest.param(size, first, marks=_mark(size, first)) for first in FEW for size in (2, 3, 4)]
WARNS = "batch normalisation is by each rank's own rows"


@functools.cache
def _of_one(function, *arguments):
    return run(1, function, *arguments)[0].result


def _check(size, function, *arguments, rel=1e-5):
    """Losses and what is learned are those of one rank up to rounding, and the same on all ranks."""
    alone, several = _of_one(function, *arguments), [said.result for said in run(size, function, *arguments)]
    for found in several:
        for name, one in found.items():
            assert not one["said"], name
            assert one["state"] == several[0][name]["state"], name
            assert one["losses"] == pytest.approx(alone[name]["losses"], rel=rel), name
            assert one["state"] == pytest.approx(alone[name]["state"], rel=rel, abs=rel), name
    assert alone.keys() == several[0].keys()


@pytest.mark.parametrize(("size", "first"), DRAWN)
@pytest.mark.parametrize(
    ("dtype", "rel"), [("float64", 1e-5), pytest.param("float32", 1e-3, marks=pytest.mark.long)]
)
def test_drawn_models_learn_the_same(size, first, dtype, rel):
    """A loss is float32 also where the model computes in float64, and so are features."""
    _check(size, norm_training.drawn, first, 6, dtype, rel=rel)


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
@pytest.mark.parametrize("size", SIZES)
def test_own_models_learn_the_same(layout, size):
    _check(size, norm_training.by_own, layout, rel=1e-4)


@pytest.mark.parametrize("size", SIZES)
def test_running_means_differ_by_the_bias_that_adam_moves(size):
    """The statistics of the rows without that bias agree. Evaluated rows differ by what the mean has not yet
    followed: ten times the largest step at most.
    """
    alone = _of_one(norm_training.by_adam)
    for said in run(size, norm_training.by_adam):
        for name in ("losses", "mean of rows", "variance"):
            assert said.result[name] == pytest.approx(alone[name], rel=1e-3, abs=1e-4), name
        assert said.result["bias"] == pytest.approx(alone["bias"], abs=2 * 10 * 0.01)


@pytest.mark.parametrize("size", SIZES)
def test_models_over_node_types_learn_the_same(size):
    _check(size, norm_training.typed)


@pytest.mark.parametrize("size", SIZES)
def test_encoders_of_links_learn_the_same(size):
    _check(size, norm_training.links)


def test_what_cannot_be_shown_equal_is_warned_of():
    alone = _of_one(norm_training.odd)
    [first, second] = (said.result for said in run(3, norm_training.odd)[:2])
    for name, found in first.items():
        assert len(found["losses"]) == len(alone[name]["losses"])
        if name == "frozen":
            assert not found["said"]
            assert found["losses"] == pytest.approx(alone[name]["losses"], rel=1e-6)
        else:
            itself = name in ("without a module", "computed")
            assert found["said"].startswith("while it trains, the model's" if itself else WARNS), name
        assert not second[name]["said"]


@pytest.mark.parametrize("batch_size", [67, 99])  # of 99 and 3 ranks the last has no seeds
def test_ranks_that_draw_which_modules_normalise_are_refused(batch_size):
    """Those of one width would add up each other's sums; of several, the transport would end a rank."""
    for said in run(3, norm_training.differing, batch_size):
        assert "differ in which batch normalisations" in said.result


def test_one_row_on_all_ranks_is_refused_as_on_one():
    alone = _of_one(norm_training.lone)
    assert "met a single node" in alone
    assert [said.result for said in run(3, norm_training.lone)] == [alone] * 3


def test_every_normalisation_has_a_backward_pass_on_all_ranks():
    """Also one whose rows the loss does not read: a rank without seeds waits for the others in it."""
    sampled = SimpleNamespace(trees_by_type=None, n_id_by_type=[torch.arange(4)], nodes_by_type=[[2, 2]])

    def on_rank(comm):
        norm = torch.nn.BatchNorm1d(3)
        norms = RankNorms(comm, norm, 1, whole=norm)
        norms.begin()
        if comm.rank == 1:
            norms.take_part()
        else:
            x = torch.randn(4, 3, requires_grad=True)
            with norms.over(sampled, [4]):
                norm(x)
            norms.joined(x.sum()).backward()
        assert norm.weight.grad is not None

    run_threads(2, on_rank)
