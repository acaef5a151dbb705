"""Threads that stay awake for a pass: the same bits, one pass at a time, sleep afterwards (decision 0009)."""

import os
import threading
import time

import pytest
import torch
from tests.extras import once_undisturbed
from tests.kernels import needs_kernels

from graphbraid import native
from graphbraid.ops.gather import spread_rows
from graphbraid.ops.linear import tall_gram, tall_product

pytestmark = needs_kernels


@pytest.fixture
def looks(monkeypatch):
    """A pass as it is by default, whatever the environment says of waiting threads, on two threads."""
    monkeypatch.setattr(native, "look_microseconds", lambda: native.LOOK_MICROSECONDS)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def begins() -> bool:
    """Whether this thread can begin a pass; ends it again."""
    kernels = native.kernels()
    began = kernels.begin_pass(0)
    if began:
        kernels.end_pass()
    return began


def in_another_thread(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def products(a, b):
    return tall_product(a, b), tall_gram(a, tall_product(a, b))


@pytest.mark.usefixtures("looks")
def test_loops_of_a_pass_have_the_same_bits():
    a, b = torch.randn(20_000, 32), torch.randn(32, 40)
    expected = products(a, b)
    for _ in range(50):
        with native.awake_threads():
            for _ in range(4):
                assert all(map(torch.equal, products(a, b), expected))


@pytest.mark.usefixtures("looks")
def test_a_pass_inside_another_changes_nothing_and_other_threads_go_without():
    a, b = torch.randn(20_000, 32), torch.randn(32, 40)
    expected = products(a, b)
    with native.awake_threads(), native.awake_threads():
        assert all(map(torch.equal, products(a, b), expected))
        assert not in_another_thread(begins)
        assert all(map(torch.equal, in_another_thread(lambda: products(a, b)), expected))
    assert begins()
    assert in_another_thread(begins)


@pytest.mark.usefixtures("looks")
def test_an_error_of_a_loop_reaches_its_caller_and_ends_the_pass():
    places = torch.zeros(1 << 15, dtype=torch.int32)
    places[-1] = 7
    with pytest.raises(ValueError, match="place must name rows"), native.awake_threads():
        spread_rows(torch.ones(3, 32), places, torch.empty(1 << 15, 32))
    assert begins()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
@pytest.mark.usefixtures("looks")
def test_a_child_forked_inside_a_pass_computes_alone():
    a, b = torch.randn(20_000, 32), torch.randn(32, 40)
    expected = products(a, b)
    with native.awake_threads():
        products(a, b)
        child = os.fork()
        if child == 0:  # where torch's own threads are missing
            found = zip(products(a, b), expected, strict=True)
            os._exit(0 if all((x.numpy() == y.numpy()).all() for x, y in found) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("looks")
def test_threads_without_work_sleep_inside_a_pass_and_after_it():
    def sleep():
        with native.awake_threads():
            products(torch.randn(20_000, 32), torch.randn(32, 40))
            began = time.process_time()
            time.sleep(0.3)
            inside = time.process_time() - began
        began = time.process_time()
        time.sleep(0.3)
        assert max(inside, time.process_time() - began) < 0.03

    once_undisturbed(sleep)
