"""validate(): each kind of damage is found, and the first offender is named with its position and value."""

import pytest
import torch
from tests.graph.cases import case_graph
from tests.graph.edge_cases import EDGE_CASES

from graphbraid.errors import DataError
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.graph.checks import validate_features
from graphbraid.graph.csc import Csc

NAN, INF = float("nan"), float("inf")


def sound() -> dict:
    """Fields of a graph with nothing wrong: a path of six nodes and back, weights, features, splits."""
    src, dst = torch.arange(5), torch.arange(1, 6)
    graph = Graph.from_edge_index(
        torch.stack([torch.cat([src, dst]), torch.cat([dst, src])]),
        edge_weight=torch.rand(10) + 0.5,
        x=torch.rand(6, 3),
        y=[0, 1, 0, 2, -1, 1],
        splits={"train": [0, 1], "val": [2], "test": [3, 5]},
    )
    return {"csc": graph.csc, "edge_id": graph.edge_id, "x": graph.x, "y": graph.y, "splits": graph.splits}


def csc_with(**fields) -> Csc:
    csc = sound()["csc"]
    for name, (position, value) in fields.items():
        changed = getattr(csc, name).clone()
        changed[position] = value
        setattr(csc, name, changed)
    return csc


def put(values: torch.Tensor, position, value) -> torch.Tensor:
    changed = values.clone()
    changed[position] = value
    return changed


def ids(*nodes: int) -> torch.Tensor:
    return torch.tensor(nodes, dtype=torch.int64)


def sparse_x(indices=(0, 2, 1), values=(1.0, 2.0, 3.0), indptr=(0, 1, 1, 2, 3, 3, 3)) -> SparseFeatures:
    return SparseFeatures(
        indptr=torch.tensor(indptr),
        indices=torch.tensor(indices, dtype=torch.int32),
        values=torch.tensor(values),
        num_cols=3,
        trusted=True,
    )


DAMAGE = {
    "negative id": ({"csc": csc_with(indices=(0, -3))}, "indices[0], an in-edge of node 0, is -3"),
    "nan weight": ({"csc": csc_with(weight=(4, NAN))}, "edge weights must be finite; weight[4] is nan"),
    "infinite weight": ({"csc": csc_with(weight=(9, INF))}, "weight[9] is inf"),
    "negative weight": ({"csc": csc_with(weight=(3, -2.0))}, "must not be negative"),
    "edge id": ({"edge_id": put(torch.arange(10), 6, -2)}, "edge_id[6] is -2"),
    "infinite half feature": ({"x": put(torch.ones(6, 3).half(), (5, 2), -INF)}, "x[5, 2] is -inf"),
    "bfloat16 nan": ({"x": put(torch.ones(6, 3).bfloat16(), (0, 0), NAN)}, "x[0, 0] is nan"),
    "sparse column": ({"x": sparse_x(indices=(0, 3, 1))}, "indices[1], in the row of node 2, is 3"),
    "sparse nan": ({"x": sparse_x(values=(1.0, 2.0, NAN))}, "x[3, 1] is nan"),
    "sparse indptr": (
        {"x": sparse_x(indptr=(0, 2, 1, 2, 3, 3, 3))},
        "indptr of the sparse features must never",
    ),
    "negative split id": ({"splits": {"test": ids(0, -1)}}, "position 1 holds -1"),
    "unlabelled training node": ({"splits": {"train": ids(0, 4)}}, "train[1] is node 4, whose label is -1"),
    "nan target": ({"y": put(torch.rand(6, 2), 2, NAN)}, "val[0] is node 2"),
    "infinite cell": ({"y": put(torch.rand(6, 2), (2, 1), INF)}, "val[0] is node 2"),
    "infinite target": ({"y": put(torch.rand(6), 5, INF)}, "test[1] is node 5, whose label is inf"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_and_the_first_offender_named(kind):
    fields, message = DAMAGE[kind]
    with pytest.raises(DataError) as error:
        Graph(**{**sound(), **fields}, trusted=True).validate()
    assert message in str(error.value)


def test_a_sound_graph_passes_and_comes_back():
    graph = Graph(**sound())
    assert graph.validate() is graph
    Graph(**{**sound(), "x": sparse_x()}).validate()


@pytest.mark.parametrize("case", EDGE_CASES)
def test_edge_cases_are_sound(case):
    case_graph(case).validate()


def test_torchs_mark_of_no_class_is_none():
    y = Graph(**sound()).y.clone()
    y[-1] = -100  # of a node in no split
    graph = Graph(**{**sound(), "y": y, "splits": {}})
    assert graph.validate() is graph
    assert graph.replace(y=torch.full_like(y, -100)).num_classes == 0
    y[-1] = -99
    with pytest.raises(DataError, match=r"or -1 or -100 for none; .* is -99"):
        graph.replace(y=y).validate()


def test_negative_weights_can_be_allowed():
    graph = Graph(**{**sound(), "csc": csc_with(weight=(3, -2.0))})
    assert graph.validate(allow_negative_weights=True) is graph


def test_nan_targets_outside_the_splits_are_unlabelled_nodes():
    Graph(**{**sound(), "y": put(torch.rand(6), 4, NAN)}).validate()


def test_the_first_of_many_is_found_beyond_one_scan():
    x = torch.zeros(300_000, 7)  # two scans
    x[250_000, 5] = x[250_000, 6] = x[299_999, 0] = NAN
    with pytest.raises(DataError, match=r"x\[250000, 5\] is nan"):
        validate_features(x)


def test_an_indptr_that_falls_beyond_one_scan_is_found():
    indptr = torch.arange(1_500_001)
    indptr[1_400_000] = 1_400_002
    csc = Csc(indptr, torch.zeros(1_500_000, dtype=torch.int32), 1_500_000, trusted=True)
    with pytest.raises(DataError, match="goes from 1400002 at position 1400000 to 1400001 at 1400001"):
        Graph(csc=csc).validate()


def test_sizes_that_no_layer_has_are_refused():
    y = torch.zeros(6, dtype=torch.int64)
    y[4] = 1 << 62
    with pytest.raises(DataError, match=r"classes in \[0, 16777216\), .*y\[4\] is 4611686018427387904"):
        Graph(**{**sound(), "y": y, "splits": {}}).validate()
    none = torch.zeros(0)
    wide = SparseFeatures(
        indptr=torch.zeros(7).long(), indices=none.int(), values=none, num_cols=(1 << 24) + 1
    )
    with pytest.raises(DataError, match="at most 16,777,216 columns; got 16,777,217"):
        validate_features(wide)
