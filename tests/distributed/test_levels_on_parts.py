"""Exact outputs level by level on parts are PyG's of the whole graph in float64, for any number of ranks."""

from typing import Any

import pytest
import torch
from tests.distributed.test_shards import parts_at
from tests.distributed.threads import run_threads
from tests.distributed.training import BASE, graph_of, make
from tests.extras import NO_PYG

pytest.importorskip("torch_geometric", reason=NO_PYG)
from tests.fullgraph.test_layer_wise import MODELS, NODES, SMALL, WIDTH, Stack, model_and_graph, uneven_graph

from graphbraid.distributed import Communicator
from graphbraid.distributed.shards.sharded_graph import ShardedGraph
from graphbraid.errors import ResourceError
from graphbraid.fullgraph.batches import layer_wise
from graphbraid.fullgraph.batches.layer_wise import at_narrower_side
from graphbraid.fullgraph.batches.levels_on_parts import LevelsOnParts
from graphbraid.fullgraph.reading.calling import Given
from graphbraid.fullgraph.reading.read import read_model
from graphbraid.graph import ScaledFeatures
from graphbraid.train import Trainer

PARTS = 4
"""The last part has no node, and the first one most nodes."""
LAST_OWNED = torch.tensor([0] * 5 + [1, 2])


def part_of(num_nodes: int) -> torch.Tensor:
    """Return the part of each node, by chance."""
    chosen = torch.randint(len(LAST_OWNED), (num_nodes,), generator=torch.Generator().manual_seed(2))
    return LAST_OWNED[chosen]


def walk_of(program: Any, parts: ShardedGraph, budget: int, kind: type = LevelsOnParts) -> LevelsOnParts:
    """Return what runs a program on a rank's parts, in float64."""
    found: LevelsOnParts = kind(
        program,
        parts,
        lambda _, ids: parts.shards.only.own_rows(ids).double(),
        device=torch.device("cpu"),
        budget=budget,
        dtype=torch.float64,
    )
    return found


def asked_by(rank: int) -> torch.Tensor:
    """Return nodes that a rank asks for: all, some and some of them twice, and none."""
    chosen = [torch.arange(NODES), torch.tensor([17, 399, 3, 17, 7, 7, 0]), torch.empty(0, dtype=torch.int64)]
    return chosen[rank % 3]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("ranks", "lists"), [(1, "parts"), (2, "whole"), (3, "parts"), (4, "parts")])
def test_each_rank_gets_pygs_outputs_for_nodes_of_any_rank(name, ranks, lists, tmp_path):
    model, graph, expected = model_and_graph(name)
    program = at_narrower_side(read_model(model, WIDTH, Given.of(graph), dtypes=(torch.float64,)))
    folder = parts_at(tmp_path / "parts", graph, part_of(NODES), PARTS, lists)

    def on_rank(comm: Communicator) -> None:
        parts, nodes = ShardedGraph.open(folder, comm), asked_by(comm.rank)
        for budget in (SMALL, 1 << 30):
            found = [*walk_of(program, parts, budget).run(nodes)]
            out = torch.cat([torch.empty(0, 5, dtype=torch.float64), *(rows for _, rows in found)])
            ends = torch.tensor([0, *(len(rows) for _, rows in found)]).cumsum(0)
            assert [start for start, _ in found] == ends[:-1].tolist()
            torch.testing.assert_close(out, expected[nodes], rtol=1e-10, atol=1e-10)

    run_threads(ranks, on_rank)


def test_a_row_of_another_rank_travels_once_a_level_and_only_if_it_is_read(tmp_path):
    model, graph, _ = model_and_graph("sage jumping")
    program = at_narrower_side(read_model(model, WIDTH, Given.of(graph), dtypes=(torch.float64,)))
    owner = part_of(NODES)
    folder = parts_at(tmp_path / "parts", graph, owner, PARTS)
    sources, into = graph.to_edge_index()

    def on_rank(comm: Communicator) -> None:
        mine, fetched = owner == comm.rank, list[torch.Tensor]()

        class Noted(LevelsOnParts):
            def _fetch(self, values: Any) -> None:
                super()._fetch(values)
                fetched.extend(self._halo(0, self._read_at[one]) for one in values if one in self._read_at)

        walk = walk_of(program, ShardedGraph.open(folder, comm), SMALL, Noted)
        nodes = mine.nonzero().flatten()
        rows = [*walk.run(nodes)]
        assert sum(len(of_chunk) for _, of_chunk in rows) == len(nodes)
        read = torch.unique(sources[mine[into] & ~mine[sources]])
        assert len(fetched) == 3
        assert all(torch.equal(ids, read) for ids in fetched)
        # Of what is kept at the end, little is in memory.
        assert sum(kept.rows.memory_bytes for kept in walk._kept.values()) <= SMALL // 2

    run_threads(PARTS, on_rank)


def test_a_node_that_does_not_fit_the_budget_of_one_rank_is_refused_on_all(tmp_path, monkeypatch):
    monkeypatch.setattr(layer_wise, "_SPARE", 0)
    model, graph, _ = model_and_graph("sage")
    program = read_model(model, WIDTH, Given.of(graph), dtypes=(torch.float64,))
    folder = parts_at(tmp_path / "parts", graph, part_of(NODES), PARTS)

    def on_rank(comm: Communicator) -> str:
        with pytest.raises(ResourceError, match="exact inference for node 17 needs") as told:
            [*walk_of(program, ShardedGraph.open(folder, comm), SMALL).run(torch.arange(NODES))]
        return str(told.value)

    assert len(set(run_threads(3, on_rank))) == 1


@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
def test_a_trainer_predicts_from_parts_without_batches(kind, tmp_path):
    graph = graph_of()
    x = graph.dense_x()
    graph = graph.replace(x={"float32": x, "float16": x.half()}.get(kind, ScaledFeatures.from_dense(x)))
    folder = parts_at(tmp_path / "parts", graph, torch.arange(600) % 2, 2)
    trainer = Trainer(make("gcn", graph), ShardedGraph.open(folder), **BASE)
    trainer.runner.on_batch = None  # type: ignore[assignment, method-assign]
    expected = Trainer(trainer.model, graph, **BASE).predict()
    torch.testing.assert_close(trainer.predict(), expected, rtol=1e-5, atol=1e-6)


def test_outputs_follow_weights_that_are_replaced_between_calls(tmp_path):
    graph = graph_of()
    folder = parts_at(tmp_path / "parts", graph, torch.arange(600) % 2, 2)
    trainer = Trainer(
        make("pyg", graph, dropout=0.5), ShardedGraph.open(folder), **BASE | {"layout": "subgraph"}
    )
    before = trainer.predict()
    with torch.no_grad():
        for one in trainer.model.parameters():
            one.mul_(-2)
    expected = Trainer(trainer.model, graph, **BASE | {"layout": "subgraph"}).predict()
    assert not torch.allclose(before, expected)
    torch.testing.assert_close(trainer.predict(), expected, rtol=1e-5, atol=1e-6)


class ReadsItsGraph(Stack):
    """A part of each row is computed of all edges, which no rank has."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        degree = torch.bincount(edge_index[1], minlength=x.shape[0]).to(x.dtype)
        return self.convs[2](self.convs[0](x, edge_index) + degree[:, None].erf(), edge_index)


def test_a_model_that_reads_all_edges_goes_by_batches(tmp_path):
    _, new, _ = MODELS["sage"]
    graph = uneven_graph().replace(y=torch.arange(NODES) % 5)
    folder = parts_at(tmp_path / "parts", graph, torch.arange(NODES) % 2, 2)
    trainer = Trainer(ReadsItsGraph(new), ShardedGraph.open(folder), layout="subgraph", fanouts=(3, 3))
    sizes, kept = list[int](), trainer.runner.on_batch

    def counted(batch: Any) -> torch.Tensor:
        sizes.append(batch.batch_size)
        return kept(batch)

    trainer.runner.on_batch = counted  # type: ignore[method-assign]
    expected = Trainer(trainer.model, graph, layout="subgraph", fanouts=(3, 3)).predict()
    torch.testing.assert_close(trainer.predict(), expected, rtol=1e-4, atol=1e-5)
    assert sizes[-1] == NODES
