"""Kernels that write what functions of ``sampling/triton`` give."""

import triton
import triton.language as tl

from graphbraid.sampling.triton.draw import first_after
from graphbraid.sampling.triton.relabel import permuted
from graphbraid.sampling.triton.rng import bounded, draw, log_of_draw, row_key, signed

BLOCK = 1 << 15


@triton.jit(do_not_specialize=["key", "hop"])
def draws_kernel(nodes, out, draws_per_node, count, key, hop, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    node = tl.load(nodes + i // draws_per_node, mask=i < count, other=0)
    bits = draw(row_key(key, hop, node), i % draws_per_node)
    tl.store(out + i, bits.to(tl.int64), mask=i < count)


@triton.jit(do_not_specialize=["bound"])
def bounded_kernel(bits, out, bound, count, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(
        out + i, bounded(tl.load(bits + i, mask=i < count, other=0).to(tl.uint64), bound), mask=i < count
    )


@triton.jit
def logarithm_kernel(bits, out, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    draws = tl.load(bits + i, mask=i < count, other=0).to(tl.uint64)
    tl.store(out + i, log_of_draw(draws), mask=i < count)


@triton.jit(do_not_specialize=["begin", "count", "n", "key", "half_bits"])
def permute_kernel(out, begin, count, n, key, half_bits, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK).to(tl.int64)
    tl.store(out + i, permuted(begin + i, i < count, n, key, half_bits), mask=i < count)


@triton.jit(do_not_specialize=["last_edge"])
def first_after_kernel(arrival, out, last, last_edge, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK).to(tl.int64)
    best, edge = first_after(tl.load(arrival + lane), lane, tl.load(last), last_edge)
    tl.store(out, best)
    tl.store(out + 1, edge.to(tl.float64))


def draws(nodes, draws_per_node, key, hop, out):
    grid = (triton.cdiv(out.numel(), BLOCK),)
    draws_kernel[grid](nodes, out, draws_per_node, out.numel(), signed(key), hop, BLOCK=BLOCK)


def bounded_draws(bits, bound, out):
    bounded_kernel[(1,)](bits, out, bound, out.numel(), BLOCK=16)


def logarithms(bits, out):
    grid = (triton.cdiv(out.numel(), BLOCK),)
    logarithm_kernel[grid](bits, out, out.numel(), BLOCK=BLOCK, enable_fp_fusion=False)


def permute(begin, n, key, out):
    half_bits = (max((n - 1).bit_length(), 1) + 1) // 2
    permute_kernel[(1,)](out, begin, out.numel(), n, signed(key), half_bits, BLOCK=64)


def next_arrival(arrival, last, last_edge, out):
    first_after_kernel[(1,)](arrival, out, last, last_edge, BLOCK=arrival.numel())
