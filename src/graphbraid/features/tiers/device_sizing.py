"""Hot rows within a device's memory: how many pay, and which of them several devices keep between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from graphbraid.features.budgets import LEAST_RESERVE_BYTES, RESERVE_SHARE
from graphbraid.features.tiers.tier_report import ReadShareCurve
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.graph.scaled_features import given_row_bytes, kept_row_bytes
from graphbraid.sampling.rows.device_cache import MAP_BYTES

_POINTS = 64  # of a curve at which reads are weighed, or less memory is tried


class ReadRates(NamedTuple):
    """Bytes per second at which a device reads rows that it does not keep."""

    peer: float | None
    """The rate of a peer's memory; None if it is not known."""
    host: float | None
    """The rate of the host's; None if it is not known."""


class PeerSplit(NamedTuple):
    """How many rows each device keeps for itself, and how many are interleaved over all."""

    own: int
    shared: int
    reason: str


def split_over_peers(
    served: ReadShareCurve, num_rows: int, capacity: int, num_peers: int, rates: ReadRates
) -> PeerSplit:
    """Divide the memory of devices so that reads are expected to take the least time.

    A row that each device keeps is read in its own memory, which costs next to nothing. One that is
    interleaved takes a device's memory only once in ``num_peers`` times and is on a peer for all but one of
    them. Everything else comes over the host's link. Of equal divisions that with more own rows is taken; so
    is it where rates are not known, as rows of peers then may come no faster than the host's.

    Args:
        served: shares of the reads by rows, those read most first.
        num_rows: rows that there are.
        capacity: rows that each device can keep.
        num_peers: devices that read each other.
        rates: of reads.
    """
    peer, host = 1 / rates.peer if rates.peer else 1.0, 1 / rates.host if rates.host else 1.0
    if rates.peer is None or rates.host is None:
        peer = host = 1.0
    capacity, best = min(capacity, num_rows), (float("inf"), 0, 0)
    for point in range(_POINTS, -1, -1):
        own = capacity * point // _POINTS
        shared = min(num_peers * (capacity - own), num_rows - own)
        upto, at_home = served.share(own + shared), served.share(own)
        seconds = peer * (upto - at_home) * (num_peers - 1) / num_peers + host * (1 - upto)
        if seconds < best[0] * (1 - 1e-9) - 1e-30:
            best = (seconds, own, shared)
    _, own, shared = best
    return PeerSplit(own, shared, _said(own, shared, num_peers, rates))


def _said(own: int, shared: int, num_peers: int, rates: ReadRates) -> str:
    if rates.peer is None or rates.host is None:
        known = "how fast a peer's rows are read is not known, so none are left to peers"
    else:
        times = rates.peer / rates.host
        known = f"by expected reads, a peer's row being read {times:.2g} times as fast as the host's"
    return f"{own:,} rows on each of {num_peers} devices and {shared:,} interleaved over them, {known}"


LEAST_GAIN = 0.01
"""Share of an epoch's time that rows must save to be worth a device's memory, if the link's rate is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceMemory:
    """The memory of a device, and how rows come there."""

    free_bytes: int | None
    """Device memory that may be taken; None if it is not known."""
    link_bytes_per_second: float | None
    """Rate at which rows are copied there; None if it is not known."""

    def less(self, taken: int) -> int | None:
        """Return what is free once ``taken`` bytes are not; None if it is not known."""
        return None if self.free_bytes is None else max(0, self.free_bytes - taken)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceBudget:
    """The memory of a device for feature rows that ``tiers="auto"`` takes."""

    hot: int | None
    """Bytes, as ``TieredFeatures.build`` takes them; None: no rows stay there."""
    needed_bytes: int
    """What the run needs beside them: model, optimizer, batches, and what the device samples from."""
    reserve_bytes: int
    """What is left free."""
    reason: str


def device_budget(
    graph: Graph,
    reads: Tensor,
    memory: DeviceMemory,
    *,
    needed_bytes: int,
    epoch_seconds: float | None,
    reserve_bytes: int | None = None,
) -> DeviceBudget:
    """Choose the memory of a device for a graph's feature rows.

    Rows that are read take it as far as they fit. Where the link's rate is known, so many do that all others
    together would save less than 1 % of an epoch.

    Args:
        graph: whose dense rows are placed.
        reads: ``(num_nodes,)`` of each row in an epoch.
        memory: of the device.
        needed_bytes: what the run needs there beside the rows.
        epoch_seconds: of an epoch's training, its rows at hand. If None, not known.
        reserve_bytes: left free. If None, a tenth of what is free, and 256 MiB at least.
    """
    free, x = memory.free_bytes, graph.x

    def chosen(hot: int | None, reason: str, reserve: int = 0) -> DeviceBudget:
        return DeviceBudget(hot=hot, needed_bytes=needed_bytes, reserve_bytes=reserve, reason=reason)

    if isinstance(x, SparseFeatures | None):
        return chosen(None, "no rows on the device: only dense features are put in tiers")
    if not x.shape[1]:
        return chosen(None, "no rows on the device: the features have no columns")
    if free is None:
        return chosen(None, "no rows on the device: its free memory is not known")
    reserve = max(int(RESERVE_SHARE * free), LEAST_RESERVE_BYTES) if reserve_bytes is None else reserve_bytes
    words = f"{format_bytes(free)} less {format_bytes(needed_bytes)} for the rest of the run"
    words += f" and a reserve of {format_bytes(reserve)}" if reserve else ""
    map_bytes, row_bytes = MAP_BYTES * graph.num_nodes, max(kept_row_bytes(x), 1)
    fit = (free - needed_bytes - reserve - map_bytes) // row_bytes
    if fit < 1:
        return chosen(None, f"no rows on the device: there is no memory for them ({words})", reserve)
    served, most = ReadShareCurve(reads), min(fit, int((reads > 0).sum()))
    rows, gain = most, ""
    if memory.link_bytes_per_second is not None and epoch_seconds is not None:
        travelling = float(reads.sum()) * given_row_bytes(x) / memory.link_bytes_per_second
        rows = _worth(served, most, travelling, LEAST_GAIN * epoch_seconds)
        gain = (
            f", which save {served.share(rows) * travelling:.3g} s an epoch on the link; its training takes "
            f"{epoch_seconds:.3g} s"
        )
    if rows < 1:
        return chosen(None, "no rows on the device: those that fit save less than 1 % of an epoch", reserve)
    hot = map_bytes + rows * row_bytes
    held = f"{format_bytes(hot)} of the device for {rows:,} rows ({served.share(rows):.1%} of the reads)"
    return chosen(hot, f"{held}{gain}: {words}", reserve)


def _worth(served: ReadShareCurve, most: int, travelling: float, least: float) -> int:
    """Return the fewest rows but which all up to ``most`` would save less than ``least`` seconds."""
    counts = [most * point // _POINTS for point in range(_POINTS + 1)]
    whole = served.share(most)
    return next(count for count in counts if (whole - served.share(count)) * travelling <= least)
