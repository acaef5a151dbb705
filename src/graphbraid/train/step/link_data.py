"""LinkData: a graph as link prediction sees it: links to learn, and edges that carry messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.errors import ConfigError, DataError, did_you_mean
from graphbraid.graph import EdgeType, Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.labelled import SPLITS, LabelledNodes
from graphbraid.train.config import TrainConfig
from graphbraid.train.step.link_ends import LinkEnds

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

    @property
    def num_nodes(self) -> int:
        """Number of links, which take the place of nodes here."""
        return int(self.ends.shape[1])

    @property
    def y(self) -> Tensor:
        """``(num_links,)`` int64 labels: 1, without memory for each."""
        return torch.ones(1, dtype=torch.int64).expand(self.num_nodes)

    def relations_at(self, positions: Tensor) -> Tensor | None:
        """Return the relations of the links at ``positions``; None if there is one."""
        return None if self.relation is None else self.relation[positions]


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LinkData:
    """What a run of link prediction reads of a graph; ids of nodes are those in the whole graph."""

    links: LinkSet
    """The links of all splits, which are also those known to be true when others are ranked."""
    messages: Graph
    """The graph that neighbours are drawn from: edges that carry messages alone, without types; with the
    features if there is one node type."""
    message_relation: Tensor | None
    """``(num_messages,)`` int64 relation of each stored edge of ``messages``; None if there is one."""
    is_message: Tensor
    """``(num_edges,)`` bool: which edges of the graph those are."""
    whole: Csc
    """All edges, as the graph has them; negatives of an evaluation are none of these."""
    num_relations: int
    """Number of relations that links are of."""
    ends: LinkEnds
    """The nodes that links join."""

    @classmethod
    def of(cls, graph: Graph, config: TrainConfig) -> LinkData:
        """Read a graph.

        Links are the edges that the graph's ``edge_splits`` name. If there are none, all edges are links and
        ``config.link_splits`` of the pairs of nodes are drawn for validation and test, with all edges that
        join the same two nodes, in either direction and by any relation, on the same side. Messages are the
        edges to train on; beside them, edges of relations without splits, less those that join the ends of a
        link of validation or test. With ``config.link_relation``, and in a graph of several node types, links
        are edges of one relation, and all others carry messages, less the same.

        Raises:
            ConfigError: there is no such relation, or several node types and none is named.
            DataError: there are no edges, or no links to train on.
        """
        if not graph.num_edges:
            raise DataError("task='link' learns the graph's edges, and there are none")
        learned_one = relation_learned(graph, config)
        csc = graph.csc
        ends = torch.stack([csc.indices.long(), csc.destinations().long()])
        relation = _stored_relations(graph)
        split, is_message = _splits(graph, relation, ends, learned_one, config)
        learned = (split != _NONE).nonzero().flatten()
        of_learned = split[learned]
        splits = {name: (of_learned == number).nonzero().flatten() for number, name in enumerate(SPLITS)}
        if not splits["train"].numel():
            raise DataError(
                f"no edge is left to train on: {_told(splits)}. Put some in the split 'train', or make the "
                f"shares of link_splits={config.link_splits} smaller."
            )
        alone = graph.nodes_of(graph.node_types[0]) if len(graph.node_types) == 1 else None
        return cls(
            links=LinkSet(
                ends=ends[:, learned],
                relation=None if relation is None or learned_one is not None else relation[learned],
                splits={name: positions for name, positions in splits.items() if positions.numel()},
            ),
            messages=Graph(
                csc=kept(csc, is_message), x=None if alone is None else alone.x, name=graph.name, trusted=True
            ),
            message_relation=None if relation is None else relation[is_message],
            is_message=is_message,
            whole=csc,
            num_relations=len(graph.edge_types) if learned_one is None else 1,
            ends=LinkEnds.of(graph, learned_one or graph.edge_types[0]),
        )


def relation_learned(graph: Graph, config: TrainConfig) -> EdgeType | None:
    """Return the relation whose links are learned; None if those of all relations are.

    Raises:
        ConfigError: the graph does not have the relation of ``config``, or has several and must be told one.
    """
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


def _told(splits: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{positions.numel()} links are in {name!r}" for name, positions in splits.items())


def _stored_relations(graph: Graph) -> Tensor | None:
    """Return the number of each stored edge's relation; None for a graph without types."""
    if graph.types is None:
        return None
    of_rows = []  # a row for each node and relation into its type, in the order of the relations
    for name, nodes in graph.types.nodes.items():
        into = [number for number, one in enumerate(graph.edge_types) if one[2] == name]
        of_rows.append(torch.tensor(into, dtype=torch.int64).repeat(nodes.num_nodes))
    return torch.repeat_interleave(torch.cat(of_rows), graph.types.rows.degrees())


def _splits(
    graph: Graph, relation: Tensor | None, ends: Tensor, learned: EdgeType | None, config: TrainConfig
) -> tuple[Tensor, Tensor]:
    """Return the number of each edge's split in :data:`SPLITS` (-1: no link), and which carry messages."""
    split = _given_splits(graph, relation)
    if learned is None:
        if split is None or relation is None:
            split = _drawn_splits(ends, graph.num_nodes, config)
            return split, split == 0
        beside = [not graph.edges_of(one).splits for one in graph.edge_types]
    else:
        assert relation is not None, "only a graph with types has relations to choose from"
        is_learned = relation == graph.edge_types.index(learned)
        beside = [one != learned for one in graph.edge_types]
        if split is None or not graph.edges_of(learned).splits:
            split = torch.full_like(relation, _NONE)
            split[is_learned] = _drawn_splits(ends[:, is_learned], graph.num_nodes, config)
        split = split.where(is_learned, _NONE)
    return split, (split == 0) | _beside(graph, torch.tensor(beside)[relation], split, ends)


def _given_splits(graph: Graph, relation: Tensor | None) -> Tensor | None:
    """Return the number of each stored edge's split in :data:`SPLITS`, or -1; None if there are no splits."""
    if relation is None or not any(graph.edges_of(one).splits for one in graph.edge_types):
        return None
    sets = [graph.edges_of(one) for one in graph.edge_types]
    of_list = []
    for edges in sets:
        numbers = torch.full((edges.num_edges,), _NONE)
        for number, name in enumerate(SPLITS):
            if name in edges.splits:
                numbers[edges.splits[name]] = number
        of_list.append(numbers)
    numbers = torch.cat(of_list)
    if graph.edge_id is None:  # each relation is stored in the order of its list
        found = torch.empty_like(numbers)
        found[relation.argsort(stable=True)] = numbers
        return found
    counts = torch.tensor([edges.num_edges for edges in sets])
    place = (counts.cumsum(0) - counts)[relation] + graph.edge_id
    return numbers[place].where(graph.edge_id >= 0, _NONE)  # -1 is an edge that was in no list


def _drawn_splits(ends: Tensor, num_nodes: int, config: TrainConfig) -> Tensor:
    """Return the number of each edge's split, drawn by the pair of nodes that it joins."""
    pair, number = torch.unique(_pairs(ends, num_nodes), return_inverse=True)
    order = torch.randperm(pair.numel(), generator=torch.Generator().manual_seed(config.link_split_seed))
    of_pair = torch.zeros(pair.numel(), dtype=torch.int64)
    begin = 0
    for split, share in enumerate(config.link_splits, start=1):
        end = begin + round(share * pair.numel())
        of_pair[order[begin:end]] = split
        begin = end
    return of_pair[number]


def _beside(graph: Graph, is_beside: Tensor, split: Tensor, ends: Tensor) -> Tensor:
    """Return which edges carry messages though they are not learned, such as reverses of others."""
    if not bool(is_beside.any()):
        return is_beside
    pairs = _pairs(ends, graph.num_nodes)
    predicted = torch.unique(pairs[split > 0])
    return is_beside & ~torch.isin(pairs, predicted)


def _pairs(ends: Tensor, num_nodes: int) -> Tensor:
    """Return a number for each edge that is the same for all edges between its two nodes."""
    return ends.amin(0) * num_nodes + ends.amax(0)


def kept(csc: Csc, keep: Tensor) -> Csc:
    """Return an adjacency of some of the stored edges, in the same order."""
    before = torch.cat([torch.zeros(1, dtype=torch.int64), keep.cumsum(0)])
    weight = None if csc.weight is None else csc.weight[keep]
    return Csc(before[csc.indptr], csc.indices[keep], csc.num_src, weight, trusted=True)
