"""Links and clusters: models, negatives and times that do not go together, and clusters of nothing."""

from typing import Any

import torch
from tests.robustness.cases import call, command
from tests.robustness.workplace import NUM_FEATURES, NUM_NODES, QUICK, Workplace, graph

from graphbraid import nn
from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
from graphbraid.loader import ClusterData, ClusterLoader, LinkNeighborLoader
from graphbraid.train import Trainer

LINKS, CLUSTERS = "Links", "Clusters"
_MEETS = ("node", "meets", "node")


def _train(w: Workplace, *options: object):
    return "train", "--data", w.npz(), "--out", w.path("run"), *QUICK, "--task", "link", *options


def _timed(time: torch.Tensor, **splits: Any) -> Graph:
    ends = torch.stack([torch.arange(time.numel()) % NUM_NODES, torch.arange(time.numel()) * 7 % NUM_NODES])
    return Graph.from_relations(
        {_MEETS: ends},
        {"node": NUM_NODES},
        x={"node": torch.ones(NUM_NODES, NUM_FEATURES)},
        edge_time={_MEETS: time},
        edge_splits={_MEETS: splits} if splits else None,
    )


def _trainer(of: Graph, **options: Any) -> Trainer:
    model = nn.LinkModel(nn.GraphSAGE(NUM_FEATURES, 8, 8, 1), nn.DotProduct())
    return Trainer(model, of, **{"task": "link", "fanouts": (3,), "temporal_strategy": "last"} | options)


command(LINKS, 2, "--task link needs --model to be one of", "'sega'")(
    "An encoder that there is not", lambda w: _train(w, "--model", "sega")
)
command(LINKS, 2, "--predictor distmult scores links of")(
    "A predictor of relations where there are none", lambda w: _train(w, "--predictor", "distmult")
)
command(LINKS, 2, "--reciprocal gives relations rows", "--predictor mlp has none")(
    "Second rows of relations, with a predictor that takes none",
    lambda w: _train(w, "--predictor", "mlp", "--reciprocal"),
)
command(LINKS, 2, "n3=0.1 is part of the loss of negatives='one-vs-all'")(
    "The penalty N3 with negatives that are drawn", lambda w: _train(w, "--n3", "0.1")
)
command(LINKS, 2, "mode='full' does not go with task='link'")(
    "Links on the whole graph", lambda w: _train(w, "--mode", "full")
)
command(LINKS, 2, "chooses among relations", "leave it out")(
    "A relation of a graph that has none", lambda w: _train(w, "--relation", "user,rates,film")
)
command(LINKS, 2, "temporal_strategy needs the time of every", "edge_time=")(
    "Times where there are none", lambda w: _train(w, "--temporal", "last")
)
command(LINKS, 2, "negatives='shared' lends", "'triplet'")(
    "Negatives that links of several times share",
    lambda w: _train(w, "--temporal", "last", "--negatives", "shared"),
)
command(LINKS, 2, "negatives='shared' is for links", "set task='link'")(
    "Options of links for labels", lambda w: _train(w, "--task", "node", "--negatives", "shared")
)
call(LINKS, ConfigError, "trains an encoder and a predictor", "nn.LinkModel(")(
    "A model of nodes", lambda w: Trainer(nn.GraphSAGE(NUM_FEATURES, 8, 3, 2), graph(), task="link")
)
call(LINKS, DataError, "must be later than all", "Split by time")(
    "Links to predict that come first",
    lambda w: _trainer(_timed(torch.arange(100), train=torch.arange(50, 100), test=torch.arange(50))),
)
call(LINKS, DataError, "no edge is left to train on", "'train'")(
    "Edges that are all of one time", lambda w: _trainer(_timed(torch.zeros(100)))
)


@call(LINKS, DataError, "times of edges must be finite; 1 are not")
def time_is_nan(w: Workplace):
    """A time that is not a number."""
    times = torch.arange(100.0)
    times[7] = torch.nan
    _trainer(_timed(times))


call(LINKS, ConfigError, "their future would be seen", "'test'")(
    "Evaluating links whose future is known", lambda w: _trainer(_timed(torch.arange(100))).evaluate("train")
)


@call(LINKS, ConfigError, "tell of the future", "nn.GraphSAGE")
def degrees_of_the_future(w: Workplace):
    """Degrees that count edges of the future."""
    model = nn.LinkModel(nn.GCN(NUM_FEATURES, 8, 8, 1), nn.DotProduct())
    Trainer(model, _timed(torch.arange(100)), task="link", fanouts=(3,), temporal_strategy="uniform")


call(LINKS, ConfigError, "the destination of link 1 is 90")(
    "A link to a node that is not there",
    lambda w: LinkNeighborLoader(graph(), [3], torch.tensor([[0, 1], [2, NUM_NODES]])),
)


@call(LINKS, ConfigError, "reject_edges leaves no negatives")
def negatives_of_a_complete_graph(w: Workplace):
    """Negatives in a complete graph."""
    ends = torch.cartesian_prod(torch.arange(4), torch.arange(4)).t()
    negatives = {"mode": "binary", "reject_edges": True}
    LinkNeighborLoader(Graph.from_edge_index(ends, 4), [3], neg_sampling=negatives)


call(LINKS, ConfigError, "edge_label_time and time_attr go together")(
    "Times of links alone",
    lambda w: LinkNeighborLoader(graph(), [3], torch.tensor([[0], [2]]), edge_label_time=torch.zeros(1)),
)


def _typed() -> Graph:
    return Graph.from_relations({("user", "rates", "film"): [[0, 1], [1, 2]]}, {"user": 2, "film": 3})


call(LINKS, ConfigError, "must name a relation, or be a pair")(
    "Links of no relation, where there are types",
    lambda w: LinkNeighborLoader(_typed(), [3], torch.tensor([[0], [2]])),
)
call(
    LINKS, ConfigError, "user__rate__film, which the graph does not have", "Did you mean 'user__rates__film'?"
)("Links of a relation mistyped", lambda w: LinkNeighborLoader(_typed(), [3], ("user", "rate", "film")))
call(LINKS, ConfigError, "ids in [0, 3); the destination of link 0 is 3")(
    "A link to no node of its type",
    lambda w: LinkNeighborLoader(_typed(), [3], (("user", "rates", "film"), torch.tensor([[1], [3]]))),
)


@call(LINKS, ConfigError, "is neither an attribute of the nodes nor of the edges")
def times_that_no_type_has(w: Workplace):
    """Times that no type has."""
    links = {"edge_label_index": ("user", "rates", "film"), "edge_label_time": torch.zeros(2)}
    LinkNeighborLoader(_typed(), [3], **links, time_attr="time")


call(CLUSTERS, ConfigError, "leaves cluster", "choose fewer clusters")(
    "More clusters than nodes",
    lambda w: ClusterData(Graph.from_edge_index(torch.tensor([[0, 1], [1, 2]]), 3), 5),
)
call(CLUSTERS, ConfigError, "does not support keep_inter_cluster_edges=True")(
    "An option of PyG's", lambda w: ClusterData(graph(), 3, keep_inter_cluster_edges=True)
)
call(CLUSTERS, ConfigError, "cluster_data must be")(
    "A graph where its clusters are needed", lambda w: ClusterLoader(graph())
)  # type: ignore[arg-type]
