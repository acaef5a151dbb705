"""Models of several node types whose layers read weights or features of edges, or messages of their own."""

import copy
import inspect

import pytest
import torch
from tests.extras import to_hetero
from tests.fullgraph.test_typed_batches import CLOSE, SEEDS, sizes_of, trained
from tests.fullgraph.typed_cases import LOOPED, WIDTHS, untidy
from tests.suites import every
from torch import nn
from torch_geometric.nn import (
    EdgeConv,
    FiLMConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GENConv,
    GINConv,
    GINEConv,
    GraphConv,
    HeteroConv,
    LEConv,
    NNConv,
    ResGatedGraphConv,
    SAGEConv,
    TransformerConv,
)

import graphbraid
from graphbraid.fullgraph.batches.layer_wise import LayerWise, at_narrower_side, why_not_by_level
from graphbraid.fullgraph.reading.calling import Given
from graphbraid.fullgraph.reading.read import read_model
from graphbraid.graph import Graph
from graphbraid.loader import BatchLoader, LoaderSettings, NeighborLoader
from graphbraid.sampling.source import BatchSource

pytestmark = pytest.mark.filterwarnings("ignore:There exist node types")
NUM_FEATURES = 3
NAMES = ("x", "edge_weight", "edge_attr")


def data_of(dtype=torch.float64, *, names=("edge_weight", "edge_attr")):
    """An untidy HeteroData whose relations all have weights and features of edges."""
    data, draw = untidy(only_sources=False).to_pyg(), torch.Generator().manual_seed(5)
    for store in data.node_stores:
        store.x = store.x.to(dtype)
    for store in data.edge_stores:
        count = store.edge_index.shape[1]
        values = {"edge_weight": torch.rand(count, generator=draw)}
        values["edge_attr"] = torch.randn(count, NUM_FEATURES, generator=draw)
        store.update({name: values[name].to(dtype) for name in names})
    return data


def in_double(data):
    """The data with features and weights in double precision."""
    made = data.clone()
    for store in made.stores:
        store.update({key: one.double() for key, one in store.items() if key in NAMES})
    return made


def sampled(data, **options):
    """The first batch of graphbraid's loader, as PyG's HeteroData."""
    with NeighborLoader(data, [2, 2], input_nodes=("a", SEEDS), batch_size=3, seed=1, **options) as loader:
        return next(iter(loader))


def shuffled(data):
    """The same with the edges of each relation, and their values, in another order."""
    batch, draw = sampled(data), torch.Generator().manual_seed(0)
    for store in batch.edge_stores:
        order = torch.randperm(store.edge_index.shape[1], generator=draw)
        values = {name: store[name][order] for name in ("edge_weight", "edge_attr") if name in store}
        store.update({"edge_index": store.edge_index[:, order], **values})
    return batch


def without_counts(data):
    batch = sampled(data)
    for store in (*batch.node_stores, *batch.edge_stores):
        store.pop("num_sampled_nodes" if "num_sampled_nodes" in store else "num_sampled_edges")
    return batch


KINDS = {"HeteroData": sampled, "in another order": shuffled, "without counts": without_counts}


class Layers(nn.Module):
    """Rows of equal width, and HeteroConvs over them."""

    def __init__(self, make, types, widths=(8, 3)):
        super().__init__()
        self.inputs = nn.ModuleDict({one: nn.Linear(WIDTHS[one], 8) for one in types[0]})
        sizes = [*zip((8, *widths), widths, strict=False)]
        self.layers = nn.ModuleList(HeteroConv({one: make(one, *of) for one in types[1]}) for of in sizes)

    def run(self, x_dict, edge_index_dict, **values):
        x_dict = {one: self.inputs[one](x) for one, x in x_dict.items()}
        for layer in self.layers:
            x_dict = layer({one: x.relu() for one, x in x_dict.items()}, edge_index_dict, **values)
        return x_dict["a"]


class Plain(Layers):
    def forward(self, x_dict, edge_index_dict):
        return self.run(x_dict, edge_index_dict)


class Weighted(Layers):
    def forward(self, x_dict, edge_index_dict, edge_weight_dict):
        return self.run(x_dict, edge_index_dict, edge_weight_dict=edge_weight_dict)


class Featured(Layers):
    def forward(self, x_dict, edge_index_dict, edge_attr_dict):
        return self.run(x_dict, edge_index_dict, edge_attr_dict=edge_attr_dict)


def mlp(width_in, width_out):
    return nn.Sequential(nn.Linear(width_in, 7), nn.ReLU(), nn.Linear(7, width_out))


def within(one):
    return one[0] == one[2]


class OwnSage(SAGEConv):
    """A subclass with a message of its own."""

    def message(self, x_j):
        return x_j * 2


class Several(SAGEConv):
    """A class of its own: PyG writes one ``propagate`` for a class, by the aggregation of its first layer."""


def gine(_, i, o, **options):
    return GINEConv(mlp(i, o), edge_dim=NUM_FEATURES, **options)


FEATURES = {"edge_dim": NUM_FEATURES}
WEIGHTED = {
    "GraphConv": lambda _, i, o: GraphConv((i, i), o),
    "GraphConv mean": lambda _, i, o: GraphConv((i, i), o, aggr="mean"),
    "GCNConv": lambda one, i, o: GCNConv(i, o) if within(one) else GraphConv((i, i), o),
    "LEConv": lambda _, i, o: LEConv((i, i), o),
}
FEATURED = {
    "GATConv": lambda one, i, o: GATConv((i, i), o, add_self_loops=within(one), **FEATURES),
    "GATv2Conv": lambda one, i, o: GATv2Conv(
        (i, i), o, heads=2, concat=False, add_self_loops=within(one), **FEATURES
    ),
    "TransformerConv": lambda _, i, o: TransformerConv((i, i), o, heads=2, concat=False, **FEATURES),
    "TransformerConv beta": lambda _, i, o: TransformerConv((i, i), o, beta=True, **FEATURES),
    "GINEConv": gine,
    "GINEConv eps": lambda one, i, o: gine(one, i, o, eps=0.3),
    "GINEConv learned eps": lambda one, i, o: gine(one, i, o, eps=0.3, train_eps=True),
    "NNConv": lambda _, i, o: NNConv((i, i), o, mlp(NUM_FEATURES, i * o)),
    "NNConv mean": lambda _, i, o: NNConv((i, i), o, nn.Linear(NUM_FEATURES, i * o), aggr="mean"),
    "GENConv": lambda _, i, o: GENConv((i, i), o, norm="layer", **FEATURES),
}
PLAIN = {
    "TransformerConv": lambda _, i, o: TransformerConv((i, i), o, heads=2, concat=False),
    "ResGatedGraphConv": lambda _, i, o: ResGatedGraphConv((i, i), o),
    "GINConv": lambda _, i, o: GINConv(mlp(i, o)),
    "GINConv eps": lambda _, i, o: GINConv(mlp(i, o), eps=0.3),
    "GINConv learned eps": lambda _, i, o: GINConv(mlp(i, o), eps=0.3, train_eps=True),
    "EdgeConv": lambda _, i, o: EdgeConv(mlp(2 * i, o)),
    "FiLMConv": lambda _, i, o: FiLMConv((i, i), o),
    "SAGEConv of several": lambda _, i, o: Several((i, i), o, aggr=["mean", "std"]),
    "a subclass": lambda _, i, o: OwnSage((i, i), o),
}
MODELS = {f"{name}, weights": (Weighted, make) for name, make in WEIGHTED.items()}
MODELS |= {f"{name}, features": (Featured, make) for name, make in FEATURED.items()}
MODELS |= {name: (Plain, make) for name, make in PLAIN.items()}


def arguments(model, batch):
    return [batch.collect(name.removesuffix("_dict")) for name in inspect.signature(model.forward).parameters]


def ready(kind, make, dtype=torch.float64):
    torch.manual_seed(0)
    graph = untidy(only_sources=False)
    return kind(make, (graph.node_types, graph.edge_types)).to(dtype)


def assert_same(model, batch, *, seeds=True):
    """Steps of the engine beside those of the model as it is written."""
    twin, engine = copy.deepcopy(model), graphbraid.compile(model, strict=True)

    def plain():
        out = twin(*arguments(twin, batch))
        return out[: batch["a"].batch_size] if seeds else out

    run = (lambda: engine(batch)) if seeds else (lambda: engine(*arguments(model, batch)))
    torch.testing.assert_close(trained(model, run), trained(twin, plain), **CLOSE)


SINGLE = {"rtol": 1e-3, "atol": 1e-3}
"""Tolerance of one step: Adam makes whole steps of gradients that are nothing but rounding."""


@pytest.mark.parametrize(
    ("name", "kind"),
    [*[(name, "HeteroData") for name in MODELS], *every(6, [(n, k) for n in MODELS for k in [*KINDS][1:]])],
)
def test_models_equal_themselves(name, kind):
    assert_same(ready(*MODELS[name]), KINDS[kind](data_of()))


@pytest.mark.parametrize(
    "name", ["GraphConv, weights", "GATConv, features", "TransformerConv", "GINConv eps"]
)
def test_calls_with_dicts_and_models_in_single_precision(name):
    assert_same(ready(*MODELS[name]), sampled(data_of()), seeds=False)
    model, batch = ready(*MODELS[name], torch.float32), sampled(data_of(torch.float32))
    twin, engine = copy.deepcopy(model), graphbraid.compile(model, strict=True)
    ours = trained(model, lambda: engine(batch), 1)[0]
    theirs = trained(twin, lambda: twin(*arguments(twin, batch))[:3], 1)[0]
    torch.testing.assert_close(ours, theirs, **SINGLE)


@pytest.mark.parametrize("name", ["GraphConv, weights", "GINEConv, features", "NNConv, features"])
def test_batches_that_nobody_turned_into_pygs(name):
    graph, model = Graph.from_pyg(data_of(torch.float32)), ready(*MODELS[name], torch.float32)
    settings = LoaderSettings(num_neighbors=[2, 2], batch_size=3, input_nodes=("a", SEEDS), seed=1)
    with BatchLoader(BatchSource(graph=graph), settings) as loader:
        batch = next(loader.batches(0))
    out = graphbraid.compile(model, strict=True)(batch)
    args = [batch[one] for one in inspect.signature(model.forward).parameters]
    torch.testing.assert_close(out, model(*args)[:3])


class Bare(Layers):
    """Layers with nothing between: messages read what HeteroConv has joined."""

    def forward(self, x_dict, edge_index_dict, edge_attr_dict):
        x_dict = {one: self.inputs[one](x) for one, x in x_dict.items()}
        for layer in self.layers:
            x_dict = layer(x_dict, edge_index_dict, edge_attr_dict=edge_attr_dict)
        return x_dict["a"]


@pytest.mark.parametrize("aggr", ["max", "min"])
def test_messages_read_the_extrema_of_relations(aggr):
    model = ready(Bare, FEATURED["NNConv"])
    for layer in model.layers:
        layer.aggr = aggr
    assert_same(model, sampled(data_of()))


@pytest.mark.parametrize("name", ["GraphConv, weights", "TransformerConv, features", "GINConv"])
def test_levels_have_the_rows_of_their_hops(name, monkeypatch):
    seen, batch = sizes_of(monkeypatch), sampled(data_of())
    assert_same(ready(*MODELS[name]), batch)
    hops = [torch.tensor(store.num_sampled_nodes).cumsum(0).tolist() for store in batch.node_stores]
    assert seen[0] == [tuple(of_type[hop] for of_type in hops) for hop in (2, 1, 0)]


class Mapped(nn.Module):
    """A model of one type for ``to_hetero``, with a map of edge features before two layers."""

    def __init__(self, make):
        super().__init__()
        self.of_edges, self.first, self.second = nn.Linear(NUM_FEATURES, 8), make(8, 8), make(8, 3)
        self.inputs = nn.Linear(8, 8)

    def forward(self, x, edge_index, edge_attr):
        x = self.first(self.inputs(x).relu(), edge_index, edge_attr).relu()
        return self.second(x, edge_index, edge_attr)


def test_what_to_hetero_makes_of_a_model_with_features_of_edges():
    data = data_of()
    for store in data.node_stores:
        store.x = torch.randn(store.num_nodes, 8, generator=torch.Generator().manual_seed(1)).double()
    torch.manual_seed(0)
    for make in (
        lambda i, o: TransformerConv((i, i), o, **FEATURES),
        lambda i, o: GINEConv(mlp(i, o), edge_dim=NUM_FEATURES),
    ):
        model = to_hetero(Mapped(make), data.metadata()).double()
        batch = sampled(data)
        engine, twin = graphbraid.compile(model, strict=True), copy.deepcopy(model)
        args = batch.x_dict, batch.edge_index_dict, batch.edge_attr_dict
        plain = lambda twin=twin, args=args: twin(*args)["a"][:3]  # noqa: E731
        found = trained(model, lambda engine=engine, batch=batch: engine(batch))
        torch.testing.assert_close(found, trained(twin, plain), **CLOSE)


# ---- values that run as written


class Crossed(Layers):
    """Gives a relation the values of another with as many edges."""

    def forward(self, x_dict, edge_index_dict, edge_weight_dict):
        first, second, *_ = edge_weight_dict
        turned = {**edge_weight_dict, first: edge_weight_dict[second], second: edge_weight_dict[first]}
        return self.run(x_dict, edge_index_dict, edge_weight_dict=turned)


class Swapped(nn.Module):
    """Passes messages between rows of other types than the edges have."""

    def __init__(self, kind):
        super().__init__()
        self.conv, self.is_pair = kind, True

    def forward(self, x_dict, edge_index_dict):
        rows = x_dict["b"] if not self.is_pair else (x_dict["b"], x_dict["c"])
        return self.conv(rows, edge_index_dict["b", "to", "a"])


def number(batch, relation, name, change):
    batch[relation][name] = change(batch[relation][name])
    return batch


REFUSED = {
    "too few": ("GraphConv, weights", "edge_weight", lambda w: w[:-1], "rows, and there are"),
    "a gradient": ("GraphConv, weights", "edge_weight", lambda w: w.requires_grad_(), "requires a gradient"),
    "another dtype": ("GATConv, features", "edge_attr", lambda w: w.float(), "another dtype"),
    "integers": ("GATConv, features", "edge_attr", lambda w: w.long(), "it takes 'edge_attr'"),
    "columns": ("GraphConv, weights", "edge_weight", lambda w: w[:, None], "it takes 'edge_weight'"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:.*runs as it is written")
def test_values_that_do_not_fit_run_as_written(name):
    of, key, change, reason = REFUSED[name]
    model, batch = ready(*MODELS[of]), number(sampled(data_of()), LOOPED, key, change)
    engine = graphbraid.compile(model)
    try:
        expected = model(*arguments(model, batch))[:3]
    except RuntimeError:
        with pytest.raises(RuntimeError):  # PyTorch's own
            engine(batch)
    else:
        torch.testing.assert_close(engine(batch), expected, **CLOSE)
    assert reason in str(engine.why)


@pytest.mark.filterwarnings("ignore:.*runs as it is written")
def test_values_of_other_relations_and_rows_of_other_types_run_as_written():
    batch = sampled(data_of())
    model = ready(Crossed, WEIGHTED["GraphConv"])
    first, second = [one.edge_index.shape[1] for one in batch.edge_stores][:2]
    engine = graphbraid.compile(model)
    with pytest.raises(RuntimeError):  # PyTorch's own: the numbers of edges differ
        engine(batch)
    assert first != second
    assert "other weights" in str(engine.why)
    # Both types have four columns; PyG's result has as many rows as the second of the pair.
    swapped = Swapped(TransformerConv((4, 4), 3)).double()
    x = {"b": torch.randn(20, 4).double(), "c": torch.randn(20, 4).double()}
    x["a"] = torch.randn(20, 6).double()
    edges = {("b", "to", "a"): torch.randint(20, (2, 40))}
    for is_pair in (True, False):
        swapped.is_pair = is_pair
        engine = graphbraid.compile(swapped)
        torch.testing.assert_close(engine(x, edges), swapped(x, edges), **CLOSE)
        assert "other rows than those of the relation's two types" in str(engine.why)


# ---- on the whole graph


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name][0] is not Featured])
def test_whole_graphs_have_weights_and_messages(name):
    data = data_of(torch.float32, names=["edge_weight"])
    model = ready(*MODELS[name], torch.float32)
    twin = copy.deepcopy(model)
    engine = graphbraid.compile(model, data, node_type="a", strict=True)
    rows = data["a"].train_mask
    plain = trained(twin, lambda: twin(*arguments(twin, data))[rows], 1)[0]
    torch.testing.assert_close(trained(model, engine, 1)[0], plain, **SINGLE)


@pytest.mark.filterwarnings("ignore:.*runs as it is written")
def test_whole_graphs_leave_features_of_edges_alone():
    data, model = data_of(torch.float32), ready(*MODELS["GATConv, features"], torch.float32)
    engine = graphbraid.compile(model, data, node_type="a")
    expected = model(*arguments(model, data))[data["a"].train_mask]
    torch.testing.assert_close(engine(), expected)
    assert "edge_attr" in str(engine.why)


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name][0] is not Featured])
def test_level_by_level_equals_the_whole_graph(name):
    data = data_of(torch.float32, names=["edge_weight"])
    graph, model = Graph.from_pyg(data), ready(*MODELS[name]).eval()
    program = read_model(model, 0, Given.of(graph), node_type="a", dtypes=(torch.float64,))
    assert not why_not_by_level(program, torch.device("cpu"))

    def features(number, ids):
        return data[graph.node_types[number]].x[ids].double()

    how = {"device": torch.device("cpu"), "budget": 1 << 14, "dtype": torch.float64}
    walk, nodes = LayerWise(at_narrower_side(program), graph, features, **how), torch.tensor([3, 0, 13, 7])
    with torch.no_grad():
        expected = model(*arguments(model, in_double(data)))[nodes]
        out = torch.cat([rows for _, rows in walk.run(nodes)])
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)  # the graph's weights are float32
