"""Models of several node types compiled for mini-batches, beside PyG's own in double precision."""

import copy
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.beside_pyg import Data
from tests.fullgraph import typed_cases
from tests.fullgraph.test_typed_pyg import KINDS as KINDS_OF_LAYERS
from tests.fullgraph.typed_cases import HETERO, LEFT_ALONE, TRANSFORMED, WIDTHS, hetero, of, residual, untidy
from tests.kernels import needs_kernels
from tests.modules import module_of
from tests.suites import every, examples
from torch import nn
from torch.utils import _pytree as tree
from torch_geometric.nn import FastRGCNConv, GINEConv, GraphConv, HeteroConv, HGTConv, RGCNConv, SAGEConv

import graphbraid
from graphbraid import native
from graphbraid.errors import DataError
from graphbraid.fullgraph.batches import calls
from graphbraid.fullgraph.batches.calls import BatchCall
from graphbraid.fullgraph.batches.edges import BatchEdges
from graphbraid.graph.csc import coo_to_csc
from graphbraid.loader import BatchLoader, LinkNeighborLoader, LoaderSettings, NeighborLoader
from graphbraid.sampling.source import BatchSource

CLOSE = {"rtol": 1e-8, "atol": 1e-9}
SEEDS = torch.tensor([3, 0, 12, 7, 9])
pytestmark = pytest.mark.filterwarnings("ignore:There exist node types")


def in_double(batch):
    """A HeteroData with features in double precision."""
    for store in batch.node_stores:
        store.x = store.x.double()
    return batch


def sampled(graph, *, seeds=SEEDS, num_neighbors=(2, 2), node_type="a", **options):
    """The first batch of graphbraid's loader, as PyG's HeteroData."""
    options = {"batch_size": 3, "seed": 1} | options
    with NeighborLoader(
        graph.to_pyg(), list(num_neighbors), input_nodes=(node_type, seeds), **options
    ) as loader:
        return in_double(next(iter(loader)))


def shuffled(batch):
    """The batch with the edges of each relation in another order, as other loaders may have them."""
    draw = torch.Generator().manual_seed(0)
    for store in batch.edge_stores:
        store.edge_index = store.edge_index[:, torch.randperm(store.edge_index.shape[1], generator=draw)]
    return batch


def without_counts(batch):
    """The batch without the numbers of nodes and edges by hop."""
    for store in (*batch.node_stores, *batch.edge_stores):
        store.pop("num_sampled_nodes" if "num_sampled_nodes" in store else "num_sampled_edges")
    return batch


def own(graph, **options):
    """The first batch as graphbraid's MiniBatch, whose edge lists nobody has made."""
    settings = LoaderSettings(num_neighbors=[2, 2], batch_size=3, input_nodes=("a", SEEDS), seed=1, **options)
    with BatchLoader(BatchSource(graph=graph), settings) as loader:
        batch = next(loader.batches(0))
    batch.x_dict = {one: x.double() for one, x in batch.x_dict.items()}
    return batch


class WithHead(nn.Module):
    """HGT as PyG's own example has it: an input layer for each type, and outputs of one."""

    def __init__(self, graph):
        super().__init__()
        metadata = list(graph.node_types), list(graph.edge_types)
        self.inputs = nn.ModuleDict({one: nn.Linear(WIDTHS[one], 8) for one in metadata[0]})
        self.layers = nn.ModuleList([HGTConv(8, 8, metadata, heads) for heads in (4, 2)])
        self.head = nn.Linear(8, 3)

    def forward(self, x_dict, edge_index_dict):
        x_dict = {one: self.inputs[one](x).relu() for one, x in x_dict.items()}
        for layer in self.layers:
            x_dict = layer(x_dict, edge_index_dict)
        return self.head(x_dict["a"])


MODELS = {"HGT, inputs and a head": WithHead, **TRANSFORMED, **HETERO}
KINDS = {
    "HeteroData": sampled,
    "in another order": lambda graph: shuffled(sampled(graph)),
    "without counts": lambda graph: without_counts(sampled(graph)),
    "MiniBatch": own,
}


def ready(make, graph):
    """A model in double precision whose parameters have been made by a first run."""
    return typed_cases.ready(make, graph).double()


def as_written(model, batch, node_type="a"):
    """The outputs of the batch's seeds as PyG's user would take them."""
    out = model(batch.x_dict, batch.edge_index_dict)
    rows = out[node_type] if isinstance(out, dict) else out
    return rows[: batch.batch_size if hasattr(batch, "layout") else batch[node_type].batch_size]


def trained(model, run, steps=2, eps=1e-8):
    """Outputs, gradients and buffers of steps of Adam, with the parameters at the end."""
    optimizer, seen = torch.optim.Adam(model.parameters(), lr=0.01, eps=eps), []
    for _ in range(steps):
        optimizer.zero_grad()
        out = run()
        weights = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
        (out * weights).sum().backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
        seen.append((out.detach().clone(), grads, [b.clone() for b in model.buffers()]))
        optimizer.step()
    return seen, [p.detach().clone() for p in model.parameters()]


def assert_same(model, batch, twin_batch, steps=2, node_type="a"):
    """Steps of the engine beside those of the model as it is written."""
    twin = copy.deepcopy(model)
    engine = graphbraid.compile(model, strict=True)
    ours = trained(model, lambda: engine(batch), steps)
    theirs = trained(twin, lambda: as_written(twin, twin_batch, node_type), steps)
    torch.testing.assert_close(ours, theirs, **CLOSE)


# What a batch is made of is one thing, what is computed on it another: a fourth of the models has all kinds.
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *every(4, [(name, "HeteroData") for name in MODELS]),
        *every(8, [(name, kind) for kind in [*KINDS][1:] for name in MODELS], some=4),
    ],
)
def test_models_equal_themselves(name, kind):
    graph = untidy(only_sources=name in HETERO)
    model = ready(MODELS[name], graph)
    assert_same(model, KINDS[kind](graph), KINDS[kind](graph))


def test_ten_steps_of_adam():
    graph = untidy()
    assert_same(ready(HETERO["mixed, mean"], graph), own(graph), own(graph), steps=10)


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(data=st.data())
def test_any_model_on_any_batch(data):
    graph = untidy(data.draw(st.integers(0, 99)), only_sources=data.draw(st.booleans()))
    kinds = {one: data.draw(st.sampled_from(sorted(KINDS_OF_LAYERS))) for one in graph.edge_types}
    width, layers = data.draw(st.sampled_from([1, 5, 16])), data.draw(st.integers(1, 3))
    aggr = data.draw(st.sampled_from(["sum", "mean", "cat"]))
    widths = (*[width] * (layers - 1), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of types that nothing leads to
        model = ready(hetero(lambda one, wide: KINDS_OF_LAYERS[kinds[one]](one, wide), aggr, widths), graph)
    node_type = data.draw(st.sampled_from(["a", "b", "c"]))
    hops = data.draw(st.lists(st.sampled_from([1, 2, 3, -1]), min_size=1, max_size=3))
    options = {"batch_size": data.draw(st.integers(1, 3)), "node_type": node_type, "num_neighbors": hops}
    batch = sampled(graph, seeds=torch.tensor([3, 0, 2]), **options)
    batch = shuffled(batch) if data.draw(st.booleans()) else batch
    assert_same(model.train(data.draw(st.booleans())), batch, batch, node_type=node_type)


def sizes_of(monkeypatch):
    """The rows of each level of the calls that follow, by type."""
    seen, plain = [], BatchEdges.sizes

    def sizes(self, *args):
        seen.append(plain(self, *args))
        return seen[-1]

    monkeypatch.setattr(BatchEdges, "sizes", sizes)
    return seen


@pytest.mark.parametrize("layers", [1, 2, 3])  # fewer than hops, as many, more
@pytest.mark.parametrize("kind", KINDS)
def test_each_level_has_the_rows_of_its_hops(kind, layers, monkeypatch):
    graph, seen = untidy(), sizes_of(monkeypatch)
    batch = KINDS[kind](graph)
    hops = [
        torch.tensor(counts).cumsum(0).tolist() for counts in sampled(graph).num_sampled_nodes_dict.values()
    ]
    model = ready(hetero(of(SAGEConv), widths=(8, 5, 3)[-layers:]), graph)
    assert_same(model, batch, KINDS[kind](graph), steps=1)
    levels = [tuple(of_type[min(left, 2)] for of_type in hops) for left in reversed(range(layers + 1))]
    expected = [levels[0] if layers > 1 else tuple(of_type[2] for of_type in hops)] * (layers + 1)
    assert seen[0] == (expected if kind == "without counts" else levels)


@pytest.mark.parametrize("training", [True, False])
def test_what_couples_rows_reads_all_of_them(training, monkeypatch):
    graph, seen = untidy(), sizes_of(monkeypatch)
    model = ready(residual(lambda: SAGEConv(8, 8), nn.BatchNorm1d), graph).train(training)
    assert_same(model, own(graph), own(graph), steps=2)
    hops = [
        torch.tensor(counts).cumsum(0).tolist() for counts in sampled(graph).num_sampled_nodes_dict.values()
    ]
    every, seeds = (tuple(of_type[hop] for of_type in hops) for hop in (-1, 0))
    middle = every if training else tuple(of_type[1] for of_type in hops)
    assert seen[0] == [every, middle, seeds]


def test_counts_that_do_not_fit_the_edges_are_not_used(monkeypatch):
    graph, seen = untidy(), sizes_of(monkeypatch)
    batch = sampled(graph)
    last = batch["b"].num_nodes - 1
    store = batch["b", "to", "a"]
    store.edge_index = torch.cat([store.edge_index, torch.tensor([[last], [0]])], 1)  # over two hops
    model = ready(hetero(of(SAGEConv)), graph)
    assert_same(model, batch, batch, steps=1)
    assert len(set(seen[0])) == 1


def test_layout_blocks_runs_each_layer_on_its_own_blocks():
    graph = untidy()
    batch = own(graph, layout="blocks")
    model = ready(hetero(of(SAGEConv)), graph)
    out = graphbraid.compile(model, strict=True)(batch)
    x = batch.x_dict
    for number, (layer, blocks) in enumerate(zip(model.layers, batch.blocks, strict=True)):
        edges = {
            one: torch.stack([csc.indices.long(), csc.destinations().long()]) for one, csc in blocks.items()
        }
        x = {name: rows.relu() if number else rows for name, rows in x.items()}
        x = x | layer(x, edges)
    torch.testing.assert_close(out, x["a"][:3], **CLOSE)


def test_seeds_of_another_type_and_seeds_without_edges():
    graph = untidy()
    model = ready(hetero(of(SAGEConv)), graph)
    batch = sampled(graph, seeds=torch.tensor([8, 2]), node_type="b")
    assert batch["b"].batch_size == 2
    assert_same(model, batch, batch, node_type="b")
    alone = sampled(graph, seeds=torch.tensor([13, 12]))
    assert alone.num_edges == 0
    assert_same(model, alone, alone)


@pytest.mark.filterwarnings("ignore:edges of .* stay as they were drawn")
@pytest.mark.parametrize("kind", ["induced", "bidirectional"])
@pytest.mark.parametrize("make", [sampled, own])
def test_edges_that_are_not_by_hop_give_no_trimming(make, kind, monkeypatch):
    graph, seen = untidy(), sizes_of(monkeypatch)
    batch, twin_batch = (make(graph, subgraph_type=kind) for _ in range(2))
    assert_same(ready(hetero(of(SAGEConv)), graph), batch, twin_batch)
    assert len(set(seen[0])) == 1


# ---- calls that are not lowered, and calls with tensors


def writes_to_its_dict(self, x_dict, edge_index_dict):
    x_dict["a"] = x_dict["a"] * 2
    return self.model(x_dict, edge_index_dict)


@pytest.mark.parametrize("hook", [False, True])  # compiled, and as written
@pytest.mark.filterwarnings("ignore:.*runs as it is written")
def test_a_forward_that_writes_to_its_dict_leaves_the_batch_as_it_is(hook):
    graph = untidy()
    model = module_of(writes_to_its_dict, model=ready(hetero(of(SAGEConv)), graph))
    batch = own(graph)
    if hook:
        model.register_forward_hook(lambda *_: None)
    engine = graphbraid.compile(model)
    first, second = engine(batch), engine(batch)
    assert (engine.why is None) != hook
    torch.testing.assert_close(first, second)
    twin = own(graph)
    given = {**twin.x_dict, "a": 2 * twin.x_dict["a"]}
    expected = model.model(given, twin.edge_index_dict)["a"][:3]
    torch.testing.assert_close(first, expected, **CLOSE)


@pytest.mark.filterwarnings("ignore:.*runs as it is written")
def test_dicts_of_other_keys_are_the_models_own_matter():
    class Other(nn.Module):
        def forward(self, x, edge_index):
            return x["a"] + len(edge_index)

    engine, x = graphbraid.compile(Other()), torch.ones(2, 3)
    torch.testing.assert_close(engine({"a": x}, {0: torch.ones(2, 1).long()}), x + 1)
    assert "keys" in str(engine.why)


def two_matrices_of_one_type(self, x_dict, edge_index_dict):
    out = self.model(x_dict, edge_index_dict)
    return out, {"positive": out.relu()}


def test_a_call_with_dicts_returns_what_the_model_does():
    graph = untidy()
    one = ready(residual(lambda: SAGEConv(8, 8)), graph)
    batch = sampled(graph)
    args = batch.x_dict, batch.edge_index_dict
    engine = graphbraid.compile(one, strict=True)
    torch.testing.assert_close(engine(*args), one(*args), **CLOSE)
    both = module_of(two_matrices_of_one_type, model=one)
    torch.testing.assert_close(graphbraid.compile(both, strict=True)(*args), both(*args), **CLOSE)


def more_than_outputs(self, x_dict, edge_index_dict):
    """A model's results, with rows of one type from before its last layer, and the features of another."""
    h = self.first(x_dict["b"]).tanh()
    return {"out": self.model(x_dict, edge_index_dict), "h": (h, h * 2), "c": x_dict["c"]}


def hidden(model):
    return module_of(more_than_outputs, model=model, first=nn.Linear(WIDTHS["b"], 7))


@pytest.mark.parametrize("wrap", [lambda model: model, hidden])
@pytest.mark.parametrize("name", [*TRANSFORMED, *HETERO])
def test_a_call_with_dicts_trains_rows_of_all_types(name, wrap):
    graph = untidy(only_sources=name in HETERO)
    model, batch = wrap(ready(MODELS[name], graph)).double(), sampled(graph)
    twin, args = copy.deepcopy(model), (batch.x_dict, batch.edge_index_dict)
    engine = graphbraid.compile(model, strict=True)

    def run(one):
        outs = tree.tree_leaves(one(*args))
        outs[0].mul_(2)  # which no other result may see
        return torch.cat([rows.flatten() for rows in outs])

    # A larger eps: else Adam makes whole steps of gradients that are nothing but rounding.
    ours, theirs = (trained(one, lambda one=one: run(one), 5, 1e-4) for one in (engine, twin))
    torch.testing.assert_close(ours, theirs, **CLOSE)
    assert "as written" not in str(engine.breaks)


def test_rows_of_all_types_have_the_dtype_that_autocast_gives():
    graph = untidy(only_sources=False)
    model, batch = ready(TRANSFORMED["to_hetero SAGEConv"], graph).float(), sampled(graph)
    args = {one: x.float() for one, x in batch.x_dict.items()}, batch.edge_index_dict
    engine = graphbraid.compile(model, strict=True)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(engine(*args), model(*args), rtol=0.05, atol=0.05)


def test_relations_into_a_type_share_one_product_of_its_own_rows_and_one_bias():
    graph = untidy(only_sources=False)
    model, batch = ready(TRANSFORMED["to_hetero SAGEConv"], graph), sampled(graph)
    engine = graphbraid.compile(model, strict=True)
    torch.testing.assert_close(engine(batch), as_written(model, batch), **CLOSE)
    # Types a and b in the first layer, a in the second; two relations lead into each.
    text = engine.explain()
    assert text.count("mean over") == 6
    assert text.count("and own rows") + text.count("= linear(") == text.count("bias") == 3


def results_of_layer(self, x_dict, edge_index_dict):
    return self.layer(x_dict, edge_index_dict)


@pytest.mark.filterwarnings("ignore:.*runs as it is written")
def test_a_model_as_written_returns_the_rows_of_the_seeds():
    graph = untidy()
    model = ready(LEFT_ALONE["a subclass"][0], graph)
    engine, batch = graphbraid.compile(model), sampled(graph)
    torch.testing.assert_close(engine(batch), as_written(model, batch), **CLOSE)
    assert "cannot be traced" in str(engine.why)
    conv = HeteroConv({("a", "back", "b"): SAGEConv((6, 4), 3)})
    only_b = ready(lambda _: module_of(results_of_layer, layer=conv), graph)
    with pytest.raises(DataError, match="outputs of the node type 'a'; got those of b"):
        graphbraid.compile(only_b)(batch)


@pytest.mark.filterwarnings("ignore:.*runs as it is written")
def test_hgt_that_is_not_as_pyg_has_it_runs_as_written():
    graph = untidy(only_sources=False)
    model, batch = ready(WithHead, graph), sampled(graph)
    engine = graphbraid.compile(model)
    engine(batch)
    assert engine.why is None
    hook = model.layers[1].register_forward_hook(lambda *_: None)
    torch.testing.assert_close(engine(batch), as_written(model, batch), **CLOSE)
    assert engine.why is not None
    hook.remove()
    with torch.no_grad():
        model.layers[0].p_rel["a__to__a"] *= 3
        model.layers[1].skip["a"] = nn.Parameter(torch.tensor([-0.4]).double())
    torch.testing.assert_close(engine(batch), as_written(model, batch), **CLOSE)
    assert engine.why is None
    turned = module_of(results_of_layer, layer=model.layers[0])
    order = dict(reversed(batch.edge_index_dict.items()))
    engine, x = (
        graphbraid.compile(turned),
        {one: torch.randn(len(x), 8).double() for one, x in batch.x_dict.items()},
    )
    torch.testing.assert_close(engine(x, order), turned(x, order), **CLOSE)
    assert engine.why is not None


def test_batches_of_links_give_all_that_the_model_returns():
    data = untidy().to_pyg()
    with LinkNeighborLoader(data, [2, 2], edge_label_index=(("b", "to", "a"), None), batch_size=4) as loader:
        batch = in_double(next(iter(loader)))
    model = ready(hetero(of(SAGEConv)), untidy())
    out, expected = graphbraid.compile(model, strict=True)(batch), model(batch.x_dict, batch.edge_index_dict)
    torch.testing.assert_close(out, expected, **CLOSE)


def test_dtypes_of_features_that_differ_are_no_programs():
    graph = untidy()
    model, batch = ready(hetero(of(SAGEConv)), graph), sampled(graph)
    batch["b"].x = batch["b"].x.float()
    engine = graphbraid.compile(model)
    with pytest.raises(RuntimeError), warnings.catch_warnings():  # PyTorch's own
        warnings.simplefilter("ignore")
        engine(batch)
    assert "one dtype and device" in str(engine.why)


# ---- relations of one node type


class Relational(nn.Module):
    """Two layers of R-GCN."""

    def __init__(self, kind, **options):
        super().__init__()
        self.first = kind(6, 8, 4, **options)
        self.second = kind(8, 3, 4, **options)

    def forward(self, x, edge_index, edge_type):
        return self.second(self.first(x, edge_index, edge_type).relu(), edge_index, edge_type)


def related(num_relations=4, seed=0):
    """A batch of one node type whose edges have relations; the last relation has no edges."""
    draw = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(30, (2, 120), generator=draw)
    data = Data(
        x=torch.randn(30, 6, generator=draw),
        edge_index=edge_index,
        edge_type=torch.randint(num_relations - 1, (120,), generator=draw),
    )
    with NeighborLoader(data, [3, 2], input_nodes=SEEDS, batch_size=3, seed=2) as loader:
        batch = next(iter(loader)).to_data()
    batch.x = batch.x.double()
    return batch


@pytest.mark.parametrize("kind", [RGCNConv, FastRGCNConv])
@pytest.mark.parametrize("options", [{}, {"num_bases": 2}, {"aggr": "add", "root_weight": False}])
def test_relations_by_edge_type(kind, options):
    torch.manual_seed(0)
    model, batch = Relational(kind, **options).double(), related()
    twin, engine = copy.deepcopy(model), graphbraid.compile(model, strict=True)

    def plain():
        return twin(batch.x, batch.edge_index, batch.edge_type)[:3]

    torch.testing.assert_close(trained(model, lambda: engine(batch), 3), trained(twin, plain, 3), **CLOSE)


@pytest.mark.filterwarnings("ignore:.*runs as it is written")
def test_a_relation_that_the_layers_do_not_know_runs_as_written():
    model, batch = Relational(RGCNConv).double(), related()
    engine = graphbraid.compile(model)
    engine(batch)
    assert engine.why is None
    batch.edge_type[0] = 4
    with pytest.raises(RuntimeError, match="out of bounds"):  # PyTorch's own
        engine(batch)
    assert "goes from 0 to 4" in str(engine.why)


# ---- small batches, whose edges compiled code divides and sorts in one call


def few_batches():
    """Batches by kind, each with a model in single precision."""
    graph = untidy()
    typed = ready(hetero(of(SAGEConv)), graph).float()
    found = {kind: (KINDS[kind](graph), typed) for kind in [*KINDS][:3]}
    for batch, _ in found.values():
        for store in batch.node_stores:
            store.x = store.x.float()
    torch.manual_seed(0)
    related_batch = related()
    related_batch.x = related_batch.x.float()
    return found | {"relations": (related_batch, Relational(RGCNConv))}


def both_orderings(model, batch, monkeypatch):
    """Results where few edges are ordered at once, and where lists are sorted; and which way each went."""
    plain, ran, results = BatchCall._few_edges, [], []

    def few_edges(self, *args):
        found = plain(self, *args)
        ran.append(found is not None)
        return found

    monkeypatch.setattr(BatchCall, "_few_edges", few_edges)
    for most in (calls._FEW_EDGES, 0):
        monkeypatch.setattr(calls, "_FEW_EDGES", most)
        out = graphbraid.compile(model, strict=True)(batch)
        grads = torch.autograd.grad(out.square().sum(), [*model.parameters()], allow_unused=True)
        results.append([out.detach(), *(grad for grad in grads if grad is not None)])
    return results, ran


@needs_kernels
@pytest.mark.parametrize("kind", [*[*KINDS][:3], "relations"])
def test_few_edges_have_the_bits_of_lists_that_are_sorted_one_by_one(kind, monkeypatch):
    batch, model = few_batches()[kind]
    results, ran = both_orderings(model, batch, monkeypatch)
    assert ran == [True, False]
    assert len(results[0]) == len(results[1]) > 3
    assert all(map(torch.equal, *results))


class Weighed(nn.Module):
    """A layer with weights of edges, or with their features."""

    def __init__(self, *, of_features):
        super().__init__()
        self.first = GINEConv(nn.Linear(6, 6), edge_dim=3) if of_features else GraphConv(6, 6)
        self.last = SAGEConv(6, 3)

    def forward(self, x, edge_index, edge_attr=None, edge_weight=None):
        values = edge_weight if edge_attr is None else edge_attr
        return self.last(self.first(x, edge_index, values).relu(), edge_index)


@needs_kernels
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("of_features", [True, False])
def test_few_edges_with_weights_or_features_have_the_bits_of_a_sorted_list(of_features, ordered, monkeypatch):
    torch.manual_seed(3)
    edges = torch.randint(30, (2, 90))
    edges = edges[:, edges[1].argsort()] if ordered else edges
    values = torch.rand(90, 3) if of_features else torch.rand(90)
    name = "edge_attr" if of_features else "edge_weight"
    batch = Data(x=torch.randn(30, 6), edge_index=edges, **{name: values})
    model = Weighed(of_features=of_features)
    results, ran = both_orderings(model, batch, monkeypatch)
    assert ran == [ordered, False]
    assert all(map(torch.equal, *results))
    torch.testing.assert_close(results[0][0], model(batch.x, edges, **{name: values}))


@needs_kernels
@given(seed=st.integers(0, 2**31), kind=st.sampled_from(["ordered", "any", "relations"]))
@settings(max_examples=examples(60))
def test_few_edges_are_those_of_their_lists(seed, kind):
    draw = torch.Generator().manual_seed(seed)
    counts = [[int(one) for one in torch.randint(1, 9, (2,), generator=draw).cumsum(0)] for _ in range(2)]
    ends = [(0, 0)] * 3 if kind == "relations" else [(0, 1), (1, 0), (1, 1)]
    sizes = [(counts[source][-1], counts[last][-1]) for source, last in ends]
    lists = [torch.stack([torch.randint(most, (20,), generator=draw) for most in two]) for two in sizes]
    lists = [one[:, one[1].argsort()] for one in lists] if kind == "ordered" else lists
    numbers = torch.arange(3).repeat_interleave(20)
    order = torch.randperm(60, generator=draw)
    given_lists = [torch.cat(lists, 1)[:, order]] if kind == "relations" else lists
    numbers = numbers[order] if kind == "relations" else None
    indptr, indices = (
        torch.empty(sum(size[1] + 1 for size in sizes), dtype=torch.int64),
        torch.empty(60).int(),
    )
    few_edges = native.kernels().few_edges
    found, are_closed = few_edges(given_lists, ends, counts, numbers, indptr, indices)
    assert found == [20, 20, 20]
    parts = zip(lists, sizes, indptr.split([size[1] + 1 for size in sizes]), indices.split(20), strict=True)
    for one, size, begins, sources in parts:
        csc, _ = coo_to_csc(*one, *size, keeps_rows=kind == "ordered")
        assert torch.equal(csc.indptr, begins)
        assert torch.equal(csc.indices, sources)
    assert are_closed == all(
        bool((one[0][one[1] < counts[last][0]] < counts[source][1]).all())
        for one, (source, last) in zip(lists, ends, strict=True)
    )
    for wrong in (-1, 100):
        spoiled = [one.clone() for one in given_lists]
        spoiled[0][seed % 2, 3] = wrong
        assert few_edges(spoiled, ends, counts, numbers, indptr, indices) is None
    with pytest.raises(ValueError, match="indices must have"):
        few_edges(given_lists, ends, counts, numbers, indptr, indices[1:])
