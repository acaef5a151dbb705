"""Rings or paths: a plain PyTorch Geometric model learns the labels of many small graphs."""

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GINConv, global_add_pool

from graphbraid import GraphSet, Trainer, datasets


def molecule(size: int, is_ring: bool) -> Data:
    """A path of atoms, or a ring."""
    at = torch.arange(size)
    edges = torch.stack([at[:-1], at[1:]])
    if is_ring:
        edges = torch.cat([edges, torch.tensor([[size - 1], [0]])], 1)
    edge_index = torch.cat([edges, edges.flip(0)], 1)
    return Data(x=torch.ones(size, 1), edge_index=edge_index, y=torch.tensor([int(is_ring)]))


class Model(nn.Module):
    """Two layers, a sum over the nodes of each graph, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = GINConv(nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 16)))
        self.second = GINConv(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)))
        self.last = nn.Linear(16, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """Return the logits of each graph."""
        x = self.first(x, edge_index).relu()
        x = self.second(x, edge_index).relu()
        logits: Tensor = self.last(global_add_pool(x, batch))
        return logits


def main() -> None:
    """Train on 300 graphs, and predict ten of them."""
    torch.manual_seed(0)
    molecules = [molecule(4 + number % 7, number % 2 == 1) for number in range(300)]
    graphs = datasets.split_graphs(GraphSet.from_pyg(molecules), "stratified:0.6,0.2")
    trainer = Trainer(Model(), graphs, task="graph", epochs=20, batch_size=32, lr=0.01)
    result = trainer.fit()
    print(f"test accuracy {result.test['accuracy']:.3f}; {trainer.baseline}")
    print("graphs 0 to 9:", trainer.predict(range(10)).argmax(1).tolist())


if __name__ == "__main__":
    main()
