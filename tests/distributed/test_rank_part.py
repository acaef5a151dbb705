"""Ranks that read nothing of a graph but their own part, by a saved partition, learn what one rank does."""

import copy

import pytest
import torch
from tests.distributed.test_whole_graph import make_model
from tests.distributed.threads import run_threads
from tests.distributed.whole import assert_as_one_rank, mixed, owners
from tests.fullgraph.graphs import CHANNELS, CLASSES, NUM_NODES, make_graph
from tests.fullgraph.test_engine import GRAPHS, MODELS
from tests.suites import every, few_of

import graphbraid
from graphbraid import Graph, SparseFeatures
from graphbraid.distributed import SavedPartition, partition, save_partition
from graphbraid.errors import ConfigError, DataError
from graphbraid.fullgraph import NotLoweredError, Ranks
from graphbraid.fullgraph.program import Hoisted
from graphbraid.fullgraph.ranks.distribute import RankPart
from graphbraid.graph import ScaledFeatures
from graphbraid.graph.csc import Csc

DIVISIBLE = sorted(MODELS.keys() - {"mlp"})
QUICK = ("gcn", "sage max", "gat")


pytestmark = pytest.mark.usefixtures("threads")


def spoiled(graph: Graph, part) -> Graph:
    """The graph as a rank may know it: edges of others' nodes lead elsewhere, and so are features NaN."""
    own = torch.zeros(graph.num_nodes, dtype=torch.bool)
    own[part.owned] = True
    csc = graph.csc
    is_own = own[csc.destinations().long()]
    indices = torch.where(is_own, csc.indices, csc.destinations().to(csc.indices.dtype))
    weight = None if csc.weight is None else torch.where(is_own, csc.weight, torch.nan)
    own[part.halo] = True
    x = graph.x.to_dense() if isinstance(graph.x, SparseFeatures) else graph.x.clone()
    x[~own] = torch.nan
    held = SparseFeatures.from_dense(x) if isinstance(graph.x, SparseFeatures) else x
    return graph.replace(
        csc=Csc(csc.indptr, indices, csc.num_src, weight, trusted=True), x=held, trusted=True
    )


def assert_parts_suffice(model, graph, parts, folder, **options):
    save_partition(graph, parts, folder)

    def part_of(comm):
        saved = SavedPartition(folder)
        known = spoiled(graph, saved.part(comm.rank))
        return Ranks.of_saved(comm, saved, known), known

    return assert_as_one_rank(model, graph, parts, part_of=part_of, **options)


@pytest.mark.parametrize("size", few_of((2, 3, 4), {3}))
@pytest.mark.parametrize("name", few_of(DIVISIBLE, QUICK))
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_losses_of_every_model_are_those_of_one_rank(name, size, dropout, tmp_path):
    model = make_model(name, dropout=dropout)
    assert_parts_suffice(model, make_graph(), mixed(size), tmp_path / "p", epochs=6)


@pytest.mark.parametrize("kind", every(3, GRAPHS))
@pytest.mark.parametrize("name", QUICK)
def test_so_they_are_on_graphs_of_every_kind(name, kind, tmp_path):
    model, graph = make_model(name, dropout=0.3), make_graph(**GRAPHS[kind])
    assert_parts_suffice(model, graph, mixed(3), tmp_path / "p", epochs=4)


def test_a_rank_without_any_node_takes_part(tmp_path):
    model = make_model("gcn", dropout=0.5)
    assert_parts_suffice(model, make_graph(), owners([0, 3] * 40, 4), tmp_path / "p", epochs=4)


@pytest.mark.slow
def test_several_aggregations_of_the_features_are_computed_once(tmp_path):
    """Owners send the halo's rows between one aggregation and the next."""
    pyg = pytest.importorskip("torch_geometric.nn")
    model = pyg.SGConv(CHANNELS, CLASSES, K=3)
    found = assert_parts_suffice(model, make_graph(), mixed(3), tmp_path / "p", epochs=3)
    assert any(isinstance(op, Hoisted) for op in found[0]["engine"].program.ops)
    assert found[0]["engine"].runner.training_step.exchanged_rows == {}


def test_rows_of_int8_stay_rows_of_int8(tmp_path):
    graph, parts = make_graph(), mixed(2)
    graph = graph.replace(x=ScaledFeatures.from_dense(graph.x))
    save_partition(graph, parts, tmp_path / "p")

    def part_of(comm):
        ranks = Ranks.of_saved(comm, SavedPartition(tmp_path / "p"), graph)
        assert isinstance(ranks.part.graph.x, ScaledFeatures)
        return ranks, graph

    assert_as_one_rank(make_model("sage"), graph, parts, part_of=part_of, epochs=3)


def test_a_rank_holds_its_part_alone(tmp_path):
    """Bytes: own and halo rows of features, own edges; a quarter of the graph and the halo, of four ranks."""
    draw = torch.Generator().manual_seed(0)
    num_nodes, size = 4000, 4
    near = torch.randint(-3, 4, (6 * num_nodes,), generator=draw)
    src = torch.arange(num_nodes).repeat(6)
    edges = torch.stack((src, (src + near).clamp(0, num_nodes - 1)))
    graph = Graph.from_edge_index(edges, num_nodes, x=torch.rand(num_nodes, 32, generator=draw))
    graph = graph.replace(y=torch.zeros(num_nodes, dtype=torch.int64), splits={"train": torch.arange(2000)})
    save_partition(graph, partition(graph, size, strategy="contiguous"), tmp_path / "p")
    model = graphbraid.nn.GCN(32, 16, 3, num_layers=2, dropout=0.0)

    def bytes_of(comm):
        ranks = Ranks.of_saved(comm, SavedPartition(tmp_path / "p"), graph)
        engine = graphbraid.compile(copy.deepcopy(model), graph, ranks=ranks)
        engine()
        held = ranks.part.view.ids.numel()
        assert ranks.part.graph.x.shape == (held, 32)
        return ranks.part.nbytes, engine.nbytes, held

    alone = graphbraid.compile(model, graph, passes=graphbraid.fullgraph.ALL - {"prune"})
    found = run_threads(size, bytes_of)
    assert sum(held for *_, held in found) < 1.05 * num_nodes  # few are in a halo
    whole = graph.csc.nbytes + graph.x.nbytes
    for part_bytes, engine_bytes, _ in found:
        assert part_bytes < whole / size * 1.25
        assert engine_bytes < alone.nbytes / size * 1.6  # edges are held once more, by where they come from


# ---- what is refused


def refused(size, make):
    with pytest.raises((ConfigError, DataError, NotLoweredError)) as error:
        run_threads(size, make)
    return str(error.value)


def test_other_numbers_of_parts_are_refused(tmp_path):
    graph = make_graph()
    save_partition(graph, mixed(3), tmp_path / "p")
    said = refused(2, lambda comm: Ranks.of_saved(comm, SavedPartition(tmp_path / "p"), graph))
    assert "has 3 parts, and there are 2 ranks; start 3, or divide the graph anew" in said


def test_ranks_with_different_partitions_are_refused(tmp_path):
    graph = make_graph()
    save_partition(graph, mixed(2), tmp_path / "0")
    save_partition(graph, owners([0, 1] * 40, 2), tmp_path / "1")
    said = refused(2, lambda comm: Ranks.of_saved(comm, SavedPartition(tmp_path / str(comm.rank)), graph))
    assert "rank 0 has partition" in said
    assert "give all ranks the same partition." in said


@pytest.mark.parametrize("weighted", [False, True])
def test_a_partition_of_another_graph_is_refused(weighted, tmp_path):
    graph = make_graph(weighted=weighted)
    save_partition(graph, mixed(2), tmp_path / "p")
    saved = SavedPartition(tmp_path / "p")
    csc = graph.csc
    sizes = Csc(torch.zeros(80, dtype=torch.int64), csc.indices[:0], 79)
    with pytest.raises(DataError, match="its num_nodes was 80, this graph's is 79"):
        RankPart.read(saved, 0, Graph(csc=sizes))
    indices, weight = csc.indices.clone(), csc.weight
    if weight is None:
        first = int(csc.indptr[:-1][csc.degrees() > 0][0])
        indices[first] = (indices[first] + 1) % NUM_NODES
    else:
        weight = weight * 1.5
    other = graph.replace(csc=Csc(csc.indptr, indices, csc.num_src, weight))
    edges = [0, 1]  # the changed edge is one rank's, who tells the others
    errors = [error_of(lambda rank=rank: RankPart.read(saved, rank, other)) for rank in edges]
    assert any("the edges of part" in said and "or their weights differ" in said for said in errors)


def error_of(call):
    try:
        call()
    except DataError as error:
        return str(error)
    return ""


def test_a_part_of_another_graph_is_not_compiled_with_this_one(tmp_path):
    """The features of the part would be trained on, not those of the graph."""
    graph = make_graph()
    save_partition(graph, mixed(2), tmp_path / "p")

    def run(comm):
        ranks = Ranks.of_saved(comm, SavedPartition(tmp_path / "p"), graph)
        graphbraid.compile(make_model("gcn"), graph.replace(x=graph.x * 2), ranks=ranks)

    assert "part was read from another graph" in refused(2, run)


def test_what_a_part_does_not_hold_is_refused_by_name(tmp_path):
    pyg = pytest.importorskip("torch_geometric.nn")
    graph = make_graph()
    save_partition(graph, mixed(2), tmp_path / "p")

    def run(comm):
        ranks = Ranks.of_saved(comm, SavedPartition(tmp_path / "p"), graph)
        graphbraid.compile(pyg.ChebConv(CHANNELS, CLASSES, K=3), graph, ranks=ranks)

    said = refused(2, run)
    assert "the laplacian" in said
    assert "counts the edges that leave a node" in said
