"""LoaderOptions: the options of the loaders with PyG's arguments, each described once and checked."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.data import Sampler

from graphbraid.arguments import as_count, as_flag, check_choice, shown
from graphbraid.errors import ConfigError, did_you_mean
from graphbraid.loader.batch_loader import LoaderSettings
from graphbraid.sampling.rows.by_id import FeatureSource
from graphbraid.sampling.sample import NeighborLists

STRATEGIES = ("uniform", "last")
"""Values of ``temporal_strategy``."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LoaderOptions(LoaderSettings):
    """The options of the loaders that have PyG's arguments; each loader takes some of them.

    Raises:
        ConfigError: an option is invalid, or excludes another.
    """

    seed: int | None = None  # type: ignore[assignment]
    """Random seed of the shuffle and of every draw. If None, one is drawn from torch's generator when the
    loader is made, so that ``torch.manual_seed`` governs it and two loaders differ; see ``loader.seed``."""
    disjoint: bool = False
    """Whether each seed, or each end of a link, gets a tree of its own, which shares no node with another's.
    ``batch.batch`` then has the position of each node's seed or link. Always so with ``time_attr``."""
    temporal_strategy: str = "uniform"
    """Which of the neighbours up to a seed's time are drawn: ``uniform``, any of them, or ``last``, the
    latest."""
    time_attr: str | None = None
    """Name of the attribute of ``data`` with the times of its nodes or edges. The tree of a seed or link then
    has no later node or edge, and negatives are no later than their link. Types and relations without times
    count as early enough. If None, times are not used."""
    weight_attr: str | None = None
    """Name of the edge weights to draw by: one of PyG's edge attributes, or ``"edge_weight"`` for the weights
    of a Graph. If None, all neighbours are equally likely."""
    input_time: Tensor | None = None
    """``(num_seeds,)`` times of the seeds, for ``time_attr``. If None, those of the nodes."""
    edge_label_index: Any = None
    """``(2, num_links)`` sources and destinations of the links. If None, all edges of the graph, in the order
    of its list. In a graph with types, the relation whose edges are the links, or a pair of a relation and
    such ids within its two types."""
    edge_label: Tensor | None = None
    """``(num_links, ...)`` labels of the links. With negatives of mode ``binary``, 0 is the label of a
    negative, so labels that begin at 0 are raised by 1."""
    edge_label_time: Tensor | None = None
    """``(num_links,)`` times of the links, given with ``time_attr``."""
    neg_sampling: Any = None
    """Negatives: ``"binary"``, ``"triplet"``, a dict of options, or a
    :class:`graphbraid.sampling.NegativeSampling` (or PyG's). If None, none are drawn."""
    neg_sampling_ratio: float | None = None
    """Number of negatives of mode ``binary`` per link, in place of ``neg_sampling``."""
    exclude_seed_edges: bool | str = False
    """Whether neighbours are drawn without the batch's own links. True leaves out all edges from a link's
    source to its destination, in a graph with types those of the link's relation. ``"reverse"`` also leaves
    out the edges back, of any relation."""
    transform: Callable[[Any], Any] | None = None
    """Function called with each batch; the loader yields its result."""
    input_id: Tensor | None = None
    """``(num_inputs,)`` values that batches have as ``input_id``. If None, positions of the inputs."""
    sampler: Sampler[int] | Iterable[int] | None = None
    """Iterable of an epoch's positions in the seeds or links, in place of ``shuffle``, such as PyG's
    ``ImbalancedSampler``."""
    batch_sampler: Sampler[list[int]] | Iterable[list[int]] | None = None
    """Iterable of lists of such positions, in place of ``batch_size``, ``shuffle`` and ``drop_last``."""
    generator: torch.Generator | None = None
    """Generator that the seed is drawn from in place of torch's default one."""
    pin_memory: bool = False
    """Whether to yield batches in page-locked memory, if there is an accelerator."""
    tiers: FeatureSource | str | None = None
    """Source of the feature rows, such as :class:`graphbraid.features.TieredFeatures` of this graph. Rows are
    gathered from it ahead of their use; batches keep their bits. Hot rows stay on ``device`` and are not
    copied, by plan ``"cpu"`` if none is given. ``"auto"`` sizes tiers: the host's by free memory, if a
    store's features do not all fit there, and the device's by ``hot_bytes``; ``tiers_reason`` says why. If
    None, rows come from ``data``. For links, ``"auto"`` keeps no rows on a device."""
    epochs: int | None = None
    """Epochs that will be iterated, for ``tiers="auto"``. Look-ahead then takes at most 2 % of the time that
    this loader's threads need to sample them. If None, nothing is looked ahead."""
    topology: NeighborLists | None = None
    """Source of the adjacency lists, such as :class:`graphbraid.features.TieredTopology` of this graph. If
    None, ``data``."""

    def __post_init__(self) -> None:
        is_ordered = self.sampler is None and self.batch_sampler is None
        if self.plan is not None and not is_ordered:
            raise ConfigError("a plan is made for the loader's own order: leave out plan= or the sampler")
        if self.transform is not None and not callable(self.transform):
            raise ConfigError(f"transform must be a function of a batch or None; got {shown(self.transform)}")
        _check_order(self.sampler, "sampler")
        _check_order(self.batch_sampler, "batch_sampler")
        _check_lists(self.topology)
        self._set(
            shuffle=self.shuffle is not None and as_flag(self.shuffle, "shuffle"),
            drop_last=as_flag(self.drop_last, "drop_last"),
            gather=as_flag(self.gather, "gather"),
            disjoint=as_flag(self.disjoint, "disjoint"),
            weighted=self.weight_attr is not None,
            temporal_strategy=_as_strategy(self.temporal_strategy),
        )
        if self.batch_size is not None:
            self._set(batch_size=as_count(self.batch_size, "batch_size", least=1))
        seed = self.seed
        if seed is None:  # in [0, 2**63), as torch.utils.data draws it
            seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator))
        self._set(seed=as_count(seed, "seed", most=(1 << 63) - 1))
        if self.time_attr is not None and not isinstance(self.time_attr, str):
            raise ConfigError(f"time_attr must be the name of an attribute; got {shown(self.time_attr)}")
        if self.time_attr is None and self.input_time is not None:
            raise ConfigError("input_time needs time_attr, the name of the times of nodes or edges")
        LoaderSettings.__post_init__(self)

    @property
    def drawn_seed(self) -> int:
        """The given seed, or the drawn one."""
        assert self.seed is not None, "drawn when it was not given"
        return self.seed

    @property
    def is_ordered(self) -> bool:
        """Whether the loader decides the order of its inputs; False if a sampler does."""
        return self.sampler is None and self.batch_sampler is None

    def of_seeds(self, seeds: Any) -> Self:
        """Return the options of batches of these seeds, ids or a pair of a type and ids.

        A sampler of positions decides the batches, so ``batch_size`` and ``drop_last`` then have no effect.
        """
        return dataclasses.replace(
            self,
            input_nodes=seeds,
            batch_size=1 if self.batch_sampler is not None else self.batch_size,
            drop_last=self.drop_last and self.is_ordered,
        )


ONE_TYPE_ONLY: dict[str, tuple[Any, str]] = {
    "plan": (None, "plans are made for graphs of one node type"),
    "tiers": (None, "tiers hold the features of one node type"),
    "epochs": (None, "they say how far ahead tiers look"),
    "topology": (None, "lists outside memory are those of one relation"),
    "hot_bytes": (None, "batches are prepared on the CPU"),
    "src_degree": (False, "degrees are those of one relation"),
}
"""Options that a loader of a graph with types refuses: the allowed value, and the reason."""


def refuse_one_type_only(options: LoaderOptions) -> None:
    """Raise ConfigError for the first option that needs one node type and one relation, and why."""
    if not isinstance(options.batch_device, torch.device):
        raise ConfigError("a loader of a graph with types takes torch devices only")
    for name, (harmless, reason) in ONE_TYPE_ONLY.items():
        value = getattr(options, name)
        if value is not harmless and value not in (harmless, None):
            raise ConfigError(f"a loader of a graph with types takes no {name}={shown(value)}: {reason}")


_ALIKE: dict[str, tuple[tuple[Any, ...], str]] = {
    "directed": ((True, None), "all edges between the nodes that were drawn, now subgraph_type='induced'"),
    "neighbor_sampler": ((None,), "a sampler of the caller's"),
    "transform_sampler_output": ((None,), "a hook on PyG's SamplerOutput"),
    "custom_cls": ((None,), "a batch class of the caller's"),
}
"""PyG's options that would change the batches: allowed values, and the effect of others."""
REFUSED = _ALIKE | {"node_sampler": ((None,), "a sampler of the caller's")}
"""Options of a NeighborLoader that are refused in this way."""
LINK_REFUSED = _ALIKE | {"link_sampler": ((None,), "a sampler of the caller's")}
"""Options of a LinkNeighborLoader that are refused in this way."""

MEANINGLESS = {
    "filter_per_worker": (None, "rows are cut where they are read"),
    "in_order": (True, "batches come in their order whatever the number of threads"),
    "is_sorted": (False, "edges are sorted once, and not again where they are"),
    "multiprocessing_context": (None, "there are no processes"),
    "persistent_workers": (False, "threads live as long as the loader"),
    "pin_memory_device": ("", "there is one kind of accelerator"),
    "timeout": (0, "a thread that fails raises at once, so nothing has to be waited out"),
    "worker_init_fn": (None, "no Python runs in the threads"),
}
"""Options that cannot change a batch: their default, and why they have no effect."""

REPLACED = ("dataset", "collate_fn")
"""Arguments of torch's constructor that the loader makes itself; PyG's loader drops them too."""


def check_others(
    others: Mapping[str, Any],
    known: Iterable[str],
    refused: Mapping[str, tuple[tuple[Any, ...], str]],
    loader: str,
) -> dict[str, Any]:
    """Return the options that are not the loader's own, all as given or by default.

    ConfigError for one that is not ``known``, or has a value that ``refused`` does not allow, names the
    option, what it would request, and the nearest known one.
    """
    for name, value in others.items():
        if name in refused:
            harmless, meaning = refused[name]
            plain = getattr(value, "value", value)  # PyG's enumerations
            if not any(plain is one or (isinstance(plain, str) and plain == one) for one in harmless):
                raise ConfigError(
                    f"{loader} does not support {name}={value!r} ({meaning}); use PyG's loader for that"
                )
        elif name not in MEANINGLESS and name not in REPLACED:
            names = (*known, *MEANINGLESS, *refused)
            raise ConfigError(f"{loader} takes no argument {name!r}.{did_you_mean(name, names)}")
    kept = {name: values[0] for name, (values, _) in refused.items()}
    kept |= {name: default for name, (default, _) in MEANINGLESS.items()}
    return kept | {name: value for name, value in others.items() if name not in REPLACED}


def _check_order(value: Any, name: str) -> None:
    """Raise ConfigError unless an order can be iterated; None stands for the loader's own."""
    if value is not None and (not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0):
        raise ConfigError(f"{name} must be an iterable of positions of the inputs; got {shown(value)}")


def _check_lists(topology: Any) -> None:
    if topology is not None and inspect.getattr_static(topology, "native", None) is None:
        raise ConfigError(
            "topology must be a source of adjacency lists, such as TieredTopology, or None; got "
            f"{shown(topology)}"
        )


def _as_strategy(asked: Any) -> str:
    strategy: str = getattr(asked, "value", "uniform" if asked is None else asked)  # PyG's enumerations
    check_choice(strategy, "temporal_strategy", STRATEGIES)
    return strategy
