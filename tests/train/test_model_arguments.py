"""A model gets the same arguments on every route: outputs and a step equal PyG's call, or it is refused."""

import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from tests.extras import NO_PYG

pytest.importorskip("torch_geometric", reason=NO_PYG)
from tests.distributed.ranks import run
from tests.train import argument_ranks
from tests.train.argument_models import CASES, CHANNELS, CLASSES, EDGES, NODES
from torch import nn

import graphbraid
from graphbraid import Graph
from graphbraid.datasets import open_store, save_store
from graphbraid.errors import ConfigError, DataError, RunsAsWrittenWarning
from graphbraid.estimates.estimate import estimate
from graphbraid.estimates.trial import Trial
from graphbraid.fullgraph.reading.calling import Given, calling_of
from graphbraid.loader import NeighborLoader
from graphbraid.nn import DotProduct, LinkModel
from graphbraid.train import Trainer
from graphbraid.train.config import TrainConfig

pytestmark = [pytest.mark.filterwarnings(f"ignore:{text}") for text in ("Sparse CSR", "Sparse invariant")]
OPTIONS = argument_ranks.OPTIONS["sampled"]


def outputs_of(case, data, model):
    """PyG's outputs of the nodes that are learned."""
    out = case.plain(model, data)
    return out["a"] if isinstance(out, dict) else out


def labels_of(data):
    return data["a"] if "a" in getattr(data, "node_types", ()) else data


def wanted(case, data, *, steps=0):
    model, labels = case.model(), labels_of(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        mask = labels.train_mask
        F.cross_entropy(outputs_of(case, data, model)[mask], labels.y[mask]).backward()
        optimizer.step()
    return outputs_of(case, data, model).detach()


def trained(case, data, mode):
    """Outputs after one step, of a model that is then called as PyG calls it."""
    model = case.model()
    Trainer(model, Graph.from_pyg(data), mode=mode, **argument_ranks.OPTIONS[mode]).fit()
    return outputs_of(case, data, model).detach()


def evaluated(case, data):
    found = Trainer(case.model(), Graph.from_pyg(data), mode="sampled", **OPTIONS).evaluate(
        "test", mode="sampled"
    )
    return torch.tensor(found["loss"])


def tried(case, data):
    trial = Trial(case.model(), Graph.from_pyg(data), TrainConfig.from_dict({"mode": "sampled", **OPTIONS}))
    trial.try_model()


ROUTES = {
    "predict": lambda case, data: Trainer(
        case.model(), Graph.from_pyg(data), mode="sampled", **OPTIONS
    ).predict(),
    "in batches": lambda case, data: Trainer(
        case.model(), Graph.from_pyg(data), mode="sampled", memory_budget_bytes=1 << 16, **OPTIONS
    ).predict(),
    "evaluate": evaluated,
    "compile": lambda case, data: graphbraid.compile(
        case.model(), data, nodes=torch.arange(NODES)
    )().detach(),
    "compile graph": lambda case, data: graphbraid.compile(
        case.model(), Graph.from_pyg(data), nodes=torch.arange(NODES)
    ).predict(),
    "fit sampled": lambda case, data: trained(case, data, "sampled"),
    "fit full": lambda case, data: trained(case, data, "full"),
    "estimate": tried,
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.pairs  # model and route together decide which refusal is raised
def test_every_route_gives_what_pyg_gives(route, name):
    case = CASES[name]
    data = case.data()
    if route == "estimate" and name.startswith("typed"):
        with pytest.raises(DataError, match="estimate takes graphs of one node type"):
            estimate(case.model(), Graph.from_pyg(data))
        return
    if route in case.refused:
        with pytest.raises(ConfigError, match=case.refused[route]):
            ROUTES[route](case, data)
        return
    found = ROUTES[route](case, data)
    if found is None:
        return
    expected = wanted(case, data, steps=int(route.startswith("fit")))
    if route == "evaluate":
        mask = labels_of(data).test_mask
        expected = F.cross_entropy(expected[mask], labels_of(data).y[mask])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("mode", ["sampled", "full"])
def test_so_do_two_ranks(mode):
    for said in run(2, argument_ranks.trained, mode):
        for name, found in said.result.items():
            case = CASES[name]
            data = case.data()
            if mode == "sampled" and "ranks" in case.refused:
                assert re.search(case.refused["ranks"], found)
            elif isinstance(found, str):
                assert "several ranks train the whole graph together only by a lowered program" in found or (
                    "takes '" in found
                )
            else:
                torch.testing.assert_close(
                    torch.tensor(found), wanted(case, data, steps=1), rtol=1e-4, atol=1e-5
                )


class Shifted(nn.Module):
    """Reads one integer of each edge, as an embedding of kinds of edges does."""

    def __init__(self):
        super().__init__()
        self.rows, self.out = nn.Embedding(4, CHANNELS), nn.Linear(CHANNELS, CLASSES)

    def forward(self, x, edge_index, edge_attr):
        messages = x[edge_index[0]] + self.rows(edge_attr)
        return self.out(torch.zeros_like(x).index_add(0, edge_index[1], messages))


def test_integers_of_edges_are_given_as_they_are_or_refused():
    data, model = CASES["required"].data(), Shifted()
    data.edge_attr = torch.arange(EDGES) % 4
    expected = model(data.x, data.edge_index, data.edge_attr).detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RunsAsWrittenWarning)
        engine = graphbraid.compile(model, data, nodes=torch.arange(NODES))
        torch.testing.assert_close(engine().detach(), expected, rtol=1e-4, atol=1e-5)
    loader = NeighborLoader(data, num_neighbors=[-1], batch_size=NODES, input_nodes=torch.arange(NODES))
    batch = next(iter(loader))
    assert batch.edge_attr.dtype == torch.int64
    assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
    found = model(batch.x, batch.edge_index, batch.edge_attr).detach()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ConfigError, match="edge_attr"):
        Trainer(model, Graph.from_pyg(data), mode="sampled", **OPTIONS).fit()


@pytest.mark.parametrize("name", ["vector", "typed optional"])
def test_a_store_and_reverses_keep_the_name_of_weights(tmp_path, name):
    graph = Graph.from_pyg(CASES[name].data())
    for found in (open_store(save_store(graph, tmp_path / "s")), graph.with_reverse_relations()):
        names = [(one, found.edges_of(one).weight_name) for one in graph.edge_types]
        assert names == [(one, graph.edges_of(one).weight_name) for one in graph.edge_types]
        assert ("edge_attr" in {name for _, name in names}) == ("edge_attr" in str(found.to_pyg()))
    with pytest.raises(DataError, match="'edge_attr' for a graph without edge_attr; got 'edge_weight '"):
        graph.replace(weight_name="edge_weight ")


def test_weights_and_features_of_edges_do_not_share_a_name():
    graph = Graph.from_pyg(CASES["vector"].data())
    with pytest.raises(DataError, match="got 'edge_attr' beside edge_attr"):
        graph.replace(edge_attr=torch.ones(graph.num_edges, 2))
    changed = graph.replace(edge_attr=torch.ones(graph.num_edges, 2), weight_name="edge_weight")
    assert {"edge_attr", "edge_weight"} <= set(changed.to_pyg().keys())


@pytest.mark.parametrize(
    ("forward", "wanted"),
    [
        (lambda x, edge_index, h=None, z=2.0: None, ("x", "edge_index")),
        (lambda x, edge_index, weight=1.0: None, ("x", "edge_index")),
        (lambda x, edge_index, weight=None: None, ("x", "edge_index", "edge_weight")),
        (lambda feat, edges, x=None: None, None),
        (lambda state, edge_index, x: None, None),
        (lambda x, edge_index, h: None, None),
    ],
)
def test_another_name_receives_only_what_nothing_else_does(forward, wanted):
    model, data = nn.Module(), CASES["optional"].data()
    model.forward, data.edge_weight = forward, torch.rand(data.num_edges)
    given = Given.of(Graph.from_pyg(data))
    if wanted is None:
        with pytest.raises(ConfigError, match="the graph has no such thing"):
            calling_of(model, given)
        return
    called = calling_of(model, given)
    assert (*called.positional, *called.named.values()) == wanted


def test_a_model_of_blocks_is_refused_features_of_edges():
    model = CASES["optional"].model()
    model.takes_blocks = True
    with pytest.raises(
        ConfigError, match="takes 'edge_attr', and a model that takes blocks gets no features"
    ):
        Trainer(model, Graph.from_pyg(CASES["optional"].data()), mode="sampled", **OPTIONS)


def test_weights_reach_a_model_of_blocks_that_runs_as_it_is_written():
    graph = Graph.from_pyg(CASES["typed weight"].data())
    seen = []

    class Reads(nn.Module):
        takes_blocks, num_layers = True, 1

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(CHANNELS, CLASSES)

        def forward(self, x_dict, relations):
            seen.append([csc.weight is not None for csc in relations.values()])
            return {one: self.linear(x) for one, x in x_dict.items()}

    graphbraid.compile(Reads(), graph, node_type="a")()
    assert seen == [[False, False, True]]


class Scored(nn.Module):
    """An encoder that keeps the sum of the features of the edges that it was given, and their number."""

    num_layers = 1

    def __init__(self):
        super().__init__()
        self.linear, self.seen = nn.Linear(CHANNELS, 4), []

    def forward(self, x, edge_index, edge_attr):
        self.seen.append((edge_index.shape[1], edge_attr.shape, float(edge_attr.double().sum())))
        sums = x.new_zeros(x.shape[0], 2).index_add(0, edge_index[1], edge_attr)
        return self.linear(x) + sums.sum(1, keepdim=True)


def test_encoders_of_links_get_features_of_the_messages_alone():
    data, model = CASES["required"].data(), LinkModel(Scored(), DotProduct())
    options = OPTIONS | {"task": "link", "fanouts": (-1,), "monitor": None}
    whole, small = (
        Trainer(model, Graph.from_pyg(data), memory_budget_bytes=budget, **options)
        for budget in (1 << 30, 1 << 16)
    )
    messages = whole.runner.data.messages
    assert messages.num_edges < EDGES
    assert torch.equal(messages.edge_attr, Graph.from_pyg(data).edge_attr[whole.runner.data.is_message])
    assert whole.evaluate("test")["loss"] == pytest.approx(small.evaluate("test")["loss"], rel=1e-5)
    passes = [one for one in model.encoder.seen if one[0] == messages.num_edges]
    assert passes[0][1] == messages.edge_attr.shape
    assert passes[0][2] == pytest.approx(float(messages.edge_attr.double().sum()))
    assert len(model.encoder.seen) > len(passes) + 4  # the small budget's


def test_encoders_of_links_by_type_are_refused_them():
    model = LinkModel(CASES["typed"].model(), DotProduct())
    with pytest.raises(
        ConfigError, match=r"'edge_attr_dict', and it was left out .* no features by relation"
    ):
        Trainer(model, Graph.from_pyg(CASES["typed"].data()), task="link", link_relation=("a", "to", "a"))
