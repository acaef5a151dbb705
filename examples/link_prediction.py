"""Who writes to whom next: links predicted from earlier ones, with neighbours up to each link's own time.

Run it with the path of an .npz that has edge_index, edge_time and num_nodes, or on a small generated graph.
"""

import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from graphbraid.loader import LinkNeighborLoader
from graphbraid.train import link_auc, rank_links


def generated(num_nodes: int = 1500, num_links: int = 20_000, num_groups: int = 15) -> Data:
    """Links in the order of their times, nine of ten between nodes of one group."""
    numbers = np.random.default_rng(0)
    group = numbers.integers(0, num_groups, num_nodes)
    order = np.argsort(group, kind="stable")
    first = np.searchsorted(group[order], np.arange(num_groups + 1))
    src, dst = numbers.integers(0, num_nodes, (2, num_links))
    inside = numbers.random(num_links) < 0.9
    low, high = first[group[src]], first[group[src] + 1]
    dst[inside] = order[numbers.integers(low, high)][inside]
    return Data(
        edge_index=torch.from_numpy(np.stack([src, dst])),
        edge_time=torch.arange(num_links),
        num_nodes=num_nodes,
    )


def read(path: str) -> Data:
    """The graph of a file."""
    with np.load(path) as file:
        edges, times = torch.from_numpy(file["edge_index"]).long(), torch.from_numpy(file["edge_time"])
        return Data(edge_index=edges, edge_time=times, num_nodes=int(file["num_nodes"]))


def scores(model: torch.nn.Module, batch: Data) -> Tensor:
    """The scores of a batch's links and negatives."""
    z = model(batch.x, batch.edge_index)
    src, dst = batch.edge_label_index
    return (z[src] * z[dst]).sum(-1)


def main() -> None:
    torch.manual_seed(0)
    data = read(sys.argv[1]) if len(sys.argv) > 1 else generated()
    data.x = torch.randn(data.num_nodes, 32)  # no features: random ones tell nodes apart
    cut = int(0.9 * data.num_edges)
    past, future = data.edge_index[:, :cut], data.edge_index[:, cut:]
    known = Data(x=data.x, edge_index=past, edge_time=data.edge_time[:cut])
    options = {
        "time_attr": "edge_time",
        "temporal_strategy": "last",
        "neg_sampling": "binary",
        "exclude_seed_edges": "reverse",
        "seed": 0,
        "num_workers": 2,
    }
    loader = LinkNeighborLoader(
        known, [10, 5], past, edge_label_time=known.edge_time, batch_size=512, shuffle=True, **options
    )
    model = GraphSAGE(32, 64, num_layers=2, out_channels=32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(3):
        model.train()
        total = 0.0
        for batch in loader:
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(scores(model, batch), batch.edge_label)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}")

    model.eval()
    times = data.edge_time[cut:]
    test = LinkNeighborLoader(known, [10, 5], future, edge_label_time=times, batch_size=512, **options)
    with torch.no_grad():
        rated = [(scores(model, batch), batch.edge_label) for batch in test]
        z = model(known.x, past)
    score, label = (torch.cat(parts) for parts in zip(*rated, strict=True))
    ranking = rank_links(lambda src: z[src] @ z.T, future[:, :1000], data.num_nodes, known=data.edge_index)
    print(f"AUC of later links: {link_auc(score[label == 1], score[label == 0]):.3f}")
    print(f"among all nodes: filtered MRR {ranking.mrr:.3f}, Hits@10 {ranking.hits(10):.3f}")


if __name__ == "__main__":
    main()
