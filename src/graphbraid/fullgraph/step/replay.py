"""Replay: the passes of a planned step are recorded once on a device and then each started by one call."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.fullgraph.device import NotRecordedError, Run
from graphbraid.fullgraph.step.planned_step import PlannedStep
from graphbraid.fullgraph.step.request import StepRequest


@dataclass(frozen=True, slots=True)
class RecordedPasses:
    """The recorded passes of a step."""

    forward: Run
    backward: Run
    gradients: dict[int, Tensor]
    """The gradients that a replay of ``backward`` writes, by the parameter's ``id``."""
    addresses: tuple[int, ...]
    """Addresses of the parameters and the modules' buffers."""
    modes: tuple[bool, ...]
    """Whether each module was in training mode."""


class ReplayedStep(PlannedStep):
    """A :class:`PlannedStep` on a device that records its passes after the first whole step.

    The first step compiles kernels and chooses among them. A recording holds addresses: those of the arena
    and the graph do not change, and if a parameter is given other memory, the passes are recorded again.
    While modules are in another mode than when recorded, passes run call by call.
    """

    def __init__(self, request: StepRequest) -> None:
        super().__init__(request)
        assert request.copies is not None
        self._device = request.copies.device
        self._recording: RecordedPasses | None = None
        self._num_steps = 0
        self._replays: RecordedPasses | None = None
        """The recording that the last forward pass replayed; None if it ran call by call."""
        by_torch = self.run_by_torch()
        self.why_not = f"{by_torch[0]} runs through PyTorch's autograd" if by_torch else ""
        """Why the passes are not recorded; empty if they are or will be."""

    @property
    def is_recorded(self) -> bool:
        """Whether the passes are recorded."""
        return self._recording is not None

    def _run_forward(self) -> None:
        if self._recording is not None and self._recording.addresses != self._addresses():
            self._recording = None
        if self._recording is None and self._num_steps > 0 and not self.why_not:
            self._recording = self._record()
        recorded = self._recording
        self._replays = recorded if recorded is not None and recorded.modes == self._modes() else None
        if self._replays is None:
            super()._run_forward()
        else:
            self._replays.forward()

    def _run_backward(self) -> dict[int, Tensor]:
        self._num_steps += 1
        if self._replays is None:
            return super()._run_backward()
        self._replays.backward()
        # Copies, since the caller may keep them and the next step overwrites the recorded ones.
        return {key: grad.clone() for key, grad in self._replays.gradients.items()}

    def _record(self) -> RecordedPasses | None:
        random_state, run_backward = torch.get_rng_state(), super()._run_backward
        try:
            forward = self._device.record(super()._run_forward)
            gradients: dict[int, Tensor] = {}
            backward = self._device.record(lambda: gradients.update(run_backward()))
        except NotRecordedError as error:
            self.why_not = f"the device could not record it: {error}"
            return None
        if not torch.equal(random_state, torch.get_rng_state()):
            torch.set_rng_state(random_state)
            self.why_not = "an operation draws random numbers on the host"
            return None
        return RecordedPasses(forward, backward, gradients, self._addresses(), self._modes())

    def _addresses(self) -> tuple[int, ...]:
        numbers = (number for module in self._modules for number in module.buffers(recurse=False))
        return tuple(tensor.data_ptr() for tensor in (*self.program.parameters(), *numbers))
