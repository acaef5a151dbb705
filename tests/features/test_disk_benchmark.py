"""The figures of benchmarks.tiers.disk, and the limit of memory that it runs under."""

import os

import pytest
from benchmarks.tiers.disk_figures import figures
from benchmarks.tiers.limited import MemoryLimit


def a_run(steps, seconds, **told):
    sums = [f"{step}" for step in range(steps)]
    return {"batch_seconds": [seconds] * steps, "checksums": sums, "read_bytes": 1} | told


def test_each_memmap_stands_beside_tiers_over_the_batches_of_both():
    """Where plain memmap gets through one batch only, the other one is compared over all of its own."""
    runs = {
        "memmap": [a_run(1, 90.0), a_run(2, 80.0)],
        "memmap-random": [a_run(4, 2.0), a_run(5, 2.0)],
        "tiers": [a_run(10, 0.5, disk_bytes=8), a_run(10, 0.5, disk_bytes=8)],
    }
    row = figures(runs, list(range(10, 20)), [])
    assert (row["steps"], row["rows"], row["plain"]["steps"], row["plain"]["rows"]) == (4, 46, 1, 10)
    assert row["seconds"] == {"memmap-random": [8.0, 8.0], "tiers": [2.0, 2.0]}
    assert row["plain"]["seconds"] == {"memmap": [90.0, 80.0], "tiers": [0.5, 0.5]}
    assert row["times_as_fast"] == {"memmap-random": 4.0, "memmap": 170.0}
    assert row["holds"]
    slower = runs | {"tiers": [a_run(10, 0.7, disk_bytes=8)]}
    assert not figures(slower, list(range(10, 20)), [])["holds"]
    with pytest.raises(SystemExit, match="memmap and tiers do not give the same rows"):
        figures(runs | {"memmap": [a_run(1, 1.0, checksums=["other"])]}, list(range(10)), [])


def fake_groups(folder, entries, file):
    """A folder that looks like control groups: each group has what a kernel would make."""
    group = folder / entries
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text("")
    if file == "memory.max":
        (group / file).write_text("max")
    return group


@pytest.mark.parametrize(
    ("entry", "place", "file"),
    [("4:memory:/a/b\n0::/\n", "memory/a/b", "memory.limit_in_bytes"), ("0::/a\n", "a", "memory.max")],
)
def test_a_limit_is_a_group_below_the_present_one(tmp_path, entry, place, file):
    above = fake_groups(tmp_path / "groups", place, file)
    own = tmp_path / "own"
    own.write_text(entry)
    limit = MemoryLimit(12345, root=tmp_path / "groups", own=own)
    group = above / f"graphbraid-{os.getpid()}"
    assert limit.is_in_force
    assert (group / file).read_text() == "12345"
    assert (group / "cgroup.procs").read_text() == str(os.getpid())
    for made in group.iterdir():  # a kernel's group is empty when it is removed
        made.unlink()
    limit.end()
    assert not limit.is_in_force
    assert not group.exists()
    assert (above / "cgroup.procs").read_text() == str(os.getpid())
    assert limit.reason == ""


def test_where_there_are_no_groups_it_says_why(tmp_path):
    own = tmp_path / "own"
    own.write_text("3:cpu:/\n")
    limit = MemoryLimit(1, root=tmp_path, own=own)
    assert not limit.is_in_force
    assert "no group that counts memory" in limit.reason
    limit.end()
