"""Whether the machine is quiet enough to measure on."""

from __future__ import annotations

import os
import time
from pathlib import Path

from graphbraid.machine.measurements import OtherPrograms

MOST = 0.05
"""Share of the cores' time that other programs may have; the system's own upkeep takes 1 to 2 %."""
LOOK_SECONDS = 3.0
FIRST = "GRAPHBRAID_BENCHMARK_FIRST"
"""Environment variable: 1 gives the benchmark a higher priority than other programs. This needs root.
Rows do not note it."""


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


def before_others() -> None:
    """Give this process's session the cores before other programs, if :data:`FIRST` asks for it."""
    if os.environ.get(FIRST) == "1":
        if os.getpgrp() != os.getpid():  # who leads a group cannot leave its session
            os.setsid()
        Path("/proc/self/autogroup").write_text("-20")
