"""LinkData: a graph as link prediction sees it: links to learn, and edges that carry messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from graphbraid.errors import ConfigError, DataError
from graphbraid.graph import Graph
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
    """What a run of link prediction reads of a graph."""

    links: LinkSet
    """The links of all splits, which are also those known to be true when others are ranked."""
    messages: Graph
    """The graph that neighbours are drawn from: training edges alone, without types, with the features."""
    message_relation: Tensor | None
    """``(num_messages,)`` int64 relation of each stored edge of ``messages``; None if there is one."""
    whole: Csc
    """All edges, as the graph has them; negatives of an evaluation are none of these."""
    num_relations: int
    """Number of relations of the graph."""
    ends: LinkEnds
    """The nodes that links join."""

    @classmethod
    def of(cls, graph: Graph, config: TrainConfig) -> LinkData:
        """Read a graph of one node type.

        Links are the edges that the graph's ``edge_splits`` name. If there are none, all edges are links and
        ``config.link_splits`` of the pairs of nodes are drawn for validation and test, with all edges that
        join the same two nodes, in either direction and by any relation, on the same side. Messages are the
        edges to train on; beside them, edges of relations without splits, less those that join the ends of a
        link of validation or test.

        Raises:
            ConfigError: the graph has several node types.
            DataError: there are no edges, or no links to train on.
        """
        _check_one_node_type(graph)
        if not graph.num_edges:
            raise DataError("task='link' learns the graph's edges, and there are none")
        csc = graph.csc
        ends = torch.stack([csc.indices.long(), csc.destinations().long()])
        relation = _stored_relations(graph)
        split = _given_splits(graph, relation)
        if split is None:
            split = _drawn_splits(ends, graph.num_nodes, config)
            is_message = split == 0
        else:
            is_message = (split == 0) | _beside(graph, relation, split, ends)
        learned = (split != _NONE).nonzero().flatten()
        of_learned = split[learned]
        splits = {name: (of_learned == number).nonzero().flatten() for number, name in enumerate(SPLITS)}
        if not splits["train"].numel():
            raise DataError(
                f"no edge is left to train on: {_told(splits)}. Put some in the split 'train', or make the "
                f"shares of link_splits={config.link_splits} smaller."
            )
        nodes = graph.nodes_of(graph.node_types[0])
        return cls(
            links=LinkSet(
                ends=ends[:, learned],
                relation=None if relation is None else relation[learned],
                splits={name: positions for name, positions in splits.items() if positions.numel()},
            ),
            messages=Graph(csc=_kept(csc, is_message), x=nodes.x, name=graph.name, trusted=True),
            message_relation=None if relation is None else relation[is_message],
            whole=csc,
            num_relations=len(graph.edge_types),
            ends=LinkEnds.of(graph, graph.edge_types[0]),
        )


def _check_one_node_type(graph: Graph) -> None:
    if len(graph.node_types) > 1:
        raise ConfigError(
            "task='link' takes graphs of one node type, with any number of relations, so far; this one has "
            f"{', '.join(graph.node_types)}."
        )


def _told(splits: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{positions.numel()} links are in {name!r}" for name, positions in splits.items())


def _stored_relations(graph: Graph) -> Tensor | None:
    """Return the number of each stored edge's relation; None for a graph without types."""
    if graph.types is None:
        return None
    degrees = graph.types.rows.degrees()  # of a node and relation, in the order of the relations
    return torch.repeat_interleave(torch.arange(degrees.numel()) % len(graph.edge_types), degrees)


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


def _beside(graph: Graph, relation: Tensor | None, split: Tensor, ends: Tensor) -> Tensor:
    """Return which edges carry messages though their relation has no splits, such as reverses of others."""
    assert relation is not None
    has_none = torch.tensor([not graph.edges_of(one).splits for one in graph.edge_types])[relation]
    if not bool(has_none.any()):
        return has_none
    pairs = _pairs(ends, graph.num_nodes)
    predicted = torch.unique(pairs[split > 0])
    return has_none & ~torch.isin(pairs, predicted)


def _pairs(ends: Tensor, num_nodes: int) -> Tensor:
    """Return a number for each edge that is the same for all edges between its two nodes."""
    return ends.amin(0) * num_nodes + ends.amax(0)


def _kept(csc: Csc, keep: Tensor) -> Csc:
    """Return an adjacency of some of the stored edges, in the same order."""
    before = torch.cat([torch.zeros(1, dtype=torch.int64), keep.cumsum(0)])
    weight = None if csc.weight is None else csc.weight[keep]
    return Csc(before[csc.indptr], csc.indices[keep], csc.num_src, weight, trusted=True)
