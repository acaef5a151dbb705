"""What ranks of a test train on graphs that leave some of them with little or nothing to do."""

import torch
from tests.distributed.training import fitted, graph_of
from torch import Tensor

from graphbraid.graph import Graph
from graphbraid.graph.csc import coo_to_csc
from graphbraid.nn import GCN, GraphSAGE
from graphbraid.train import Trainer

OPTIONS = {"epochs": 2, "lr": 0.01, "optimizer": "sgd", "fanouts": (-1, -1), "layout": "blocks"}
MODES = ("sampled", "full")


def tiny(num_nodes: int, edges: list[tuple[int, int]]) -> Graph:
    """A graph of few nodes, the first of which alone validates and tests."""
    src, dst = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t()
    csc, _ = coo_to_csc(src, dst, num_nodes, num_nodes)
    splits = {"train": torch.arange(num_nodes), "val": torch.tensor([0]), "test": torch.tensor([0])}
    x = torch.randn(num_nodes, 4, generator=torch.Generator().manual_seed(0))
    return Graph(csc=csc, x=x, y=torch.arange(num_nodes) % 2, splits=splits)


def split(**splits: Tensor) -> Graph:
    """The graph of other tests, with some splits replaced."""
    graph = graph_of()
    return graph.replace(splits=graph.splits | splits)


def graphs() -> dict[str, Graph]:
    """Odd graphs by what is odd about them."""
    first = {name: nodes[:1] for name, nodes in graph_of().splits.items()}
    return {
        "one training node": split(train=first["train"]),
        "one node to validate and test": split(val=first["val"], test=first["test"]),
        "fewer nodes than ranks": tiny(3, [(0, 1), (1, 2)]),
        "no edges": tiny(5, []),
    }


def every_graph(comm) -> dict[str, object]:
    """What is learned of each graph, in each mode."""
    found = {}
    for name, graph in graphs().items():
        for mode in MODES:
            torch.manual_seed(0)
            kind = GCN if mode == "full" else GraphSAGE
            model = kind(graph.num_features, 8, graph.num_classes, num_layers=2, dropout=0.0)
            found[f"{name}, {mode}"] = fitted(Trainer(model, graph, mode=mode, **OPTIONS))
    return found
