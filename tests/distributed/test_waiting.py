"""Who waits for a message leaves the core to what moves it, and goes on as soon as it is there."""

import threading

import pytest
import torch

from graphbraid.distributed import Communicator
from graphbraid.distributed.ranks import transport
from graphbraid.distributed.ranks.transport import Alone, Finished


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
    class Third(Finished):
        """An operation that is over after two rests."""

        rests = 0

        def done(self):
            return self.rests == 2

        def rest(self, waited_seconds):
            self.rests += 1

    pending = Third()
    Communicator(Alone())._wait(pending, "test")
    assert pending.rests == 2
