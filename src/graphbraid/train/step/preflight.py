"""Checks before the first step, so that no work is lost to a mistake that could have been found earlier."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from graphbraid.errors import ConfigError, DataError, GraphbraidError
from graphbraid.fullgraph.reading.modes import in_mode, kept_buffers
from graphbraid.fullgraph.reading.watch import GraphWatch
from graphbraid.graph import Graph, NodeSet
from graphbraid.nn import module_traits
from graphbraid.ops.dropout import given_seeds
from graphbraid.sampling.config import part_of
from graphbraid.train.config import TrainConfig
from graphbraid.train.step.feed import ALONE, Share, make_feed, make_loader
from graphbraid.train.step.reach import agree
from graphbraid.train.step.runner import ModelRunner, divided_graph
from graphbraid.train.task import Task, labelled

if TYPE_CHECKING:
    from graphbraid.fullgraph.batches.rank_norms import RankNorms
    from graphbraid.graph.graph_set import GraphSet

_log = logging.getLogger(__name__)
_SHARED_SEEDS = 8
"""Seeds of each rank in the mini-batch on which shares are compared with the whole."""
_DRY_SEEDS = 2
"""Number of seeds in the mini-batch on which a model is first tried."""


def graph_to_learn(graph: Any, task: str) -> tuple[Graph, GraphSet | None]:
    """Return the graph to learn, and with ``task="graph"`` the set of graphs whose union it is.

    Raises:
        ConfigError: it is no graph, or not of the kind that the task needs; or its arrays require gradients.
    """
    graphs = None
    if task == "graph" or not isinstance(graph, Graph):
        from graphbraid.graph.graph_set import GraphSet  # here: few runs are on many graphs

        if isinstance(graph, GraphSet) and task != "graph":
            raise ConfigError(
                f"a GraphSet has labels of graphs, and task={task!r} learns others; set task='graph'."
            )
        if task == "graph" and isinstance(graph, Graph):
            raise ConfigError(
                "task='graph' learns labels of many graphs; give a GraphSet, or a list or dataset of "
                "PyG's Data."
            )
        if task == "graph":
            graphs = graph if isinstance(graph, GraphSet) else GraphSet.from_pyg(graph)
            graph = graphs.graph
    if not isinstance(graph, Graph):
        raise ConfigError(
            f"graph must be a graphbraid.Graph; got {type(graph).__name__}. Convert it first, for "
            "example with Graph.from_pyg(data), or set task='graph' for a list of graphs."
        )
    of_types = [graph.nodes_of(one).x for one in graph.node_types] if graph.is_typed else []
    if GraphWatch(graph, of_types).wants_gradients():
        raise ConfigError(
            "the graph's features or edges require gradients, but a Trainer updates only the model's "
            "parameters; keep learned rows in the model, as torch.nn.Embedding does, or detach() them"
        )
    return graph, graphs


def split_nodes(labels: Graph | NodeSet, split: str) -> Tensor:
    """Return the labelled nodes of a split.

    Raises:
        DataError: the split does not exist or is empty, or none of its nodes is labelled.
    """
    nodes = labels.split(split)
    kept = labelled(labels, nodes)
    if kept.numel() == 0:
        raise DataError(
            f"none of the {nodes.numel()} nodes of the split {split!r} has a label (all are -1 or -100)."
        )
    return kept


def has_split(labels: Graph | NodeSet, split: str) -> bool:
    """Return whether a split exists and is not empty."""
    return split in labels.splits and labels.splits[split].numel() > 0


def check_needs_no_val(config: TrainConfig) -> None:
    """Check that no option follows a validation metric, for a graph without a validation split.

    Raises:
        ConfigError: an option does; the message names it.
    """
    follows = f"patience={config.patience}" if config.patience is not None else None
    if config.scheduler == "plateau":
        follows = "scheduler='plateau'"
    if follows is not None:
        raise ConfigError(
            f"{follows} follows a validation metric, but the graph has no split 'val'; give it one, or leave "
            "the option out."
        )


def check_fanouts(model: nn.Module, config: TrainConfig) -> None:
    """Check that there is one fanout per layer, if the model has ``num_layers``.

    Raises:
        ConfigError: the numbers differ.
    """
    if config.task == "graph":  # nothing is drawn
        return
    layers = module_traits.num_layers(model)
    if config.mode == "sampled" and layers is not None and layers != len(config.fanouts):
        raise ConfigError(
            f"fanouts must have one entry per layer of the model ({layers}); got {len(config.fanouts)}: "
            f"{list(config.fanouts)}."
        )
    if config.mode == "sampled" and layers and not any(config.fanouts):
        _log.warning(
            "fanouts %s draw no neighbours: the model learns from each node's own row alone. -1 takes all.",
            list(config.fanouts),
        )


def dry_run(runner: ModelRunner, task: Task, config: TrainConfig, nodes: Tensor) -> None:
    """Run the model once without training it, on the whole graph or a small mini-batch, and check its output.

    This also initialises lazy modules before an optimizer is made.

    Args:
        runner: the model and its graph.
        task: the loss.
        config: options of the run.
        nodes: training nodes; in mode ``sampled`` the first of them are the batch's seeds.

    Raises:
        ConfigError: the model fails on the graph's data, or its output does not have ``task.width`` columns.
    """
    seeds, what = nodes, "the whole graph"
    if config.mode != "full":
        seeds = nodes[:_DRY_SEEDS]
        what = f"a mini-batch of {seeds.numel()} seed nodes"
    with (
        contextlib.closing(make_feed(runner, config, task, seeds)) as feed,
        contextlib.closing(feed.batches(0, 0)) as batches,
    ):
        batch = next(batches).batch
        assert batch is not None
        try:
            with in_mode(runner.model, training=False), torch.no_grad():
                outputs = runner.outputs_of(batch)
        except GraphbraidError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            raise ConfigError(
                f"the model failed on {what}, with {runner.feature_text}: {error}. "
                "Check its number of input channels and what its forward takes."
            ) from error
    if outputs.ndim:  # else it is the loss of links, whose scores are not kept
        check_width(outputs.shape[1], task)


def shares_agree(
    runner: ModelRunner,
    config: TrainConfig,
    nodes: Tensor,
    share: Share,
    norms: RankNorms | None = None,
    *,
    trains: bool = False,
) -> bool:
    """Return whether a rank's share of a batch gives its seeds the outputs that they have in the whole batch.

    Some seeds are in-neighbours of others, so that shares meet. A model whose outputs differ from run to run
    passes: there is nothing to compare.

    Args:
        runner: the model and its graph.
        config: options of the run.
        nodes: some nodes that the model is trained on.
        share: this rank's share.
        norms: batch normalisations that train in this comparison, by the rows of all ranks.
        trains: whether the whole model is in training mode, dropout modules apart.
    """
    seeds, divided = nodes[: _SHARED_SEEDS * share.num_ranks], divided_graph(runner.graph)
    if not runner.graph.is_typed:
        csc = runner.graph.csc
        beside = [csc.indices[int(csc.indptr[v]) : int(csc.indptr[v + 1])][:2].long() for v in seeds.tolist()]
        near = torch.cat(beside)
        if divided is not None:  # each rank has the lists of its own nodes
            of_ranks = divided.shards.ranks.gather(near.tolist())
            near = torch.tensor([*itertools.chain(*of_ranks)], dtype=torch.int64)
        seeds = torch.unique(torch.cat((seeds, near)))
    whole = config.updated(batch_size=seeds.numel(), plan=None, trace=None)
    if seeds.numel() < share.num_ranks:
        return True

    def outputs(share: Share) -> Tensor:
        runner.norms = norms if share.num_ranks > 1 else None
        with make_loader(runner, whole, seeds, share=share) as loader, given_seeds(itertools.count()):
            return runner.on_batch(next(loader.batches(0)))

    with in_mode(runner.model, training=trains), _kept_state(runner.model), torch.no_grad():
        for module in runner.model.modules() if trains else ():
            module.training = not isinstance(module, _DropoutNd)
        for norm in () if norms is None else norms.modules:
            norm.train()
        if norms is None:
            own = outputs(share)
        else:
            norms.begin()
            with torch.enable_grad():
                own = outputs(share).detach()
            norms.end()
        all_ = outputs(ALONE)
        begin, end = part_of(seeds.numel(), share.rank, share.num_ranks)
        agrees = agree(own, all_[begin:end])
        repeats = torch.tensor([int(not agrees)])
        if divided is not None:  # ranks that draw from their parts together must make the same calls
            repeats = divided.shards.ranks.all_reduce(repeats, "max").wait()
        if repeats:
            agrees |= not agree(all_, outputs(ALONE))
        return agrees and (norms is None or not norms.misfit)


@contextlib.contextmanager
def _kept_state(model: nn.Module) -> Iterator[None]:
    """Give all modules their attributes and the values of their buffers back afterwards."""
    held = [one for module in model.modules() for one in (module.__dict__, module.__dict__["_buffers"])]
    before = [dict(one) for one in held]
    with kept_buffers(model):
        yield
    for one, values in zip(held, before, strict=True):
        one.clear()
        one.update(values)


def check_width(num_outputs: int, task: Task) -> None:
    """Check that a model has as many outputs as a task needs.

    Raises:
        ConfigError: it has another number.
    """
    if task.name == "link":  # as many scores as there are negatives
        return
    if num_outputs != task.width:
        needed = {"single-label": "class", "multi-label": "label", "regression": "target dimension"}[
            task.name
        ]
        raise ConfigError(
            f"the model must have one output per {needed} ({task.width}); it has {num_outputs}. Build "
            f"it with out_channels={task.width}."
        )
