""":func:`graphbraid.estimate`: memory, disk and time of a run before it starts, in each mode."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from graphbraid.arguments import check_type
from graphbraid.datasets.npy import require_memory
from graphbraid.errors import ConfigError, GraphbraidError, ResourceError
from graphbraid.estimates.choose import auto_device, choose_mode
from graphbraid.estimates.machine import HardwareFile, this_machine
from graphbraid.estimates.memory import (
    SampledNeeds,
    are_mapped,
    baseline_need,
    bytes_beside_graph,
    graph_needs,
    learned_needs,
    may_try_steps,
    sampled_needs,
)
from graphbraid.estimates.plan import plan_run
from graphbraid.estimates.records import EpochSeconds, Estimate, Mode, ModeEstimate, Need, Needs, PartSeconds
from graphbraid.estimates.seconds import SECONDS, checkpoint_seconds, evaluations, sampled_seconds
from graphbraid.estimates.sizes import break_bytes, forward_bytes, training_bytes
from graphbraid.estimates.tiers import (
    RunSeconds,
    TieredRun,
    device_needs,
    rows_per_second,
    tiered_needs,
    tiered_run,
)
from graphbraid.estimates.trial import Trial, parameter_bytes, timed
from graphbraid.features import Score
from graphbraid.features.budgets import HostBudget, described, host_budget
from graphbraid.features.rows.row_stream import LONGEST_ROUND
from graphbraid.features.tiers.device_sizing import DeviceBudget
from graphbraid.files.progress import stage
from graphbraid.files.writing import format_bytes
from graphbraid.fullgraph import Engine
from graphbraid.graph import Graph
from graphbraid.graph.scaled_features import stored_rows
from graphbraid.machine.hardware import free_memory_bytes
from graphbraid.machine.measurements import OtherPrograms
from graphbraid.train import runtime
from graphbraid.train.config import TrainConfig
from graphbraid.train.option_checks import fitted
from graphbraid.train.run.setup import check_fanouts
from graphbraid.train.step.runner import WholeGraph
from graphbraid.train.step.tiers import expected_reads, make_tiers
from graphbraid.train.step.whole import compile_for
from graphbraid.train.task import graph_to_learn

if TYPE_CHECKING:
    from graphbraid.graph.graph_set import GraphSet

_MOST_STEPS = 12
_LONGEST_FLOOR, _LONGEST_READING = 8.0, 4.0
"""Seconds: a step is tried if its floor, and the reading of the first steps, take no longer."""
_READING = 0.5
"""Seconds for which rows are read to find the disk's rate."""
LOOKED_AHEAD_EPOCHS = 3
"""Most epochs that an estimate looks ahead; a run's own look-ahead does not depend on it."""
_PARTS = 6
"""Number of parts of an estimate, for its progress."""
_LOWERING_BYTES = 64 << 20
"""Memory beside copies of the edges while a model is lowered and the machine's rates are measured."""
_MOST_FILLED_BYTES, _MOST_FILLED_SHARE = 1 << 30, 0.25
"""Largest tiers that are filled for trial steps, in bytes and as a share of the free memory."""


def estimate(
    model: nn.Module,
    graph: Graph | GraphSet,
    *,
    config: TrainConfig | Mapping[str, Any] | None = None,
    hardware: HardwareFile | None = None,
    times: bool = True,
    **overrides: Any,
) -> Estimate:
    """Estimate the memory, disk and time of a run, in each mode.

    Memory is counted: allocations are planned, sampled or tried on copies of model and optimizer. Times are
    the plan's, or those of a few steps. The model does not change, and no file stays on the disk.

    Example::

        print(graphbraid.estimate(model, graph, fanouts=(15, 10, 5), batch_size=1024))

    Args:
        model: as :class:`graphbraid.Trainer` takes it.
        graph: as :class:`graphbraid.Trainer` takes it.
        config: options of the run. If None, the defaults.
        hardware: the machine to estimate for. If None, this one.
        times: whether to estimate times, for which steps are tried.
        **overrides: fields of :class:`TrainConfig` that replace those of ``config``.

    Raises:
        ConfigError: an option is invalid, or the model does not fit the graph.
        DataError: the graph has no features, labels or training nodes; or one of many graphs is wrong.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    if hardware is not None:
        check_type(hardware, "hardware", HardwareFile, "a HardwareFile", error=ConfigError)
    given = config if isinstance(config, TrainConfig) else TrainConfig.from_dict(config or {})
    given = given.updated(**overrides)
    one, graphs = graph_to_learn(graph, given.task)
    if given.task == "node":
        one.check_one_type("estimate")
    else:
        given, _ = fitted(given, model, one, {})
    with runtime.torch_settings(given), runtime.random_state_kept():
        return _Estimating(model, one if graphs is None else graphs, given, hardware, times).run()


class _Estimating:
    """One estimate. It caches results that several of its parts need."""

    def __init__(
        self,
        model: nn.Module,
        graph: Graph | GraphSet,
        config: TrainConfig,
        other: HardwareFile | None,
        times: bool,
    ) -> None:
        self._model, self._learned, self._config, self._times = model, graph, config, times
        self._graph = graph if isinstance(graph, Graph) else graph.graph
        self._here = this_machine(config.out_dir, with_rates=times)
        self._machine = other or self._here
        self._what = {"link": "links", "edge": "labels of edges", "graph": "labels of graphs"}.get(
            config.task
        )
        """Name of targets whose batches need rows and lists in memory; None for labels of nodes."""
        self._needs: SampledNeeds | None = None
        self._reads: Score | None = None
        self._device_budget: DeviceBudget | None = None

    def run(self) -> Estimate:
        with stage("trying steps and counting memory", _PARTS) as self._advance:
            modes = (self._sampled(), self._full())
            mode, reason = self._mode()
        return Estimate(
            hardware=self._machine,
            modes=modes,
            mode=mode,
            mode_reason=reason,
            tiers=self._budget(self._needs),
            device_tiers=self._device_budget,
            tier_score="" if self._reads is None else described(self._reads),
        )

    def _mode(self) -> tuple[Mode, str]:
        if self._what:
            return "sampled", f"{self._what} are learned on mini-batches"
        free = None
        if self._machine is not self._here and self._machine.memory_bytes is not None and self._needs:
            beside = sum(self._needs.host.bytes_of(name) for name in ("software", "graph", "features"))
            free = max(0, self._machine.memory_bytes - beside)
        return choose_mode(self._model, self._graph, self._config, free_bytes=free)

    # ---- mini-batches

    def _sampled(self) -> ModeEstimate:
        config = self._config.updated(mode="sampled", tiers=None)
        try:
            check_fanouts(self._model, config)
        except ConfigError as error:
            if self._config.mode == "sampled":
                raise
            return ModeEstimate(mode="sampled", host=None, fits=False, reason=str(error))
        trial = Trial(self._model, self._learned, config)
        trial.try_model()
        self._advance(1)
        plan, times = None, self._times and may_try_steps(trial)
        if config.plan is not None and times and config.task in ("node", "link"):
            with contextlib.suppress(ResourceError):  # it cannot be measured here; the run will say so
                plan = plan_run(trial.runner, trial.task, config, trial.nodes)
        self._needs = needs = sampled_needs(trial, ahead=None if plan is None else plan.cbs)
        self._advance(1)
        has_device = trial.device.type != "cpu" or self._machine.device_memory_bytes is not None
        on_device, num_hot = self._find_reads(trial, needs, has_device, times)
        self._advance(1)
        tiers = host = None
        if self._reads is not None:
            tiers, host = tiered_run(self._graph, config, self._reads.values, num_hot), self._host(needs)
        asked = None if tiers is None or host is None else (tiers.whole_bytes if host == "all" else int(host))
        on_host = needs.host
        if tiers is not None and asked is not None:
            on_host = tiered_needs(needs, tiers.taken_bytes(asked), tiers.list_bytes)
        seconds = None
        # Measuring the reads has taken memory, which the process keeps.
        if times and may_try_steps(trial):
            planned = None if plan is None else plan.predicted_seconds
            seconds = self._timed(trial, planned, tiers, asked)
            steps = math.ceil(needs.sizes.num_batches / config.accumulate)
            seconds = replace(seconds, checkpoints=checkpoint_seconds(trial, steps))
        self._advance(1)
        refused = ""
        if config.hot and not has_device:
            refused = f"hot={config.hot!r} keeps feature rows on a device, and the machine has none"
        found = ModeEstimate(
            mode="sampled",
            host=on_host,
            device=on_device if has_device else None,
            disk_bytes=needs.file_bytes,
            seconds=seconds,
            epochs=config.epochs,
        )
        return self._judged(found, refused)

    def _find_reads(
        self, trial: Trial, needs: SampledNeeds, has_device: bool, times: bool
    ) -> tuple[Needs, int]:
        """Find the reads of each row if rows may be in tiers; return the device's needs and hot rows."""
        rows = stored_rows(self._graph.x)
        if self._what or rows is None or not (has_device or are_mapped(self._graph)):
            return needs.device, 0
        run_time, disk = None, self._machine.disk_bytes_per_second
        if times or may_try_steps(trial):
            rate = None if disk is None else disk / max(rows.nbytes // max(len(rows), 1), 1)
            is_here = self._machine is self._here
            run_time = RunSeconds(trial, host=self._host(needs), rate=rate, is_here=is_here)
            trial.forget_gradients()
        self._reads = reads = expected_reads(
            self._graph, trial.config, run_time, most_epochs=LOOKED_AHEAD_EPOCHS
        )
        if not has_device:
            return needs.device, 0
        memory, hot = self._machine.device_memory, self._config.hot
        train_seconds = None if run_time is None else run_time.least
        self._device_budget = auto_device(trial, needs, reads, memory, train_seconds)
        if self._config.tiers is not None and hot is None:
            hot = self._device_budget.hot
        return device_needs(trial, needs.device, reads, memory.less(needs.device.bytes_of("model")), hot)

    def _timed(
        self, trial: Trial, planned: float | None, tiers: TieredRun | None, host: int | None
    ) -> EpochSeconds:
        """Return the times of a run whose rows are in tiers that take ``host`` bytes; None: in memory."""
        if tiers is None or host is None:
            return self._there(sampled_seconds(trial, planned))
        free, disk = free_memory_bytes(), self._machine.disk_bytes_per_second
        most = _MOST_FILLED_BYTES if free is None else min(_MOST_FILLED_BYTES, int(_MOST_FILLED_SHARE * free))
        if self._machine is self._here and min(host, tiers.whole_bytes) <= most:
            config = trial.config.updated(host=host, hot=None)
            try:
                made = make_tiers(self._graph, config, reads=self._reads)
            except (ConfigError, ResourceError):  # the budget holds no row, or is not free now
                made = None
            if made is not None:
                tried = sampled_seconds(Trial(trial.runner.model, self._graph, config, made), planned)
                return replace(tried, train=replace(tried.train, how=f"rows in tiers, {tried.train.how}"))
        seconds = self._there(sampled_seconds(trial, planned))
        if disk is None and self._machine is not self._here:
            return seconds
        rate = rows_per_second(self._graph, host) if disk is None else disk / max(tiers.row_bytes, 1)
        reading = tiers.disk_reads(host) / rate
        if reading <= seconds.train.known:
            return seconds
        how = f"reading {tiers.disk_reads(host):,.0f} rows from disk at {rate:,.0f} a second"
        return replace(seconds, train=replace(seconds.train, seconds=reading, how=how))

    def _host(self, needs: SampledNeeds) -> int | str | None:
        """Return the run's memory for rows and lists; None if it uses the graph as it is."""
        return self._config.host if self._config.tiers is None else self._budget(needs).host

    def _budget(self, needs: SampledNeeds | None) -> HostBudget:
        needed = 0 if needs is None else bytes_beside_graph(needs.host, self._graph)
        free = self._machine.memory_bytes
        if self._what:
            reason = f"no tiers: batches of {self._what} read rows and lists in memory"
            return HostBudget(host=None, free_bytes=free, needed_bytes=needed, reserve_bytes=0, reason=reason)
        return host_budget(self._graph, free_bytes=free, needed_bytes=needed)

    # ---- the whole graph

    def _full(self) -> ModeEstimate:
        if self._what:
            reason = f"it learns labels of nodes, not {self._what}"
            return ModeEstimate(mode="full", host=None, fits=False, reason=reason)
        try:
            config = self._config.updated(mode="full", plan=None, trace=None, hot=None, tiers=None)
            copies = _LOWERING_BYTES + 4 * self._graph.csc.nbytes
            require_memory(copies, "lowering the model, to count its memory,", "Use a machine with more")
            trial = Trial(self._model, self._graph, config, make_tiers(self._graph, config))
            needs = full_needs(trial)
            self._advance(1)
        except (GraphbraidError, MemoryError) as error:
            return ModeEstimate(mode="full", host=None, fits=False, reason=str(error))
        reasons = [f"runs as it is written: {needs.why}"] if needs.why else []
        if self._config.hot is not None or self._config.tiers is not None:
            reasons.append("takes no tiers but those of host=, since every step reads all of the graph")
        if needs.epoch_bytes:
            reasons.append(
                f"reads {format_bytes(needs.epoch_bytes)} of files an epoch in blocks, ahead of use"
            )
        seconds = None
        if self._times:
            free = self._here.memory_bytes
            place = needs.host if needs.device is None else needs.device
            fits_here = needs.device is not None or free is None or place.must_bytes < free
            rate = self._machine.disk_bytes_per_second
            try:
                seconds = full_seconds(trial, needs.engine, fits=fits_here, bytes_per_second=rate)
            except ResourceError:  # what the estimate itself holds leaves no room for a step
                seconds = None
            if seconds is not None:
                seconds = replace(self._there(seconds), checkpoints=checkpoint_seconds(trial, 1))
        self._advance(1)
        return self._judged(
            ModeEstimate(
                mode="full",
                host=needs.host,
                device=needs.device,
                disk_bytes=needs.file_bytes,
                seconds=seconds,
                epochs=config.epochs,
                reason="; ".join(reasons),
            )
        )

    # ---- both

    def _there(self, seconds: EpochSeconds) -> EpochSeconds:
        slowness = self._machine.slowness(self._here)
        if slowness == 1.0:
            return seconds
        return seconds.scaled(slowness, f"times {slowness:.3g} by the rates of the two machines")

    def _judged(self, found: ModeEstimate, refused: str = "") -> ModeEstimate:
        """Return the estimate with ``fits`` and its reason; ``refused`` tells why the run is impossible."""
        machine, missing = self._machine, list[str]()
        host, device = (None if needs is None else needs.must_bytes for needs in (found.host, found.device))
        for what, needed, there in (
            ("memory", host, machine.memory_bytes),
            ("device", device, machine.device_memory_bytes),
            ("disk", found.disk_bytes, machine.disk_bytes),
        ):
            if needed is not None and there is not None and needed > there:
                missing.append(f"{what} {format_bytes(needed)} of {format_bytes(there)}")
        room = "there is no room: it needs " + ", ".join(missing) if missing else ""
        reasons = [why for why in (refused, room, found.reason) if why]
        return replace(found, fits=not (missing or refused), reason="; ".join(reasons))


# ---- a run on the whole graph: memory by the compiled step's plan, and the time of its steps


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class FullNeeds:
    """What a run on the whole graph needs."""

    host: Needs
    device: Needs | None
    """None where the model runs on the host."""
    engine: Engine | None
    """The compiled step, whose memory is not taken yet; None if the model runs as it is written."""
    file_bytes: int
    epoch_bytes: int = 0
    """Read from files by an epoch's training, where the features are on disk."""
    why: str = ""
    """Why there is no compiled step."""


def full_needs(trial: Trial) -> FullNeeds:
    """Count what a run on the whole graph holds; the model is lowered, and nothing of its size allocated."""
    config, graph, runner = trial.config.updated(mode="full"), trial.graph, trial.runner
    engine, why = compile_for(runner, config, trial.nodes)
    evaluates = trial.val_nodes is not None or trial.test_nodes is not None
    learned, checkpoint_bytes = learned_needs(trial)
    weights, outputs = parameter_bytes(runner.model), 4 * trial.task.width
    own: tuple[Need, ...] = (*learned, Need(name="gradients", nbytes=weights, why="of the parameters"))
    topology, features = graph_needs(graph)
    streams = None if engine is None else engine.runner.training_step.plan.streams
    if engine is not None:
        # A run first tries the model in evaluation mode, and keeps the memory of that for its evaluations.
        kept = engine.evaluation_nbytes + outputs * graph.num_nodes
        loss = 3 * outputs * trial.nodes.numel()
        own += (
            Need(name="compiled step", nbytes=engine.nbytes, why="its arena and edges, as planned"),
            Need(name="evaluation", nbytes=kept, why="its arena, and all outputs; kept from the start"),
        )
        phases = [Need(name="loss", nbytes=loss, why="outputs of the training nodes and their gradients")]
        if engine.breaks:
            told = "of parts that run as written, beside the arena, tried on a small graph"
            phases.append(Need(name="graph breaks", nbytes=break_bytes(trial), why=told))
        if evaluates:
            phases.append(Need(name="scores", nbytes=outputs * graph.num_nodes, why="by all outputs"))
    else:
        phases = [Need(name="step", nbytes=training_bytes(trial), why="as written, tried on a small graph")]
        if evaluates:
            phases.append(Need(name="evaluation", nbytes=forward_bytes(trial), why="one pass, tried"))
    if streams is not None:  # the compiled step counts them
        features = Need(name="features", nbytes=0, why="read from the store's file in every step")
    base = (baseline_need("full", trial), topology, features)
    on_host = trial.device.type == "cpu"
    return FullNeeds(
        host=Needs(held=(*base, *own), phases=tuple(phases)) if on_host else Needs(held=base),
        device=None if on_host else Needs(held=own, phases=tuple(phases)),
        engine=engine,
        file_bytes=checkpoint_bytes + (0 if streams is None else streams.scratch_bytes),
        epoch_bytes=0 if streams is None else 2 * streams.pass_bytes,
        why=why,
    )


def full_seconds(
    trial: Trial, engine: Engine | None, *, fits: bool, bytes_per_second: float | None = None
) -> EpochSeconds | None:
    """Return the time of an epoch on the whole graph; None where nothing is known.

    Steps are tried unless they are long, or may not fit. An epoch that is not tried takes at least the floor
    of its compiled step, and as long as it reads features from a disk. Without ``engine`` the model runs as
    it is written. A step whose memory is not free (``fits``) is not tried. If ``bytes_per_second``, the rate
    of streamed features, is None, it is measured.
    """
    floor = None if engine is None else engine.floor().floor_seconds
    streams = None if engine is None else engine.runner.training_step.plan.streams
    reading = once = 0.0
    how = "the least that it can take; nothing was tried"
    if streams is not None:
        rate = bytes_per_second or _disk_rate(trial)
        reading, read = 2 * streams.pass_bytes / rate, format_bytes(2 * streams.pass_bytes)
        once = (streams.set_up_bytes + streams.kept_bytes) / rate
        how = f"the slower of its floor and of reading {read} at {format_bytes(rate)}/s; nothing was tried"
    if fits and (floor or 0.0) <= _LONGEST_FLOOR and once + 2 * reading <= _LONGEST_READING:
        return _tried_steps(trial, engine, floor)
    if engine is None or floor is None:
        return None
    evaluation = None
    if streams is not None:
        evaluation = PartSeconds(engine.evaluation_pass_bytes / rate, "reading the features from the disk")
    validation = test = None
    if trial.val_nodes is not None:
        validation = (evaluation or PartSeconds(None, "not tried")).times(1 / trial.config.eval_every)
    if trial.test_nodes is not None:
        test = evaluation or PartSeconds(None, "not tried")
    train = PartSeconds(max(floor, reading), how)
    return EpochSeconds(train=train, validation=validation, test=test, first=once, floor=floor)


def _tried_steps(trial: Trial, engine: Engine | None, floor: float | None) -> EpochSeconds:
    assert trial.graph.y is not None
    labels = trial.graph.y.index_select(0, trial.nodes)
    batch = WholeGraph(nodes=trial.nodes.to(trial.device), seed_y=labels.to(trial.device))
    trial.runner.engine = engine
    with trial.evaluating():  # as a run does before it begins
        trial.runner.outputs_of(batch)
    others = OtherPrograms()
    try:
        cold = timed(lambda: trial.step(batch))
        tries = [timed(lambda: trial.step(batch))]
        if tries[0] <= SECONDS / 2:
            tries.append(timed(lambda: trial.step(batch)))  # kernels' arguments are bound in the first steps
            count = min(_MOST_STEPS, int(SECONDS / max(min(tries), 1e-9)))
            tries = [timed(lambda: trial.step(batch)) for _ in range(max(1, count))]
        train = PartSeconds(median(tries), f"the median of {len(tries)} step{'s' * (len(tries) > 1)} tried")
        validation, test = evaluations(trial, "exact")
    finally:
        trial.runner.engine = None
        trial.runner.forget_graph()
    return EpochSeconds(
        train=train,
        validation=validation,
        test=test,
        first=max(0.0, cold - train.known),
        floor=floor,
        others=others.share(),
    )


def _disk_rate(trial: Trial) -> float:
    """Return the bytes of float32 rows that the disk gives in a second, in blocks as a step reads them."""
    rows = trial.runner.rows
    assert rows is not None, "features that are streamed have a source of rows"
    num_rows, width = rows.shape
    count, read = max(1, LONGEST_ROUND // (4 * width)), 0
    started = time.perf_counter()
    for ids in torch.split(torch.arange(num_rows), count):
        rows.gather(ids)
        read += 4 * width * ids.numel()
        if time.perf_counter() - started >= _READING:
            break
    return read / max(time.perf_counter() - started, 1e-9)
