"""Tiers of a loader's features sized by themselves, from the free memory and its own batches."""

from __future__ import annotations

import dataclasses

from graphbraid.arguments import shown
from graphbraid.errors import ConfigError
from graphbraid.features.budgets.sizing import host_budget
from graphbraid.features.scores.score import score
from graphbraid.features.tiers.tiered_features import TieredFeatures
from graphbraid.graph import Graph
from graphbraid.graph.scaled_features import given_row_bytes
from graphbraid.loader.batches.batch_loader import BatchLoader
from graphbraid.loader.batches.settings import LoaderSettings
from graphbraid.machine.hardware import free_memory_bytes
from graphbraid.sampling.rows.by_id import FeatureRows

AUTO = "auto"


def tiers_of(graph: Graph, settings: LoaderSettings, tiers: FeatureRows | str | None) -> FeatureRows | None:
    """Return the tiers that a loader was given, or makes for ``"auto"``; None: features from the graph.

    Raises:
        ConfigError: neither a source of rows nor ``"auto"``.
        ResourceError: the store's file cannot be read.
    """
    if tiers is None or (not isinstance(tiers, str) and hasattr(tiers, "gather")):
        return tiers
    if tiers != AUTO:
        raise ConfigError(f"tiers must be 'auto', a source of feature rows or None; got {shown(tiers)}")
    x = graph.x
    row_bytes = given_row_bytes(x)
    with BatchLoader(graph, dataclasses.replace(settings, gather=False, plan=None)) as loader:
        ahead, sampler, schedule = loader.ahead, loader.config, loader.schedule
        [batch] = loader.batches(0, 0, 1) if len(loader) else [None]
    num_nodes, num_edges = (0, 0) if batch is None else (batch.num_nodes, batch.num_edges)
    batches = (2 * ahead + 2) * (num_nodes * (16 + row_bytes) + 4 * num_edges)
    topology = graph.nbytes - (0 if x is None else x.nbytes)
    budget = host_budget(
        graph, free_bytes=free_memory_bytes(), needed_bytes=batches + topology, with_lists=False
    )
    if budget.host is None:
        return None
    reads = None
    if budget.host:  # a loader does not know how long its user's run is, so this does not look ahead
        reads = score(graph, "auto", sampler=sampler, schedule=schedule, as_reads=True)
    return TieredFeatures.build(graph, host=budget.host, score=reads)
