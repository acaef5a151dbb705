"""Mini-batch loaders with the interfaces of PyG's, and the BatchLoader that Trainer uses."""

from graphbraid.loader.batches.batch_loader import BatchLoader
from graphbraid.loader.batches.plans import PLANS, read_plan
from graphbraid.loader.batches.settings import LoaderSettings
from graphbraid.loader.cluster import ClusterData, ClusterLoader
from graphbraid.loader.face import LoaderFace
from graphbraid.loader.kinds import kind_of
from graphbraid.loader.link_neighbor import LinkNeighborLoader
from graphbraid.loader.neighbor import NeighborLoader
from graphbraid.loader.shadow import ShaDowKHopSampler

__all__ = [
    "PLANS",
    "BatchLoader",
    "ClusterData",
    "ClusterLoader",
    "LinkNeighborLoader",
    "LoaderSettings",
    "NeighborLoader",
    "ShaDowKHopSampler",
    "read_plan",
]

LoaderFace.kind_of = kind_of
