"""Whether the machine is quiet enough to measure on."""

from __future__ import annotations

import time

from graphbraid.machine.measurements import OtherPrograms

MOST = 0.05
"""Share of the cores' time that other programs may have; the system's own upkeep takes 1 to 2 %."""
LOOK_SECONDS = 3.0


def others_share(seconds: float = LOOK_SECONDS) -> float | None:
    """The share of the cores' time that other programs take while this one sleeps; None where unknown."""
    others = OtherPrograms()
    time.sleep(seconds)
    return others.share()


def wait_for_quiet(most_seconds: float, look_seconds: float = LOOK_SECONDS) -> float | None:
    """Look until others take no more than ``MOST`` of the cores or the time is up; their last share."""
    until = time.monotonic() + most_seconds
    share = others_share(look_seconds)
    while share is not None and share > MOST and time.monotonic() < until:
        share = others_share(look_seconds)
    return share
