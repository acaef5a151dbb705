"""Mini-batch loaders with the interfaces of PyG's, and the BatchLoader that Trainer uses.

Every other public name of ``torch_geometric.loader`` is here, too: it is PyG's own class, unchanged.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from graphbraid.lazy import names_of

if TYPE_CHECKING:
    from graphbraid.loader.batch_loader import PLANS, BatchLoader, LoaderSettings, read_plan
    from graphbraid.loader.induced import ClusterData, ClusterLoader, HGTLoader, ShaDowKHopSampler
    from graphbraid.loader.link_neighbor import LinkNeighborLoader
    from graphbraid.loader.neighbor import NeighborLoader
    from graphbraid.loader.options import LoaderOptions

__all__ = [
    "PLANS",
    "BatchLoader",
    "ClusterData",
    "ClusterLoader",
    "HGTLoader",
    "LinkNeighborLoader",
    "LoaderOptions",
    "LoaderSettings",
    "NeighborLoader",
    "ShaDowKHopSampler",
    "read_plan",
]

_OF_PYG = [  # in every version from 2.6
    "AffinityMixin",
    "CachedLoader",
    "DataListLoader",
    "DataLoader",
    "DenseDataLoader",
    "DynamicBatchSampler",
    "GraphSAINTEdgeSampler",
    "GraphSAINTNodeSampler",
    "GraphSAINTRandomWalkSampler",
    "GraphSAINTSampler",
    "ImbalancedSampler",
    "LinkLoader",
    "NeighborSampler",
    "NodeLoader",
    "PrefetchLoader",
    "RandomNodeLoader",
    "TemporalDataLoader",
    "ZipLoader",
]
if find_spec("torch_geometric") is not None:  # else ``import *`` would fail
    __all__.extend(_OF_PYG)

_own = names_of(
    __name__,
    {
        "batch_loader": "PLANS BatchLoader LoaderSettings read_plan",
        "induced": "ClusterData ClusterLoader HGTLoader ShaDowKHopSampler",
        "link_neighbor": "LinkNeighborLoader",
        "neighbor": "NeighborLoader",
        "options": "LoaderOptions",
    },
)


def __getattr__(name: str) -> Any:
    if name not in _OF_PYG:
        return _own(name)
    import torch_geometric.loader  # its import takes a second

    return getattr(torch_geometric.loader, name)
