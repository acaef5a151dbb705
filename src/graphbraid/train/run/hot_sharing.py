"""HotSharing: the hot rows of ranks that train together, interleaved over devices that read each other."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Self, cast

import torch
from torch import Tensor

from graphbraid.collective.run.stages import Accelerator, SharesMemory
from graphbraid.distributed import Communicator
from graphbraid.distributed.peers import ReadingGroup, reading_group
from graphbraid.estimates.machine import COPIED_BYTES, copy_rate, least_known, link_rate
from graphbraid.features import TieredFeatures
from graphbraid.features.budgets import order_of
from graphbraid.features.scores.walks import out_degree
from graphbraid.features.tiers.device_sizing import ReadRates, split_over_peers
from graphbraid.features.tiers.tier_report import ReadShareCurve
from graphbraid.graph import SparseFeatures
from graphbraid.graph.scaled_features import kept_row_bytes
from graphbraid.machine.shared_tensors import handle_of, opened
from graphbraid.sampling.rows.device_cache import MAP_BYTES, DeviceCache
from graphbraid.sampling.rows.shared_cache import PeerPlace, SharedDeviceCache

if TYPE_CHECKING:
    from graphbraid.train.trainer import Trainer

_log = logging.getLogger(__name__)
_INSTEAD = "each keeps its own hot rows"


class HotSharing:
    """Hot rows that ranks divide among their devices during a run.

    The rows that all ranks together read most are on each device, the next ones interleaved over the devices
    of a machine that read each other, as far as that is expected to save time. Where none can be read, each
    device keeps what it would keep alone. As a context manager it frees the rows, together with the other
    ranks unless an error ends the run.
    """

    def __init__(self, trainer: Trainer, comm: Communicator) -> None:
        self._trainer, self._comm = trainer, comm
        self._group: ReadingGroup | None = None  # of ranks, if one of them has hot rows
        self._shared: SharedDeviceCache | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        group, shared, self._group, self._shared = self._group, self._shared, None, None
        if shared is not None:
            (shared.close if error is None else shared.abandon)()
        elif group is not None and error is None:
            self._pass(group)

    def open(self) -> None:
        """Share the rows, if any rank has some; all ranks that train together call it together."""
        comm, rows = self._comm, self._trainer.runner.rows
        tiers = rows if isinstance(rows, TieredFeatures) and rows.hot is not None else None
        if not any(comm.gather(tiers is not None)):
            return
        device, kind, why_apart = self._device(tiers)
        group = reading_group(comm, device, kind, _INSTEAD, why_apart=why_apart)
        rates = _read_rates(group, device, self._trainer.accelerator)
        score = self._score_of_all(tiers)
        hot = None if tiers is None else _alone(tiers)
        budgets = cast("list[int]", group.gather(0 if hot is None else hot.device_bytes(self._row_bytes)))
        self._group = group
        if tiers is None or hot is None or device is None or len(group.ranks) == 1:
            self._keep_apart(tiers, group, f"every rank keeps its own: {group.why_not}")
            return
        order = order_of(score)
        capacity = self._capacity(order, min(budgets), len(group.ranks))
        split = split_over_peers(ReadShareCurve(score), len(order), capacity, len(group.ranks), rates)
        if not split.shared:
            self._keep_apart(tiers, group, f"every rank keeps its own: {split.reason}")
            return
        place = PeerPlace(group.place, len(group.ranks), device, group.exchange)
        ids = order[: split.own + split.shared]
        shared = self._shared = SharedDeviceCache(hot, ids, split.own, place)
        shared.reason = split.reason
        tiers.take_hot(shared, score)
        shared.table_on(device)  # so that memory that is not there is missed before the first step
        _log.info("%s", split.reason)

    def _keep_apart(self, tiers: TieredFeatures | None, group: ReadingGroup, reason: str) -> None:
        """Keep this rank's own rows; other groups may share theirs meanwhile."""
        if tiers is not None:
            tiers.hot = hot = _alone(tiers)
            hot.reason = reason
            _log.info("%s", reason)
        self._pass(group)

    def _pass(self, group: ReadingGroup) -> None:
        """Take part in the two exchanges of ranks that share rows, or let go of them."""
        for _ in range(2):
            group.exchange(b"")

    def _device(self, tiers: TieredFeatures | None) -> tuple[torch.device | None, str, str]:
        """Return the device of this rank's rows, its kind, and the reason if no other rank may read it."""
        accelerator, device = self._trainer.accelerator, self._trainer.runner.device
        if tiers is None:
            return None, device.type, "it keeps no rows on a device"
        if accelerator is None:
            device = torch.empty(0, device=device).device  # resolves "cuda" to the current device
            return device, device.type, "" if device.type != "cpu" else "its batches stay on the host"
        if not isinstance(accelerator, SharesMemory):
            return None, accelerator.hardware, "its accelerator does not say that others read its memory"
        return accelerator.memory_device, accelerator.hardware, ""

    def _score_of_all(self, tiers: TieredFeatures | None) -> Tensor:
        """Return the sums of the scores by which the ranks fill their tiers, the same bits on each."""
        csc = self._trainer.graph.csc
        score = torch.zeros(csc.num_dst, dtype=torch.float64)
        if tiers is not None:
            score += out_degree(csc) if tiers.score is None else tiers.score.clamp_min(0)
        return self._comm.all_reduce(score).wait()

    @property
    def _row_bytes(self) -> int:
        x = self._trainer.graph.x
        assert not isinstance(x, SparseFeatures | None), "only dense rows are hot"
        return max(kept_row_bytes(x), 1)

    def _capacity(self, order: Tensor, budget: int, num_peers: int) -> int:
        """Return how many rows a device keeps in ``budget`` bytes beside the map, if one is needed."""
        most = min(budget // self._row_bytes * num_peers, len(order))
        if not torch.equal(order[:most], torch.arange(most)):
            budget -= MAP_BYTES * len(order)
        return max(budget, 0) // self._row_bytes


def _alone(tiers: TieredFeatures) -> DeviceCache:
    """Return the rows that a rank keeps without others, also after it has shared some."""
    hot = tiers.hot
    assert hot is not None
    return hot.alone if isinstance(hot, SharedDeviceCache) else hot


def _read_rates(
    group: ReadingGroup, device: torch.device | None, accelerator: Accelerator | None
) -> ReadRates:
    """Return the lowest rates of a group, the same on all of its ranks; all of the job call it together.

    An accelerator says its own; CUDA devices are measured by a few copies, all at the same time. Nothing is
    measured here if ``device`` is None.

    Raises:
        RankError: a rank was lost.
    """
    peer, host = None, None
    measures = device is not None and device.type == "cuda" and len(group.ranks) > 1
    rows = torch.ones(COPIED_BYTES, dtype=torch.uint8, device=device) if measures else None
    handles = group.exchange(b"" if rows is None else handle_of(rows))
    if rows is not None and device is not None:
        source = opened(handles[(group.place + 1) % len(handles)])
        peer, host = copy_rate(source, device), link_rate(device)
        del source
    elif isinstance(accelerator, SharesMemory):
        peer, host = accelerator.peer_bytes_per_second, accelerator.link_bytes_per_second
    given = cast("list[list[float | None]]", group.gather([peer, host]))  # all have read by then
    peers, hosts = ([rates[place] for rates in given] for place in (0, 1))
    return ReadRates(peer=least_known(peers), host=least_known(hosts))
