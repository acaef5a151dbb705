"""Batches, losses and predictions are the same to the bit wherever adjacency lists lie."""

import dataclasses

import pytest
import torch
from tests.features.tables import batches_of, flip_a_byte, losses_of, model_of, same, stored_graph
from tests.train.recorded import StopAt, losses

from graphbraid import Trainer
from graphbraid.datasets import open_store, save_store
from graphbraid.errors import ConfigError, DataError
from graphbraid.features import DiskOptions, HostTiers, TieredTopology, expected_list_blocks
from graphbraid.features.scores import walks
from graphbraid.graph.csc import Csc
from graphbraid.loader import NeighborLoader
from graphbraid.sampling import SamplerConfig, SeedSchedule
from graphbraid.sampling.cpu import make_pipeline
from graphbraid.sampling.source import BatchSource

SMALL = DiskOptions(depth=4, longest_bytes=4096)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """Weighted, so that every way of drawing is there."""
    folder = tmp_path_factory.mktemp("g")
    made = stored_graph(folder)
    weight = torch.rand(made.num_edges, generator=torch.Generator().manual_seed(2))
    weight[::5] = 0.0
    csc = Csc(made.csc.indptr, made.csc.indices, 300, weight)
    return open_store(save_store(made.replace(csc=csc), folder / "weighted"))


@pytest.fixture(scope="module", params=["none", "some", "all"])
def topology(graph, request):
    if request.param != "some":
        return TieredTopology.build(graph, host={"none": 0, "all": "all"}[request.param], disk=SMALL)
    notes = TieredTopology.build(graph, host=0, disk=SMALL).host_bytes + graph.csc.indptr.nbytes
    return TieredTopology.build(graph, host=notes + 3000, disk=SMALL)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 3},
        {"layout": "blocks"},
        {"replace": True},
        {"num_neighbors": [-1, 2, -1]},
        {"num_neighbors": [0, 3]},
        {"weighted": True},
        {"weighted": True, "replace": True},
        {"plan": "cpu", "num_workers": 2},
        {"batch_size": 1000},
    ],
    ids=str,
)
def test_batches_are_those_of_the_graph_in_memory(graph, topology, options):
    for ours, plain in zip(
        batches_of(graph, lists=topology, **options), batches_of(graph, **options), strict=True
    ):
        assert torch.equal(ours.n_id, plain.n_id)
        assert same(ours.x, plain.x)
        for mine, its in zip(ours.sampled.edges, plain.sampled.edges, strict=True):
            assert torch.equal(mine.indptr, its.indptr)
            assert torch.equal(mine.indices, its.indices)


def test_edge_ids_and_attributes_are_those_of_the_graph(graph, topology):
    options = {"batch_size": 20, "seed": 3, "weight_attr": None}
    with_tiers = NeighborLoader(graph, [4, 3], "train", topology=topology, **options)
    for ours, plain in zip(with_tiers, NeighborLoader(graph, [4, 3], "train", **options), strict=True):
        assert torch.equal(ours.e_id, plain.e_id)
        assert torch.equal(ours.edge_index, plain.edge_index)
    called, plain = with_tiers([1, 2]), NeighborLoader(graph, [4, 3], "train", **options)([1, 2])
    assert torch.equal(called.edge_index, plain.edge_index)


def test_what_is_read_is_counted(graph):
    topology = TieredTopology.build(graph, host=0, disk=SMALL)
    batches = batches_of(graph, lists=topology, layout="blocks")
    edges = sum(sum(batch.sampled.edges_per_hop) for batch in batches)
    assert topology.counts.disk_edges == edges
    assert topology.counts.host_share == 0.0
    assert topology.counts.disk_bytes >= 4096


def test_an_error_of_the_disk_reaches_who_iterates(tmp_path):
    graph = stored_graph(tmp_path)
    topology = TieredTopology.build(graph, host=0, disk=SMALL)
    flip_a_byte(tmp_path / "store" / "indices.npy", 4096 + 30)
    with pytest.raises(DataError, match=r"indices\.npy has changed since it was written: block 1"):
        batches_of(graph, lists=topology, num_neighbors=[-1, -1])


def test_lists_of_another_graph_are_refused(graph, tmp_path):
    other = TieredTopology.build(stored_graph(tmp_path, num_nodes=299), host=0)
    with pytest.raises(DataError, match="topology's tiers of this very graph"):
        BatchSource(graph=graph, lists=other).check_tiers()


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
def test_expansions_are_the_reads_of_lists(graph, layout):
    """With one batch and all neighbours taken, nothing is left to chance."""
    sampler = SamplerConfig(fanouts=(-1, -1, 2), layout=layout, return_edge_id=False)
    schedule = SeedSchedule(seeds=torch.arange(5, 25), batch_size=20, shuffle=True, drop_last=False, seed=1)
    [batch] = make_pipeline(graph, sampler, num_threads=1, depth=1).run(schedule, 0, 0, 1)
    sampled, end = batch.sampled, 0
    for hop, (fanout, reads) in enumerate(walks.expansions(graph.csc, sampler, schedule)):
        begin, end = (0 if layout == "blocks" else end), end + sampled.nodes_per_hop[hop]
        expected = torch.zeros(300, dtype=torch.float64)
        expected[sampled.n_id[begin:end]] = 1.0
        assert fanout == sampler.fanouts[hop]
        torch.testing.assert_close(reads, expected)
    blocks = expected_list_blocks(graph.csc, sampler, schedule)
    assert float(blocks.max()) < 3 * 1.2
    assert not blocks[graph.csc.degrees() == 0].any()


def test_expansions_under_chance_are_near_what_is_drawn(graph):
    sampler = SamplerConfig(fanouts=(3, 2), return_edge_id=False)
    schedule = SeedSchedule(seeds=torch.arange(150), batch_size=10, shuffle=True, drop_last=False, seed=1)
    pipeline = make_pipeline(graph, sampler, num_threads=1, depth=1)
    found, epochs = torch.zeros(300, dtype=torch.float64), 40
    for epoch in range(epochs):
        for batch in pipeline.run(schedule, epoch, 0, schedule.num_steps):
            sampled = batch.sampled
            found[sampled.n_id[: sum(sampled.nodes_per_hop[:2])]] += 1
    expected = sum(reads for _, reads in walks.expansions(graph.csc, sampler, schedule))
    assert float(expected.sum()) == pytest.approx(float(found.sum()) / epochs, rel=0.02)
    assert float(torch.corrcoef(torch.stack([expected, found]))[0, 1]) > 0.97


OPTIONS = {"epochs": 2, "fanouts": (4, 3), "batch_size": 32, "seed": 1, "lr": 0.01}


@pytest.fixture(scope="module")
def plain(graph):
    trainer = Trainer(model_of(graph), graph, **OPTIONS)
    return (*losses_of(trainer), trainer.predict(mode="sampled"))


def test_losses_and_predictions_do_not_depend_on_the_topology(graph, topology, plain):
    trainer = Trainer(model_of(graph), graph, topology=topology, **OPTIONS)
    assert losses_of(trainer) == plain[:2]
    assert torch.equal(trainer.predict(mode="sampled"), plain[2])


@pytest.mark.parametrize("host", ["0", "310KiB", "335KiB", "all"])
def test_one_budget_is_for_rows_and_lists(graph, plain, host):
    trainer = Trainer(model_of(graph), graph, host=host, **OPTIONS)
    assert losses_of(trainer) == plain[:2]
    rows, lists = trainer.tiers, trainer.topology
    if host.endswith("KiB"):
        assert rows.host_bytes + lists.host_bytes <= int(host[:3]) << 10
        assert 0 < rows.cache.num_rows < 300
        assert lists.num_lists > 0
        assert lists.counts.host_share > 0.3
    assert (lists.native is None) == (host == "all")


@pytest.mark.slow
def test_a_run_goes_on_in_the_middle_of_an_epoch_with_other_tiers(graph, tmp_path):
    whole = losses(Trainer(model_of(graph), graph, **OPTIONS))
    assert len(whole) == 2 * 5
    found = []
    for number, (host, last) in enumerate((("0", 2), ("335KiB", 6), ("all", 7), (None, None))):
        given = OPTIONS | {"host": host, "out_dir": tmp_path / "run", "resume": bool(number)}
        found.append(losses(Trainer(model_of(graph), graph, callbacks=[StopAt(last)], **given)))
    assert [len(steps) for steps in found][:2] == [3, 4]
    assert [loss for steps in found for loss in steps] == whole


def test_memory_is_divided_by_what_it_saves(graph):
    """Rows that nobody reads get none but one, and lists that nobody reads none."""
    nothing, something = torch.zeros(300), torch.ones(300)
    for rows, lists in ((nothing, something), (something, nothing)):
        tiers = HostTiers.build(graph, host=306_000, row_reads=rows, list_reads=lists)
        assert tiers.features.host_bytes + tiers.topology.host_bytes <= 306_000
        text = tiers.explain()
        if rows is nothing:
            assert tiers.features.cache.num_rows == 1
            assert tiers.topology.num_lists > 100
        else:
            assert tiers.topology.num_lists < 10  # what is left where no row fits
            assert tiers.features.cache.num_rows > 25
        assert "adjacency lists (" in text
        assert "feature rows (" in text
        assert "by reads of the disk saved per byte" in text


def test_a_topology_in_memory_leaves_all_memory_to_rows(graph):
    csc = Csc(graph.csc.indptr.clone(), graph.csc.indices.clone(), 300)
    tiers = HostTiers.build(graph.replace(csc=csc), host="295KiB")
    assert tiers.topology is None
    assert tiers.features.cache.num_rows > 100
    assert "all is for rows" in tiers.explain()


def test_what_excludes_tiers_of_lists_is_refused(graph):
    topology = TieredTopology.build(graph, host=0)
    for options, said in (
        ({"host": 0, "topology": topology}, "makes its tiers, and topology is given"),
        ({"mode": "full", "topology": topology}, "topology serves mini-batches"),
        ({"host": 20_000}, "the bookkeeping of all 300 rows and adjacency lists"),
    ):
        with pytest.raises(ConfigError, match=said):
            Trainer(model_of(graph), graph, **options)
    assert Trainer(model_of(graph), graph, mode="auto", topology=topology).config.mode == "sampled"


def test_a_source_keeps_its_lists(graph, topology):
    source = BatchSource(graph=graph, lists=topology)
    assert dataclasses.replace(source, graph=graph).lists is topology
