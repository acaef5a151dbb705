"""A plain PyTorch Geometric model, trained on the whole graph at once by a lowered, fused program."""

import torch
import torch.nn.functional as F
from torch_geometric.nn import GCNConv

import graphbraid


class Net(torch.nn.Module):
    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(GCNConv(widths[i], widths[i + 1]) for i in range(len(widths) - 1))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        for conv in self.convs[:-1]:
            x = F.dropout(F.relu(conv(x, edge_index)), p=0.3, training=self.training)
        return self.convs[-1](x, edge_index)


def main() -> None:
    torch.manual_seed(0)
    graph = graphbraid.datasets.load("braid-100k")
    model = Net([graph.num_features, 64, 64, graph.num_classes])
    engine = graphbraid.compile(model, graph)
    print(engine.explain())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    labels = graph.y[graph.split("train")]
    for epoch in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(engine(), labels)  # the outputs of the training nodes, in their order
        loss.backward()
        optimizer.step()
        if epoch % 20 == 19:
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    test = graph.split("test")
    correct = engine.predict()[test].argmax(dim=1) == graph.y[test]
    print(f"test accuracy {correct.float().mean():.4f}")


if __name__ == "__main__":
    main()
