"""Mini-batch loaders with the interfaces of PyG's, and the BatchLoader that Trainer uses."""

from typing import TYPE_CHECKING

from graphbraid.lazy import names_of

if TYPE_CHECKING:
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

__getattr__ = names_of(
    __name__,
    {
        "batch_loader": "BatchLoader",
        "cluster": "ClusterData ClusterLoader",
        "link_neighbor": "LinkNeighborLoader",
        "neighbor": "NeighborLoader",
        "options": "PLANS LoaderOptions LoaderSettings read_plan",
        "shadow": "ShaDowKHopSampler",
    },
)
