"""Hot rows in a device's memory: how many pay, and how several devices divide them."""

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
    """Bytes per second at which a device reads rows from other memories."""

    peer: float | None
    """From a peer's memory; None if not known."""
    host: float | None
    """From the host's memory; None if not known."""


class PeerSplit(NamedTuple):
    """Number of rows that each device keeps for itself, and of rows interleaved over all."""

    own: int
    shared: int
    reason: str


def split_over_peers(
    served: ReadShareCurve, num_rows: int, capacity: int, num_peers: int, rates: ReadRates
) -> PeerSplit:
    """Divide the memory of devices for the least expected time of reads.

    A device reads its own rows at almost no cost. An interleaved row takes memory on only one of
    ``num_peers`` devices, and the others read it from there. All other rows come over the host's link. Of
    equal divisions, the one with more own rows is taken, and also if rates are not known, since peers may
    then be no faster than the host. ``served`` is the curve of reads by rows, most read first, and
    ``capacity`` the rows of each device.
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
    return PeerSplit(own, shared, _reason(own, shared, num_peers, rates))


def _reason(own: int, shared: int, num_peers: int, rates: ReadRates) -> str:
    if rates.peer is None or rates.host is None:
        known = "how fast a peer's rows are read is not known, so none are left to peers"
    else:
        times = rates.peer / rates.host
        known = f"by expected reads, a peer's row being read {times:.2g} times as fast as the host's"
    return f"{own:,} rows on each of {num_peers} devices and {shared:,} interleaved over them, {known}"


LEAST_GAIN = 0.01
"""Share of an epoch's time that rows must save to get a device's memory, if the link's rate is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceMemory:
    """The memory of a device, and its link."""

    free_bytes: int | None
    """Free device memory; None if not known."""
    link_bytes_per_second: float | None
    """Rate of copies to the device; None if not known."""

    def less(self, taken: int) -> int | None:
        """Return the free bytes less ``taken``; None if not known."""
        return None if self.free_bytes is None else max(0, self.free_bytes - taken)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceBudget:
    """The memory of a device for feature rows that ``tiers="auto"`` takes."""

    hot: int | None
    """Bytes for ``TieredFeatures.build``; None: no rows stay there."""
    needed_bytes: int
    """Bytes that the run needs beside them: model, optimizer, batches, and the graph of a sampling device."""
    reserve_bytes: int
    """Bytes that are left free."""
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
    """Choose the memory of a device for a graph's dense feature rows by their reads of an epoch.

    It holds the rows that are read, as far as they fit. If the link's rate is known, rows are left out that
    together would save less than 1 % of an epoch, whose seconds without waits for rows are ``epoch_seconds``.
    ``needed_bytes`` are the run's own; ``reserve_bytes`` stay free, by default a tenth, at least 256 MiB.
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
    """Return the fewest rows such that the others up to ``most`` would save less than ``least`` seconds."""
    counts = [most * point // _POINTS for point in range(_POINTS + 1)]
    whole = served.share(most)
    return next(count for count in counts if (whole - served.share(count)) * travelling <= least)
