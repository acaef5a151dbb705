"""Routes: who prepares each step of an epoch. Steps are trained in their order whatever the plan."""

from __future__ import annotations

import numpy as np

CPU, GPU = 0, 1
"""Routes: 0 prepares on the CPU and copies, 1 prepares on the device (MorphGL, section 4.1)."""

Routes = bytes
"""The route of each step."""


def spread_routes(num_batches: int, num_cpu: int) -> Routes:
    """``num_cpu`` steps of route 0, spread evenly: after k steps ``floor(k·share)`` of them were on it."""
    k = np.arange(num_batches + 1) * num_cpu // max(num_batches, 1)
    return bytes(np.where(np.diff(k) > 0, CPU, GPU).astype(np.uint8))
