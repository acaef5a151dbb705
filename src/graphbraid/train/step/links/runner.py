"""LinkRunner: calls a model of links on mini-batches of links, and its encoder on nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph, NodeSet
from graphbraid.graph.csc import KeyLookup
from graphbraid.loader.gather_ahead import RowBuffers
from graphbraid.nn import EdgeModel, LinkModel, RelationPredictor
from graphbraid.ops.cross_entropy import kept_bytes
from graphbraid.ops.library import once_differentiable
from graphbraid.sampling.links.link_seeds import LinkSeeds, QuestionSeeds
from graphbraid.sampling.links.negatives import EdgeLookup, NegativeDraws, NegativeSampling
from graphbraid.sampling.source import BatchSource
from graphbraid.train.config import TrainConfig
from graphbraid.train.step.links.data import EdgeLabels, LinkData, LinkSet
from graphbraid.train.step.links.encoder import EncoderRunner, TypedEncoderRunner, one_vs_all
from graphbraid.train.step.runner import ModelRunner
from graphbraid.train.task import Task, task_of

if TYPE_CHECKING:
    from graphbraid.distributed import Communicator
    from graphbraid.distributed.shards.links import PartLinks
    from graphbraid.graph.graph_set import GraphSet
    from graphbraid.loader.batch_loader import BatchLoader, LoaderSettings
    from graphbraid.sampling.minibatch.mini_batch import MiniBatch
    from graphbraid.sampling.rows.by_id import FeatureSource
    from graphbraid.sampling.sample import NeighborLists
    from graphbraid.train.runtime import ModelPlace


Places = tuple[Tensor, Tensor]
"""Rows and columns of some entries of a matrix."""


def choices(
    own: Tensor, others: Sequence[Tensor], hidden: Sequence[Places], memory: RowBuffers | None = None
) -> Tensor:
    """Return links' scores beside those of negatives, in one matrix that is written once.

    Args:
        own: ``(num_links,)`` scores of the links, or such a row for each matrix.
        others: matrices of one shape and dtype: a row of negatives' scores for each link.
        hidden: for each of these the entries that are no negatives; ``-inf`` stands in their place, and they
            get no gradient.
        memory: lends the result's memory on a CPU, which the system need not clear then. If None, it is new.

    Returns:
        ``(len(others) * num_links, 1 + num_negatives)``: the links with the first matrix, then with the
        second; a link's own score is in the first column.
    """
    own = own.expand(len(others), -1)
    found: Tensor = _Choices.apply(own, tuple(hidden), memory, *others)  # type: ignore[no-untyped-call]
    return found


def alike(own: Tensor, drawn: Tensor) -> Places:
    """Return where the negatives ``drawn`` for all links are the end that a link has ``own``."""
    return KeyLookup(drawn).places(own)


class _Choices(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, own: Tensor, hidden: tuple[Places, ...], memory: RowBuffers | None, *others: Tensor
    ) -> Tensor:
        ctx.hidden = hidden
        dtype, shape = torch.promote_types(own.dtype, others[0].dtype), torch.Size([1 + others[0].shape[1]])
        count = own.numel()
        if memory is None or own.device.type != "cpu":
            out = own.new_empty((count, *shape), dtype=dtype)
        else:
            out = memory.lend(count, shape, dtype)
        for rows, one, scores, places in zip(out.chunk(len(others)), own, others, hidden, strict=True):
            rows[:, 0], rows[:, 1:] = one, scores
            rows[:, 1:][places] = -torch.inf
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        sides = grad.view(len(ctx.hidden), -1, grad.shape[1])
        others = [_shown(rows[:, 1:], places) for rows, places in zip(sides, ctx.hidden, strict=True)]
        return sides[:, :, 0], None, None, *others


def _shown(grad: Tensor, hidden: Places) -> Tensor:
    """Return a gradient that is zero at the hidden entries: itself where it is, as behind a softmax."""
    if not bool(grad[hidden].any()):
        return grad
    grad = grad.clone()
    grad[hidden] = 0
    return grad


SHARED = ("shared", "self-adversarial")
"""Kinds of negatives that all links of a batch share."""
RELATION = "link_relation"
"""Attribute of a batch with the relation of each of its links."""
OF_SEEDS = "seed_edge_attr"
"""Attribute of a batch with the features of the edges that are learned."""


class EndsRunner(ModelRunner):
    """A runner of a model whose examples are pairs of nodes: an encoder gives the rows of both ends.

    Raises:
        ConfigError: the encoder takes what the graph does not have.
        DataError: the encoder needs features and there are none.
    """

    def __init__(self, model: LinkModel | EdgeModel, graph: Graph, place: ModelPlace, data: LinkData) -> None:
        self.data = data
        self._prepare(model, graph, place)
        self._encoder: EncoderRunner | TypedEncoderRunner | None = None
        self.encoder_runner()  # checks that the encoder has what it takes

    @property
    def labels(self) -> LinkSet:  # type: ignore[override]
        """The links, with their splits."""
        return self.data.links

    @property
    def widest(self) -> int:
        """Largest number of columns that the encoder holds for a node or an edge."""
        return self.encoder_runner().widest

    @property
    def feature_text(self) -> str:
        """Number of features, for messages."""
        return self.encoder_runner().feature_text

    @property
    def uncompiled_reason(self) -> str:
        """Reason why the encoder, or parts of it, ran as written on the last mini-batch, or empty."""
        return self.encoder_runner().uncompiled_reason

    def encoder_runner(self) -> EncoderRunner | TypedEncoderRunner:
        """Return a runner of the encoder that the model has now, over the edges that carry messages."""
        encoder = cast("LinkModel | EdgeModel", self.model).encoder
        if self._encoder is None or self._encoder.model is not encoder:  # as of a copy, for measurements
            if len(self.graph.node_types) > 1:
                self._encoder = TypedEncoderRunner(encoder, self.graph, self.data, self._place)
            else:
                self._encoder = EncoderRunner(encoder, self.data, self._place)
        self._encoder.norms, self._encoder.learned, self._encoder.check = self.norms, self.learned, self.check
        if self.learned is not None:  # rows that come with a batch are no constants of a compiled model
            self._encoder.batches = None
        return self._encoder

    def reach(self, config: TrainConfig) -> int | None:
        """Return how many hops a rank keeps for the encoder."""
        return self.encoder_runner().reach(config)

    def source(self) -> BatchSource:
        """What mini-batches are cut from."""
        return self.encoder_runner().source()

    def rows_bytes(self, batch: MiniBatch) -> int:
        """Return the bytes of a batch's feature rows if they are float32 and dense."""
        return self.encoder_runner().rows_bytes(batch)

    def features_of(self, batch: MiniBatch) -> Any:
        """Return a mini-batch's feature rows; None without features."""
        return self.encoder_runner().features_of(batch)

    def seeds_of(self, settings: LoaderSettings, positions: Tensor, **how: Any) -> BatchLoader:
        """Return the loader of mini-batches of the pairs at ``positions``.

        A batch's pairs, and their reverses, are kept out of the neighbours that are drawn for it. Where pairs
        have times, each end has a tree of its own, of what came before the pair. What the encoder needs is
        added to ``settings``. ``how`` are further arguments of :class:`LinkSeeds`.
        """
        from graphbraid.loader import BatchLoader

        encoder = self.encoder_runner()
        settings = encoder.settings(settings)
        has_neighbors = any(settings.num_neighbors)
        times = self.data.times if has_neighbors else None
        links = self.data.links
        seeds = LinkSeeds(
            links.ends[:, positions] if links.parts is None else positions.expand(2, -1),
            seed=settings.seed,
            times=None if times is None else times.before(positions),
            disjoint=times is not None,
            edge_times=None if times is None else times.messages,
            fetch=None if links.parts is None else partial(_fetched, links.parts, positions),
            **how,
        )
        if has_neighbors and times is None and links.parts is None:
            seeds.exclude(EdgeLookup(self.data.messages.csc), reverse=True)
        return BatchLoader(encoder.source(), dataclasses.replace(settings, input_nodes=None), seeds)


class EdgeRunner(EndsRunner):
    """A runner of a :class:`graphbraid.nn.EdgeModel`, whose examples are the edges of a relation.

    Raises:
        ConfigError: there is no such relation.
        DataError: the encoder needs features and there are none.
    """

    def __init__(self, model: EdgeModel, graph: Graph, place: ModelPlace, config: TrainConfig) -> None:
        super().__init__(model, graph, place, LinkData.of(graph, config))
        self.node_type = "an edge"  # whose classes have no names

    def task(self) -> Task:
        """Return the task that the labels of the edges describe."""
        return task_of(cast("NodeSet", self.labels))

    def loader(self, settings: LoaderSettings) -> BatchLoader:
        """Return the loader of mini-batches of the edges at ``settings.input_nodes``."""
        positions, labels = cast("Tensor", settings.input_nodes), cast("EdgeLabels", self.labels)
        y, attr = labels.known, labels.edge_attr
        return self.seeds_of(
            settings,
            positions,
            label=None if y is None else y[positions],
            attributes=None if attr is None else {OF_SEEDS: attr[positions]},
        )

    def on_batch(self, batch: MiniBatch) -> Tensor:
        """Return the outputs for a mini-batch's edges, ``(batch_size, width)``."""
        batch = batch if self.device.type == "cpu" else batch.to(self.device)
        rows = self.encoder_runner().rows_of_seeds(batch, batch.num_sampled_nodes[0])
        src, dst = _taken(rows, *batch.edge_label_index)
        return self.decoded(src, dst, getattr(batch, OF_SEEDS, None))

    def labels_of(self, batch: Any) -> Tensor:
        """Return the labels of a batch's edges."""
        return cast("Tensor", batch.edge_label)

    def decoded(self, src: Tensor, dst: Tensor, edge_attr: Tensor | None) -> Tensor:
        """Return the decoder's outputs for the rows of both ends of edges, ``(num_edges, width)``.

        Raises:
            DataError: the decoder returns something else.
        """
        decoder, attr = cast("EdgeModel", self.model).decoder, edge_attr
        attr = None if attr is None else self._in_float32(attr).to(src.device)
        with self.autocast():
            outputs = decoder(src, dst) if attr is None else decoder(src, dst, attr)
        if isinstance(outputs, Tensor) and outputs.ndim == 1:
            outputs = outputs.unsqueeze(1)
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or outputs.shape[0] != src.shape[0]:
            got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            raise DataError(f"the decoder must return a row for each of {src.shape[0]} edges; got {got}.")
        return outputs


class LinkRunner(EndsRunner):
    """A runner of a :class:`graphbraid.nn.LinkModel`, whose examples are links.

    Raises:
        ConfigError: the model is no model of links, or its predictor knows fewer relations than there are.
        DataError: there are no links to train on, or the encoder needs features and there are none.
    """

    def __init__(self, model: LinkModel, graph: Graph, place: ModelPlace, config: TrainConfig) -> None:
        data, self._config = LinkData.of(graph, config), config
        _check_relations(model, data)
        if config.n3 and not isinstance(model.predictor, RelationPredictor):
            raise ConfigError(
                f"n3={config.n3!r} penalises the rows of relations, and {type(model.predictor).__name__} has "
                "none; leave n3 out, or choose nn.ComplEx or nn.DistMult."
            )
        if getattr(model.predictor, "reciprocal", False) and config.negatives in ("binary", "triplet"):
            raise ConfigError(
                f"negatives={config.negatives!r} never asks for the sources of links, by which the second "
                "rows of reciprocal relations learn; choose 'one-vs-all', 'shared' or 'self-adversarial', or "
                "leave reciprocal out."
            )
        super().__init__(model, graph, place, data)
        self._negatives: NegativeDraws | None = None
        self._firsts = torch.empty(0, dtype=torch.int64)  # the same for all batches of a size
        self._memory = RowBuffers(1)  # of a batch's scores

    def task(self) -> Task:
        """Task of the links: binary if each pair has a label, else the choice of the link among others."""
        negatives, temperature = self._config.negatives, self._config.adversarial_temperature
        return Task(
            name="link",
            width=1 if negatives == "binary" else 2,
            temperature=temperature if negatives == "self-adversarial" else None,
        )

    def loader(self, settings: LoaderSettings) -> BatchLoader:
        """Return the loader of mini-batches of the links at ``settings.input_nodes``, with negatives."""
        positions, links = cast("Tensor", settings.input_nodes), self.data.links
        relation = links.relations_at(positions)
        if self._config.negatives == "one-vs-all":
            return self._loader_of_questions(settings, links.at(positions), relation)
        ends = links.ends[:, positions] if links.parts is None else links.ends[:, :0]
        # Shared negatives are the two ends of drawn pairs.
        kind: Any = "triplet" if self._config.negatives == "triplet" else "binary"
        how = self._drawn_by(NegativeSampling(kind, self._config.num_negatives))
        return self.seeds_of(
            settings,
            positions,
            negatives=NegativeDraws(how, self.data.messages.csc, ends),
            attributes=None if relation is None else {RELATION: relation},
            shared=self._config.negatives in SHARED,
        )

    def _loader_of_questions(
        self, settings: LoaderSettings, links: Tensor, relation: Tensor | None
    ) -> BatchLoader:
        from graphbraid.loader import BatchLoader

        encoder = self.encoder_runner()
        settings = encoder.settings(settings)
        questions = QuestionSeeds(links, relation, self.data.ends)
        if any(settings.num_neighbors) and self.data.links.parts is None:
            questions.exclude(EdgeLookup(self.data.messages.csc))
        return BatchLoader(encoder.source(), dataclasses.replace(settings, input_nodes=None), questions)

    def on_batch(self, batch: MiniBatch) -> Tensor:
        """Return the scores of a mini-batch's links and negatives.

        Returns:
            Binary negatives: ``(num_pairs, 1)``, the links first. Triplets: ``(num_links, 1 + amount)``, the
            link in the first column. Shared ones: ``(2 * num_links, 1 + num_negatives)``, likewise: the
            links among negatives of their destinations, then among those of their sources. One-vs-all: the
            loss itself, a scalar.
        """
        batch = batch if self.device.type == "cpu" else batch.to(self.device)
        rows = self.encoder_runner().rows_of_seeds(batch, batch.num_sampled_nodes[0])
        relation = getattr(batch, RELATION, None) if self.num_relations is not None else None
        with self.autocast():
            if self._config.negatives == "one-vs-all":
                return one_vs_all(self._link_model, rows, batch, self.data.ends, n3=self._config.n3)
            if self._config.negatives == "binary":
                return self._of_pairs(rows, batch.edge_label_index, relation, batch.batch_size)
            if self._config.negatives == "triplet":
                return self._of_triplets(rows, batch, relation)
            return self._of_shared(rows, batch.edge_label_index, relation, batch.batch_size)

    def labels_of(self, batch: Any) -> Tensor:
        """Return the targets of a batch for :meth:`graphbraid.train.task.Task.loss`."""
        if self._config.negatives == "binary":
            return cast("Tensor", batch.edge_label)
        count = (1 if self._config.negatives == "triplet" else 2) * batch.batch_size
        if self._firsts.numel() != count:
            self._firsts = torch.zeros(count, dtype=torch.int64)
        return self._firsts

    @property
    def kept_bytes(self) -> int:
        """Bytes for the scores of a batch, and for their gradient, that are kept for those of the next."""
        return self._memory.nbytes + kept_bytes(self._firsts)

    def score_pairs(self, src: Tensor, dst: Tensor, relation: Tensor | None) -> Tensor:
        """Return the predictor's float32 scores of pairs of rows, ``(num_pairs,)``, on the CPU."""
        relation = self._known(relation)
        with torch.no_grad(), self.autocast():
            scores: Tensor = self._link_model.predictor(src, dst, relation)
        return scores.float().cpu()

    def score_all(self, given: Tensor, rows: Tensor, relation: Tensor | None, *, sources: bool) -> Tensor:
        """Return the scores of each given row with every row, as destinations or as ``sources`` of links.

        They are of float32 with any ``precision``: in bfloat16 many candidates would tie.
        """
        predictor, relation = self._link_model.predictor, self._known(relation)
        wide = torch.promote_types(given.dtype, torch.float32)
        with torch.no_grad():
            score = predictor.all_with if sources else predictor.with_all
            return score(given.to(wide), rows.to(wide), relation).float()

    def negatives_of_evaluation(self) -> NegativeDraws:
        """Return the negatives that an evaluation compares links with; none is an edge.

        Raises:
            ConfigError: every pair of nodes is an edge.
        """
        if self._negatives is None:
            how, parts = (
                self._drawn_by(NegativeSampling("binary", 1, reject_edges=True)),
                self.data.links.parts,
            )
            summed = None if parts is None else parts.summed
            self._negatives = NegativeDraws(how, self.data.whole, self.data.links.ends, summed=summed)
        return self._negatives

    @property
    def num_relations(self) -> int | None:
        """Number of relations that the predictor knows; None if it knows none."""
        return self._link_model.predictor.num_relations

    def _drawn_by(self, how: NegativeSampling) -> NegativeSampling:
        """Let negatives be nodes of the types that links join, which need not be told where there is one."""
        if len(self.graph.node_types) == 1:
            return how
        weights, ends = [], self.data.ends
        for first, count in zip(ends.first, ends.counts, strict=True):
            weight = torch.zeros(self.graph.num_nodes, dtype=torch.float64)
            weight[first : first + count] = 1.0
            weights.append(weight)
        return dataclasses.replace(how, src_weight=weights[0], dst_weight=weights[1])

    @property
    def _link_model(self) -> LinkModel:
        return cast("LinkModel", self.model)

    def _known(self, relation: Tensor | None) -> Tensor | None:
        if relation is None or self.num_relations is None:
            return None
        return relation.to(self.device)

    def _of_pairs(self, rows: Tensor, pairs: Tensor, relation: Tensor | None, count: int) -> Tensor:
        if relation is not None:  # negative j is one of link j % count
            relation = relation[torch.arange(pairs.shape[1], device=rows.device) % count]
        scores: Tensor = self._link_model.predictor(*_taken(rows, pairs[0], pairs[1]), relation)
        return scores.unsqueeze(1)

    def _of_triplets(self, rows: Tensor, batch: Any, relation: Tensor | None) -> Tensor:
        predictor, amount = self._link_model.predictor, batch.dst_neg_index[:1].numel()
        src, dst, negative = _taken(rows, batch.src_index, batch.dst_pos_index, batch.dst_neg_index.flatten())
        own: Tensor = predictor(src, dst, relation)
        each = None if relation is None else relation.repeat_interleave(amount)
        others: Tensor = predictor(src.repeat_interleave(amount, 0), negative, each)
        return torch.cat([own.unsqueeze(1), others.view(-1, amount)], 1)

    def _of_shared(self, rows: Tensor, pairs: Tensor, relation: Tensor | None, count: int) -> Tensor:
        predictor = self._link_model.predictor
        links, drawn = pairs[:, :count], pairs[:, count:]
        src, dst, drawn_src, drawn_dst = _taken(rows, links[0], links[1], drawn[0], drawn[1])
        own: Tensor = predictor(src, dst, relation)
        if isinstance(predictor, RelationPredictor) and predictor.reciprocal:
            own = torch.stack([own, predictor.as_sources(src, dst, relation)])
        as_dst = predictor.with_all(src, drawn_dst, relation)
        as_src = predictor.all_with(dst, drawn_src, relation)
        hidden = [alike(links[1], drawn[1]), alike(links[0], drawn[0])]
        return choices(own, [as_dst, as_src], hidden, self._memory)


def _fetched(links: PartLinks, train: Tensor, at: Tensor, comm: Communicator) -> Tensor:
    """Return the ends of those links of ``train`` at some places, by all ranks together."""
    return links.at(train[at], comm)


def _taken(rows: Tensor, *places: Tensor) -> tuple[Tensor, ...]:
    """Return ``rows[one]`` for each of the places, with one gradient of all rows and not one for each."""
    taken = F.embedding(torch.cat(places), rows)
    return torch.split(taken, [one.numel() for one in places])


def _check_relations(model: LinkModel, data: LinkData) -> None:
    relation, count = data.links.relation, model.predictor.num_relations
    name = type(model.predictor).__name__
    if count is None:
        return
    if relation is None:
        raise ConfigError(
            f"{name} scores links of several relations, and the links to learn are of one kind; use "
            "nn.DotProduct() or nn.MLPPredictor, or a graph of several relations, all of them learned."
        )
    largest = int(relation.max())
    if largest >= count:
        raise DataError(
            f"{name} knows {count} relations, and the graph's links are of {data.num_relations}; make it "
            f"with num_relations={data.num_relations}."
        )


def runner_of(
    model: nn.Module,
    graph: Graph | GraphSet,
    place: ModelPlace,
    config: TrainConfig,
    *,
    rows: FeatureSource | None = None,
    lists: NeighborLists | None = None,
) -> ModelRunner:
    """Return a model's runner, by its kind and the graph's; one of nodes reads ``rows`` and ``lists``."""
    if not isinstance(graph, Graph):
        from graphbraid.train.step.graphs import GraphsRunner  # here: few runs are on many graphs

        return GraphsRunner(model, graph, place)
    if isinstance(model, LinkModel):
        return LinkRunner(model, graph, place, config)
    if isinstance(model, EdgeModel):
        return EdgeRunner(model, graph, place, config)
    return ModelRunner(model, graph, place, rows, lists, node_type=config.node_type)
