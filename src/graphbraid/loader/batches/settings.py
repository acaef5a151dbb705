"""LoaderSettings: the options of a loader: its batches, their preparation and their device."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphbraid.arguments import MOST_THREADS, as_count, shown
from graphbraid.collective.plan.plan import Plan
from graphbraid.collective.run.stages import Accelerator, BatchDevice
from graphbraid.errors import ConfigError
from graphbraid.graph import Graph
from graphbraid.loader.batches.plans import read_plan
from graphbraid.loader.inputs import as_device, as_fanouts, as_seeds
from graphbraid.sampling.config import SamplerConfig
from graphbraid.sampling.schedule import SeedSchedule
from graphbraid.sampling.subgraph import DIRECTIONAL, EGO, SUBGRAPH_TYPES, as_subgraph_type


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LoaderSettings:
    """The options of a :class:`graphbraid.loader.BatchLoader`.

    Options that :class:`graphbraid.loader.NeighborLoader` also has are described there in more detail.

    Raises:
        ConfigError: an option is invalid.
    """

    num_neighbors: Sequence[int]
    """Fanout per hop, the hop nearest the seeds first; -1 takes all neighbours."""
    input_nodes: Tensor | Sequence[int] | str | None = None
    """Seeds: node ids, a bool mask or the name of a split. If None, all nodes."""
    batch_size: int = 1
    """Number of seeds per batch."""
    shuffle: bool = False
    """Whether to permute the seeds anew in each epoch."""
    drop_last: bool = False
    """Whether to leave out a last batch that is not full."""
    replace: bool = False
    """Whether to draw with replacement."""
    weighted: bool = False
    """Whether to draw in proportion to the graph's edge weights."""
    layout: str = "subgraph"
    """Layout of the batches: ``subgraph`` or ``blocks``."""
    subgraph_type: str = DIRECTIONAL
    """Edges of the batches: ``directional``, or in layout ``subgraph`` also ``bidirectional``, ``induced``
    or, of disjoint trees, ``ego``."""
    seed: int = 0
    """Random seed of the shuffle and of every draw."""
    num_workers: int = 0
    """Number of threads that prepare batches; 0 means one."""
    prefetch_factor: int | None = None
    """Number of batches prepared ahead per thread. If None, three."""
    return_edge_id: bool = True
    """Whether to keep ``e_id``, without which batches have no edge attributes. A weighted graph's are always
    kept."""
    src_degree: bool = False
    """Whether blocks carry the graph's in-degrees, for layers that normalise by them."""
    gather: bool = True
    """Whether to gather dense features while sampling rather than when ``batch.x`` is first read."""
    device: BatchDevice | str = "cpu"
    """Device of the batches: a torch device, or an accelerator whose operators are registered."""
    plan: Plan | str | os.PathLike[str] | None = None
    """Which side prepares each batch: a plan, its file or its name. If None, the CPU prepares all batches for
    a torch device, and an accelerator gets ``"auto"``."""
    hot_bytes: int | None = None
    """Bytes of device memory for graph, labels and features. If None, half of the free memory."""
    part: int = 0
    """Which contiguous part of each batch's seeds the batches have, of ``num_parts``."""
    num_parts: int = 1
    """Loaders that share each batch, as ranks do; ``batch_size`` is that of all of them together."""

    def __post_init__(self) -> None:
        self._set(
            num_neighbors=as_fanouts(self.num_neighbors),
            num_workers=max(as_count(self.num_workers, "num_workers", most=MOST_THREADS), 1),
            device=_as_batch_device(self.device),
            subgraph_type=as_subgraph_type(self.subgraph_type, (*SUBGRAPH_TYPES, EGO)),
        )
        if self.subgraph_type != DIRECTIONAL and self.layout != "subgraph":
            raise ConfigError(
                f"subgraph_type={self.subgraph_type!r} has edges that are no layer's own: it needs "
                f"layout='subgraph', not {self.layout!r}"
            )
        if self.prefetch_factor is not None:
            self._set(prefetch_factor=as_count(self.prefetch_factor, "prefetch_factor", least=1))
        if self.hot_bytes is not None:
            self._set(hot_bytes=as_count(self.hot_bytes, "hot_bytes", most=1 << 62))
        if self.plan is None and not isinstance(self.device, torch.device):
            self._set(plan="auto")
        self._set(plan=read_plan(self.plan) or self.plan)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def depth(self) -> int:
        """Largest number of batches in preparation or waiting to be used."""
        return self.num_workers * (self.prefetch_factor or 3)

    @property
    def refill(self) -> int | None:
        """Number of batches left at which threads that were ``depth`` ahead resume. If None, they never rest.

        A thread that prepares batches on one of the operators' cores delays all of them, as they wait for
        each other. If batches stay on the host, where the model is likely to train, threads therefore work
        in bursts, and most of the model's steps have every core.
        """
        device = self.batch_device
        is_host = isinstance(device, torch.device) and device.type == "cpu"
        return self.depth // 3 if is_host else None

    @property
    def batch_device(self) -> BatchDevice:
        """The device as an object; a name was converted on construction."""
        assert not isinstance(self.device, str), "read when it was given"
        return self.device

    def sampler(self, graph: Graph) -> SamplerConfig:
        """Return the options of the sampler.

        Raises:
            ConfigError: options exclude each other.
        """
        return SamplerConfig(
            fanouts=tuple(self.num_neighbors),
            replace=self.replace,
            layout=self.layout,
            weighted=self.weighted,
            return_edge_id=self.return_edge_id or graph.csc.weight is not None,
        )

    def schedule(self, graph: Graph, num_inputs: int | None = None) -> SeedSchedule:
        """Return the schedule of the seeds of each step, or of the positions of ``num_inputs`` inputs.

        Raises:
            ConfigError: seeds are outside the graph, or the options leave no batch.
            DataError: the split does not exist or is empty.
        """
        return SeedSchedule(
            seeds=as_seeds(self.input_nodes, graph) if num_inputs is None else torch.arange(num_inputs),
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            seed=self.seed,
            part=self.part,
            num_parts=self.num_parts,
        )


def _as_batch_device(device: Any) -> BatchDevice:
    if isinstance(device, str | torch.device):
        return as_device(device)
    if not isinstance(device, Accelerator):
        raise ConfigError(
            "device must be a torch device such as 'cpu' or 'cuda:0', or an accelerator, which names its "
            f"operators by `hardware` and `host`; got {shown(device)}"
        )
    return device
