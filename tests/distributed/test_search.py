"""The cross-iteration search: near the best of recorded tables in few trials, within bounds."""

import itertools
import json
import random
from pathlib import Path

import pytest

from graphbraid.fullgraph import Pipeline
from graphbraid.fullgraph.ranks.ladders import RUNGS, Load, ladders, pipeline_of
from graphbraid.fullgraph.ranks.link import Link
from graphbraid.fullgraph.ranks.search import LEAST_GAIN, MOST_TRIALS, CrossIterationSearch, expected_seconds

TABLES = json.loads((Path(__file__).parent / "latency_tables.json").read_text(encoding="utf-8"))
"""Seconds of a step by the parts of rows and of gradients, as ``benchmarks.distributed.tuning --record`` has
measured them."""
KNOBS = {"chunks": RUNGS, "back_chunks": RUNGS}


def searched(knobs, seconds, **options):
    search = CrossIterationSearch(knobs, **options)
    while search.next is not None:
        search.tell(seconds(search.next))
    return search


@pytest.mark.parametrize("name", sorted(TABLES))
def test_it_comes_within_a_twentieth_of_the_best_of_recorded_tables_in_few_trials(name):
    table = {tuple(map(int, setting.split(","))): seconds for setting, seconds in TABLES[name].items()}
    assert set(table) == set(itertools.product(RUNGS, RUNGS))
    search = searched(KNOBS, table.__getitem__)
    assert search.num_trials <= MOST_TRIALS
    assert table[search.best] <= 1.05 * min(table.values())


def test_recorded_tables_differ_in_what_is_best():
    assert len({min(table, key=table.get) for table in TABLES.values()}) > 1


@pytest.mark.parametrize("best", list(itertools.product(range(4), range(4), range(3))))
def test_it_finds_the_best_of_any_table_with_one_valley(best):
    knobs = {"chunks": (1, 2, 4, 8), "back_chunks": (1, 2, 4, 8), "threads": (4, 3, 2)}
    places = [dict(zip(values, range(4), strict=False)) for values in knobs.values()]

    def seconds(setting):
        away = [at[value] - wanted for at, value, wanted in zip(places, setting, best, strict=True)]
        return 1 + 0.1 * sum(distance**2 for distance in away)

    search = searched(knobs, seconds)
    assert tuple(at[value] for at, value in zip(places, search.best, strict=True)) == best
    assert search.num_trials <= MOST_TRIALS


def test_the_first_knob_is_turned_back_where_the_last_one_then_pays():
    # Of the first knob alone 4 is best, but with 2 the last one pays; (2, 1) is the second fastest by then.
    table = {(1, 1): 10.0, (2, 1): 9.0, (4, 1): 8.0, (4, 2): 9.2, (4, 4): 9.4, (2, 2): 5.0, (2, 4): 6.0}
    table |= {(1, 2): 9.5, (1, 4): 9.6}
    search = searched({"chunks": (1, 2, 4), "back_chunks": (1, 2, 4)}, table.__getitem__)
    assert search.best == (2, 2)


def test_one_slow_trial_on_the_way_does_not_end_the_climb():
    table = {(1,): 10.0, (2,): 10.2, (4,): 7.0, (8,): 8.0}
    assert searched({"chunks": RUNGS}, table.__getitem__).best == (4,)


def test_the_first_setting_stays_where_nothing_is_faster_by_more_than_noise():
    assert searched(KNOBS, lambda setting: 1 - LEAST_GAIN / 2 * (setting == (2, 1))).best == (1, 1)


def test_the_fastest_take_turns_while_they_are_alike_and_the_least_time_counts():
    tried = []

    def seconds(setting):
        tried.append(setting)
        is_first = tried.count(setting) == 1
        return {(1,): 9.0, (2,): 7.0, (4,): 6.8, (8,): 8.5}[setting] + 2.0 * is_first

    search = searched({"chunks": RUNGS}, seconds)
    assert tried == [(1,), (2,), (4,), (8,), *[(4,), (2,)] * 2]
    assert search.table == {(1,): 11.0, (2,): 7.0, (4,): 6.8, (8,): 10.5}
    assert search.num_trials == len(tried)


def test_what_stands_alone_is_tried_twice():
    tried = []
    table = {(1,): 9.0, (2,): 6.0, (4,): 4.0, (8,): 6.0}
    searched({"chunks": RUNGS}, lambda setting: tried.append(setting) or table[setting])
    assert tried == [(1,), (2,), (4,), (8,), (4,)]


def test_each_knobs_own_effect_says_what_untried_settings_take():
    table = {(a, b): 10.0 - a + b / 2 for a, b in [(1, 1), (2, 1), (4, 1), (4, 2), (1, 4)]}
    assert expected_seconds(table) == pytest.approx({(2, 2): 9.0, (2, 4): 10.0, (4, 4): 8.0, (1, 2): 10.0})
    assert expected_seconds({(1, 1): 3.0}) == {}


def noisy(table, draw):
    """Trials of five steps that count, on two ranks: steps vary, and others slow one trial of four."""

    def seconds(setting):
        slowed = 1 + (0.15 * draw.random() if draw.random() < 0.25 else 0.0)
        ranks = (min(1 + draw.expovariate(20) for _ in range(5)) for _ in range(2))
        return table[setting] * slowed * max(ranks)

    return seconds


def modelled(compute, forth, back, message):
    """Seconds of a step by a model: of what travels, one part is not hidden, and each costs a message."""
    return {
        (a, b): compute + forth / a + back / b + message * (a + b) for a, b in itertools.product(RUNGS, RUNGS)
    }


MODELLED = {
    "slow link": modelled(0.1, 0.3, 0.3, 0.002),
    "rows alone": modelled(0.1, 0.1, 0.001, 0.002),
    "gradients alone": modelled(0.1, 0.001, 0.1, 0.002),
    "nothing to gain": modelled(0.1, 0.001, 0.001, 0.005),
}


@pytest.mark.slow
@pytest.mark.parametrize("source", ["recorded", "modelled"])
def test_it_comes_within_a_twentieth_of_the_best_in_spite_of_noise(source):
    tables = MODELLED.values()
    if source == "recorded":
        tables = [{tuple(map(int, s.split(","))): t for s, t in table.items()} for table in TABLES.values()]
    near, trials = [], []
    for table, seed in itertools.product(tables, range(100)):
        search = searched(KNOBS, noisy(table, random.Random(seed)))
        near.append(table[search.best] <= 1.05 * min(table.values()))
        trials.append(search.num_trials)
    assert sum(near) >= 0.95 * len(near)
    assert max(trials) <= MOST_TRIALS


def test_no_more_is_tried_than_allowed():
    tried = []
    search = searched(KNOBS, lambda setting: tried.append(setting) or 1 / len(tried), most_trials=5)
    assert len(tried) == search.num_trials == 5
    assert search.best == tried[-1]


LOAD = Load(exchanges=2, bytes=1_000_000, back_bytes=500_000, sum_bytes=100_000)
LINK = Link(message_seconds=1e-4, byte_seconds=1e-8)


def test_parts_that_cost_more_than_they_could_save_are_not_tried():
    # 10 ms on the way; each part costs 0.2 ms to begin and 0.1 ms to sum. Back: 5 ms and 0.2 ms.
    assert ladders([LOAD], LINK, 1e9, 1) == {"chunks": (1, 2, 4, 8), "back_chunks": (1, 2, 4, 8)}
    # Sums of 1.8 ms a part: 10 ms allow 4 parts, not 8.
    assert ladders([LOAD], LINK, 1e8 / 1.8, 1)["chunks"] == (1, 2, 4)
    slow = Link(message_seconds=3e-3, byte_seconds=1e-8)
    assert ladders([LOAD], slow, 1e9, 1) == {}


def test_the_busiest_rank_counts_and_one_core_may_be_left_to_the_transport():
    idle = Load(exchanges=2, bytes=0, back_bytes=0, sum_bytes=0)
    assert ladders([idle, LOAD], LINK, 1e9, 4) == ladders([LOAD], LINK, 1e9, 4)
    assert ladders([LOAD], LINK, 1e9, 4)["threads"] == (4, 3, 2)
    assert ladders([LOAD], LINK, 1e9, 2)["threads"] == (2, 1)
    assert ladders([idle], LINK, 1e9, 4) == {}


def test_a_setting_names_the_pipeline_and_leaves_the_rest_as_it_is():
    assert pipeline_of(("back_chunks",), (4,)) == Pipeline(back_chunks=4)
    assert pipeline_of((), ()) == Pipeline()
    assert pipeline_of(("chunks", "threads"), [2, 3]) == Pipeline(chunks=2, threads=3)
