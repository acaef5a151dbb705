"""Masks that are drawn for the ids of nodes: a node has the same in every batch, whatever its place."""

import pytest
import torch
from tests.sampling.graphs import power_law_csc

from graphbraid.graph import SparseFeatures
from graphbraid.graph.csc import Csc
from graphbraid.ops import (
    Aggregation,
    aggregate_linear,
    bias_act_dropout,
    gat_attention,
    gatv2_attention,
    sparse_dropout,
)
from graphbraid.ops.rng import given_rows, given_seeds, mask_type, row_ids

NUM = 40
CSC = power_law_csc(NUM, 300)
X = torch.randn(NUM, 6, generator=torch.Generator().manual_seed(0))
ORDER = torch.randperm(NUM, generator=torch.Generator().manual_seed(1))


def _permuted(csc: Csc) -> Csc:
    """The graph whose node ``i`` is node ``ORDER[i]``, with the edges of a row in their order."""
    place = torch.empty_like(ORDER)
    place[ORDER] = torch.arange(NUM)
    rows = [csc.indices[int(csc.indptr[v]) : int(csc.indptr[v + 1])].long() for v in ORDER.tolist()]
    ends = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    return Csc(ends, place[torch.cat(rows)].to(torch.int32), NUM)


def _dense(x, csc):
    return bias_act_dropout(x, None, "relu", 0.5)


def _product(x, csc):
    weight = torch.linspace(-1, 1, 48).view(8, 6).to(x.dtype)
    return aggregate_linear(Aggregation(csc=csc), x, weight, act="relu", p=0.5)


def _gat(x, csc):
    return gat_attention(csc, x, x[:, :2], x[:, 2:4], dropout=0.5)


def _gatv2(x, csc):
    return gatv2_attention(csc, x, x, torch.ones(2, 3), dropout=0.5)


@pytest.mark.parametrize("run", [_dense, _product, _gat, _gatv2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_node_has_the_same_mask_at_any_place_forward_and_backward(run, dtype):
    found = []
    for ids, csc in ((torch.arange(NUM), CSC), (ORDER, _permuted(CSC))):
        x = X.to(dtype)[ids].requires_grad_()
        with given_seeds(iter([7])), given_rows({"": ids}):
            out = run(x, csc)
        out.square().sum().backward()
        found.append((out.detach(), x.grad))
    (out, grad), (other, other_grad) = found
    assert (out == 0).any()
    torch.testing.assert_close(other, out[ORDER])
    torch.testing.assert_close(other_grad, grad[ORDER], rtol=1e-4, atol=1e-4)


def test_ids_that_are_the_places_give_the_masks_of_places():
    with given_seeds(iter([7])):
        plain = _dense(X, CSC)
    with given_seeds(iter([7])), given_rows({"": torch.arange(NUM)}):
        assert plain.equal(_dense(X, CSC))


def test_stored_values_of_sparse_features_are_dropped_by_node_and_column():
    dense = torch.where(X > 0, X, 0)
    found = []
    for ids in (torch.arange(NUM), ORDER):
        x = SparseFeatures.from_dense(dense[ids])
        with given_seeds(iter([3])), given_rows({"": ids}):
            found.append(sparse_dropout(x, 0.4, training=True).to_dense())
    assert found[1].equal(found[0][ORDER])
    kept = found[0] != 0
    assert found[0][kept].allclose(dense[kept] / 0.6)
    assert 0.45 < kept.sum() / (dense != 0).sum() < 0.75


def test_ids_are_those_of_the_type_that_is_said_and_end_with_the_block():
    rows = {"a": torch.tensor([5, 6]), "b": torch.tensor([9])}
    assert row_ids(1) is None
    with given_rows(rows):
        assert row_ids(2).tolist() == [5, 6]
        mask_type("b")
        assert row_ids(1).tolist() == [9]
        assert row_ids(2) is None
        mask_type(0)
        assert row_ids(1).tolist() == [5]
        with given_rows(None):
            assert row_ids(1) is None
        assert row_ids(1).tolist() == [5]
    mask_type("a")
    assert row_ids(1) is None
