"""Exact inference gives the whole graph's numbers under any budget, and stays within it."""

import os
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tests.extras import NO_PEAK
from tests.modules import module_of
from tests.peaks import least_peak, printed
from tests.train.communities import AsWritten, Sage, community_graph
from torch_geometric import nn as pyg_nn

from graphbraid import nn as gnn
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.estimates.memory import exact_inference
from graphbraid.estimates.trial import Trial
from graphbraid.features.rows.row_stream import ScratchRows
from graphbraid.fullgraph.batches import layer_wise
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.sparse_features import SparseFeatures
from graphbraid.nn import module_traits
from graphbraid.train import TrainConfig, Trainer
from graphbraid.train.inference import infer

SMALL = 1 << 16  # the least a budget may be: forces many chunks on these graphs


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Thousands of small chunks: threads only get in each other's way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def uneven_graph(**fields: object) -> Graph:
    """A graph with a hub that all have edges to, self-loops and repeated edges beside communities."""
    graph = community_graph(400)
    edge_index = graph.to_edge_index().unique(dim=1)
    hub = torch.stack([torch.arange(400), torch.full((400,), 17)])
    loops = torch.arange(0, 400, 7).expand(2, -1)
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]  # of repeated self-loops a GCN keeps one
    edges = torch.cat([edge_index, edge_index[:, ::5], hub[:, hub[0] != 17], loops], dim=1)
    made = Graph.from_edge_index(edges, 400, x=graph.x, y=graph.y, splits=graph.splits)
    return made.replace(**fields) if fields else made


def native_model(name: str, graph: Graph) -> torch.nn.Module:
    torch.manual_seed(0)
    return gnn.MODELS[name](graph.num_features, 24, graph.num_classes, 3, dropout=0.5)


def spied(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Records for each layer's activations whether they were kept in memory."""
    kept: list[bool] = []

    class Spy(ScratchRows):
        def __init__(self, *args: object, in_memory: bool, **kwargs: object) -> None:
            kept.append(in_memory)
            super().__init__(*args, in_memory=in_memory, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(layer_wise, "ScratchRows", Spy)
    return kept


@pytest.mark.parametrize("name", list(gnn.MODELS))
@pytest.mark.parametrize("weighted", [False, True])
def test_layer_wise_inference_equals_one_pass(name, weighted, monkeypatch):
    graph = uneven_graph()
    if weighted:
        graph.csc.weight = torch.rand(graph.num_edges) + 0.1
    model = native_model(name, graph)
    whole = Trainer(model, graph, fanouts=(3, 3, 3)).predict()
    kept = spied(monkeypatch)
    small = Trainer(model, graph, fanouts=(3, 3, 3), memory_budget_bytes=SMALL).predict()
    assert (False in kept) == (name != "mlp")  # rows of 24 columns went to files; an MLP keeps none
    torch.testing.assert_close(small, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("options", [{"add_self_loops": False}, {"improved": True}])
def test_gcn_normalisation_is_the_whole_graphs(options, weighted):
    """Self-loops of sources outside the chunk count in their degrees, with their weights."""
    graph = uneven_graph()
    if weighted:
        graph.csc.weight = torch.rand(graph.num_edges) + 0.1
    model = gnn.GCN(12, 24, 3, 2, **options)
    whole = Trainer(model, graph).predict()
    small = Trainer(model, graph, memory_budget_bytes=SMALL).predict()
    torch.testing.assert_close(small, whole, rtol=1e-4, atol=1e-5)


def test_layer_wise_inference_keeps_in_memory_what_fits(monkeypatch):
    graph = uneven_graph()
    model = native_model("sage", graph)
    kept = spied(monkeypatch)
    budget = 2 * 400 * 24 * 4 + 1000
    assert infer.whole_bytes(Trainer(model, graph).runner) > budget
    Trainer(model, graph, memory_budget_bytes=budget).predict()
    assert kept == [True, False, False]  # the last are the products of 3 columns that are summed


def test_layer_wise_inference_takes_sparse_features_and_any_nodes():
    graph = uneven_graph()
    assert isinstance(graph.x, torch.Tensor)
    model = native_model("gcn", graph)
    whole = Trainer(model, graph).predict()
    sparse = graph.replace(x=SparseFeatures.from_dense(graph.x))
    nodes = [17, 399, 3, 17]
    small = Trainer(model, sparse, memory_budget_bytes=SMALL).predict(nodes)
    torch.testing.assert_close(small, whole[nodes], rtol=1e-4, atol=1e-5)


def test_evaluation_does_not_depend_on_the_budget():
    graph = uneven_graph()
    model = native_model("gat" if "gat" in gnn.MODELS else "gin", graph)
    large = Trainer(model, graph).evaluate("val")
    assert Trainer(model, graph, memory_budget_bytes=SMALL).evaluate("val") == pytest.approx(large, rel=1e-4)


def test_evaluation_mode_is_set_and_given_back():
    graph = uneven_graph()
    model = native_model("sage", graph).train()
    trainer = Trainer(model, graph, memory_budget_bytes=SMALL)
    assert torch.equal(trainer.predict([1, 2]), trainer.predict([1, 2]))  # dropout would differ
    assert model.training


class Gcn(torch.nn.Module):
    """A GCN like PyG's: a source's own in-degree, which the last hop does not see, weighs its messages."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = torch.nn.ModuleList([torch.nn.Linear(12, 8), torch.nn.Linear(8, 3)])
        self.num_layers = 2
        for linear in self.linears:
            linear.propagate = lambda: None  # as a message-passing layer says it is one

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        source, destination = edge_index
        degree = torch.ones(x.shape[0]).index_add_(0, destination, torch.ones(source.numel()))
        scale = (degree[source] * degree[destination]).rsqrt()[:, None]
        for linear in self.linears:
            h = linear(x)
            x = (h / degree[:, None]).index_add_(0, destination, h[source] * scale).tanh()
        return x


def test_expansion_equals_one_pass_also_where_degrees_of_sources_count():
    graph = community_graph(5000, degree=3)
    model = Gcn()
    budget = 400_000
    trainer = Trainer(model, graph, memory_budget_bytes=budget)
    assert infer.whole_bytes(trainer.runner) > budget
    nodes = torch.arange(0, 5000, 37)
    torch.testing.assert_close(
        trainer.predict(nodes), Trainer(model, graph).predict(nodes), rtol=1e-4, atol=1e-6
    )


class Hops(torch.nn.Linear):
    """Stands for a layer of PyG that carries messages ``K`` hops."""

    def __init__(self, hops: object) -> None:
        super().__init__(12, 3)
        self.K = self.num_layers = hops

    propagate = torch.nn.Linear.forward


def test_what_a_model_says_by_an_integer_of_numpy_counts():
    model = Hops(np.int64(4))
    assert infer.depth(model, TrainConfig()) == 4
    assert module_traits.num_layers(model) == 4
    with pytest.raises(ConfigError, match=r"one entry per layer of the model \(4\); got 2"):
        Trainer(model, uneven_graph(), fanouts=(3, 3)).fit()


class Wide(torch.nn.Module):
    """A model whose weights are of other shapes than its layers: tables of rows, and products ``x @ w``."""

    def __init__(self, width: int, rows: int, *, of_all: bool = False) -> None:
        super().__init__()
        self.rows, self.of_all = torch.nn.Embedding(rows, 12), of_all
        self.first = torch.nn.Parameter(torch.randn(12, width))
        self.second = torch.nn.Parameter(torch.randn(width, 3))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        x = x + (self.rows.weight if self.of_all else self.rows(edge_index[0, :1]))
        return torch.nn.functional.dropout(x, training=True) @ self.first @ self.second


def test_the_width_of_a_model_is_of_what_it_computes_not_of_its_parameters():
    graph = uneven_graph()
    model = Wide(90, 33_401).train()
    runner, random = Trainer(model, graph).runner, torch.get_rng_state()
    assert runner.widest == 90
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert infer.whole_bytes(runner) < 4 << 20
    assert Trainer(Wide(5, 7), graph).runner.widest == 12
    assert Trainer(gnn.GAT(12, 24, 3, heads=2), graph).runner.widest == 24


def test_a_model_with_a_row_for_each_node_is_run_on_the_whole_graph_at_any_budget():
    graph = uneven_graph()
    trainer = Trainer(Wide(90, 400, of_all=True).eval(), graph, memory_budget_bytes=SMALL)
    assert trainer.predict().shape == (400, 3)


def test_expansion_that_cannot_fit_says_what_it_needs():
    graph = uneven_graph()
    trainer = Trainer(AsWritten(12, 3, hidden=64), graph, memory_budget_bytes=SMALL)
    with pytest.raises(
        ResourceError, match=r"for node 17 needs .* within 3 hops; memory_budget_bytes allows 64.0 KiB"
    ):
        trainer.predict([17])


def test_depth_counts_layers_and_their_k():
    conv = torch.nn.Linear(2, 2)
    conv.propagate = lambda: None
    conv.K = 10
    config = Trainer(Gcn(), community_graph()).config
    assert infer.depth(Gcn(), config) == 2
    assert infer.depth(torch.nn.Sequential(conv), config) == 10
    assert infer.depth(Sage(12, 3), config.updated(fanouts=(1, 2, 3))) == 3
    assert infer.depth(Gcn(), config.updated(hops=5)) == 5


class Unsaid(torch.nn.Module):
    """A model that is called with blocks, and does not say with how many."""

    takes_blocks = True

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, blocks: list[Csc]) -> torch.Tensor:
        outputs: torch.Tensor = self.model(x, blocks)
        return outputs


def test_a_model_of_blocks_says_how_many_it_takes():
    graph = uneven_graph()
    model = Unsaid(native_model("sage", graph))
    with pytest.raises(ConfigError, match=r"Unsaid is called with one block per layer.*attribute num_layers"):
        Trainer(model, graph, memory_budget_bytes=SMALL).predict()
    trial = Trial(model, graph, TrainConfig(memory_budget_bytes=SMALL))
    with pytest.raises(ConfigError, match="attribute num_layers"):
        exact_inference(trial)
    assert module_traits.layers_of(gnn.GraphSAGE(12, 8, 3, 4)) == 4


def test_activations_in_a_file_are_those_that_were_written(tmp_path):
    rows = torch.randn(1000, 7)
    kept = ScratchRows(1000, 7, in_memory=False, folder=tmp_path)
    for start in range(0, 1000, 300):
        kept.write(start, rows[start : start + 300])
    for nodes in (torch.tensor([999, 0, 5, 5, 400]), torch.arange(1000), torch.arange(0)):
        assert torch.equal(kept.gather(nodes), rows[nodes])
    assert not list(tmp_path.iterdir())  # the file has no name, and goes with the process


def test_a_flipped_byte_of_a_temporary_file_is_told(tmp_path):
    rows = torch.randn(1000, 7)  # 28,000 bytes: the last block is not whole, and chunks end inside of blocks
    for place, damaged in ((27_999, 999), (8192, 292)):
        kept = ScratchRows(1000, 7, in_memory=False, folder=tmp_path)
        for start in range(0, 1000, 300):
            kept.write(start, rows[start : start + 300])
        assert kept._file is not None
        before = os.pread(kept._file.fileno(), 1, place)
        os.pwrite(kept._file.fileno(), bytes([before[0] ^ 4]), place)
        assert torch.equal(kept.gather(torch.tensor([500])), rows[[500]]), "which lies in other blocks"
        with pytest.raises(
            DataError, match=rf"exact inference .*not what was written there .*row {damaged}\)"
        ):
            kept.gather(torch.tensor([damaged]))


def test_full_disk_for_activations_is_told(tmp_path, monkeypatch):
    def no_space(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(ResourceError, match=r"temporary file of 1.0 MiB in .*disk is full.*TMPDIR"):
        ScratchRows(1024, 256, in_memory=False, folder=tmp_path)


# Blocks from 64 KiB on go back to the system when they are freed. Else the C library keeps 7 to 18 MB of them
# in some runs: what it keeps depends on which thread frees first.
MEASURE = """
import ctypes, sys, torch
ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD
from graphbraid import nn as gnn
from graphbraid.graph import Graph
from graphbraid.train import Trainer
from tests.peaks import held
torch.set_num_threads(1)
n = 60_000
edges = torch.randint(n, (2, 4 * n))
graph = Graph.from_edge_index(edges, n, x=torch.randn(n, 16), y=torch.randint(4, (n,)))
small = torch.randint(50, (2, 100))
warm = Graph.from_edge_index(small, 50, x=torch.randn(50, 16), y=torch.randint(4, (50,)))
model = gnn.GraphSAGE(16, 256, 4, 3)
budget = int(sys.argv[1])
Trainer(model, warm, memory_budget_bytes=1 << 16).predict()
before = held("VmHWM")
Trainer(model, graph, memory_budget_bytes=budget).predict()
print(held("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason=NO_PEAK)
def test_peak_memory_stays_within_the_budget():
    """One pass holds 3 x 61 MB of activations; with a budget of 32 MB it must do with about that."""

    budget = 32 << 20
    most = budget + (16 << 20)
    assert printed(MEASURE, 1 << 34) > 150 << 20
    assert least_peak(lambda: printed(MEASURE, budget), most) <= most


@pytest.mark.parametrize("mode", ["exact", "sampled"])
@pytest.mark.parametrize("budget", [SMALL, 1 << 30])
def test_a_node_with_a_self_loop_has_one_output_however_often_it_is_asked_for(budget, mode):
    graph = uneven_graph()
    conv = pyg_nn.GCNConv(graph.num_features, graph.num_classes)
    options = {"fanouts": (-1,), "memory_budget_bytes": budget, "layout": "subgraph"}
    trainer = Trainer(module_of(unread, conv=conv), graph, **options)
    got = trainer.predict([7, 3, 7, 14, 7, 3], mode=mode)
    assert torch.equal(got, trainer.predict([3, 7, 14], mode=mode)[[1, 0, 1, 2, 1, 0]])


def unread(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    """Run a layer behind control flow that no lowering follows, so that it is computed by expansion."""
    return self.conv(x, edge_index) if edge_index.max().item() >= 0 else x
