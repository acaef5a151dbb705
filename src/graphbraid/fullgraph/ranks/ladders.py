"""The settings of a pipeline that are worth a trial, bounded by a model of the link and of the sums.

In K parts, K - 1 more messages begin and the sums so far are read and written K - 1 more times. What that can
save is at most what lies between the arrival of the first part and that of the last: (1 - 1/K) of the time on
the way. So K parts can pay only if K times the cost of one is less than that time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from graphbraid.fullgraph.lowering.route import Pipeline
from graphbraid.fullgraph.ranks.link import Link

RUNGS = (1, 2, 4, 8)
"""Numbers of parts that are tried."""
LARGEST = Pipeline(chunks=RUNGS[-1], back_chunks=RUNGS[-1])
"""The pipeline of the most parts, for which memory is planned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What the exchanges of a step, whose rows are summed part by part, move and sum on one rank."""

    exchanges: int
    """Number of exchanges."""
    bytes: int
    """Bytes that all of them together send or receive, whichever are more."""
    back_bytes: int
    """The same of those whose gradients travel back."""
    sum_bytes: int
    """Bytes of sums that a further part of each reads and writes."""


def ladders(
    loads: Sequence[Load], link: Link, stream_bytes: float, threads: int
) -> dict[str, tuple[int, ...]]:
    """Return the values of each knob that are worth trying, for those that have more than one.

    No knob where nothing travels to an aggregation.

    Args:
        loads: those of all ranks; the busiest counts.
        link: the ways between them.
        stream_bytes: bytes per second that a rank reads or writes in order.
        threads: threads that every rank has.
    """
    if not any(load.bytes for load in loads):
        return {}
    found = {"chunks": (1,), "back_chunks": (1,), "threads": _threads(threads)}
    begin = max(load.exchanges for load in loads) * link.message_seconds
    sums = max(load.sum_bytes for load in loads) / stream_bytes
    forth, back = (max(getattr(load, name) for load in loads) for name in ("bytes", "back_bytes"))
    found["chunks"] = _rungs(forth * link.byte_seconds, begin + sums)
    found["back_chunks"] = _rungs(back * link.byte_seconds, begin)
    return {name: values for name, values in found.items() if len(values) > 1}


def pipeline_of(names: Sequence[str], setting: Sequence[int]) -> Pipeline:
    """Return the pipeline of a setting of some knobs; the others are as where rows travel whole."""
    return Pipeline(**(asdict(Pipeline()) | dict(zip(names, setting, strict=True))))


def _rungs(travel_seconds: float, part_seconds: float) -> tuple[int, ...]:
    return tuple(rung for rung in RUNGS if rung == 1 or rung * part_seconds < travel_seconds)


def _threads(count: int) -> tuple[int, ...]:
    """Return numbers of threads, from all, that leave some cores to what moves the rows."""
    return tuple(dict.fromkeys((count, max(1, count - 1), max(1, count // 2))))


__all__ = ["LARGEST", "RUNGS", "Load", "ladders", "pipeline_of"]
