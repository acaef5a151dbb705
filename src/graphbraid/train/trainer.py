"""Trainer: trains a model on a graph, evaluates it, predicts with it, and resumes interrupted runs."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphbraid import distributed
from graphbraid.arguments import check_type
from graphbraid.collective import Plan, Profile
from graphbraid.collective.run.stages import Accelerator
from graphbraid.errors import ConfigError, DataError
from graphbraid.estimates.choose import TrainerInputs, choose, with_plan_of_device
from graphbraid.estimates.plan import profile_run
from graphbraid.estimates.tiers import run_seconds
from graphbraid.fullgraph.reading.modes import CompiledModule
from graphbraid.graph import Graph
from graphbraid.graph.identity import mark
from graphbraid.sampling.rows.by_id import FeatureSource
from graphbraid.sampling.sample import NeighborLists
from graphbraid.signatures import typed
from graphbraid.train import runtime
from graphbraid.train.callbacks import Callback, RunResult, Status
from graphbraid.train.config import TrainConfig
from graphbraid.train.inference.embed import embeddings_in_chunks, nodes_to_embed, write_rows
from graphbraid.train.inference.evaluate import EvalMode, joined, node_ids, outputs_in_chunks, score
from graphbraid.train.inference.link_predictions import TopLinks, link_scores, top_links
from graphbraid.train.inference.metrics import Kinds, best_threshold, check_threshold, metric_kinds, monitored
from graphbraid.train.run.fit import FitRun, Listeners
from graphbraid.train.run.setup import check_fanouts
from graphbraid.train.run_folder.checkpoint import load_rows, read
from graphbraid.train.run_folder.contract import (
    Contract,
    check_same_model,
    graph_identity,
    learned_by,
    matched_to,
)
from graphbraid.train.run_folder.folder import RunFolder
from graphbraid.train.runtime import SignalGuard, TrainerLock
from graphbraid.train.step.links.runner import LinkRunner, runner_of
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.step.step import Progress, Share
from graphbraid.train.step.tiers import make_tiers
from graphbraid.train.task import Task, graph_to_learn, split_nodes, with_own_loss

if TYPE_CHECKING:
    from graphbraid.graph.graph_set import GraphSet


class Trainer:
    """A trainer of one model on one graph.

    With several ranks (:func:`graphbraid.distributed.init`) and ``tiers="auto"`` all make theirs together, as
    they divide the memory that they find free.

    Threads may share it: calls of :meth:`evaluate`, :meth:`predict` and :meth:`profile` wait for each other.

    Args:
        model: a model of :mod:`graphbraid.nn`, or any module. Its ``forward`` is called by the names of its
            parameters, such as ``x``, ``edge_index`` and ``edge_attr``; on a graph with types, ``x_dict``.
            With ``task="link"``, a :class:`graphbraid.nn.LinkModel`; with ``task="edge"``, a
            :class:`graphbraid.nn.EdgeModel`. It is trained in place.
        graph: topology, features, labels and splits; used in place, never copied. In a graph with types,
            the nodes of one type are learned, and ids of nodes are theirs. With ``task="graph"``, a
            :class:`graphbraid.GraphSet` or what :meth:`graphbraid.GraphSet.from_pyg` takes.
        config: training options. If None, the defaults.
        callbacks: callbacks, called in this order.
        info: plain values to keep with the run, such as how the model was built; they are stored in
            ``config.json`` and in checkpoints.
        accelerator: a device that prepares and transfers mini-batches according to ``plan``, by the operators
            registered for it (see ``docs/collective.md``); the model runs on ``device``. If None, ``device``
            prepares them as well.
        tiers: source of the feature rows, such as :class:`graphbraid.features.TieredFeatures` of this graph.
            ``"auto"`` is the option ``tiers="auto"``. If None, as the options ``host`` and ``tiers`` say,
            else the graph.
        topology: source of the adjacency lists, such as :class:`graphbraid.features.TieredTopology` of this
            graph. If None, as the options ``host`` and ``tiers`` say, else the graph.
        overrides: fields of :class:`TrainConfig` that replace those of ``config``.

    Example::

        trainer = Trainer(model, graph, epochs=20, fanouts=(15, 10, 5), out_dir="runs/first")
        result = trainer.fit()
        print(result.test["accuracy"], trainer.predict([0, 1, 2]).argmax(dim=1))

    Raises:
        ConfigError: an option is invalid; the message says which, and what would be valid.
        DataError: the graph has no features.
        RankError: another rank was lost while several divided memory.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: Graph | GraphSet | Any,
        *,
        config: TrainConfig | Mapping[str, Any] | None = None,
        callbacks: Iterable[Callback] = (),
        info: Mapping[str, Any] | None = None,
        accelerator: Accelerator | None = None,
        tiers: FeatureSource | str | None = None,
        topology: NeighborLists | None = None,
        **overrides: Any,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ConfigError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
        given = config if isinstance(config, TrainConfig) else TrainConfig.from_dict(config or {})
        graph, self.graphs = graph_to_learn(graph, overrides.get("task", given.task))
        model = model.model if isinstance(model, CompiledModule) else model
        self.model = model
        learned = learned_by.get(model)
        if learned is not None:
            graph = matched_to(model, graph, learned, has_tiers=tiers is not None or topology is not None)
        self.graph = graph
        if isinstance(tiers, str):
            overrides, tiers = overrides | {"tiers": tiers}, None
        ranks = distributed.current()
        self.comm = ranks if ranks is not None and ranks.size > 1 else None
        """Ranks that train together, by :func:`graphbraid.distributed.init`; None for one rank."""
        passed = TrainerInputs(tiers=tiers, topology=topology, accelerator=accelerator)
        chosen = choose(model, graph, given.updated(**overrides), passed, self.comm)
        self._share = Share.of(self.comm)
        self.mode_reason = chosen.mode_reason
        """Reason for the mode that ``auto`` chose; empty if the mode was given."""
        self.tiers_reason = chosen.tiers_reason
        """Choice of ``tiers="auto"`` with its reason; empty for other tiers."""
        check_type(callbacks, "callbacks", Iterable, "a list of callbacks", error=ConfigError)
        self.callbacks = list(callbacks)
        for i, callback in enumerate(self.callbacks):
            check_type(callback, f"callbacks[{i}]", Callback, "a train.Callback", error=ConfigError)
        if info is not None:
            check_type(info, "info", Mapping, "a mapping of plain values", error=ConfigError)
        self.info: Mapping[str, Any] = dict(info or {})
        self._turns = TrainerLock()
        place = runtime.place_of(chosen.config)
        runtime.warn_of_slow_precision(chosen.config, place.device)
        self.config = with_plan_of_device(chosen.config, passed, place.device, self._share.num_ranks)
        self.accelerator, self._place = accelerator, place
        made = make_tiers(
            graph,
            self.config,
            run_time=lambda: run_seconds(model, graph, self.config, self._share),
            reads=chosen.reads,
            share=self._share,
        )
        self.tiers: FeatureSource | None = tiers if made is None else made.features
        """Where feature rows are; None: in the graph."""
        self.topology: NeighborLists | None = (
            topology if topology is not None or made is None else made.topology
        )
        """Where adjacency lists are; None: in the graph."""
        self.host_reason = "" if made is None else made.reason
        """How ``host`` is divided between rows and lists, and why; empty without one of the options."""
        self.runner = self._new_runner()
        with contextlib.suppress(DataError):  # of labels that are not learned yet
            _ = self.monitored

    progress: Progress
    """Position of the current or the last run."""
    steps_per_epoch: int | None
    """Number of optimizer steps per epoch; None before :meth:`fit` knows it."""
    stop_status: Status | None
    """Status with which the run will end after the current step; None if it continues."""
    plan: Plan | None
    """Plan for preparing mini-batches; None before :meth:`fit` has made one."""
    uncompiled_reason: str
    """Reason why the model, or on mini-batches parts of it, runs as written; empty if it is compiled.

    It is empty, too, with ``compiled=False``."""
    baseline: str
    """Accuracy of the largest class alone, or errors of the mean target, in words; empty before :meth:`fit`.

    It is of the validation split, or of the training split without one; empty for several labels."""
    placement: str
    """Memories that a sampling device reads, after the last epoch; empty without such a device."""
    traffic: str
    """Table of the rows that ranks have read and sent by the last epoch's end; empty if each has all rows."""

    def _new_runner(self) -> ModelRunner:
        """Make the runner of the task and of the graph's kind; forget what another graph's labels said."""
        for said_by_labels in ("task", "metric_kinds", "monitored"):
            vars(self).pop(said_by_labels, None)
        self._forget_run()
        self._contract = Contract.of(self.graph)
        graph = self.graph if self.graphs is None else self.graphs
        rows, lists = self.tiers, self.topology
        runner = runner_of(self.model, graph, self._place, self.config, rows=rows, lists=lists)
        if self.graphs is None:
            runner.divide_rows(self.config, self.comm)
        return runner

    def _forget_run(self) -> None:
        self.progress, self.steps_per_epoch, self.stop_status, self.plan = Progress(), None, None, None
        self.uncompiled_reason = self.baseline = self.placement = self.traffic = ""
        vars(self).pop("identity", None)

    @cached_property
    def task(self) -> Task:
        """Task that the graph's labels describe."""
        return with_own_loss(self.runner.task(), self.config.loss)

    @cached_property
    def metric_kinds(self) -> Kinds:
        """Metrics that an evaluation computes, by name."""
        return metric_kinds(self.task, self.config.metrics)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that an evaluation computes."""
        return tuple(self.metric_kinds)

    @cached_property
    def monitored(self) -> tuple[str, bool]:
        """Metric that decides which epoch is best, and whether larger is better."""
        return monitored(self.metric_kinds, self.config.monitor)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Sizes of the data and the mark of each of their arrays, as they are in this run."""
        further = {f"array {name}": mark(values) for name, values in self.runner.further_arrays()}
        return graph_identity(self.graph) | further

    @property
    def exchange(self) -> str:
        """How devices of mode ``full`` read each other's rows, once found in the first epochs; else empty.

        Where ranks hold parts of the graph alone, a table of what each has read and sent of rows by the last
        epoch's end. On one rank, which options of that are given and not used.
        """
        if self.comm is None:  # no mistake: the same command trains on one rank and on several
            plain = TrainConfig()
            given = [(name, getattr(self.config, name)) for name in ("wire", "exchange")]
            idle = [f"{name}={value!r}" for name, value in given if value != getattr(plain, name)]
            return f"nothing travels, as there is one rank: {' and '.join(idle)} not used" if idle else ""
        if self.traffic:
            return self.traffic
        engine = self.runner.engine
        tuned = None if engine is None else engine.runner.tuned
        return "" if tuned is None else tuned.described()

    def explain(self) -> str:
        """Where rows and lists lie, why, and which part of the reads each place serves, in words.

        Reads are those so far, and those of the last whole epoch of :meth:`fit`. Of a device that samples it
        says, once an epoch has ended, how its memory is divided and what it read over the link.
        """
        sources = (getattr(source, "explain", None) for source in (self.runner.lists, self.runner.rows))
        explained = [str(explain()) for explain in sources if callable(explain)]
        reasons = (self.mode_reason, self.tiers_reason, self.host_reason)
        said = [part for part in (*reasons, *explained, self.placement) if part]
        return "\n\n".join(said) or "rows and lists are read where the graph has them"

    def fit(self) -> RunResult:
        """Train the model, evaluating and saving on the way.

        Ctrl-C or SIGTERM ends the run after the current step, with a checkpoint if there is an ``out_dir``; a
        second one ends it at once. During the initial checks, compilation and planning, they have their usual
        effect: Ctrl-C raises ``KeyboardInterrupt``. With ``resume``, the run continues from its last
        checkpoint; on the CPU its losses then equal those of a run that was never stopped, bit for bit.

        With several ranks (:func:`graphbraid.distributed.init`), all call it together: each trains on its
        share of every batch, and the first one writes the files.

        Raises:
            ConfigError: the model, an option or the checkpoint does not fit, which is found before the first
                step; or another thread is training.
            DataError: a split or labels are missing, or a checkpoint is damaged or of another graph.
            ResourceError: ``out_dir`` cannot be written or the disk is full; the last checkpoint is intact.
            RankError: another rank was lost, has stalled or has failed.
            TrainingError: the loss or the gradients are not finite; the message names epoch and step.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.turn(trains=True))
            folder = stack.enter_context(RunFolder(self.config.out_dir)) if self.config.out_dir else None
            guard, listeners = SignalGuard(), Listeners(self, self.callbacks)
            self._forget_run()
            ranks = None
            if self.comm is not None:
                from graphbraid.train.run.ranks import RunRanks  # here: many runs have no ranks

                ranks = RunRanks(self, self.comm, guard)
                ranks.check_same_run()
                ranks.share_hot_rows(stack)
            run = FitRun(self, listeners, folder, guard, ranks)
            # Entered only now: before the first step there is nothing to save, so Ctrl-C may end the checks.
            stack.enter_context(guard)
            try:
                return run.run()
            except BaseException as error:
                listeners.call(Callback.on_exception, error)
                raise
            finally:
                if self.progress.global_step:
                    learned_by[self.model] = self._contract

    def profile(self) -> Profile:
        """Measure how long each stage of a training step takes, on copies of model and optimizer.

        The first call takes a few seconds; the result is kept in the cache folder.

        Raises:
            ResourceError: what measuring takes would not fit the free memory.
        """
        if self.config.task in ("edge", "graph"):
            raise ConfigError(f"stages are measured for nodes and links, not for task={self.config.task!r}.")
        with self.turn():
            return profile_run(
                self.runner,
                self.task.to(self.runner.device),
                self.config,
                split_nodes(self.runner.labels, "train"),
                self.accelerator,
                share=self._share,
            )

    @typed
    def evaluate(self, split: str = "test", *, mode: EvalMode = "exact") -> dict[str, float]:
        """Return the loss and metrics of a split's labelled nodes.

        Args:
            split: ``train``, ``val``, ``test`` or another split of the graph.
            mode: ``exact`` uses all neighbours within ``memory_budget_bytes``; ``sampled`` uses
                ``eval_fanouts``.

        Raises:
            DataError: the split does not exist or has no labels.
            ResourceError: exact inference does not fit the budget.
        """
        with self.turn(mode):
            nodes = split_nodes(self.runner.labels, split)
            return score(self.runner, self.config, nodes, mode, task=self.task, metrics=self.metric_kinds)

    @typed
    def predict(
        self,
        nodes: Tensor | Sequence[int] | None = None,
        *,
        probabilities: bool = False,
        mode: EvalMode = "exact",
    ) -> Tensor:
        """Return the model's outputs for nodes.

        Args:
            nodes: ids in ``[0, num_nodes)``, in any order, possibly repeated, or a bool mask. If None, all.
                Of a model of edges, positions in the list of the relation; of graphs, their numbers.
            probabilities: whether to apply softmax (single-label) or sigmoid (multi-label).
            mode: ``exact`` or ``sampled``, as for :meth:`evaluate`.

        Returns:
            ``(len(nodes), width)`` float32 on the CPU.

        Raises:
            ConfigError: an id is out of range, or another thread is training.
            ResourceError: exact inference does not fit the budget.
        """
        if isinstance(self.runner, LinkRunner):
            raise ConfigError(
                "task='link' has no outputs of nodes; predict_links scores pairs of them, and top_links "
                "finds the likeliest."
            )
        ids = node_ids(self.runner.labels, nodes)
        once, places = torch.unique(ids, return_inverse=True)
        if once.numel() < ids.numel():
            # A batch has one row for each seed: a self-loop of a repeated one would join two of its rows.
            return self.predict(once, probabilities=probabilities, mode=mode)[places]
        with self.turn(mode):
            chunks = outputs_in_chunks(self.runner, self.config, ids, mode)
            if probabilities:
                chunks = ((start, self.task.probabilities(rows)) for start, rows in chunks)
            return joined(chunks, ids.numel())

    @typed
    def embed(
        self,
        nodes: Tensor | Sequence[int] | None = None,
        *,
        node_type: str | None = None,
        layer: str | None = None,
        mode: EvalMode = "exact",
    ) -> Tensor:
        """Return the last hidden representation of nodes: the rows that the model's last layer reads.

        Of a model of links these are the encoder's rows, which its predictor compares.

        Args:
            nodes: ids, as in :meth:`predict`.
            node_type: in a graph with types, the type of the nodes. If None, the one that is learned.
            layer: of a model that is not of :mod:`graphbraid.nn`, name of the module whose input is returned,
                such as ``"lin"``. If None, the last module with parameters that the model calls.
            mode: ``exact`` or ``sampled``, as for :meth:`evaluate`.

        Returns:
            ``(len(nodes), channels)`` float32 on the CPU, in evaluation mode.

        Raises:
            ConfigError: an id is out of range, or the model has no hidden rows of these nodes.
            ResourceError: exact inference does not fit the budget.
        """
        node_type, ids = nodes_to_embed(self.runner, self.config, node_type, nodes)
        once, places = torch.unique(ids, return_inverse=True)
        with self.turn(mode):
            chunks = embeddings_in_chunks(
                self.runner, self.config, once, mode, node_type=node_type, layer=layer
            )
            return joined(chunks, once.numel())[places]

    @typed
    def write_embeddings(
        self,
        path: str | os.PathLike[str],
        nodes: Tensor | Sequence[int] | None = None,
        *,
        columns: Mapping[str, Any] | None = None,
        node_type: str | None = None,
        layer: str | None = None,
        mode: EvalMode = "exact",
    ) -> None:
        """Write the result of :meth:`embed` to a file, in chunks that fit ``memory_budget_bytes``.

        Args:
            path: a file ``.npy``, of float32 rows; or ``.parquet``, with a column ``embedding`` of lists.
            nodes: ids, as in :meth:`embed`, each once.
            columns: further columns of a Parquet file, such as the users' ids: arrays with an entry for each
                node. If None, ``node`` with the ids.
            node_type: as in :meth:`embed`.
            layer: as in :meth:`embed`.
            mode: as in :meth:`embed`.

        Raises:
            ConfigError: as in :meth:`embed`; or an id is repeated, the name ends otherwise, or a column has
                another length.
            MissingPackageError: Parquet is asked for, and pyarrow is not installed.
            ResourceError: as in :meth:`embed`, or the file cannot be written.
        """
        node_type, ids = nodes_to_embed(self.runner, self.config, node_type, nodes)
        if torch.unique(ids).numel() < ids.numel():
            raise ConfigError("write_embeddings writes one row for each node; an id is repeated")
        told = {"node": ids.numpy()} if columns is None else columns
        with self.turn(mode):
            chunks = embeddings_in_chunks(
                self.runner, self.config, ids, mode, node_type=node_type, layer=layer
            )
            write_rows(Path(path), ids.numel(), chunks, told)

    @typed
    def best_threshold(self, split: str = "val", *, beta: float = 1.0, mode: EvalMode = "exact") -> float:
        """Return the probability from which on to predict class 1, or the only label, for the largest F-beta.

        Args:
            split: split to choose it on, such as ``val``; on the test split it would be too good.
            beta: weight of recall: above 1 recall counts more than precision, below 1 less.
            mode: ``exact`` or ``sampled``, as for :meth:`evaluate`.

        Raises:
            ConfigError: the task has other than two classes or one label, or ``beta`` is not positive.
            DataError: the split does not exist, or has no positives or no negatives.
            ResourceError: exact inference does not fit the budget.
        """
        if not 0 < beta < math.inf:
            raise ConfigError(f"beta must be a positive number; got {beta}.")
        nodes, y = split_nodes(self.runner.labels, split), self.runner.labels.y
        assert y is not None, "labels of nodes, or those of links, which are all 1"
        positive = y[nodes].reshape(-1).long().cpu()
        check_threshold(self.task, positive, split)
        return best_threshold(self.predict(nodes, probabilities=True, mode=mode)[:, -1], positive, beta)

    @typed
    def predict_links(
        self,
        links: Tensor | Sequence[Sequence[int]],
        relation: Tensor | Sequence[int] | None = None,
        *,
        probabilities: bool = False,
        mode: EvalMode = "exact",
    ) -> Tensor:
        """Return the scores of pairs of nodes, the higher the likelier a link; for ``task="link"``.

        Args:
            links: ``(2, num_links)`` ids of sources and destinations, each within its node type.
            relation: ``(num_links,)`` relation of each, by its place in ``graph.edge_types``, for predictors
                of relations.
            probabilities: whether to apply the sigmoid, which has a meaning after ``negatives="binary"``.
            mode: ``exact`` or ``sampled`` neighbourhoods of the nodes.

        Returns:
            ``(num_links,)`` float32 on the CPU.

        Raises:
            ConfigError: an id is out of range, a relation is missing, or the task is another one.
            ResourceError: exact inference does not fit the budget.
        """
        with self.turn(mode):
            scores = link_scores(self.runner, self.config, links, relation, mode)
        return scores.sigmoid() if probabilities else scores

    @typed
    def top_links(
        self,
        nodes: Tensor | Sequence[int],
        relation: Tensor | Sequence[int] | None = None,
        *,
        k: int = 10,
        sources: bool = False,
        known: bool = False,
        mode: EvalMode = "exact",
    ) -> TopLinks:
        """Return the ``k`` likeliest destinations of links from each of some nodes; for ``task="link"``.

        Args:
            nodes: ``(num,)`` ids of sources within their type, in any order and possibly repeated.
            relation: ``(num,)`` relation of each link to find, as in :meth:`predict_links`.
            k: number of destinations of each.
            sources: whether ``nodes`` are destinations, whose likeliest sources are returned.
            known: whether the links of the graph, and a node itself, are listed, too.
            mode: ``exact`` or ``sampled`` neighbourhoods of the nodes.

        Returns:
            ``(num, k)`` ids of nodes, best first, and their ``(num, k)`` float32 scores. Where fewer than
            ``k`` nodes are left, the others are -1 with a score of ``-inf``.

        Raises:
            ConfigError: an id is out of range, a relation is missing, or the task is another one.
            ResourceError: the rows of all nodes do not fit the budget.
        """
        with self.turn(mode):
            return top_links(
                self.runner, self.config, nodes, relation, mode, k=k, sources=sources, known=known
            )

    @typed
    def load_weights(self, path: str | os.PathLike[str]) -> None:
        """Load the model's weights from a checkpoint, such as ``out_dir/checkpoints/best.pt``.

        The graph's columns, classes and types are matched by name with those that the model was trained on;
        :attr:`graph` then has them in that order.

        Raises:
            ConfigError: the file does not exist, or is of another model.
            DataError: the file is damaged, or the graph lacks a column, class or type; names it.
        """
        contents = read(path, trust=self.config.trust_checkpoint)
        check_same_model(contents["model_identity"], self.model, path)
        learned = Contract.model_validate(contents["graph_identity"]["contract"])
        has_tiers = self.tiers is not None or self.topology is not None
        graph = matched_to(self.model, self.graph, learned, has_tiers=has_tiers)
        if graph is not self.graph:
            self.graph = graph
            self.runner = self._new_runner()
        learned_by[self.model] = learned
        load_rows(self.runner, contents, Path(path).parent, states=False)
        self.model.load_state_dict(contents["model"])

    @contextlib.contextmanager
    def turn(self, mode: EvalMode | None = None, *, trains: bool = False) -> Iterator[None]:
        """Hold the trainer for one call, alone and with the run's settings of PyTorch.

        Args:
            mode: how nodes are evaluated meanwhile, which is checked. If None, they are not.
            trains: whether the call trains.

        Raises:
            ConfigError: another thread is training, or the model cannot be evaluated so.
        """
        with self._turns.take(trains=trains), runtime.torch_settings(self.config):
            if mode not in (None, "sampled", "exact"):
                raise ConfigError(f"mode must be 'sampled' or 'exact'; got {mode!r}.")
            if mode == "sampled":
                check_fanouts(self.model, self.config)
            yield

    def request_stop(self, status: Status = "stopped") -> None:
        """End :meth:`fit` after the current step or epoch; for callbacks. The first request counts."""
        if self.stop_status is None:
            self.stop_status = status
