"""Limits: the memory, buffers and search effort that a plan may use."""

from __future__ import annotations

from dataclasses import dataclass

from graphbraid.collective.plan.times import Profile
from graphbraid.errors import ResourceError
from graphbraid.files.writing import format_bytes
from graphbraid.signatures import typed


@typed
@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits on the resources of a plan and on the search for it."""

    host_bytes: int | None = None
    """Bytes of pinned memory for host buffers. If None, not limited."""
    device_bytes: int | None = None
    """Bytes of device memory for batches. If None, not limited."""
    most_cbs: int = 64
    """Largest number of host buffers."""
    most_gbs: int = 32
    """Largest number of device buffers."""
    most_tries: int = 100
    """Largest number of schedules to simulate; the best found by then is the plan."""

    def caps(self, profile: Profile) -> tuple[int, int]:
        """Return the largest ``cbs`` and ``gbs`` within the limits.

        Raises:
            ResourceError: the limits have no room for a single batch.
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
