"""Sizes the tiers of a loader's features by the free memory and the loader's batches."""

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from graphbraid.arguments import as_count, shown
from graphbraid.collective.hardware.device_resident import sampled_part_bytes
from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.run.stages import Context, ReportsMemory, find
from graphbraid.errors import ConfigError
from graphbraid.features.budgets import host_budget
from graphbraid.features.scores.choice import sampling_seconds
from graphbraid.features.scores.score import Score, score
from graphbraid.features.tiers.device_sizing import DeviceBudget, DeviceMemory, device_budget
from graphbraid.features.tiers.tiered_features import TieredFeatures
from graphbraid.graph import Graph, ScaledFeatures
from graphbraid.graph.scaled_features import given_row_bytes
from graphbraid.loader.batch_loader import BatchLoader, LoaderSettings
from graphbraid.machine.hardware import free_memory_bytes
from graphbraid.sampling.config import DIRECTIONAL, MOST_EPOCHS
from graphbraid.sampling.rows.by_id import FeatureSource
from graphbraid.sampling.rows.device_cache import free_bytes

AUTO = "auto"


class LoaderTiers(NamedTuple):
    """The tiers of a loader's features."""

    rows: FeatureSource | None
    """None: in the graph."""
    reason: str = ""
    """Choice of ``"auto"`` with its reason; empty for other tiers."""


def tiers_of(
    graph: Graph,
    settings: LoaderSettings,
    tiers: FeatureSource | str | None,
    *,
    epochs: int | None = None,
    is_plain: bool = True,
) -> LoaderTiers:
    """Return the tiers that a loader was given, or makes for ``"auto"``, and the reason.

    ``"auto"`` may look ahead over ``epochs``, if they are known. Plans and look-ahead need batches that start
    from plain nodes in the order of ``settings`` (``is_plain``). ConfigError: ``tiers`` are none, or
    ``epochs`` cannot be used. ResourceError: the store's file cannot be read.
    """
    if epochs is not None:
        epochs = as_count(epochs, "epochs", least=1, most=MOST_EPOCHS)
        _check_epochs(epochs, tiers, is_plain=is_plain)
    if tiers is None or (not isinstance(tiers, str) and hasattr(tiers, "gather")):
        return LoaderTiers(tiers)
    if tiers != AUTO:
        raise ConfigError(f"tiers must be 'auto', a source of feature rows or None; got {shown(tiers)}")
    with BatchLoader(graph, dataclasses.replace(settings, gather=False, plan=None, device="cpu")) as loader:
        return _TierSizing(graph, settings, loader, epochs, is_plain=is_plain).made()


def _check_epochs(epochs: int, tiers: FeatureSource | str | None, *, is_plain: bool) -> None:
    if tiers != AUTO:
        raise ConfigError(
            f"epochs={epochs} limits the look-ahead of tiers='auto', and tiers are "
            f"{'not used' if tiers is None else 'given'}; leave epochs out: a loader can be iterated as "
            "often as you like"
        )
    if not is_plain:
        raise ConfigError(
            f"epochs={epochs} looks ahead over plain nodes in the loader's own order; leave epochs out, or "
            "the options that change seeds or order: sampler, batch_sampler, disjoint and times"
        )


class _TierSizing:
    """Sizes the tiers of a loader, and makes them."""

    def __init__(
        self,
        graph: Graph,
        settings: LoaderSettings,
        loader: BatchLoader,
        epochs: int | None,
        *,
        is_plain: bool,
    ) -> None:
        self._graph, self._settings, self._loader = graph, settings, loader
        self._epochs, self._is_plain = epochs, is_plain

    def made(self) -> LoaderTiers:
        graph = self._graph
        topology = graph.nbytes - (0 if graph.x is None else graph.x.nbytes)
        host = host_budget(
            graph,
            free_bytes=free_memory_bytes(),
            needed_bytes=self._batch_bytes() + topology,
            with_lists=False,
        )
        reason, hot, refused = host.reason, 0, self._refused_rows()
        reads = self._reads() if host.host or (self._has_device and not refused) else None
        if reads is not None and self._has_device and not refused:
            device = self._device_budget(reads)
            hot, reason = device.hot or 0, f"{reason}; {device.reason}"
        elif self._has_device:
            reason = f"{reason}; no rows on the device: {refused}"
        if host.host is None and not hot:
            return LoaderTiers(None, reason)
        return LoaderTiers(TieredFeatures.build(graph, host=host.host, hot=hot, score=reads), reason)

    @property
    def _has_device(self) -> bool:
        device = self._settings.batch_device
        return not isinstance(device, torch.device) or device.type != "cpu"

    def _batch_bytes(self) -> int:
        """Return the bytes of the batches that wait at a time, by the first one."""
        loader = self._loader
        if not len(loader):
            return 0
        [batch] = loader.batches(0, 0, 1)
        each = batch.num_nodes * (16 + given_row_bytes(self._graph.x)) + 4 * batch.num_edges
        return (2 * loader.ahead + 2) * each

    def _refused_rows(self) -> str:
        """Return why batches of this kind cannot use rows on a device; empty if they can."""
        if not isinstance(self._graph.x, Tensor | ScaledFeatures):
            return "only dense features are put in tiers"
        if not len(self._loader):
            return "there is no batch"
        if not self._settings.gather:
            return "with gather=False batches bring none"
        if self._is_plain and self._settings.subgraph_type == DIRECTIONAL:
            return ""
        return (
            "copies leave them out by a plan, and plans are made for the drawn edges of plain nodes in the "
            "loader's own order"
        )

    def _reads(self) -> Score:
        """Return the reads of each row, looked ahead as far as the known length of the run allows.

        A run takes at least as long as its batches take to be sampled by the loader's own threads.
        """
        loader, seconds = self._loader, None
        if self._epochs is not None:
            each = sampling_seconds(
                self._graph, loader.config, loader.schedule, 0, self._settings.num_workers
            )
            seconds = self._epochs * each
        return score(
            self._graph,
            "auto",
            sampler=loader.config,
            schedule=loader.schedule,
            epochs=self._epochs or 1,
            run_seconds=seconds,
            as_reads=True,
        )

    def _device_budget(self, reads: Score) -> DeviceBudget:
        """Return the memory for rows: ``hot_bytes``, or half of the free memory, less the sampler's share.

        The rest is left to batches and to a model, which a loader does not know.
        """
        device, room = self._settings.batch_device, self._settings.hot_bytes
        if isinstance(device, torch.device):
            free = free_bytes(device)
        else:
            free = device.free_bytes() if isinstance(device, ReportsMemory) else None
        free = room if free is None else free
        needed = 0
        if free is not None:
            room = free // 2 if room is None else min(room, free)
            needed = free - room + self._sampled_bytes(room)
        memory = DeviceMemory(free_bytes=free, link_bytes_per_second=None)
        return device_budget(
            self._graph, reads.values, memory, needed_bytes=needed, epoch_seconds=None, reserve_bytes=0
        )

    def _sampled_bytes(self, room: int) -> int:
        """Return the bytes of topology, labels and local ids on a sampling device, of those that fit."""
        context = dataclasses.replace(self._loader.context(1), device=self._settings.batch_device)
        if not _samples(self._settings.plan, context):
            return 0
        return sampled_part_bytes(room, context)


def _samples(plan: object, context: Context) -> bool:
    """Return whether the device of a loader with this plan may prepare batches; without one it does not."""
    if plan is None or plan == "cpu" or find("batching", context.hardware) is None:
        return False
    return not isinstance(plan, Plan) or plan.num_cpu < plan.num_batches
