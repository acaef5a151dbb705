"""What a run on mini-batches holds on its device beside model and batches, and what more there would buy."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import NamedTuple

from graphbraid.collective.hardware.device_choice import LOCAL_ID_BYTES, resident_bytes, resident_in
from graphbraid.collective.hardware.device_placement import PARTS, choose_placement, part_bytes_of
from graphbraid.collective.run.stages import Context
from graphbraid.estimates.records import Need, Needs
from graphbraid.estimates.trial import Trial
from graphbraid.features import Score, TieredFeatures
from graphbraid.features.tiers.tier_report import SHARES, Served
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.graph.scaled_features import given_row_bytes, kept_row_bytes
from graphbraid.sampling.rows.device_cache import MAP_BYTES, DeviceCache
from graphbraid.train.config import TrainConfig
from graphbraid.train.estimating.records import HotEstimate
from graphbraid.train.step.feed import make_loader

_SAMPLER_PARTS = {
    "topology": "which the device samples from",
    "labels": "and what else batches are made of by id",
    "features": "which the device reads where it samples",
    "lists": "the adjacency lists read most, of a topology that does not fit",
    "rows": "that the device chooses by out-degree",
    "local ids": "of the device's sampler",
}


class DeviceRun(NamedTuple):
    """A run's rows and parts on the device, as estimates ask for them."""

    graph: Graph
    served: Served
    epoch_reads: float
    """Rows that an epoch reads."""
    hot: DeviceCache | None
    """Rows of ``config.hot``; None if none are asked for."""
    placed: tuple[Need, ...]
    """What the device's sampler keeps there."""

    @property
    def num_hot(self) -> int:
        """Rows of ``config.hot``."""
        return 0 if self.hot is None else self.hot.num_rows

    def needs(self, needs: Needs) -> Needs:
        """Return the needs of the device with hot rows and what its sampler keeps.

        Args:
            needs: of model, optimizer, batches and steps.
        """
        hot = () if self.hot is None else (self._hot_need(self.num_hot, self.hot.map_bytes),)
        return replace(needs, held=(*needs.held, *hot, *self.placed))

    def link_bytes(self, num_hot: int) -> float:
        """Return the bytes of rows that are expected to travel in an epoch with ``num_hot`` on the device."""
        return (1 - self.served.share(num_hot)) * self.epoch_reads * given_row_bytes(self.graph.x)

    def curve(self, needs: Needs, device_bytes: int | None) -> tuple[HotEstimate, ...]:
        """Return what more and more rows on the device would bring.

        Args:
            needs: of model, optimizer, batches and steps.
            device_bytes: of the device's memory. If None, not known.
        """
        sampler = sum(need.nbytes for need in self.placed if need.name in ("topology", "labels", "local ids"))
        points = []
        for share in (0.0, *SHARES):
            rows = int(share * self.graph.num_nodes)
            hot = self._hot_need(rows, MAP_BYTES * self.graph.num_nodes if rows else 0).nbytes
            whole = needs.nbytes + sampler + hot
            points.append(
                HotEstimate(
                    rows=rows,
                    hot_bytes=hot,
                    expected_share=self.served.share(rows),
                    link_bytes_per_epoch=self.link_bytes(rows),
                    device_bytes=whole,
                    fits=device_bytes is None or whole <= device_bytes,
                )
            )
        return tuple(points)

    def _hot_need(self, rows: int, map_bytes: int) -> Need:
        x = self.graph.x
        assert not isinstance(x, SparseFeatures | None), "only dense rows are hot"
        nbytes = rows * kept_row_bytes(x) + map_bytes
        return Need(name="hot rows", nbytes=nbytes, why=f"{rows:,} rows, and what finds them")


def device_run(trial: Trial, reads: Score, free_bytes: int | None, hot: int | str | None = None) -> DeviceRun:
    """Return what a run whose features are dense has on its device.

    Args:
        trial: the run.
        reads: of each row in an epoch.
        free_bytes: of the device, beside the model's parameters. If None, not known, and what a device
            that samples would place is not counted.
        hot: memory for rows there, in place of ``config.hot``. If None, that.

    Raises:
        ConfigError: ``config.hot`` holds no row.
    """
    graph, config, tiers = trial.graph, trial.config, None
    hot = config.hot if hot is None else hot
    if hot:
        tiers = TieredFeatures.build(graph, hot=hot, score=reads)
    samples = config.plan != "cpu" if config.plan is not None else tiers is not None  # whose plan is auto
    placed = () if free_bytes is None or not samples else _placed(trial, tiers, free_bytes // 2)
    return DeviceRun(
        graph=graph,
        served=Served(reads.values),
        epoch_reads=float(reads.values.sum()),
        hot=None if tiers is None else tiers.hot,
        placed=placed,
    )


def _placed(trial: Trial, tiers: TieredFeatures | None, room: int) -> tuple[Need, ...]:
    """Return what the device's sampler keeps in ``room`` bytes, as it chooses when a run begins."""
    context = _context(trial)
    context = dataclasses.replace(context, source=dataclasses.replace(context.source, rows=tiers))
    held = dict(resident_bytes(resident_in(room, context), context))
    if tiers is not None:
        held["rows"] = 0  # are those of ``hot``
    return tuple(
        Need(name=name, nbytes=held[name], why=why) for name, why in _SAMPLER_PARTS.items() if held[name]
    )


def sampler_bytes(trial: Trial, free_bytes: int | None) -> int:
    """Return what topology, labels and local ids take on a device that samples, as far as they fit.

    Args:
        trial: the run.
        free_bytes: of the device, half of which is for them. If None, not known.
    """
    if trial.config.plan == "cpu" or free_bytes is None:
        return 0
    context, local_ids = _context(trial), LOCAL_ID_BYTES * trial.graph.num_nodes
    sizes = part_bytes_of(context)
    placement = choose_placement(sizes, free_bytes // 2 - local_ids)
    return local_ids + sum(sizes[part] for part in PARTS[:2] if placement[part] == "device")


def _context(trial: Trial) -> Context:
    """Return the context of the run's mini-batches, with which nothing is placed."""
    with make_loader(trial.runner, trial.config.updated(plan=None), trial.nodes) as loader:
        return loader.context(1)


def hot_in_vain(config: TrainConfig, has_device: bool) -> str:
    """Return why ``config.hot`` cannot be had; empty if it can, or is not asked for."""
    if not config.hot or has_device:
        return ""
    return f"hot={config.hot!r} keeps feature rows on a device, and the machine has none"
