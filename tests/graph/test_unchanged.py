"""Arrays that kernels read by index are refused once they were changed in place."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from tests import warm
from tests.graph.typed_cases import bibliography
from tests.kernels import needs_kernels

from graphbraid import Graph, nn
from graphbraid.datasets import open_store, save_store
from graphbraid.distributed.partitioning.records import Partition
from graphbraid.errors import DataError
from graphbraid.features.reordering import Renumbering
from graphbraid.graph import ScaledFeatures, SparseFeatures
from graphbraid.graph.csc import Csc
from graphbraid.graph.identity import _checksum, features_mark, keep_mark, mark, topology_mark
from graphbraid.graph.orders import community_order
from graphbraid.loader import NeighborLoader
from graphbraid.ops import edge_softmax, spmm
from graphbraid.ops.gather import Tier, TierTable, gather_tiered
from graphbraid.train.run_folder.contract import graph_identity

FAR = 10**9  # an index that leaves any array here


@pytest.fixture
def graph():
    torch.manual_seed(0)
    return Graph.from_edge_index(
        torch.randint(0, 90, (2, 900)), num_nodes=90, x=torch.randn(90, 8), splits={"train": torch.arange(60)}
    )


def batches(graph, **options):
    return NeighborLoader(graph, [5, 5], batch_size=6, **options)


def sparse_product(graph):
    features = SparseFeatures.from_dense(graph.x.relu())
    features.indices[0] = FAR
    nn.GCN(8, 4, 3)(features, graph.csc)


def sparse_copy(graph):
    features = SparseFeatures.from_dense(graph.x.relu())
    features.indptr[1] = FAR
    features.to_dense()


def block(graph):
    batch = next(iter(batches(graph, layout="blocks")))
    batch.blocks[0].indices[0] = FAR
    nn.GraphSAGE(8, 4, 3)(batch.x, batch.blocks)


def tier_positions(_):
    positions = torch.arange(90)
    table = TierTable([Tier((torch.randn(90, 4),))], positions)
    positions[3] = FAR
    gather_tiered(table, torch.arange(9))


def order(graph):
    nodes = torch.arange(90)
    renumbering = Renumbering(nodes)
    nodes[3] = FAR
    renumbering.indptr(graph.csc.indptr)


def parts(_):
    part_of = torch.zeros(90, dtype=torch.int32)
    partition = Partition(part_of=part_of, num_parts=2, strategy="given", balance="nodes")
    part_of[3] = FAR
    partition.sizes()


@pytest.mark.parametrize("use", [sparse_product, sparse_copy, block, tier_positions, order, parts])
def test_an_array_that_was_changed_after_its_check_is_refused(graph, use):
    with pytest.raises(DataError, match="changed in place after it was checked"):
        use(graph)


USES = {
    "an operator": lambda graph: spmm(graph.csc, graph.x),
    "a transpose": lambda graph: graph.csc.transpose(),
    "a model": lambda graph: nn.GAT(8, 8, 3)(graph.x, graph.csc),
    "a loader": lambda graph: list(batches(graph)),
    "an order": lambda graph: community_order(graph.csc),
    "an edit": lambda graph: graph.with_self_loops(),
}


@pytest.mark.parametrize("name", ["indptr", "indices"])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_no_use_of_a_graph_reads_edges_that_were_changed(graph, use, name):
    getattr(graph.csc, name)[1] = FAR
    with pytest.raises(DataError, match=f"{name} of Csc"):
        use(graph)


def test_a_softmax_over_rows_that_were_changed_is_refused(graph):
    graph.csc.indptr[1] = FAR
    with pytest.raises(DataError, match="indptr of Csc"):
        edge_softmax(graph.csc, torch.ones(graph.num_edges))


def test_a_changed_view_of_the_edges_and_a_kept_transpose_are_refused():
    edge_index = torch.tensor([[0, 1, 2], [0, 1, 2]], dtype=torch.int32)  # in order, so that it is shared
    graph = Graph.from_edge_index(edge_index, num_nodes=3, x=torch.ones(3, 1))
    transposed, _ = graph.csc.transpose()
    transposed.indices[0] = FAR
    with pytest.raises(DataError, match="indices of Csc"):
        spmm(graph.csc, graph.x.requires_grad_()).sum().backward()
    edge_index[0, 0] = FAR
    with pytest.raises(DataError, match="indices of Csc"):
        spmm(graph.csc, graph.x)


def test_results_of_old_weights_are_not_used_for_new_ones(graph):
    weighted = Graph.from_edge_index(
        graph.to_edge_index(), num_nodes=90, x=graph.x, edge_weight=torch.rand(graph.num_edges)
    )
    model = nn.GCN(8, 4, 3)
    model(weighted.x, weighted.csc)
    weighted.csc.weight.mul_(2)
    with pytest.raises(DataError, match="weight of Csc"):
        model(weighted.x, weighted.csc)


@needs_kernels
@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"num_workers": 2}])
@pytest.mark.parametrize("name", ["indptr", "indices"])
def test_sampling_threads_refuse_edges_that_change_under_them(graph, name, options):
    """Neither torch nor the threads see such a change, which another process or NumPy may make, coming."""
    loader = batches(graph, **options)
    getattr(graph.csc, name).numpy()[1:-1] = FAR
    with pytest.raises(DataError, match="changed while batches were sampled"):
        list(loader)


@needs_kernels
@pytest.mark.parametrize("of", [lambda graph: graph.csc.indices, lambda graph: graph.types.rows.indptr])
def test_typed_sampling_threads_refuse_edges_that_change_under_them(of):
    graph = bibliography()
    loader = NeighborLoader(graph, [5, 5], input_nodes=graph.node_types[0], batch_size=6)
    of(graph).numpy()[1:-1] = FAR
    with pytest.raises(DataError, match="changed while batches were sampled"):
        list(loader)


AFTER_A_WRITE = """
import sys, torch
from graphbraid import Graph, Trainer, nn
from graphbraid.errors import DataError

use, name, how = sys.argv[1:]
draw = torch.Generator().manual_seed(0)
graph = Graph.from_edge_index(
    torch.randint(3000, (2, 60_000), generator=draw), 3000, x=torch.rand(3000, 8), y=torch.arange(3000) % 4,
    splits={"train": torch.arange(900)},
)
array = getattr(graph.csc, name)
(array.numpy() if how == "NumPy" else array.data)[1:-1] = 10**9
model = nn.GraphSAGE(8, 8, 4, 2)
try:
    if use == "transpose":
        graph.csc.transpose()
    elif use == "reversed":
        graph.csc.reversed()
    else:
        Trainer(model, graph, mode="sampled", fanouts=(5, 5), epochs=1).fit()
except DataError as error:
    print(error)
"""


@needs_kernels
@pytest.mark.slow
@pytest.mark.parametrize("how", ["NumPy", ".data"])
@pytest.mark.parametrize("name", ["indptr", "indices"])
@pytest.mark.parametrize("use", ["transpose", "reversed", "training"])
def test_writes_that_torch_does_not_count_are_refused_where_kernels_write_by_ids(use, name, how):
    """In a process of its own: a kernel that wrote by such an id ended it by a signal."""
    done = warm.run(["-c", AFTER_A_WRITE, use, name, how])
    assert done.returncode == 0, done.stderr
    assert "the graph's arrays were changed" in done.stdout


def test_arrays_that_are_shared_with_scipy_cannot_be_written_to():
    """SciPy's methods in place, as ``sum_duplicates``, would move edges under the kernels that read them."""
    matrix = sp.random(50, 50, density=0.1, random_state=1, format="csc", dtype=np.float32)
    matrix.indptr = matrix.indptr.astype(np.int64)
    graph = Graph.from_scipy(matrix)
    rows = sp.random(20, 30, density=0.2, random_state=1, format="csr", dtype=np.float32)
    features = SparseFeatures.from_scipy(rows)
    for one in (matrix, graph.to_scipy(), rows, features.to_scipy()):
        assert not one.indices.flags.writeable
        for change in (one.sort_indices, one.sum_duplicates, partial(one.data.fill, 0)):
            one.has_sorted_indices = one.has_canonical_format = False
            with pytest.raises(ValueError, match="read-only"):
                change()
        one.copy().data.fill(0)
    again = Graph.from_scipy(graph.to_scipy(), weighted=True)
    assert torch.equal(again.csc.indices, graph.csc.indices)
    torch.testing.assert_close(
        torch.from_numpy(graph.to_scipy().toarray()), torch.from_numpy(matrix.toarray())
    )


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_count_the_changes_of_their_own_arrays(copied):
    """Arrays that were filled in place, as those from tables, begin at 0 again in a copy."""
    indptr, sources, order = (torch.tensor(ids).add_(0) for ids in ([0, 1, 2], [1, 0], [1, 0]))
    weight = torch.ones(2).mul_(2)
    made = copied(Graph(csc=Csc(indptr, sources, 2, weight), x=torch.ones(2, 1)))
    torch.testing.assert_close(spmm(made.csc, made.x), made.x)
    assert copied(Renumbering(order)).order.tolist() == [1, 0]
    made.csc.indices[0] = FAR
    for use in (copied, lambda graph: spmm(graph.csc, graph.x)):
        with pytest.raises(DataError, match="indices of Csc"):
            use(made)


def make_graph(x) -> Graph:
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 40, (2, 200), generator=draw)
    return Graph.from_edge_index(
        edges, 40, x=x, edge_attr=torch.rand(200, 2, generator=draw), edge_weight=torch.rand(200)
    ).replace(y=torch.arange(40) % 3, splits={"train": torch.arange(20), "val": torch.arange(0)})


X = torch.rand(40, 5, generator=torch.Generator().manual_seed(1))
KINDS = {
    "float32": X,
    "bfloat16": X.bfloat16(),
    "int8": ScaledFeatures.from_dense(X),
    "sparse": SparseFeatures.from_dense(X * (X > 0.5)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_read_or_mapped_from_a_store_is_the_one_that_was_written(kind, tmp_path):
    graph = make_graph(KINDS[kind])
    store = save_store(graph, tmp_path / "s")
    for mmap in (True, False):
        again = open_store(store, mmap=mmap)
        assert graph_identity(again) == graph_identity(graph)
        assert features_mark(again.x) == features_mark(graph.x)
        assert topology_mark(again.csc) == topology_mark(graph.csc)


def test_of_a_mapped_array_the_stores_checksum_is_taken_until_it_is_changed_in_place(tmp_path):
    graph = open_store(save_store(make_graph(X), tmp_path / "s"))
    keep_mark(graph.x, "of the store", in_blocks=True)
    assert features_mark(graph.x) == "of the store"
    graph.x[3, 1] += 1
    assert features_mark(graph.x) == features_mark(graph.x.clone())
    assert features_mark(graph.x) != features_mark(X)


def test_an_array_is_read_once_and_again_after_a_change(monkeypatch):
    array, seen = X.clone(), []
    counted = lambda *a, **k: seen.append(a) or _checksum(*a, **k)  # noqa: E731
    monkeypatch.setattr("graphbraid.graph.identity._checksum", counted)
    first = mark(array)
    assert (mark(array), len(seen)) == (first, 1)
    array[39, 4] = 7
    assert mark(array) != first
    assert len(seen) == 2
    with torch.inference_mode():  # whose tensors count no changes
        array = torch.zeros(3)
        first = mark(array)
        array += 1
        assert mark(array) != first


@pytest.mark.parametrize(
    "array",
    [torch.tensor(3.0), torch.zeros(0, 3), torch.zeros(3, 0), torch.ones(2, 1) > 0, torch.arange(6)[::2]],
)
def test_arrays_of_every_shape_have_one_that_strides_do_not_change(array):
    assert mark(array) == mark(array.clone())
    if array.ndim == 2:
        assert mark(array.t().contiguous().t()) == mark(array)


def test_it_tells_shape_dtype_values_order_and_weights(monkeypatch):
    monkeypatch.setattr("graphbraid.graph.identity._AT_A_TIME", 7)  # parts
    others = [X, X * 2, X.flip(0), X.t(), X.reshape(5, 40), X.double(), X[:39]]
    assert len({mark(one.contiguous()) for one in others}) == len(others)
    assert mark(X.flip(0)[::2]) == mark(X.flip(0)[::2].clone())
    csc = make_graph(X).csc
    wide = Csc(csc.indptr, csc.indices.long(), csc.num_src, csc.weight)
    assert topology_mark(wide) == topology_mark(csc)
    assert topology_mark(Csc(csc.indptr, csc.indices, csc.num_src)) != topology_mark(csc)
