"""Who waits for a message leaves the core to what moves it, and goes on as soon as it is there."""

import threading
import time

import pytest
import torch
from tests.distributed.threads import run_threads

from graphbraid.distributed import Communicator
from graphbraid.distributed.ranks import transport
from graphbraid.distributed.ranks.transport import Pending
from graphbraid.distributed.ranks.watch import Watch
from graphbraid.errors import ConfigError


class Work:
    """A message that arrives when it is told to, or fails."""

    def __init__(self, error=None):
        self.arrives, self.error = threading.Event(), error

    def wait(self):
        self.arrives.wait()
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, RuntimeError("connection closed")])
def test_a_rest_ends_as_a_message_arrives_or_fails(error, monkeypatch):
    monkeypatch.setattr(transport, "_LONGEST_REST_SECONDS", 600.0)
    work = Work(error)
    message = transport._Messages([work], torch.zeros(1))
    assert not message.done()
    threading.Timer(0.01, work.arrives.set).start()
    message.rest(0.0)
    assert message.done()
    if error is None:
        message.finish()
    else:
        with pytest.raises(RuntimeError, match="connection closed"):
            message.finish()


def test_pauses_grow_and_never_keep_the_core_where_another_thread_works(monkeypatch):
    slept = []
    monkeypatch.setattr(transport.time, "sleep", slept.append)
    for waited in (0.0, 1e-4, 2e-3, 5.0):
        transport.pause(waited)
        transport._Collective(None).rest(waited)
    assert slept[::2] == [0.0, 0.0, pytest.approx(2e-4), 1e-3]
    assert slept[1::2] == [5e-5, 5e-5, pytest.approx(2e-4), 1e-3]


def test_a_communicator_rests_until_an_operation_is_done():
    class Third(Pending):
        """An operation that is over after two rests."""

        rests = 0

        def done(self):
            return self.rests == 2

        def rest(self, waited_seconds):
            self.rests += 1

    pending = Third()
    Communicator()._wait(pending, "test")
    assert pending.rests == 2


def test_the_holder_of_the_meeting_point_leaves_after_others_have_read_a_fault():
    """It left at once, and they told that the meeting point was lost, and not which rank."""
    store = torch.distributed.HashStore()
    first, _, last = (Watch(store, rank, 3, limit_seconds=60.0, host="here") for rank in range(3))
    first.start(), last.start()
    time.sleep(0.1)  # its first look is over
    first._lost("rank 1 is lost")
    first.close()
    assert last.knows_a_fault()
    last.close()


def test_a_rank_that_has_left_its_job_asks_no_other():
    """It waited for them until its patience was over."""

    def on_rank(comm):
        comm.close(), comm.close()
        with pytest.raises(ConfigError, match="this rank has left its job, and share"):
            comm.share(1)

    run_threads(2, on_rank)
