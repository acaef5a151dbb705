"""NeighborLoader: PyG's face over the sampler."""

import hashlib
import itertools
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests import warm
from tests.extras import PATIENCE
from tests.peaks import least_peak
from tests.sampling.graphs import power_law_csc
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData

import graphbraid
from graphbraid import Graph, native
from graphbraid.errors import ConfigError
from graphbraid.graph import SparseFeatures
from graphbraid.loader import NeighborLoader

NUM_NODES = 800


def make_graph(*, features="float32", weighted=False):
    csc = power_law_csc(NUM_NODES, 6000, weighted=weighted)
    x = torch.randn(NUM_NODES, 9, generator=torch.Generator().manual_seed(0))
    if features == "sparse":
        mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < 0.2
        rows = torch.cat([torch.zeros(1, dtype=torch.int64), mask.sum(1).cumsum(0)])
        x = SparseFeatures(indptr=rows, indices=mask.nonzero()[:, 1].int(), values=x[mask], num_cols=9)
    elif features is not None:
        x = x.to(getattr(torch, features))
    else:
        x = None
    y = torch.randint(0, 5, (NUM_NODES,), generator=torch.Generator().manual_seed(2))
    return Graph(csc=csc, x=x, y=y, splits={"train": torch.arange(0, 700, 7)})


def make_data():
    graph = make_graph()
    data = Data(x=graph.x, y=graph.y, edge_index=graph.to_edge_index(), num_nodes=NUM_NODES)
    shuffled = torch.randperm(data.num_edges, generator=torch.Generator().manual_seed(3))
    data.edge_index = data.edge_index[:, shuffled]  # edges as a user has them, in no order
    data.edge_attr = torch.arange(data.num_edges).float().unsqueeze(1)
    data.train_mask = torch.arange(NUM_NODES) % 7 == 0
    return data


def digest(batches):
    state = hashlib.sha256()
    for batch in batches:
        for tensor in (batch.n_id, batch.input_id, batch.edge_index, batch.e_id, batch.x):
            state.update(tensor.numpy().tobytes())
    return state.hexdigest()


@pytest.mark.parametrize("reads_x", [False, True])
def test_counting_nodes_and_running_a_compiled_model_make_no_edge_list(reads_x):
    graph = make_graph()
    torch.manual_seed(0)
    model = pyg.GraphSAGE(9, 8, 2, 3)
    engine = graphbraid.compile(model, strict=True)
    for batch in NeighborLoader(graph, [4, 3], batch_size=50, input_nodes=graph.split("train")):
        if reads_x:
            assert batch.x.shape[1] == 9
        assert batch.num_nodes == len(batch.n_id)
        out = engine(batch)
        assert batch.sampled_edges is not None
        whole = model(batch.x, batch.edge_index)[: batch.batch_size]
        torch.testing.assert_close(out, whole, rtol=1e-4, atol=1e-5)
        batch.x = batch.x[:7]
        assert batch.num_nodes == 7


def test_a_batch_has_pygs_attributes():
    data = make_data()
    loader = NeighborLoader(
        data, num_neighbors=[4, 3], batch_size=50, input_nodes=data.train_mask, shuffle=True
    )
    assert len(loader) == -(-int(data.train_mask.sum()) // 50)
    seen = []
    for batch in loader:
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.y, data.y[batch.n_id])
        assert torch.equal(batch.seed_y, batch.y[: batch.batch_size])
        assert torch.equal(batch.train_mask, data.train_mask[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert torch.equal(batch.input_id, batch.n_id[: batch.batch_size])  # their places in the mask
        assert sum(batch.num_sampled_nodes) == batch.num_nodes == len(batch.n_id)
        assert sum(batch.num_sampled_edges) == batch.num_edges == batch.edge_index.shape[1]
        assert batch.num_features == 9
        assert "edge_attr" in batch
        assert "nothing" not in batch
        seen.append(batch.n_id[: batch.batch_size])
    assert torch.equal(torch.cat(seen).sort().values, data.train_mask.nonzero().flatten())


def test_to_data_gives_a_pyg_data_that_validates():
    data = make_data()
    batch = next(iter(NeighborLoader(data, [4, 3], batch_size=50)))
    out = batch.to_data()
    assert out.validate()
    assert out.batch_size == 50
    assert torch.equal(out.edge_index, batch.edge_index)
    assert torch.equal(out.train_mask, batch.train_mask)
    assert out.num_sampled_edges == batch.num_sampled_edges


@pytest.mark.parametrize("layout", ["subgraph", "blocks"])
def test_blocks_chain_and_hold_the_sampled_edges(layout):
    graph = make_graph(weighted=True)
    for batch in NeighborLoader(graph, [4, 3, 2], batch_size=64, layout=layout, src_degree=True):
        blocks = batch.blocks
        assert len(blocks) == 3
        assert blocks[-1].num_dst == batch.batch_size
        assert blocks[0].num_src == batch.num_nodes
        for outer, inner in itertools.pairwise(blocks):
            assert outer.num_dst == inner.num_src
        for block in blocks:
            assert block.num_edges == int(block.indptr[-1])
            if block.num_edges:
                assert int(block.indices.max()) < block.num_src
            # Every edge of the block is an edge of the graph, with its weight.
            src, dst = batch.n_id[block.indices.long()], batch.n_id[block.destinations().long()]
            for s, d, w in zip(src[:20].tolist(), dst[:20].tolist(), block.weight[:20].tolist(), strict=True):
                row = slice(int(graph.csc.indptr[d]), int(graph.csc.indptr[d + 1]))
                assert w in graph.csc.weight[row][graph.csc.indices[row] == s]
            expected = torch.stack([weights_into(graph, int(v)) for v in batch.n_id[: block.num_src]])
            torch.testing.assert_close(block.src_degree, expected)


def weights_into(graph, node):
    row = slice(int(graph.csc.indptr[node]), int(graph.csc.indptr[node + 1]))
    return graph.csc.weight[row][graph.csc.indices[row] != node].sum()


@pytest.mark.parametrize("features", ["float32", "float16", "bfloat16", "sparse", None])
def test_features_of_every_kind_are_gathered(features):
    graph = make_graph(features=features)
    batch = next(iter(NeighborLoader(graph, [3, 3], batch_size=40)))
    if features is None:
        assert batch.x is None
        return
    dense = graph.dense_x() if features == "sparse" else graph.x
    assert torch.equal(batch.x, dense[batch.n_id])
    assert batch.features.shape == (batch.num_nodes, 9)


@pytest.mark.parametrize("width", [1, 3, 16, 32, 100, 257])
def test_rows_of_every_width_are_gathered(width):
    graph = make_graph().replace(x=torch.randn(NUM_NODES, width))
    for batch in NeighborLoader(graph, [5, 5], batch_size=128, num_workers=2):
        assert torch.equal(batch.x, graph.x[batch.n_id])


SHUFFLED = {"num_neighbors": [4, 3], "batch_size": 30, "shuffle": True, "seed": 7}


def test_bits_are_those_of_another_process():
    code = (
        "from tests.sampling.test_loader import *\n"
        "print(digest(NeighborLoader(make_graph(), **SHUFFLED).batches(3)))"
    )
    done = warm.run(["-c", code])
    assert done.stdout.strip() == digest(NeighborLoader(make_graph(), **SHUFFLED).batches(3)), done.stderr


def test_epochs_advance_and_differ():
    loader = NeighborLoader(make_graph(), [4], batch_size=100, shuffle=True)
    first, second = digest(loader), digest(loader)
    assert loader.epoch == 2
    assert first != second
    assert digest(loader.batches(0)) == first


def test_torchs_generator_governs_a_seed_that_was_not_given():
    graph = make_graph()

    def loaders():
        return [NeighborLoader(graph, [4], batch_size=100, shuffle=True) for _ in range(2)]

    torch.manual_seed(11)
    first, second = loaders()
    torch.manual_seed(11)
    again, _ = loaders()
    assert first.seed == again.seed != second.seed  # a loader per epoch trains on other batches each time
    assert digest(first.batches(0)) == digest(again.batches(0)) != digest(second.batches(0))
    given = NeighborLoader(graph, [4], batch_size=100, shuffle=True, seed=first.seed)
    assert digest(given.batches(0)) == digest(first.batches(0))


def test_a_given_seed_takes_nothing_from_torchs_generator():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    list(NeighborLoader(make_graph(), [4], batch_size=400, shuffle=True, seed=0))
    assert torch.equal(torch.get_rng_state(), before)


def test_batches_that_are_kept_are_not_overwritten():
    loader = NeighborLoader(make_graph(), [4, 4], batch_size=20, num_workers=2)
    kept = list(loader)
    copies = [batch.x.clone() for batch in kept]
    for _ in range(3):
        list(loader)
    assert all(torch.equal(batch.x, x) for batch, x in zip(kept, copies, strict=True))
    assert digest(kept) == digest(loader.batches(0))


def test_two_iterators_of_one_loader_do_not_disturb_each_other():
    loader = NeighborLoader(make_graph(), [4], batch_size=50)
    pairs = list(zip(loader.batches(0), loader.batches(1), strict=True))
    assert digest(a for a, _ in pairs) == digest(loader.batches(0))
    assert digest(b for _, b in pairs) == digest(loader.batches(1))


def test_tensors_outlive_their_loader():
    loader = NeighborLoader(make_graph(), [4], batch_size=50)
    batch = next(iter(loader))
    n_id = batch.n_id.clone()
    loader.close()
    del loader
    assert torch.equal(batch.n_id, n_id)


def test_closing_leaves_no_thread_and_the_loader_starts_again():
    def threads():
        status = Path("/proc/self/status").read_text().splitlines()
        return int(next(line.split()[1] for line in status if line.startswith("Threads")))

    graph = make_graph()
    with NeighborLoader(graph, [4], batch_size=5, num_workers=4) as warm:
        list(warm)  # torch's own threads are there now
    before = threads()
    loader = NeighborLoader(graph, [4], batch_size=5, num_workers=4)
    iterator = iter(loader)
    next(iterator)
    if native.kernels() is not None:
        assert threads() == before + 4
    loader.close()
    assert threads() == before
    assert next(iter(loader)).step == 0
    loader.close()
    assert threads() == before


def test_stage_seconds_count_and_reset():
    loader = NeighborLoader(make_graph(), [4], batch_size=100)
    list(loader)
    seconds = loader.stage_seconds
    assert seconds["batches"] == len(loader)
    assert seconds["sample"] > 0
    assert seconds["gather"] > 0
    loader.reset_stage_seconds()
    assert loader.stage_seconds["batches"] == 0


def test_seeds_by_mask_ids_split_and_all():
    graph = make_graph()
    mask = torch.zeros(NUM_NODES, dtype=torch.bool)
    mask[graph.splits["train"]] = True
    by_mask, by_ids, by_name = (
        NeighborLoader(graph, [3], input_nodes=nodes, batch_size=30, seed=5)
        for nodes in (mask, graph.splits["train"], "train")
    )
    assert digest(by_ids.batches(0)) == digest(by_name.batches(0))
    for first, second in zip(by_mask.batches(0), by_ids.batches(0), strict=True):
        assert torch.equal(first.n_id, second.n_id)
        assert torch.equal(first.edge_index, second.edge_index)
        assert torch.equal(first.input_id, graph.splits["train"][second.input_id])  # places in the mask
    assert sum(b.batch_size for b in NeighborLoader(graph, [3], batch_size=300)) == NUM_NODES
    with pytest.raises(ConfigError, match=r"input_nodes hold only 0 and 1, .*give bools"):
        NeighborLoader(graph, [3], input_nodes=mask.to(torch.uint8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_neighbors": {"a": [1]}}, "heterogeneous"),
        ({"num_workers": -1}, r"num_workers must be a whole number in \[0, 1024\]; got -1"),
        ({"prefetch_factor": 0}, r"prefetch_factor must be a whole number in \[1, .*got 0"),
        ({"input_nodes": torch.tensor([1j])}, "a 1-d tensor of ids or a mask"),
        ({"disjoint": "no"}, "disjoint must be True or False"),
        ({"directed": False}, "does not support directed=False .*subgraph_type='induced'"),
        ({"seed": -3}, "seed must be a whole number in"),
    ],
)
def test_bad_options_say_what_would_be_right(options, message):
    with pytest.raises(ConfigError, match=message):
        NeighborLoader(make_graph(), **{"num_neighbors": [3], **options})


def test_pygs_options_about_processes_are_taken():
    loader = NeighborLoader(make_graph(), [3], num_workers=2, persistent_workers=True, prefetch_factor=4)
    assert next(iter(loader)).step == 0
    assert loader.persistent_workers


@pytest.mark.slow
def test_ctrl_c_ends_the_wait_for_a_batch():
    code = """
import signal, sys, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite started in the background has it ignored
from tests.sampling.graphs import power_law_csc
from graphbraid import Graph
from graphbraid.loader import NeighborLoader
graph = Graph(csc=power_law_csc(300_000, 6_000_000))
loader = NeighborLoader(graph, [-1, -1, -1, -1], batch_size=300_000)  # one batch of many seconds
try:
    print("ready", flush=True)
    next(iter(loader))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=PATIENCE)
    assert out == "interrupted\n"
    assert child.returncode == 0


@pytest.mark.slow
def test_a_workers_memory_does_not_grow_with_the_graph():
    """Table and buffers are of the batch's size: 16 times the graph costs no more beyond its arrays."""
    code = """
import sys, torch
from graphbraid.graph.csc import Csc
from graphbraid import Graph
from graphbraid.loader import NeighborLoader
num_nodes = int(sys.argv[1])
degree = 4
indptr = torch.arange(num_nodes + 1) * degree
indices = torch.randint(0, num_nodes, (num_nodes * degree,), dtype=torch.int32)
graph = Graph(csc=Csc(indptr, indices, num_nodes))
seeds = torch.randint(0, num_nodes, (4096,))
loader = NeighborLoader(graph, [4, 4, 4], input_nodes=seeds, batch_size=256, num_workers=2)
list(NeighborLoader(Graph(csc=Csc(indptr[:2], indices[:4] * 0, 1)), [1]))
def resident():  # not the peak: what made the graph's arrays may have needed more
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))
before = resident()
for batch in loader: pass
print(resident() - before)
"""

    def grown(num_nodes):
        done = warm.run(["-c", code, num_nodes])
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    # Of the 16 times 60 MB of int32 ids and indptr, nothing may show; a map from node to local id would be
    # 61 MB.
    most = 1.5 * max(grown(1_000_000), 0) + 16384  # KiB
    assert least_peak(lambda: grown(16_000_000), most) <= most


@pytest.mark.parametrize("epoch", [-1, 1 << 63, 1 << 64, 1 << 70])
def test_epochs_beyond_those_of_a_seed_are_refused(epoch):
    loader = NeighborLoader(make_graph(), [3], batch_size=100)
    with pytest.raises(ConfigError, match="epoch must be a whole number in"):
        next(iter(loader.batches(epoch)))
    loader.epoch = epoch
    with pytest.raises(ConfigError, match="epoch must be a whole number in"):
        next(iter(loader))


def test_weights_that_float32_loses_are_told():
    edges = torch.tensor([[0, 1, 2], [3, 3, 3]])
    lost = torch.tensor([1.0, 1e-60, 0.0], dtype=torch.float64)
    data = Data(num_nodes=4, edge_index=edges, odds=lost)
    typed = HeteroData()
    typed["n"].num_nodes = 4
    typed["n", "to", "n"].edge_index, typed["n", "to", "n"].odds = edges, lost
    for given, nodes in ((data, [3]), (typed, ("n", [3]))):
        with pytest.warns(
            UserWarning, match="1 weights 'odds' are 0 in float32, so their edges are never drawn"
        ):
            NeighborLoader(given, [2], nodes, weight_attr="odds")
