"""Layers that read edge features, and ways to hand these over."""

import copy

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from tests.fullgraph.matrix.case import Case, layer, left, partly
from tests.fullgraph.matrix.graphs import CHANNELS, CLASSES
from tests.fullgraph.matrix.models import HIDDEN, Calls, Stack, frozen
from torch import nn

FEATURES = 3


def with_features(columns=FEATURES, dtype=torch.float32):
    """Gives the data edge features."""

    def prepare(data):
        draw = torch.Generator().manual_seed(6)
        shape = (data.num_edges,) if columns == 0 else (data.num_edges, columns)
        data = copy.copy(data)
        data.edge_attr = torch.randn(shape, generator=draw).to(dtype)
        return data

    return prepare


FEATURED = with_features()


class Featured(Stack):
    """Two layers that get the edge features."""

    def forward(self, x, edge_index, edge_attr):
        return self.second(self.between(self.first(x, edge_index, edge_attr)), edge_index, edge_attr)


class FeaturedOnce(Stack):
    """Two layers, of which one gets them, by keyword, where there are any."""

    def forward(self, x, edge_index, edge_attr=None):
        h = self.between(self.first(x=x, edge_attr=edge_attr, edge_index=edge_index))
        return self.second(h, edge_index)


class OfData(Stack):
    """Takes all of the data."""

    def forward(self, data):
        h = self.between(self.first(data.x, data.edge_index, data.edge_attr))
        return self.second(h, data.edge_index, edge_attr=data.edge_attr)


def featured(run):
    """A model class whose forward is ``run(model, x, edge_index, ...)``, of any names of edges' values."""

    class Body(Calls):
        def __init__(self, make, **parts):
            super().__init__(make, None, **parts)
            del self.run

    return type("Featured", (Body,), {"forward": run})


def gine(network=lambda i, o: nn.Sequential(nn.Linear(i, o), nn.ReLU(), nn.Linear(o, o)), **options):
    """A maker of GINE layers."""
    return lambda i, o: pyg.GINEConv(network(i, o), **options)


GINE = gine(edge_dim=FEATURES)


def residual(self, x, edge_index, edge_attr):
    h = self.first(x, edge_index, edge_attr).relu()
    return self.head(self.second(h, edge_index, edge_attr) + h + self.skip(x))


def shared(self, x, edge_index, edge_attr):
    h = self.first(x, edge_index, edge_attr)
    return self.head(self.second(h.relu(), edge_index, edge_attr) + self.second(h, edge_index, edge_attr))


def edges_in_evaluation_only(self, x, edge_index, edge_attr):
    h = self.skip(x) if self.training else self.first(x, edge_index, edge_attr)
    return self.head(h)


def other_features(self, x, edge_index, edge_attr):
    return self.head(self.first(x, edge_index, edge_attr.relu()))


def encoded(self, x, edge_index, edge_attr):
    return self.head(self.first(x, edge_index, self.encoder(edge_attr)))


def some_features(self, x, edge_index, edge_attr):
    return self.head(self.first(F.relu(x), edge_index, edge_attr[:, :FEATURES]))


def case(part, name, make, prepare=FEATURED):
    return Case(part, name, make, prepare=prepare)


def left_alone(part, name, make, reason="", prepare=FEATURED):
    return left(part, name, make, reason, prepare=prepare)


def partly_lowered(part, name, make, reason="", prepare=FEATURED):
    return partly(part, name, make, reason, prepare=prepare)


_GINE_OPTIONS = {
    "edge_dim": GINE,
    "edge_dim, eps=0.3": gine(edge_dim=FEATURES, eps=0.3),
    "edge_dim, eps=-1": gine(edge_dim=FEATURES, eps=-1.0),
    "edge_dim, train_eps=True": gine(edge_dim=FEATURES, eps=0.2, train_eps=True),
    "edge_dim, one linear map": gine(nn.Linear, edge_dim=FEATURES),
    "edge_dim, batch norm inside": gine(
        lambda i, o: nn.Sequential(nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU(), nn.Linear(o, o)),
        edge_dim=FEATURES,
        train_eps=True,
    ),
    "aggr='sum'": gine(edge_dim=FEATURES, aggr="sum"),
    "edge_dim, PyG's MLP": gine(
        lambda i, o: nn.Sequential(nn.Linear(i, o), pyg.MLP([o, o, o])), edge_dim=FEATURES
    ),
}
_GINE_LEFT = {
    "aggr='mean'": gine(edge_dim=FEATURES, aggr="mean"),
    "aggr='max'": gine(edge_dim=FEATURES, aggr="max"),
    "flow='target_to_source'": gine(edge_dim=FEATURES, flow="target_to_source"),
    "a subclass": lambda i, o: type("GINEConv", (pyg.GINEConv,), {})(nn.Linear(i, o), edge_dim=FEATURES),
}


_ATTENTION_OPTIONS = {
    "edge_dim": {},
    "heads=2, concat=False": {"heads": 2, "concat": False},
    "heads=3, concat=False, residual=True": {"heads": 3, "concat": False, "residual": True},
    "negative_slope=0": {"negative_slope": 0.0},
    "add_self_loops=False": {"add_self_loops": False},
    "bias=False": {"bias": False},
    **{
        f"fill_value={how!r}": {"fill_value": how}
        for how in ("add", "sum", "min", "max", "mul", 0.0, -1.5, 2)
    },
    "fill_value=a number's tensor": {"fill_value": torch.tensor(0.5)},
    "fill_value=a row": {"fill_value": torch.tensor([0.5, -1.0, 2.0])},
    "fill_value=a matrix of one row": {"fill_value": torch.tensor([[0.5, -1.0, 2.0]])},
}
_OPTIONS_OF = {
    "GATConv": {},
    "GATv2Conv": {
        "share_weights=True": {"share_weights": True},
        "share_weights=True, heads=2, concat=False": {"share_weights": True, "heads": 2, "concat": False},
        "residual=True": {"residual": True},
        "fill_value=0.5, heads=3, residual=True": {
            "fill_value": 0.5,
            "heads": 3,
            "concat": False,
            "residual": True,
        },
    },
}
_ATTENTION_LEFT = {
    "fill_value=True": {"fill_value": True},
    "flow='target_to_source'": {"flow": "target_to_source"},
}
_LEARNED_BY = {"GATConv": "att_edge", "GATv2Conv": "att"}


def _attention_cases(kind):
    """The cases of an attention with edge features."""
    name = kind.__name__
    part = f"{name} with edge_attr"

    def made(**options):
        return layer(kind, edge_dim=FEATURES, **options)

    return [
        *(
            case(part, option, lambda o=given: Featured(made(**o)))
            for option, given in (_ATTENTION_OPTIONS | _OPTIONS_OF[name]).items()
        ),
        case(
            part,
            "heads=2, side by side",
            lambda: Featured(lambda i, o: kind(i, o // 2, heads=2, edge_dim=FEATURES)),
        ),
        case(part, "edge_dim=1", lambda: Featured(layer(kind, edge_dim=1)), with_features(1)),
        case(part, "edge_dim=17", lambda: Featured(layer(kind, edge_dim=17)), with_features(17)),
        case(part, "by keyword, once", lambda: FeaturedOnce(made())),
        case(part, "of forward(data)", lambda: OfData(made(heads=2, concat=False))),
        case(part, "a layer used twice", lambda: featured(shared)(made())),
        case(part, "residual", lambda: featured(residual)(made())),
        case(part, "in evaluation only", lambda: featured(edges_in_evaluation_only)(made())),
        case(part, "evaluation, dropout", lambda: Featured(made(dropout=0.5)).eval()),
        case(part, "a frozen lin_edge", lambda: frozen(Featured(made()), "lin_edge")),
        case(
            part,
            f"a frozen {_LEARNED_BY[name]}",
            lambda: frozen(Featured(made()), f".{_LEARNED_BY[name]}"),
        ),
        case(part, "a frozen layer", lambda: frozen(Featured(made()), "first.")),
        case(part, "of half precision", lambda: Featured(made()), with_features(dtype=torch.bfloat16)),
        *(
            left_alone(part, option, lambda o=given: Featured(made(**o)))
            for option, given in _ATTENTION_LEFT.items()
        ),
        partly_lowered(part, "aggr='max'", lambda: Featured(made(aggr="max")), "add_self_loops"),
        left_alone(
            part,
            "a vector of numbers",
            lambda: Featured(layer(kind, edge_dim=1)),
            "it takes 'edge_attr'",
            with_features(0),
        ),
    ]


def _wide(**options):
    """Layers whose rows are as wide as the features of the nodes, and so of the edges."""
    return Featured(gine(**options), hidden=CHANNELS)


EDGES = [
    *(case("GINEConv", name, lambda m=make: Featured(m)) for name, make in _GINE_OPTIONS.items()),
    case("GINEConv", "without edge_dim", _wide, with_features(CHANNELS)),
    case(
        "GINEConv", "without edge_dim, train_eps=True", lambda: _wide(train_eps=True), with_features(CHANNELS)
    ),
    case("GINEConv", "of forward(data)", lambda: OfData(GINE)),
    case("GINEConv", "residual", lambda: featured(residual)(GINE)),
    case("GINEConv", "a layer used twice", lambda: featured(shared)(GINE)),
    case("GINEConv", "in evaluation only", lambda: featured(edges_in_evaluation_only)(GINE)),
    case("GINEConv", "evaluation", lambda: Featured(GINE).eval()),
    case("GINEConv", "a frozen map of edges", lambda: frozen(Featured(GINE), ".lin.")),
    case("GINEConv", "a frozen bias of edges", lambda: frozen(Featured(GINE), ".lin.bias")),
    case("GINEConv", "a frozen layer", lambda: frozen(Featured(GINE), "first.")),
    case("GINEConv", "of half precision", lambda: Featured(GINE), with_features(dtype=torch.bfloat16)),
    *(left_alone("GINEConv", name, lambda m=make: Featured(m)) for name, make in _GINE_LEFT.items()),
    partly_lowered(
        "GINEConv",
        "a class of one's own inside",
        lambda: Featured(gine(type("Linear", (nn.Linear,), {}), edge_dim=FEATURES)),
        "linear: no operation",
    ),
    partly_lowered("GINEConv", "changed edge features", lambda: featured(other_features)(GINE), "lowered"),
    partly_lowered(
        "GINEConv",
        "encoded edge features",
        lambda: featured(encoded)(GINE, encoder=nn.Linear(FEATURES, FEATURES)),
        "encoder Linear",
    ),
    partly_lowered(
        "GINEConv",
        "edge features encoded by several layers",
        lambda: featured(encoded)(
            gine(edge_dim=None), encoder=nn.Sequential(nn.Linear(FEATURES, CHANNELS), nn.ReLU())
        ),
        "maps edge features",
    ),
    *(
        case(
            "GINEConv",
            f"edge features encoded by {name}",
            lambda m=make, o=options: featured(encoded)(
                gine(edge_dim=None, **o), encoder=m(FEATURES, CHANNELS)
            ),
        )
        for name, make, options in (
            ("a linear layer", nn.Linear, {}),
            ("PyG's Linear", pyg.Linear, {"train_eps": True}),
            ("a linear layer without bias", lambda i, o: nn.Linear(i, o, bias=False), {"eps": 0.5}),
        )
    ),
    partly_lowered(
        "GATConv with edge_attr",
        "encoded edge features",
        lambda: featured(encoded)(lambda i, o: pyg.GATConv(i, o, edge_dim=5), encoder=nn.Linear(FEATURES, 5)),
        "encoder Linear",
    ),
    partly_lowered(
        "GATv2Conv with edge_attr",
        "edge features encoded by several layers",
        lambda: featured(encoded)(
            lambda i, o: pyg.GATv2Conv(i, o, edge_dim=5),
            encoder=nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU()),
        ),
        "maps edge features",
    ),
    partly_lowered(
        "GINEConv",
        "some edge features",
        lambda: featured(some_features)(GINE),
        "",
        with_features(FEATURES + 1),
    ),
    *_attention_cases(pyg.GATConv),
    *_attention_cases(pyg.GATv2Conv),
    case("PyG's ready GAT", "edge_dim", lambda: pyg.GAT(CHANNELS, HIDDEN, 2, CLASSES, edge_dim=FEATURES)),
    case(
        "PyG's ready GAT",
        "v2=True, edge_dim",
        lambda: pyg.GAT(CHANNELS, HIDDEN, 2, CLASSES, v2=True, edge_dim=FEATURES),
    ),
    *(
        case(name, "edge features that it does not read", lambda k=kind: Featured(layer(k)))
        for name, kind in (("GATConv", pyg.GATConv),)
    ),
    case("PyG's ready GCN", "beside edge features", lambda: pyg.GCN(CHANNELS, HIDDEN, 2, CLASSES)),
    case("PyG's ready GAT", "beside edge features", lambda: pyg.GAT(CHANNELS, HIDDEN, 2, CLASSES)),
]
