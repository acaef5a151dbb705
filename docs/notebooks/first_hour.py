# %% [markdown]
# # First hour
#
# A graph, a model, a run, and a mini-batch. Everything is built in: you need no files.

# %%
import graphbraid

graph = graphbraid.datasets.load("braid-100k")
graph

# %% [markdown]
# ## Train
#
# A node's class is predicted from its own features and those of its neighbours. GraphSAGE with two layers
# looks two steps away, so `fanouts` has two numbers: how many neighbours are drawn at each step.

# %%
model = graphbraid.nn.GraphSAGE(graph.num_features, 64, graph.num_classes, num_layers=2)
options = {"epochs": 5, "fanouts": (10, 10), "batch_size": 256, "lr": 0.01, "seed": 1}
trainer = graphbraid.Trainer(model, graph, **options)
result = trainer.fit()
result

# %% [markdown]
# ## Predict
#
# Prediction uses all neighbours, not a sample. These are the classes of the first ten nodes:

# %%
trainer.predict(range(10)).argmax(dim=1)

# %% [markdown]
# ## Look inside a batch
#
# `NeighborLoader` has the arguments of PyG's. A batch begins with its seeds. Then come the nodes that the
# first hop drew, then those of the second. The second table lists what has been read so far. Labels, edges
# and all else are made when you read them.

# %%
loader = graphbraid.NeighborLoader(graph, [10, 10], "train", batch_size=256, shuffle=True, seed=1)
batch = next(iter(loader))
batch

# %% [markdown]
# Now `edge_index` is read, and is held from here on:

# %%
print(batch.edge_index.shape)
batch

# %% [markdown]
# ## What would a run cost?
#
# An estimate counts memory, and tries a few steps. It also says whether to take the whole graph at once.

# %%
graphbraid.estimate(model, graph, epochs=20)
