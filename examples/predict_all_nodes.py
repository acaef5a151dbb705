"""Exact predictions for every node, layer by layer over all neighbours, under a memory budget."""

import torch

import graphbraid


def main() -> None:
    torch.manual_seed(0)
    graph = graphbraid.datasets.load("braid-100k")
    model = graphbraid.nn.GraphSAGE(graph.num_features, 64, graph.num_classes, num_layers=2)
    trainer = graphbraid.Trainer(
        model, graph, epochs=5, fanouts=(10, 5), batch_size=128, lr=0.01, memory_budget_bytes=64 << 20
    )
    trainer.fit()

    # Each layer is computed once for all nodes, instead of a sampled neighbourhood per node.
    probabilities = trainer.predict(probabilities=True)
    confidence, predicted = probabilities.max(dim=1)
    print(f"{tuple(probabilities.shape)} probabilities; mean confidence {confidence.mean():.4f}")

    few = trainer.predict([3, 1, 3])  # some nodes, in this order
    assert few.shape[0] == 3
    test = graph.split("test")
    assert graph.y is not None
    print(f"test accuracy {(predicted == graph.y)[test].float().mean():.4f}")


if __name__ == "__main__":
    main()
