"""Several ranks whose devices keep hot rows, some of them between the devices: the same losses to the bit."""

import functools
import time
from pathlib import Path

import pytest
import torch
from tests.distributed import hot_training, peers
from tests.distributed.ranks import run
from tests.extras import PATIENCE
from tests.suites import few_of

pytestmark = pytest.mark.distributed
LONG = pytest.param(3, marks=pytest.mark.long)
"""As many ranks as those of ``odd``."""
SIZES = (pytest.param(1, marks=pytest.mark.long), 2, LONG)
"""One rank alone does as tests/collective/test_hot_rows.py shows."""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What so many ranks have learned, as results(2): one job for each number of them that is asked for."""
    return functools.cache(
        lambda size: [
            said.result
            for said in run(size, hot_training.every_case, tmp_path_factory.mktemp(f"ranks{size}"))
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("share", ["1.0", "0.5", "0.0"])
@pytest.mark.parametrize("size", SIZES)
def test_losses_are_those_without_hot_rows_to_the_bit(size, share, results):
    for found in results(size):
        assert found[f"plan {share}"] == found["plain"]
        assert found[f"hot {share}"] == found["plain"]
        assert found["few hot"] == found["few plain"]  # in whose last batch some rank has no seed
        assert not found["left in memory"]


@pytest.mark.slow
@pytest.mark.parametrize("share", ["1.0", "0.5", "0.0"])
@pytest.mark.parametrize("size", SIZES)
def test_rows_are_interleaved_and_read_at_peers(size, share, results):
    """Peers are four times as fast as the host: with so few rows all are spread."""
    ids = []
    for rank, found in enumerate(result for result in results(size)):
        shared, counts, said = (found[f"{name} {share}"] for name in ("shared", "counts", "said"))
        if size == 1:
            assert shared is None
            assert counts["hot_rows"] > 0
            continue
        assert (shared["own"], shared["shared"]) == (0, 100 * size)
        assert shared["here"] == len(range(rank, 100 * size, size))
        assert shared["hot now"] == 0  # they were let go of
        assert counts["peer_rows"] > counts["link_rows"] * 0.5
        assert counts["hot_rows"] == 0
        assert f"{100 * size} interleaved over them" in said
        assert "4 times as fast as the host's" in said
        ids.append(said.split("peers")[1].split()[0])
    assert set(ids) <= {f"{100 * size}"}


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    return [said.result for said in run(3, hot_training.odd_cases, folder)]


CASES = ("slower peers", "known by one", "some without", "unequal", "all fit", "unread")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_losses_are_the_same_however_rows_are_divided(case, odd):
    for found in odd:
        assert found[case]["ran"] == found["plain 2" if case == "slower peers" else "plain"]
        assert found["again"]["losses"] != found["plain 2"]["losses"]  # it has learned before
        assert found["narrow"]["ran"] == found["plain narrow"]
        assert found["machines"]["ran"] == found["trace"]["ran"] == found["plain"]
        assert found["predicts"]


@pytest.mark.slow
def test_slow_peers_leave_the_rows_read_most_on_each_device(odd):
    ids = [found["slower peers"]["shared"]["ids"] for found in odd]
    own = len(ids[0])
    assert 0 < own < 100
    assert ids[0] == ids[1] == ids[2]
    for found in odd:
        shared, counts = found["slower peers"]["shared"], found["slower peers"]["counts"]
        assert shared["own"] == shared["hot now"] == own
        assert shared["shared"] == 3 * (100 - own)
        assert counts["hot_rows"] > 0
        assert counts["peer_rows"] > 0


@pytest.mark.slow
def test_who_reads_no_peer_keeps_its_own_rows_and_says_why(odd):
    for rank, found in enumerate(odd):
        assert found["known by one"]["shared"] is None
        assert "how fast a peer's rows are read is not known" in found["known by one"]["said"]
        assert found["all fit"]["shared"] is None
        assert found["all fit"]["counts"]["link_rows"] == 0
        assert "0 interleaved" in found["all fit"]["said"]
        assert found["unread"]["shared"] is None
        assert "does not say that others read its memory" in found["unread"]["said"]
        assert found["unread"]["counts"]["hot_rows"] > 0
        without, unequal = found["some without"], found["unequal"]["shared"]
        if rank == 1:
            assert without["counts"] is None
            assert found["machines"]["shared"] is None
            assert "rank 0 is on another machine" in found["machines"]["said"]
        else:
            assert without["shared"]["shared"] == found["machines"]["shared"]["shared"] == 200
        assert (unequal["own"], unequal["shared"]) == (0, 120)  # the least memory of them


@pytest.mark.slow
def test_rows_of_int8_are_interleaved_with_their_scales(odd):
    for found in odd:
        assert found["narrow"]["shared"]["shared"] == 300
        assert found["narrow"]["counts"]["peer_rows"] > 0


@pytest.mark.slow
def test_ranks_stop_early_together(odd):
    for found in odd:
        assert found["stopped"]["ran"] == found["plain stopped"]
        assert found["stopped"]["ran"]["status"] == "early-stopped"


@pytest.mark.slow
def test_a_rank_whose_device_slows_down_plans_anew_and_learns_the_same(odd):
    for found in odd:
        assert found["replanned"]["ran"] == found["plain many"]
    assert any("durations drifted" in message for message in odd[1]["replanned"]["messages"])


@pytest.mark.slow
def test_the_first_rank_writes_the_trace(odd):
    assert [found["trace"]["files"] for found in odd] == [True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("size", (2, LONG))
def test_rows_of_a_store_are_on_devices_at_peers_in_memory_and_on_disk(size, tmp_path):
    for said in run(size, hot_training.from_a_store, tmp_path):
        found = said.result
        assert found["tiers"] == found["plain"]
        assert found["shared"]["shared"] == 30 * size
        for name in ("peer_rows", "host_rows", "disk_rows"):
            assert found["counts"][name] > 0
        table = found["said"].split("  tier ")[1].splitlines()[1:5]
        assert [line.split()[0] for line in table] == ["device", "peers", "host", "disk"]


@pytest.mark.slow
def test_a_run_goes_on_in_mid_epoch_with_other_rows_and_ranks(tmp_path):
    def trained(size, folder, *arguments):
        ran = run(size, hot_training.with_checkpoints, tmp_path / folder, *arguments)
        first, *others = (said.result for said in ran)
        assert all(other == first for other in others)
        return first

    whole = trained(2, "whole", 3, "new", 0, 99)
    parts = trained(2, "parts", 3, "new", 100, 10)
    assert parts["status"] == "stopped"
    again = trained(2, "parts", 3, "resume", 30, 99)
    assert parts["losses"] + again["losses"] == whole["losses"]
    assert again["weights"] == whole["weights"]
    assert again["history"] == whole["history"]
    more = trained(3, "parts", 4, "resume", 50, 99)
    assert len(more["losses"]) == 7
    alone = trained(1, "parts", 5, "resume", 0, 99)
    assert len(alone["losses"]) == 7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "says"),
    few_of(
        [
            ("killed", "rank 1 is lost: its process"),
            ("raises", "rank 1 failed: a user's own mistake"),
            ("memory", "rank 1 failed: 100 hot rows take"),
        ],
        {"killed"},
    ),
)
def test_a_rank_that_is_lost_while_peers_have_its_rows_is_named(what, says, tmp_path):
    first, second = run(2, hot_training.faulty, what, tmp_path)
    assert first.code == 8, first.stderr
    assert says in first.stderr
    assert "Traceback" not in first.stderr
    assert second.code != 0
    ours = [path.stem for path in tmp_path.glob("*.pid")]
    assert len(ours) == 2
    until = time.monotonic() + PATIENCE
    while left := [p.name for p in Path("/dev/shm").glob("torch_*") if p.name.split("_")[1] in ours]:
        assert time.monotonic() < until, left
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_tiers_auto_size_the_devices_of_ranks(size, tmp_path):
    """Ranks that use one device take a part of its memory each, as if each had one of that size."""
    for said in run(size, hot_training.sized, tmp_path):
        found = said.result
        for case in ("own", "one"):
            assert found[case]["ran"] == found["plain"]
            assert found[case]["host"] is None
            assert abs(found[case]["rows"] - 100) <= 8  # bytes of a step vary a little
            assert found[case]["counts"]["hot_rows"] + found[case]["counts"]["peer_rows"] > 0
            words = found[case]["said"]
            assert "of the device for" in words
            assert ("interleaved over them" in words) == (size > 1)
            divided = f"{size} ranks use one device and divide its free " in words
            assert divided == (case == "one" and size > 1)
            assert (f"{size} ranks divide the " in words) == (size > 1)
        assert found["full"] == found["plain"]
        assert found["full tiers"]
        assert "there is no memory for them" in found["full said"]
        assert found["store"]["ran"] == found["plain store"]
        assert found["store"]["host"] == 0
        assert found["store"]["counts"]["disk_rows"] > 0
        assert "from the files: no memory is left" in found["store"]["said"]


def test_a_batch_and_a_device_that_samples_read_rows_of_peers():
    for said in run(2, hot_training.between_two, "cpu"):
        assert (said.result["shared"], said.result["left"]) == (200, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, which two processes share")
def test_ranks_on_one_card_keep_rows_between_them(tmp_path):
    for said in peers.run_on_one_card(2, tmp_path, hot_training.between_two, "cuda:0"):
        assert said["shared"] > 0
        assert "times as fast as the host's" in said["said"]
