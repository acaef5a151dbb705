"""The benchmarks of scale and of gathering: stages done once, what they agree on, and the memory they say."""

import subprocess
import sys
import time
import types

import pytest
import torch
from benchmarks.common import room
from benchmarks.common.journal import Journal
from benchmarks.common.peak import PeakMemory
from benchmarks.common.rows import read_lines
from benchmarks.tiers import gather, scale, scale_stage
from tests.extras import PATIENCE

from graphbraid import Graph


def test_a_disk_without_room_is_told_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(scale, "run_stage", None)
    with pytest.raises(
        SystemExit, match=r"a graph of 330,000,000 edges needs 3[0-9]\.[0-9] GiB in .*f, which has"
    ):
        monkeypatch.setattr(room.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=4 << 30))
        scale.main(["--folder", str(tmp_path / "f")])
    (tmp_path / "f" / "made").write_bytes(b"1234")
    monkeypatch.setattr(room.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=6))
    room.require_room(tmp_path / "f", 10, "what is there in part")
    with pytest.raises(SystemExit, match=r"needs 11 B in .* 6 B free beside 4 B made before"):
        room.require_room(tmp_path / "f", 11, "it")


def test_fewer_nodes_are_evaluated():
    ids = torch.arange(100)
    graph = Graph.from_edge_index([[0], [1]], 100, splits={"train": ids[:10], "test": ids[10:]})
    few = scale_stage.with_fewer_tested(graph, 0.05)
    assert few.split("test").numel() == 5
    assert torch.isin(few.split("test"), ids[10:]).all()
    assert few.split("train").equal(ids[:10])
    assert scale_stage.with_fewer_tested(graph, 1.0).split("test").equal(ids[10:])


def test_a_journal_gives_what_the_same_command_gave(tmp_path):
    journal = Journal(tmp_path / "folder" / "journal.jsonl")
    assert journal.find("a", ["python", "-m", "a"]) is None
    journal.keep("a", ["python", "-m", "a"], {"seconds": 1})
    journal.keep("b", ["python", "-m", "b"], {"seconds": 2})
    assert journal.find("a", ["another/python", "-m", "a"]) == {"seconds": 1}
    assert journal.find("a", ["python", "-m", "a", "--more"]) is None
    journal.keep("a", ["python", "-m", "a", "--more"], {"seconds": 3}, voids=["b"])
    assert journal.find("a", ["python", "-m", "a"]) is None
    assert journal.find("a", ["python", "-m", "a", "--more"]) == {"seconds": 3}
    assert journal.find("b", ["python", "-m", "b"]) is None


def test_a_stage_voids_all_that_was_made_of_it():
    assert scale.followers("make") == set(scale.STAGES) - {"make"}
    assert scale.followers("train reordered") == {"evaluate"}
    assert scale.followers("evaluate") == set()


def test_losses_that_differ_are_no_result():
    rows = [{"stage": f"train {where}", "losses": [1.0, 0.5]} for where in ("reordered", "in memory")]
    scale.check_losses(rows)
    rows[1] = {"stage": "train in memory", "losses": [1.0, 0.25]}
    with pytest.raises(SystemExit, match="differ"):
        scale.check_losses(rows)


def test_peak_memory_counts_what_a_process_took_and_gave_back():
    code = "x = bytearray(b'1') * (64 << 20); print('full', flush=True); input(); del x; input()"
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    with process, PeakMemory(process) as peak:
        assert process.stdout.readline() == "full\n"
        until = time.monotonic() + PATIENCE
        while peak.own_bytes < 64 << 20:  # when it looks depends on the machine's load
            assert time.monotonic() < until
            time.sleep(0.01)
        process.communicate("\n\n", timeout=PATIENCE)
        assert process.returncode == 0
    assert 64 << 20 < peak.own_bytes <= peak.resident_bytes < 200 << 20


@pytest.mark.slow
def test_gathered_rows_stand_beside_a_loop_in_c(tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    arguments = ["--gigabytes", "0.004", "--row-bytes", "128", "512", "--repeats", "1"]
    gather.main([*arguments, "--folder", str(tmp_path), "--out", str(out)])
    rows = read_lines(out)
    assert [(row["row_bytes"], row["threads"]) for row in rows] == [(128, 1), (128, 2), (512, 1), (512, 2)]
    for row in rows:
        rates = row["bytes_per_second"]
        assert all(rate > 0 for rate in rates.values())
        assert row["of_limit"] == {name: rates[name] / rates["limit"] for name in ("kernel", "tiers", "map")}
    assert "of the limit" in capsys.readouterr().out


def test_a_contender_with_wrong_rows_ends_the_gathering():
    table, ids, out = torch.arange(12).view(4, 3), torch.tensor([2, 0]), torch.zeros(2, 3, dtype=torch.int64)
    gather.check({"right": lambda i, o: o.copy_(table[i])}, table, ids, out)
    with pytest.raises(SystemExit, match="wrong gave other rows"):
        gather.check({"wrong": lambda i, o: o.copy_(table[:2])}, table, ids, out)
