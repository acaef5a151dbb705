"""The plan of a run: profiles its stages on copies and chooses the fastest way to prepare batches."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphbraid.collective import Limits, Plan, Profile, fixed_plan, make_plan
from graphbraid.collective.plan.scheduler import ahead_of, arrangements, expected_seconds
from graphbraid.collective.plan.times import ZERO, Arrangement, Duration, StageTimes, TimedArrangement
from graphbraid.collective.run.profiler import Effort, cached, measure
from graphbraid.errors import ConfigError
from graphbraid.estimates.limits import require_profile
from graphbraid.estimates.trial import TrialStep
from graphbraid.loader.batch_loader import BatchLoader, read_plan
from graphbraid.loader.planned import CoreSharing
from graphbraid.machine.hardware import Hardware
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.train import runtime
from graphbraid.train.config import TrainConfig
from graphbraid.train.run_folder.contract import graph_identity, model_identity
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.step.step import ALONE, Share, make_loader
from graphbraid.train.task import Task

if TYPE_CHECKING:
    from graphbraid.collective.run.stages import Accelerator

_KEY = ("fanouts", "batch_size", "layout", "replace", "precision", "threads", "optimizer", "clip")
"""Options that change the time of a stage."""
AHEAD_SHARE = 0.125
"""Share of the free memory that batches prepared ahead may take."""


def plan_run(
    runner: ModelRunner,
    task: Task,
    config: TrainConfig,
    nodes: Tensor,
    accelerator: Accelerator | None = None,
    *,
    share: Share = ALONE,
) -> Plan | None:
    """Return the plan that ``config.plan`` requests; None if it is None or the mode is ``full``.

    Each rank that shares batches plans for its own shares and device, without messages to the others. Ranks
    may differ, and each is measured while the others work, as in the run.
    """
    if config.plan is None or config.mode == "full":
        return None
    plan = read_plan(config.plan)
    if plan is None:
        profile = profile_run(runner, task, config, nodes, accelerator, share=share)
        plan = _plan_by_name(profile, config, _num_batches(runner, config, nodes))
    if accelerator is None and runner.device.type == "cpu" and plan.num_cpu < plan.num_batches:
        raise ConfigError(
            f"plan={config.plan!r} lets a device prepare batches, but device is {config.device!r}"
        )
    return plan


def profile_run(
    runner: ModelRunner,
    task: Task,
    config: TrainConfig,
    nodes: Tensor,
    accelerator: Accelerator | None = None,
    *,
    share: Share = ALONE,
) -> Profile:
    """Measure the run's stages on copies of model and optimizer, or read an earlier measurement.

    Raises:
        ResourceError: there is no memory to measure them.
    """
    cores = Hardware.detect().planned_cores
    device = accelerator or runner.device
    on_cpu = accelerator is None and runner.device.type == "cpu"
    workers = worker_counts(cores, training_needs_one=on_cpu)

    def make() -> Profile:
        if share.num_ranks == 1:  # ranks have divided the memory already
            require_profile(runner.model, runner.graph, config)
        threads = torch.get_num_threads()
        try:
            with runtime.random_state_kept(), make_loader(runner, config, nodes, share=share) as loader:
                train = TrialStep.on_copy(runner, task, config)

                def before(count: int) -> None:
                    if on_cpu:
                        set_training_threads(config, count)

                if loader.graph.is_typed or loader.starts_from_inputs:
                    profile = measure_typed(loader, workers, train=train, before_training=before)
                else:
                    context = dataclasses.replace(loader.context(1), device=device)
                    profile = measure(context, workers, train=train, before_training=before)
                if not on_cpu:
                    return profile
                trials = try_arrangements(
                    runner, task, config, loader, profile=profile, limits=memory_limits()
                )
                return dataclasses.replace(profile, trials=trials)
        finally:
            torch.set_num_threads(threads)

    key: dict[str, Any] = {name: getattr(config, name) for name in _KEY}
    key |= {"device": str(runner.device), "workers": workers, "nodes": nodes.numel()}
    if share.num_ranks > 1:
        key["num_ranks"] = share.num_ranks
    if config.task == "link":
        names = ("task", "negatives", "num_negatives", "temporal_strategy")
        key |= {name: getattr(config, name) for name in names}
    if accelerator is not None:
        return make()  # an accelerator has no known identity, so its profile is not cached
    return cached(key | {"graph": graph_identity(runner.graph), "model": model_identity(runner.model)}, make)


def measure_typed(
    loader: BatchLoader,
    workers: Sequence[int],
    *,
    train: Callable[[Any], object],
    before_training: Callable[[int], None],
) -> Profile:
    """Measure the times of sampling threads and model for mini-batches without stage operators.

    These are batches of links, and of graphs with types. The loader's threads are set up anew for each number
    of ``workers``, which ascend; ``before_training`` is called with each before ``train``, a step on copies.
    """
    effort = Effort()
    share = effort.seconds / (2 * len(workers))
    found, largest = [], 0
    for count in workers:
        loader.work_in_turns(count, 3 * count, 3 * count - 1)  # without rests
        cpu = Duration.typical(_intervals(loader, effort, share)).times(count)
        before_training(count)
        seconds: list[float] = []

        def step(batch: MiniBatch, seconds: list[float] = seconds) -> None:
            nonlocal largest
            largest = max(largest, _bytes_of(batch))
            started = time.perf_counter()
            train(batch)
            seconds.append(time.perf_counter() - started)

        kept = len(_intervals(loader, effort, share, step))
        model = Duration.typical(seconds[-kept:])
        found.append(StageTimes(workers=count, cpu=cpu, dma=ZERO, model=model))
    loader.close()
    return Profile(
        times=tuple(found),
        host_batch_bytes=largest,
        device_batch_bytes=largest,
        source=f"{Hardware.detect().cpu_model}, cpu",
    )


def _intervals(
    loader: BatchLoader, effort: Effort, seconds: float, use: Callable[[Any], None] | None = None
) -> list[float]:
    """Return seconds from batch to batch after the warm-up, at least one; ``use`` gets each batch."""
    found: list[float] = []
    until, count = time.perf_counter() + seconds, 0
    while count < effort.warm_up + effort.samples:
        started = time.perf_counter()
        for batch in loader.batches(0, 0, min(len(loader), effort.warm_up + effort.samples - count)):
            if use is not None:
                use(batch)
            ended = time.perf_counter()
            if count >= effort.warm_up or ended > until:
                found.append(ended - started)
            count += 1
            if ended > until:
                return found
            started = ended
    return found


def _bytes_of(batch: MiniBatch) -> int:
    rows = getattr(batch, "x_dict", {}).values() if batch.is_typed else [batch.x]
    tensors = [*batch.sampled.n_id_by_type, *(x for x in rows if x is not None)]
    for one in (one for edges in batch.sampled.edges_by_relation for one in edges):
        tensors += [part for part in (one.indptr, one.indices, one.positions) if part is not None]
    return sum(tensor.nbytes for tensor in tensors)


def memory_limits() -> Limits:
    """Return limits that give batches prepared ahead a share of the free memory."""
    free = Hardware.detect().memory_available_bytes
    return Limits(host_bytes=None if free is None else int(AHEAD_SHARE * free))


def set_training_threads(config: TrainConfig, workers: int) -> None:
    """Let the model's operators use the cores that ``workers`` sampling threads leave free."""
    if config.threads is None:
        torch.set_num_threads(max(1, Hardware.detect().planned_cores - workers))


def worker_counts(cores: int, *, training_needs_one: bool) -> Sequence[int]:
    """Return the numbers of workers to measure: powers of two, and all cores that may sample."""
    most = max(1, cores - 1 if training_needs_one else cores)
    return sorted({1 << i for i in range(most.bit_length()) if 1 << i <= most} | {most})


def _plan_by_name(profile: Profile, config: TrainConfig, num_batches: int) -> Plan:
    if config.plan == "auto" or (config.plan == "cpu" and profile.trials):
        return make_plan(profile, num_batches, memory_limits() if profile.trials else None)
    if config.plan == "gpu" and profile.times[0].uva is None:
        raise ConfigError(
            f"plan='gpu' needs a device that prepares batches itself; device={config.device!r} does not"
        )
    return fixed_plan(profile, num_batches, 1.0 if config.plan == "cpu" else 0.0, Limits())


def _num_batches(runner: ModelRunner, config: TrainConfig, nodes: Tensor) -> int:
    if config.negatives != "one-vs-all":
        return -(-nodes.numel() // config.batch_size)
    with make_loader(runner, config, nodes) as loader:  # links ask questions, which make the batches
        return len(loader)


# ---- arrangements of the cores on a machine without a device, tried on copies

TRIAL_STEPS, TRIAL_ROUNDS = 24, 3
"""Number of steps of a trial, and of trials per arrangement, if time permits."""
LEAST_STEPS = 12
"""Smallest number of steps of a trial; fewer do not represent an arrangement whose threads take turns."""
MOST_TRIED = 6


def try_arrangements(
    runner: ModelRunner,
    task: Task,
    config: TrainConfig,
    loader: BatchLoader,
    *,
    profile: Profile,
    limits: Limits,
) -> tuple[TimedArrangement, ...]:
    """Measure the seconds per step of each arrangement that can win, by short alternating runs on copies.

    The loader's threads are set up anew. The stage times of ``profile`` limit the time of the trials and
    exclude arrangements that cannot win.
    """
    num_cores = Hardware.detect().planned_cores
    if num_cores < 2 or config.threads is not None:
        return ()
    may = runner.native and not _bits_depend_on_threads(runner, task, config, loader, num_cores)
    found = arrangements(num_cores, [times.workers for times in profile.times], may_take_turns=may)
    found.sort(key=lambda cores: expected_seconds(cores, profile.times, num_cores))
    slowest = max(t.cpu.seconds for t in profile.times) + max(t.model.seconds for t in profile.times)
    planned = 0.02 * config.epochs * len(loader) * slowest
    tried, rounds, steps = _affordable(found[:MOST_TRIED], slowest, max(5.0, planned))
    seconds: dict[Arrangement, list[float]] = {cores: [] for cores in tried}
    train = TrialStep.on_copy(runner, task, config)
    for round_ in range(rounds):
        for cores in tried:
            sharing = CoreSharing(loader, cores, ahead_of(cores, profile, limits))
            # The threads allocate their buffers, which later batches reuse.
            list(loader.batches(round_, 0, min(loader.ahead + 2, len(loader))))
            seconds[cores].append(_seconds_per_step(loader, sharing, train, round_, steps))
    # The best round counts, so that a passing load by other programs does not decide all later runs.
    return tuple(TimedArrangement(cores=cores, seconds=min(took)) for cores, took in seconds.items())


def _affordable(
    found: list[Arrangement], step_seconds: float, budget: float
) -> tuple[list[Arrangement], int, int]:
    """Reduce the rounds, then the steps, then the arrangements until the trials fit in the time for them."""
    rounds, steps = TRIAL_ROUNDS, TRIAL_STEPS
    while len(found) * rounds * steps * step_seconds > budget:
        if rounds > 2:
            rounds -= 1
        elif steps > LEAST_STEPS:
            steps -= 4
        elif len(found) > 3:
            found = found[:-1]
        else:
            break
    return found, rounds, steps


def _seconds_per_step(
    loader: BatchLoader, sharing: CoreSharing, train: Callable[[MiniBatch], object], epoch: int, steps: int
) -> float:
    steps = min(steps, len(loader))
    started = time.perf_counter()
    for batch in loader.batches(epoch, 0, steps):
        sharing.before_batch()
        train(batch)
        del batch  # so that the threads can reuse its buffer
    return (time.perf_counter() - started) / steps


def _bits_depend_on_threads(
    runner: ModelRunner, task: Task, config: TrainConfig, loader: BatchLoader, cores: int
) -> bool:
    """Return whether steps with one thread and with all differ in a bit; then threads must not vary."""
    loader.work_in_turns(1, 2, None)
    batches = list(loader.batches(0, 0, min(2, len(loader))))
    one, all_ = (_after_steps(runner, task, config, batches, threads) for threads in (1, cores))
    return any(not torch.equal(a, b) for a, b in zip(one, all_, strict=True))


def _after_steps(
    runner: ModelRunner, task: Task, config: TrainConfig, batches: Sequence[MiniBatch], threads: int
) -> list[Tensor]:
    """Return losses and gradient norms of one step per batch, and the parameters afterwards."""
    torch.set_num_threads(threads)
    runtime.seed_everything(config.seed)
    shadow = TrialStep.on_copy(runner, task, config)
    steps = [shadow(batch) for batch in batches]
    found = torch.tensor([(step.loss, step.grad_norm) for step in steps], dtype=torch.float64)
    return [found, *(p.detach() for p in shadow.parameters())]
