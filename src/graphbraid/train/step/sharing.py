"""CoreSharing: the cores of a machine without a device, as an arrangement divides them while training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from graphbraid.collective.plan.arrangement import Arrangement
from graphbraid.collective.plan.cores import REFILL

if TYPE_CHECKING:
    from graphbraid.loader.batches import BatchLoader


class CoreSharing:
    """Sets the threads of the model's operators before each mini-batch, as an arrangement says."""

    def __init__(self, loader: BatchLoader, cores: Arrangement) -> None:
        self._loader, self._cores = loader, cores

    def before_batch(self) -> None:
        """Give the model the cores that no preparing thread is busy on."""
        threads = self._cores.threads
        if self._cores.turns:
            threads = max(1, threads - self._loader.busy_threads)
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)

    def after_epoch(self) -> None:
        """Nobody prepares any more."""
        torch.set_num_threads(self._cores.threads)


def follow(loader: BatchLoader, cores: Arrangement, ahead: int) -> CoreSharing:
    """Let a loader's threads work as an arrangement says; returns what sets the model's."""
    loader.work_in_turns(cores.workers, ahead, REFILL if cores.turns else None)
    return CoreSharing(loader, cores)
