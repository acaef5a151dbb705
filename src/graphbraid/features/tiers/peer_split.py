"""Which hot rows each of several devices keeps for itself, and which they keep between them."""

from __future__ import annotations

from typing import NamedTuple

from graphbraid.features.tiers.tier_report import Served

_POINTS = 64  # of the division at which reads are weighed


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
    served: Served, num_rows: int, capacity: int, num_peers: int, rates: ReadRates
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


__all__ = ["PeerSplit", "ReadRates", "split_over_peers"]
