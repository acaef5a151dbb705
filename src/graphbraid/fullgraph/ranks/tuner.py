"""PipelineTuner: finds, while training goes on, in how many parts rows travel fastest between these ranks.

Each trial is a few steps of training, whose results do not depend on the setting. Ranks tell each other their
times; the first one searches (:mod:`.search`) among what the model allows (:mod:`.ladders`) and tells all
what to try next, so that every rank does the same. What is found is kept between runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, ClassVar, Self

import torch
import xxhash

from graphbraid.distributed.ranks.communicator import Communicator
from graphbraid.fullgraph.device import HOST
from graphbraid.fullgraph.lowering.route import Pipeline
from graphbraid.fullgraph.ranks.ladders import Load, ladders, pipeline_of
from graphbraid.fullgraph.ranks.link import Link
from graphbraid.fullgraph.ranks.search import CrossIterationSearch, Setting
from graphbraid.fullgraph.step.planned_step import PlannedStep
from graphbraid.machine.measurements import NOT_KEPT, Kept

STEPS = 6
"""Steps of a trial; the first, which makes what the setting needs, does not count."""
MOST_SPREAD = 0.1
"""Largest part by which the counted steps of a typical trial may differ for the table to be kept."""
_VERSION = "2"

Possible = tuple[Mapping[str, Sequence[int]], Callable[[Setting], bool] | None]
"""The values of each knob, from the one to begin with, and which settings are worth a trial, or None: all."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """What a search has found."""

    names: tuple[str, ...]
    """The knobs; none if only one setting was worth trying."""
    table: dict[Setting, float]
    """Seconds of a step's passes by setting, in the order of the trials."""
    chosen: Setting
    num_trials: int = 0
    """Number of trials; those near the fastest were tried more than once."""

    @property
    def pipeline(self) -> Pipeline:
        """The setting that was chosen."""
        return pipeline_of(self.names, self.chosen)

    def described(self) -> str:
        """Return what was chosen, and by what, in words."""
        if not self.names:
            return f"{described(self.pipeline)}: more parts cost more than they could save"
        first, chosen = next(iter(self.table.values())), self.table[self.chosen]
        return (
            f"{described(self.pipeline)}: {1e3 * chosen:.2f} ms a step, {1e3 * first:.2f} ms whole, by "
            f"{self.num_trials} trials of {', '.join(name.replace('_', ' ') for name in self.names)}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        table = [[list(setting), seconds] for setting, seconds in self.table.items()]
        found = {"names": list(self.names), "table": table, "chosen": list(self.chosen)}
        return found | {"num_trials": self.num_trials}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Return what :meth:`to_json` gave.

        Raises:
            ValueError, TypeError, KeyError: it is something else.
            ConfigError: no pipeline has such a setting.
        """
        table = {tuple(map(int, setting)): float(seconds) for setting, seconds in content["table"]}
        names, chosen = tuple(map(str, content["names"])), tuple(map(int, content["chosen"]))
        if names and chosen not in table:
            raise ValueError("the setting that was chosen is not in the table")
        found = cls(names=names, table=table, chosen=chosen, num_trials=int(content["num_trials"]))
        found.apply(None)  # refuses what is out of bounds
        return found

    def apply(self, step: PlannedStep | None) -> None:
        """Set what was chosen in a step, if one is given.

        Raises:
            ConfigError: no step has such a setting.
        """
        if step is None:
            _ = self.pipeline
        else:
            step.pipeline = self.pipeline


class PipelineTuner:
    """Sets the pipeline of a training step before each step; of each rank, one.

    Args:
        comm: the ranks, which all call the same.
        identity: text that differs where the program, the wire or the partition does.
        stream_bytes: bytes per second that a rank reads or writes in order, the same on all ranks.
        link: the way between the ranks, the same on all of them; None if nothing is bounded by it.
    """

    _tuned: ClassVar[type[Tuned]] = Tuned

    def __init__(self, comm: Communicator, identity: str, stream_bytes: float, link: Link | None) -> None:
        self._comm, self._identity, self._stream_bytes, self._link = comm, identity, stream_bytes, link
        self._search: CrossIterationSearch | None = None
        self._names: tuple[str, ...] = ()
        self._seconds: list[float] = []
        self._spreads: list[float] = []
        self._key = ""
        self._has_begun = False
        self.is_kept = False
        """Whether what was found comes from an earlier run."""
        self.found: Tuned | None = None
        """What was found; None while trials go on."""

    def before_step(self, step: PlannedStep) -> None:
        """Take the time of the step before, and set the pipeline of the next.

        Raises:
            RankError: a rank was lost.
        """
        if self.found is not None:
            return
        if not self._has_begun:
            self._has_begun = True
            self._begin(step)
        elif step.seconds is not None:
            self._seconds.append(step.seconds)
            if len(self._seconds) == STEPS:
                self._end_trial(step)

    def explain(self) -> list[str]:
        """Return lines that say what was found, and of which trials."""
        if self.found is None:
            return [
                "  in how many parts is being tried" if self._has_begun else "  in how many is tried first"
            ]
        lines = [f"  {self.found.described()}{' in an earlier run' if self.is_kept else ''}"]
        for setting, seconds in self.found.table.items():
            values = zip(self.found.names, setting, strict=True)
            text = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values)
            lines.append(f"    {text}: {1e3 * seconds:.2f} ms")
        return lines

    # ---- trials

    def _begin(self, step: PlannedStep) -> None:
        """Read what is kept, or begin to search; the first rank decides."""
        told = self._comm.gather(self._told(step))
        self._key = f"{_VERSION} {self._comm.name} {self._identity} {told}"
        kept = None
        if self._comm.rank == 0:
            kept = self._kept.read(self._kept.file(self._key))
        kept = self._comm.share(None if kept is None else kept.to_json())
        if kept is not None:
            self.is_kept = True
            self._end(self._tuned.from_json(kept), step)
            return
        found, allowed = self._possible(told)
        found = self._comm.share({name: list(values) for name, values in found.items()})
        self._names = tuple(found)
        if self._comm.rank == 0:
            self._search = CrossIterationSearch(found, allowed=allowed)
        if not found:
            self._end(self._tuned(names=(), table={}, chosen=()), step)
        else:
            self._try(step, tuple(values[0] for values in found.values()))

    def _told(self, step: PlannedStep) -> list[Any]:
        """Return, as plain values, what this rank tells of itself and of a step before the search."""
        return [HOST.name, asdict(load_of(step)), torch.get_num_threads()]

    def _possible(self, told: list[Any]) -> Possible:
        """Return what is worth a trial, by what the ranks have told."""
        assert self._link is not None, "what bounds the parts of rows"
        loads, threads = [Load(**load) for _, load, _ in told], min(count for *_, count in told)
        return ladders(loads, self._link, self._stream_bytes, threads), None

    def _try(self, step: PlannedStep, setting: Setting) -> None:
        self._tuned(names=self._names, table={}, chosen=setting).apply(step)

    @property
    def _kept(self) -> Kept[Tuned]:
        """Tables of trials by machine, ranks, graph and program."""
        return _KEPT

    def _end_trial(self, step: PlannedStep) -> None:
        counted = self._seconds[1:]
        self._seconds = []
        told = self._comm.gather([min(counted), max(counted)])
        following: dict[str, Any] = {}
        if self._search is not None:
            self._spreads.append(max(most / least - 1 for least, most in told))
            self._search.tell(max(least for least, _ in told))
            following = {"next": self._search.next}
            if self._search.next is None:
                following["found"] = self._found_by(self._search).to_json()
        following = self._comm.share(following)
        if following["next"] is None:
            self._end(self._tuned.from_json(following["found"]), step)
            self._keep()
        else:
            self._try(step, tuple(following["next"]))

    def _found_by(self, search: CrossIterationSearch) -> Tuned:
        return self._tuned(
            names=self._names, table=search.table, chosen=search.best, num_trials=search.num_trials
        )

    def _end(self, found: Tuned, step: PlannedStep) -> None:
        found.apply(step)
        self.found = found

    def _keep(self) -> None:
        """Keep what was found, on the first rank, unless something disturbed the trials."""
        if self._search is None or self.found is None:
            return
        if median(self._spreads) > MOST_SPREAD:
            _log.info("steps of one setting differ by %.0f %%: not kept", 100 * median(self._spreads))
            return
        try:
            self._kept.write(self._kept.file(self._key), self.found)
        except NOT_KEPT as error:
            _log.warning("in how many parts rows travel fastest could not be kept: %s", error)


def load_of(step: PlannedStep) -> Load:
    """Return what the exchanges of a step move whose rows are summed part by part."""
    found = step.chunked
    moved = {name: one.most_rows * one.row_bytes for name, one in found.items()}
    return Load(
        exchanges=len(found),
        bytes=sum(moved.values()),
        back_bytes=sum(count for name, count in moved.items() if step.program.learns(name)),
        sum_bytes=sum(one.sum_bytes for one in found.values()),
    )


def described(pipeline: Pipeline) -> str:
    """Describe a pipeline."""
    parts = [
        "rows travel whole" if pipeline.chunks == 1 else f"rows travel in {pipeline.chunks} parts",
        "gradients whole" if pipeline.back_chunks == 1 else f"gradients in {pipeline.back_chunks}",
    ]
    if pipeline.threads is not None:
        parts.append(f"{pipeline.threads} threads sum own rows meanwhile")
    return ", ".join(parts)


def identity_of(parts: dict[str, str]) -> str:
    """Return a text that differs where one of several does."""
    return xxhash.xxh3_128(repr(sorted(parts.items())).encode()).hexdigest()


_KEPT = Kept("pipelines", Tuned.to_json, Tuned.from_json)
"""Tables of trials by machine, ranks, graph and program."""

__all__ = ["STEPS", "PipelineTuner", "Tuned", "described", "identity_of", "load_of"]
