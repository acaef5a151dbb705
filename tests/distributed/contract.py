"""What every communicator must do, as cases that run on all ranks of one job and raise if it does not."""

import re
import time
from unittest import mock

import torch
import torch.distributed as dist
from tests.extras import PATIENCE

from graphbraid.errors import ConfigError

REDUCED = (torch.float32, torch.float64, torch.int32, torch.int64)
MOVED = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64)


def sums_of_every_dtype_and_shape(comm):
    for dtype in REDUCED:
        for shape in ((0,), (), (1,), (7,), (3, 5), (1000, 33)):
            tensor = torch.full(shape, comm.rank + 1, dtype=dtype)
            handle = comm.all_reduce(tensor)
            assert handle.wait() is tensor
            assert tensor.eq(sum(range(1, comm.size + 1))).all()


def largest_and_smallest(comm):
    tensor = torch.tensor([comm.rank, -comm.rank, 3])
    assert comm.all_reduce(tensor.clone(), "max").wait().tolist() == [comm.size - 1, 0, 3]
    assert comm.all_reduce(tensor, "min").wait().tolist() == [0, 1 - comm.size, 3]


def a_sum_has_the_same_bits_on_all_ranks(comm):
    generator = torch.Generator().manual_seed(comm.rank)
    for size in (
        10007,
        3,
        100003,
        10007,
        3,
        100003,
        3,
    ):  # small sums are ready for the next one of their size
        tensor = torch.randn(size, generator=generator) * 10 ** torch.randn(size, generator=generator)
        comm.all_reduce(tensor).wait()
        bits = tensor.view(torch.int32).long()
        found = [int(bits.sum()), int((bits * torch.arange(size)).sum())]
        assert comm.gather(found) == [found] * comm.size


def many_reductions_under_way_end_in_any_order(comm):
    tensors = [torch.full((100,), float(comm.rank + i)) for i in range(20)]
    handles = [comm.all_reduce(tensor) for tensor in tensors]
    for handle in reversed(handles):
        handle.wait()
    for i, tensor in enumerate(tensors):
        assert tensor.eq(comm.size * i + sum(range(comm.size))).all()


def rows_of_every_dtype_go_to_every_rank(comm):
    for dtype in MOVED:
        for width in ((), (3,), (2, 2), (0,)):
            send_rows = [(comm.rank + to) % 3 for to in range(comm.size)]  # also none
            total = sum(send_rows)
            send = torch.arange(total * max(1, 7)).reshape(total, 7)[:, :1]
            send = (send + comm.rank).expand(total, 7)[:, : _elements(width)].reshape(total, *width).to(dtype)
            receive_rows = comm.counts(send_rows)
            assert receive_rows == [(source + comm.rank) % 3 for source in range(comm.size)]
            received = comm.all_to_all(send.contiguous(), send_rows, receive_rows).wait()
            assert received.dtype == dtype and received.shape == (sum(receive_rows), *width)
            assert torch.equal(received, _what_they_send(comm, width, dtype))


def _elements(width):
    elements = 1
    for part in width:
        elements *= part
    return elements


def _what_they_send(comm, width, dtype):
    parts = []
    for source in range(comm.size):
        rows = [(source + to) % 3 for to in range(comm.size)]
        begin = sum(rows[: comm.rank])
        numbers = 7 * torch.arange(begin, begin + rows[comm.rank]).reshape(-1, 1) + source
        parts.append(numbers.expand(-1, 7)[:, : _elements(width)].reshape(rows[comm.rank], *width))
    return torch.cat(parts).to(dtype)


def exchanges_under_way_end_in_any_order(comm):
    sent = [torch.full((comm.size * 50, 3), 100.0 * i + comm.rank) for i in range(8)]
    handles = [comm.all_to_all(rows, [50] * comm.size, [50] * comm.size) for rows in sent]
    for i, handle in reversed(list(enumerate(handles))):
        expected = 100.0 * i + torch.arange(comm.size).repeat_interleave(50)
        assert torch.equal(handle.wait(), expected[:, None].expand(-1, 3))


def every_rank_can_receive_before_it_sends(comm):
    """Or the others would wait for what it sends before they begin to send to it."""
    if comm.name != "gloo":
        return
    calls = []
    with (
        mock.patch.object(
            dist, "irecv", side_effect=lambda *a, _do=dist.irecv, **k: _noted(calls, _do, a, k)
        ),
        mock.patch.object(
            dist, "isend", side_effect=lambda *a, _do=dist.isend, **k: _noted(calls, _do, a, k)
        ),
    ):
        ones = [1] * comm.size
        comm.all_to_all(torch.full((comm.size, 2), float(comm.rank)), ones, ones).wait()
    others = comm.size - 1
    assert calls[len(calls) - 2 * others :] == ["irecv"] * others + ["isend"] * others  # after the checks


def _noted(calls, call, arguments, options):
    calls.append(call.__name__)
    return call(*arguments, **options)


def nothing_at_all_is_exchanged(comm):
    none = [0] * comm.size
    assert comm.all_to_all(torch.empty(0, 4), none, none).wait().shape == (0, 4)


def one_rank_tells_all(comm):
    for root in range(comm.size):
        for dtype in MOVED:
            tensor = torch.arange(5).add(root if comm.rank == root else 77).to(dtype)
            assert torch.equal(comm.broadcast(tensor, root).wait(), torch.arange(5).add(root).to(dtype))
        assert comm.broadcast(torch.empty(0), root).wait().numel() == 0


def a_handle_tells_whether_it_is_done(comm):
    if comm.size == 1:
        return
    was_early = False
    for seconds in (0.05, 0.5, 5.0):  # where rank 0 waits for a core, the others may come before it looks
        comm.barrier()
        if comm.rank:
            time.sleep(seconds)
        handle = comm.all_reduce(torch.ones(1))
        was_early = not handle.done()
        until = time.monotonic() + PATIENCE
        while not handle.done() and time.monotonic() < until:
            time.sleep(0.01)
        assert handle.done()
        assert handle.wait().tolist() == [comm.size]
        if comm.share(was_early or comm._checks, 0):  # comparing waits for the others
            return
    raise AssertionError("a handle was done before the others came")


def small_values_are_gathered_and_shared(comm):
    value = {"rank": comm.rank, "text": "ü" * comm.rank, "none": None}
    assert comm.gather(value) == [{"rank": r, "text": "ü" * r, "none": None} for r in range(comm.size)]
    assert comm.share([1.5, float("inf"), comm.rank], comm.size - 1) == [1.5, float("inf"), comm.size - 1]


def nobody_passes_a_barrier_before_all_are_there(comm):
    comm.barrier()
    if comm.rank == 0:
        time.sleep(0.3)
    came = time.time()
    comm.barrier()
    assert time.time() >= max(comm.gather(came)) - 1e-3


def bad_arguments_are_refused_before_anything_is_sent(comm):
    square, none = torch.zeros(3, 3), [0] * comm.size
    for call, says in (
        (lambda: comm.all_reduce(square.T[:, :2]), "tensor must be contiguous, .* strides"),
        (lambda: comm.all_to_all(square.T, none, none), "send must be contiguous"),
        (lambda: comm.all_reduce(square.half()), "float32, float64, int32, int64; got torch.float16"),
        (lambda: comm.all_reduce(square, "mean"), "op must be 'sum', 'max' or 'min'; got 'mean'"),
        (lambda: comm.all_to_all(square, none, none), r"add up to the rows of send \(3\)"),
        (lambda: comm.all_to_all(square, [3], [*none, 0]), "one number per rank"),
        (lambda: comm.all_to_all(torch.tensor(1), none, none), "rows"),
        (lambda: comm.all_to_all(square[:0], none, none, torch.zeros(1, 3)), r"out must be .*\[0, 3\]; got"),
        (lambda: comm.broadcast(square, comm.size), "root must be"),
    ):
        try:
            call()
        except ConfigError as error:
            assert re.search(says, str(error)), str(error)
        else:
            raise AssertionError(f"not refused: {says}")


CASES = [
    sums_of_every_dtype_and_shape,
    largest_and_smallest,
    a_sum_has_the_same_bits_on_all_ranks,
    many_reductions_under_way_end_in_any_order,
    rows_of_every_dtype_go_to_every_rank,
    exchanges_under_way_end_in_any_order,
    every_rank_can_receive_before_it_sends,
    nothing_at_all_is_exchanged,
    one_rank_tells_all,
    a_handle_tells_whether_it_is_done,
    small_values_are_gathered_and_shared,
    nobody_passes_a_barrier_before_all_are_there,
    bad_arguments_are_refused_before_anything_is_sent,
]


def every_case(comm):
    """Run all cases, whose errors name them; print that this rank has."""
    for case in CASES:
        try:
            case(comm)
        except BaseException as error:
            raise AssertionError(f"{case.__name__} on rank {comm.rank} of {comm}: {error!r}") from error
        comm.barrier()
    return {"size": comm.size, "name": comm.name, "cases": len(CASES)}


def differing(comm, what):
    """With checks on, each of these ends on every rank with a message that names what differs."""
    rank, other = comm.rank, torch.zeros(2 + comm.rank)
    calls = {
        "shape": lambda: comm.all_reduce(other),
        "dtype": lambda: comm.all_reduce(torch.zeros(2, dtype=(torch.float32, torch.float64)[rank % 2])),
        "call": lambda: comm.barrier() if rank else comm.all_reduce(torch.zeros(2)),
        "op": lambda: comm.all_reduce(torch.zeros(2), ("sum", "max")[rank % 2]),
        "rows": lambda: comm.all_to_all(torch.zeros(comm.size, 1), [1] * comm.size, [2] * comm.size),
    }
    calls[what]()
    comm.barrier()
