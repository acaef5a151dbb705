"""How long a run will take, by what is tried on copies: what looking ahead is weighed against."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Iterator
from statistics import median

import torch
from torch import Tensor, nn

from graphbraid.errors import GraphbraidError
from graphbraid.estimates.trial import PartSeconds, Trial
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.loader.batches.batch_loader import BatchLoader
from graphbraid.train import runtime
from graphbraid.train.config import TrainConfig
from graphbraid.train.estimating.disk_waits import disk_waits, may_wait
from graphbraid.train.estimating.memory.sampled import are_mapped, may_try_steps
from graphbraid.train.estimating.seconds.run_evaluations import run_evaluations
from graphbraid.train.step.feed import ALONE, Share, make_loader
from graphbraid.train.step.tiers import share_of

STEPS = 4
"""Steps that are tried; the first one, in which torch finds its kernels, does not count."""
SECONDS = 2.0
"""After which no further step is tried."""


class RunSeconds:
    """The seconds of a run whose model was tried: training, evaluations, and what it waits for a disk.

    What can be known without the reads of its rows is tried at once. Looking ahead asks for the rest, if it
    depends on that (:class:`graphbraid.features.scores.choice.RunTime`).

    Args:
        trial: the run.
        host: memory for tiers. If None, no file is read by tiers.
        share: of each batch that is trained on here.
        rate: rows that come from the store's file at random in a second. If None, it is measured.
        is_here: whether the run is for this machine; else nothing is measured, and without ``rate`` what it
            waits for the disk is not known.
    """

    def __init__(
        self,
        trial: Trial,
        *,
        host: int | str | None,
        share: Share = ALONE,
        rate: float | None = None,
        is_here: bool = True,
    ) -> None:
        self._trial, self._host, self._rate = trial, host, rate
        self._knows_disk = is_here or rate is not None
        self.train = seconds_of_steps(trial, share)
        """Seconds of all training steps, their rows at hand."""
        with _rows_made_up(trial):
            self._evaluations = run_evaluations(trial, share.num_ranks)
        self._disk: PartSeconds | None = None

    @property
    def least(self) -> float:
        """Seconds of training and of those evaluations whose time is known."""
        return self.train + sum(part.seconds or 0.0 for part in self._evaluations)

    @property
    def waits(self) -> bool:
        """Whether training may take longer, as it reads a store's file."""
        return self._knows_disk and may_wait(self._trial, self._host)

    def with_reads(self, reads: Tensor) -> float:
        """Return the seconds with tiers filled by ``(num_nodes,)`` reads of an epoch."""
        if not self.waits:
            return self.least
        assert self._host is not None, "a run without tiers does not wait"
        if self._disk is None:
            epochs = self._trial.config.epochs
            each = disk_waits(self._trial, reads, self.train / epochs, host=self._host, rate=self._rate)
            self._disk = each.times(epochs)
        return self.least + (self._disk.seconds or 0.0)

    @property
    def counted(self) -> str:
        """What was counted, and what was not, and why."""
        parts = [f"training {self.train:.2g} s"]
        for part in self._evaluations:
            known = "not counted" if part.seconds is None else f"{part.seconds:.2g} s"
            parts.append(f"{part.how}: {known}")
        if self._disk is not None:
            parts.append(f"waiting for the disk {self._disk.seconds or 0.0:.2g} s, by {self._disk.how}")
        elif self.waits:
            parts.append("waiting for the disk: not counted, as all epochs are allowed without it")
        elif may_wait(self._trial, self._host):
            parts.append("waiting for the disk: not counted, as its rate is not known")
        return "; ".join(parts)


def run_seconds(
    model: nn.Module, graph: Graph, config: TrainConfig, share: Share = ALONE
) -> RunSeconds | None:
    """Return the seconds of a run; None if a step cannot be made, as the run will say, or not tried here.

    Nothing of the model and of torch's random state changes.

    Args:
        model: to train.
        graph: to train on.
        config: options of the run on mini-batches.
        share: of each batch that is trained on here.
    """
    host, config = config.host, config.updated(mode="sampled", host=None, tiers=None)
    with runtime.torch_settings(config), runtime.random_state_kept():
        try:
            trial = Trial(model, graph, config)
            trial.try_model()
            return RunSeconds(trial, host=host, share=share) if may_try_steps(trial) else None
        except GraphbraidError:
            return None


@contextlib.contextmanager
def _rows_made_up(trial: Trial) -> Iterator[bool]:
    """Let a trial read made-up rows within the ``with`` block where a store's file holds the graph's.

    Gives whether the rows are those of a run.
    """
    runner = trial.runner
    kept = runner.rows
    if kept is None and are_mapped(trial.graph):
        runner.rows = MadeUpRows(trial.graph)
    try:
        yield runner.rows is kept
    finally:
        runner.rows = kept


def seconds_of_steps(trial: Trial, share: Share = ALONE) -> float:
    """Return the least seconds of the training of a run whose model was tried.

    A step takes as long as it does on a batch at hand, or, where the CPU prepares batches by no plan, as long
    as its threads take for the next one, if that is longer. Rows of a store's file are made up.

    Args:
        trial: the run.
        share: of each batch that is trained on here.
    """
    runner, config, taken = trial.runner, trial.config.updated(plan=None, trace=None), list[float]()
    prepared = 0.0
    with _rows_made_up(trial) as with_rows:
        share = share_of(share, config, trial.nodes)
        with make_loader(runner, config, trial.nodes, share=share) as loader:
            steps = len(loader)
            for batch in itertools.islice(loader.batches(0), min(STEPS, steps)):
                runner.features_of(batch)  # sparse rows are gathered at this first use
                started = time.perf_counter()
                trial.step(batch)
                taken.append(time.perf_counter() - started)
                if len(taken) == 1:
                    loader.reset_stage_seconds()  # threads have their buffers now
                if math.fsum(taken) > SECONDS:
                    break
            if trial.config.plan is None:
                prepared = _preparing(loader, with_rows=with_rows)
    return max(median(taken[1:] or taken), prepared) * steps * config.epochs


def _preparing(loader: BatchLoader, *, with_rows: bool) -> float:
    """Return the seconds in which a loader's threads prepare a batch together; 0 if that is not known.

    Args:
        loader: which has prepared some.
        with_rows: whether its rows are those of a run, and their gathers count.
    """
    seconds = loader.stage_seconds
    if not seconds["batches"]:
        return 0.0
    own = seconds["sample"] + (seconds["gather"] if with_rows else 0.0)
    return own / seconds["batches"] / loader.num_workers


class MadeUpRows:
    """Rows of random numbers in place of a graph's dense features, which are not read.

    Args:
        graph: whose rows these have the width and the dtype of.
    """

    lookahead = 0
    hot = in_memory = None

    def __init__(self, graph: Graph) -> None:
        x = graph.x
        assert not isinstance(x, SparseFeatures | None), "a store's file holds dense rows"
        self.shape, self.dtype = torch.Size((graph.num_nodes, graph.num_features)), x.dtype

    def announce(self, ids: Tensor) -> int:
        """Take no notice; gives -1."""
        return -1

    def gather(self, ids: Tensor, out: Tensor | None = None, *, batch: int = -1) -> Tensor:
        """``(num_ids, F)`` numbers in [0, 1)."""
        rows = torch.rand(len(ids), self.shape[1]).to(self.dtype)
        return rows if out is None else out.copy_(rows)

    def forget(self) -> None:
        """Do nothing: nothing was announced."""
