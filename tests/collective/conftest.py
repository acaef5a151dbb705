"""What the tests of collective batching share."""

import threading
from collections.abc import Iterator

import pytest


def threads_of_ours() -> set[threading.Thread]:
    """The living threads that the library has started."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("graphbraid-")}


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """Every thread that the test has started has ended; those of an earlier one may still run."""
    before = threads_of_ours()
    yield
    names = [thread.name for thread in threads_of_ours() - before]
    assert not names, f"threads still run: {names}"
