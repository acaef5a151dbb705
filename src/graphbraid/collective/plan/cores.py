"""Division of the cores of a machine without a device between preparing batches and training.

There are three kinds of arrangement. Some threads prepare batches and others train; or all cores train while
additional threads prepare; or they *take turns*: threads prepare a few batches ahead and then rest, and the
model uses their cores in the meantime. The best one is found by measurement: each is tried for some steps on
copies of the model and optimizer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from graphbraid.collective.plan.arrangement import Arrangement
from graphbraid.collective.plan.limits import Limits
from graphbraid.collective.plan.plan import Plan, RunnerUp
from graphbraid.collective.plan.times import Profile, StageTimes

AHEAD, REFILL = 8, 1
"""Number of batches that threads prepare before they rest, and number of batches left when they continue, for
arrangements in turns."""


def arrangements(cores: int, worker_counts: Sequence[int], *, may_take_turns: bool) -> list[Arrangement]:
    """Return the arrangements worth trying, the most promising first."""
    counts = sorted({*worker_counts, cores})
    found = [Arrangement(workers=w, threads=cores, turns=True) for w in counts] if may_take_turns else []
    found += [Arrangement(workers=w, threads=max(1, cores - w)) for w in counts]
    found.append(Arrangement(workers=1, threads=cores))
    return list(dict.fromkeys(found))


def expected_seconds(cores: Arrangement, times: Sequence[StageTimes], num_cores: int) -> float:
    """Estimate the seconds per step from stage times, to leave out arrangements that cannot win.

    Training is assumed to need the same core-seconds on any number of cores: those it took beside the largest
    number of workers.
    """
    alone = times[-1]
    prepare = min(t.cpu.seconds for t in times)
    train = alone.model.seconds * max(1, num_cores - alone.workers)
    if cores.turns or cores.workers + cores.threads > num_cores:
        return max((prepare + train) / num_cores, prepare / cores.workers, train / max(cores.threads, 1))
    return max(prepare / cores.workers, train / cores.threads)


def ahead_of(cores: Arrangement, profile: Profile, limits: Limits) -> int:
    """Return the number of batches prepared ahead: three per worker; in turns as many as fit, up to AHEAD."""
    if not cores.turns:
        return 3 * cores.workers  # as in a loader without a plan
    least = 2 * cores.workers
    if limits.host_bytes is None or not profile.host_batch_bytes:
        return max(least, AHEAD)
    return max(least, min(AHEAD, limits.host_bytes // profile.host_batch_bytes))


def plan_of_trials(profile: Profile, num_batches: int, limits: Limits) -> Plan:
    """Return the plan for the arrangement with the fastest trial."""
    best, *others = sorted(profile.trials, key=lambda trial: trial.seconds)
    fitting = [times for times in profile.times if times.workers <= best.cores.workers]
    times = (fitting or profile.times)[-1]
    alone, cores = profile.times[-1], max(trial.cores.threads for trial in profile.trials)
    work = min(t.cpu.seconds for t in profile.times) + alone.model.seconds * max(1, cores - alone.workers)
    return Plan(
        num_batches=num_batches,
        num_cpu=num_batches,
        cbs=ahead_of(best.cores, profile, limits),
        gbs=1,
        times=dataclasses.replace(times, workers=best.cores.workers),
        cores=best.cores,
        predicted_seconds=num_batches * best.seconds,
        bound_seconds=num_batches * min(best.seconds, work / cores),
        limit="cpu",
        runner_ups=tuple(
            RunnerUp(name=t.cores.name, split=1.0, predicted_seconds=num_batches * t.seconds) for t in others
        ),
    )
