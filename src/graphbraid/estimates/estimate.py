""":func:`graphbraid.estimate`: memory, disk and time of a run before it starts, in each mode."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from graphbraid.arguments import check_type
from graphbraid.datasets.memory import require_memory
from graphbraid.errors import ConfigError, GraphbraidError, ResourceError
from graphbraid.estimates.choose import auto_device, choose_mode
from graphbraid.estimates.machine import HardwareFile, this_machine
from graphbraid.estimates.memory import (
    SampledNeeds,
    are_mapped,
    bytes_beside_graph,
    may_try_steps,
    sampled_needs,
)
from graphbraid.estimates.plan import plan_run
from graphbraid.estimates.records import EpochSeconds, Estimate, Mode, ModeEstimate, Needs
from graphbraid.estimates.seconds import checkpoint_seconds, sampled_seconds
from graphbraid.estimates.tiers import (
    RunSeconds,
    TieredRun,
    device_needs,
    rows_per_second,
    tiered_needs,
    tiered_run,
)
from graphbraid.estimates.trial import Trial
from graphbraid.estimates.whole_graph import full_needs, full_seconds
from graphbraid.features import Score
from graphbraid.features.budgets import HostBudget, described, host_budget
from graphbraid.features.tiers.device_sizing import DeviceBudget
from graphbraid.files.progress import stage
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph
from graphbraid.graph.scaled_features import stored_rows
from graphbraid.machine.hardware import free_memory_bytes
from graphbraid.train import runtime
from graphbraid.train.config import TrainConfig
from graphbraid.train.option_checks import config_of_graphs, config_of_links
from graphbraid.train.step.preflight import check_fanouts, graph_to_learn
from graphbraid.train.step.tiers import expected_reads, make_tiers

if TYPE_CHECKING:
    from graphbraid.graph.graph_set import GraphSet

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
    if given.task in ("edge", "link"):
        given = config_of_links(model, given, {}, 1)
    elif given.task == "graph":
        given = config_of_graphs(given, {})
    else:
        one.check_one_type("estimate")
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
