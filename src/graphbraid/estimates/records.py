"""Records of an estimate: memory and seconds part by part, and the choices for a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from graphbraid.collective.plan.times import format_seconds
from graphbraid.features.budgets import HostBudget
from graphbraid.features.tiers.device_sizing import DeviceBudget
from graphbraid.files.writing import format_bytes
from graphbraid.machine.measurements import is_disturbed

if TYPE_CHECKING:
    from graphbraid.estimates.machine import HardwareFile

Mode = Literal["sampled", "full"]
"""Mode of a run, after ``auto`` has chosen."""


# ---- memory


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """A part of a run's memory."""

    name: str
    nbytes: int
    why: str = ""
    """The way it was counted."""
    mapped: bool = False
    """Whether it is pages of a file. They count as the process's memory until the system drops them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """A run's parts in one memory: parts for the whole run, and further ones in each phase."""

    held: tuple[Need, ...]
    """Parts held from the first step to the last."""
    phases: tuple[Need, ...] = ()
    """Further parts of each phase (a step, a validation, the test) at its peak; phases do not overlap."""

    @property
    def nbytes(self) -> int:
        """Peak in bytes: the held parts and the largest phase."""
        return sum(need.nbytes for need in self.held) + self.most

    @property
    def most(self) -> int:
        """Bytes of the largest phase."""
        return max((need.nbytes for need in self.phases), default=0)

    @property
    def must_bytes(self) -> int:
        """Peak without pages of files, which the system drops if memory is short."""
        return self.nbytes - sum(need.nbytes for need in self.held if need.mapped)

    def bytes_of(self, name: str) -> int:
        """Return the bytes of the parts of this name; 0 if there are none."""
        return sum(need.nbytes for need in (*self.held, *self.phases) if need.name == name)

    def rows(self) -> Iterator[tuple[str, int, str]]:
        """Yield name, bytes and reason of each part that is not empty; phases are marked as such."""
        for need in self.held:
            if need.nbytes:
                yield need.name, need.nbytes, need.why + "; pages of a file" * need.mapped
        for need in self.phases:
            if need.nbytes:
                counts = "" if need.nbytes == self.most else "; a later or earlier phase holds more"
                yield f"({need.name})", need.nbytes, need.why + counts


# ---- seconds


@dataclass(frozen=True, slots=True)
class PartSeconds:
    """The time of a part of a run."""

    seconds: float | None
    """None if not known; ``how`` then has the reason."""
    how: str = ""
    """Origin of the number."""

    @property
    def known(self) -> float:
        """The time in seconds, where it is known."""
        assert self.seconds is not None, self.how
        return self.seconds

    def __str__(self) -> str:
        """Return the time with its unit."""
        return "not known" if self.seconds is None else format_seconds(self.seconds)

    def times(self, factor: float) -> PartSeconds:
        """Return ``factor`` times the time."""
        return replace(self, seconds=None if self.seconds is None else self.seconds * factor)


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochSeconds:
    """The time of an epoch, and of the parts that a run has once."""

    train: PartSeconds
    """Training of an epoch."""
    validation: PartSeconds | None = None
    """An epoch's share of a validation (``eval_every``); None if there is none."""
    checkpoints: PartSeconds | None = None
    """Checkpoints that an epoch writes, except the best one's; None without a folder."""
    test: PartSeconds | None = None
    """The test at the end; None if there is none."""
    first: float = 0.0
    """Extra seconds of the first epoch, which allocates memory and reads pages of files."""
    floor: float | None = None
    """Lower bound of the compiled step by the machine's rates; None for mini-batches."""
    others: float | None = None
    """Share of the cores that other programs used while steps were tried; None if it is not known."""

    @property
    def total(self) -> float:
        """Seconds of an epoch: the sum of its parts with known time."""
        parts = (self.train, self.validation, self.checkpoints)
        return sum(part.seconds or 0.0 for part in parts if part is not None)

    def of_run(self, epochs: int) -> float:
        """Return the seconds of a run of ``epochs``, with the parts that come once."""
        test = 0.0 if self.test is None else self.test.seconds or 0.0
        return self.first + epochs * self.total + test

    def parts(self) -> Iterator[tuple[str, PartSeconds]]:
        """Yield each part with its name; parts of an epoch first, parts that come once in brackets."""
        train = self.train
        if self.others is not None and is_disturbed(self.others):
            slower = f"while other programs used {self.others:.0%} of the cores; alone, a run is faster"
            train = replace(train, how=f"{train.how}, {slower}")
        yield "training", train
        if self.validation is not None:
            yield "validation", self.validation
        if self.checkpoints is not None:
            yield "checkpoints", self.checkpoints
        if self.first:
            yield "(first epoch)", PartSeconds(self.first, "longer: memory is taken, pages of files are read")
        if self.test is not None:
            yield "(test)", replace(self.test, how=f"once, at the end; {self.test.how}")

    def scaled(self, factor: float, why: str) -> EpochSeconds:
        """Return the times on hardware where computing takes ``factor`` times as long."""
        train = self.train.times(factor)
        return replace(
            self,
            train=replace(train, how=f"{train.how}; {why}"),
            validation=None if self.validation is None else self.validation.times(factor),
            test=None if self.test is None else self.test.times(factor),
            first=self.first * factor,
            floor=None if self.floor is None else self.floor * factor,
        )


# ---- the whole


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeEstimate:
    """Needs of a run in one mode."""

    mode: Mode
    host: Needs | None
    """Memory that it needs; None if not known, with the reason in ``reason``."""
    device: Needs | None = None
    """Memory that it needs on the model's device; None without a device."""
    disk_bytes: int = 0
    """Bytes of written files: checkpoints, activations beyond exact inference's budget."""
    seconds: EpochSeconds | None = None
    """Time of an epoch; None if it is not known or not requested."""
    epochs: int = 1
    fits: bool = True
    """Whether memory, device and disk have room for it."""
    reason: str = ""
    """The missing room, or the reason why needs are not known."""

    @property
    def heading(self) -> str:
        """The mode, and whether the machine has room for it."""
        said = f"mode {self.mode}: {'fits' if self.fits else 'does not fit'}"
        return f"{said} ({self.reason})" if self.reason else said

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield name, amount and reason of each line of its table; names of parts are indented."""
        for place, needs in (("memory", self.host), ("device", self.device)):
            if needs is not None:
                mapped = needs.nbytes - needs.must_bytes
                said = f"{format_bytes(mapped)} of it pages of files" if mapped else "at its peak"
                yield place, format_bytes(needs.nbytes), said
                yield from ((f"  {name}", format_bytes(nbytes), why) for name, nbytes, why in needs.rows())
        if self.disk_bytes:
            yield "disk", format_bytes(self.disk_bytes), "files that the run writes"
        if (taken := self.seconds) is not None:
            run = f"{format_seconds(taken.of_run(self.epochs))} for {self.epochs:,} epochs"
            yield "epoch", format_seconds(taken.total), run
            yield from ((f"  {name}", str(part), part.how) for name, part in taken.parts())
            if taken.floor is not None:
                yield "  floor", format_seconds(taken.floor), "least time of the compiled step"


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Needs of a run before it starts. It prints as the output of ``graphbraid estimate``."""

    hardware: HardwareFile
    modes: tuple[ModeEstimate, ...]
    mode: Mode
    """Choice of ``mode="auto"``."""
    mode_reason: str
    tiers: HostBudget
    """Choice of ``tiers="auto"`` for mini-batches."""
    device_tiers: DeviceBudget | None = None
    """Its choice for rows on the device; None without a device."""
    tier_score: str = ""
    """Score by which a run fills tiers, with the reason; empty without tiers."""

    def of(self, mode: str) -> ModeEstimate:
        """Return the estimate of one mode, ``sampled`` or ``full``; KeyError if there is no such mode."""
        for found in self.modes:
            if found.mode == mode:
                return found
        raise KeyError(mode)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with the sums of each mode's needs."""
        content = dataclasses.asdict(self)
        for plain, found in zip(content["modes"], self.modes, strict=True):
            for place, needs in (("host", found.host), ("device", found.device)):
                if needs is not None:
                    plain[place] |= {"nbytes": needs.nbytes, "must_bytes": needs.must_bytes}
            if found.seconds is not None:
                run = found.seconds.of_run(found.epochs)
                plain["seconds"] |= {"total": found.seconds.total, "run": run}
        return content

    def choices(self) -> list[str]:
        """Return a sentence for each choice that a run would make, with the reason."""
        reasons = [self.tiers.reason, *([] if self.device_tiers is None else [self.device_tiers.reason])]
        filled = [f"tiers are filled by the score {self.tier_score}"] if self.tier_score else []
        chosen = f"mode auto: {self.mode}, as {self.mode_reason}"
        return [chosen, *(f"tiers auto: {reason}" for reason in reasons), *filled]

    def __str__(self) -> str:
        lines = self.choices()
        for found in self.modes:
            lines += ["", found.heading]
            lines += [f"  {name:<16} {amount:>13}  {why}" for name, amount, why in found.rows()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from graphbraid.figures import notebook, preformatted

        return notebook(f"Estimate: mode {self.mode}", preformatted(self))
