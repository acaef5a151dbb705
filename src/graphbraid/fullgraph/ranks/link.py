"""Link: the way between ranks as the alpha-beta model sees it, measured and kept."""

from __future__ import annotations

import logging
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.machine.measurements import NOT_KEPT, Kept

PROBE_BYTES = 1 << 18
_REPEATS = 5
_ALIKE = 2.0
"""Factor within which a link measured anew is the one that was measured before."""
_MESSAGE, _BYTE = "ranks: a message", "ranks: a byte"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """The network model of a message: seconds to begin it, and seconds for each byte (alpha and beta)."""

    message_seconds: float
    byte_seconds: float

    def to_trials(self) -> dict[str, float]:
        """Return the seconds by name, as the evidence of a lowering holds them."""
        return {_MESSAGE: self.message_seconds, _BYTE: self.byte_seconds}

    @classmethod
    def of_trials(cls, found: Mapping[str, float]) -> Link | None:
        """Return the link that :meth:`to_trials` gave; None if there is none among what was found."""
        if _MESSAGE not in found or _BYTE not in found:
            return None
        return cls(message_seconds=found[_MESSAGE], byte_seconds=found[_BYTE])

    def is_like(self, other: Link) -> bool:
        """Return whether two measurements may be of the same link."""
        pairs = zip(asdict(self).values(), asdict(other).values(), strict=True)
        return all(max(pair) <= _ALIKE * min(pair) for pair in pairs)


def measured_link(comm: Communicator) -> Link:
    """Measure exchanges between all ranks, which all call this together; the slowest counts.

    Raises:
        RankError: a rank was lost.
    """

    def exchange(num_bytes: int) -> float:
        others = [0 if rank == comm.rank else num_bytes for rank in range(comm.size)]
        data = torch.zeros(sum(others), dtype=torch.uint8)
        seconds = []
        for _ in range(_REPEATS):
            began = perf_counter()
            comm.all_to_all(data, others, others).wait()
            seconds.append(perf_counter() - began)
        return float(max(comm.gather(median(seconds))))

    empty, full = exchange(1), exchange(PROBE_BYTES)
    num_bytes = PROBE_BYTES * max(1, comm.size - 1)
    return Link(message_seconds=empty, byte_seconds=max(full - empty, 1e-9) / num_bytes)


def steady_link(comm: Communicator) -> Link:
    """Measure the link between all ranks, which all call this together, as :func:`measured_link` does.

    What is measured again is the link as it was measured first, so that what is decided by it, and with it
    the bits of a run, is the same in each run. Rank 0 keeps it.

    Raises:
        RankError: a rank was lost.
    """
    link = measured_link(comm)
    machines = comm.gather(platform.node())  # also after a restart, unlike machine_name()
    if comm.rank == 0:
        file = _KEPT.file(f"{comm.name} {machines}")
        kept = _KEPT.read(file)
        if kept is not None and kept.is_like(link):
            link = kept
        else:
            _keep(file, link)
    return Link(**comm.share(asdict(link)))


def _keep(file: Path, link: Link) -> None:
    try:
        _KEPT.write(file, link)
    except NOT_KEPT as error:
        _log.warning("the measured link between the ranks could not be kept: %s", error)


def _read(content: Mapping[str, float]) -> Link:
    link = Link(**{name: float(seconds) for name, seconds in content.items()})
    if not all(0 < seconds < float("inf") for seconds in asdict(link).values()):
        raise ValueError("seconds must be positive")
    return link


_KEPT = Kept("links", asdict, _read)
"""Links by transport and machines."""

__all__ = ["Link", "measured_link", "steady_link"]
