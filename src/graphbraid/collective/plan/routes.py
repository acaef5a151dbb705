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


def drawn_routes(num_batches: int, share: float, seed: int) -> Routes:
    """Each step takes route 0 with probability ``share``, whatever the others take."""
    draw = np.random.default_rng(seed).random(num_batches)
    return bytes(np.where(draw < share, CPU, GPU).astype(np.uint8))
