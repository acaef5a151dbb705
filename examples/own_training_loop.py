"""A training loop of one's own: fused layers on blocks, where each layer computes only what it must."""

import torch
import torch.nn.functional as F

import graphbraid
from graphbraid.loader import NeighborLoader


def evaluate(model: torch.nn.Module, loader: NeighborLoader) -> float:
    """Accuracy on a loader's seeds, with sampled neighbourhoods."""
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for batch in loader:
            predicted = model(batch.x, batch.blocks).argmax(dim=1)  # a row per seed
            correct += int((predicted == batch.y[: batch.batch_size]).sum())
            total += batch.batch_size
    return correct / total


def main() -> None:
    torch.manual_seed(0)
    graph = graphbraid.datasets.load("braid-100k")
    model = graphbraid.nn.GraphSAGE(graph.num_features, 64, graph.num_classes, num_layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    options = {"num_neighbors": [10, 5], "layout": "blocks", "seed": 7}
    with (
        NeighborLoader(graph, input_nodes="train", batch_size=128, shuffle=True, **options) as training,
        NeighborLoader(graph, input_nodes="val", batch_size=512, **options) as validation,
        NeighborLoader(graph, input_nodes="test", batch_size=512, **options) as test,
    ):
        for epoch in range(5):
            model.train()
            # A batch depends on options, seed, epoch and step alone: batches(epoch, step) starts anywhere.
            for batch in training.batches(epoch):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(batch.x, batch.blocks), batch.y[: batch.batch_size])
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: validation accuracy {evaluate(model, validation):.4f}")
        seconds = training.stage_seconds  # of the sampling threads, which work beside the model
        print(f"sampling {seconds['sample']:.3f} s, gathering {seconds['gather']:.3f} s")
        print(f"test accuracy {evaluate(model, test):.4f}")


if __name__ == "__main__":
    main()
