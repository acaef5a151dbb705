"""Plain PyTorch twin of the kernel that sums peers' rows, part of :mod:`graphbraid.ops.reference`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphbraid.ops.reference.epilogue import sum_dtype

if TYPE_CHECKING:
    from graphbraid.ops.peers.peer_table import PeerTable
    from graphbraid.ops.peers.pipeline_plan import PipelinePlan


def pipelined_sum(plan: PipelinePlan, table: PeerTable, addend: Tensor | None, out: Tensor) -> None:
    """Twin of ``triton/aggregate/pipelined_sum.py``: sums of partitions, then of each row, in their order."""
    dtype = sum_dtype(table.dtype)
    messages = _messages(plan, table, dtype)
    partition = _owners_of(plan.indptr)
    sums = messages.new_zeros(plan.target.numel(), table.width).index_add_(0, partition, messages)
    total = messages.new_zeros(out.shape)
    alone = plan.target >= 0
    total[plan.target[alone]] = sums[alone]
    partial = sums.new_empty(int((~alone).sum()), table.width)
    partial[-1 - plan.target[~alone]] = sums[~alone]
    total.index_add_(0, plan.rest[_owners_of(plan.rest_first)], partial)
    if plan.dst_scale is not None:
        total *= plan.dst_scale.to(dtype).unsqueeze(1)
    if addend is not None:
        total[: addend.shape[0]] += addend.to(dtype)
    out.copy_(total)


def _messages(plan: PipelinePlan, table: PeerTable, dtype: torch.dtype) -> Tensor:
    """Return each edge's row, by its factor."""
    num_local = plan.indices.numel() - plan.owner.numel()
    owner = torch.cat([plan.owner.new_full((num_local,), table.rank), plan.owner])
    messages = torch.empty(owner.numel(), table.width, dtype=dtype, device=table.device)
    for rank, part in enumerate(table.parts):
        chosen = (owner == rank).nonzero().squeeze(1)
        messages[chosen] = part[plan.indices[chosen].long().to(part.device)].to(messages)
    if plan.factor is not None:
        messages *= plan.factor.to(dtype).unsqueeze(1)
    return messages


def _owners_of(indptr: Tensor) -> Tensor:
    return torch.arange(indptr.numel() - 1, device=indptr.device).repeat_interleave(indptr.diff())
