"""The tuner of the kernel that reads peers' rows: MGG's model by hand, and the search."""

import itertools
import random

import pytest
import torch

from graphbraid.errors import ConfigError
from graphbraid.fullgraph.device import Cuda, DeviceLimits
from graphbraid.fullgraph.ranks import pipeline_tuner as model
from graphbraid.fullgraph.ranks.pipeline_tuner import (
    LEAST_GAIN,
    MOST_TRIALS,
    CrossIterationSearch,
    Partitions,
    ladders,
)
from graphbraid.ops.peers import PipelineConfig

RUNGS = (1, 2, 4, 8)
A100 = DeviceLimits(num_sms=108, warps_per_sm=64, shared_bytes_per_sm=164 * 1024)
MANY = dict.fromkeys(model.SIZES, Partitions(local=10**6, remote=10**6))


def test_the_papers_equations_by_hand():
    config = PipelineConfig(ps=16, dist=2, wpb=4)
    assert model.shared_bytes(config, 64) == 16 * 4 * 4 + 2 * 4 * 64 * 4 == 2304
    partitions = Partitions(local=1001, remote=400)
    assert model.num_blocks(partitions, config, 64) == 126  # of 501 warps: 1001 local partitions, two a warp
    assert model.num_blocks(partitions, config, 200) == 252  # two tiles of columns


@pytest.mark.parametrize(
    ("config", "columns", "blocks"),
    [
        (PipelineConfig(ps=4, wpb=1), 16, 32),  # the device holds no more blocks
        (PipelineConfig(ps=4, wpb=4), 16, 16),  # of 64 warps
        (PipelineConfig(ps=32, wpb=16), 128, 4),  # of 64 warps; 18 432 bytes each would allow 9
        (PipelineConfig(ps=32, wpb=16), 2048, 0),  # 264 192 bytes, of 167 936
        (PipelineConfig(ps=32, wpb=8), 2048, 1),
    ],
)
def test_resident_blocks_are_bounded_by_places_for_blocks_warps_and_shared_memory(config, columns, blocks):
    assert model.resident_blocks(config, columns, A100) == blocks


def test_numbers_of_warps_that_leave_places_empty_are_not_tried():
    assert ladders(64, MANY, A100)[0] == ((4, 8, 16, 32), (1, 2, 4, 8, 16), (2, 4, 8, 16))
    other = DeviceLimits(num_sms=20, warps_per_sm=48, shared_bytes_per_sm=100 * 1024, blocks_per_sm=16)
    assert ladders(64, MANY, other)[0][2] == (4, 8, 16)


def test_settings_that_leave_multiprocessors_without_blocks_are_not_tried():
    few = {ps: Partitions(local=1600 // ps, remote=0) for ps in model.SIZES}
    values, allowed = ladders(64, few, A100)
    assert values == ((4,), (1,), (2,))  # 200 blocks for 108, and 100 at 8 edges
    assert allowed((4, 1, 2))
    assert not allowed((8, 1, 2))
    more = {ps: Partitions(local=160_000 // ps, remote=0) for ps in model.SIZES}
    values, allowed = ladders(64, more, A100)
    assert values[1] == (1, 2, 4)  # of 40 000 partitions: 5 000 blocks of two warps for 3 456 places
    assert allowed((8, 2, 2))
    assert not allowed((16, 2, 2))


def test_the_first_setting_is_there_where_nothing_fills_the_device():
    values, allowed = ladders(64, dict.fromkeys(model.SIZES, Partitions(local=0, remote=1)), A100)
    assert values == ((4,), (1,), (2,))
    assert allowed([4, 1, 2])


def test_the_limits_of_a_device_are_those_that_torch_tells(monkeypatch):
    class Found:
        multi_processor_count, max_threads_per_multi_processor = 132, 2048
        shared_memory_per_multiprocessor, warp_size = 233472, 32

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Found)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert Cuda(torch.device("cuda:0")).limits() == DeviceLimits(
        num_sms=132, warps_per_sm=64, shared_bytes_per_sm=233472
    )
    with pytest.raises(ConfigError, match="num_sms must be"):
        DeviceLimits(num_sms=0, warps_per_sm=64, shared_bytes_per_sm=1)


def searched(values, seconds, **options):
    search = CrossIterationSearch(values, **options)
    while search.next is not None:
        search.tell(seconds(search.next))
    return search


@pytest.mark.parametrize("best", list(itertools.product(range(4), range(4), range(3))))
def test_it_finds_the_best_of_any_table_with_one_valley(best):
    ladders = [(1, 2, 4, 8), (1, 2, 4, 8), (4, 3, 2)]
    places = [dict(zip(values, range(4), strict=False)) for values in ladders]

    def seconds(setting):
        away = [at[value] - wanted for at, value, wanted in zip(places, setting, best, strict=True)]
        return 1 + 0.1 * sum(distance**2 for distance in away)

    search = searched(ladders, seconds)
    assert tuple(at[value] for at, value in zip(places, search.best, strict=True)) == best
    assert search.num_trials <= MOST_TRIALS


def test_the_first_field_goes_back_where_the_last_one_then_pays():
    # Of the first field alone 4 is best, but with 2 the last one pays; (2, 1) is the second fastest by then.
    table = {(1, 1): 10.0, (2, 1): 9.0, (4, 1): 8.0, (4, 2): 9.2, (4, 4): 9.4, (2, 2): 5.0, (2, 4): 6.0}
    table |= {(1, 2): 9.5, (1, 4): 9.6}
    search = searched([(1, 2, 4)] * 2, table.__getitem__)
    assert search.best == (2, 2)


def test_one_slow_trial_on_the_way_does_not_end_the_climb():
    table = {(1,): 10.0, (2,): 10.2, (4,): 7.0, (8,): 8.0}
    assert searched([RUNGS], table.__getitem__).best == (4,)


def test_the_first_setting_stays_where_nothing_is_faster_by_more_than_noise():
    assert searched([RUNGS] * 2, lambda setting: 1 - LEAST_GAIN / 2 * (setting == (2, 1))).best == (1, 1)


def test_the_fastest_take_turns_while_they_are_alike_and_the_least_time_counts():
    tried = []

    def seconds(setting):
        tried.append(setting)
        is_first = tried.count(setting) == 1
        return {(1,): 9.0, (2,): 7.0, (4,): 6.8, (8,): 8.5}[setting] + 2.0 * is_first

    search = searched([RUNGS], seconds)
    assert tried == [(1,), (2,), (4,), (8,), *[(4,), (2,)] * 2]
    assert search.table == {(1,): 11.0, (2,): 7.0, (4,): 6.8, (8,): 10.5}
    assert search.num_trials == len(tried)


def test_what_stands_alone_is_tried_twice():
    tried = []
    table = {(1,): 9.0, (2,): 6.0, (4,): 4.0, (8,): 6.0}
    searched([RUNGS], lambda setting: tried.append(setting) or table[setting])
    assert tried == [(1,), (2,), (4,), (8,), (4,)]


def noisy(table, draw):
    """Trials of five steps that count, on two ranks: steps vary, and others slow one trial of four."""

    def seconds(setting):
        slowed = 1 + (0.15 * draw.random() if draw.random() < 0.25 else 0.0)
        ranks = (min(1 + draw.expovariate(20) for _ in range(5)) for _ in range(2))
        return table[setting] * slowed * max(ranks)

    return seconds


def modelled(first, second, cost):
    """Seconds by a model: each field saves a share of a time, and each step up costs something."""
    return {(a, b): 0.1 + first / a + second / b + cost * (a + b) for a, b in itertools.product(RUNGS, RUNGS)}


MODELLED = [(0.3, 0.3, 0.002), (0.1, 0.001, 0.002), (0.001, 0.1, 0.002), (0.001, 0.001, 0.005)]


@pytest.mark.slow
def test_it_comes_within_a_twentieth_of_the_best_in_spite_of_noise():
    near, trials = [], []
    for table, seed in itertools.product(itertools.starmap(modelled, MODELLED), range(100)):
        search = searched([RUNGS] * 2, noisy(table, random.Random(seed)))
        near.append(table[search.best] <= 1.05 * min(table.values()))
        trials.append(search.num_trials)
    assert sum(near) >= 0.95 * len(near)
    assert max(trials) <= MOST_TRIALS


def test_no_more_is_tried_than_allowed():
    tried = []
    search = searched([RUNGS] * 2, lambda setting: tried.append(setting) or 1 / len(tried), most_trials=5)
    assert len(tried) == search.num_trials == 5
    assert search.best == tried[-1]


def test_a_setting_that_is_not_allowed_is_never_tried_and_ends_the_climb():
    tried = []
    search = CrossIterationSearch([(1, 2, 4), (1, 2)], allowed=lambda setting: setting[0] * setting[1] <= 2)
    while search.next is not None:
        tried.append(search.next)
        search.tell(1 / sum(search.next))
    assert set(tried) == {(1, 1), (2, 1), (1, 2)}
