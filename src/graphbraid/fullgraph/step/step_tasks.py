"""StepTasks: the tasks of a training step, in the order in which they are planned."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from graphbraid.fullgraph.step.arena import Buffer, StepTask
from graphbraid.fullgraph.step.calls.device_copies import DeviceCopies
from graphbraid.fullgraph.step.calls.repeated import MaskSeed, Repeated
from graphbraid.fullgraph.step.calls.rows import FirstRows
from graphbraid.fullgraph.step.parameter_gradients import ParameterGradients


class StepTasks(ParameterGradients):
    """The tasks planned so far, and the parameters' gradients that they write.

    Args:
        copies: copies what a step reads to a device. If None, the step runs where the graph is.
    """

    def __init__(self, copies: DeviceCopies | None) -> None:
        super().__init__(on_host=copies is None)
        self.copies = copies
        self.tasks: list[StepTask] = []
        self.repeated: list[Repeated] = []
        """The tasks that bind their kernels' arguments."""
        self.planning = ""
        """Name of the value whose operation is being planned."""

    @staticmethod
    def scratch(name: str, count: int, *width: int, dtype: torch.dtype = torch.float32) -> FirstRows:
        """Return a new buffer of ``count`` rows; a vector has no width."""
        return FirstRows(Buffer(name, (count, *width), dtype), count)

    def do(self, name: str, run: Callable[[], object], *touches: FirstRows) -> None:
        """Add a task.

        Args:
            name: name of the value that it computes, or any other text if it computes none.
            run: the call that does the work.
            touches: all rows in the arena that it reads or writes.
        """
        self.tasks.append(StepTask(name, run, tuple(rows.buffer for rows in touches), self.planning))

    def repeat(
        self,
        name: str,
        run: Callable[..., object],
        *touches: FirstRows,
        seed: MaskSeed | None = None,
        gradient_of: nn.Parameter | None = None,
    ) -> None:
        """Add a task that is one kernel call; on the host its arguments are bound after the first steps.

        Args:
            name: see :meth:`do`.
            run: the call, on memory that does not move; with ``gradient_of``, it takes the gradient's memory.
            touches: see :meth:`do`.
            seed: seed of the call's dropout mask. If None, it has no mask.
            gradient_of: the parameter whose gradient the kernel writes.
        """
        lent = None if gradient_of is None else self.lent_to(gradient_of)
        if self.copies is None:
            repeated = Repeated(run, seed=seed, lent=lent)
            self.repeated.append(repeated)
            self.do(name, repeated, *touches)
        elif lent is None:
            self.do(name, run, *touches)
        else:

            def lend_and_give() -> None:
                out = lent.lend()
                run(out)
                lent.give(out)

            self.do(name, lend_and_give, *touches)
