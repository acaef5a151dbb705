"""SamplerConfig: options of neighbour sampling; SeedSchedule: the seeds of each step, without state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphbraid import native
from graphbraid.arguments import MOST_COUNT, as_count, as_flag, check_choice, check_tensor, shown
from graphbraid.errors import ConfigError, DataError, did_you_mean
from graphbraid.graph.scans import first_below
from graphbraid.graph.types import MOST_RELATIONS, EdgeType, Types
from graphbraid.ops import rng

LAYOUTS = ("subgraph", "blocks")
MOST_HOPS = 64
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
    """Nodes of each type drawn per hop by their budget (:mod:`graphbraid.sampling.cpu`), in the order of
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
        for name in ("by_relation", "num_samples"):
            lists = getattr(self, name)
            if lists is None:
                continue
            if not isinstance(lists, tuple | list):
                raise ConfigError(f"{name} must be a list of lists with a number per hop; got {shown(lists)}")
            object.__setattr__(self, name, tuple(as_fanouts(numbers, name) for numbers in lists))
        if self.by_relation is not None:
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
    """Return the relation of three names, or of PyG's ``a__b__c``; ConfigError if there is none."""
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
    """Return one of the ``known`` names, also from PyG's enumeration; ConfigError if there is none."""
    name = getattr(given, "value", given)
    if name is None:
        return DIRECTIONAL
    check_choice(name, "subgraph_type", known)
    return str(name)


_ROUNDS = 4  # of the Feistel network, as in csrc/pipeline/schedule.h


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class SeedSchedule:
    """A division of the seeds of each epoch into steps.

    The shuffle is a keyed permutation, so the seeds of any step can be computed directly.
    """

    seeds: Tensor
    """Node ids, ``(num_seeds,)`` int64; a node may occur more than once."""
    batch_size: int
    """Number of seeds per step; the last step has those that remain."""
    shuffle: bool = False
    """Whether to permute the seeds anew in each epoch."""
    drop_last: bool = False
    """Whether to leave out a last step that is not full."""
    seed: int = 0
    """Random seed of the shuffle and of every draw."""
    part: int = 0
    """Index of the part of each step's seeds that this schedule gives, below ``num_parts``."""
    num_parts: int = 1
    """Number of contiguous parts of each step's seeds, for ranks that share batches. A seed keeps the random
    numbers that it has in the whole batch."""
    reach: int | None = None
    """With several parts: samplers sample the whole step and keep the nodes within ``reach`` edges of the
    part's seeds (:mod:`graphbraid.sampling.sample`). If None, they sample for these seeds alone, which gives
    the same draws in layout ``blocks``."""

    def __post_init__(self) -> None:
        seeds = check_tensor(self.seeds, "seeds", ndim=1)
        if seeds.dtype != torch.int64:
            raise DataError(f"seeds must be int64 node ids; got {seeds.dtype}")
        lowest = first_below(seeds, 0)
        if lowest >= 0:
            raise DataError(f"seeds must be node ids from 0; seeds[{lowest}] is {int(seeds[lowest])}")
        for name, least, most in (("batch_size", 1, MOST_COUNT), ("seed", 0, (1 << 63) - 1)):
            object.__setattr__(self, name, as_count(getattr(self, name), name, least=least, most=most))
        num_parts = as_count(self.num_parts, "num_parts", least=1, most=min(self.batch_size, MOST_PARTS))
        object.__setattr__(self, "num_parts", num_parts)
        object.__setattr__(self, "part", as_count(self.part, "part", most=num_parts - 1))
        for name in ("shuffle", "drop_last"):
            object.__setattr__(self, name, as_flag(getattr(self, name), name))
        if self.reach is not None:
            object.__setattr__(self, "reach", as_count(self.reach, "reach", least=1, most=MOST_REACH))
        if self.drop_last and 0 < self.seeds.numel() < self.batch_size:
            raise ConfigError(
                f"drop_last leaves no batch: {self.seeds.numel()} seeds are fewer than "
                f"batch_size={self.batch_size}"
            )

    @property
    def num_steps(self) -> int:
        """Number of steps in an epoch in which this part has seeds; a short last step may give it none."""
        num_steps = self._num_whole_steps
        if not num_steps:
            return 0
        begin, end = self._bounds_of(num_steps - 1)
        return num_steps - (begin == end)

    @property
    def _num_whole_steps(self) -> int:
        full, rest = divmod(self.seeds.numel(), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    @property
    def num_used(self) -> int:
        """Number of seeds that this part has in an epoch."""
        num_steps = self._num_whole_steps
        if not num_steps:
            return 0
        first, last = self._bounds_of(0), self._bounds_of(num_steps - 1)
        return (num_steps - 1) * (first[1] - first[0]) + last[1] - last[0]

    @property
    def most_seeds(self) -> int:
        """Largest number of seeds that this part has in a step."""
        begin, end = part_of(min(self.batch_size, self.seeds.numel()), self.part, self.num_parts)
        return end - begin

    @property
    def whole(self) -> SeedSchedule:
        """The schedule of all parts together."""
        return self if self.num_parts == 1 else dataclasses.replace(self, part=0, num_parts=1, reach=None)

    @property
    def sampled(self) -> SeedSchedule:
        """The schedule of the seeds that samplers draw for: with a reach, those of all parts."""
        return self if self.reach is None else self.whole

    def own_of(self, step: int) -> Tensor:
        """Return the positions of this part's seeds among those of the whole step, ``(num_own,)`` int64."""
        begin, end = self.bounds_of(step)
        return torch.arange(begin, end) - step * self.batch_size

    def bounds_of(self, step: int) -> tuple[int, int]:
        """Return begin and end of a step's seeds in the order of an epoch.

        Raises:
            ConfigError: there is no such step.
        """
        return self._bounds_of(as_count(step, "step", most=max(self.num_steps - 1, 0)))

    def _bounds_of(self, step: int) -> tuple[int, int]:
        first = step * self.batch_size
        count = min(self.batch_size, self.seeds.numel() - first)
        begin, end = part_of(count, self.part, self.num_parts)
        return first + begin, first + end

    def positions_of(self, epoch: int, step: int) -> Tensor:
        """Return the positions in ``seeds`` of a step's seeds, ``(batch,)`` int64.

        Raises:
            ConfigError: there is no such epoch or step.
        """
        epoch, bounds, num_seeds = as_epoch(epoch), self.bounds_of(step), self.seeds.numel()
        if not self.shuffle:
            return torch.arange(*bounds)
        key = rng.shuffle_key(self.seed, epoch)
        if (kernels := native.kernels()) is not None:
            found: Tensor = kernels.permuted(num_seeds, key, *bounds)
            return found
        return torch.from_numpy(permuted(np.arange(*bounds), num_seeds, key))

    def seeds_of(self, epoch: int, step: int) -> Tensor:
        """Return the seed nodes of a step, ``(batch,)`` int64."""
        return self.seeds[self.positions_of(epoch, step)]


def part_of(count: int, part: int, num_parts: int) -> tuple[int, int]:
    """Return begin and end of a contiguous part of ``count`` items; sizes differ by one at most.

    Twin of ``csrc/pipeline/schedule.h``.
    """
    return count * part // num_parts, count * (part + 1) // num_parts


MOST_PARTS = 1 << 16
"""Largest number of parts that steps are cut into."""
MOST_REACH = 1 << 10
"""Largest number of hops that a part keeps of a whole step."""
MOST_EPOCHS = 1 << 31
"""Largest number of epochs under one random seed; beyond it, keys of different steps would collide."""


def as_epoch(epoch: Any) -> int:
    """Return ``epoch``; ConfigError unless it is an integer in ``[0, MOST_EPOCHS)``."""
    return as_count(epoch, "epoch", most=MOST_EPOCHS - 1)


def permuted(positions: npt.NDArray[np.int64], n: int, key: int) -> npt.NDArray[np.int64]:
    """Return the images of ``positions`` under the keyed permutation of ``[0, n)``.

    The permutation is a Feistel network over the next even number of bits, applied again to every image
    outside ``[0, n)`` (cycle walking). Twin of ``csrc/pipeline/schedule.h``.
    """
    bits = (n - 1).bit_length() if n > 1 else 1
    half = np.uint64((bits + 1) // 2)
    values = positions.astype(np.uint64)
    outside = np.arange(len(values))
    while len(outside):
        values[outside] = _feistel(values[outside], half, key)
        outside = outside[values[outside] >= n]
    return values.astype(np.int64)


def _feistel(x: rng.U64, half: np.uint64, key: int) -> rng.U64:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = x >> half, x & mask
    for round_ in range(_ROUNDS):
        mixed = rng.mix_array(np.uint64(key) ^ rng.mix_array(right + np.uint64(round_ << 56))) & mask
        left, right = right, left ^ mixed
    return (left << half) | right
