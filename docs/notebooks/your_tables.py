# %% [markdown]
# # Your tables
#
# Customers buy items. Some customers leave, and we want to know who is next. This needs
# `pip install 'graphbraid[tabular]'` and pandas.

# %%
import numpy as np
import pandas as pd

numbers = np.random.default_rng(0)
customers = pd.DataFrame(
    {
        "id": [f"c{i}" for i in range(600)],
        "age": numbers.integers(18, 80, 600).astype(float),
        "plan": numbers.choice(["basic", "pro"], 600),
    }
)
customers.loc[::17, "age"] = np.nan  # cells may be empty
taste = numbers.integers(0, 2, 600)
customers["left"] = np.where(numbers.random(600) < 0.9, taste, 1 - taste)
customers.head()

# %% [markdown]
# Whoever leaves has bought other things than those who stay. No column of a customer says so: only the
# edges do.

# %%
buyers = np.repeat(np.arange(600), 5)
items = numbers.integers(0, 40, buyers.size) + 40 * taste[buyers]
bought = pd.DataFrame(
    {"source": customers["id"].to_numpy()[buyers], "destination": [f"item{i}" for i in items]}
)
bought.head()

# %% [markdown]
# ## From tables to a graph
#
# Each table of nodes is a node type. Columns become features by themselves. `item` has no table: its nodes
# are those that the edges name. `reverse=True` lets messages also run from items to customers.

# %%
import graphbraid as gb

graph = gb.Graph.from_tables(
    {"customer": customers, "item": None}, {("customer", "buys", "item"): bought}, reverse=True, name="shop"
)
graph = gb.datasets.prepare(graph, target="customer.left", split="0.5,0.2")
graph

# %% [markdown]
# Items have no columns, so the model learns a row for each of them.
#
# ## Train

# %%
model = gb.nn.RGCN.of(graph, hidden_channels=32)
trainer = gb.Trainer(model, graph, epochs=15, mode="sampled", fanouts=(8, 8), batch_size=64, lr=0.01, seed=1)
result = trainer.fit()
result

# %% [markdown]
# One label in ten is noise, so about 0.9 is the best that can be had. Probabilities of the first customers:

# %%
pd.DataFrame(trainer.predict(range(5)).softmax(dim=1).numpy(), columns=["stays", "leaves"]).round(2)
