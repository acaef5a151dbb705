# %% [markdown]
# # Inside compile
#
# `graphbraid.compile` reads a model of PyTorch Geometric and makes a cheaper program of it that computes the
# same.

# %%
import torch
from torch_geometric.nn import GCNConv

import graphbraid


class Net(torch.nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.first = GCNConv(features, 32)
        self.second = GCNConv(32, classes)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)


graph = graphbraid.datasets.load("braid-100k")
torch.manual_seed(0)
model = Net(graph.num_features, graph.num_classes)
engine = graphbraid.compile(model, graph, nodes="train")
engine

# %% [markdown]
# Each line with `+` is a decision that saves something, and each line with `-` one that was weighed and left.
# `prune` drops rows that no training node needs. `hoist` aggregates the features once and not in every step.
# After `Program` stand the steps that run.
#
# ## The same numbers
#
# The engine returns the rows of the training nodes, with gradients:

# %%
data = graph.to_pyg()
ours = engine()
theirs = model(data.x, data.edge_index)[graph.split("train")]
print(f"largest difference: {(ours - theirs).abs().max():.1e}")

# %% [markdown]
# ## The same loop
#
# Parameters stay the model's own. Any optimizer of PyTorch works.

# %%
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
labels = graph.y[graph.split("train")]
for epoch in range(30):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(engine(), labels)
    loss.backward()
    optimizer.step()
    if epoch % 10 == 9:
        print(f"epoch {epoch}: loss {loss.item():.3f}")
test = graph.split("test")
print(f"test accuracy {(engine.predict().argmax(dim=1) == graph.y)[test].float().mean():.3f}")

# %% [markdown]
# ## On mini-batches
#
# Without a graph, `compile` returns a module that takes batches. It reads the model at the first one.

# %%
on_batches = graphbraid.compile(model)
batch = next(iter(graphbraid.NeighborLoader(graph, [10, 10], "train", batch_size=256)))
print(on_batches(batch).shape)
on_batches
