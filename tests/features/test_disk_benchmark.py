"""benchmarks.tiers.disk on a tiny store, and the limit of memory that it runs under."""

import os

import pytest
from benchmarks.common.rows import read_lines
from benchmarks.tiers import disk
from benchmarks.tiers.limited import MemoryLimit


@pytest.mark.usefixtures("warm_python")
@pytest.mark.slow
def test_contenders_agree_and_figures_are_kept(tmp_path, capsys, monkeypatch):
    out = tmp_path / "out.jsonl"
    sizes = ["--gigabytes", "0.01", "--memory", "2MiB", "--width", "64", "--steps", "6", "--repeats", "1"]
    others = ["--batch-size", "50", "--fanouts", "4", "3", "--no-cgroup", "--out", str(out)]
    disk.main(["--folder", str(tmp_path), *sizes, *others])
    said = capsys.readouterr().err
    [row] = read_lines(out)
    assert row["row"] == "0.01 GiB with 2MiB"
    assert row["steps"] == row["tiers"]["batches"] == row["memmap"]["batches"] == 6
    assert all(seconds[0] > 0 for seconds in row["seconds"].values())
    assert row["tiers"]["disk_rows"] + row["tiers"]["host_share"] * row["rows"] == pytest.approx(row["rows"])
    assert row["limits"][0]["request_bytes"] == 4096
    assert "times as fast" in said
    assert "random requests of 4.0 KiB" in said
    monkeypatch.setattr(disk, "last_json_line", None)  # nothing is run again
    disk.main(["--folder", str(tmp_path), *sizes, *others])
    assert read_lines(out) == [row]


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
