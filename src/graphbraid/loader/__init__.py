"""Mini-batch loaders: NeighborLoader, with PyG's and torch's face, over the BatchLoader that Trainer uses."""

from graphbraid.loader.batches import BatchLoader
from graphbraid.loader.neighbor import NeighborLoader
from graphbraid.loader.plans import PLANS, read_plan

__all__ = ["PLANS", "BatchLoader", "NeighborLoader", "read_plan"]
