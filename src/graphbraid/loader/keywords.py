"""The options that each loader takes by name, for type checkers, ``help()`` and constructors alike.

:class:`graphbraid.loader.LoaderOptions` says what each means, and its default; a test holds the types to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import Tensor
from torch.utils.data import Sampler

if TYPE_CHECKING:
    import os

    from graphbraid.collective.plan.plan import Plan
    from graphbraid.collective.run.stages import BatchDevice
    from graphbraid.sampling.rows.by_id import FeatureSource
    from graphbraid.sampling.sample import NeighborLists


class WithoutEffect(TypedDict, total=False):
    """Options of torch's and PyG's loaders that cannot change a batch here."""

    filter_per_worker: bool | None
    in_order: bool
    is_sorted: bool
    multiprocessing_context: Any
    persistent_workers: bool
    pin_memory_device: str
    timeout: float
    worker_init_fn: Callable[[int], None] | None


class ClusterKeywords(WithoutEffect, total=False):
    """Options of :class:`graphbraid.loader.ClusterLoader`: about order, preparation and device."""

    batch_size: int
    shuffle: bool
    drop_last: bool
    sampler: Sampler[int] | Iterable[int] | None
    batch_sampler: Sampler[list[int]] | Iterable[list[int]] | None
    generator: torch.Generator | None
    pin_memory: bool
    transform: Callable[[Any], Any] | None
    seed: int | None
    num_workers: int
    prefetch_factor: int | None
    device: BatchDevice | str


class HGTKeywords(ClusterKeywords, total=False):
    """Options of :class:`graphbraid.loader.HGTLoader`, beside its positional ones."""

    return_edge_id: bool
    gather: bool
    input_id: Tensor | None


class DrawnKeywords(ClusterKeywords, total=False):
    """Options of loaders that draw neighbours."""

    return_edge_id: bool
    src_degree: bool
    plan: Plan | str | os.PathLike[str] | None
    hot_bytes: int | None
    temporal_strategy: str
    time_attr: str | None
    weight_attr: str | None
    input_id: Tensor | None
    tiers: FeatureSource | str | None
    topology: NeighborLists | None


class SampledKeywords(DrawnKeywords, total=False):
    """Options of loaders that choose the form of their batches."""

    replace: bool
    layout: str
    subgraph_type: str
    gather: bool
    disjoint: bool


class ShadowKeywords(DrawnKeywords, total=False):
    """Options of :class:`graphbraid.loader.ShaDowKHopSampler`, beside its positional ones."""

    input_time: Tensor | None
    epochs: int | None


class NeighborKeywords(SampledKeywords, ShadowKeywords, total=False):
    """Options of :class:`graphbraid.loader.NeighborLoader`, beside its positional ones."""


class LinkNeighborKeywords(SampledKeywords, total=False):
    """Options of :class:`graphbraid.loader.LinkNeighborLoader`, beside its positional ones."""

    neg_sampling: Any
    neg_sampling_ratio: float | None
    exclude_seed_edges: bool | str


_LAST = ("transform_sampler_output", "is_sorted", "filter_per_worker", "neighbor_sampler", "directed")
HGT_ORDER = ("is_sorted", "transform", "transform_sampler_output", "filter_per_worker")
"""PyG's order of the arguments of an HGTLoader, after ``input_nodes``."""
NEIGHBOR_ORDER = (
    *("input_time", "replace", "subgraph_type", "disjoint", "temporal_strategy", "time_attr", "weight_attr"),
    *("transform", *_LAST),
)
"""PyG's order of the arguments of a NeighborLoader, after ``input_nodes``."""
LINK_NEIGHBOR_ORDER = (
    *("replace", "subgraph_type", "disjoint", "temporal_strategy", "neg_sampling", "neg_sampling_ratio"),
    *("time_attr", "weight_attr", "transform", *_LAST),
)
"""PyG's order of the arguments of a LinkNeighborLoader, after ``edge_label_time``."""


def names_in(keywords: type[WithoutEffect], *positional: str) -> tuple[str, ...]:
    """Return the names of a loader's own options, the positional ones first."""
    own = (name for name in keywords.__annotations__ if name not in WithoutEffect.__annotations__)
    return (*positional, *own)
