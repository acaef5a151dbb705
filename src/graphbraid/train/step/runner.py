"""ModelRunner: calls a model with the arguments it takes, on a mini-batch or on the whole graph."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from graphbraid.errors import DataError
from graphbraid.graph import Graph, NodeSet, ScaledFeatures, SparseFeatures
from graphbraid.graph.csc import Csc
from graphbraid.graph.scaled_features import is_widened
from graphbraid.nn import told
from graphbraid.sampling.rows.link_reads import link_of
from graphbraid.sampling.source import BatchSource
from graphbraid.train.step.batches import Batch, WholeGraph
from graphbraid.train.task import Task, task_of

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from graphbraid.fullgraph import Engine
    from graphbraid.loader.batches.batch_loader import BatchLoader
    from graphbraid.loader.batches.settings import LoaderSettings
    from graphbraid.sampling.lists import NeighborLists
    from graphbraid.sampling.minibatch.mini_batch import MiniBatch
    from graphbraid.sampling.rows.by_id import FeatureRows


F = TypeVar("F", Tensor, SparseFeatures, Tensor | SparseFeatures)


class WholeInputs(NamedTuple):
    """What a model is called with on the whole graph."""

    args: tuple[Any, ...]
    named: dict[str, Any]


class ModelRunner:
    """A model, its device and its precision.

    Models of ``graphbraid.nn`` (``takes_blocks = True``) are called with ``(x, blocks)`` or ``(x, csc)``; any
    other module is called as in PyTorch Geometric, with ``(x, edge_index)`` and, if the graph has weights and
    ``forward`` takes them, ``edge_weight``; on the whole graph likewise ``edge_attr``. The graph's arrays are
    used in place; other forms that a model needs are made once. If ``rows`` are given, features of
    mini-batches and of chunks of nodes come from there.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: Graph,
        fabric: Fabric,
        rows: FeatureRows | None = None,
        lists: NeighborLists | None = None,
    ) -> None:
        if graph.x is None:
            raise DataError(
                "the model needs node features, but graph.x is None; give some with graph.replace(x=...), "
                "for example one-hot degrees or random vectors."
            )
        self._prepare(model, graph, fabric, rows, lists)
        self.source()  # refuses rows and lists of another graph
        self.uses_degrees = self.native and normalises_by_degree(model)
        self.passes_weight = graph.csc.weight is not None and not self.native and takes(model, "edge_weight")

    def _prepare(
        self,
        model: nn.Module,
        graph: Graph,
        fabric: Fabric,
        rows: FeatureRows | None = None,
        lists: NeighborLists | None = None,
    ) -> None:
        self.model = model.to(fabric.device)
        self.graph, self.rows, self.lists = graph, rows, lists
        self.device: torch.device = fabric.device
        self.native = told.takes_blocks(model)
        self.uses_degrees = self.passes_weight = False
        self._fabric = fabric
        self._whole_inputs: WholeInputs | None = None
        self.engine: Engine | None = None
        """Compiled engine that runs the whole graph in place of :attr:`model`; None if there is none."""

    @property
    def learned_type(self) -> str | None:
        """The node type whose outputs these are; None in a graph of one type."""
        return None

    @property
    def labels(self) -> Graph | NodeSet:
        """The nodes whose labels are learned, with their splits: those of the graph."""
        return self.graph

    def task(self) -> Task:
        """Return the task that the labels describe."""
        return task_of(self.labels)

    @property
    def by_layer(self) -> bool:
        """Whether the model's layers can be run one by one over all nodes."""
        return self.native

    @property
    def by_blocks(self) -> bool:
        """Whether the model is called with one block per layer, whose layers keep no row for each edge."""
        return self.native

    @property
    def feature_text(self) -> str:
        """Number of features, for messages."""
        return f"{self.graph.num_features} features per node"

    @property
    def features_bytes(self) -> int:
        """Bytes of all feature rows if they were float32 and dense."""
        return self.graph.num_nodes * self.graph.num_features * 4

    @property
    def widened_bytes(self) -> int:
        """Bytes of the float32 copy that a pass over the whole graph makes of features kept in fewer bits."""
        return self.features_bytes if is_widened(self.graph.x) else 0

    @property
    def made_dense_bytes(self) -> int:
        """Bytes of the rows of sparse features that a pass over the whole graph makes dense."""
        makes_dense = isinstance(self.graph.x, SparseFeatures) and not self.native
        return self.features_bytes if makes_dense else 0

    def rows_bytes(self, batch: MiniBatch) -> int:
        """Return the bytes of a batch's feature rows if they are float32 and dense."""
        return batch.num_nodes * self.graph.num_features * 4

    def loader(self, settings: LoaderSettings) -> BatchLoader:
        """Return the loader of mini-batches of the graph's nodes."""
        from graphbraid.loader import BatchLoader

        return BatchLoader(self.source(), settings)

    def source(self) -> BatchSource:
        """What mini-batches are cut from; what a device keeps of one is kept as long as it is."""
        return BatchSource(graph=self.graph, rows=self.rows, lists=self.lists)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of the run's precision, for forward pass and loss."""
        return self._fabric.autocast()

    def backward(self, loss: Tensor) -> None:
        """Backpropagate in the run's precision."""
        self._fabric.backward(loss)

    def outputs_of(self, batch: Batch) -> Tensor:
        """Return the outputs for the seeds of a batch of either kind, ``(batch_size, width)``."""
        if not isinstance(batch, WholeGraph):
            return self.on_batch(batch)  # type: ignore[arg-type]  # of the runner's own kind
        evaluates = not (torch.is_grad_enabled() or self.model.training)  # by the engine's smaller arena
        if self.engine is not None and not evaluates:  # compiled for exactly these nodes
            return self.engine()
        return self.on_graph().index_select(0, batch.nodes)

    def on_batch(self, batch: MiniBatch) -> Tensor:
        """Return the outputs for a mini-batch's seeds, ``(batch_size, width)``."""
        batch = batch if self.device.type == "cpu" else self._moved(batch)
        x = self._in_float32(self.features_of(batch))
        # In training it is the batch's own; an evaluation may give the model the graph's.
        with unwritten(None if self.model.training else x), self.autocast():
            if self.native:
                outputs = self.model(x, batch.blocks)
            elif self.passes_weight:
                # The outermost block of layout "subgraph" has all edges, in the order of edge_index.
                outputs = self.model(x, batch.edge_index, edge_weight=batch.blocks[0].weight)
            else:
                outputs = self.model(x, batch.edge_index)
        return self._checked(outputs)[: batch.batch_size]

    def _moved(self, batch: MiniBatch) -> MiniBatch:
        """Return a batch on the device, which one that a plan prepared is already."""
        link = link_of(self.rows)
        if link is not None and batch.n_id.device != self.device:
            _ = batch.x  # which travels with it
            link.add_batch(batch)
        return batch.to(self.device)

    def labels_of(self, batch: Batch) -> Tensor:
        """Return the labels that the loss compares a batch's outputs with: those of its seeds."""
        labels, link = batch.seed_y, link_of(self.rows)
        assert labels is not None, "graphs without labels are refused before a run begins"
        if link is not None and labels.device != self.device:
            link.add_attribute("seed_y", labels)
        return labels

    def features_of(self, batch: MiniBatch) -> Tensor | SparseFeatures:
        """Return a mini-batch's feature rows, which may be sparse for models of ``graphbraid.nn``."""
        x = batch.features if self.native and self.device.type == "cpu" else batch.x
        assert x is not None
        return x

    def on_graph(self) -> Tensor:
        """Return the outputs for every node from one pass over the whole graph, ``(num_nodes, width)``.

        One of several ranks makes the pass by itself, without their engine.
        """
        is_own = self.engine is not None and self.engine.ranks is None
        if self.engine is not None and is_own and not torch.is_grad_enabled() and not self.model.training:
            return self._checked(self.engine.predict())
        if self._whole_inputs is None:
            self._whole_inputs = self._make_whole_inputs()
        with unwritten(self._whole_inputs.args[0]), self.autocast():
            return self._checked(self.model(*self._whole_inputs.args, **self._whole_inputs.named))

    def forget_graph(self) -> None:
        """Free the forms of the graph that :meth:`on_graph` made."""
        self._whole_inputs = None

    def _make_whole_inputs(self) -> WholeInputs:
        csc, attr = self.graph.csc, self.graph.edge_attr
        if self.native:
            return WholeInputs((self._whole_features(), csc_to(csc, self.device)), {})
        edge_index = torch.stack([csc.indices.long(), csc.destinations().long()]).to(self.device)
        named = {}
        if self.passes_weight and csc.weight is not None:
            named["edge_weight"] = csc.weight.to(self.device)
        if attr is not None and takes(self.model, "edge_attr"):
            named["edge_attr"] = self._in_float32(attr.to(self.device))
        return WholeInputs((self._in_float32(self.graph.dense_x().to(self.device)), edge_index), named)

    def _whole_features(self) -> Tensor | SparseFeatures:
        x = self.graph.x
        if isinstance(x, ScaledFeatures) or (isinstance(x, SparseFeatures) and self.device.type != "cpu"):
            x = x.to_dense()
        assert x is not None
        return self._in_float32(x if isinstance(x, SparseFeatures) else x.to(self.device))

    def _in_float32(self, x: F) -> F:
        """Return features as float32, the dtype of the parameters; autocast may lower it afterwards."""
        return x if x.dtype == torch.float32 else x.to(torch.float32)

    def _checked(self, outputs: Any) -> Tensor:
        if not isinstance(outputs, Tensor) or outputs.ndim != 2:
            got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            raise DataError(
                f"the model must return a tensor of shape (num_nodes, width); got {got}. Wrap it in a "
                "module that returns the logits."
            )
        return outputs


@contextmanager
def unwritten(x: Any) -> Iterator[None]:
    """Refuse a model that writes over the features ``x`` that it is called with.

    Raises:
        DataError: it has done so.
    """
    has_version = isinstance(x, Tensor) and not x.is_inference()
    before = x._version if has_version else 0
    yield
    if has_version and x._version != before:
        raise DataError(
            "the model's forward writes over x, in which the graph's own features may be; use an operation "
            "that is not in place, such as x = x.relu() or dropout(inplace=False)."
        )


def normalises_by_degree(model: nn.Module) -> bool:
    """Return whether a layer of the model normalises by the degrees of a graph."""
    from graphbraid.nn import GCNConv

    return any(isinstance(module, GCNConv) for module in model.modules())


def takes(model: nn.Module, argument: str) -> bool:
    """Return whether a model's ``forward`` has an argument of this name."""
    return argument in inspect.signature(model.forward).parameters


def csc_to(csc: Csc, device: torch.device) -> Csc:
    """Return an adjacency on a device."""
    if csc.indptr.device == device:
        return csc
    weight = None if csc.weight is None else csc.weight.to(device)
    return Csc(csc.indptr.to(device), csc.indices.to(device), csc.num_src, weight, trusted=True)
