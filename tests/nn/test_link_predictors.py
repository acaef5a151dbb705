"""Link predictors: PyG's scores, the same scores for pairs and for all, and use with ranking."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.extras import NO_PYG

from graphbraid.errors import ConfigError, DataError
from graphbraid.nn import DistMult, DotProduct, MLPPredictor
from graphbraid.nn import link_predictors as module
from graphbraid.train import rank_links

NUM_NODES, CHANNELS, RELATIONS = 11, 6, 3
PREDICTORS = {
    "dot": DotProduct,
    "distmult": lambda: DistMult(RELATIONS, CHANNELS),
    "mlp": lambda: MLPPredictor(CHANNELS, 8, 3, dropout=0.5).eval(),
}


def drawn(kind: str) -> tuple[Any, torch.Tensor, torch.Tensor | None]:
    """A predictor in float64, rows of all nodes, and a relation for each node if it knows some."""
    torch.manual_seed(0)
    predictor = PREDICTORS[kind]().double()
    relation = torch.arange(NUM_NODES) % RELATIONS if predictor.num_relations else None
    return predictor, torch.randn(NUM_NODES, CHANNELS, dtype=torch.float64), relation


@pytest.mark.parametrize("kind", list(PREDICTORS))
@pytest.mark.parametrize("pairs_at_a_time", [1, 25, 1 << 16])
def test_scores_with_all_are_those_of_the_pairs(
    kind: str, pairs_at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAIRS", pairs_at_a_time)
    predictor, rows, relation = drawn(kind)
    found = predictor.with_all(rows, rows, relation)
    src = torch.arange(NUM_NODES).repeat_interleave(NUM_NODES)
    dst = torch.arange(NUM_NODES).repeat(NUM_NODES)
    pairs = predictor(rows[src], rows[dst], None if relation is None else relation[src])
    torch.testing.assert_close(found, pairs.view(NUM_NODES, NUM_NODES), atol=1e-12, rtol=1e-10)


def test_distmult_scores_as_pyg_s() -> None:
    pyg = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)
    torch.manual_seed(0)
    theirs, ours = pyg.DistMult(NUM_NODES, RELATIONS, CHANNELS), DistMult(RELATIONS, CHANNELS)
    ours.load_state_dict({"relations": theirs.rel_emb.weight})
    head, tail = torch.randint(NUM_NODES, (2, 20))
    relation = torch.randint(RELATIONS, (20,))
    rows = theirs.node_emb.weight
    torch.testing.assert_close(ours(rows[head], rows[tail], relation), theirs(head, relation, tail))


def test_the_dot_product_is_the_sum_of_products() -> None:
    src, dst = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0, 6.0], [7.0, -8.0]])
    assert DotProduct()(src, dst).tolist() == [17.0, -11.0]


def test_a_predictor_learns_links_and_ranks_them_first() -> None:
    """Each node of a ring is linked to the next; the rows of both ends are learned."""
    torch.manual_seed(0)
    rows = torch.nn.Embedding(2 * NUM_NODES, 16)
    predictor = MLPPredictor(16, 32)
    links = torch.stack([torch.arange(NUM_NODES), (torch.arange(NUM_NODES) + 1) % NUM_NODES])
    optimizer = torch.optim.Adam([*rows.parameters(), *predictor.parameters()], 0.05)
    for _ in range(60):
        optimizer.zero_grad()
        scores = predictor.with_all(rows.weight[:NUM_NODES], rows.weight[NUM_NODES:])
        torch.nn.functional.cross_entropy(scores, links[1]).backward()
        optimizer.step()
    found = rank_links(
        lambda src: predictor.with_all(rows.weight[src], rows.weight[NUM_NODES:]), links, NUM_NODES
    )
    assert found.hits(1) == 1.0


@pytest.mark.parametrize("kind", list(PREDICTORS))
def test_what_does_not_fit_is_named(kind: str) -> None:
    predictor, rows, relation = drawn(kind)
    with pytest.raises(DataError, match="dst must have the shape of src"):
        predictor(rows, rows[1:], relation)
    with pytest.raises(DataError, match=r"rows must be torch\.float64 as src is"):
        predictor.with_all(rows, rows.float(), relation)
    with pytest.raises(DataError, match="rows must have 6 columns"):
        predictor.with_all(rows, rows[:, 1:], relation)
    if relation is None:
        with pytest.raises(DataError, match="knows no relations"):
            predictor(rows, rows, torch.zeros(NUM_NODES, dtype=torch.int64))
    else:
        with pytest.raises(DataError, match=r"needs the relation of each link, in \[0, 3\)"):
            predictor(rows, rows)
        with pytest.raises(DataError, match="relation"):
            predictor(rows, rows, relation + 1)
        with pytest.raises(DataError, match="relation must have 11 entries"):
            predictor(rows, rows, relation[1:])
    if kind != "dot":
        with pytest.raises(DataError, match=r"src must have 6 columns \(channels\)"):
            predictor(rows[:, 1:], rows[:, 1:], relation)


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_relations"):
        DistMult(0, 3)
    with pytest.raises(ConfigError, match="dropout"):
        MLPPredictor(3, 4, dropout=1.0)
    with pytest.raises(ConfigError, match="num_layers"):
        MLPPredictor(3, 4, 0)
