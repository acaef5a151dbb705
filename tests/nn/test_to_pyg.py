"""A copy by to_pyg() computes what the model computes: outputs, gradients and statistics, in float64."""

import io
from typing import Any

import pytest
import torch
from tests.extras import NO_PYG
from tests.train.linked_communities import relations
from torch import Tensor

from graphbraid import Graph, nn
from graphbraid.errors import ConfigError
from graphbraid.nn.module_traits import copy_of
from graphbraid.nn.typed_models import ColumnsLinear

pyg_nn = pytest.importorskip("torch_geometric.nn", reason=NO_PYG)
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

NUM_NODES = 40


def edges(seed: int = 0, num_src: int = NUM_NODES, num_dst: int = NUM_NODES - 3) -> Tensor:
    """Edges with self-loops; the last three nodes have no in-edges."""
    draw = torch.Generator().manual_seed(seed)
    pairs = torch.stack([torch.randint(most, (150,), generator=draw) for most in (num_src, num_dst)])
    return pairs.unique(dim=1)


def features(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def as_leaves(value: Any, leaves: list[Tensor]) -> Any:
    if isinstance(value, dict):
        return {key: as_leaves(inner, leaves) for key, inner in value.items()}
    if isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 2:
        leaves.append(value.clone().requires_grad_())
        return leaves[-1]
    return value


def compare(model: torch.nn.Module, made: torch.nn.Module, *given: Any, close: float = 1e-10) -> None:
    """Compare outputs, gradients of inputs and parameters, and buffers, in both modes."""
    weights = dict(made.named_parameters())
    own = list(model.parameters())
    assert len(weights) == len(own)
    for training in (True, False):
        for one in (model, made):
            one.train(training)
        results = []
        for one in (model, made):
            leaves: list[Tensor] = []

            out = one(*(as_leaves(value, leaves) for value in given))
            rows = torch.cat(
                [value.flatten() for value in (out.values() if isinstance(out, dict) else [out])]
            )
            loss = (rows * torch.linspace(-1, 1, rows.numel(), dtype=rows.dtype)).sum()
            one.zero_grad()
            loss.backward()
            norms = [float(p.grad.norm()) for p in one.parameters() if p.grad is not None]
            results.append(
                (
                    rows,
                    [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves],
                    sorted(filter(None, norms)),
                )
            )
        torch.testing.assert_close(*results, rtol=close, atol=close)
        by_value = [
            sorted(float(b.double().norm()) for b in one.buffers() if b.numel()) for one in (model, made)
        ]
        kept = [values[-len(by_value[1]) :] for values in by_value]
        torch.testing.assert_close(*kept, rtol=close, atol=close)


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *[(name, {}) for name in nn.MODELS],
    *[(name, {"norm": norm, "act": "elu"}) for name in nn.MODELS for norm in ("batch", "layer")],
    ("gcn", {"add_self_loops": False, "act": "gelu"}),
    ("gcn", {"normalize": False, "bias": False, "act": "leaky_relu"}),
    ("gcn", {"num_layers": 1}),
    *[("sage", {"aggr": aggr, "project": True}) for aggr in ("mean", "max", "sum")],
    ("sage", {"normalize": True, "root_weight": False, "act": "none"}),
    ("gin", {"eps": 0.5, "train_eps": True}),
    *[
        (name, {"heads": 2, "out_heads": 3, "residual": True, "negative_slope": 0.1})
        for name in ("gat", "gatv2")
    ],
    ("gat", {"add_self_loops": False, "bias": False}),
    ("gatv2", {"share_weights": True}),
    ("mlp", {"num_layers": 1}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_models_of_one_type_equal_their_copies(name, options):
    torch.manual_seed(0)
    model = nn.MODELS[name](6, 16, 3, **{"num_layers": 3, "dropout": 0.0} | options).double()
    made = model.to_pyg()
    assert type(made) is (pyg_nn.GAT if name == "gatv2" else getattr(pyg_nn, type(model).__name__))
    x = features(NUM_NODES, 6)
    if name == "mlp":
        compare(model, made, x)
        return
    compare(model, made, x, edges())
    if name == "gcn":
        weight = features(edges().shape[1], 1).abs().flatten().float().double()
        compare(model, made, x, edges(), weight)


def test_a_copy_has_its_own_weights_and_the_models_dropout_dtype_and_modes():
    torch.manual_seed(0)
    model = nn.GraphSAGE(6, 16, 3, 3, norm="batch", dropout=0.4, input_dropout=0.3)
    model.convs[0].lin_l.weight.requires_grad_(False)
    model.norms[0].eval()  # its statistics are frozen
    state = torch.random.get_rng_state()
    made = model.to_pyg()
    assert torch.equal(state, torch.random.get_rng_state())
    assert [m.p for m in made.modules() if isinstance(m, torch.nn.Dropout)] == [0.4, 0.3]
    assert all(m.training for m in made.modules() if isinstance(m, torch.nn.Dropout))
    assert [norm.training for norm in made.norms[:2]] == [False, True]
    assert sum(not parameter.requires_grad for parameter in made.parameters()) == 1
    model.eval()
    with torch.no_grad():
        before = made.eval()(features(NUM_NODES, 6).float(), edges())
        for parameter in model.parameters():
            parameter.zero_()
    after = made(features(NUM_NODES, 6).float(), edges())
    assert torch.equal(before, after)
    assert before.dtype == torch.float32
    assert not any(
        m.training for m in model.to_pyg().modules() if isinstance(m, torch.nn.Dropout | torch.nn.BatchNorm1d)
    )
    file = io.BytesIO()
    torch.save(made.state_dict(), file)
    assert not any(type(m).__module__.startswith("graphbraid") for m in made.modules())


def test_input_dropout_stands_before_the_first_layer_of_any_call():
    for name in nn.MODELS:
        model = nn.MODELS[name](6, 16, 3, 2, dropout=0.0, input_dropout=0.5).double()
        made = model.to_pyg().eval()
        model.eval()
        weight = [torch.rand(edges().shape[1]).double()] if name == "gcn" else []
        given = [features(NUM_NODES, 6)] + ([] if name == "mlp" else [edges(), *weight])
        torch.testing.assert_close(made(*given), model(*given), rtol=1e-10, atol=1e-10)
        made.train()
        assert not torch.equal(made(*given), made(*given))


TYPES = {"paper": 5, "author": 0, "venue": 4}
RELATIONS = [("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "in", "venue")]


@pytest.mark.parametrize("node_type", ["paper", None])
@pytest.mark.parametrize("options", [{}, {"num_bases": 2, "aggr": "sum"}, {"act": "gelu", "num_layers": 1}])
def test_typed_models_equal_their_copies(node_type, options):
    counts = {"paper": 40, "author": 30, "venue": 4}
    torch.manual_seed(0)
    model = nn.RGCN(
        TYPES,
        8,
        3,
        RELATIONS,
        num_nodes=counts,
        learned={"venue": {1: 6}},
        node_type=node_type,
        dropout=0.0,
        **options,
    ).double()
    assert any(isinstance(one, ColumnsLinear) for one in model.inputs)
    x = {name: features(counts[name], width) for name, width in TYPES.items() if width}
    x["venue"][:, 1] = torch.arange(4)
    given = {one: edges(at, counts[one[0]], counts[one[2]]) for at, one in enumerate(RELATIONS)}
    given[RELATIONS[1]] = given[RELATIONS[1]][:, :0]  # a relation without edges
    compare(model, model.to_pyg(), x, given)
    ids = {"author": torch.arange(29, -1, -1)}
    torch.testing.assert_close(model.to_pyg()(x, given, ids), model(x, given, ids), rtol=1e-10, atol=1e-10)


def test_encoders_of_relations_and_link_models_equal_their_copies():
    graph = relations()
    count = len(graph.edge_types)
    torch.manual_seed(0)
    kinds = torch.arange(edges().shape[1]) % count
    encoder = nn.RGCNEncoder(6, 8, 5, count, 2, num_bases=2).double()
    compare(encoder, encoder.to_pyg(), features(NUM_NODES, 6), edges(), kinds)
    rows = nn.NodeEmbedding(NUM_NODES, 6, encoder).double()
    compare(rows, rows.to_pyg(), None, edges(), torch.arange(NUM_NODES).flip(0), kinds)
    for predictor in (nn.DotProduct(), nn.MLPPredictor(8, 8)):
        model = nn.LinkModel(nn.GCN(6, 8, 8, dropout=0.0), predictor).double()
        pairs = torch.tensor([[0, 5, 7], [3, 5, 1]])
        compare(model, model.to_pyg(), features(NUM_NODES, 6), edges(), pairs)
    alone = nn.LinkModel(nn.NodeEmbedding(NUM_NODES, 8), nn.DistMult(count, 8)).double()
    compare(alone, alone.to_pyg(), None, edges(), pairs, torch.tensor([0, 1, 2]))


def test_models_of_edges_and_of_graphs_equal_their_copies():
    torch.manual_seed(0)
    x, pairs = features(NUM_NODES, 6), torch.tensor([[0, 5, 7], [3, 5, 1]])
    decoder = nn.EdgeDecoder(8, 2, edge_channels=1)
    of_edges = nn.EdgeModel(nn.GraphSAGE(6, 8, 8, 2, dropout=0.0), decoder).double()
    compare(of_edges, of_edges.to_pyg(), x, edges(), pairs, features(3, 1))
    graph_of_node = torch.arange(NUM_NODES) // 12 * 2  # the graphs between have no nodes
    weight = torch.rand(edges().shape[1]).double()
    for readout in ("sum", "mean", "max"):
        model = nn.PooledModel(
            nn.GCN(6, 8, 8, 2, dropout=0.0), torch.nn.Linear(9, 2), readout=readout
        ).double()
        made = model.to_pyg()
        assert any(type(one).__module__.startswith("torch_geometric.nn.aggr") for one in made.modules())
        given = {"edge_weight": weight, "edge_attr": weight[:, None], "graph_x": features(7, 1)}
        compare(Named(model, given), Named(made, given), x, edges(), graph_of_node)


class Named(torch.nn.Module):
    def __init__(self, model: torch.nn.Module, given: dict[str, Tensor]) -> None:
        super().__init__()
        self.model, self.given = model, given

    def forward(self, *args: Any) -> Any:
        return self.model(*args, **self.given)


class Scaled(nn.GCN):
    """A user's model: its own forward must not be lost."""

    def forward(self, *args: Any, **named: Any) -> Tensor:
        return 2 * super().forward(*args, **named)


class UsersConv(nn.Conv):
    def combine(self, x: Any, csc: Any) -> Tensor:
        return x


def shared() -> torch.nn.Module:
    model = nn.GCN(6, 6, 6, 2)
    model.convs[1] = model.convs[0]
    return model


def hooked() -> torch.nn.Module:
    model = nn.GCN(6, 6, 6, 2)
    model.register_forward_hook(lambda *_: None)
    return model


def normed() -> torch.nn.Module:
    model = nn.GraphSAGE(6, 6, 6, 2)
    torch.nn.utils.parametrizations.weight_norm(model.convs[0].lin_l)
    return model


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Scaled(6, 8, 3), "Scaled has a forward of its own"),
        (shared(), "share parameters"),
        (hooked(), "lose the hooks of GCN"),
        (normed(), "holds other weights than PyG's"),
        (nn.GCN(6, 8, 3, improved=True), "self-loops of weight 1, not 2"),
        (nn.GAT(6, 8, 3, row_dropout=0.2), "no row_dropout"),
        (nn.GCN(6, 8, 3).hidden(), "a whole model"),
        (UsersConv(), "UsersConv"),
        (nn.NodeEmbedding(9, 6, Scaled(6, 8, 3)), "Scaled"),
        (nn.LinkModel(torch.nn.Sequential(nn.SAGEConv(3, 3)), nn.DotProduct()), "Sequential holds SAGEConv"),
        (nn.PooledModel(Scaled(6, 8, 3)), "Scaled"),
    ],
)
def test_what_has_no_equal_copy_is_refused(model, why):
    with pytest.raises(ConfigError, match=why):
        model.to_pyg()


def test_a_trained_copy_predicts_what_the_trainer_predicts():
    import graphbraid

    graph = Graph.from_edge_index(
        edges(),
        NUM_NODES,
        x=features(NUM_NODES, 6).float(),
        y=torch.arange(NUM_NODES) % 3,
        splits={"train": torch.arange(30)},
    )
    model = nn.GATv2(6, 16, 3, 2, norm="batch")
    trainer = graphbraid.Trainer(model, graph, epochs=2, fanouts=(3, 3))
    trainer.fit()
    made = model.to_pyg().eval()
    torch.testing.assert_close(made(graph.x, graph.to_edge_index()), trainer.predict(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("where", ["model", "layer", "weight"])
def test_hooks_of_gradients_are_not_lost(where):
    model = nn.GCN(4, 8, 3)
    if where == "weight":
        model.convs[1].lin.weight.register_hook(lambda grad: 2 * grad)
    else:
        hooked = model if where == "model" else model.convs[0]
        hooked.register_full_backward_hook(lambda *_: None)
    with pytest.raises(ConfigError, match="would lose the hooks"):
        model.to_pyg()


def test_a_copy_draws_none_of_the_users_random_numbers():
    class Drawing(torch.nn.Linear):  # as PyG 2.6's linear layers
        def __deepcopy__(self, memo):
            return Drawing(self.in_features, self.out_features)

    made = Drawing(2, 3)
    state = torch.get_rng_state()
    assert copy_of(made).weight.shape == (3, 2)
    assert torch.equal(state, torch.get_rng_state())
