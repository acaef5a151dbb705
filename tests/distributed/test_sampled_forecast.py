"""What is predicted for ranks that share mini-batches is counted on ranks that do."""

from statistics import fmean

import pytest
from tests.distributed import share_training, training
from tests.distributed.ranks import run

from graphbraid.estimates.ranks import Cluster, forecast_sampled, ring_sum
from graphbraid.train import TrainConfig

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.usefixtures("known_baseline")
def test_shares_sums_and_steps_are_those_of_ranks_that_train(size):
    graph = training.graph_of()
    config = TrainConfig(**share_training.OPTIONS)
    options = {"cluster": Cluster(), "seconds": 1.0}
    found = forecast_sampled(training.make("sage", graph), graph, config, counts=[1, size], **options)
    epoch, said = found.epochs[1], [one.result for one in run(size, share_training.counted)]
    times = epoch.details["times"]
    # Each step adds up the buckets and the tail, and nothing else.
    for own in said:
        assert own["sums"] == [[*times.buckets, times.tail_bytes]] * times.num_steps
    rings = sum(ring_sum(size, nbytes).nbytes for step in said[0]["sums"] for nbytes in step)
    assert epoch.sent_bytes == pytest.approx(rings)
    # A rank's share is as large as a batch of its number of seeds; the last batch of an epoch is smaller.
    nodes = fmean(step[0] for own in said for step in own["shares"][:-1])
    assert times.nodes == pytest.approx(nodes, rel=0.1)
