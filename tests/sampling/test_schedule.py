"""Seeds of a step: a permutation without state."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.extras import NO_KERNELS

from graphbraid import native
from graphbraid.errors import ConfigError
from graphbraid.sampling import SeedSchedule
from graphbraid.sampling.config import permuted


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_the_keyed_permutation_is_a_permutation(n, key):
    assert np.array_equal(np.sort(permuted(np.arange(n), n, key)), np.arange(n))


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1), st.data())
def test_any_part_can_be_asked_for_alone(n, key, data):
    begin = data.draw(st.integers(0, n))
    end = data.draw(st.integers(begin, n))
    assert np.array_equal(permuted(np.arange(begin, end), n, key), permuted(np.arange(n), n, key)[begin:end])


@given(st.integers(1, 2**40), st.integers(0, 2**64 - 1))
def test_python_and_cpp_permute_alike(n, key):
    kernels = native.kernels()
    if kernels is None:
        pytest.skip(NO_KERNELS)
    begin = max(0, n // 2 - 20)
    end = min(n, begin + 40)
    assert kernels.permuted(n, key, begin, end).tolist() == permuted(np.arange(begin, end), n, key).tolist()


@pytest.mark.slow
def test_every_position_is_reached_equally_often():
    n, epochs = 13, 6500
    first = [int(permuted(np.arange(1), n, key * 7919 + 1)[0]) for key in range(epochs)]
    counts = np.bincount(first, minlength=n)
    chi2 = ((counts - epochs / n) ** 2 / (epochs / n)).sum()
    assert chi2 < 40  # 12 degrees of freedom: 1e-4


@given(st.integers(1, 200), st.integers(1, 50), st.booleans(), st.booleans())
def test_an_epoch_gives_each_seed_once(num_seeds, batch_size, shuffle, drop_last):
    if drop_last and num_seeds < batch_size:
        return
    seeds = torch.arange(1000, 1000 + num_seeds)
    schedule = SeedSchedule(seeds=seeds, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, seed=3)
    steps = [schedule.seeds_of(4, step) for step in range(schedule.num_steps)]
    given_out = torch.cat(steps)
    assert len(given_out.unique()) == len(given_out)
    assert len(given_out) == (num_seeds // batch_size * batch_size if drop_last else num_seeds)
    if not shuffle:
        assert torch.equal(given_out, seeds[: len(given_out)])


def test_epochs_are_shuffled_differently():
    schedule = SeedSchedule(seeds=torch.arange(500), batch_size=500, shuffle=True)
    assert not torch.equal(schedule.seeds_of(0, 0), schedule.seeds_of(1, 0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number in .*; got 0"),
        ({"batch_size": 2, "seed": -1}, "seed must be a whole number in .*; got -1"),
        ({"batch_size": 9, "drop_last": True}, "drop_last leaves no batch: 5 seeds"),
    ],
)
def test_bad_schedules_say_why(options, message):
    with pytest.raises(ConfigError, match=message):
        SeedSchedule(seeds=torch.arange(5), **options)
