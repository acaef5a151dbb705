"""Batches are PyG Data: every method, the user's dtypes and shapes, made when read, without the graph."""

import copy
import pickle

import numpy as np
import pytest
import torch
from tests.beside_pyg import Batch, Data
from tests.sampling.test_loader import NUM_NODES, make_data, make_graph
from torch_geometric.loader.utils import filter_data
from torch_geometric.transforms import NormalizeFeatures, ToUndirected

from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.loader import (
    BatchLoader,
    ClusterData,
    ClusterLoader,
    LinkNeighborLoader,
    LoaderSettings,
    NeighborLoader,
    ShaDowKHopSampler,
)
from graphbraid.nn import MLP, GraphSAGE
from graphbraid.sampling.rows.by_id import bytes_of


def first(data, **options):
    return next(iter(NeighborLoader(data, [4, 3], **{"batch_size": 50, "seed": 0, **options})))


def is_made(batch, name):
    return batch._store._mapping.is_made(name)


def test_a_batch_is_a_data_with_pygs_attributes():
    data = make_data()
    batch = first(data)
    assert isinstance(batch, Data)
    own = {"n_id", "e_id", "input_id", "batch_size", "num_sampled_nodes", "num_sampled_edges"}
    assert set(batch.keys()) == {*data.keys(), *own}
    assert len(batch) == len(batch.keys())
    assert batch.validate()
    assert batch.is_node_attr("train_mask")
    assert batch.is_edge_attr("edge_attr")
    assert {key for key, _ in batch} == set(batch.keys())
    assert repr(batch).startswith(f"SampledData(x=[{batch.num_nodes}, 9], edge_index=[2, {batch.num_edges}]")


def test_nothing_is_made_before_it_is_read():
    batch = first(make_data())
    _ = batch.num_nodes, batch.num_edges, batch.keys(), "y" in batch, "nothing" in batch, len(batch)
    batch = batch.to("cpu")
    copied = copy.copy(batch)
    assert not any(is_made(b, name) for b in (batch, copied) for name in ("y", "edge_index", "edge_attr"))
    assert torch.equal(copied.y, batch.y)
    assert is_made(batch, "y")
    assert not is_made(batch, "edge_attr")


def test_what_is_not_there_is_none_as_in_pyg():
    batch = first(make_graph())
    assert batch.edge_attr is batch.edge_weight is batch.pos is None
    assert not hasattr(batch, "adj_t")
    with pytest.raises(AttributeError, match="no attribute 'edge_attribute'; it has edge_index, x, y"):
        _ = batch.edge_attribute


VALUES = {
    "float64": torch.randn(NUM_NODES, 3, dtype=torch.float64),
    "int64 ids": torch.arange(NUM_NODES)[:, None] + (1 << 60),
    "one dimension": torch.arange(NUM_NODES),
    "bool": torch.rand(NUM_NODES, 4) > 0.5,
    "uint8": torch.randint(0, 255, (NUM_NODES, 4), dtype=torch.uint8),
    "three dimensions": torch.randn(NUM_NODES, 2, 3),
    "complex": torch.randn(NUM_NODES, 2, dtype=torch.complex64),
    "a column": torch.randint(0, 5, (NUM_NODES, 1)),
    "columns of classes": torch.randint(0, 5, (NUM_NODES, 3)),
    "float32": torch.randn(NUM_NODES, 3),
    "strided": torch.randn(3, NUM_NODES).t(),
    "half": torch.randn(NUM_NODES, 3).half(),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("name", ["x", "y", "other"])
def test_dtypes_and_shapes_are_the_users(kind, name):
    data, value = make_data(), VALUES[kind]
    data[name] = value
    for gather in (True, False):
        batch = first(data, gather=gather)
        assert batch[name].dtype == value.dtype
        assert torch.equal(batch[name], value[batch.n_id])
        if name == "y":
            assert torch.equal(batch.seed_y, value[batch.n_id[:50]])


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool, torch.float16])
@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_edge_attributes_keep_theirs(dtype, shape):
    data = make_data()
    data.edge_attr = torch.arange(data.num_edges).expand(*shape, -1).movedim(-1, 0).to(dtype)
    data.edge_weight = torch.arange(data.num_edges)
    batch = first(data)
    assert batch.edge_attr.dtype == dtype
    assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
    assert torch.equal(batch.edge_weight, batch.e_id)
    assert torch.equal(batch.blocks[0].weight, batch.e_id.float())


def test_attributes_of_the_graph_and_of_other_kinds_are_kept():
    data = make_data()
    data.name, data.scale, data.numbers, data.nothing = "graph", torch.tensor(2.5), [1, 2], {"a": 1}
    data.pair_index = torch.arange(2 * NUM_NODES).view(2, NUM_NODES)  # nodes last, by PyG's rule for 'index'
    data.array = np.arange(NUM_NODES) * 2
    data.features = torch.arange(NUM_NODES)  # names of graphbraid's own are the user's first
    data.step = "mine"
    batch = first(data)
    assert (batch.name, batch.numbers, batch.nothing, batch.step) == ("graph", [1, 2], {"a": 1}, "mine")
    assert batch.scale is data.scale
    assert torch.equal(batch.pair_index, data.pair_index[:, batch.n_id])
    assert torch.equal(batch.array, torch.from_numpy(data.array)[batch.n_id])
    assert torch.equal(batch.features, batch.n_id)


def test_ids_that_the_user_gave_are_kept():
    data = make_data()
    data.n_id = torch.arange(NUM_NODES) + 1000  # of a part of a larger graph, say
    data.e_id = torch.arange(data.num_edges) + 7
    batch, plain = first(data), first(make_data())
    assert torch.equal(batch.n_id, plain.n_id + 1000)
    assert torch.equal(batch.e_id, plain.e_id + 7)
    assert torch.equal(batch.edge_attr, plain.edge_attr)


def test_a_list_by_node_is_refused_as_in_pyg():
    data = make_data()
    data.titles = [str(i) for i in range(NUM_NODES)]
    with pytest.raises(DataError, match=r"data.titles is a list by node, and batches take rows of tensors"):
        NeighborLoader(data, [3])


def test_pygs_methods_work():
    data = make_data()
    batch = first(data)
    clone = batch.clone()
    clone.x.zero_()
    assert not torch.equal(clone.x, batch.x)
    assert torch.equal(batch.subgraph(torch.arange(10)).x, batch.x[:10])
    assert batch.contiguous() is batch.detach() is batch
    out = Batch.from_data_list([first(data), first(data)])
    assert out.num_graphs == 2
    assert out.num_nodes == 2 * batch.num_nodes
    assert torch.equal(Batch.to_data_list(out)[1].x, batch.x)
    named = batch.to_namedtuple()
    assert torch.equal(named.y, batch.y)
    assert torch.equal(Data.from_dict(batch.to_dict()).train_mask, batch.train_mask)
    assert dict(batch._store._mapping)["y"] is batch.y  # by key, also where C reads a dict
    sizes = batch.node_attrs(), batch.edge_attrs()
    assert {"x", "y", "train_mask"} <= set(sizes[0])
    assert {"edge_index", "edge_attr"} <= set(sizes[1])


def test_attributes_may_be_set_changed_and_deleted():
    batch = first(make_data())
    batch.note, batch.x, batch["z"] = 5, torch.zeros(batch.num_nodes, 2), torch.ones(3)
    assert (batch["note"], "note" in batch, batch.num_features) == (5, True, 2)
    assert "note" in batch.keys()  # noqa: SIM118, keys() is the method under test
    del batch.edge_attr, batch["y"]
    assert batch.edge_attr is batch.y is None
    batch.x = None
    assert "x" not in batch
    assert batch.update({"z": 4}).z == 4


def test_moving_moves_everything_also_what_is_made_later():
    data = make_data()
    data.scale, data.nested = torch.ones(2), [torch.ones(1)]
    batch = first(data)
    _ = batch.y
    assert batch.to("cpu") is batch
    assert batch.clone().to("meta").x.device.type == "meta" and batch.x.device.type == "cpu"
    assert batch.to("meta") is batch
    tensors = [value for _, value in batch if isinstance(value, torch.Tensor)]
    assert len(tensors) > 8
    assert {t.device.type for t in tensors} == {"meta"}
    assert batch.nested[0].device.type == batch.blocks[0].indptr.device.type == "meta"
    assert batch.seed_y.device.type == "meta"


def test_some_attributes_alone_may_be_moved():
    batch = first(make_data()).to("meta", "x", "y")
    assert batch.x.device.type == batch.y.device.type == "meta"
    assert batch.edge_index.device.type == batch.n_id.device.type == "cpu"


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
@pytest.mark.parametrize("how", [lambda b: pickle.loads(pickle.dumps(b)), copy.deepcopy])
def test_a_copy_elsewhere_has_all_and_leaves_the_graph_behind(layout, how):
    data = make_data()
    data.x = torch.randn(NUM_NODES, 500)  # 1.6 MB
    data.edge_weight = torch.rand(data.num_edges)
    loader = NeighborLoader(data, [2], batch_size=4, seed=0, layout=layout, src_degree=True)
    batch, expected = next(iter(loader)), next(iter(loader.batches(0)))
    assert len(pickle.dumps(batch)) < 100_000
    there = how(batch)
    assert isinstance(there, Data)
    assert set(there.keys()) == set(expected.keys())
    for name in ("x", "y", "n_id", "train_mask", "seed_y"):
        assert torch.equal(getattr(there, name), getattr(expected, name))
    for seen, wanted in zip(there.blocks, expected.blocks, strict=True):
        assert torch.equal(seen.indices, wanted.indices)
        assert torch.equal(seen.weight, wanted.weight)
        assert torch.equal(seen.src_degree, wanted.src_degree)
    assert (there.step, there.num_nodes, there.num_edges) == (0, expected.num_nodes, expected.num_edges)
    there.to("meta")
    assert there.blocks[0].weight.device.type == "meta"


def test_a_plain_mini_batch_leaves_the_graph_behind_too():
    graph = make_graph(weighted=True).replace(x=torch.randn(NUM_NODES, 500))
    loader = BatchLoader(graph, LoaderSettings(num_neighbors=[2], batch_size=4))
    batch = next(loader.batches(0))
    text = pickle.dumps(batch)
    assert len(text) < 100_000
    there = pickle.loads(text)
    assert there.keys() == batch.keys()
    for name in ("x", "y", "edge_index", "e_id", "edge_weight", "seed_y", "n_id"):
        assert torch.equal(there[name], batch[name]), name
    assert torch.equal(there.features, batch.features)
    assert torch.equal(there.blocks[0].weight, batch.blocks[0].weight)
    with pytest.raises(AttributeError, match="no attribute 'pos'"):
        _ = there.pos


@pytest.mark.parametrize("kind", [NeighborLoader, LinkNeighborLoader, ShaDowKHopSampler, ClusterLoader])
def test_a_transform_that_cannot_be_called_is_refused_before_any_batch(kind):
    graph = make_graph()
    data, own = graph, {}
    if kind is ClusterLoader:
        data = ClusterData(graph, 2)
    elif kind is ShaDowKHopSampler:
        own = {"depth": 1, "num_neighbors": 2}
    else:
        own = {"num_neighbors": [2]}
    with pytest.raises(ConfigError, match="transform must be a function of a batch or None; got 3"):
        kind(data, transform=3, **own)


def test_a_transform_sees_the_same_object():
    seen = []
    loader = NeighborLoader(make_data(), [4], batch_size=50, transform=lambda b: seen.append(b) or b, seed=0)
    batch = next(iter(loader))
    assert batch is seen[0]
    assert isinstance(batch, Data) and batch.batch_size == 50
    normal = first(make_data(), transform=NormalizeFeatures())
    torch.testing.assert_close(normal.x, NormalizeFeatures()(first(make_data()).clone()).x)
    assert first(make_data(), transform=ToUndirected()).is_undirected()


def test_layout_blocks_says_what_to_do_for_an_edge_index():
    batch = first(make_graph(), layout="blocks")
    with pytest.raises(ConfigError, match="layout='subgraph'"):
        _ = batch.edge_index
    assert batch.num_edges == sum(batch.num_sampled_edges)
    assert len(batch.blocks) == 2


def test_a_weighted_graphs_batches_have_its_weights():
    graph = make_graph(weighted=True)
    batch = first(graph)
    edges, weight = graph.to_edge_index(), graph.csc.weight
    assert torch.equal(batch.edge_weight, weight[batch.e_id])
    assert torch.equal(batch.n_id[batch.edge_index], edges[:, batch.e_id])


@pytest.mark.filterwarnings("ignore:Sparse (CS. tensor support is in beta|invariant checks)")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_sparse_adj_t_comes_back_cut_in_its_form(layout, weighted):
    data = make_data()
    edges = data.edge_index.unique(dim=1)
    weight = torch.rand(edges.shape[1]) + 1 if weighted else torch.ones(edges.shape[1])
    coo = torch.sparse_coo_tensor(edges.flip(0), weight, (NUM_NODES, NUM_NODES), check_invariants=True)
    whole = coo.coalesce().to_sparse(layout=layout)
    data = Data(x=data.x, adj_t=whole)
    batch = first(data)
    assert batch.adj_t.layout == layout
    assert batch.adj_t.shape == (batch.num_nodes, batch.num_nodes)
    rows, columns = batch.adj_t.to_dense().nonzero().unbind(1)
    dense = whole.to_dense()
    assert len(rows) == batch.num_edges
    assert torch.equal(batch.adj_t.to_dense()[rows, columns], dense[batch.n_id[rows], batch.n_id[columns]])
    assert batch.edge_index is None


class OldSparseTensor:
    """What PyG's code uses of torch_sparse.SparseTensor; the package has no wheel for our torch."""

    def __init__(self, row, col, value=None, sparse_sizes=None, is_sorted=False, trust_data=False):
        self.entries, self.sizes = (row, col, value), sparse_sizes

    def coo(self):
        return self.entries


def test_a_torch_sparse_adj_t_comes_back_as_one():
    data = make_data()
    data.adj_t = OldSparseTensor(data.edge_index[1], data.edge_index[0], torch.arange(data.num_edges))
    expected = data.edge_index
    del data.edge_index, data.edge_attr
    batch = first(data)
    row, col, value = batch.adj_t.coo()
    assert batch.adj_t.sizes == (batch.num_nodes, batch.num_nodes)
    assert torch.equal(batch.n_id[torch.stack((col, row))], expected[:, value])


def test_loader_data_may_be_changed_as_in_pygs_examples():
    data = make_data()
    loader = NeighborLoader(copy.copy(data), [-1], batch_size=100, seed=0)
    before = next(iter(loader))
    del loader.data.x, loader.data.y
    loader.data.num_nodes = data.num_nodes
    loader.data.n_id = torch.arange(data.num_nodes)
    batch = next(loader.batches(0))
    assert batch.x is batch.y is None
    assert torch.equal(batch.n_id, before.n_id)
    assert torch.equal(batch.edge_index, before.edge_index)
    loader.data.x = torch.arange(NUM_NODES)
    assert torch.equal(next(iter(loader)).x[:100], torch.arange(100))
    loader.data.edge_index = data.edge_index.flip(0)
    other = next(loader.batches(0))
    assert torch.equal(other.n_id[other.edge_index], loader.data.edge_index[:, other.e_id])
    loader.data.num_nodes = NUM_NODES + 1
    with pytest.raises(ConfigError, match="has 801 nodes now, and had 800"):
        iter(loader)


class Layered(Data):
    """A user's kind of data, with a method, an argument without a default, and an attribute of no key."""

    def __init__(self, depth, **attributes):
        super().__init__(**attributes)
        self.__dict__["depth"] = depth

    def twice(self):
        return 2 * self.num_nodes


class Marked(torch.Tensor):
    """A tensor subclass."""


KINDS = {
    "parameter": lambda n: torch.nn.Parameter(torch.rand(n, 3)),
    "computed": lambda n: torch.rand(n, 3, requires_grad=True) * 2,
    "coo": lambda n: torch.rand(n, 3).round().to_sparse(),
    "coo of gradient": lambda n: torch.rand(n, 3).round().requires_grad_().to_sparse(),
    "coo of int64, 3-d": lambda n: torch.randint(2, (n, 2, 3)).to_sparse(),
    "subclass": lambda n: torch.rand(n, 3).as_subclass(Marked),
    "transposed": lambda n: torch.rand(3, n).t(),
    "expanded": lambda n: torch.rand(1, 3).expand(n, 3),
    "conjugate": lambda n: torch.rand(n, 3, dtype=torch.complex64).conj(),
    "negative": lambda n: torch.rand(n, 3, dtype=torch.complex64).conj().imag,
    "quantised": lambda n: torch.quantize_per_tensor(torch.rand(n, 3), 0.1, 0, torch.qint8),
    "float16": lambda n: torch.rand(n, 3).half(),
    "uint16": lambda n: torch.arange(3 * n).view(n, 3).to(torch.uint16),
    "bool": lambda n: torch.rand(n, 3) > 0.5,
    "complex array": lambda n: np.arange(n) * 1j,
    "uint16 array": lambda n: np.arange(n, dtype=np.uint16),
}
try:
    torch.zeros(2, dtype=torch.uint16)[torch.tensor([0])]
except NotImplementedError:  # PyTorch 2.9 cannot index uint16, so no loader can take rows of it
    KINDS = {name: make for name, make in KINDS.items() if "uint16" not in name}
LOADERS = {
    "node": lambda data: NeighborLoader(data, [3, 2], batch_size=5, seed=0),
    "link": lambda data: LinkNeighborLoader(data, [3, 2], batch_size=5, seed=0),
    "cluster": lambda data: ClusterLoader(ClusterData(data, 3, strategy="contiguous"), batch_size=2),
    "shadow": lambda data: ShaDowKHopSampler(data, 2, 3, batch_size=5, seed=0),
}


def same_as_pygs(found, wanted):
    if not isinstance(wanted, torch.Tensor):
        return found is wanted
    about = [(type(t), t.dtype, t.layout, t.shape, t.requires_grad) for t in (found, wanted)]
    values = [t.detach().dequantize() if t.is_quantized else t.detach().to_dense() for t in (found, wanted)]
    values = [t.as_subclass(torch.Tensor).resolve_conj().resolve_neg() for t in values]
    return about[0] == about[1] and torch.equal(*values)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("loader", LOADERS)
def test_attributes_keep_what_pygs_loaders_keep(loader):
    edges = torch.randint(20, (2, 60), generator=torch.Generator().manual_seed(0))
    for kind, make in KINDS.items():
        data = Layered(3, x=make(20), edge_index=edges, edge_attr=make(60), more=make(20), num_nodes=20)
        batch = next(iter(LOADERS[loader](data)))
        wanted = filter_data(data, batch.n_id, batch.e_id, batch.e_id, batch.e_id)
        names = ("x", "edge_attr", "more")
        assert [name for name in names if not same_as_pygs(batch[name], wanted[name])] == [], kind
        if loader != "shadow":
            assert isinstance(batch, Layered)
            assert (batch.depth, batch.twice()) == (3, 2 * batch.num_nodes)


def test_a_batch_of_a_users_class_is_copied_and_pickled_as_such():
    data = Layered(3, x=torch.rand(20, 2), edge_index=torch.randint(20, (2, 60)))
    batch = first(data, batch_size=4)
    for there in (copy.copy(batch), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch)), batch.to("cpu")):
        assert isinstance(there, Layered)
        assert there.twice() == batch.twice()
        assert there.depth == 3
        assert torch.equal(there.x, batch.x)


@pytest.mark.parametrize("as_graph", [False, True])
def test_learned_features_get_the_gradients_of_the_batches_that_read_them(as_graph):
    data = make_data()
    data.x = torch.nn.Parameter(torch.rand(NUM_NODES, 4))
    batch = first(Graph.from_pyg(data) if as_graph else data)
    batch.x.sum().backward()
    read = torch.zeros(NUM_NODES)
    read[batch.n_id] = 1
    assert torch.equal(data.x.grad, read[:, None].expand(-1, 4))


def test_features_in_coo_reach_the_models_of_nn_as_sparse_features():
    data = make_data()
    data.x = torch.rand(NUM_NODES, 4).round().to_sparse()
    batch = first(data)
    assert torch.equal(batch.features.to_dense(), batch.x.to_dense())
    assert bytes_of(batch.sampled).link_row_bytes > 0
    for model in (GraphSAGE(4, 8, 2, dropout=0.0), MLP(4, 8, 2, dropout=0.0)):
        outs = [model(x, batch.edge_index) for x in (batch.x, batch.x.to_dense())]
        torch.testing.assert_close(*outs)
