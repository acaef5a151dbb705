"""The scans that public constructors make: what is wrong is found, and what is trusted is not looked at."""

import pytest
import torch
from tests.graph.cases import reference_kernels
from tests.ops.graphs import threads

from graphbraid import Csc, Graph, SparseFeatures
from graphbraid.errors import DataError
from graphbraid.graph.scans import first_below, first_fall, first_unsound_weight

INDPTR, INDICES = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2], dtype=torch.int32)
NAN, INF = float("nan"), float("inf")


def both_ways(scan):
    """A scan's answer, the same from the kernel with any threads and from its twin."""
    found = set()
    for count in (1, 3):
        with threads(count):
            found.add(scan())
    with reference_kernels():
        found.add(scan())
    (answer,) = found
    return answer


@pytest.mark.parametrize("at", [0, 1023, 1024, 70_003, 1_199_999])
def test_the_first_fall_is_found_wherever_it_is(at):
    indptr = torch.arange(1_200_001)
    assert both_ways(lambda: first_fall(indptr)) == -1
    indptr[at] += 2
    indptr[1_199_999] += 2
    assert both_ways(lambda: first_fall(indptr)) == at


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_weights_that_are_not_finite_are_found(bad):
    weight = torch.ones(50_000)
    weight[[40_000, 30_001]] = bad
    assert both_ways(lambda: first_unsound_weight(weight)) == 30_001
    assert both_ways(lambda: first_unsound_weight(weight[:30_001])) == -1


def test_negative_weights_are_found_where_they_are_wrong():
    weight = torch.zeros(5_000)
    weight[[7, 4_000]] = torch.tensor([-0.0, -1e-30])
    assert both_ways(lambda: first_unsound_weight(weight)) == -1
    assert both_ways(lambda: first_unsound_weight(weight, may_be_negative=False)) == 4_000


def test_values_below_a_bound_are_found():
    ids = torch.full((50_000,), -1)
    assert both_ways(lambda: first_below(ids, -1)) == -1
    ids[[9, 40_000]] = -2
    assert both_ways(lambda: first_below(ids, -1)) == 9


WRONG = {
    "falls": ({"indptr": torch.tensor([0, 2, 1, 3])}, "indptr must never fall; it goes from 2 at position 1"),
    "starts": ({"indptr": torch.tensor([1, 1, 2, 3])}, "it runs from 1 to 3"),
    "ends": ({"indptr": torch.tensor([0, 1, 2, 5])}, "it runs from 0 to 5"),
    "source": ({"indices": torch.tensor([0, 3, 1])}, "indices[1], an in-edge of node 1, is 3"),
    "negative": ({"indices": torch.tensor([0, 1, -1])}, "indices[2], an in-edge of node 2, is -1"),
    "floats": ({"indices": torch.tensor([0.0, 1.0, 2.0])}, "indices must be 1-d int32 or int64"),
    "strided": ({"indices": torch.arange(6, dtype=torch.int32)[::2]}, "must be contiguous"),
    "list": ({"indices": [0, 1, 2]}, "indices must be a torch.Tensor; got [0, 1, 2]"),
    "sparse": ({"indices": torch.tensor([0, 1, 2]).to_sparse()}, "indices must be a dense tensor"),
    "meta": ({"indptr": INDPTR.to("meta")}, "indptr must be a dense tensor that holds values"),
    "narrow": ({"indptr": INDPTR.int()}, "indptr must be a non-empty 1-d int64 tensor; got torch.int32"),
    "count": ({"num_src": -1}, "num_src must be a whole number in"),
    "true": ({"num_src": True}, "num_src must be a whole number in [0, 1099511627776]; got True"),
    "nan": ({"weight": torch.tensor([1.0, NAN, 1.0])}, "edge weights must be finite; weight[1] is nan"),
    "double": ({"weight": torch.ones(3, dtype=torch.float64)}, "edge weights must be torch.float32"),
    "few": ({"weight": torch.ones(2)}, "edge weights must be torch.float32 of shape (3,)"),
    "degree": ({"src_degree": torch.ones(2)}, "src_degree must have shape (3,); got (2,)"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_an_adjacency_is_looked_at_when_it_is_made(kind):
    fields, message = WRONG[kind]
    sound = {"indptr": INDPTR, "indices": INDICES, "num_src": 3}
    Csc(**sound)
    with pytest.raises(DataError) as error:
        Csc(**{**sound, **fields})
    assert message in str(error.value)
    Csc(**{**sound, **fields}, trusted=True)


def test_sparse_features_are_looked_at_when_they_are_made():
    sound = {"indptr": INDPTR, "indices": INDICES, "values": torch.ones(3), "num_cols": 3}
    SparseFeatures(**sound)
    with pytest.raises(DataError, match=r"columns of the sparse features must be in \[0, 2\)"):
        SparseFeatures(**{**sound, "num_cols": 2})
    with pytest.raises(DataError, match="indptr of the sparse features must never fall"):
        SparseFeatures(**{**sound, "indptr": torch.tensor([0, 2, 1, 3])})


@pytest.mark.parametrize("ids", [[0, 3], [-1], [2**32]])
def test_splits_are_held_to_the_nodes_wherever_they_enter(ids):
    csc, wrong = Csc(INDPTR, INDICES, 3), {"train": torch.tensor(ids)}
    with pytest.raises(DataError, match=r"split 'train' must be node ids in \[0, 3\)"):
        Graph(csc=csc, splits=wrong)
    with pytest.raises(DataError, match=r"split 'train' must be node ids in \[0, 3\)"):
        Graph(csc=csc).replace(splits=wrong)
    with pytest.raises(DataError, match=r"split 'train' must be node ids in \[0, 3\)"):
        Graph.from_edge_index([[0, 1], [1, 0]], 3, splits=wrong)


def test_splits_are_looked_at_again_where_the_nodes_become_fewer():
    graph = Graph(csc=Csc(INDPTR, INDICES, 3), splits={"train": torch.tensor([2])})
    with pytest.raises(DataError, match=r"split 'train' must be node ids in \[0, 2\)"):
        graph.replace(csc=Csc(torch.tensor([0, 1, 2]), INDICES[:2], 2))


def test_edge_ids_below_minus_one_are_refused():
    with pytest.raises(DataError, match=r"edge_id\[1\] is -2"):
        Graph(csc=Csc(INDPTR, INDICES, 3), edge_id=torch.tensor([0, -2, 1]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"csc": None}, "csc must be a graphbraid.Csc; got None"),
        ({"x": [[1.0]]}, "x must be a torch.Tensor; got [[1.0]]"),
        ({"y": "labels"}, "y must be a torch.Tensor; got 'labels'"),
        ({"splits": [1]}, "splits must be a mapping"),
        ({"splits": {"train": [0]}}, "split 'train' must be a torch.Tensor; got [0]"),
        ({"splits": {0: torch.tensor([0])}}, "a split's name must be a string; got 0"),
        ({"name": 3}, "name must be a string; got 3"),
    ],
)
def test_fields_of_another_type_are_refused(fields, message):
    with pytest.raises(DataError) as error:
        Graph(**{"csc": Csc(INDPTR, INDICES, 3), **fields})
    assert message in str(error.value)


def test_a_graph_without_edges_or_nodes_can_be_made_and_edited():
    for num_nodes in (0, 1, 4):
        graph = Graph.from_edge_index(torch.empty(2, 0, dtype=torch.int64), num_nodes)
        edited = graph.symmetrized().without_duplicates().without_self_loops().validate()
        assert (edited.num_nodes, edited.num_edges) == (num_nodes, 0)
        assert graph.with_self_loops().num_edges == num_nodes
        assert graph.csc.transpose()[0].num_edges == 0
