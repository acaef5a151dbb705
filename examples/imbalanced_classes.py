"""Rare classes as often as common ones: PyG's ImbalancedSampler draws the seeds of each mini-batch."""

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.loader import ImbalancedSampler
from torch_geometric.nn import GraphSAGE

import graphbraid
from graphbraid.loader import NeighborLoader


def recall_of_rare(model: torch.nn.Module, loader: NeighborLoader) -> float:
    """The share of the rare class's nodes that the model finds."""
    model.eval()
    found = total = 0
    with torch.no_grad():
        for batch in loader:
            y = batch.y[: batch.batch_size]
            predicted = model(batch.x, batch.edge_index)[: batch.batch_size].argmax(dim=1)
            found += int((predicted[y == 1] == 1).sum())
            total += int((y == 1).sum())
    return found / total


def train(data: Data, nodes: torch.Tensor, sampler: ImbalancedSampler | None) -> torch.nn.Module:
    """A model after some epochs, with the sampler's order or a shuffled one."""
    torch.manual_seed(0)
    loader = NeighborLoader(data, [10, 5], nodes, batch_size=128, sampler=sampler, shuffle=sampler is None)
    model = GraphSAGE(data.num_features, 32, num_layers=2, out_channels=2, dropout=0.3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(4):
        model.train()
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()
    return model


def main() -> None:
    data = graphbraid.datasets.load("braid-100k").to_pyg()
    data.y = (data.y == 3).long()  # one class against all the others
    nodes = data.train_mask.nonzero().flatten()
    share = float(data.y[nodes].float().mean())
    test = NeighborLoader(data, [10, 5], data.test_mask, batch_size=512, seed=0)
    sampler = ImbalancedSampler(data, input_nodes=nodes)
    drawn = torch.cat([b.y[: b.batch_size] for b in NeighborLoader(data, [1], nodes, sampler=sampler)])
    print(
        f"{share:.1%} of the training nodes are of the class, "
        f"{float(drawn.float().mean()):.1%} of those drawn"
    )
    for name, order in (("shuffled", None), ("balanced", sampler)):
        print(f"{name}: recall {recall_of_rare(train(data, nodes, order), test):.4f}")


if __name__ == "__main__":
    main()
