"""A PyTorch Geometric script moved over by one import: the model and the loop are as they were."""

import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv

import graphbraid

# from torch_geometric.loader import NeighborLoader
from graphbraid.loader import NeighborLoader


class Net(torch.nn.Module):
    """PyG's layers, unchanged."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().__init__()
        self.first = SAGEConv(in_channels, hidden_channels)
        self.second = SAGEConv(hidden_channels, out_channels)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        hidden = F.dropout(self.first(x, edge_index).relu(), 0.5, self.training)
        return self.second(hidden, edge_index)


def main() -> None:
    torch.manual_seed(0)
    data = graphbraid.datasets.load("braid-100k").to_pyg()  # any PyG Data will do
    model = Net(data.num_features, 64, int(data.y.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = NeighborLoader(
        data, num_neighbors=[10, 5], batch_size=128, input_nodes=data.train_mask, shuffle=True
    )
    for epoch in range(5):
        model.train()
        total = 0.0
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            total += loss.item() * batch.batch_size
        print(f"epoch {epoch}: loss {total / int(data.train_mask.sum()):.4f}")

    model.eval()
    with torch.no_grad():
        predicted = model(data.x, data.edge_index).argmax(dim=1)
    accuracy = (predicted == data.y)[data.test_mask].float().mean()
    print(f"test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
