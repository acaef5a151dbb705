"""CoreSharing: divides the cores of a machine without a device during training, by an arrangement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from graphbraid.collective.plan.scheduler import REFILL
from graphbraid.collective.plan.times import Arrangement

if TYPE_CHECKING:
    from graphbraid.loader.batch_loader import BatchLoader


class CoreSharing:
    """A setter of the number of the model's threads before each mini-batch, according to an arrangement."""

    def __init__(self, loader: BatchLoader, cores: Arrangement) -> None:
        self._loader, self._cores = loader, cores

    def before_batch(self) -> None:
        """Give the model the cores on which no sampling thread is busy."""
        threads = self._cores.threads
        if self._cores.turns:
            threads = max(1, threads - self._loader.busy_threads)
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)

    def after_epoch(self) -> None:
        """Give the model all its threads, as no batches are being prepared."""
        torch.set_num_threads(self._cores.threads)


def follow(loader: BatchLoader, cores: Arrangement, ahead: int) -> CoreSharing:
    """Set up a loader's threads by an arrangement, and return the setter of the model's threads."""
    loader.work_in_turns(cores.workers, ahead, REFILL if cores.turns else None)
    return CoreSharing(loader, cores)
