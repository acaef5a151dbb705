"""LinkData: the data of link prediction: links to learn, edges that carry messages, and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from graphbraid.errors import ConfigError, DataError, did_you_mean
from graphbraid.graph import EdgeSet, EdgeType, Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.types import SPLITS, LabelledNodes
from graphbraid.sampling.batch_seeds import EdgeTimes, sorted_by_time
from graphbraid.sampling.links.link_seeds import LinkEnds
from graphbraid.train.config import TrainConfig
from graphbraid.train.step.runner import divided_graph
from graphbraid.train.task import labelled

if TYPE_CHECKING:
    from graphbraid.distributed.shards.links import PartLinks

_MOST_EXACT = 1 << 53
"""Integers up to here are float64 numbers."""
FOREVER = (1 << 63) - 1
"""A time that no edge is later than."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class StoredTimes:
    """The times of a graph's edges, as they are stored."""

    value: Tensor
    """``(num_edges,)`` int64 or float64 times, as the graph has them."""
    rank: Tensor
    """``(num_edges,)`` int64: their ranks among all different times, from 0."""

    def splits(self, learned: Tensor, shares: tuple[float, float]) -> Tensor:
        """Return the number of each learned edge's split: 2 (test) for the latest, 1 (val) before them.

        Edges of one time are in one split, the later one where its share begins among them. ``learned`` is
        ``(num_edges,)`` bool: which edges are links. ``shares`` are those to validate and to test on.
        """
        rank = self.rank[learned]
        rising, begin = rank.sort().values, rank.numel()
        split = torch.zeros_like(rank)
        for share in reversed(shares):
            begin -= round(share * rank.numel())
            if begin < rank.numel():
                split += rank >= rising[begin]
        return split

    def check_order(self, split: Tensor) -> int:
        """Return the rank of the first time that is predicted, after checking that training is over by then.

        ``split`` numbers each edge's split, ``(num_edges,)`` int64: 0 to train on, more to predict.

        Raises:
            DataError: an edge to train on is as late as one to predict.
        """
        predicted = split > 0
        if not bool(predicted.any()):
            return FOREVER
        first = int(self.rank[predicted].min())
        late = ((split == 0) & (self.rank >= first)).nonzero().flatten()
        if late.numel():
            times = [self.value[at][0].item() for at in (late, predicted & (self.rank == first))]
            raise DataError(
                f"with temporal_strategy, links to validate and to test on must be later than all to train "
                f"on, or a model learns from what comes after; {late.numel()} links of the split 'train' are "
                f"not earlier than the first of the others, such as one of time {times[0]}, which is "
                f"{times[1]}. Split by time, leave edge_splits out, or leave temporal_strategy out."
            )
        return first


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LinkTimes:
    """The times of links and of the edges that carry messages, as ranks among all times of the graph."""

    links: Tensor
    """``(num_links,)`` int64 time of each link."""
    messages: EdgeTimes
    """Times of the edges that carry messages, whose adjacency is sorted by them."""

    def before(self, positions: Tensor) -> Tensor:
        """Return the last times before those of the links at ``positions``: those that messages may have."""
        return self.links[positions] - 1

    def check_after(self, positions: Tensor) -> None:
        """Refuse links that are not later than all messages, which an evaluation reads."""
        time = self.messages.time
        early = self.links[positions] <= (int(time.max()) if time.numel() else -1)
        if bool(early.any()):
            raise ConfigError(
                f"with temporal_strategy, links are evaluated by the edges to train on, and "
                f"{int(early.sum())} of these links are not later than all of them: their future would be "
                "seen. Evaluate a split that is later, such as 'val' or 'test'."
            )


def stored_times(graph: Graph, relation: Tensor | None, place: Tensor | None) -> StoredTimes:
    """Return the times of a graph's stored edges; ConfigError if an edge has none, DataError if not finite.

    ``relation`` and ``place`` are ``(num_edges,)`` int64. ``place`` counts in the lists of all relations, one
    after the other, and is -1 for an edge that was in none; it is None for a graph without types.
    """
    missing = [",".join(one) for one in graph.edge_types if graph.edges_of(one).time is None]
    if missing or relation is None or place is None:
        which = f" (those of {'; '.join(missing)})" if graph.is_typed else ""
        raise ConfigError(
            f"temporal_strategy needs the time of every edge, and edges of this graph have none{which}. Give "
            "them with Graph.from_relations(..., edge_time=...), or as edge_time in an .npz file."
        )
    lists = [time for one in graph.edge_types if (time := graph.edges_of(one).time) is not None]
    if any(time.is_floating_point() for time in lists):
        if any(not t.is_floating_point() and bool((t.abs() > _MOST_EXACT).any()) for t in lists):
            raise ConfigError(
                "times beyond 2**53 of one relation cannot be compared with another relation's floats; give "
                "all in one unit as integers"
            )
        lists = [time.double() for time in lists]
    value = torch.cat(lists)
    wrong = (~value.isfinite()).nonzero().flatten()
    if wrong.numel():
        raise DataError(
            f"times of edges must be finite; {wrong.numel()} are not, the first {value[wrong[0]]}"
        )
    if bool((place < 0).any()):
        raise ConfigError(
            f"{int((place < 0).sum())} edges were in no list of edges and have no times, such as self-loops "
            "that were added: leave these out, or temporal_strategy"
        )
    stored = value[place]
    return StoredTimes(value=stored, rank=torch.unique(stored, return_inverse=True)[1])


_NONE = -1
"""Split of an edge that is no link: it is neither learned nor predicted."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LinkSet(LabelledNodes):
    """Links with the splits that they are in; all are true, which their labels say."""

    ends: Tensor
    """``(2, num_links)`` int64 sources and destinations."""
    relation: Tensor | None
    """``(num_links,)`` int64 number of each link's relation; None if there is one."""
    splits: Mapping[str, Tensor]
    """int64 positions of links by name: ``train``, ``val``, ``test``, as far as there are any."""
    parts: PartLinks | None = None
    """Where ranks divide the edges: knows all links. ``ends`` then has those of this rank alone."""

    @property
    def num_nodes(self) -> int:
        """Number of links, which take the place of nodes here."""
        return int(self.ends.shape[1]) if self.parts is None else self.parts.num_links

    def at(self, positions: Tensor) -> Tensor:
        """Return the ends of links, ``(2, num)``."""
        return self.ends[:, positions] if self.parts is None else self.parts.at(positions)

    def beside(self, links: Tensor) -> Tensor:
        """Return all links that share an end with some of ``links``, and maybe others."""
        return self.ends if self.parts is None else self.parts.beside(links)

    @property
    def y(self) -> Tensor:
        """``(num_links,)`` int64 labels: 1, without memory for each."""
        return torch.ones(1, dtype=torch.int64).expand(self.num_nodes)

    def relations_at(self, positions: Tensor) -> Tensor | None:
        """Return the relations of the links at ``positions``; None if there is one."""
        return None if self.relation is None else self.relation[positions]


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class EdgeLabels(LinkSet):
    """The edges of a relation in the order of its list, with labels that are learned, and features."""

    known: Tensor | None
    """Labels, one row per edge; None where there are none."""
    edge_attr: Tensor | None
    """``(num_edges, num_edge_features)`` features of the edges; None if there are none."""

    @property
    def y(self) -> Tensor | None:  # type: ignore[override]
        """Labels, one row per edge."""
        return self.known


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LinkData:
    """The data of a run of link prediction; ids of nodes are those in the whole graph."""

    links: LinkSet
    """The links of all splits, which are also those known to be true when others are ranked."""
    messages: Graph
    """The graph that neighbours are drawn from: edges that carry messages alone, without types; with the
    features if there is one node type. Its rows are sorted by time where there are ``times``."""
    message_relation: Tensor | None
    """``(num_messages,)`` int64 relation of each stored edge of ``messages``; None if there is one."""
    message_order: Tensor | None
    """``(num_messages,)`` int64 place of each edge of ``messages`` among those in the graph's order. If None,
    they are in that order."""
    is_message: Tensor
    """``(num_edges,)`` bool: which edges of the graph those are."""
    whole: Csc
    """All edges, as the graph has them; negatives of an evaluation are none of these."""
    num_relations: int
    ends: LinkEnds
    """The nodes that links join."""
    times: LinkTimes | None
    """When links and messages arose; None where that plays no part."""

    @classmethod
    def of(cls, graph: Graph, config: TrainConfig) -> LinkData:
        """Return the links of a graph, their splits and the edges that carry messages.

        Links are the edges that the graph's ``edge_splits`` name. If there are none, all edges are links and
        ``config.link_splits`` of the pairs of nodes are drawn for validation and test, with all edges that
        join the same two nodes, in either direction and by any relation, on the same side. Messages are the
        edges to train on; beside them, edges of relations without splits, less those that join the ends of a
        link of validation or test. With ``config.link_relation``, and in a graph of several node types, links
        are edges of one relation, and all others carry messages, less the same.

        With ``task="edge"``, ``links`` are all edges of the relation, and those in no split carry messages,
        too. Splits that are not given are drawn of the edges with labels.

        With ``config.temporal_strategy``, splits that are not given are by time, and beside the edges to
        train on those carry messages that are earlier than every link of validation and test.
        """
        if not graph.num_edges:
            raise DataError(f"task={config.task!r} learns the graph's edges, and there are none")
        learned_one = relation_learned(graph, config)
        csc = graph.csc
        ends = torch.stack([csc.indices.long(), csc.destinations().long()])
        relation = _stored_relations(graph)
        place = None if relation is None else _places(graph, relation)
        times = None if config.temporal_strategy is None else stored_times(graph, relation, place)
        divided, parts = divided_graph(graph), None
        if divided is not None and divided.shards.lists == "parts":
            from graphbraid.distributed.shards.links import PartLinks  # here: few runs have parts

            parts = PartLinks(divided.shards, ends)
        stored = _Stored(ends, relation, place, times, parts)
        split, is_beside = _splits(graph, stored, learned_one, config)
        in_list = None
        if config.task == "edge" and learned_one is not None and relation is not None and place is not None:
            in_list = _in_list_order(graph, learned_one, relation, place)
            is_beside |= split == _NONE
            for name, ids in graph.edges_of(learned_one).splits.items():
                if name not in SPLITS:
                    is_beside[in_list[ids]] = False
        is_message = (split == 0) | _beside(is_beside, split, ends, graph.num_nodes, times)
        learned = (split != _NONE).nonzero().flatten() if in_list is None else in_list
        of_learned = split[learned]
        if parts is None:
            of_splits = [(of_learned == number).nonzero().flatten() for number in range(len(SPLITS))]
        else:
            of_splits = parts.splits(of_learned)
        splits = dict(zip(SPLITS, of_splits, strict=True))
        if config.task != "edge" and not splits["train"].numel():
            held = ", ".join(f"{at.numel()} links are in {name!r}" for name, at in splits.items())
            raise DataError(
                f"no edge is left to train on: {held}. Put some in the split 'train', or make the shares of "
                f"link_splits={config.link_splits} smaller."
            )
        alone = graph.nodes_of(graph.node_types[0]) if len(graph.node_types) == 1 else None
        messages, message_relation = kept(csc, is_message), None if relation is None else relation[is_message]
        attr, of_parts = graph.edge_attr, dict[str, Any]()
        attr = attr[is_message] if attr is not None and parts is None else attr
        if parts is not None:  # owners of edges send their rows, by positions in the whole graph
            at = None if attr is None and csc.weight is None else parts.positions[is_message]
            of_parts = {"edge_id": at, "degrees": parts.degrees(messages)}
        link_times, order = None, None
        if times is not None:
            of_messages = times.rank[is_message]
            messages, order = sorted_by_time(messages, of_messages)
            is_last = config.temporal_strategy == "last"
            edge_times = EdgeTimes(time=of_messages[order].contiguous(), last=is_last)
            message_relation = None if message_relation is None else message_relation[order]
            attr = None if attr is None else attr[order]
            link_times = LinkTimes(links=times.rank[learned], messages=edge_times)
        return cls(
            links=_edge_labels(graph.edges_of(learned_one), ends[:, learned], splits)
            if in_list is not None and learned_one is not None
            else LinkSet(
                ends=ends[:, learned],
                relation=None if relation is None or learned_one is not None else relation[learned],
                splits={name: positions for name, positions in splits.items() if positions.numel()},
                parts=parts,
            ),
            messages=along_messages(
                graph,
                csc=messages,
                x=None if alone is None else alone.x,
                edge_attr=attr,
                weight_name=graph.weight_name,
                **of_parts,
            ),
            message_relation=message_relation,
            message_order=order,
            is_message=is_message,
            whole=csc,
            num_relations=len(graph.edge_types) if learned_one is None else 1,
            ends=LinkEnds.of(graph, learned_one or graph.edge_types[0]),
            times=link_times,
        )


def _in_list_order(graph: Graph, learned: EdgeType, relation: Tensor, place: Tensor) -> Tensor:
    """Return the stored edges of a relation in the order of its list; DataError if they were edited."""
    number = graph.edge_types.index(learned)
    stored = ((relation == number) & (place >= 0)).nonzero().flatten()
    if stored.numel() != graph.edges_of(learned).num_edges:
        raise DataError(
            f"edges of {','.join(learned)} are not those of its list any more, as their labels are"
        )
    return stored[place[stored].argsort()]


def _edge_labels(edges: EdgeSet, ends: Tensor, drawn: Mapping[str, Tensor]) -> EdgeLabels:
    splits = edges.splits or {name: positions for name, positions in drawn.items() if positions.numel()}
    return EdgeLabels(ends=ends, relation=None, splits=splits, known=edges.y, edge_attr=edges.edge_attr)


def relation_learned(graph: Graph, config: TrainConfig) -> EdgeType | None:
    """Return the relation whose links are learned; None if those of all relations are."""
    known, wanted = graph.edge_types, config.link_relation
    names = [",".join(one) for one in known]
    if wanted is not None:
        name = ",".join(wanted)
        if not graph.is_typed:
            raise ConfigError(
                f"link_relation={name!r} chooses among relations, and the graph has one; leave it out."
            )
        if wanted not in known:
            raise ConfigError(
                f"link_relation={name!r} is no relation; the graph has {'; '.join(names)}."
                + did_you_mean(name, names)
            )
        return wanted
    if config.task == "edge":
        with_labels = [one for one in known if graph.is_typed and graph.edges_of(one).y is not None]
        if len(with_labels) == 1:
            return with_labels[0]
        raise ConfigError(
            "task='edge' learns labels of the edges of one relation (Graph.from_relations(edge_y=...)); say "
            f"which with link_relation: {'; '.join(names)}."
        )
    if len(graph.node_types) == 1:
        return None
    with_splits = [one for one in known if graph.edges_of(one).splits]
    for choices in (known, with_splits):
        if len(choices) == 1:
            return choices[0]
    raise ConfigError(
        "task='link' learns one relation of a graph of several node types; say which with link_relation: "
        f"{'; '.join(names)}."
    )


def _stored_relations(graph: Graph) -> Tensor | None:
    if graph.types is None:
        return None
    of_rows = []  # a row for each node and relation into its type, in the order of the relations
    for name, nodes in graph.types.nodes.items():
        into = [number for number, one in enumerate(graph.edge_types) if one[2] == name]
        of_rows.append(torch.tensor(into, dtype=torch.int64).repeat(nodes.num_nodes))
    return torch.repeat_interleave(torch.cat(of_rows), graph.types.rows.degrees())


class _Stored(NamedTuple):
    """The edges and their attributes, in the order of storage."""

    ends: Tensor
    """``(2, num_edges)`` sources and destinations."""
    relation: Tensor | None
    """``(num_edges,)`` number of each one's relation; None for a graph without types."""
    place: Tensor | None
    """``(num_edges,)`` place in the lists of all relations; -1 if it was in no list. None without types."""
    times: StoredTimes | None
    """Their times; None if these play no part."""
    parts: PartLinks | None
    """Where ranks divide the edges, of which these are this rank's: knows all of them."""


def _splits(
    graph: Graph, stored: _Stored, learned: EdgeType | None, config: TrainConfig
) -> tuple[Tensor, Tensor]:
    """Return each edge's number in :data:`SPLITS` (-1: no link), and a mask of edges that are not learned."""
    relation = stored.relation
    split = _given_splits(graph, stored.place)
    is_link = torch.ones(stored.ends.shape[1], dtype=torch.bool)
    if learned is None:
        if split is None or relation is None:
            return _new_splits(is_link, stored, graph.num_nodes, config), ~is_link
        beside = [not graph.edges_of(one).splits for one in graph.edge_types]
    else:
        assert relation is not None, "only a graph with types has relations to choose from"
        is_link = relation == graph.edge_types.index(learned)
        beside = [one != learned for one in graph.edge_types]
        if split is None or not graph.edges_of(learned).splits:
            drawn = is_link
            if config.task == "edge":  # of those with labels
                drawn = is_link & _labelled(graph, learned, stored)
            split = _new_splits(drawn, stored, graph.num_nodes, config)
        split = split.where(is_link, _NONE)
    return split, torch.tensor(beside)[relation]


def _labelled(graph: Graph, learned: EdgeType, stored: _Stored) -> Tensor:
    """Return which of the stored edges are of the relation ``learned`` and have a label."""
    edges, found = graph.edges_of(learned), torch.zeros(stored.ends.shape[1], dtype=torch.bool)
    assert stored.relation is not None
    assert stored.place is not None
    if edges.y is not None:
        at = _in_list_order(graph, learned, stored.relation, stored.place)
        found[at[labelled(edges, torch.arange(edges.num_edges))]] = True
    return found


def _places(graph: Graph, relation: Tensor) -> Tensor:
    if graph.edge_id is None:  # each relation is stored in the order of its list
        place = torch.empty_like(relation)
        place[relation.argsort(stable=True)] = torch.arange(relation.numel())
        return place
    counts = torch.tensor([graph.edges_of(one).num_edges for one in graph.edge_types])
    place = (counts.cumsum(0) - counts)[relation] + graph.edge_id
    return place.where(graph.edge_id >= 0, -1)


def _given_splits(graph: Graph, place: Tensor | None) -> Tensor | None:
    """Return the number of each stored edge's split in :data:`SPLITS`, or -1; None if there are no splits."""
    if place is None or not any(graph.edges_of(one).splits for one in graph.edge_types):
        return None
    of_list = []
    for edges in (graph.edges_of(one) for one in graph.edge_types):
        numbers = torch.full((edges.num_edges,), _NONE)
        for number, name in enumerate(SPLITS):
            if name in edges.splits:
                numbers[edges.splits[name]] = number
        of_list.append(numbers)
    return torch.cat(of_list)[place].where(place >= 0, _NONE)


def _new_splits(is_link: Tensor, stored: _Stored, num_nodes: int, config: TrainConfig) -> Tensor:
    """Return the number of each edge's split: by time if there are times, else drawn; -1 for no link."""
    split = torch.full(is_link.shape, _NONE)
    if stored.times is None:
        split[is_link] = _drawn_splits(stored.ends[:, is_link], num_nodes, config, stored.parts)
    else:
        split[is_link] = stored.times.splits(is_link, config.link_splits)
    return split


def _drawn_splits(ends: Tensor, num_nodes: int, config: TrainConfig, parts: PartLinks | None) -> Tensor:
    """Return the number of each edge's split, drawn by the pair of nodes that it joins."""
    pairs = _pairs(ends, num_nodes)
    if parts is None:
        different, number = torch.unique(pairs, return_inverse=True)
        count = different.numel()
    else:
        number, count = parts.numbered(pairs)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(config.link_split_seed))
    of_pair = torch.zeros(count, dtype=torch.int64)
    begin = 0
    for split, share in enumerate(config.link_splits, start=1):
        end = begin + round(share * count)
        of_pair[order[begin:end]] = split
        begin = end
    return of_pair[number]


def _beside(
    is_beside: Tensor, split: Tensor, ends: Tensor, num_nodes: int, times: StoredTimes | None
) -> Tensor:
    """Return which edges carry messages though they are not learned, such as reverses of others."""
    if times is not None:
        return is_beside & (times.rank < times.check_order(split))
    if not bool(is_beside.any()):
        return is_beside
    pairs = _pairs(ends, num_nodes)
    predicted = torch.unique(pairs[split > 0])
    return is_beside & ~torch.isin(pairs, predicted)


def _pairs(ends: Tensor, num_nodes: int) -> Tensor:
    """Return a number for each edge that is the same for all edges between its two nodes."""
    return ends.amin(0) * num_nodes + ends.amax(0)


def along_messages(graph: Graph, **fields: Any) -> Graph:
    """Return a graph of these edges that carry messages; its features are where the graph has them."""
    fields |= {"name": graph.name, "left_out": left_out(graph), "trusted": True}
    divided = divided_graph(graph)
    return Graph(**fields) if divided is None else type(divided)(**fields, shards=divided.shards)


def left_out(graph: Graph) -> frozenset[str]:
    """Return the attributes that no encoder gets: those left out of the graph, and features by relation."""
    by_relation = any(graph.edges_of(one).edge_attr is not None for one in graph.edge_types)
    return graph.left_out | ({"edge_attr"} if graph.is_typed and by_relation else set())


def kept(csc: Csc, keep: Tensor) -> Csc:
    """Return an adjacency of some of the stored edges, in the same order."""
    before = torch.cat([torch.zeros(1, dtype=torch.int64), keep.cumsum(0)])
    weight = None if csc.weight is None else csc.weight[keep]
    return Csc(before[csc.indptr], csc.indices[keep], csc.num_src, weight, trusted=True)
