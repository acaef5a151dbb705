"""ModelRunner: calls a model with the arguments it takes, on a mini-batch or on the whole graph."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import torch
from torch import Tensor, nn

from graphbraid.distributed import Communicator
from graphbraid.errors import ConfigError, DataError, did_you_mean
from graphbraid.fullgraph.reading.as_written import WholeValues, of_node_type
from graphbraid.fullgraph.reading.calling import (
    ADJACENCY,
    CSC,
    DATA,
    EDGE_ATTR,
    EDGE_TYPE,
    EDGES,
    N_ID,
    NUM_NODES,
    WEIGHTS,
    CallValues,
    Given,
    X,
    calling_of,
    withholding,
)
from graphbraid.fullgraph.reading.modes import lock_of, plain_tensors
from graphbraid.fullgraph.reading.relational import fused_layers
from graphbraid.graph import Graph, NodeSet, SparseFeatures
from graphbraid.graph.scaled_features import Features, is_widened
from graphbraid.graph.types import ONLY_NODE_TYPE
from graphbraid.nn import ShardedEmbedding, module_traits
from graphbraid.ops.library import stored_loops
from graphbraid.ops.rng import given_rows
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.minibatch.pyg_forms import BY_TYPE, adj_t_of
from graphbraid.sampling.rows.by_id import bytes_of, link_of
from graphbraid.sampling.source import BatchSource
from graphbraid.train.config import TrainConfig
from graphbraid.train.step.reach import reach_of, width_of
from graphbraid.train.task import Task, task_of

if TYPE_CHECKING:
    from graphbraid.distributed import ShardedGraph
    from graphbraid.distributed.shards.learned_rows import LearnedRows
    from graphbraid.fullgraph import Engine
    from graphbraid.fullgraph.batches.rank_norms import RankNorms
    from graphbraid.fullgraph.batches.runner import BatchRunner
    from graphbraid.fullgraph.program import NotLoweredError, Program
    from graphbraid.loader.batch_loader import BatchLoader, LoaderSettings
    from graphbraid.sampling.cpu import HostPipeline
    from graphbraid.sampling.rows.by_id import FeatureSource
    from graphbraid.sampling.sample import NeighborLists
    from graphbraid.train.runtime import ModelPlace


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class WholeGraph:
    """The whole graph as one batch, with tensors on the model's device."""

    nodes: Tensor
    """Ids of the seeds, the nodes whose outputs are trained on: ``(batch_size,)`` int64."""
    seed_y: Tensor
    """Labels of the seeds: rows of ``Graph.y``."""

    @property
    def batch_size(self) -> int:
        """Number of seeds."""
        return self.nodes.numel()


Batch = MiniBatch | WholeGraph
"""A batch of ``batch_size`` seeds with labels ``seed_y``; ``ModelRunner.outputs_of`` runs the model on it."""


OF_EDGES = (WEIGHTS, EDGE_ATTR, EDGE_TYPE, DATA)
"""Arguments about the edges of a mini-batch, for which it must know their ids."""

F = TypeVar("F", Tensor, SparseFeatures, Tensor | SparseFeatures)


def _batch_runner(model: nn.Module) -> BatchRunner:
    from graphbraid.fullgraph.batches.runner import BatchRunner  # here: graphbraid's own models need none

    return BatchRunner(model, warns=False)


class ModelRunner:
    """A model, its device and its precision.

    It is called as :func:`graphbraid.fullgraph.reading.calling.calling_of` says, on mini-batches and on the
    whole graph. The graph's arrays are used in place; other forms that a model needs are made once. If
    ``rows`` are given, features of mini-batches and of chunks of nodes come from there.

    Where the graph has types, arguments are dicts by node type or relation, and outputs are for the nodes of
    the type that is learned. The model returns a dict of outputs by node type, or those of that type alone.
    """

    node_type: str = ONLY_NODE_TYPE
    """The type whose outputs these are, in a graph with types."""
    norms: RankNorms | None = None
    """The model's batch normalisations, by the rows of all ranks; None if each is by this rank's own rows."""

    def __init__(
        self,
        model: nn.Module,
        graph: Graph,
        place: ModelPlace,
        rows: FeatureSource | None = None,
        lists: NeighborLists | None = None,
        *,
        node_type: str | None = None,
    ) -> None:
        if graph.x is None and not graph.is_typed:
            raise DataError(
                "the model needs node features, but graph.x is None; give some with graph.replace(x=...), "
                "for example one-hot degrees or random vectors."
            )
        if graph.is_typed:
            self.node_type = learned_type(graph, node_type)
        self._bind(model, Given.of(graph))
        self._prepare(model, graph, place, rows, lists)
        self.source().check_tiers()
        self.uses_degrees = self.native and normalises_by_degree(model)
        if (divided := divided_graph(graph)) is not None:
            self._check_drawn_from_parts(divided)

    def _prepare(
        self,
        model: nn.Module,
        graph: Graph,
        place: ModelPlace,
        rows: FeatureSource | None = None,
        lists: NeighborLists | None = None,
    ) -> None:
        self.model = model.to(place.device)
        self.graph, self.rows, self.lists = graph, rows, lists
        self.device: torch.device = place.device
        self.native = module_traits.takes_blocks(model)
        self.uses_degrees = False
        self.check: Callable[[], None] = lambda: None
        """Called between the chunks of an evaluation; that of a run raises when it is to stop."""
        self._place = place
        self._whole: CallValues | None = None
        self.engine: Engine | None = None
        """Compiled engine that runs the whole graph in place of :attr:`model`; None if there is none."""
        self.learned: LearnedRows | None = None
        """Learned rows of nodes that ranks divide; None if the model has none."""
        self.batches = _batch_runner(model) if place.compiled and not self.native else None
        """Runs mini-batches in place of :attr:`model`; None if the model's own layers do."""

    def _bind(self, model: nn.Module, given: Given) -> None:
        """Determine how the model is called; refuse one that reads features where no type has any."""
        self.calling = calling_of(model, given)
        graph = given.graph
        assert graph is not None
        has_features = any(graph.nodes_of(one).x is not None for one in graph.node_types)
        if graph.is_typed and not has_features and not self.calling.takes(N_ID):
            raise DataError(
                "the model needs node features, but no node type has any; give some with "
                "Graph.from_relations(x={node type: rows}), or a model that learns a row per node "
                "(forward takes n_id_dict)."
            )

    def of_model(self, model: nn.Module, node_type: str | None) -> ModelRunner:
        """Return a runner of another model on the same graph, place and rows."""
        made = ModelRunner(model, self.graph, self._place, self.rows, self.lists, node_type=node_type)
        if self.learned is not None:  # which the other model reads, too
            made.learned, made.batches = self.learned, None
        return made

    @property
    def learned_type(self) -> str | None:
        """The node type whose outputs these are; None in a graph of one type."""
        return self.node_type if self.graph.is_typed else None

    @property
    def labels(self) -> Graph | NodeSet:
        """The nodes whose labels are learned, with their splits: those of the graph, or of one type."""
        return self.graph.nodes_of(self.node_type) if self.graph.is_typed else self.graph

    def further_arrays(self) -> Iterable[tuple[str, Tensor]]:
        """Return names and values of the arrays that a run reads beside the graph's own."""
        return ()

    def task(self) -> Task:
        """Return the task that the labels describe."""
        return task_of(self.labels)

    def program_by_level(self) -> Program | NotLoweredError:
        """Return the program that evaluates the model level by level over all nodes, or why there is none.

        The model must be in evaluation mode.
        """
        # Here: an evaluation whose graph fits the budget needs none of these.
        from graphbraid.fullgraph.program import NotLoweredError
        from graphbraid.fullgraph.reading.read import Source, source_of

        if not (self._place.compiled or self.native):
            return NotLoweredError("compiled", "compiled=False asks for the model as it is written")
        if not self.graph.is_typed and self.graph.x is None:
            return NotLoweredError("x", "the graph has no features")
        if not self.graph.is_typed and self.calling.takes(EDGE_TYPE):
            return NotLoweredError("edge_type", "relations of a graph without types are told edge by edge")
        with lock_of(self.model), plain_tensors():
            try:
                if self.graph.is_whole:
                    source = source_of(self.model, self.graph, None, self.learned_type)
                else:  # nothing is read of the edges and features of the graph
                    source = Source(self.graph, None, self.learned_type)
                program = source.read(self.model, self.device, for_some_nodes=True)
            except NotLoweredError as why:
                return why
        if program.returned is not None:
            return NotLoweredError("forward", "it returns other than one matrix of rows")
        return program

    def reach(self, config: TrainConfig) -> int | None:
        """Return :func:`.reach_of` the model; of links, of its encoder."""
        return reach_of(self.model, config, by_blocks=self.by_blocks)

    @property
    def by_blocks(self) -> bool:
        """Whether the model is called with one block per layer, whose layers keep no row for each edge."""
        return self.native

    @functools.cached_property
    def widest(self) -> int:
        """Largest number of columns that the model holds for a node or an edge, as :func:`.width_of` says.

        Raises:
            ConfigError: the model is called with one block per layer, and does not say how many.
        """
        return width_of(self)

    def few_nodes(self, count: int) -> Tensor:
        """Return at most ``count`` ids that :meth:`loader` takes as seeds."""
        return torch.arange(min(count, self.labels.num_nodes))

    @property
    def feature_text(self) -> str:
        """Number of features, by type where there are types, for messages."""
        if not self.graph.is_typed:
            return f"{self.graph.num_features} features per node"
        widths = {one: self.graph.nodes_of(one).x for one in self.graph.node_types}
        told = (f"{one!r}: {'none' if x is None else x.shape[1]}" for one, x in widths.items())
        return f"features per node by type: {', '.join(told)}"

    @property
    def widened_bytes(self) -> int:
        """Bytes of the float32 copies that a pass over the whole graph makes of narrower features."""
        return self.float32_bytes(is_widened)

    def float32_bytes(self, counts: Callable[[Features], bool]) -> int:
        """Return the bytes as float32 of the feature rows of those node types whose features count."""
        held = (self.graph.nodes_of(one).x for one in self.graph.node_types)
        return sum(4 * x.shape[0] * x.shape[1] for x in held if x is not None and counts(x))

    def rows_bytes(self, batch: MiniBatch) -> int:
        """Return the bytes of a batch's feature rows if they are float32 and dense."""
        by_type = zip(self.graph.node_types, batch.sampled.n_id_by_type, strict=True)
        held = ((ids, self.graph.nodes_of(one).x) for one, ids in by_type)
        return sum(4 * ids.numel() * x.shape[1] for ids, x in held if x is not None)

    def loader(self, settings: LoaderSettings) -> BatchLoader:
        """Return the loader of mini-batches of the graph's nodes, or of those of the learned type."""
        from graphbraid.loader.batch_loader import BatchLoader
        from graphbraid.loader.sources import SeedNodes

        settings = self.settings(settings)
        assert isinstance(settings.input_nodes, Tensor), "ids that were checked"
        nodes = SeedNodes(node_type=self.node_type, ids=settings.input_nodes.contiguous())
        return BatchLoader(self.source(), dataclasses.replace(settings, input_nodes=nodes))

    def settings(self, settings: LoaderSettings) -> LoaderSettings:
        """Return a loader's settings, with edge ids if the model takes more of edges than their ends."""
        if self.uses_degrees:
            _check_loops(self.model, self.graph)
        keeps = settings.return_edge_id or any(map(self.calling.takes, OF_EDGES))
        return dataclasses.replace(settings, return_edge_id=keeps)

    def _read_of_edges(self) -> list[str]:
        """Return the names of the edge attributes that the model reads of a mini-batch."""
        graph, weights = self.graph, self.graph.weight_name
        if graph.is_typed:
            by_relation = {"blocks": CSC, WEIGHTS: WEIGHTS, EDGE_ATTR: EDGE_ATTR}
            return [name for name, of in by_relation.items() if self.calling.takes(of)]
        takers: dict[str, tuple[str, ...]] = {"e_id": (DATA,)}
        if graph.csc.weight is not None:
            takers[weights] = (CSC, ADJACENCY, DATA, weights)
        if graph.edge_attr is not None:
            takers[EDGE_ATTR] = (EDGE_ATTR, DATA)
        return [name for name, of in takers.items() if any(map(self.calling.takes, of))]

    def _check_drawn_from_parts(self, graph: ShardedGraph) -> None:
        """Refuse a model that reads more of edges than batches that are drawn from parts bring.

        Raises:
            ConfigError: the model reads which relation each edge is of, or all that edges have.
        """
        if graph.is_typed and graph.shards.lists == "parts" and self.calling.takes(DATA):
            raise ConfigError(
                "the model takes the whole data, and parts of a graph with types do not hold what belongs to "
                "edges; let forward take x_dict and edge_index_dict, or partition with --rows whole"
            )
        if self.calling.takes(EDGE_TYPE):
            raise ConfigError(
                "parts of a graph do not hold which relation an edge is of; use the whole graph"
            )

    def source(self) -> BatchSource:
        """Source of mini-batches; a device keeps parts of it as long as it lives."""
        if (graph := divided_graph(self.graph)) is not None:
            return BatchSource(
                graph=graph,
                pipeline=pipeline_of(graph, self._read_of_edges()),
                **(graph.degrees if self.uses_degrees else {}),
            )
        return BatchSource(graph=self.graph, rows=self.rows, lists=self.lists)

    def divide_rows(self, config: TrainConfig, comm: Communicator | None) -> None:
        """Give this rank its share of the learned rows that ranks divide, if the model has some.

        All ranks call it together. Raises as :meth:`.LearnedRows.of` does.
        """
        named = self.model.named_modules()
        modules = {name: one for name, one in named if isinstance(one, ShardedEmbedding)}
        if not modules:
            return
        from graphbraid.distributed.shards.learned_rows import LearnedRows

        assert isinstance(config.optimizer, str)
        how: dict[str, Any] = {"optimizer": config.optimizer, "folder": config.embedding_files}
        self.learned = LearnedRows.of(modules, self.graph, comm or Communicator(), seed=config.seed, **how)
        self.batches = None  # rows that come with a batch are no constants of a compiled model

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of the run's precision, for forward pass and loss."""
        return self._place.autocast()

    def outputs_of(self, batch: Batch) -> Tensor:
        """Return the outputs for the seeds of a batch of either kind, ``(batch_size, width)``."""
        if not isinstance(batch, WholeGraph):
            return self.on_batch(batch)
        evaluates = not (torch.is_grad_enabled() or self.model.training)  # by the engine's smaller arena
        if self.engine is not None and not evaluates:  # compiled for exactly these nodes
            return self._checked(self.engine())
        return self.on_graph().index_select(0, batch.nodes)

    def on_batch(self, batch: MiniBatch) -> Tensor:
        """Return the outputs for a mini-batch's seeds, ``(batch_size, width)``."""
        batch = batch if self.device.type == "cpu" else self._moved(batch)
        if self.learned is not None:
            ids = batch.n_id_dict if self.graph.is_typed else {ONLY_NODE_TYPE: batch.n_id}
            self.learned.take_batch(ids, learns=torch.is_grad_enabled())
        values = CallValues(partial(self._of_typed_batch if self.graph.is_typed else self._of_batch, batch))
        # In training it is the batch's own; an evaluation may give the model the graph's.
        given = None if self.model.training or self.graph.is_typed else values[X]
        with unwritten(given), self.autocast():
            outputs = self._called(batch, values)
        return self._checked(outputs)[: batch.batch_size]

    def masks_of(self, batch: MiniBatch) -> AbstractContextManager[None]:
        """Return the context in which dropout's masks are drawn for a batch's nodes, by their ids."""
        if not self.model.training:
            return nullcontext()
        ids = (one.to(self.device) for one in batch.sampled.n_id_by_type)
        return given_rows(dict(zip(self.graph.node_types, ids, strict=True)))

    def over_ranks(self, batch: MiniBatch) -> AbstractContextManager[Any]:
        """Return the context in which a batch is normalised together with the other ranks' shares of it."""
        if self.norms is None:
            return nullcontext()
        counts = [self.graph.nodes_of(one).num_nodes for one in self.graph.node_types]
        return self.norms.over(batch.sampled, counts)

    def _called(self, batch: MiniBatch, values: CallValues) -> Any:
        """Return the rows of a mini-batch's seeds, or of all its nodes where the model runs as written."""
        if self.batches is None:
            with self.masks_of(batch), self.over_ranks(batch):
                return self.calling.run(self.model, values)
        from graphbraid.fullgraph.batches.calls import BatchCall

        if self.batches.model is not self.model:  # a copy, for measurements
            self.batches = _batch_runner(self.model)
        call = BatchCall(
            calling=self.calling,
            values=values,
            given=self._given_of_edges,
            batch=batch,
            seed_type=self.learned_type,
            drawn=batch.sampled,
            around=partial(self.over_ranks, batch),
        )
        with self.masks_of(batch):
            return self.batches.run(call)

    @functools.cached_property
    def _given_of_edges(self) -> Given:
        given, takes = Given.of(self.graph), self.calling.takes
        weights = given.weights if takes(DATA) or takes(given.weights or "") else None
        channels = given.edge_channels if takes(DATA) or takes(EDGE_ATTR) else None
        return dataclasses.replace(given, weights=weights, edge_channels=channels, graph=None)

    @property
    def uncompiled_reason(self) -> str:
        """Reason why the model, or parts of it, ran as written on the last mini-batch; empty if none did."""
        return "" if self.batches is None else self.batches.reason

    def _of_batch(self, batch: MiniBatch, what: str) -> Any:
        if what == X:
            return self._in_float32(self.features_of(batch))
        if what == CSC:
            return batch.blocks
        if what == EDGE_ATTR:
            return self._in_float32(batch.edge_attr)
        if what == ADJACENCY:
            name, weight = self.graph.weight_name, self.graph.csc.weight
            values = torch.ones(batch.num_edges, device=self.device) if weight is None else batch[name]
            return adj_t_of(torch.sparse_csr, batch.edge_index, values, (batch.num_nodes, batch.num_nodes))
        if what == DATA:
            data = batch.to_data()
            data.x = self._of_batch(batch, X)
            if data.edge_attr is not None:
                data.edge_attr = self._of_batch(batch, EDGE_ATTR)
            return withholding(data, self.graph)
        known = what in (EDGES, WEIGHTS, N_ID, NUM_NODES, "y")
        return getattr(batch, what) if known else missing_in_batches(what)

    def _of_typed_batch(self, batch: MiniBatch, what: str) -> Any:
        if what == CSC:
            return batch.blocks
        if what == X:
            return self.features_of(batch)
        if what in (EDGES, N_ID):
            return batch[what + BY_TYPE]
        if what in (WEIGHTS, EDGE_ATTR):
            held = getattr(batch, what + BY_TYPE, {})
            return {one: self._in_float32(rows) for one, rows in held.items()}
        data = batch.to_data()
        if what != DATA:
            return data.collect(what, allow_empty=True) or missing_in_batches(what)
        for name in (X, EDGE_ATTR):
            for one, rows in self._of_typed_batch(batch, name).items():
                data[one][name] = rows
        return data

    def _moved(self, batch: MiniBatch) -> MiniBatch:
        """Return a batch on the device, which one that a plan prepared is already."""
        link = link_of(self.rows)
        if link is not None and batch.n_id.device != self.device:
            _ = batch.x  # which travels with it
            link.add(bytes_of(batch))
        return batch.to(self.device)

    def labels_of(self, batch: Batch) -> Tensor:
        """Return the labels that the loss compares a batch's outputs with: those of its seeds."""
        labels = batch.seed_y
        assert labels is not None, "graphs without labels are refused before a run begins"
        if labels.device != self.device and (link := link_of(self.rows)) is not None:
            link.add_attribute("seed_y", labels)
        return labels

    def features_of(self, batch: MiniBatch) -> Any:
        """Return a mini-batch's feature rows, which may be sparse for models of ``graphbraid.nn``.

        Where there are types, a dict of float32 rows by node type.
        """
        if self.graph.is_typed:
            held = getattr(batch, X + BY_TYPE, {})
            return {one: self._in_float32(rows) for one, rows in held.items()}
        x = batch.features if self.native and self.device.type == "cpu" else batch.x
        assert x is not None
        return x

    def on_graph(self) -> Tensor:
        """Return the outputs for every node from one pass over the whole graph, ``(num_nodes, width)``.

        One of several ranks makes the pass by itself, without their engine.
        """
        self.graph.check_whole("a pass over the whole graph")
        is_own = self.engine is not None and self.engine.ranks is None
        if self.engine is not None and is_own and not torch.is_grad_enabled() and not self.model.training:
            return self._checked(self.engine.predict())
        values = self._on_whole()
        with unwritten(None if self.graph.is_typed else values[X]), self.autocast(), fused_layers(self.model):
            return self._checked(self.calling.run(self.model, values))

    def forget_graph(self) -> None:
        """Free the forms of the graph that :meth:`on_graph` made."""
        self._whole = None

    def _on_whole(self) -> CallValues:
        """Return the values of a call on the whole graph; each is made once."""
        if self._whole is None:
            self._whole = self._make_whole()
        return self._whole

    def _make_whole(self) -> CallValues:
        return WholeValues(self.model, self.graph, self.device, torch.float32)

    def _in_float32(self, x: F) -> F:
        """Return features as float32, the dtype of the parameters; autocast may lower it afterwards."""
        return x if x.dtype == torch.float32 else x.to(torch.float32)

    def _checked(self, outputs: Any) -> Tensor:
        if self.graph.is_typed:
            outputs = of_node_type(outputs, self.node_type)
        if not isinstance(outputs, Tensor) or outputs.ndim != 2:
            got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            raise DataError(
                f"the model must return a tensor of shape (num_nodes, width); got {got}. Wrap it in a "
                "module that returns the logits."
            )
        return outputs


def missing_in_batches(what: str) -> NoReturn:
    """Refuse an argument that the whole graph has, but its mini-batches have not."""
    raise ConfigError(
        f"the model's forward takes {what!r}, which the graph has and its mini-batches have not; use "
        "mode='full' (--mode full)."
    )


@contextmanager
def unwritten(x: Any) -> Iterator[None]:
    """Refuse a model that writes over the features ``x`` that it is called with."""
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


def _check_loops(model: nn.Module, graph: Graph) -> None:
    """Check that batches carry the self-loops that degrees count: of each node, one with a weight.

    Raises:
        DataError: a node has several with weights, and a layer neither replaces them nor counts in the batch.
    """
    from graphbraid.nn import GCNConv

    convs = [module for module in model.modules() if isinstance(module, GCNConv)]
    if graph.csc.weight is None or all(one.add_self_loops or not one.normalize for one in convs):
        return
    if (loops := stored_loops(graph.csc)) is not None:
        nodes, counts = graph.csc.indices[loops].unique(return_counts=True)  # type: ignore[no-untyped-call]
        if int(counts.max()) > 1:
            raise DataError(
                f"node {int(nodes[counts > 1][0])} has several self-loops with weights, whose sum "
                "mini-batches do not carry for GCNConv(add_self_loops=False). Join them into one, or set "
                "mode='full'"
            )


def divided_graph(graph: Graph) -> ShardedGraph | None:
    """Return a graph that is divided among ranks with its own type; None for a whole one."""
    return None if graph.is_whole else cast("ShardedGraph", graph)


def pipeline_of(graph: Graph, of_edges: Collection[str] = ()) -> Callable[..., HostPipeline] | None:
    """Return what makes the pipeline of a graph that is divided among ranks; None for a whole one."""
    if (divided := divided_graph(graph)) is None:
        return None
    from graphbraid.distributed.shards.pipeline import ShardedPipeline  # here: few runs have parts

    return partial(ShardedPipeline, divided, of_edges=of_edges)


def learned_type(graph: Graph, node_type: str | None) -> str:
    """Return the node type whose labels are learned: the one given, or the only one that has some."""
    labelled = [one for one in graph.node_types if graph.nodes_of(one).y is not None]
    if node_type is None:
        if len(labelled) == 1:
            return labelled[0]
        if not labelled:
            raise DataError(
                "training needs labels, but no node type has any; give some with "
                "Graph.from_relations(y={node type: labels})."
            )
        raise ConfigError(
            f"several node types have labels ({', '.join(labelled)}); say which to learn, with node_type."
        )
    if node_type not in graph.node_types:
        raise ConfigError(
            f"node_type={node_type!r} is no node type; the graph has {', '.join(graph.node_types)}."
            + did_you_mean(node_type, graph.node_types)
        )
    return node_type
