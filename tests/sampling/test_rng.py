"""The counter RNG has one meaning in Python and C++; seeds of a step: a permutation without state."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.extras import NO_KERNELS

from graphbraid import native
from graphbraid.errors import ConfigError
from graphbraid.ops import rng
from graphbraid.sampling import SeedSchedule
from graphbraid.sampling.config import permuted

u64 = st.integers(0, 2**64 - 1)


def native_or_skip():
    kernels = native.kernels()
    if kernels is None:
        pytest.skip(NO_KERNELS)
    return kernels


@given(st.lists(u64, min_size=1, max_size=20))
def test_mix_of_an_array_is_mix_of_each_number(values):
    assert [rng.mix(v) for v in values] == rng.mix_array(np.array(values, dtype=np.uint64)).tolist()


def test_mix_is_splitmix64():
    # The first outputs of the published generator with state 0: states are multiples of phi.
    states = np.arange(1, 4, dtype=np.uint64) * np.uint64(rng.PHI)
    assert rng.mix_array(states).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_a_million_draws_agree_between_python_and_cpp():
    kernels = native_or_skip()
    nodes = np.concatenate([np.arange(500), 2**31 + np.arange(250), 2**40 + np.arange(250)])
    for seed, epoch, step, hop in [
        (0, 0, 0, 0),
        (2**62 + 5, 7, 123456, 3),
        (17, 2**20, 0, 1),
        (3, 1, 2**31, 7),
    ]:
        key = rng.batch_key(seed, epoch, step)
        expected = rng.draws(rng.row_keys(key, hop, nodes), 250).astype(np.int64)
        got = torch.stack([kernels.draws(seed, epoch, step, hop, int(node), 250) for node in nodes])
        assert np.array_equal(got.numpy(), expected)


def test_draws_are_uniform():
    keys = rng.row_keys(rng.batch_key(1, 2, 3), 0, np.arange(4000))
    counts = np.bincount(rng.bounded(rng.draws(keys, 25).ravel(), np.uint64(100)), minlength=100)
    chi2 = ((counts - 1000) ** 2 / 1000).sum()
    assert 50 < chi2 < 160  # 99 degrees of freedom; these bounds leave out 1e-4 on each side


def test_neighbouring_coordinates_give_unrelated_draws():
    base = rng.draws(rng.row_keys(rng.batch_key(0, 0, 0), 0, np.arange(2000)), 8)
    for other in (
        rng.draws(rng.row_keys(rng.batch_key(1, 0, 0), 0, np.arange(2000)), 8),
        rng.draws(rng.row_keys(rng.batch_key(0, 1, 0), 0, np.arange(2000)), 8),
        rng.draws(rng.row_keys(rng.batch_key(0, 0, 1), 0, np.arange(2000)), 8),
        rng.draws(rng.row_keys(rng.batch_key(0, 0, 0), 1, np.arange(2000)), 8),
        rng.draws(rng.row_keys(rng.batch_key(0, 0, 0), 0, np.arange(1, 2001)), 8),
    ):
        correlation = np.corrcoef(base.ravel().astype(float), other.ravel().astype(float))[0, 1]
        assert abs(correlation) < 0.04  # five standard errors


def test_log_of_draw_is_the_logarithm():
    bits = np.concatenate(
        [np.arange(3), 2**32 - 1 - np.arange(3), np.random.default_rng(0).integers(0, 2**32, 10000)]
    )
    got = rng.log_of_draw(bits.astype(np.uint64))
    np.testing.assert_allclose(got, np.log((bits + 0.5) / 2**32), rtol=1e-13, atol=1e-16)


# ---- seeds of a step


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
