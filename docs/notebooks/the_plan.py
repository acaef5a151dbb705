# %% [markdown]
# # The plan and its timeline
#
# Collective batching: CPU and GPU prepare mini-batches together. A plan says who prepares which one. Plans
# are found by simulation, so this notebook needs no GPU.
#
# ## Four times
#
# For one batch: a CPU worker prepares it, the bus copies it, the GPU trains on it, or the GPU prepares it by
# itself. Here they are given. `graphbraid plan` measures them.

# %%
from graphbraid.collective import Duration, Limits, Profile, StageTimes, fixed_plan, make_plan, simulated

times = StageTimes(
    workers=4,
    cpu=Duration(seconds=0.020),
    dma=Duration(seconds=0.003),
    model=Duration(seconds=0.004),
    uva=Duration(seconds=0.006),
)
profile = Profile(times=(times,))
plan = make_plan(profile, num_batches=200)
plan

# %% [markdown]
# The bound is a time that no schedule can beat. The plans of other kinds are below it: the CPU alone, or the
# GPU alone.
#
# ## The timeline
#
# The simulated epoch is a list of stages. Each has a step, a worker, a start and an end.

# %%
epoch = simulated(plan)
for stage in sorted(epoch.ops, key=lambda stage: stage.start)[:12]:
    print(f"{1000 * stage.start:6.1f} to {1000 * stage.end:6.1f} ms: {stage.stage:5} of batch {stage.step}")

# %% [markdown]
# How much of the time does each resource work? The one that never rests is the limit.

# %%
from graphbraid.collective.run.trace import use, write_trace

{name: f"{share:.0%}" for name, share in use(epoch.ops).items()}

# %% [markdown]
# The same as a page with lanes and the bound. Open it in a browser.

# %%
import tempfile

trace, page = write_trace(f"{tempfile.mkdtemp()}/epoch.json", epoch.ops, plan)
print(f"{page.name}: {page.stat().st_size // 1024} KiB")

# %% [markdown]
# ## What if?
#
# Twice as fast a bus, or half of the batches given to the CPU by hand:

# %%
faster = Profile(times=(times.what_if(link=2.0),))
for name, other in {
    "as it is": plan,
    "bus twice as fast": make_plan(faster, num_batches=200),
    "half on the CPU": fixed_plan(profile, num_batches=200, share=0.5),
    "two host buffers": make_plan(profile, num_batches=200, limits=Limits(most_cbs=2)),
}.items():
    print(f"{name:18} {other.predicted_seconds:.2f} s, {other.split:.0%} of the batches on the CPU")

# %% [markdown]
# ## Follow it
#
# `Trainer(model, graph, device="cuda", plan="auto")` measures, plans and trains. Without a GPU a loader with
# `plan="cpu"` measures, too:

# %%
import graphbraid

graph = graphbraid.datasets.load("braid-100k")
model = graphbraid.nn.GraphSAGE(graph.num_features, 64, graph.num_classes, num_layers=2)
loader = graphbraid.NeighborLoader(graph, [10, 10], "train", batch_size=256, plan="cpu")
for batch in loader:
    model(batch.x, batch.edge_index)
loader.plan
