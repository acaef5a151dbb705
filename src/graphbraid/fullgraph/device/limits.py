"""DeviceLimits: what the multiprocessors of a device hold at a time."""

from __future__ import annotations

from dataclasses import dataclass

from graphbraid.arguments import as_count


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceLimits:
    """What a device holds at a time.

    Raises:
        ConfigError: a number is less than 1.
    """

    num_sms: int
    """Streaming multiprocessors."""
    warps_per_sm: int
    """Warps that are resident on one."""
    shared_bytes_per_sm: int
    """Bytes of shared memory of one."""
    blocks_per_sm: int = 32
    """Blocks that are resident on one; PyTorch does not tell, and 32 is that of data centre devices."""
    warp_size: int = 32
    """Threads of a warp."""

    def __post_init__(self) -> None:
        for name in ("num_sms", "warps_per_sm", "shared_bytes_per_sm", "blocks_per_sm", "warp_size"):
            as_count(getattr(self, name), name, least=1)


__all__ = ["DeviceLimits"]
