"""SamplerConfig: the options of neighbour sampling, in a graph of one relation or of several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from graphbraid.arguments import MOST_COUNT, as_count, as_flag, check_choice, shown
from graphbraid.errors import ConfigError, DataError, did_you_mean
from graphbraid.graph.types import MOST_RELATIONS, EdgeType, Types

LAYOUTS = ("subgraph", "blocks")
MOST_HOPS = 64
"""Largest number of hops of a mini-batch."""
MOST_DRAWS = 1 << 20
"""Most draws with replacement for one node; without replacement the node's degree is the bound."""
DIRECTIONAL = "directional"
BIDIRECTIONAL = "bidirectional"
INDUCED = "induced"
SUBGRAPH_TYPES = (DIRECTIONAL, BIDIRECTIONAL, INDUCED)
MOST_READ = 50
"""Most in-edges of a node and relation that budget sampling reads, as in PyG."""
EGO = "ego"
"""Induced edges within each disjoint tree, tree by tree, for :class:`graphbraid.loader.ShaDowKHopSampler`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerConfig:
    """Options of neighbour sampling; with the graph and a key they determine a mini-batch."""

    fanouts: tuple[int, ...]
    """In-neighbours drawn per node at each hop, the hop nearest the seeds first; -1 takes all. In layout
    ``subgraph`` it may be empty."""
    replace: bool = False
    """Whether to draw with replacement; a fanout above a node's degree then repeats neighbours."""
    layout: str = "subgraph"
    """Layout of a mini-batch. With ``subgraph``, each hop draws only for the nodes that the previous hop
    found (as in PyG); with ``blocks``, each hop draws anew for every node its layer computes (GraphSAGE,
    DGL)."""
    weighted: bool = False
    """Whether to draw in proportion to the graph's edge weights; a neighbour of weight 0 is never drawn."""
    return_edge_id: bool = False
    """Whether to keep the position of each sampled edge in the graph."""
    by_relation: tuple[tuple[int, ...], ...] | None = None
    """Fanouts per hop of each relation, in the order of the graph's relations; ``fanouts`` are then the first
    relation's. If None, the graph has one relation."""

    num_samples: tuple[tuple[int, ...], ...] | None = None
    """Nodes of each type drawn per hop by their budget (:mod:`graphbraid.sampling.budget`), in the order of
    the graph's types. If None, neighbours are drawn by fanouts."""

    @classmethod
    def for_budget(
        cls, node_types: Sequence[str], edge_types: Sequence[EdgeType], num_samples: Any, **options: Any
    ) -> Self:
        """Make options of budget sampling.

        Args:
            node_types: the node types, in the graph's order.
            edge_types: the relations, in the graph's order.
            num_samples: numbers of nodes per hop for all types, or a dict of such lists by type.
            **options: the other options of this class.

        Raises:
            ConfigError: a type is unknown or has no numbers, or a number is out of bounds.
        """
        by_type = num_samples if isinstance(num_samples, Mapping) else dict.fromkeys(node_types, num_samples)
        if unknown := [one for one in by_type if one not in node_types]:
            hint = did_you_mean(str(unknown[0]), node_types)
            raise ConfigError(f"num_samples names an unknown node type {shown(unknown[0])}.{hint}")
        if missing := [one for one in node_types if one not in by_type]:
            raise ConfigError(
                f"num_samples has no numbers for the node type {missing[0]!r}; name every type, 0 for none"
            )
        counts = tuple(as_fanouts(by_type[one], "num_samples") for one in node_types)
        if len({len(hops) for hops in counts}) > 1 or any(count < 0 for hops in counts for count in hops):
            raise ConfigError(f"num_samples must be whole numbers, as many for each type; got {num_samples}")
        if len(node_types) + len(edge_types) > MOST_RELATIONS:
            raise ConfigError(f"budget sampling takes up to {MOST_RELATIONS} node types and relations")
        made = cls.for_relations(edge_types, [MOST_READ] * len(counts[0]), **options)
        return replace(made, num_samples=counts)

    @classmethod
    def for_relations(
        cls,
        edge_types: Sequence[EdgeType],
        fanouts: Any,
        *,
        default: Sequence[int] | None = None,
        **options: Any,
    ) -> Self:
        """Make options for the relations ``edge_types``.

        Args:
            edge_types: the relations, in the graph's order.
            fanouts: a fanout per hop for all relations, or a dict of such lists by relation: three names or
                PyG's ``"author__writes__paper"``. Also PyG's ``NumNeighbors`` of either.
            default: fanouts of relations that ``fanouts`` does not name. If None, it must name all.
            **options: the other options of this class.

        Raises:
            ConfigError: a relation is unknown or has no fanouts, or an option is invalid.
        """
        if not edge_types:
            raise ConfigError("a graph without relations has nothing to draw from")
        if hasattr(fanouts, "get_values"):
            fanouts, default = fanouts.values, getattr(fanouts, "default", None)
        if not isinstance(fanouts, Mapping):
            lists: dict[EdgeType, Sequence[int]] = dict.fromkeys(edge_types, fanouts)
        else:
            lists = {as_edge_type(key, edge_types): value for key, value in fanouts.items()}
        missing = [edge_type for edge_type in edge_types if edge_type not in lists]
        if missing and default is None:
            raise ConfigError(
                f"num_neighbors has no fanouts for the relation {missing[0]}; name every relation, 0 for "
                "none, or give the others a default: NumNeighbors(values, default=[...])"
            )
        found = []
        for edge_type in edge_types:
            try:
                found.append(cls(fanouts=lists.get(edge_type, default), **options).fanouts)  # type: ignore[arg-type]
            except ConfigError as error:
                raise ConfigError(f"{edge_type}: {error}") from error
        return cls(fanouts=found[0], by_relation=tuple(found), **options)

    @property
    def num_neighbors(self) -> list[int]:
        """The fanouts, under PyG's name."""
        return list(self.fanouts)

    @property
    def all_fanouts(self) -> tuple[tuple[int, ...], ...]:
        """Fanouts by relation and hop; a graph without types has one relation."""
        return (self.fanouts,) if self.by_relation is None else self.by_relation

    def type_of_seeds(self, types: Types, seed_type: str | None) -> int | None:
        """Return the number of a graph's node type; None if seeds are of any type.

        Raises:
            DataError: there is no such type, or the fanouts are not those of the graph's relations.
        """
        if len(self.all_fanouts) != len(types.edges):
            raise DataError(f"there are {len(types.edges)} relations and fanouts for {len(self.all_fanouts)}")
        if seed_type is None:
            return None
        if seed_type not in types.nodes:
            raise DataError(f"there is no node type {seed_type!r} to draw seeds of")
        return list(types.nodes).index(seed_type)

    def __post_init__(self) -> None:
        for name in ("replace", "weighted", "return_edge_id"):
            object.__setattr__(self, name, as_flag(getattr(self, name), name))
        object.__setattr__(self, "fanouts", as_fanouts(self.fanouts))
        check_choice(self.layout, "layout", LAYOUTS)
        if self.layout == "blocks" and not self.fanouts:
            raise ConfigError(
                "layout='blocks' has a block per hop: fanouts must name at least one hop, such as (15, 10, 5)"
            )
        if self.by_relation is not None:
            object.__setattr__(self, "by_relation", tuple(map(as_fanouts, self.by_relation)))
            hops = [len(fanouts) for fanouts in (self.fanouts, *self.all_fanouts)]
            if len(set(hops)) > 1:
                raise ConfigError(
                    f"every relation needs a fanout for each hop; got {min(hops)} to {max(hops)} hops"
                )
        for fanouts in self.all_fanouts:
            if self.replace and -1 in fanouts:
                raise ConfigError(
                    "replace=True needs a fanout >= 0 at every hop; -1 takes each neighbour once"
                )
            if self.replace and max(fanouts, default=0) > MOST_DRAWS:
                raise ConfigError(
                    f"replace=True draws as often as the fanout says, at most {MOST_DRAWS} times; "
                    f"got fanouts {list(fanouts)}"
                )


def as_edge_type(key: Any, edge_types: Sequence[EdgeType]) -> EdgeType:
    """Return the relation that ``key`` names: three names, or PyG's string of them joined by two underscores.

    Raises:
        ConfigError: there is no such relation.
    """
    if isinstance(key, str):
        key = tuple(key.split("__"))
    if isinstance(key, tuple | list):
        for edge_type in edge_types:
            if tuple(key) in (edge_type, (edge_type[0], edge_type[2])):
                return edge_type
    texts = ["__".join(edge_type) for edge_type in edge_types]
    named = "__".join(map(str, key)) if isinstance(key, tuple | list) else str(key)
    raise ConfigError(
        f"num_neighbors names the relation {shown(key)}, which the graph does not have; it has "
        f"{', '.join(texts)}.{did_you_mean(named, texts)}"
    )


def is_by_relation(fanouts: Any) -> bool:
    """Return whether fanouts are given by relation, in a dict or PyG's ``NumNeighbors`` of one."""
    return isinstance(_values_of(fanouts), Mapping)


def as_fanouts(fanouts: Any, name: str = "fanouts") -> tuple[int, ...]:
    """Return the fanouts per hop from a list, a NumPy array, a tensor or PyG's ``NumNeighbors``.

    Raises:
        ConfigError: ``fanouts`` are none of these, or a number is no fanout. The message contains ``name``.
    """
    values = _values_of(fanouts)
    if isinstance(values, Mapping):
        raise ConfigError(f"{name} must be a list with a fanout per hop; a dict is for heterogeneous graphs")
    is_list = isinstance(values, Iterable) and not isinstance(values, str | bytes)
    if not is_list or getattr(values, "ndim", 1) == 0:
        raise ConfigError(
            f"{name} must be a list with a fanout per hop, such as [15, 10, 5]; got {shown(fanouts)}"
        )
    hops = tuple(values)
    if len(hops) > MOST_HOPS:
        raise ConfigError(f"{name} must have a fanout per hop, at most {MOST_HOPS}; got {len(hops)}")
    try:
        return tuple(as_count(f, f"fanouts[{hop}]", least=-1, most=MOST_COUNT) for hop, f in enumerate(hops))
    except ConfigError as error:
        raise ConfigError(f"a fanout must be an integer >= 0, or -1 for all; {error}") from None


def _values_of(fanouts: Any) -> Any:
    return fanouts.values if hasattr(fanouts, "get_values") else fanouts  # PyG's NumNeighbors


def as_subgraph_type(given: Any, known: Sequence[str] = SUBGRAPH_TYPES) -> str:
    """Return the name of a subgraph type, one of ``known``; ``given`` may be of PyG's enumeration.

    Raises:
        ConfigError: there is none of this name.
    """
    name = getattr(given, "value", given)
    if name is None:
        return DIRECTIONAL
    check_choice(name, "subgraph_type", known)
    return str(name)
