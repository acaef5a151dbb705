"""TypedConfig: the options of sampling in a graph of several relations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphbraid.arguments import check_type, shown
from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.graph.types import EdgeType
from graphbraid.sampling.config import SamplerConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class TypedConfig:
    """Options of sampling by relation; all but the fanouts are the same for each."""

    relations: tuple[SamplerConfig, ...]
    """Options of each relation, in the graph's order, with as many hops each."""

    def __post_init__(self) -> None:
        if not self.relations:
            raise ConfigError("a graph without relations has nothing to draw from")
        for config in self.relations:
            check_type(
                config, "the options of a relation", SamplerConfig, "a SamplerConfig", error=ConfigError
            )
        hops = [len(config.fanouts) for config in self.relations]
        if len(set(hops)) > 1:
            raise ConfigError(
                f"every relation needs a fanout for each hop; got {min(hops)} to {max(hops)} hops"
            )

    @classmethod
    def of(
        cls,
        edge_types: Sequence[EdgeType],
        fanouts: Mapping[Any, Sequence[int]] | Sequence[int],
        *,
        default: Sequence[int] | None = None,
        **options: Any,
    ) -> TypedConfig:
        """Make options for the relations ``edge_types``.

        Args:
            edge_types: the relations, in the graph's order.
            fanouts: a fanout per hop for all relations, or such a list by relation: the three names, or PyG's
                ``"author__writes__paper"``.
            default: the list of relations that ``fanouts`` does not name. If None, it must name all.
            **options: further options of :class:`graphbraid.SamplerConfig`.

        Raises:
            ConfigError: a relation is unknown or has no fanouts, or an option is invalid.
        """
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
        configs = []
        for edge_type in edge_types:
            try:
                configs.append(SamplerConfig(fanouts=lists.get(edge_type, default), **options))  # type: ignore[arg-type]
            except ConfigError as error:
                raise ConfigError(f"{edge_type}: {error}") from error
        return cls(relations=tuple(configs))

    @property
    def fanouts(self) -> tuple[tuple[int, ...], ...]:
        """Fanouts by relation and hop."""
        return tuple(config.fanouts for config in self.relations)

    @property
    def num_hops(self) -> int:
        """Number of hops."""
        return len(self.relations[0].fanouts)

    @property
    def options(self) -> SamplerConfig:
        """The options that all relations share, with the fanouts of the first."""
        return self.relations[0]


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
