"""Loaders of graphs with types with disjoint trees and times: no seed sees its future, whatever has times."""

import pytest
import torch
from tests.beside_pyg import HeteroData
from tests.graph.typed_cases import ABOUT, CITES, FIELDS, PAPERS, REVISES, WRITES, lists

from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.loader import LinkNeighborLoader, NeighborLoader
from graphbraid.sampling import NegativeSampling

COUNTS = {"paper": PAPERS, "author": 25, "field": FIELDS}


def dated(dtype=torch.int64, *, nodes=(), edges=(WRITES, CITES)):
    """Data whose nodes of these types, and edges of these relations, have `t`."""
    draw, data = torch.Generator().manual_seed(2), HeteroData()
    for name, count in COUNTS.items():
        data[name].x = torch.arange(count).float().unsqueeze(1)
        if name in nodes:
            data[name].t = torch.randint(20, (count,), generator=draw).to(dtype)
    for one, ends in lists().items():
        data[one].edge_index = ends
        if one in edges:
            data[one].t = torch.randint(20, (ends.shape[1],), generator=draw).to(dtype)
    return data


def make(data, **options):
    given = {"num_neighbors": [4, 3], "input_nodes": "paper", "batch_size": 16, "seed": 0}
    return NeighborLoader(data, **given | options)


def assert_trees_are_apart(batch, *, one_each=True):
    """No edge leads from tree to tree, and unless inputs have several, a node is in its tree once."""
    for src, name, dst in batch.edge_types:
        edge_index = batch[src, name, dst].edge_index
        assert torch.equal(batch[src].batch[edge_index[0]], batch[dst].batch[edge_index[1]])
    for store in batch.node_stores if one_each else ():
        both = torch.stack([store.n_id, store.batch])
        assert both.unique(dim=1).shape == both.shape


def test_temporal_hetero_neighbor_loader_on_cora():
    data = HeteroData()
    data["paper"].x, data["paper"].time = torch.randn(200, 4), torch.arange(200)
    data["paper", "paper"].edge_index = torch.randint(
        200, (2, 900), generator=torch.Generator().manual_seed(0)
    )
    for batch in NeighborLoader(data, [-1, -1], input_nodes="paper", time_attr="time", batch_size=1):
        assert (batch["paper"].time[0] >= batch["paper"].time[1:]).all()


@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("replace", [False, True])
def test_edge_level_temporal_hetero_neighbor_loader(strategy, replace):
    data, to = HeteroData(), ("A", "to", "A")
    data["A"].x = torch.arange(10)
    data["A", "A"].edge_index = torch.randint(10, (2, 200), generator=torch.Generator().manual_seed(0))
    data["A", "A"].edge_time = torch.arange(200)
    times = torch.arange(10) * 20
    loader = NeighborLoader(
        data,
        [2, 2],
        input_nodes="A",
        input_time=times,
        time_attr="edge_time",
        temporal_strategy=strategy,
        replace=replace,
        batch_size=1,
    )
    for number, batch in enumerate(loader):
        assert torch.equal(batch["A"].seed_time, times[number : number + 1])
        assert (batch[to].edge_time <= times[number]).all()
        assert torch.equal(batch["A"].n_id[batch[to].edge_index], data[to].edge_index[:, batch[to].e_id])


def test_trees_share_no_node():
    data = dated()
    for batch in make(data, disjoint=True, num_neighbors=[-1, 2]):
        size = batch["paper"].batch_size
        assert torch.equal(batch["paper"].batch[:size], torch.arange(size))
        assert torch.equal(batch["paper"].n_id[:size], batch["paper"].input_id)
        assert_trees_are_apart(batch)
        assert "seed_time" not in batch["paper"]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_edges_from_the_future_are_never_drawn(strategy, dtype):
    data = dated(dtype)
    times = torch.randint(20, (PAPERS,), generator=torch.Generator().manual_seed(1)).to(dtype)
    drawn = 0
    for batch in make(data, time_attr="t", input_time=times, temporal_strategy=strategy):
        seed_time = batch["paper"].seed_time
        assert torch.equal(seed_time, times[batch["paper"].input_id])
        assert_trees_are_apart(batch)
        for one in (WRITES, CITES):
            assert torch.equal(batch[one].t, data[one].t[batch[one].e_id])
            owner = batch["paper"].batch[batch[one].edge_index[1]]
            assert (batch[one].t <= seed_time[owner]).all()
            drawn += batch[one].e_id.numel()
        ends = [batch[end].n_id[row] for end, row in zip(ABOUT[::2], batch[ABOUT].edge_index, strict=True)]
        assert torch.equal(torch.stack(ends), data[ABOUT].edge_index[:, batch[ABOUT].e_id])
    assert drawn


def test_last_takes_exactly_the_latest_and_relations_without_times_any():
    data = dated()
    until = torch.full((PAPERS,), 11)
    fanouts = {WRITES: [2], CITES: [2], REVISES: [1], ABOUT: [0]}
    options = {"time_attr": "t", "input_time": until, "temporal_strategy": "last"}
    loader = make(data, num_neighbors=fanouts, batch_size=PAPERS, **options)
    [batch] = loader
    for one in (WRITES, CITES, REVISES):
        whole = data[one].edge_index
        for paper in range(PAPERS):
            own = (whole[1] == paper).nonzero().flatten()
            got = batch[one].e_id[batch[one].edge_index[1] == paper]
            if one is REVISES:
                assert len(got) == min(len(own), 1)
                continue
            early = own[data[one].t[own] <= 11]
            assert sorted(data[one].t[got].tolist()) == sorted(data[one].t[early].tolist())[-2:]
    chosen = {tuple(b[REVISES].e_id.tolist()) for _ in range(9) for b in loader}
    assert len(chosen) > 1  # any of them, not the last


def test_nodes_from_the_future_are_never_drawn_and_seeds_have_their_own_times():
    data = dated(nodes=("paper", "author"), edges=())
    for batch in make(data, time_attr="t", num_neighbors=[-1, -1]):
        seed_time = batch["paper"].t[: batch["paper"].batch_size]
        for name in ("paper", "author"):
            assert (batch[name].t <= seed_time[batch[name].batch]).all()
        assert "seed_time" not in batch["paper"]
    with pytest.raises(ConfigError, match="names no times of nodes of type 'field'"):
        make(data, time_attr="t", input_nodes="field")
    [batch] = make(data, time_attr="t", input_nodes=("field", [2]), input_time=torch.tensor([7]))
    assert (batch["paper"].t <= 7).all()


def test_a_graph_and_its_hetero_data_give_the_same_temporal_batches():
    edges, time = lists(), torch.arange(PAPERS) % 9
    graph = Graph.from_relations(edges, COUNTS, node_time={"paper": time})
    options = {"time_attr": "time", "num_workers": 2, "shuffle": True}
    again = list(make(graph.to_pyg(), **options))
    for ours, theirs in zip(make(graph, **options), again, strict=True):
        for name in COUNTS:
            assert torch.equal(ours[name].n_id, theirs[name].n_id)
            assert torch.equal(ours[name].batch, theirs[name].batch)
        for one in edges:
            assert torch.equal(ours[one].edge_index, theirs[one].edge_index)
            assert torch.equal(ours[one].e_id, theirs[one].e_id)
    assert torch.equal(next(make(graph, **options).batches(0, 2))["paper"].n_id, again[2]["paper"].n_id)


@pytest.mark.parametrize("mode", ["binary", "triplet"])
@pytest.mark.parametrize("edge_type", [WRITES, CITES])
def test_links_and_their_negatives_see_no_future(edge_type, mode):
    data = dated(nodes=("paper", "author"), edges=())
    links = data[edge_type].edge_index
    times = (
        torch.stack([data[end].t[row] for end, row in zip(edge_type[::2], links, strict=True)]).max(0).values
    )
    times = times + torch.arange(len(times)) % 3
    loader = LinkNeighborLoader(
        data,
        [3, 3],
        edge_type,
        edge_label_time=times,
        time_attr="t",
        neg_sampling=NegativeSampling(mode, 3, reject_edges=True),
        exclude_seed_edges=True,
        batch_size=32,
        seed=4,
    )
    src, dst = edge_type[0], edge_type[2]
    for batch in loader:
        number = batch[edge_type].input_id
        assert_trees_are_apart(batch, one_each=False)
        for name in ("paper", "author"):
            assert (batch[name].t <= times[number][batch[name].batch]).all()
        if mode == "binary":
            pairs = batch[edge_type].edge_label_index
            assert torch.equal(batch[edge_type].edge_label_time, times[number].repeat(4))
            owner = torch.arange(len(number)).repeat(4)
            assert torch.equal(batch[src].batch[pairs[0]], owner)
            assert torch.equal(batch[dst].batch[pairs[1]], owner)
        else:
            assert torch.equal(batch[src].seed_time, times[number])
            assert torch.equal(batch[dst].seed_time, times[number])
            owner = torch.arange(len(number)).unsqueeze(1).expand(-1, 3)
            assert torch.equal(batch[dst].batch[batch[dst].dst_neg_index], owner)
        own = {tuple(pair) for pair in links[:, number].t().tolist()}
        found = [
            batch[end].n_id[row] for end, row in zip((src, dst), batch[edge_type].edge_index, strict=True)
        ]
        assert not own & {tuple(pair) for pair in torch.stack(found).t().tolist()}


def test_times_that_no_edge_has_exclude_none():
    """Fields have times and no out-edges: links to them see what they see without."""
    data, plain = dated(nodes=("field",), edges=()), dated(edges=())
    [timed] = make(data, num_neighbors=[-1], input_nodes="field", time_attr="t")
    [free] = make(plain, num_neighbors=[-1], input_nodes="field", disjoint=True)
    assert torch.equal(timed[ABOUT].e_id, free[ABOUT].e_id)
    given = {"input_nodes": "paper", "input_time": torch.zeros(PAPERS, dtype=torch.int64)}
    assert next(iter(make(data, **given, time_attr="t")))[CITES].e_id.numel()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            lambda data: data["paper"].update({"t": torch.arange(40)}),
            ConfigError,
            "times of nodes .paper. and of",
        ),
        (
            lambda data: data[WRITES].t.resize_(3),
            DataError,
            "'writes', 'paper'. must have a time for each edge",
        ),
        (
            lambda data: data[CITES].update({"t": torch.full((300,), torch.nan)}),
            DataError,
            r"t of \('paper', 'cites', 'paper'\) must be finite times",
        ),
        (lambda data: data[CITES].update({"t": torch.zeros(300, 2)}), DataError, "of one dimension"),
    ],
)
def test_times_that_do_not_fit_are_refused(change, error, message):
    data = dated()
    change(data)
    with pytest.raises(error, match=message):
        make(data, time_attr="t", input_time=torch.full((PAPERS,), 30))
