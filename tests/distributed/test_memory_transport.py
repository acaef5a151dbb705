"""Ranks of one machine that share memory: any operations move what others move, and nothing stays behind."""

import contextlib
import os
import random
import socket
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.distributed.threads import run_threads

from graphbraid.distributed import Communicator
from graphbraid.distributed.ranks import mailbox, memory_transport
from graphbraid.distributed.ranks.mailbox import Address, Mailbox, Message
from graphbraid.distributed.ranks.memory_transport import MemoryTransport, sharing_memory
from graphbraid.errors import RankError, ResourceError

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="only Linux has memory without a name"
)


@contextlib.contextmanager
def sharing(comm, patience=60.0):
    """The same ranks, which share memory until all of them are done."""
    transport = sharing_memory(comm, comm.transport)
    try:
        ranks = Communicator(transport, patience_seconds=patience)
        yield ranks
        ranks.barrier()
    finally:
        transport.close_memory()


def descriptors():
    """What is open, by its number and what it is; what earlier tests held may be closed at any time."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # of the listing itself
            found.add((path.name, str(path.readlink())))
    return found


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["sum", "max", "min"]),
            st.sampled_from([torch.float32, torch.float64, torch.int32, torch.int64]),
            st.lists(st.integers(0, 5), max_size=3),
        ),
        st.tuples(
            st.just("exchange"),
            st.sampled_from([torch.float32, torch.bool, torch.bfloat16]),
            st.integers(0, 4),
        ),
    ),
    max_size=8,
)


def begun(comm, operation, seed, number):
    """An operation of this rank, with numbers that depend on its own."""
    what, dtype, shape = operation
    draw = torch.Generator().manual_seed(100 * seed + 10 * number + comm.rank)
    if what != "exchange":
        return comm.all_reduce((100 * torch.randn(shape, generator=draw)).to(dtype), what)
    chance = random.Random(f"{seed} {number}")
    rows = [[chance.randrange(4) for _ in range(comm.size)] for _ in range(comm.size)]
    send = torch.randn(sum(rows[comm.rank]), shape, generator=draw).to(dtype)
    return comm.all_to_all(send, rows[comm.rank], [rows[source][comm.rank] for source in range(comm.size)])


@given(size=st.integers(2, 4), operations=OPERATIONS, seed=st.integers(0, 1000))
def test_any_operations_in_any_order_move_what_others_move(size, operations, seed):
    before = descriptors()

    def run(comm):
        expected = [begun(comm, operation, seed, i).wait() for i, operation in enumerate(operations)]
        with sharing(comm) as ranks:
            assert ranks.name == "threads+memory"
            handles = [begun(ranks, operation, seed, i) for i, operation in enumerate(operations)]
            order = list(range(len(handles)))
            random.Random(seed + comm.rank).shuffle(order)
            found = {i: handles[i].wait() for i in order}
            for i, wanted in enumerate(expected):
                assert found[i].dtype == wanted.dtype
                assert torch.equal(found[i], wanted)

    run_threads(size, run)
    assert descriptors() <= before


def test_memory_is_used_again_once_all_have_read_it():
    def run(comm):
        with sharing(comm) as ranks:
            for _ in range(50):
                ranks.all_to_all(torch.rand(600, 8), [200] * 3, [200] * 3).wait()
            return len(ranks.transport._own._all), len(ranks.transport._opened)

    for own, opened in run_threads(3, run):
        assert 1 <= own <= 3
        assert opened <= 6


def test_what_is_under_way_keeps_its_memory():
    def run(comm):
        with sharing(comm) as ranks:
            sent = [torch.full((2, 1000), 10.0 * i + comm.rank) for i in range(20)]
            handles = [ranks.all_to_all(rows, [1, 1], [1, 1]) for rows in sent]
            for rows in sent:  # copied as they were
                rows.zero_()
            for i, handle in reversed(list(enumerate(handles))):
                assert handle.wait().tolist() == [[10.0 * i] * 1000, [10.0 * i + 1] * 1000]

    run_threads(2, run)


def test_large_reductions_go_round_the_others_ring(monkeypatch):
    monkeypatch.setattr(memory_transport, "_MOST_REDUCED_BYTES", 8)

    def run(comm):
        calls, reduce = [], comm.transport.all_reduce
        with sharing(comm) as ranks:
            comm.transport.all_reduce = lambda tensor, op: (
                calls.append(tensor.numel()),
                reduce(tensor, op),
            )[1]
            sums = [int(ranks.all_reduce(torch.ones(n, dtype=torch.int32)).wait()[0]) for n in (1, 2, 3)]
            return sums, calls

    assert run_threads(2, run) == [([2, 2, 2], [3])] * 2


@pytest.mark.slow
def test_ranks_that_expect_other_bytes_are_told():
    def run(comm):
        with sharing(comm, 1.0) as ranks:
            return ranks.all_to_all(torch.zeros(2, 2), [1, 1], [1 + (comm.rank == 1), 1]).wait()

    with pytest.raises(
        RankError, match="rank 0 has sent 8 bytes where 16 were awaited; GRAPHBRAID_RANK_CHECKS=1"
    ):
        run_threads(2, run)


def test_a_rank_without_memory_for_the_others_says_what_to_do(monkeypatch):
    def run(comm):
        with sharing(comm, 1.0) as ranks:
            comm.barrier()
            monkeypatch.setattr(mailbox.os, "memfd_create", refused)
            comm.barrier()
            ranks.all_to_all(torch.zeros(2, 5000), [1, 1], [1, 1])

    what_to_do = "Start the ranks with GRAPHBRAID_RANK_MEMORY=0"
    with pytest.raises(ResourceError, match=rf"no 64.* of memory to share .*: no room. {what_to_do}"):
        run_threads(2, run)


def refused(*_):
    raise OSError("no room")


# ---- whether memory is shared


@pytest.mark.parametrize("why", ["machines", "no memory", "no mailbox", "no way"])
def test_where_one_rank_cannot_all_go_the_other_way(why, monkeypatch):
    before = descriptors()
    if why == "no mailbox":
        monkeypatch.delattr(os, "memfd_create")

    def run(comm):
        if comm.rank == 1 and why == "machines":
            monkeypatch.setattr(memory_transport, "machine_name", names.pop)
        if comm.rank == 1 and why == "no memory":
            monkeypatch.setattr(mailbox.os, "memfd_create", refused)
        if comm.rank == 1 and why == "no way":
            monkeypatch.setattr(MemoryTransport, "_write", lambda *_: 0)
        comm.barrier()
        return sharing_memory(comm, comm.transport) is comm.transport

    names = ["a", "b"]
    assert run_threads(2, run) == [True, True]
    assert descriptors() <= before


# ---- mailboxes


def met(*boxes):
    """Mailboxes that have met."""
    for box in boxes:
        box.open(len(boxes))
    for box in boxes:
        box.connect([one.address for one in boxes])
    assert [box.accept(len(boxes)) for box in boxes] == [True] * len(boxes)
    return boxes


@pytest.fixture
def pair():
    boxes = met(Mailbox(0), Mailbox(1))
    yield boxes
    for box in boxes:
        box.close()


def message(number):
    return Message(0, 0, number, 2, 3, 4)


@pytest.mark.parametrize("source", [0, 1])
def test_messages_come_in_their_order_also_from_a_mailbox_that_was_full(pair, source):
    for number in range(5000):
        pair[source].send(1 - source, message(number))
    assert pair[source].has_kept
    found = []
    while len(found) < 5000:
        found += pair[1 - source].collect()
        assert pair[source].collect() == []
    assert found == [(message(number), None) for number in range(5000)]
    assert not pair[source].has_kept


def test_a_descriptor_comes_with_its_message(pair, tmp_path):
    (tmp_path / "file").write_text("there")
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    pair[0].send(1, message(7), descriptor)
    os.close(descriptor)
    ((found, opened),) = pair[1].collect()
    assert found == message(7)
    assert os.read(opened, 10) == b"there"
    os.close(opened)


@pytest.mark.parametrize("said", ["nothing", "another key", "too little", "too much"])
def test_who_does_not_know_the_key_is_not_let_in(said):
    before, (first, second) = descriptors(), (Mailbox(0), Mailbox(1))
    first.open(2)
    key = first.address.key if said == "too much" else "00" * 16
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stranger.connect(f"\0{first.address.name}")
    hello = bytes.fromhex(key) + (1).to_bytes(4, "little") + b"!" * (said == "too much")
    if said != "nothing":
        stranger.send(hello[:5] if said == "too little" else hello)
    assert not first.accept(2)
    for one in (first, second, stranger):
        one.close()
    assert descriptors() <= before


def test_a_key_lets_in_once_and_only_ranks_behind():
    boxes = [Mailbox(0), Mailbox(1), Mailbox(1)]
    boxes[0].open(3)
    for box in boxes[1:]:
        box.connect([boxes[0].address])
    assert boxes[0].accept(2)
    for box in boxes:
        box.close()


def test_a_mailbox_that_nobody_opened_is_not_found():
    box = Mailbox(1)
    with pytest.raises(ConnectionRefusedError):
        box.connect([Address("graphbraid-nobody", "00" * 16)])
    box.close()


def test_messages_to_a_closed_mailbox_are_dropped(pair):
    pair[1].close()
    for number in range(3):
        pair[0].send(1, message(number))
    assert not pair[0].has_kept
    assert pair[0].collect() == []
    pair[0].wait(0.001)
    pair[0].send(1, message(3))


def test_messages_before_the_end_of_a_rank_are_read(pair):
    pair[0].send(1, message(1))
    pair[0].close()
    assert pair[1].collect() == [(message(1), None)]
    assert pair[1].collect() == []


def test_waiting_ends_with_a_message(pair):
    pair[0].send(1, message(1))
    pair[1].wait(60)
    assert len(pair[1].collect()) == 1


def test_waiting_minds_no_number_of_open_files(pair):
    """select() refuses descriptors above 1,023, which many open files lead to."""
    import fcntl  # not on every system that collects these tests
    import resource

    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 1100:
        pytest.skip("no file may have such a number here (ulimit -n)")
    way = pair[1]._ways[0]
    high = fcntl.fcntl(way.fileno(), fcntl.F_DUPFD, 1100)
    way.close()
    pair[1]._ways[0] = socket.socket(fileno=high)
    pair[1]._ways[0].setblocking(False)
    pair[0].send(1, message(1))
    pair[1].wait(60)
    assert len(pair[1].collect()) == 1
