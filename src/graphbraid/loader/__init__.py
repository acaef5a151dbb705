"""Mini-batch loaders with the interfaces of PyG's, and the BatchLoader that Trainer uses."""

from graphbraid.loader.batch_loader import BatchLoader
from graphbraid.loader.cluster import ClusterData, ClusterLoader
from graphbraid.loader.link_neighbor import LinkNeighborLoader
from graphbraid.loader.neighbor import NeighborLoader
from graphbraid.loader.options import PLANS, LoaderOptions, LoaderSettings, read_plan
from graphbraid.loader.shadow import ShaDowKHopSampler

__all__ = [
    "PLANS",
    "BatchLoader",
    "ClusterData",
    "ClusterLoader",
    "LinkNeighborLoader",
    "LoaderOptions",
    "LoaderSettings",
    "NeighborLoader",
    "ShaDowKHopSampler",
    "read_plan",
]
