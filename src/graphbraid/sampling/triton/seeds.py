"""The seeds of a step, in Triton: their keyed permutation and their entries in the table of local ids."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from graphbraid.sampling.triton.relabel import Table, stamped
from graphbraid.sampling.triton.rng import mix, signed, unsigned

_BLOCK = 128
_ROUNDS = tl.constexpr(4)


@triton.jit
def permuted(position, live, n, key, half_bits):
    """Return images under the keyed permutation of [0, n); twin of ``sampling.schedule.permuted``."""
    half = unsigned(half_bits)
    low = (unsigned(1) << half) - 1
    x = position.to(tl.uint64)
    outside = live
    while tl.max(outside.to(tl.int32), axis=0) > 0:
        left = x >> half
        right = x & low
        for i in tl.static_range(_ROUNDS):
            mixed = mix(unsigned(key) ^ mix(right + (i << 56))) & low
            image = left ^ mixed
            left = right
            right = image
        x = tl.where(outside, (left << half) | right, x)
        outside = outside & (x >= unsigned(n))
    return x.to(tl.int64)


@triton.jit(do_not_specialize=["first", "count", "num_seeds", "key", "half_bits", "era"])
def seeds_kernel(
    seeds,  # (num_seeds,) int64 node ids
    input_id,  # (count,) int64, written: positions in seeds
    n_id,  # (at least count,) int64, written
    node_bounds,  # int64; see counts.Counts: [1] is written
    table,  # (num_nodes,) int64; see relabel.Table
    first,
    count,
    num_seeds,
    key,
    half_bits,
    era,
    SHUFFLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the seeds of one step and enter them in the table; of repeated seeds it keeps the first copy."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = i < count
    position = first + i
    if SHUFFLE:
        position = permuted(position, live, num_seeds, key, half_bits)
    node = tl.load(seeds + position, mask=live, other=0)
    tl.store(input_id + i, position, mask=live)
    tl.store(n_id + i, node, mask=live)
    tl.atomic_min(table + node, stamped(era, i), mask=live, sem="relaxed")
    if tl.program_id(0) == 0:
        tl.store(node_bounds + 1, tl.cast(count, tl.int64))


def place_seeds(
    seeds: Tensor,
    table: Table,
    node_bounds: Tensor,
    input_id: Tensor,
    n_id: Tensor,
    *,
    first: int,
    shuffle_key: int | None,
) -> None:
    """Write a step's seeds and enter them in the table of local ids.

    Args:
        seeds: ``(num_seeds,)`` int64: all seeds of the schedule.
        table: table of local ids, whose current era is this batch's.
        node_bounds: ``(hops + 2,)`` int64; entry 1 is written.
        input_id: ``(count,)`` int64, written: positions in ``seeds``.
        n_id: ``(count,)`` int64, written: node ids.
        first: position of the step's first seed before the shuffle.
        shuffle_key: key of the epoch's permutation. If None, the seeds keep their order.
    """
    count, num_seeds = input_id.numel(), seeds.numel()
    bits = max((num_seeds - 1).bit_length(), 1)
    seeds_kernel[(triton.cdiv(count, _BLOCK),)](
        seeds,
        input_id,
        n_id,
        node_bounds,
        table.slots,
        first,
        count,
        num_seeds,
        0 if shuffle_key is None else signed(shuffle_key),
        (bits + 1) // 2,
        table.era,
        SHUFFLE=shuffle_key is not None,
        BLOCK=_BLOCK,
        num_warps=4,
    )
