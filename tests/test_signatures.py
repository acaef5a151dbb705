"""Arguments of another class than a call names are refused; other forms of the same are taken."""

from __future__ import annotations

import dataclasses
import inspect
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import graphbraid
from graphbraid import collective, datasets, fullgraph, nn, ops, signatures
from graphbraid.errors import ConfigError, DataError, GraphbraidError, did_you_mean
from graphbraid.graph import Graph
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.signatures import typed
from graphbraid.train import TrainConfig


@typed
def call(
    x: Tensor | None = None,
    count: int = 1,
    share: float = 0.5,
    flag: bool = False,
    how: Literal["a", "b"] = "a",
    counts: Sequence[int] = (),
    pair: tuple[int, ...] = (),
    names: Mapping[str, Any] | None = None,
    path: str | os.PathLike[str] = ".",
    graph: Graph | None = None,
    anything: Any = None,
) -> dict[str, Any]:
    return dict(locals())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"x": [1, 2]}, "x must be Tensor or None; got [1, 2]; torch.as_tensor makes one"),
        ({"x": torch.eye(3).to_sparse()}, "to_dense"),
        ({"count": 1.5}, "count must be int; got 1.5"),
        ({"count": "3"}, "got '3'"),
        ({"count": True}, "got True"),
        ({"count": torch.tensor([1, 2])}, "count must be int; got Tensor of torch.int64"),
        ({"share": "0.5"}, "share must be float; got '0.5'"),
        ({"share": 1j}, "got 1j"),
        ({"flag": "no"}, "flag must be bool; got 'no'"),
        ({"flag": 2}, "got 2"),
        ({"how": 3}, "how must be"),
        ({"counts": "33"}, "got '33'"),
        ({"counts": 3}, "got 3"),
        ({"counts": [3, "3"]}, "got '3' at [1]"),
        ({"pair": {3: 3}}, "got {3: 3}"),
        ({"names": ["a"]}, "got ['a']"),
        ({"path": 3}, "got 3"),
        ({"path": "a\0b"}, "NUL"),
        ({"path": "x" * 300}, "255 bytes"),
        ({"graph": object()}, "graph must be Graph or None"),
    ],
)
def test_another_class_is_refused(given, says):
    with pytest.raises(GraphbraidError, match="must be") as raised:
        call(**given)
    assert says in str(raised.value)


def test_other_forms_of_the_same_become_plain():
    got = call(None, np.uint8(7), np.float32(0.25), np.bool_(True), counts=np.array([1]), pair=[3, 4])
    assert (type(got["count"]), got["count"]) == (int, 7)
    assert (type(got["share"]), got["share"]) == (float, 0.25)
    assert got["flag"] is True
    assert call(count=torch.tensor(3))["count"] == 3
    assert call(share=torch.tensor(0.5))["share"] == 0.5
    assert call(share=2)["share"] == 2.0
    assert call(path=Path("a/b"))["path"] == Path("a/b")


def test_lazy_negation_reaches_the_kernels():
    x = torch.arange(6.0).reshape(3, 2) + 1
    assert torch.equal(call(torch._neg_view(x))["x"], -x)
    graph = Graph.from_edge_index([[0, 1, 2], [1, 2, 0]], 3)
    assert torch.equal(ops.spmm(graph.csc, torch._neg_view(x)), -ops.spmm(graph.csc, x))


def test_pythons_own_errors_stay():
    with pytest.raises(TypeError, match="unexpected keyword argument 'nope'"):
        call(nope=3)
    with pytest.raises(TypeError, match="missing 2 required"):
        ops.spmm()


def test_the_signature_and_the_name_stay():
    assert list(inspect.signature(ops.spmm).parameters) == ["csc", "x", "reduce", "weight"]
    assert pickle.loads(pickle.dumps(ops.spmm)) is ops.spmm
    duration = collective.Duration(seconds=0.5)
    assert dataclasses.replace(duration, cv=0.25) == collective.Duration(seconds=0.5, cv=0.25)
    assert pickle.loads(pickle.dumps(duration)) == duration


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: nn.model_options("nope"),
        lambda: collective.make_plan(_profile(), 10**30),
        lambda: collective.fixed_plan(_profile(), 2**64, 1.0),
        lambda: collective.simulated(collective.make_plan(_profile(), 5), num_batches=0),
        lambda: datasets.open_store([]),
        lambda: datasets.load_npz("x" * 300),
        lambda: datasets.random_split(Graph.from_edge_index([[0], [1]], y=[0, 1]), seed="0"),
    ],
)
def test_counts_have_bounds_and_paths_are_paths(wrong):
    with pytest.raises(ConfigError):
        wrong()


def _profile() -> collective.Profile:
    d = collective.Duration
    times = collective.StageTimes(
        workers=np.uint8(2), cpu=d(seconds=0.1), dma=d(seconds=0.1), model=d(seconds=0.1)
    )
    return collective.Profile(times=(times,))


def test_numbers_of_numpy_do_not_wrap_around(tmp_path):
    plan = collective.make_plan(_profile(), np.int64(300))
    plan.save(tmp_path / "plan.json")
    assert collective.Plan.load(tmp_path / "plan.json") == plan


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: _graph().validate(num_classes=torch.tensor([1, 2])),
        lambda: _graph().validate(num_classes=-(2**70)),
        lambda: _graph().validate(allow_negative_weights="true"),
        lambda: _graph().without_self_loops(keep_edge_id=torch.tensor([])),
        lambda: _graph().with_self_loops(weight="1"),
        lambda: _graph().split([]),
        lambda: _graph().in_original_order([1.0]),
        lambda: SparseFeatures.from_scipy(torch.nn.Linear(2, 2)),
        lambda: SparseFeatures.from_scipy(np.array([1, 2])),
        lambda: SparseFeatures.from_dense(torch.eye(3)).to(np.array(["a", "b"])),
        lambda: datasets.NodeIds([1, 2]),
        lambda: nn.GraphSAGE(2, 4, 2)([[1.0, 2.0], [3.0]], _graph().csc),
        lambda: nn.GCN(2, 4, 2)(
            torch.zeros(3, 2), torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
        ),
        lambda: ops.aggregate_linear(len, torch.zeros(3, 2), torch.zeros(2, 2)),
        lambda: graphbraid.compile(nn.GCN(2, 4, 2), _graph(), nodes=[0], passes=1.5),
        lambda: graphbraid.compile(nn.GCN(2, 4, 2), _graph(), nodes=[0], passes=[3]),
        lambda: fullgraph.Engine(nn.GCN(2, 4, 2), _graph(), [0], data=torch.tensor(2)),
        lambda: ops.Aggregation(csc=_graph().csc, weight=torch.zeros(3, 0)),
        lambda: _graph().replace(trusted=np.array([1, 2])),
        lambda: Graph(csc=_graph().csc, trusted=np.array([1, 2])),
        lambda: TrainConfig.from_dict(torch.device("cpu")),
    ],
)
def test_methods_refuse_what_they_cannot_take(wrong):
    with pytest.raises((ConfigError, DataError), match="must be"):
        wrong()


def _nested() -> Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


def _graph() -> Graph:
    return Graph.from_edge_index([[0, 1, 2], [1, 2, 0]], 3, x=torch.ones(3, 2), y=[0, 1, 0])


def test_ids_that_no_node_can_have_are_unknown_ones():
    ids = datasets.NodeIds(np.array([5, -3, 2**62]))
    assert ids.nodes_of([2**62, "5", np.int64(-3)]).tolist() == [2, 0, 1]
    assert ids.nodes_of(np.array([5], np.uint8)).tolist() == [0]
    assert ids.nodes_of([]).tolist() == []
    for unknown in (2**64, -(2**63) - 1, 0, "five"):
        with pytest.raises(DataError, match=r"position 1\); 3 ids are known"):
            ids.nodes_of([5, unknown])
    with pytest.raises(DataError, match="position 0"):
        ids.nodes_of(np.array([5.5]))


def test_unsigned_values_take_their_original_order():
    graph = Graph.from_edge_index([[2, 0, 1], [0, 2, 1]], 3)
    stored = torch.tensor([7, 8, 9])
    wanted = graph.in_original_order(stored)
    for dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64):
        assert graph.in_original_order(stored.to(dtype)).tolist() == wanted.tolist()


def test_a_public_operator_checks_its_classes_once(monkeypatch):
    seen = []
    real = signatures._checked
    monkeypatch.setattr(signatures, "_checked", lambda name, *rest: [seen.append(name), real(name, *rest)][1])
    graph = _graph()
    ops.spmm(graph.csc, graph.x)
    assert seen.count("x") == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda graph, flag: Graph.from_edge_index(torch.zeros(2, 1).long(), num_nodes=2, keep_edge_id=flag),
        lambda graph, flag: Graph.from_scipy(graph.to_scipy(), weighted=flag),
        lambda graph, flag: graph.symmetrized(keep_edge_id=flag),
        lambda graph, flag: graph.validate(allow_negative_weights=flag),
    ],
)
def test_an_array_is_no_flag_of_a_graph(call):
    graph = Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    with pytest.raises(
        ConfigError, match=r"must be (bool|True or False).*got ndarray of int64 and shape \(2,\)"
    ):
        call(graph, np.array([1, 2]))


# ---- what the messages of errors have in common


@pytest.mark.parametrize(
    ("name", "known", "question"),
    [
        ("fanout", ["fanouts", "epochs"], " Did you mean 'fanouts'?"),
        ("ADAMM", ["adam", "sgd"], " Did you mean 'adam'?"),
        ("cora", ["Cora.npz", "Corra"], " Did you mean 'Corra'?"),  # nearest in any case, named in its own
        ("xyz", ["fanouts", "epochs"], ""),
        (3, ["fanouts"], ""),
        ("fanouts", [], ""),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest_known_one(name, known, question):
    assert did_you_mean(name, iter(known)) == question
    assert did_you_mean(name, known, joined=True) == question.replace(" Did", "; did")
