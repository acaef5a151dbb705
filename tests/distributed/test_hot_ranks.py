"""Several ranks whose devices keep hot rows, some of them between the devices: the same losses to the bit."""

import functools

import pytest
from tests.distributed import hot_training
from tests.distributed.ranks import run
from tests.suites import few_of

pytestmark = pytest.mark.distributed
SIZES = few_of((1, 2, 3), {2, 3})


@pytest.fixture(scope="module")
def results(warm, tmp_path_factory):
    """What so many ranks have learned, as results(2): one job for each number of them that is asked for."""
    return functools.cache(
        lambda size: [
            said.result
            for said in run(warm, size, hot_training.every_case, tmp_path_factory.mktemp(f"ranks{size}"))
        ]
    )


@pytest.mark.parametrize("share", ["1.0", "0.5", "0.0"])
@pytest.mark.parametrize("size", SIZES)
def test_losses_are_those_without_hot_rows_to_the_bit(size, share, results):
    for found in results(size):
        assert found[f"plan {share}"] == found["plain"]
        assert found[f"hot {share}"] == found["plain"]
        assert found["few hot"] == found["few plain"]  # in whose last batch some rank has no seed
