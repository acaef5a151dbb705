"""Routes: which side prepares the batch of each step. Steps are trained in order whatever the plan."""

from __future__ import annotations

import numpy as np

CPU, GPU = 0, 1
"""The two routes: 0 prepares on the CPU and copies, 1 prepares on the device (MorphGL, section 4.1)."""

Routes = bytes
"""Route of each step, one byte per step."""


def spread_routes(num_batches: int, num_cpu: int) -> Routes:
    """Return routes with ``num_cpu`` steps of route 0 spread evenly: ``floor(k·share)`` of the first k."""
    k = np.arange(num_batches + 1) * num_cpu // max(num_batches, 1)
    return bytes(np.where(np.diff(k) > 0, CPU, GPU).astype(np.uint8))
