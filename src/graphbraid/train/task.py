"""Task: the labels that a graph has, with the matching loss and predictions; and the graph to learn."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphbraid.errors import ConfigError, DataError
from graphbraid.fullgraph.reading.watch import GraphWatch
from graphbraid.graph import EdgeSet, Graph, NodeSet
from graphbraid.graph.types import (
    UNLABELLED,
    TaskName,
    first_partly_labelled,
    has_class,
    has_labels,
    is_multi_hot,
    misses_cells,
)
from graphbraid.ops.cross_entropy import cross_entropy

if TYPE_CHECKING:
    from graphbraid.graph.graph_set import GraphSet

AnyTaskName = Literal[TaskName, "link"]
"""Tasks of a model: a task that labels imply, or the prediction of links."""
IGNORED = UNLABELLED[0]
"""Class that :meth:`Task.loss` passes to torch for every node without a label."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Task:
    """The loss for one kind of label, and the reading of a model's outputs."""

    name: AnyTaskName
    """Kind of label, with its loss: ``single-label`` (cross entropy), ``multi-label`` (binary cross entropy
    with logits), ``regression`` (mean squared error), or ``link``: binary cross entropy of one score, or
    cross entropy of the first of several, or with ``temperature`` :func:`self_adversarial`."""
    width: int
    """Number of columns of a model's output: classes, labels or target dimensions; of ``link`` 1, or 2 for
    several scores."""
    class_weights: Tensor | None = None
    """Weight of each class, or of each label's positives, ``(width,)`` float32. If None, all are 1."""
    misses_cells: bool = False
    """Whether some nodes have some of their float labels or targets alone. The loss is the mean over cells
    that are not NaN."""
    temperature: float | None = None
    """Temperature of links' self-adversarial negatives; None for others."""
    own_loss: Callable[[Tensor, Tensor], Tensor] | None = None
    """Function of outputs and targets in place of the kind's own loss (``TrainConfig.loss``)."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean float32 loss of ``outputs`` ``(n, width)`` against ``labels``, rows of ``Graph.y``.

        The classes -1 and -100 (torch's own) stand for no label: their rows do not count.
        """
        outputs = outputs.float()
        if self.own_loss is not None:
            return self._mean_of_own(outputs, labels)
        if self.name == "single-label":
            # The labels themselves where all are classes: then the gradient's memory stays with them.
            all_known = labels.is_cpu and bool(has_class(labels).all())
            known = labels if all_known else labels.where(has_class(labels), IGNORED)
            return cross_entropy(outputs, known, self.class_weights, ignore_index=IGNORED)
        if self.name == "link":
            return self._of_links(outputs, labels)
        targets, weights = labels.float().reshape(outputs.shape), self.class_weights
        if self.misses_cells:
            known = ~targets.isnan()
            weights = None if weights is None else weights.expand_as(outputs)[known]
            outputs, targets = outputs[known], targets[known]
        if self.name == "multi-label":
            return F.binary_cross_entropy_with_logits(outputs, targets, pos_weight=weights)
        return F.mse_loss(outputs, targets)

    def _of_links(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if outputs.ndim == 0:  # the loss itself, of scores that were not kept
            return outputs
        if self.temperature is not None:
            return self_adversarial(outputs, self.temperature)
        if self.width > 1:
            return cross_entropy(outputs, labels)
        return F.binary_cross_entropy_with_logits(outputs.squeeze(1), labels.float())

    def _mean_of_own(self, outputs: Tensor, labels: Tensor) -> Tensor:
        assert self.own_loss is not None
        if self.name == "single-label":
            known = has_class(labels)
            outputs, targets = outputs[known], labels[known]
        elif self.name == "multi-label":
            targets = labels.float()
        else:
            targets = labels.float().reshape(outputs.shape)  # (n,) beside (n, 1) would broadcast to (n, n)
        losses = self.own_loss(outputs, targets)
        if not isinstance(losses, Tensor) or losses.shape not in ((), (outputs.shape[0],)):
            got = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
            raise ConfigError(
                f"loss= must return a scalar tensor, or one loss per row, ({outputs.shape[0]},); got {got} "
                f"for outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}."
            )
        return losses.mean()

    def mass(self, labels: Tensor) -> float:
        """Return the divisor of :meth:`loss`, for combining chunks: rows, known cells or summed weights."""
        if self.misses_cells and self.own_loss is None:
            return float((~labels.isnan()).sum())
        if self.name == "single-label" and self.class_weights is not None:
            return float(self.class_weights[labels[has_class(labels)]].sum())
        return float(labels.shape[0])

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probabilities of classes or labels, or a regression's values: ``(n, width)`` float32."""
        if self.name == "single-label":
            return outputs.float().softmax(dim=-1)
        return outputs.float() if self.name == "regression" else outputs.float().sigmoid()

    def to(self, device: torch.device) -> Task:
        """Return the task with its weights on ``device``."""
        weights = None if self.class_weights is None else self.class_weights.to(device)
        own = self.own_loss
        if isinstance(own, nn.Module):  # with tensors of its own; evaluations score on the CPU meanwhile
            own = copy.deepcopy(own).to(device)
        return replace(self, class_weights=weights, own_loss=own)


def self_adversarial(scores: Tensor, temperature: float) -> Tensor:
    """Return the mean loss of links beside negatives; the likeliest negatives count most.

    Half of ``-log sigmoid(own) - sum(p * log sigmoid(-other))``, where ``p`` is the softmax of the negatives'
    scores times ``temperature`` and has no gradient: equation 5 of "RotatE: Knowledge Graph Embedding by
    Relational Rotation in Complex Space", halved as in its code.

    Args:
        scores: ``(num, 1 + num_negatives)``: a link's own, then those of its negatives; ``-inf`` for none.
        temperature: 0 weighs all negatives alike.
    """
    own, others = scores[:, 0], scores[:, 1:]
    hidden = others.detach() == -torch.inf
    shares = (others.detach() * temperature).masked_fill(hidden, -torch.inf).softmax(1)
    shares = shares.masked_fill(hidden, 0.0)  # also where a link has none, whose softmax is NaN
    against = (shares * F.logsigmoid(-others.masked_fill(hidden, 0.0))).sum(1)
    return -(F.logsigmoid(own) + against).mean() / 2


def task_of(labels: Graph | NodeSet) -> Task:
    """Return the task that labels describe, of a graph or of a node type; DataError if they describe none."""
    if labels.y is None:
        where = "graph.y is None" if isinstance(labels, Graph) else "the node type has none"
        raise DataError(
            f"training needs labels, but {where}; give the graph labels with graph.replace(y=...)."
        )
    name = labels.task
    if name == "regression" and labels.y.ndim == 2 and (node := first_partly_labelled(labels.y)) >= 0:
        raise DataError(
            f"-1 and -100 mark nodes without any of their labels of 0 and 1; y[{node}] is "
            f"{labels.y[node].tolist()}. Write NaN where a single label is not known, or mark all of the row."
        )
    if name == "regression" and labels.y.ndim == 1 and is_multi_hot(labels.y[:, None]):
        _log.warning(
            "the float labels 0 and 1 are learned as numbers, by their squared error; for two classes give "
            "y.long(), for one label that a node has or has not y[:, None]"
        )
    width = labels.num_classes
    if name == "single-label" and width == 1:
        raise DataError(
            "all labels are class 0; training needs at least two classes, or float labels for a regression."
        )
    return Task(name=name, width=width, misses_cells=name != "single-label" and misses_cells(labels.y))


def labelled(of: Graph | NodeSet | EdgeSet, nodes: Tensor) -> Tensor:
    """Return those of ``nodes`` that have a label, in the same order.

    The classes -1 and -100 are no label, nor are multi-label rows of -1 or -100 throughout, nor float labels
    of NaN throughout. DataError for other negative classes, and for infinite labels.
    """
    assert of.y is not None
    labels = of.y.index_select(0, nodes)
    if not labels.is_floating_point():
        known = has_class(labels)
        below = known & (labels < 0)
        if bool(below.any()):
            node = int(nodes[below][0])
            raise DataError(
                f"labels must be classes from 0, or -1 or -100 for none; y[{node}] is {int(of.y[node])}."
            )
        return nodes[known]
    if labels.ndim == 2 and not bool((known := has_labels(labels)).all()) and of.task == "multi-label":
        return nodes[known]
    cells = labels.reshape(nodes.numel(), -1)
    infinite = cells.isinf().any(dim=1)
    if bool(infinite.any()):
        node = int(nodes[infinite][0])
        raise DataError(
            f"labels of nodes in a split must be finite, or NaN for none; y[{node}] is "
            f"{of.y[node].tolist()}. Take the node out of the split."
        )
    known = ~cells.isnan().all(dim=1)
    return nodes if bool(known.all()) else nodes[known]


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
    """Return the labelled nodes of a split; DataError if there are none."""
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


def with_class_weights(task: Task, choice: str | Sequence[float] | None, labels: Tensor) -> Task:
    """Return the task with class weights, as given or ``balanced`` over ``labels`` (the training rows).

    Balanced weights are ``n / (width * count)`` per class, and ``negatives / positives`` per label.

    Raises:
        ConfigError: the task has no class weights, or their number is not ``task.width``.
    """
    if choice is None:
        return task
    if task.name == "regression":
        raise ConfigError(
            f"class_weights={choice!r} needs classes, but the graph's labels are a regression's."
        )
    if isinstance(choice, str):
        weights = _balanced(task, labels)
    elif len(choice) == task.width:
        weights = torch.tensor(choice, dtype=torch.float32)
    else:
        raise ConfigError(f"class_weights must have one weight per class ({task.width}); got {len(choice)}.")
    return replace(task, class_weights=weights)


LOSSES = (
    "cross_entropy",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "multilabel_soft_margin_loss",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
)
"""Losses of ``torch.nn.functional`` that need no more than outputs and targets."""


def with_own_loss(task: Task, loss: Callable[[Tensor, Tensor], Tensor] | str | None) -> Task:
    """Return the task with the function ``loss`` in place of its own loss; None keeps that."""
    if loss is None:
        return task
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise ConfigError(
                f"loss={loss!r} is none of torch.nn.functional's {', '.join(LOSSES)}. A function of your "
                "own is given to the Trainer itself; a run keeps its name alone."
            )
        return replace(task, own_loss=getattr(F, loss))
    if isinstance(loss, nn.Module) and next(loss.parameters(), None) is not None:
        raise ConfigError(
            "loss= has parameters, which no optimizer updates; make them the model's, or buffers."
        )
    return replace(task, own_loss=loss)


_TRIED_ROWS = 8


def check_own_loss(task: Task, labels: Tensor, *, num_ranks: int) -> None:
    """Try a task's own loss on random outputs beside the first ``labels``, rows of the training nodes."""
    labels = labels[:_TRIED_ROWS]
    if task.misses_cells:
        labels = labels.clone()
        labels[0, 0] = torch.nan
    drawn = torch.Generator().manual_seed(0)
    outputs = torch.randn(labels.shape[0], task.width, generator=drawn).to(labels.device).requires_grad_()
    try:
        loss = task.loss(outputs, labels)
        (slope,) = torch.autograd.grad(loss, outputs, allow_unused=True)
        rows = [slice(i, i + 1) for i in range(labels.shape[0] if num_ranks > 1 else 0)]
        alone = [task.loss(outputs[row], labels[row]) for row in rows]
    except ConfigError:
        raise
    except Exception as error:  # whatever the caller's function raises
        raise ConfigError(
            f"loss= failed on outputs {tuple(outputs.shape)} float32 beside targets of dtype {labels.dtype}: "
            f"{type(error).__name__}: {error}"
        ) from error
    is_finite = slope is not None and bool(loss.isfinite() & slope.isfinite().all())
    if task.misses_cells and not is_finite:
        raise ConfigError(
            "loss= is not finite where a target is NaN, as some of this graph's are; leave them out, "
            "such as by outputs[~targets.isnan()]."
        )
    if slope is None:
        raise ConfigError("loss= must depend on the outputs, without detach(); it gives them no gradient.")
    if num_ranks > 1 and not torch.allclose(torch.stack(alone).mean(), loss, rtol=1e-3):
        raise ConfigError(
            f"loss= is no mean over rows, so that the shares of {num_ranks} ranks do not add up to the loss "
            "of a batch; return one loss per row, or use one rank."
        )


def _balanced(task: Task, labels: Tensor) -> Tensor:
    if task.name == "single-label":
        count = torch.bincount(labels, minlength=task.width).clamp(min=1)
        return (labels.numel() / (task.width * count)).float()
    positives = labels.float().nansum(dim=0)
    return ((~labels.isnan()).sum(dim=0) - positives) / positives.clamp(min=1)
