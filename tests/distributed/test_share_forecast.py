"""What is predicted for ranks that share mini-batches is counted on ranks that do."""

from itertools import pairwise

import pytest
from tests.distributed import share_training, training
from tests.distributed.ranks import run

from graphbraid.fullgraph.scale.cluster import Cluster, ring_bytes
from graphbraid.train import TrainConfig
from graphbraid.train.scaling.forecast import forecast_shares

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


@pytest.fixture(scope="module")
def forecast():
    graph = training.graph_of()
    config = TrainConfig(**share_training.OPTIONS)
    model = training.make("sage", graph)
    options = {"cluster": Cluster(), "validates": True, "seconds": 0.0}
    with pytest.MonkeyPatch.context() as patched:  # no process is started to measure what nothing here reads
        patched.setattr("graphbraid.estimates.memory.baseline_bytes", lambda *_: 300 << 20)
        return forecast_shares(model, graph, config, counts=[1, 2, 4], **options)


@pytest.mark.parametrize("size", [2, 4])
def test_shares_sums_and_steps_are_those_of_ranks_that_train(size, warm, forecast):
    found = next(rank for rank in forecast.ranks if rank.prediction.num_ranks == size)
    said = [one.result for one in run(warm, size, share_training.counted)]
    steps = forecast.epoch.steps()
    expected = [*(bucket.nbytes for bucket in found.times.buckets), found.times.tail_bytes]
    for rank, own in enumerate(said):
        # Each rank trains on the shares that were sampled, the heaviest of which the others wait for.
        for step, sizes in zip(found.sizes.steps, found.sizes.sizes, strict=True):
            assert own["shares"][step] == list(sizes[rank])
        # Every step adds up the buckets and the tail, and nothing else.
        assert own["sums"] == [expected] * sum(count for count, _ in steps)
    rings = sum(ring_bytes(size, num_bytes) for step in said[0]["sums"] for num_bytes in step)
    assert found.prediction.sent_bytes == pytest.approx(rings)
    # A validation's outputs travel to the first rank, but for its own.
    row_bytes = 4 * share_training.NUM_CLASSES * share_training.NUM_VALIDATED
    assert sum(own["rows_sent"] for own in said) == row_bytes * (size - 1) / size


def test_more_ranks_read_more_rows_each_fewer(forecast):
    sizes = [rank.sizes for rank in forecast.ranks]
    assert all(more.mean_nodes < fewer.mean_nodes for fewer, more in pairwise(sizes))
    repeats = [forecast.repeats(rank) for rank in forecast.ranks]
    assert repeats == sorted(repeats) and repeats[0] == 1.0
