""":func:`graphbraid.estimate`: what a run needs before it starts, in each mode and with its rows in tiers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from graphbraid.arguments import check_type
from graphbraid.datasets.memory import require_memory
from graphbraid.errors import ConfigError, GraphbraidError, ResourceError
from graphbraid.estimates.records import Mode, Needs
from graphbraid.estimates.trial import Trial
from graphbraid.features import Score
from graphbraid.features.budgets.row_budgets import described
from graphbraid.features.budgets.sizing import HostBudget, host_budget
from graphbraid.features.tiers.device_sizing import DeviceBudget
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph
from graphbraid.graph.scaled_features import stored_rows
from graphbraid.train import runtime
from graphbraid.train.config import TrainConfig
from graphbraid.train.estimating.device import DeviceRun, device_run, hot_in_vain
from graphbraid.train.estimating.hardware import HardwareFile, this_machine
from graphbraid.train.estimating.memory.full import full_needs
from graphbraid.train.estimating.memory.sampled import (
    SampledNeeds,
    are_mapped,
    bytes_beside_graph,
    may_try_steps,
    sampled_needs,
)
from graphbraid.train.estimating.modes import auto_device, choose_mode
from graphbraid.train.estimating.pace import pace_of
from graphbraid.train.estimating.reads import run_reads
from graphbraid.train.estimating.records import Estimate, HotEstimate, ModeEstimate, TierEstimate
from graphbraid.train.estimating.seconds.batch_seconds import sampled_seconds
from graphbraid.train.estimating.seconds.checkpoints import checkpoint_seconds
from graphbraid.train.estimating.seconds.epoch_seconds import EpochSeconds, Pace
from graphbraid.train.estimating.seconds.whole_seconds import full_seconds
from graphbraid.train.estimating.tiers import TieredRun, tiered_needs, tiered_run
from graphbraid.train.step.links.options import config_of_links
from graphbraid.train.step.preflight import check_fanouts
from graphbraid.train.step.tiers import make_tiers
from graphbraid.train.tuning.planning import plan_run


def estimate(
    model: nn.Module,
    graph: Graph,
    *,
    config: TrainConfig | Mapping[str, Any] | None = None,
    hardware: HardwareFile | None = None,
    times: bool = True,
    **overrides: Any,
) -> Estimate:
    """Estimate the memory, disk and time of a run, in each mode and with more or less memory for features.

    Memory is counted: what a run allocates is planned, sampled or tried on copies of model and optimizer,
    which takes some seconds. Times are the plan's, or those of a short trial. Nothing of the model changes,
    and nothing stays on the disk.

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
        DataError: the graph has no features, labels or training nodes.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    check_type(graph, "graph", Graph, "a graphbraid.Graph", error=ConfigError)
    if hardware is not None:
        check_type(hardware, "hardware", HardwareFile, "a HardwareFile", error=ConfigError)
    given = config if isinstance(config, TrainConfig) else TrainConfig.from_dict(config or {})
    given = given.updated(**overrides)
    if given.task == "link":
        given = config_of_links(model, given, {}, 1)
    else:
        graph.check_one_type("estimate")
    with runtime.torch_settings(given), runtime.random_state_kept():
        return _Estimating(model, graph, given, hardware, times).run()


_LOWERING_BYTES = 64 << 20
"""Taken beside copies of the edges while a model is lowered and the machine's rates are measured."""


class _Estimating:
    """One estimate; what several of its parts need is made once."""

    def __init__(
        self, model: nn.Module, graph: Graph, config: TrainConfig, other: HardwareFile | None, times: bool
    ) -> None:
        self._model, self._graph, self._config, self._times = model, graph, config, times
        self._here = this_machine(config.out_dir, with_rates=times)
        self._machine = other or self._here
        self._slowness = self._machine.slowness(self._here)
        self._needs: SampledNeeds | None = None
        self._seconds: EpochSeconds | None = None
        self._reads: Score | None = None
        self._device: DeviceRun | None = None
        self._device_budget: DeviceBudget | None = None
        self._tiers: TieredRun | None = None
        self._pace: Pace | None = None
        self._of_links = config.task == "link"

    def run(self) -> Estimate:
        modes = (self._sampled(), self._full())
        mode, reason = self._mode()
        return Estimate(
            hardware=self._machine,
            modes=modes,
            mode=mode,
            mode_reason=reason,
            tiers=self._budget(self._needs),
            device_tiers=self._device_budget,
            tier_curve=self._curve(),
            hot_curve=self._hot_curve(),
            tier_score="" if self._reads is None else described(self._reads),
        )

    def _mode(self) -> tuple[Mode, str]:
        if self._of_links:
            return "sampled", "links are learned on mini-batches"
        return choose_mode(self._model, self._graph, self._config, free_bytes=self._free_bytes())

    def _free_bytes(self) -> int | None:
        """Memory of another machine beside the data and the software, for the choice of the mode."""
        if self._machine is self._here or self._machine.memory_bytes is None or self._needs is None:
            return None
        beside = ("software", "graph", "features")
        return max(0, self._machine.memory_bytes - sum(self._needs.host.bytes_of(name) for name in beside))

    # ---- mini-batches

    def _sampled(self) -> ModeEstimate:
        config = self._config.updated(mode="sampled", tiers=None)
        try:
            check_fanouts(self._model, config)
        except ConfigError as error:
            if self._config.mode == "sampled":
                raise
            return ModeEstimate(mode="sampled", host=None, fits=False, reason=str(error))
        trial = Trial(self._model, self._graph, config)
        trial.try_model()
        plan, times = None, self._times and may_try_steps(trial)
        if config.plan is not None and times:
            plan = plan_run(trial.runner, trial.task, config, trial.nodes)
        ahead = None if plan is None else plan.cbs
        self._needs = needs = sampled_needs(trial, ahead=ahead)
        if times:
            steps = math.ceil(needs.sizes.num_batches / config.accumulate)
            self._seconds = self._there(sampled_seconds(trial, plan)).writing(
                checkpoint_seconds(trial, steps)
            )
        has_device = trial.device.type != "cpu" or self._machine.device_memory_bytes is not None
        self._find_reads(trial, needs, has_device)
        host, seconds = self._with_tiers(trial, needs)
        on_device = needs.device if self._device is None else self._device.needs(needs.device)
        found = ModeEstimate(
            mode="sampled",
            host=host,
            device=on_device if has_device else None,
            disk_bytes=needs.file_bytes,
            seconds=seconds,
            epochs=config.epochs,
        )
        return self._judged(found, hot_in_vain(config, has_device))

    def _find_reads(self, trial: Trial, needs: SampledNeeds, has_device: bool) -> None:
        """Find how often each row is read, where rows may be elsewhere, and what is on the device."""
        rows = stored_rows(self._graph.x)
        if self._of_links or rows is None or not (has_device or are_mapped(self._graph)):
            return
        row_bytes = rows.nbytes // max(len(rows), 1)
        host, rate = self._config.host, self._machine.disk_bytes_per_second
        self._reads, seconds = run_reads(
            trial,
            host=host if self._config.tiers is None else self._budget(needs).host,
            rate=None if rate is None else rate / max(row_bytes, 1),
            is_here=self._machine is self._here,
        )
        if has_device:
            memory = self._machine.device_memory
            self._device_budget = auto_device(trial, needs, self._reads, memory, seconds)
            hot = self._config.hot
            if self._config.tiers is not None and hot is None:
                hot = self._device_budget.hot
            self._device = device_run(trial, self._reads, memory.less(needs.device.bytes_of("model")), hot)

    def _with_tiers(self, trial: Trial, needs: SampledNeeds) -> tuple[Needs, EpochSeconds | None]:
        """Find what tiers would bring; return memory and times of the run with those that it has."""
        seconds = self._seconds
        if self._reads is None:
            return needs.host, seconds
        self._tiers = tiers = tiered_run(
            self._graph,
            trial.config,
            num_batches=needs.sizes.num_batches,
            bytes_per_second=self._machine.disk_bytes_per_second,
            is_here=self._machine is self._here,
            times=self._times,
            reads=self._reads,
            device=self._device,
        )
        if tiers is None:
            return needs.host, seconds
        asked = self._asked(tiers, needs)
        if seconds is not None:
            self._pace = pace_of(trial, tiers._replace(device=None), seconds.train, asked)
        if asked is None:
            return needs.host, seconds
        if seconds is not None and self._pace is not None:
            taken = self._pace.seconds(tiers.disk_reads(asked))
            seconds = seconds.with_tiers(taken, self._pace.how)
        return tiered_needs(needs, tiers.taken_bytes(asked), tiers.list_bytes), seconds

    def _asked(self, tiers: TieredRun, needs: SampledNeeds) -> int | None:
        """Return the memory that the run gives to rows and lists; None if it uses the graph as it is."""
        host = self._config.host
        if self._config.tiers is not None:
            host = self._budget(needs).host
        return tiers.whole_bytes if host == "all" else None if host is None else int(host)

    def _budget(self, needs: SampledNeeds | None) -> HostBudget:
        needed = 0 if needs is None else bytes_beside_graph(needs.host, self._graph)
        if self._of_links:
            free = self._machine.memory_bytes
            return HostBudget(
                host=None,
                free_bytes=free,
                needed_bytes=needed,
                reserve_bytes=0,
                reason="no tiers: batches of links read rows and lists in memory",
            )
        return host_budget(self._graph, free_bytes=self._machine.memory_bytes, needed_bytes=needed)

    # ---- the whole graph

    def _full(self) -> ModeEstimate:
        if self._of_links:
            return ModeEstimate(
                mode="full", host=None, fits=False, reason="it learns labels of nodes, not links"
            )
        try:
            config = self._config.updated(mode="full", plan=None, trace=None, hot=None, tiers=None)
            copies = _LOWERING_BYTES + 4 * self._graph.csc.nbytes
            require_memory(copies, "lowering the model, to count its memory,", "Use a machine with more")
            trial = Trial(self._model, self._graph, config, make_tiers(self._graph, config))
            needs = full_needs(trial)
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
                found = full_seconds(trial, needs.engine, fits=fits_here, bytes_per_second=rate)
            except ResourceError:  # what the estimate itself holds leaves no room for a step
                found = None
            if found is not None:
                seconds = self._there(found).writing(checkpoint_seconds(trial, 1))
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
        if self._slowness == 1.0:
            return seconds
        return seconds.scaled(self._slowness, f"times {self._slowness:.3g} by the rates of the two machines")

    def _judged(self, found: ModeEstimate, refused: str = "") -> ModeEstimate:
        """Return the estimate with whether the machine has room for it; ``refused`` is why it cannot run."""
        machine, missing = self._machine, list[str]()

        def check(what: str, needed: int | None, there: int | None) -> None:
            if needed is not None and there is not None and needed > there:
                missing.append(f"{what} {format_bytes(needed)} of {format_bytes(there)}")

        check("memory", _must(found.host), machine.memory_bytes)
        check("device", _must(found.device), machine.device_memory_bytes)
        check("disk", found.disk_bytes, machine.disk_bytes)
        room = "there is no room: it needs " + ", ".join(missing) if missing else ""
        reasons = [why for why in (refused, room, found.reason) if why]
        return replace(found, fits=not (missing or refused), reason="; ".join(reasons))

    def _curve(self) -> tuple[TierEstimate, ...]:
        if self._tiers is None or self._needs is None:
            return ()
        return self._tiers.curve(self._needs, self._seconds, self._pace)

    def _hot_curve(self) -> tuple[HotEstimate, ...]:
        if self._device is None or self._needs is None:
            return ()
        return self._device.curve(self._needs.device, self._machine.device_memory_bytes)


def _must(needs: Needs | None) -> int | None:
    return None if needs is None else needs.must_bytes
