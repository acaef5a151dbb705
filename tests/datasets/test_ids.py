import numpy as np
import pytest
import torch

from graphbraid.datasets import NodeIds
from graphbraid.errors import DataError


@pytest.mark.parametrize("values", [np.array([30, -2, 1 << 50, 7]), np.array(["b", "a", "", "ü"], object)])
def test_originals_and_nodes_are_inverse(values):
    ids = NodeIds(values)
    nodes = torch.tensor([2, 0, 2, 3, 1])
    assert ids.nodes_of(ids.originals(nodes)).tolist() == nodes.tolist()
    assert [ids[node] for node in range(len(ids))] == values.tolist()
    assert NodeIds.from_arrays(ids.arrays()).values.tolist() == values.tolist()


@pytest.mark.parametrize(
    ("values", "unknown"), [(np.array([3, 1]), [1, 2]), (np.array(["x"], object), ["x", "y"])]
)
def test_an_unknown_id_is_named_with_its_position(values, unknown):
    with pytest.raises(DataError, match=rf"no node has the id {unknown[1]!r} \(position 1\)"):
        NodeIds(values).nodes_of(unknown)


def test_no_ids_at_all_know_nothing():
    with pytest.raises(DataError, match="0 ids are known"):
        NodeIds(np.empty(0, np.int64)).nodes_of([1])


def test_other_dtypes_are_refused():
    with pytest.raises(DataError, match="got float64"):
        NodeIds(np.zeros(3))
