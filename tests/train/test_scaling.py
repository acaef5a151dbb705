"""Epochs of mini-batches predicted for many ranks: what must hold of any, and shares that are measured."""

import dataclasses
import itertools
import json
import math
from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.train.communities import community_graph, new_model
from torch import nn

from graphbraid.distributed.ranks.gradients import BUCKET_BYTES
from graphbraid.errors import ConfigError
from graphbraid.estimates.trial import Trial
from graphbraid.fullgraph.scale.cluster import Cluster
from graphbraid.nn import GraphSAGE
from graphbraid.train import TrainConfig
from graphbraid.train.scaling import measure
from graphbraid.train.scaling.forecast import forecast_shares
from graphbraid.train.scaling.lateness import expected_largest, late_seconds
from graphbraid.train.scaling.measure import (
    PartTimes,
    StepMeans,
    adding_seconds,
    apart,
    beside_preparing,
    copying_seconds,
    measured,
    timed_parts,
    within,
)
from graphbraid.train.scaling.simulate import predict, simulate, validation_seconds
from graphbraid.train.scaling.sizes import (
    ShareSizes,
    Size,
    part_at,
    sampled_sizes,
    share_at,
    shares_of,
    whole_steps,
)
from graphbraid.train.scaling.times import Bucket, EpochSize, ShareTimes, ValidationTimes
from graphbraid.train.scaling.validation import largest_part
from graphbraid.train.step.feed import make_loader

SECONDS = st.floats(0, 1)
FREE = Cluster(latency_seconds=0.0, bandwidth_bytes=1e300, byte_processor_seconds=0.0)
CLUSTERS = st.builds(
    Cluster,
    latency_seconds=st.sampled_from([0.0, 5e-5, 1e-2]),
    bandwidth_bytes=st.floats(1e5, 1e11),
    byte_processor_seconds=st.sampled_from([0.0, 1e-10, 1e-8]),
    message_processor_seconds=st.sampled_from([None, 0.0, 1e-4]),
    speed=st.sampled_from([0.5, 1.0, 4.0]),
)
EPOCHS = st.builds(
    EpochSize, num_seeds=st.integers(64, 10_000), batch_size=st.just(64), accumulate=st.integers(1, 5)
)

pytestmark = pytest.mark.usefixtures("known_baseline")


RANKS = st.integers(1, 1024)


@st.composite
def share_times(draw, ranks=RANKS):
    """Times of any share."""
    mean = draw(SECONDS)
    ready = sorted(draw(st.lists(st.floats(0, 1), max_size=4)))
    return ShareTimes(
        num_ranks=draw(ranks),
        prepare_seconds=draw(SECONDS),
        first_seconds=draw(SECONDS),
        pass_seconds=mean,
        slowest_seconds=mean + draw(SECONDS),
        hindered_seconds=draw(SECONDS),
        update_seconds=draw(SECONDS),
        buckets=tuple(Bucket(nbytes=draw(st.integers(1, 1 << 24)), ready=place) for place in ready),
        tail_bytes=draw(st.integers(8, 4096)),
    )


# ---- what holds of any step


@given(times=share_times(ranks=st.just(1)), epoch=EPOCHS, cluster=CLUSTERS)
def test_one_rank_takes_what_one_process_does(times, epoch, cluster):
    cluster = dataclasses.replace(cluster, speed=1.0)
    times = dataclasses.replace(times, slowest_seconds=times.pass_seconds)
    found = predict(times, epoch, cluster)
    assert (found.link_seconds, found.moving_seconds, found.sent_bytes, found.uneven_seconds) == (0.0,) * 4
    expected = times.first_seconds
    for count, batches in epoch.steps():
        busy = batches * (times.pass_seconds + times.hindered_seconds) + times.update_seconds
        expected += count * max(busy, batches * times.prepare_seconds)
    assert found.seconds == found.train_seconds == pytest.approx(expected)


@given(times=share_times(), batches=st.floats(0.01, 5))
def test_without_a_network_a_step_takes_the_longer_of_computing_and_preparing(times, batches):
    found = simulate(times, FREE, batches=batches)
    busy = batches * (times.slowest_seconds + times.hindered_seconds) + times.update_seconds
    assert found.seconds == pytest.approx(max(busy, batches * times.prepare_seconds))
    assert found.compute_seconds == pytest.approx(busy)


@given(times=share_times(), cluster=CLUSTERS, faster=st.floats(1, 1e3))
def test_a_faster_network_never_makes_a_step_longer(times, cluster, faster):
    fast = dataclasses.replace(
        cluster,
        bandwidth_bytes=cluster.bandwidth_bytes * faster,
        latency_seconds=cluster.latency_seconds / faster,
    )
    before, after = simulate(times, cluster), simulate(times, fast)
    assert after.seconds <= before.seconds * (1 + 1e-9)
    assert after.sent_bytes == before.sent_bytes
    assert after.compute_seconds >= before.compute_seconds * (1 - 1e-9)  # less of preparing falls into waits
    assert after.moving_seconds == pytest.approx(before.moving_seconds)


@given(times=share_times(), cluster=CLUSTERS, batches=st.floats(0.01, 5))
def test_a_step_lies_between_its_bound_and_one_thing_after_the_other(times, cluster, batches):
    found = simulate(times, cluster, batches=batches)
    prepare = batches * times.prepare_seconds / cluster.speed
    assert found.seconds >= found.bound_seconds(prepare) * (1 - 1e-9)
    one_by_one = found.compute_seconds + found.link_seconds
    assert found.seconds <= max(one_by_one, prepare) * (1 + 1e-9)


@given(
    times=share_times(),
    cluster=CLUSTERS,
    name=st.sampled_from(["prepare", "slowest", "hindered", "update", "first"]),
    more=SECONDS,
    epoch=EPOCHS,
)
def test_nothing_that_takes_longer_makes_an_epoch_shorter(times, cluster, name, more, epoch):
    field = f"{name}_seconds"
    longer = dataclasses.replace(times, **{field: getattr(times, field) + more})
    assert predict(longer, epoch, cluster).seconds >= predict(times, epoch, cluster).seconds * (1 - 1e-9)


@given(times=share_times(), cluster=CLUSTERS, later=st.floats(0, 1))
def test_gradients_that_are_there_later_never_make_a_step_shorter(times, cluster, later):
    moved = tuple(
        dataclasses.replace(bucket, ready=bucket.ready + later * (1 - bucket.ready))
        for bucket in times.buckets
    )
    after = simulate(dataclasses.replace(times, buckets=moved), cluster)
    assert after.seconds >= simulate(times, cluster).seconds * (1 - 1e-9)


@given(times=share_times(), epoch=EPOCHS)
def test_ranks_twice_as_fast_compute_and_prepare_in_half_the_time(times, epoch):
    fast = dataclasses.replace(FREE, speed=2.0)
    assert predict(times, epoch, fast).seconds == pytest.approx(predict(times, epoch, FREE).seconds / 2)


@given(times=share_times(), epoch=EPOCHS, cluster=CLUSTERS)
def test_an_epoch_is_made_of_its_steps(times, epoch, cluster):
    found, steps = predict(times, epoch, cluster), epoch.steps()
    assert sum(count * batches for count, batches in steps) * epoch.batch_size == pytest.approx(
        epoch.num_seeds
    )
    assert sum(count for count, _ in steps) == -(-epoch.num_seeds // (epoch.batch_size * epoch.accumulate))
    assert found.sent_bytes == pytest.approx(
        sum(count for count, _ in steps) * simulate(times, cluster).sent_bytes
    )
    assert found.waiting_seconds >= 0
    assert 0 <= found.uneven_seconds <= found.compute_seconds * (1 + 1e-9)


def test_a_bucket_that_goes_off_early_travels_while_backward_goes_on():
    """Two seconds of a pass, of which one is left when 4 bytes go off, for which the ring takes 4 seconds."""
    times = ShareTimes(
        num_ranks=2,
        prepare_seconds=0.0,
        first_seconds=0.0,
        pass_seconds=2.0,
        slowest_seconds=2.0,
        hindered_seconds=0.0,
        update_seconds=0.5,
        buckets=(Bucket(nbytes=4, ready=0.5),),
        tail_bytes=0,
    )
    link = Cluster(latency_seconds=0.0, bandwidth_bytes=1.0)
    found = simulate(times, link)
    assert (found.link_seconds, found.sent_bytes) == (4.0, 4.0)
    assert found.seconds == pytest.approx(1.0 + 4.0 + 0.5)
    late = dataclasses.replace(times, buckets=(Bucket(nbytes=4, ready=1.0),))
    assert simulate(late, link).seconds == pytest.approx(2.0 + 4.0 + 0.5)
    busy = dataclasses.replace(link, byte_processor_seconds=0.25)  # a quarter of the cores meanwhile
    assert simulate(times, busy).seconds == pytest.approx(5.5)
    assert simulate(times, busy).moving_seconds == pytest.approx(1.0)
    thrice = simulate(times, link, batches=3)  # the first two go back without a word to others
    assert thrice.seconds == pytest.approx(4.0 + 5.5)


def test_what_messages_and_bytes_take_of_the_cores_slows_down_what_is_computed_meanwhile():
    """Two seconds of a pass; a sum among three ranks is four messages, of an eighth of a second each here."""
    times = ShareTimes(
        num_ranks=3,
        prepare_seconds=0.0,
        first_seconds=0.0,
        pass_seconds=2.0,
        slowest_seconds=2.0,
        hindered_seconds=0.0,
        update_seconds=0.0,
        buckets=(Bucket(nbytes=3, ready=0.5),),
        tail_bytes=0,
    )
    link = Cluster(latency_seconds=0.25, bandwidth_bytes=1e300, message_processor_seconds=0.125)
    found = simulate(times, link)
    # The bucket's second on the link takes half of it of the cores, so that the pass ends half a second
    # later; the tail's is waited for.
    assert found.seconds == pytest.approx(2.5 + 1.0)
    assert found.moving_seconds == pytest.approx(2 * 4 * 0.125)
    both = dataclasses.replace(link, byte_processor_seconds=0.125)  # four more bytes for the bucket
    assert simulate(times, both).moving_seconds == pytest.approx(1.0 + 0.5)
    assert simulate(dataclasses.replace(times, num_ranks=1), both).moving_seconds == 0.0
    fast = dataclasses.replace(both, speed=2.0)
    assert simulate(times, fast).moving_seconds == pytest.approx(1.5 / 2)


def test_preparing_waits_for_cores_that_move_messages():
    """Two seconds of waiting, one of which the cores move messages in: preparing for two takes one more."""
    times = ShareTimes(
        num_ranks=2,
        prepare_seconds=0.0,
        first_seconds=0.0,
        pass_seconds=2.0,
        slowest_seconds=2.0,
        hindered_seconds=2.0,
        update_seconds=0.0,
        buckets=(),
        tail_bytes=8,
    )
    link = Cluster(latency_seconds=1.0, bandwidth_bytes=1e300)
    assert simulate(times, link).seconds == pytest.approx(4.0)
    busy = dataclasses.replace(link, message_processor_seconds=0.5)
    assert simulate(times, busy).seconds == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("hindered", "seconds"),
    [(1.0, 4.0), (2.0, 4.0), (3.0, 5.0), (6.0, 8.0)],
)
def test_preparing_that_falls_into_a_wait_hinders_nobody(hindered, seconds):
    """Two seconds of computing and two of waiting, which preparing fills first."""
    times = ShareTimes(
        num_ranks=2,
        prepare_seconds=0.0,
        first_seconds=0.0,
        pass_seconds=2.0,
        slowest_seconds=2.0,
        hindered_seconds=hindered,
        update_seconds=0.0,
        buckets=(Bucket(nbytes=2, ready=1.0),),
        tail_bytes=0,
    )
    found = simulate(times, Cluster(latency_seconds=0.0, bandwidth_bytes=1.0))
    assert found.seconds == pytest.approx(seconds)
    assert found.compute_seconds == pytest.approx(seconds - 2.0)


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_a_validation_is_divided_but_for_what_the_first_rank_does(num_ranks):
    times = ValidationTimes(outputs_seconds=2.0, score_seconds=1.0, row_bytes=100, every=2)
    cluster = Cluster(latency_seconds=1.0, bandwidth_bytes=25.0)
    gather = 0.0 if num_ranks == 1 else 3.0 + 3.0  # three messages, and three quarters of the bytes
    assert validation_seconds(num_ranks, times, cluster) == 3.0 + gather
    share = ShareTimes(
        num_ranks=num_ranks,
        prepare_seconds=0.0,
        first_seconds=0.0,
        pass_seconds=1.0,
        slowest_seconds=1.0,
        hindered_seconds=0.0,
        update_seconds=0.0,
        buckets=(),
        tail_bytes=0,
    )
    epoch = EpochSize(num_seeds=64, batch_size=64)
    assert predict(share, epoch, cluster, times).validation_seconds == (3.0 + gather) / 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"slowest_seconds": 0.5}, "slowest_seconds must be at least pass_seconds=1.0"),
        ({"update_seconds": -1.0}, "update_seconds must be finite and not negative"),
        ({"prepare_seconds": math.nan}, "prepare_seconds must be finite"),
        ({"buckets": (Bucket(nbytes=1, ready=0.5), Bucket(nbytes=1, ready=0.4))}, "in their order"),
        ({"buckets": (Bucket(nbytes=1, ready=1.5),)}, "from 0 to 1"),
    ],
)
def test_times_that_cannot_be_are_refused(change, says):
    names = ("prepare_seconds", "first_seconds", "hindered_seconds", "update_seconds")
    seconds = dict.fromkeys(names, 0.0)
    right = {"num_ranks": 2, "pass_seconds": 1.0, "slowest_seconds": 1.0, "buckets": (), "tail_bytes": 8}
    with pytest.raises(ConfigError, match=says):
        ShareTimes(**(seconds | right | change))


# ---- shares


@pytest.fixture(scope="module")
def trial():
    graph = community_graph(num_nodes=600)
    torch.manual_seed(0)
    model = GraphSAGE(graph.num_features, 8, graph.num_classes, num_layers=2)
    config = TrainConfig(batch_size=32, fanouts=(4, 3), layout="blocks", lr=0.01, threads=1)
    return Trial(model, graph, config)


@pytest.fixture(scope="module")
def loader(trial):
    with make_loader(trial.runner, trial.config, trial.nodes) as made:
        yield made


def test_the_shares_of_a_batch_are_its_seeds_and_overlap_in_their_neighbours(loader):
    counts = [1, 2, 8, 32]
    found = sampled_sizes(loader, counts, seconds=60.0)
    assert [sizes.num_ranks for sizes in found] == counts
    for sizes in found:
        assert sizes.steps == found[0].steps
        assert [len(shares) for shares in sizes.sizes] == [sizes.num_ranks] * len(sizes.steps)
        parts = [
            part_at(loader.schedule, 0, sizes.steps[0], rank, sizes.num_ranks)
            for rank in range(sizes.num_ranks)
        ]
        assert torch.cat(parts).equal(loader.schedule.positions_of(0, sizes.steps[0]))
    for fewer, more in itertools.pairwise(found):
        assert more.mean_nodes < fewer.mean_nodes  # a share is smaller,
        assert more.num_ranks * more.mean_nodes > fewer.num_ranks * fewer.mean_nodes  # all of them larger
        assert more.imbalance >= 1.0
    # With draws by layer and node, edges of the outermost layer alone are drawn by several ranks.
    assert found[-1].mean_edges * 32 >= found[0].mean_edges
    assert whole_steps(loader.schedule) == 6  # of seven, the last of which has 8 seeds


def test_a_share_is_what_a_rank_samples(loader):
    for num_ranks, rank in ((1, 0), (3, 1), (32, 31)):
        alone = share_at(loader, 4, rank, num_ranks)
        [*_, again] = itertools.islice(loader.batches_of(shares_of(loader, rank, num_ranks, 0), 0), 5)
        assert alone.n_id.equal(again.n_id)


def test_the_heaviest_share_and_the_median_one_are_found():
    sizes = ShareSizes(
        num_ranks=3,
        steps=(0, 5),
        sizes=((Size(3, 3), Size(1, 1), Size(2, 2)), (Size(1, 0), Size(1, 1), Size(5, 3))),
    )
    assert [sizes.heaviest(i) for i in range(2)] == [0, 2]
    assert [sizes.middle(i) for i in range(2)] == [2, 1]
    assert sizes.most == Size(5, 3)
    assert sizes.imbalance == pytest.approx((6 / 4 + 8 / (11 / 3)) / 2)


@given(count=st.integers(0, 500), num_ranks=st.integers(1, 64))
def test_no_part_of_a_validation_is_larger_than_the_one_that_counts(count, num_ranks):
    first, last = largest_part(count, num_ranks)
    assert last - first == -(-count // num_ranks)
    assert 0 <= first <= last <= count


# ---- times


@given(step=SECONDS, wait=SECONDS, prepare=SECONDS)
def test_a_step_beside_preparing_takes_the_longer_of_both_as_measured(step, wait, prepare):
    busy, prepared = apart(StepMeans(step, wait, 0.0), prepare)
    assert max(busy, prepared) == pytest.approx(step + wait)
    assert busy in (step, step + wait)


def test_training_that_waits_for_quick_threads_shares_its_core_with_them():
    """Sums over the ranks come on top: threads prepare the next batch as one is taken, not while it waits."""
    assert apart(StepMeans(10.0, 3.0, 0.0), 2.0) == (13.0, 2.0)
    assert apart(StepMeans(10.0, 3.0, 0.0), 12.0) == (10.0, 13.0)
    assert apart(StepMeans(10.0, 0.5, 0.0), 12.0) == (10.5, 10.5)


@given(busy=st.floats(1e-6, 1), whole=st.floats(1e-6, 1), update=st.floats(1e-6, 1))
def test_the_parts_of_a_step_are_no_longer_than_it_is_and_keep_their_ratio(busy, whole, update):
    found = within(busy, whole, update)
    assert 0 < found[0] <= whole
    assert sum(found) == pytest.approx(min(busy, whole + update))
    assert found[0] * update == pytest.approx(found[1] * whole)


@given(values=st.lists(SECONDS, min_size=1, max_size=7), count=st.integers(1, 9))
def test_the_latest_of_some_ranks_is_the_mean_over_all_choices_of_steps(values, count):
    choices = itertools.combinations(values, min(count, len(values)))
    assert expected_largest(values, count) == pytest.approx(fmean(map(max, choices)))


@given(values=st.lists(SECONDS, min_size=1, max_size=40), count=st.integers(1, 50))
def test_more_ranks_are_later_and_none_later_than_the_longest_step(values, count):
    found, more = expected_largest(values, count), expected_largest(values, count + 1)
    assert min(values) <= found * (1 + 1e-9) + 1e-12
    assert found <= more * (1 + 1e-9)
    assert more <= max(values) * (1 + 1e-9)
    late = late_seconds(values, count)
    assert late == pytest.approx(max(0.0, found - fmean(values)))
    assert late_seconds(values, 1) == pytest.approx(0.0)


def test_ranks_that_always_take_as_long_never_wait_and_others_wait_for_the_late_one():
    assert late_seconds([2.0] * 9, 64) == 0.0
    assert late_seconds([1.0, 3.0], 2) == pytest.approx(1.0)  # one of each, so the longer, less the mean
    # Of 101 steps, one of ten seconds: one of two ranks has it in two of 101 steps.
    assert late_seconds([1.0] * 100 + [10.0], 2) == pytest.approx(9.0 / 101)


def test_batches_that_a_step_adds_up_even_out_what_ranks_are_late_by():
    """Long and short batches in turn are alike in pairs, at whose end alone ranks meet."""
    assert late_seconds([1.0, 3.0] * 8, 2, accumulate=2) == pytest.approx(0.0)
    assert late_seconds([1.0, 3.0] * 8, 2, accumulate=3) < late_seconds([1.0, 3.0] * 8, 2)
    assert late_seconds([1.0, 3.0], 2, accumulate=5) == 0.0  # too few to tell


def test_a_rank_is_late_by_how_much_steps_or_shares_differ_whichever_is_more(trial, loader, monkeypatch):
    (sizes,) = sampled_sizes(loader, [4], seconds=0.0)
    typical, slowest = ([PartTimes(seconds, 0.125, (1.0,))] for seconds in (1.0, 1.5))
    monkeypatch.setattr(measure, "_alone", lambda *_, **__: (typical, slowest))
    monkeypatch.setattr(measure, "_prepare_seconds", lambda *_, **__: 0.0)
    for late, excess in ((0.25, 0.5), (0.75, 0.75)):
        steps = StepMeans(2.0, 0.0, 0.0, late)
        monkeypatch.setattr(measure, "beside_preparing", lambda *_, now=steps, **__: now)
        found = measured(trial, loader, sizes)
        assert found.pass_seconds == 1.0
        assert found.slowest_seconds == pytest.approx(1.0 + excess)
    (alone,) = sampled_sizes(loader, [1], seconds=0.0)
    assert measured(trial, loader, alone).slowest_seconds == 1.0  # nobody waits for one rank


def test_a_rank_adds_up_all_parts_but_one(monkeypatch):
    groups = [[nn.Parameter(torch.zeros(1 << 18))]]
    monkeypatch.setattr(measure.time, "perf_counter", itertools.count(0.0, 6.0).__next__)
    assert adding_seconds(groups, 3) == pytest.approx(4.0)  # two thirds of what all of it takes
    assert adding_seconds(groups, 1) == 0.0


def test_steps_are_timed_by_their_parts(trial, loader):
    parameters = list(trial.runner.model.parameters())[::-1]
    groups = [parameters[:2], parameters[2:]]
    found = timed_parts(trial, share_at(loader, 0, 0, 2), groups)
    assert found.seconds > 0 and found.update_seconds > 0
    assert 0 < found.ready[0] <= found.ready[1] == 1.0
    assert not any(p._post_accumulate_grad_hooks for p in parameters)


def test_a_rank_is_measured_by_what_it_trains_on(trial, loader):
    before = [p.detach().clone() for p in trial.runner.model.parameters()]
    (sizes,) = sampled_sizes(loader, [4], seconds=0.0)
    assert len(sizes.steps) == 1  # one batch in any case
    found = measured(trial, loader, sizes, seconds=0.0)
    assert found.num_ranks == 4
    assert found.slowest_seconds >= found.pass_seconds > 0
    assert found.first_seconds > 0 and found.update_seconds > 0
    assert len(before) == 6
    assert [bucket.nbytes for bucket in found.buckets] == [4 * sum(p.numel() for p in before)]
    assert found.tail_bytes == 8 * (2 * len(before) + 4)
    grads = [p.grad.clone() for p in trial.runner.model.parameters()]
    assert copying_seconds(trial) > 0
    assert all(torch.equal(a, p.grad) for a, p in zip(grads, trial.runner.model.parameters(), strict=True))
    assert not any(p._post_accumulate_grad_hooks for p in trial.runner.model.parameters())
    beside = beside_preparing(trial, loader, 0, 2, seconds=0.0)
    assert beside.step_seconds > 0 and beside.first_seconds > 0


def forecast(graph=None, model=None, **options):
    graph = graph or community_graph(num_nodes=600)
    model = model or GraphSAGE(graph.num_features, 8, graph.num_classes, num_layers=2)
    config = TrainConfig(**({"batch_size": 32, "fanouts": (4, 3), "threads": 1} | options.pop("config", {})))
    given = {"counts": [1, 2, 32], "cluster": Cluster(), "seconds": 0.0} | options
    return forecast_shares(model, graph, config, **given)


def test_a_forecast_changes_neither_model_nor_random_numbers_and_says_what_it_rests_on():
    graph = community_graph(num_nodes=600)
    model = new_model(graph)
    before, state = [p.clone() for p in model.parameters()], torch.get_rng_state()
    found = forecast(graph, model, validates=True, moving=(1e-10, 1e-9))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert torch.get_rng_state().equal(state)
    assert [rank.prediction.num_ranks for rank in found.ranks] == [1, 2, 32]
    assert found.speedup(found.ranks[0]) == found.repeats(found.ranks[0]) == 1.0
    assert found.repeats(found.ranks[2]) > found.repeats(found.ranks[1]) > 1.0
    for rank in found.ranks:
        assert rank.range[0] <= rank.range[1]
        assert rank.prediction.validation_seconds > 0
        assert rank.memory_bytes > graph.nbytes
    said = json.loads(json.dumps(found.to_json()))
    assert [p["share"]["sampled_batches"] for p in said["predictions"]] == [1, 1, 1]
    assert said["epoch"] == {"num_seeds": 200, "batch_size": 32, "accumulate": 1}
    assert "nothing is extrapolated" in found.assumptions[0]
    assert any("every 1 epochs" in sentence for sentence in found.assumptions)


def test_models_larger_than_a_bucket_are_summed_in_several():
    graph = community_graph(num_nodes=600)
    wide = nn.ModuleList([nn.Linear(BUCKET_BYTES // 1024, 256) for _ in range(2)])

    class Wide(GraphSAGE):
        def __init__(self):
            super().__init__(graph.num_features, 8, graph.num_classes, num_layers=2)
            self.wide = wide

        def forward(self, x, blocks):
            out = super().forward(x, blocks)
            return out + sum(layer(x.new_ones(1, layer.in_features)).sum() for layer in self.wide) * 1e-6

    found = forecast(graph, Wide(), counts=[1, 2])
    buckets = found.ranks[1].times.buckets
    assert len(buckets) > 1
    assert [b.ready for b in buckets] == sorted(b.ready for b in buckets)
    assert found.ranks[1].prediction.sent_bytes > sum(b.nbytes for b in buckets)


@pytest.mark.slow
def test_a_last_batch_and_steps_of_several_batches_are_counted():
    found = forecast(config={"accumulate": 3}, counts=[1])
    assert found.epoch.steps() == [(2, 3), (1, 0.25)]
    assert any("Of the batches that a step adds up" in sentence for sentence in found.assumptions)
    few = forecast(config={"batch_size": 1000}, counts=[1, 200])
    assert few.epoch.steps() == [(1, 1)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"counts": [1, 64]}, "64 ranks are more than a batch has seeds .batch_size=32."),
        ({"counts": [1, 512], "config": {"batch_size": 1024}}, "200 training nodes and batch_size=1024"),
        ({"config": {"task": "link"}}, "task='link' has none"),
        ({"config": {"fanouts": (4,)}}, "fanouts"),
        ({"config": {"plan": "cpu"}}, "plan='cpu': ranks are predicted on CPUs"),
        ({"config": {"hot": 1 << 20}}, "hot=1048576: ranks are predicted with all features in the memory"),
        ({"config": {"host": 1 << 20}}, "all features in the memory of each"),
        ({"config": {"eval_every": 0}, "validates": True}, "eval_every is 0"),
    ],
)
def test_what_ranks_do_not_train_is_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        forecast(**options)


def test_a_device_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match="ranks are predicted on CPUs"):
        forecast(config={"device": "cuda"})
