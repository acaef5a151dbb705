"""Limits: the memory and buffers that a plan may use."""

from __future__ import annotations

from dataclasses import dataclass

from graphbraid.collective.plan.times import Profile
from graphbraid.errors import ResourceError
from graphbraid.files.writing import format_bytes
from graphbraid.signatures import typed


@typed
@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a plan may use."""

    host_bytes: int | None = None
    """Pinned memory for host buffers; None: not limited."""
    device_bytes: int | None = None
    """Device memory for batches; None: not limited."""
    most_cbs: int = 64
    """Host buffers."""
    most_gbs: int = 32
    """Device buffers."""
    most_tries: int = 100
    """Schedules simulated, at most; what was found by then is the plan."""

    def caps(self, profile: Profile) -> tuple[int, int]:
        """The largest cbs and gbs.

        Raises:
            ResourceError: not even one batch fits.
        """
        kept = profile.lookahead_bytes if any(times.lookahead for times in profile.times) else 0
        device_bytes = None if self.device_bytes is None else self.device_bytes - kept
        return (
            _fitting("host", self.host_bytes, profile.host_batch_bytes, self.most_cbs),
            _fitting("device", device_bytes, profile.device_batch_bytes, self.most_gbs),
        )


def _fitting(where: str, limit_bytes: int | None, batch_bytes: int, most: int) -> int:
    if limit_bytes is None or batch_bytes == 0:
        return most
    if limit_bytes < batch_bytes:
        raise ResourceError(
            f"a mini-batch needs {format_bytes(batch_bytes)} of {where} memory and "
            f"{format_bytes(limit_bytes)} are allowed; lower batch_size or the fanouts"
        )
    return min(most, limit_bytes // batch_bytes)
