"""Runners of the encoder of a model of links, and the cross entropy of links among all nodes.

Encoders are called with tensors, or by node type and relation. The cross entropy never holds all scores in
memory.
"""

from __future__ import annotations

import dataclasses
import functools
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphbraid.errors import ConfigError, DataError
from graphbraid.fullgraph.reading.calling import DATA, EDGE_TYPE, N_ID, CallValues, Given, X, parameters_of
from graphbraid.fullgraph.reading.relational import fused_layers
from graphbraid.graph import Graph, Types
from graphbraid.graph.csc import Csc
from graphbraid.nn import LinkModel, NodeEmbedding, RelationPredictor, module_traits
from graphbraid.ops.library import once_differentiable
from graphbraid.sampling.batch_seeds import TreeSeeds
from graphbraid.sampling.links.link_seeds import ANSWERS, COUNTS, GIVEN, KIND, WEIGHT, LinkEnds
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.sample import X_BY_TYPE, PreparedBatch, Sampled, SampledEdges
from graphbraid.sampling.source import BatchSource
from graphbraid.train.step.links.data import FOREVER, LinkData, LinkTimes, along_messages, kept
from graphbraid.train.step.runner import ModelRunner, normalises_by_degree, pipeline_of

if TYPE_CHECKING:
    from graphbraid.fullgraph.program import NotLoweredError, Program
    from graphbraid.loader.batch_loader import BatchLoader, LoaderSettings
    from graphbraid.train.runtime import ModelPlace


class NodeEncoderRunner(ModelRunner):
    """A runner of an encoder, whose mini-batches of nodes are drawn over the edges that carry messages."""

    _times: LinkTimes | None

    def settings(self, settings: LoaderSettings) -> LoaderSettings:
        """Return a loader's settings completed for the encoder; one without layers needs no neighbours."""
        settings = dataclasses.replace(super().settings(settings), src_degree=self.uses_degrees)
        has_layers = module_traits.num_layers(self.model) != 0
        return settings if has_layers else dataclasses.replace(settings, num_neighbors=[0])

    def loader(self, settings: LoaderSettings) -> BatchLoader:
        """Return the loader of mini-batches of nodes as they are after all messages.

        All neighbours are then early enough. If only the latest are drawn, each node has a tree of its own.
        """
        from graphbraid.loader import BatchLoader

        settings, source, times = self.settings(settings), self.source(), self._times
        if times is None or not times.messages.last or not any(settings.num_neighbors):
            return BatchLoader(source, settings)
        nodes = settings.input_nodes
        assert isinstance(nodes, Tensor), "evaluations name their nodes"
        seeds = TreeSeeds(nodes, times=torch.full(nodes.shape, FOREVER), edge_times=times.messages)
        return BatchLoader(source, dataclasses.replace(settings, input_nodes=None), seeds)

    def on_batch(self, batch: MiniBatch) -> Tensor:
        """Return the rows of a mini-batch's seeds, ``(batch_size, channels)``."""
        return self.rows_of_seeds(batch, batch.batch_size)

    @abstractmethod
    def rows_of_seeds(self, batch: MiniBatch, count: int) -> Tensor:
        """Return the rows of the first ``count`` nodes of a mini-batch."""


class EncoderRunner(NodeEncoderRunner):
    """A runner of an encoder over the edges that carry messages.

    It is called as :class:`ModelRunner` calls a model; ``edge_type`` is the relation of each edge. Encoders
    that take what the graph lacks, or that would see the future of links with times, are refused.
    """

    def __init__(self, encoder: nn.Module, data: LinkData, place: ModelPlace) -> None:
        graph, self._times, self._relation = data.messages, data.times, None
        given = Given.of(graph)
        names = given.names | {X}
        if _takes_relations(encoder):
            self._relation, names = data.message_relation, names | {EDGE_TYPE}
            if self._relation is None:
                raise ConfigError(
                    "the encoder takes the relation of each edge (edge_type), and the graph has no types; "
                    "use an encoder without, or a graph of relations."
                )
        self._bind(encoder, dataclasses.replace(given, names=names))
        self._prepare(encoder, graph, place)
        if graph.x is None and not self.calling.takes(N_ID):
            raise DataError(
                "the encoder needs node features, but graph.x is None; put learned rows in front of it: "
                "nn.NodeEmbedding(graph.num_nodes, channels, encoder)."
            )
        if self.native and self._relation is not None:
            raise ConfigError("an encoder that takes blocks cannot take edge_type; use one of them")
        self._typed_blocks = self._relation is not None and module_traits.takes_typed_blocks(encoder)
        self.uses_degrees = self.native and normalises_by_degree(encoder)
        if data.links.parts is not None and self.calling.takes(DATA):
            raise ConfigError(
                "with --rows parts an encoder of links gets no ids of edges, which the whole data has: let "
                "forward take x, edge_index and edge_weight or edge_attr, or partition with --rows whole"
            )
        if self.uses_degrees and data.times is not None:
            raise ConfigError(
                "the encoder normalises by the degrees of the graph, which count edges of any time, so they "
                "tell of the future: with temporal_strategy use an encoder without GCNConv, such as "
                "nn.GraphSAGE, or PyG's, which counts the edges that were drawn."
            )

    @property
    def by_blocks(self) -> bool:
        """Whether the encoder is called with one block per layer."""
        return self.native or self._typed_blocks

    def features_of(self, batch: MiniBatch) -> Any:
        """Return a mini-batch's feature rows; None without features."""
        return None if self.graph.x is None else super().features_of(batch)

    def on_batch(self, batch: MiniBatch) -> Tensor:
        """Return the rows of a mini-batch's seeds, ``(batch_size, channels)``."""
        return super().on_batch(batch if self.device.type == "cpu" else batch.to(self.device))

    def rows_of_seeds(self, batch: MiniBatch, count: int) -> Tensor:
        """Return the rows of the first ``count`` nodes of a mini-batch on the encoder's device."""
        if self.learned is not None:
            ids = {group.node_type: batch.n_id for group in self.learned.groups}  # there is one type
            self.learned.take_batch(ids, learns=torch.is_grad_enabled())
        with self.autocast():
            outputs = self._called(batch, CallValues(partial(self._of_batch, batch)))
        return self._checked(outputs)[:count]

    def _of_batch(self, batch: MiniBatch, what: str) -> Any:
        if what == X and self.graph.x is None:
            return None
        if what == EDGE_TYPE and self._typed_blocks:
            by_layer = batch.sampled.positions_by_layer(batch.layout)
            return [self._relations_at(positions) for positions in by_layer]
        if what == EDGE_TYPE:
            return self._relations_at(batch.sampled.positions())
        return super()._of_batch(batch, what)

    def _relations_at(self, positions: Tensor | None) -> Tensor:
        assert positions is not None, "edge ids are kept where relations are taken"
        assert self._relation is not None
        return self._relation[positions.cpu()].to(self.device)

    def _make_whole(self) -> CallValues:
        values = super()._make_whole()
        if self._relation is not None:
            values[EDGE_TYPE] = self._relation.to(self.device)
        if self.graph.x is None:
            values[X] = None
        return values


def _takes_relations(encoder: nn.Module) -> bool:
    """Return whether an encoder takes relations; rows in front of a model take them for that model."""
    inner = encoder.model if isinstance(encoder, NodeEmbedding) else encoder
    return inner is not None and any(parameter.name == EDGE_TYPE for parameter in parameters_of(inner))


def sampled_by_type(
    sampled: Sampled, graph: Graph, relation: Tensor, place: Tensor | None
) -> tuple[Sampled, list[Tensor]]:
    """Return a sample of nodes of any type as one by node type and relation.

    Nodes of a type keep their order, so that those of the first hops come first in each type, too.

    Args:
        sampled: a sample whose ids are those of the whole graph, with positions of its edges; on the CPU.
        graph: the graph with types.
        relation: ``(num_edges,)`` int64 relation of each edge, in the order that ``sampled`` was drawn from.
        place: ``(num_edges,)`` int64 position of each in ``graph``. If None, they are in its order.

    Returns:
        The sample by type and relation, and by type where its nodes stand in ``sampled.n_id``, rising.
    """
    assert graph.types is not None, "made for graphs with types"
    n_id, first = sampled.n_id, torch.tensor(graph.types.first_ids)
    num_types, num_relations = len(graph.node_types), len(graph.edge_types)
    kind = torch.bucketize(n_id, first[1:], right=True)
    places, local = _split(kind, num_types), torch.empty_like(n_id)
    for at in places:
        local[at] = torch.arange(at.numel())
    num_hops = len(sampled.edges_per_hop)
    hop_of = torch.arange(num_hops + 1).repeat_interleave(torch.tensor(sampled.nodes_per_hop))
    records: list[list[SampledEdges]] = [[] for _ in range(num_relations)]
    per_hop: list[list[int]] = [[] for _ in range(num_relations)]
    for edges in sampled.edges:
        assert edges.positions is not None, "kept by the loaders of typed encoders"
        num_rows = edges.indptr.numel() - 1
        rows = torch.arange(num_rows).repeat_interleave(edges.indptr.diff())
        src, dst = local[edges.indices.long()], local[rows]
        num_dst = torch.bincount(kind[:num_rows], minlength=num_types).tolist()
        positions = edges.positions if place is None else place[edges.positions]
        for number, at in enumerate(_split(relation[edges.positions], num_relations)):
            of_type = num_dst[graph.node_types.index(graph.edge_types[number][2])]
            indptr = torch.zeros(of_type + 1, dtype=torch.int64)
            torch.cumsum(torch.bincount(dst[at], minlength=of_type), 0, out=indptr[1:])
            records[number].append(
                SampledEdges(indptr=indptr, indices=src[at].int(), positions=positions[at])
            )
            by_hop = torch.bincount(hop_of[rows[at]], minlength=num_hops).tolist()
            per_hop[number] += by_hop if len(sampled.edges) == 1 else [at.numel()]
    return Sampled(
        n_id_by_type=[n_id[at] - int(first[number]) for number, at in enumerate(places)],
        edges_by_relation=records,
        nodes_by_type=[torch.bincount(hop_of[at], minlength=num_hops + 1).tolist() for at in places],
        counts_by_relation=per_hop,
    ), places


def _split(kind: Tensor, num_kinds: int) -> list[Tensor]:
    order, counts = kind.argsort(stable=True), torch.bincount(kind, minlength=num_kinds)
    return list(torch.split(order, counts.tolist()))


_BY_TYPE = "by_type"
"""Attribute of a batch that caches results by type."""


class TypedEncoderRunner(NodeEncoderRunner):
    """A runner of an encoder that is called by node type and relation, over the edges that carry messages.

    Mini-batches are drawn over nodes of the whole graph, with one fanout per hop for the in-neighbours of all
    relations together, and then taken apart by type. The encoder is called as :class:`ModelRunner` calls a
    model, and returns rows by node type.

    Raises:
        DataError: the encoder needs features, and there are none.
    """

    def __init__(self, encoder: nn.Module, graph: Graph, data: LinkData, place: ModelPlace) -> None:
        self._ends = data.ends
        self._plain = BatchSource(graph=data.messages, pipeline=pipeline_of(data.messages))
        assert data.message_relation is not None, "of a graph with types"
        self._relation, self._times, self._order = data.message_relation, data.times, data.message_order
        messages = _messages(graph, data)
        self._bind(encoder, Given.of(messages))
        self._prepare(encoder, messages, place)
        self._by_type = BatchSource(graph=self.graph)

    def program_by_level(self) -> Program | NotLoweredError:
        """Return why there is no program: rows of several types are wanted."""
        from graphbraid.fullgraph.program import NotLoweredError

        return NotLoweredError("encoder", "it returns rows of several node types")

    def settings(self, settings: LoaderSettings) -> LoaderSettings:
        """Return a loader's settings completed for the encoder, with edge ids."""
        return super().settings(dataclasses.replace(settings, return_edge_id=True))

    def few_nodes(self, count: int) -> Tensor:
        """Return at most ``count`` nodes that links join."""
        return self._ends.nodes[:count]

    def source(self) -> BatchSource:
        """What mini-batches are cut from."""
        return self._plain

    def rows_bytes(self, batch: MiniBatch) -> int:
        """Return the bytes of a batch's feature rows if they are float32 and dense."""
        return super().rows_bytes(self._typed(batch)[0])

    def features_of(self, batch: MiniBatch) -> Any:
        """Return a mini-batch's feature rows by node type, float32."""
        return super().features_of(batch if batch.is_typed else self._typed(batch)[0])

    def rows_of_seeds(self, batch: MiniBatch, count: int) -> Tensor:
        """Return the rows of the first ``count`` nodes of a mini-batch, which are of the types links join."""
        typed, places = self._typed(batch)
        moved = typed.to(self.device)
        if self.learned is not None:
            self.learned.take_batch(moved.n_id_dict, learns=torch.is_grad_enabled())
        with self.masks_of(typed), self.over_ranks(typed):
            found = self._by_end(CallValues(partial(self._of_typed_batch, moved)))
        of_type = dict(zip(self.graph.node_types, places, strict=True))
        wanted = {one: of_type[one][of_type[one] < count] for one in found}
        order = torch.cat(list(wanted.values())).argsort()
        rows = torch.cat([rows[: wanted[one].numel()] for one, rows in found.items()])
        return rows.index_select(0, order.to(rows.device))

    def on_graph(self) -> Tensor:
        """Return the rows of every node of the whole graph; of the types that links do not join, zeros."""
        found = self._by_end(self._on_whole())
        like = found[self._ends.types[0]]
        return torch.cat(
            [
                found[one]
                if one in found
                else like.new_zeros(self.graph.nodes_of(one).num_nodes, like.shape[1])
                for one in self.graph.node_types
            ]
        )

    def _by_end(self, values: CallValues) -> dict[str, Tensor]:
        """Return the encoder's rows by node type, for the types that links join."""
        with self.autocast(), fused_layers(self.model):
            outputs = self.calling.run(self.model, values)
        wanted = dict.fromkeys(self._ends.types)
        if not isinstance(outputs, Mapping) or not all(one in outputs for one in wanted):
            got = ", ".join(map(str, outputs)) if isinstance(outputs, Mapping) else type(outputs).__name__
            needed = " and ".join(map(repr, wanted))
            raise DataError(
                f"the encoder must return rows by node type, with those of {needed}; got {got or 'none'}. "
                "A type gets some if a relation leads into it (Graph.with_reverse_relations)."
            )
        found = {one: self._checked(outputs[one]) for one in wanted}
        widths = {one: rows.shape[1] for one, rows in found.items()}
        if len(set(widths.values())) > 1:
            raise DataError(f"the encoder's rows must have one width for both ends of a link; got {widths}")
        return found

    def _typed(self, batch: MiniBatch) -> tuple[MiniBatch, list[Tensor]]:
        """Return a batch by type, whose features are made once, and where its nodes stand by type."""
        made: tuple[MiniBatch, list[Tensor]] | None = getattr(batch, _BY_TYPE, None)
        if made is None:
            sampled, places = sampled_by_type(batch.sampled, self.graph, self._relation, self._order)
            x: list[Tensor | None] = getattr(batch, X_BY_TYPE, [None] * len(places))
            prepared = PreparedBatch(batch.step, batch.input_id, sampled, x)
            made = MiniBatch(self._by_type, prepared, layout=batch.layout, epoch=batch.epoch), places
            setattr(batch, _BY_TYPE, made)
        return made


def _messages(graph: Graph, data: LinkData) -> Graph:
    """Return the graph with the edges that carry messages alone, with its types and features."""
    assert graph.types is not None
    assert data.message_relation is not None
    counts = torch.bincount(data.message_relation, minlength=len(graph.edge_types)).tolist()
    rows = kept(graph.types.rows, data.is_message)
    csc = Csc(data.messages.csc.indptr, rows.indices, graph.num_nodes, rows.weight, trusted=True)
    edges = {
        one: dataclasses.replace(
            graph.edges_of(one), num_edges=count, edge_attr=None, time=None, y=None, splits={}
        )
        for one, count in zip(graph.edge_types, counts, strict=True)
    }
    nodes = {name: dataclasses.replace(held, splits={}) for name, held in graph.types.nodes.items()}
    types = Types(nodes=nodes, edges=edges, rows=rows)
    return along_messages(graph, csc=csc, types=types)


BlockScorer = Callable[[Tensor, Tensor, slice], Tensor]
"""Function of some given rows, all rows and the place of those that returns ``(num_given, num_rows)``."""
_SCORES = 1 << 22
"""Scores held at a time, if a question has not more: 16 MiB, so that the gradients of rows cost little."""


def one_vs_all(model: LinkModel, rows: Tensor, batch: Any, ends: LinkEnds, *, n3: float) -> Tensor:
    """Return the mean loss of a batch's questions, a scalar: cross entropy of each answer among all nodes.

    The losses of a question's answers add up, and are divided by the mean number of answers: over an epoch,
    the loss is the mean over all links and both of their ends. With the weight ``n3`` each answer adds the
    cubed absolute values of the node given, the relation's row and its own ("Canonical Tensor Decomposition
    for Knowledge Base Completion", whose code has no factor of 1/3 either). ``rows`` are the encoder's of
    ``ends.nodes``, ``(num_nodes, channels)``. The batch is one of
    :class:`graphbraid.sampling.links.link_seeds.QuestionSeeds`.
    """
    predictor, total = model.predictor, rows.new_zeros((), dtype=torch.float32)
    given, kind, counts = (getattr(batch, name) for name in (GIVEN, KIND, COUNTS))
    question = torch.arange(counts.numel(), device=counts.device).repeat_interleave(counts)
    for sources, part in enumerate(reversed(ends.rows)):
        is_asked = kind % 2 == sources
        at = is_asked[question]
        answers = torch.stack([(is_asked.cumsum(0) - 1)[question[at]], getattr(batch, ANSWERS)[at]])
        relation = None if predictor.num_relations is None else kind[is_asked] // 2
        of_given, candidates = rows[given[is_asked]], rows[part]
        ask = predictor.all_with if sources else predictor.with_all
        score = functools.partial(_score, ask, relation)
        total = total + softmax_over_all(score, of_given, candidates, answers, [*predictor.parameters()])
        if n3:
            assert isinstance(predictor, RelationPredictor), "it was checked"
            assert relation is not None
            of_relation = predictor.cubes(predictor.relation_rows(relation, sources=bool(sources)))
            asked = (predictor.cubes(of_given) + of_relation) * counts[is_asked]
            times = torch.bincount(answers[1], minlength=candidates.shape[0])
            total = total + n3 * (asked.sum() + (predictor.cubes(candidates) * times).sum())
    mean: Tensor = total * (float(getattr(batch, WEIGHT)) / max(1, counts.numel()))
    return mean


def _score(ask: Any, relation: Tensor | None, given: Tensor, rows: Tensor, part: slice) -> Any:
    return ask(given, rows, None if relation is None else relation[part])


def softmax_over_all(
    score: BlockScorer, given: Tensor, rows: Tensor, answers: Tensor, parameters: Sequence[nn.Parameter]
) -> Tensor:
    """Return the sum of the cross entropies of answers among all rows, a float32 or float64 scalar.

    Scores are made for some given rows at a time, and their gradient at once: neither is held for all.

    Args:
        score: scores of given rows with all rows.
        given: ``(num_given, channels)`` rows.
        rows: ``(num_rows, channels)`` candidates.
        answers: ``(2, num_answers)`` int64: given row, rising, and candidate. One that stands twice counts
            twice.
        parameters: parameters that ``score`` reads.
    """
    found: Tensor = _SoftmaxOverAll.apply(  # type: ignore[no-untyped-call]
        score, answers, given, rows, *parameters
    )
    return found


class _SoftmaxOverAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, score: BlockScorer, answers: Tensor, given: Tensor, rows: Tensor, *parameters: Tensor
    ) -> Tensor:
        wide, needed = torch.promote_types(given.dtype, torch.float32), ctx.needs_input_grad[2:]
        wanted = [number for number, need in enumerate(needed) if need]
        ctx.wanted, ctx.dtypes = wanted, [one.dtype for one in (given, rows, *parameters)]
        ctx.slopes = [torch.zeros_like((given, rows, *parameters)[number], dtype=wide) for number in wanted]
        total = torch.zeros((), dtype=torch.float64, device=given.device)
        every, per_call = rows.detach().requires_grad_(needed[1]), max(1, _SCORES // max(1, rows.shape[0]))
        for begin in range(0, given.shape[0], per_call):
            part = slice(begin, begin + per_call)
            some = given[part].detach().requires_grad_(needed[0])
            with torch.enable_grad():
                scores = score(some, every, part)
            ends = torch.tensor([begin, begin + some.shape[0]], device=answers.device)
            row, column = answers[:, slice(*torch.searchsorted(answers[0].contiguous(), ends).tolist())]
            at, counts = (row - begin, column), torch.bincount(row - begin, minlength=some.shape[0])
            values = scores.detach().to(wide)
            slope = values.softmax(1)
            # The log of the sum, by the largest score and its share, which is never too small.
            log_sum = values.amax(1) - slope.amax(1).log()
            total += (log_sum.double() * counts).sum() - values[at].double().sum()
            if wanted:
                slope *= counts[:, None]
                slope.index_put_(at, slope.new_tensor(-1.0), accumulate=True)
                inputs = (some, every, *parameters)
                found = torch.autograd.grad(
                    scores, [inputs[number] for number in wanted], slope.to(scores.dtype), allow_unused=True
                )
                for number, held, one in zip(wanted, ctx.slopes, found, strict=True):
                    if one is not None:
                        (held[part] if number == 0 else held).add_(one)
        return total.to(wide)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        found: list[Tensor | None] = [None] * len(ctx.dtypes)
        for number, slope in zip(ctx.wanted, ctx.slopes, strict=True):
            found[number] = (slope * grad).to(ctx.dtypes[number])
        return None, None, *found
