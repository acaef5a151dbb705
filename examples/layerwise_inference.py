"""PyG's way of training on a large graph: sampled mini-batches, then exact inference layer by layer."""

import copy

import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv

import graphbraid
from graphbraid.loader import NeighborLoader


class SAGE(torch.nn.Module):
    """Two of PyG's layers, and their outputs for all nodes, computed layer by layer."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(
            [SAGEConv(in_channels, hidden_channels), SAGEConv(hidden_channels, out_channels)]
        )

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        hidden = self.convs[0](x, edge_index).relu()
        return self.convs[1](F.dropout(hidden, 0.5, self.training), edge_index)

    @torch.no_grad()
    def inference(self, x_all: torch.Tensor, loader: NeighborLoader) -> torch.Tensor:
        for i, conv in enumerate(self.convs):
            rows = []
            for batch in loader:  # the seeds with all their neighbours
                out = conv(x_all[batch.n_id], batch.edge_index)[: batch.batch_size]
                rows.append(out.relu() if i == 0 else out)
            x_all = torch.cat(rows)
        return x_all


def main() -> None:
    torch.manual_seed(0)
    data = graphbraid.datasets.load("braid-100k").to_pyg()  # any PyG Data will do
    options = {"batch_size": 256, "num_workers": 2, "persistent_workers": True}
    train_loader = NeighborLoader(
        data, input_nodes=data.train_mask, num_neighbors=[10, 5], shuffle=True, **options
    )
    subgraph_loader = NeighborLoader(copy.copy(data), input_nodes=None, num_neighbors=[-1], **options)
    del subgraph_loader.data.x, subgraph_loader.data.y  # the rows come from the layer before
    subgraph_loader.data.num_nodes = data.num_nodes
    subgraph_loader.data.n_id = torch.arange(data.num_nodes)

    model = SAGE(data.num_features, 64, int(data.y.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(5):
        model.train()
        total = 0.0
        for batch in train_loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index.to("cpu"))[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            total += loss.item() * batch.batch_size
        print(f"epoch {epoch}: loss {total / len(train_loader.dataset):.4f}")

    model.eval()
    predicted = model.inference(data.x, subgraph_loader).argmax(dim=1)
    for name in ("train", "val", "test"):
        mask = data[f"{name}_mask"]
        print(f"{name} accuracy {float((predicted == data.y)[mask].float().mean()):.4f}")


if __name__ == "__main__":
    main()
