"""Ranks that hold nothing but their parts learn what ranks with the whole graph do, to the bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed import shard_training, typed_shard_training
from tests.distributed.part_matrix import OfData
from tests.distributed.ranks import run, run_mpi
from tests.distributed.training import BASE, graph_of, make
from tests.extras import PATIENCE
from tests.modules import module_of
from tests.train.typed_communities import bibliography
from torch_geometric.nn import GCNConv

import graphbraid
from graphbraid import Graph, datasets
from graphbraid.distributed import Communicator, ShardedGraph, partition, save_partition
from graphbraid.distributed.shards.pipeline import UNDER_WAY
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.estimates import limits
from graphbraid.estimates.machine import RankMemory
from graphbraid.loader import LoaderSettings, NeighborLoader
from graphbraid.nn import DotProduct, LinkModel
from graphbraid.train import Trainer
from graphbraid.train.inference.infer import prepared_bytes

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of four parts of the training graph, with lists in the parts and whole."""
    at = tmp_path_factory.mktemp("shards")
    for lists in ("parts", "whole"):
        graph = graph_of()
        save_partition(graph, partition(graph, 4, strategy="random"), at / lists, rows=lists)
    return at


@pytest.mark.slow
def test_ranks_of_mpi_learn_on_parts_what_they_learn_on_the_whole_graph(tmp_path):
    graph = shard_training.few_nodes()
    save_partition(graph, partition(graph, 3, strategy="random"), tmp_path / "parts", rows="parts")
    said = run_mpi(3, shard_training.with_few_nodes, tmp_path / "parts")
    assert said.code == 0, said.stderr
    found = [json.loads(line) for line in said.stdout.splitlines()]
    assert [parts["losses"] for parts, _ in found] == [whole["losses"] for _, whole in found]
    assert len(found) == 3
    assert found[0][0]["weights"] == found[1][1]["weights"]


@pytest.mark.parametrize("lists", ["parts", "whole"])
def test_what_is_learned_does_not_depend_on_the_rows_that_are_kept(lists, folder):
    every = [said.result for said in run(3, shard_training.with_kept_rows, folder / lists)]
    for found in every:
        assert found == every[0] | {name: found[name] for name in found}
        none, some, whole = (found[name] for name in ("none", "some", "all"))
        for kept in (some, whole):
            for name in ("losses", "weights", "history", "test"):
                assert kept[name] == none[name]
        assert none["traffic"]["hits"] == 0 < some["traffic"]["hits"] < whole["traffic"]["hits"]
        assert none["traffic"]["sent_bytes"] > some["traffic"]["sent_bytes"] > whole["traffic"]["sent_bytes"]
        assert none["table"] == every[0]["none"]["table"]
        assert len(none["table"].splitlines()) == 1 + len(every)


def test_features_of_int8_travel_as_they_are_stored_and_teach_the_same(tmp_path):
    graph = shard_training.of_int8()
    save_partition(graph, partition(graph, 2, strategy="random"), tmp_path / "parts", rows="whole")
    for said in run(2, shard_training.trained_of_int8, tmp_path / "parts"):
        parts, whole = said.result
        assert parts["losses"] == whole["losses"]
        assert parts["test"] == pytest.approx(whole["test"], rel=1e-5)


def test_memory_for_rows_of_others_is_refused_where_all_are_here():
    graph = graph_of()
    with pytest.raises(ConfigError, match="every rank has all rows of this graph"):
        Trainer(make("sage", graph), graph, **BASE | {"remote": "1MiB"})


@pytest.mark.parametrize(("what", "code", "told"), [("killed", 8, "rank 2 is lost"), ("raises", 8, "rank 2")])
def test_a_rank_that_ends_while_rows_travel_ends_the_others(what, code, told, folder):
    *others, last = run(3, shard_training.faulty, folder / "parts", what)
    assert last.code != 0
    for said in others:
        assert said.code == code
        assert told in said.stderr
        assert said.seconds < PATIENCE


def test_each_rank_predicts_nodes_of_its_own_choice(folder):
    for said in run(3, shard_training.outputs, folder / "parts"):
        parts, whole = said.result
        assert len(parts) > 0
        assert parts == pytest.approx(whole, rel=1e-5)


def test_a_model_that_reads_all_of_a_batch_is_refused_on_all_ranks(folder):
    for said in run(2, shard_training.reads_the_batch, folder / "parts"):
        for text in said.result:
            assert text.startswith("ResourceError: exact inference needs one pass over the whole graph")


def test_ranks_may_be_more_than_the_training_nodes(tmp_path):
    graph = shard_training.few_nodes()
    save_partition(graph, partition(graph, 4, strategy="random"), tmp_path / "parts", rows="parts")
    for said in run(4, shard_training.with_few_nodes, tmp_path / "parts"):
        parts, whole = said.result
        assert parts["losses"] == whole["losses"]
        assert parts["weights"] == whole["weights"]


@pytest.mark.slow
def test_epochs_without_pauses_teach_the_same_and_may_end_between_two(folder):
    """The next epoch has begun when a run is stopped: its batches are left before the model is tested."""
    for said in run(2, shard_training.without_pauses, folder / "parts"):
        parts, whole, stopped = (said.result[name] for name in ("parts", "whole", "stopped"))
        assert parts == whole
        assert stopped[:2] == ["stopped", whole[1][:2]]
        assert not {"graphbraid-draw", "graphbraid-ask", "graphbraid-gather"} & {*said.result["threads"]}


@pytest.mark.slow
def test_three_ranks_go_on_where_four_have_stopped(folder, tmp_path):
    whole = run(4, shard_training.with_checkpoints, folder / "parts", tmp_path / "whole", 2, "new")
    run(4, shard_training.with_checkpoints, folder / "parts", tmp_path / "run", 1, "new")
    more = run(3, shard_training.with_checkpoints, folder / "parts", tmp_path / "run", 2, "resume")
    first = whole[0].result["losses"]
    for said in more:
        assert said.result["losses"] == pytest.approx(first[7:], rel=1e-5)


def sharded(tmp_path: Path, graph: Graph, lists: Any = "parts") -> ShardedGraph:
    """Return two parts of a graph, both on this rank."""
    save_partition(graph, partition(graph, 2), tmp_path / "parts", rows=lists)
    return ShardedGraph.open(tmp_path / "parts")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "full"}, "the graph's other parts are on other ranks"),
        ({"host": "1MiB"}, "features lie with their parts' ranks"),
        ({"plan": "cpu"}, "batches are prepared by all ranks together"),
        ({"task": "edge"}, "lists of relations are not held by parts; partition with --rows whole"),
    ],
)
def test_options_that_need_the_whole_graph_are_refused(options, why, tmp_path):
    graph = graph_of()
    with pytest.raises(ConfigError, match=why):
        Trainer(make("sage", graph), sharded(tmp_path, graph), **BASE | options)


def test_an_encoder_of_links_that_takes_the_whole_data_is_refused(tmp_path):
    parts = sharded(tmp_path, shard_training.with_edges())
    model = LinkModel(OfData("sage", {"data"}), DotProduct())
    with pytest.raises(ConfigError, match="an encoder of links gets no ids of edges"):
        Trainer(model, parts, **BASE | {"layout": "subgraph", "task": "link"})


def test_what_reads_the_whole_graph_refuses_parts(tmp_path):
    graph = graph_of()
    parts, model = sharded(tmp_path, graph), make("sage", graph)
    for call in (
        lambda: graphbraid.compile(model, parts),
        lambda: NeighborLoader(parts, [3, 3], batch_size=4),
        lambda: datasets.save_store(parts, tmp_path / "store"),
        lambda: save_partition(parts, partition(graph, 2), tmp_path / "again"),
    ):
        with pytest.raises(DataError, match="holds those of its own parts alone"):
            call()


@pytest.mark.parametrize(("eval_every", "count"), [(1, 7), (2, 14), (0, UNDER_WAY)])
def test_batches_that_exceed_a_ranks_memory_are_refused_before_the_first_step(
    eval_every, count, tmp_path, monkeypatch
):
    """Epochs without an evaluation between them have batches under way at the same time."""
    parts = sharded(tmp_path, graph_of())
    monkeypatch.setattr(limits, "own_anonymous_bytes", lambda: 0)
    monkeypatch.setattr(limits, "memory_of_rank", lambda *_: RankMemory(100_000, None, ""))
    trainer = Trainer(make("sage", parts), parts, **BASE | {"epochs": 5, "eval_every": eval_every})
    with pytest.raises(
        ResourceError, match=rf"rank 0 needs .* for {count} batches .* are free\. Give batch_size=\d+ or"
    ):
        trainer.fit()
    assert trainer.progress.global_step == 0
    monkeypatch.setattr(limits, "memory_of_rank", lambda *_: RankMemory(1_000_000, None, ""))
    assert Trainer(make("sage", parts), parts, **BASE | {"epochs": 1}).fit().history


def test_exact_batches_under_way_hold_the_memory_budget(tmp_path):
    parts, budget = sharded(tmp_path, graph_of()), 1 << 20
    options = {"memory_budget_bytes": budget, "layout": "subgraph", "compiled": False}
    trainer = Trainer(make("pyg", parts), parts, **BASE | options)
    sizes = list[int]()
    kept = trainer.runner.on_batch

    def counted(batch: Any) -> torch.Tensor:
        sizes.append(prepared_bytes(trainer.runner, batch))
        return kept(batch)

    trainer.runner.on_batch = counted  # type: ignore[method-assign]
    trainer.predict(torch.arange(600))
    several = sizes[2:]  # after those that are tried
    assert len(several) > 1
    assert UNDER_WAY * max(several) <= 1.5 * budget  # neighbours overlap less in small batches


def test_an_edge_attribute_that_the_model_does_not_take_is_not_read_from_own_lists(tmp_path):
    parts = sharded(tmp_path, shard_training.with_edges())
    trainer = Trainer(make("pyg", parts), parts, **BASE | {"layout": "subgraph"})
    settings = LoaderSettings(
        num_neighbors=[3, 3], input_nodes=torch.arange(8), batch_size=8, return_edge_id=True
    )
    with trainer.runner.loader(settings) as loader:
        batch = next(loader.batches(0))
    for name in ("edge_weight", "edge_attr", "e_id"):
        with pytest.raises(ConfigError, match=f"the model takes no argument '{name}'"):
            getattr(batch, name)


def test_batches_have_the_ids_that_edges_have_in_the_graph(tmp_path):
    graph, batches = graph_of(), list[Any]()
    assert graph.edge_id is not None
    settings = LoaderSettings(num_neighbors=[3, 3], input_nodes=torch.arange(50), batch_size=50)
    for one in (graph, sharded(tmp_path, graph)):
        conv = GCNConv(graph.num_features, graph.num_classes)
        model = module_of(lambda self, data: self.conv(data.x, data.edge_index), conv=conv)
        trainer = Trainer(model, one, **BASE | {"layout": "subgraph"})
        with trainer.runner.loader(settings) as loader:
            batches.append(next(loader.batches(0)))
    whole, parts = batches
    assert torch.equal(parts.e_id, whole.e_id)
    sources, into = graph.to_edge_index(original_order=True)[:, parts.e_id]
    assert torch.equal(torch.stack([sources, into]), parts.n_id[parts.edge_index])


# ---- ranks that hold their parts of a graph with types


@pytest.mark.slow
def test_kept_rows_of_several_types_save_bytes_and_teach_the_same(tmp_path):
    graph = typed_shard_training.of_int8()
    save_partition(graph, partition(graph, 3, strategy="random"), tmp_path / "parts", rows="parts")
    for said in run(3, typed_shard_training.with_kept_rows, tmp_path / "parts"):
        found = said.result
        none, some, every = (found[name]["traffic"] for name in ("none", "some", "all"))
        for name in ("none", "some", "all"):
            assert found[name]["losses"] == found["whole"]["losses"]
            assert found[name]["weights"] == found["whole"]["weights"]
        assert none["hits"] == 0 < some["hits"] < every["hits"]
        assert none["sent_bytes"] > some["sent_bytes"] > every["sent_bytes"]


def test_models_and_options_that_need_more_than_parts_are_refused(tmp_path):
    graph = bibliography()
    save_partition(graph, partition(graph, 4, strategy="random"), tmp_path / "parts", rows="parts")
    said = typed_shard_training.refused(Communicator(), str(tmp_path / "parts"))
    of_data, full, unknown = said
    assert "parts of a graph with types do not hold what belongs to edges" in of_data
    assert "the graph's other parts are on other ranks" in full
    assert "Did you mean 'paper'" in unknown
