"""WarpTuner: finds, while training goes on, the knobs with which the kernel reads peers' rows fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.fullgraph.device import DeviceLimits
from graphbraid.fullgraph.ranks.search import Setting
from graphbraid.fullgraph.ranks.tuner import PipelineTuner, Possible, Tuned
from graphbraid.fullgraph.ranks.warp_ladders import SIZES, Partitions, warp_ladders
from graphbraid.fullgraph.step.planned_step import PlannedStep
from graphbraid.machine.measurements import Kept
from graphbraid.ops.peers.pipeline_plan import Knobs


class TunedWarps(Tuned):
    """What a search among the kernel's knobs has found."""

    __slots__ = ()

    @property
    def knobs(self) -> Knobs:
        """The setting that was chosen.

        Raises:
            ConfigError: it is out of bounds.
        """
        return knobs_of(self.names, self.chosen)

    def apply(self, step: PlannedStep | None) -> None:
        """Set what was chosen in a step, if one is given."""
        knobs = self.knobs
        if step is not None:
            step.warps = knobs

    def described(self) -> str:
        """Return what was chosen, and by what, in words."""
        if not self.names:
            return f"{described(self.knobs)}: no sum reads rows of peers"
        first, chosen = next(iter(self.table.values())), self.table[self.chosen]
        return (
            f"{described(self.knobs)}: {1e3 * chosen:.2f} ms a step, {1e3 * first:.2f} ms at first, by "
            f"{self.num_trials} trials of {', '.join(self.names)}"
        )


class WarpTuner(PipelineTuner):
    """Sets the kernel's knobs before each step; of each rank, one.

    Unlike in how many parts rows travel, the size of a partition changes the bits of what is learned, by
    rounding. Steps are timed by the host's clock: whenever rows are published, it waits for the device, so
    that only what follows the last sum of a pass, alike in all trials, may be left out.

    Args:
        comm: the ranks, which all call the same.
        identity: text that differs where the program or the partition does.
        device: description of the device.
        limits: what it holds at a time.
    """

    _tuned: ClassVar[type[Tuned]] = TunedWarps

    def __init__(self, comm: Communicator, identity: str, device: str, limits: DeviceLimits) -> None:
        super().__init__(comm, identity, 0.0, None)
        self._device, self._limits = device, limits

    def _told(self, step: PlannedStep) -> list[Any]:
        counts = counts_of(step)
        width = max((one.width for one in step.peer_reads.values()), default=0)
        partitions = {str(ps): [one.local, one.remote] for ps, one in counts.items()}
        return [self._device, asdict(self._limits), width, partitions]

    def _possible(self, told: list[Any]) -> Possible:
        """Return the ladders by the busiest rank and the device of the first one."""
        width = max(one for _, _, one, _ in told)
        if width == 0:
            return {}, None
        partitions = {
            ps: Partitions(
                local=max(of[str(ps)][0] for *_, of in told), remote=max(of[str(ps)][1] for *_, of in told)
            )
            for ps in SIZES
        }
        return warp_ladders(width, partitions, DeviceLimits(**told[0][1]))

    def explain(self) -> list[str]:
        """Return lines that say what was found, and of which trials."""
        if self.found is None:
            return [
                "  the kernel's knobs are being tried" if self._has_begun else "  its knobs are tried first"
            ]
        return super().explain()

    @property
    def _kept(self) -> Kept[Tuned]:
        return _KEPT


def counts_of(step: PlannedStep) -> dict[int, Partitions]:
    """Return the partitions of a step's largest sum over peers' rows, by their size."""
    degrees = [one.lazy.degrees for one in step.peer_reads.values()]
    return {
        ps: Partitions(
            local=max((int(-(-local // ps).sum()) for local, _ in degrees), default=0),
            remote=max((int(-(-remote // ps).sum()) for _, remote in degrees), default=0),
        )
        for ps in SIZES
    }


def knobs_of(names: tuple[str, ...], setting: Setting) -> Knobs:
    """Return the knobs of a setting of some; the others are as they are without one.

    Raises:
        ConfigError: a knob is out of bounds.
    """
    given: Mapping[str, int] = asdict(Knobs()) | dict(zip(names, setting, strict=True))
    return Knobs(**given)


def described(knobs: Knobs) -> str:
    """Describe knobs."""
    return f"partitions of {knobs.ps} edges, {knobs.dist} of a kind a warp, {knobs.wpb} warps a block"


_KEPT: Kept[Tuned] = Kept("warps", Tuned.to_json, TunedWarps.from_json)
"""Tables of trials by machine, ranks, graph and program."""

__all__ = ["TunedWarps", "WarpTuner", "counts_of", "described", "knobs_of"]
