"""The pool of memory for rows: what is in use is never given twice, and steps settle on what one needs."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from tests.kernels import needs_kernels
from torch_geometric.nn import GraphSAGE

import graphbraid
from graphbraid import native, ops
from graphbraid.graph.csc import coo_to_csc
from graphbraid.ops import Aggregation
from graphbraid.ops.kernels import new_rows, without_pool

pytestmark = [
    needs_kernels,
    pytest.mark.skipif(
        "libasan" in os.environ.get("LD_PRELOAD", ""),
        reason="the pool gives no memory under the address sanitizer",
    ),
]
LIKE = torch.empty(0, 1)


def lies_in_pool(rows):
    """Whether memory is the pool's: torch cannot resize what is not its own."""
    return not rows.untyped_storage().resizable()


def test_blocks_that_are_held_never_overlap_and_free_ones_are_used_again():
    draw, held = torch.Generator().manual_seed(0), {}
    for turn in range(600):
        if held and torch.rand((), generator=draw) < 0.5:
            number, rows = held.popitem() if turn % 2 else (first := next(iter(held)), held.pop(first))
            assert (rows == number).all()
        else:
            height = int(torch.randint(4096, 40_000, (), generator=draw))
            held[turn] = new_rows(LIKE, height, 64).fill_(turn)
            assert lies_in_pool(held[turn]) and held[turn].is_contiguous()
            assert held[turn].data_ptr() % 64 == 0
    size = native.kernels().pool_bytes()
    held.clear()
    rows = new_rows(LIKE, 4096, 64)
    del rows
    assert native.kernels().pool_bytes() == size


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32])
def test_rows_have_the_dtype_and_shape_that_were_asked_for(dtype):
    rows = new_rows(LIKE, 70_000, 9, dtype)
    assert rows.dtype == dtype
    assert rows.shape == (70_000, 9)
    assert lies_in_pool(rows)
    assert not lies_in_pool(new_rows(LIKE, 10, 9, dtype))
    assert not lies_in_pool(new_rows(LIKE, 70_000, 9, torch.int64))
    with without_pool():
        assert not lies_in_pool(new_rows(LIKE, 70_000, 9, dtype))
    assert not lies_in_pool(new_rows(LIKE, (1 << 28) // 8, 9, dtype))  # of no mini-batch
    assert new_rows(torch.empty(0, 1, device="meta"), 70_000, 9).device.type == "meta"


def test_views_copies_and_in_place_changes_are_those_of_any_tensor():
    rows = new_rows(LIKE, 50_000, 8).fill_(1)
    part, array, copied = rows[7:9], rows.numpy(), rows.clone()
    saved = rows.clone().requires_grad_()
    (saved * rows).sum().backward()
    del rows
    gc.collect()
    others = [new_rows(LIKE, 50_000, 8).fill_(number) for number in range(2, 6)]
    assert (part == 1).all()
    assert (array == 1).all()
    assert (copied == 1).all()
    assert others[0].share_memory_().is_shared()
    pickled = torch.empty_like(others[1]).copy_(others[1])
    assert (pickled == 3).all()
    other = new_rows(LIKE, 50_000, 8).fill_(2).requires_grad_()
    loss = (other * other).sum()
    with torch.no_grad():
        other.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_steps_reach_a_size_and_keep_it_and_give_the_same_bits_without_the_pool():
    num_nodes = 10_000  # as few as the pool takes rows of
    ends = torch.randint(num_nodes, (2, 30_000), generator=torch.Generator().manual_seed(0))
    csc, _ = coo_to_csc(*ends, num_nodes, num_nodes)
    x = torch.randn(num_nodes, 32, generator=torch.Generator().manual_seed(1))
    weight = torch.randn(64, 32, generator=torch.Generator().manual_seed(2)).requires_grad_()

    def step(rows):
        rows = rows.detach().requires_grad_()
        out = ops.bias_act_dropout(ops.aggregate_linear(Aggregation(csc=csc), rows, weight), None, "relu")
        (out * out).sum().backward()
        found = out.detach().clone(), rows.grad.clone(), weight.grad.clone()
        weight.grad = None
        return found

    first, sizes = step(x), []
    for _ in range(3):
        for mine, other in zip(step(x), first, strict=True):
            assert torch.equal(mine, other)
        sizes.append(native.kernels().pool_bytes())
    assert sizes[0] == sizes[-1] > 0
    with without_pool():
        for mine, other in zip(step(x), first, strict=True):
            assert torch.equal(mine, other)


def test_counting_may_end_while_another_thread_takes_rows():
    done = threading.Event()

    def count():
        while not done.is_set():
            with without_pool():
                pass

    counting = threading.Thread(target=count)
    counting.start()
    try:
        engine = graphbraid.compile(GraphSAGE(8, 8, 2, 3), strict=True)
        x, edges = torch.rand(50, 8), torch.randint(50, (2, 300))
        for _ in range(100):
            engine(x, edges).sum().backward()
    finally:
        done.set()
        counting.join()


PROGRAM = """
import torch
from graphbraid import native
from graphbraid.ops.kernels import new_rows

held = [new_rows(torch.empty(0, 1), 64 * 1024, 256).fill_(1) for _ in range(3)]
assert native.kernels().pool_bytes() >= 3 << 26
del held
for _ in range(2 * 4096):
    new_rows(torch.empty(0, 1), 4096, 64)
assert native.kernels().pool_bytes() <= 2 << 20, native.kernels().pool_bytes()
print("returned")
"""


def test_what_is_no_longer_reached_goes_back_to_the_system_and_no_addresses_are_no_error():
    said = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert said.stdout == "returned\n"
    limited = (
        "import resource, torch; from graphbraid.ops.kernels import new_rows; import graphbraid.native as n;"
        "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize();"
        "resource.setrlimit(resource.RLIMIT_AS, (size + (300 << 20), resource.RLIM_INFINITY));"
        "rows = new_rows(torch.empty(0, 1), 70000, 9);"
        "print(rows.untyped_storage().resizable(), n.kernels().pool_bytes())"
    )
    if Path("/proc/self/statm").exists():
        said = subprocess.run([sys.executable, "-c", limited], check=True, capture_output=True, text=True)
        assert said.stdout == "True 0\n"
