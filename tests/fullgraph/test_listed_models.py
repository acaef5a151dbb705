"""The listed models equal PyG, and none is lowered less than the committed table says."""

import pytest
import torch
from tests.extras import NO_PYG, require_to_hetero

pytest.importorskip("torch_geometric", reason=NO_PYG)
from benchmarks.common.rows import read_rows
from benchmarks.fullgraph.models.check import (
    MESSAGES,
    MODELS,
    PARTLY,
    WHOLLY,
    WRITTEN,
    call,
    data_of,
    find,
    find_on_batches,
)
from benchmarks.fullgraph.models.listed import Sizes

from graphbraid.loader import NeighborLoader

LEAST = {"GCN": 28, "SAGE": 20, "GIN": 12, "GAT": 14, "GraphConv": 5, "RGCN": 4, "GINE": 4, "Transformer": 4}
LEAST |= {"PNA": 3, "EdgeConv": 3, "types": 5, "own messages": 8, "plain forward": 10, "sparse matrix": 9}


def listed_models(offset=0):
    """A twelfth is quick. `make test-all` runs a third on each route: the matrix has the same layers."""
    return [
        pytest.param(
            one,
            id=f"{one.family}: {one.name}",
            marks=[pytest.mark.long] if i % 3 else [pytest.mark.slow] if i % 12 else [],
        )
        for i, one in enumerate(MODELS, offset)
    ]


def runnable(listed):
    """Skip a model that this PyG cannot make."""
    if listed.name.startswith("to_hetero"):
        require_to_hetero()
    return listed


@pytest.mark.parametrize("listed", listed_models())
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_equals_pyg_and_is_lowered_as_the_table_says(listed):
    found = find(runnable(listed))
    assert found.equal, found
    was = {(row["family"], row["model"]): row["status"] for row in read_rows("fullgraph_coverage")}
    order = (WHOLLY, MESSAGES, PARTLY, WRITTEN)
    assert order.index(found.status) <= order.index(was[listed.family, listed.name]), found


@pytest.mark.parametrize("listed", listed_models(5))
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_equals_pyg_on_batches_and_is_lowered_as_the_table_says(listed):
    found = find_on_batches(runnable(listed))
    assert found.equal, found
    rows = {(row["family"], row["model"]): row for row in read_rows("fullgraph_coverage")}
    was = rows[listed.family, listed.name]["batches_status"]
    order = (WHOLLY, MESSAGES, PARTLY, WRITTEN)
    assert order.index(found.status) <= order.index(was), found


@pytest.mark.parametrize("listed", [pytest.param(one, id=one.name) for one in MODELS if one.batched])
def test_a_model_that_is_changed_for_batches_is_wrong_on_them_as_it_stands_in_pyg_itself(listed):
    sizes = Sizes(dropout=0.0)
    data, outs = data_of(listed.data, sizes), []
    with NeighborLoader(data, [3, 2, 2], data.train_mask, batch_size=5, seed=1) as loader:
        batches = [batch.to_data() for batch, _ in zip(loader, range(2), strict=False)]
    for options in ({}, {listed.batched.option: listed.batched.value}):
        torch.manual_seed(5)
        model = listed.make(sizes, **options).eval()
        try:
            outs.append([call(model, batch) for batch in batches][-1][:5])
        except (IndexError, RuntimeError):
            assert not options
            return
    assert not torch.allclose(*outs)


def test_the_list_has_the_mix_of_what_people_write():
    names = [(one.family, one.name) for one in MODELS]
    assert len(set(names)) == len(names) >= 120
    families = [family for family, _ in names]
    assert all(families.count(family) >= count for family, count in LEAST.items())
