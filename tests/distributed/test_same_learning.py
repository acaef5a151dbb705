"""Ranks that share batches learn what one rank does, by any model that reads neighbourhoods alone."""

import functools

import pytest
from tests.distributed import same_learning
from tests.distributed.ranks import run
from tests.train import linked_communities, linked_times
from tests.train.typed_communities import bibliography

from graphbraid.errors import ConfigError
from graphbraid.train import TrainConfig
from graphbraid.train.option_checks import config_by_types, config_of_links

pytestmark = pytest.mark.distributed
SIZES = (2, *(pytest.param(size, marks=pytest.mark.long) for size in (3, 4)))
"""tests/distributed/test_part_matrix.py trains such models on 1 to 4 ranks with the whole graph, too."""
LAYOUTS = [
    *(("subgraph", 2), ("blocks", 2), pytest.param("blocks", 4, marks=pytest.mark.slow)),
    *(
        pytest.param(*one, marks=pytest.mark.long)
        for one in (("subgraph", 3), ("subgraph", 4), ("blocks", 3))
    ),
]


@functools.cache
def _of_one(function, *arguments):
    return run(1, function, *arguments)[0].result


def _check(size, function, *arguments, rel=1e-6):
    """Losses of all steps are those of one rank up to rounding in float32, and the same on all ranks."""
    alone, several = _of_one(function, *arguments), [said.result for said in run(size, function, *arguments)]
    for found in several:
        assert found == several[0]
        for name, losses in found.items():
            assert losses == pytest.approx(alone[name], rel=rel), name


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("compiled", "dropout"), [("compiled", 0.5), pytest.param("as written", 0, marks=pytest.mark.long)]
)
def test_models_of_pyg_learn_the_same_on_shares_of_subgraphs(size, compiled, dropout):
    _check(size, same_learning.by_pyg, "subgraph", dropout, compiled, rel=1e-5)


@pytest.mark.parametrize(("layout", "size"), LAYOUTS)
def test_own_models_learn_the_same(layout, size):
    """Attention in float32 has slopes that change where a logit passes zero, so that rounding grows."""
    _check(size, same_learning.by_own, layout, 0.5, rel=1e-4)


def test_a_dropout_that_runs_as_written_is_told_of():
    [first, *_] = run(2, same_learning.warnings_of, "as written")
    assert "PyTorch draws random numbers for the model" in first.result
    assert not run(2, same_learning.warnings_of, "compiled")[0].result


def test_what_shares_cannot_give_is_refused_and_the_rest_learns_the_same():
    alone = _of_one(same_learning.coupling)  # which one rank takes
    for said in run(2, same_learning.coupling):
        for name, found in said.result.items():
            if name in ("layer", "repeated, hops=5"):
                assert found == pytest.approx(alone[name], rel=1e-6)
            else:
                assert found.startswith("several ranks cannot train this model on shares of a batch"), name


def _check_told(size, function):
    alone = _of_one(function)
    for said in run(size, function):
        for name, found in said.result.items():
            assert found["losses"] == pytest.approx(alone[name]["losses"], rel=1e-5), name
            assert found["val"] == pytest.approx(alone[name]["val"], rel=1e-4), name
            assert found["test"] == pytest.approx(alone[name]["test"], rel=1e-3, abs=0.011), name


@pytest.mark.parametrize("size", SIZES)
def test_models_over_node_types_learn_the_same(size):
    _check_told(size, same_learning.typed)


@pytest.mark.parametrize("size", SIZES)
def test_links_are_learned_the_same_with_any_negatives_relations_types_and_times(size):
    _check_told(size, same_learning.links)


def test_what_ranks_cannot_share_of_links_and_types_is_refused():
    options = {"task": "link", "temporal_strategy": "last", "layout": "blocks"}
    graph = linked_times.meetings()
    given = dict.fromkeys(("tiers", "topology", "accelerator"))
    with pytest.raises(ConfigError, match="several ranks share batches of layout='subgraph' alone"):
        config_of_links(linked_communities.sage(graph), TrainConfig(**options), given, 2)
    with pytest.raises(ConfigError, match="2 ranks do not divide a graph with types so far"):
        config_by_types(bibliography(), TrainConfig(mode="full"), given, 2)
