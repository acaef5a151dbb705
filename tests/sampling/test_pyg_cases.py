"""PyG's own tests of its NeighborLoader, case by case, with graphbraid's import; and why some have no twin.

The cases are written anew after what PyG's ``test/loader/test_neighbor_loader.py`` checks of the loader.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.beside_pyg import Data, HeteroData
from torch_geometric.nn import GraphConv

from graphbraid.errors import ConfigError
from graphbraid.loader import NeighborLoader

TYPES = "its twin, of this name, is in typed/test_loader.py"
TYPES_AND_TIMES = "its twin, of this name, is in typed/test_temporal_loader.py"
STORES = "feature and graph stores come with heterogeneous graphs, and are refused"
WITHOUT_TWIN = {
    "test_hetero_neighbor_loader_basic": TYPES,
    "test_hetero_neighbor_loader_on_cora": TYPES,
    "test_temporal_hetero_neighbor_loader_on_cora": TYPES_AND_TIMES,
    "test_custom_neighbor_loader": STORES,
    "test_temporal_custom_neighbor_loader_on_cora": STORES,
    "test_hetero_neighbor_loader_sampled_info": TYPES,
    "test_weighted_hetero_neighbor_loader": TYPES,
    "test_edge_level_temporal_hetero_neighbor_loader": TYPES_AND_TIMES,
    "test_pyg_lib_and_torch_sparse_homo_equality": "compares two samplers of PyG's; no loader is in it",
    "test_pyg_lib_and_torch_sparse_hetero_equality": "compares two samplers of PyG's; no loader is in it",
    "test_cpu_affinity_neighbor_loader": "about worker processes; enable_cpu_affinity is refused",
}
"""PyG's cases that have no twin below, and why; those of times are in test_temporal_loader.py."""


def random_edges(num_nodes, num_edges, dtype=torch.int64):
    return torch.randint(num_nodes, (2, num_edges), dtype=dtype)


def pairs(edges, source_ids=None):
    rows = edges.long() if source_ids is None else source_ids[edges.long()]
    return set(map(tuple, rows.t().tolist()))


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("filter_per_worker", [None, True, False])
def test_homo_neighbor_loader_basic(subgraph_type, dtype, filter_per_worker):
    torch.manual_seed(12345)
    data = Data(x=torch.arange(100), edge_index=random_edges(100, 500, dtype), edge_attr=torch.arange(500))
    loader = NeighborLoader(
        data,
        num_neighbors=[5] * 2,
        batch_size=20,
        subgraph_type=subgraph_type,
        filter_per_worker=filter_per_worker,
    )
    assert str(loader) == "NeighborLoader()"
    assert len(loader) == 5
    alone = loader([0])
    assert isinstance(alone, Data)
    assert alone.n_id[:1].tolist() == [0]
    for step, batch in enumerate(loader):
        assert isinstance(batch, Data)
        assert len(batch) == (9 if subgraph_type == "directional" else 7)
        assert batch.n_id.size() == (batch.num_nodes,)
        assert batch.e_id.size() == (batch.num_edges,)
        assert batch.input_id.numel() == batch.batch_size == 20
        assert batch.x.size(0) <= 100
        assert 0 <= int(batch.x.min()) <= int(batch.x.max()) < 100
        assert 0 <= int(batch.edge_index.min()) <= int(batch.edge_index.max()) < batch.num_nodes
        assert 0 <= int(batch.edge_attr.min()) <= int(batch.edge_attr.max()) < 500
        assert torch.equal(batch.x[:20], torch.arange(20 * step, 20 * (step + 1)))
        there = pairs(data.edge_index)
        if subgraph_type == "bidirectional":
            there |= {(v, u) for u, v in there}
        assert pairs(batch.edge_index, batch.x) <= there


@pytest.mark.parametrize("subgraph_type", ["directional", "induced"])
@pytest.mark.parametrize("subset", [torch.arange(5, 8), range(5, 8), [5, 6, 7]])
def test_homo_neighbor_loader_on_cora(subset, subgraph_type):
    """All neighbours give a model the same rows as the whole graph does."""
    torch.manual_seed(0)
    data = Data(x=torch.randn(200, 16), edge_index=random_edges(200, 900), edge_weight=torch.rand(900))
    data.n_id = torch.arange(200)
    options = {"batch_size": 3, "input_nodes": subset, "subgraph_type": subgraph_type}
    loader = NeighborLoader(data, num_neighbors=[-1, -1], **options)
    assert len(loader) == 1
    batch = next(iter(loader))
    first, second = GraphConv(16, 8), GraphConv(8, 4)

    def run(x, edge_index, weight):
        return second(first(x, edge_index, weight).relu(), edge_index, weight).relu()

    whole = run(data.x, data.edge_index, data.edge_weight)[5:8]
    sampled = run(batch.x, batch.edge_index, batch.edge_weight)[: batch.batch_size]
    torch.testing.assert_close(sampled, whole, atol=1e-5, rtol=1e-5)


def test_memmap_neighbor_loader(tmp_path):
    path = tmp_path / "x.npy"
    np.memmap(path, dtype=np.float32, mode="w+", shape=(100, 32))[:] = np.random.default_rng(0).random(
        (100, 32), dtype=np.float32
    )
    data = Data(edge_index=random_edges(100, 500))
    data.x = np.memmap(path, dtype=np.float32, mode="r", shape=(100, 32))
    assert data.num_nodes == 100
    batch = next(iter(NeighborLoader(data, num_neighbors=[5] * 2, batch_size=20, num_workers=2)))
    assert batch.num_nodes <= 100
    assert isinstance(batch.x, torch.Tensor)
    assert torch.equal(batch.x, torch.from_numpy(np.array(data.x))[batch.n_id])


def test_homo_neighbor_loader_sampled_info():
    sources, destinations = [2, 3, 4, 5, 7, 7, 10, 11, 12, 13], [0, 1, 2, 3, 2, 3, 7, 7, 7, 7]
    data = Data(edge_index=torch.tensor([sources, destinations]), num_nodes=14)
    batch = next(iter(NeighborLoader(data, num_neighbors=[1, 2, 4], batch_size=2, shuffle=False)))
    assert batch.num_sampled_nodes == [2, 2, 3, 4]
    assert batch.num_sampled_edges == [2, 4, 4]


def test_neighbor_loader_mapping():
    data = Data(edge_index=random_edges(60, 300), num_nodes=60)
    for batch in NeighborLoader(data, num_neighbors=[2], batch_size=1):
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


@pytest.mark.parametrize("replace", [False, True])
def test_weighted_homo_neighbor_loader(replace):
    """Edges of weight 0 are never drawn: of each pair of neighbours the one with a weight is."""
    edges = torch.tensor([[1, 3, 0, 4, 5, 2], [0, 0, 1, 1, 2, 2]])
    data = Data(edge_index=edges, num_nodes=6, edge_weight=torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 1.0]))
    loader = NeighborLoader(
        data, [1], torch.tensor([0, 1, 2]), batch_size=3, weight_attr="edge_weight", replace=replace
    )
    assert pairs(next(iter(loader)).edge_index, next(iter(loader)).n_id) == {(3, 0), (4, 1), (2, 2)}


def test_a_data_without_edges_is_a_graph_of_isolated_nodes():
    batch = next(iter(NeighborLoader(Data(x=torch.randn(1, 1)), num_neighbors=[-1], batch_size=1)))
    assert (batch.num_nodes, batch.num_edges) == (1, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: HeteroData(), "must name a node type"),
        (lambda data: (data, data), "PyG Data or HeteroData; got tuple"),
        ({"directed": False}, "does not support directed=False"),
        ({"num_neighbors": {("a", "to", "a"): [1]}}, "a dict is for heterogeneous graphs"),
    ],
)
def test_what_has_no_twin_is_refused(change, message):
    data = Data(edge_index=random_edges(60, 300), num_nodes=60)
    data, options = (change(data), {}) if callable(change) else (data, change)
    with pytest.raises(ConfigError, match=message):
        NeighborLoader(data, **{"num_neighbors": [1], **options})


HERE = Path(__file__).parent
TESTS = "".join(path.read_text() for path in (*HERE.glob("test_*.py"), *HERE.glob("typed/test_*.py")))
NAMED = " ".join(re.findall(r'"""PyG\'s [^"]*', TESTS))


def cases_of(page):
    """PyG's cases in the table of a page, and what it says of each."""
    text = (HERE.parents[1] / "docs" / page).read_text().partition("| PyG's case | here |")[2]
    rows = [line.split("|")[1:3] for line in text.partition("\n\n")[0].splitlines() if "`test_" in line]
    return {name: said.strip() for names, said in rows for name in re.findall(r"`(test_\w+)`", names)}


@pytest.mark.parametrize("page", ["sampling.md", "links.md"])
def test_the_page_says_of_each_case_what_the_tests_do(page):
    cases = cases_of(page)
    assert len(cases) > 10
    for name, said in cases.items():
        has_twin = f"def {name}(" in TESTS or re.search(rf"\b{name}\b", NAMED) is not None
        assert has_twin == said.startswith("pass"), name


def test_the_page_has_each_case_of_these_tests():
    own = {name for name in globals() if name.startswith("test_") and "_loader_" in name}
    assert own | set(WITHOUT_TWIN) <= set(cases_of("sampling.md"))
