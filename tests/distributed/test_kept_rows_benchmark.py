"""benchmarks.distributed.kept_rows: its graph, its table, and a run within the machine."""

import pytest
import torch
from benchmarks.common.rows import read_lines
from benchmarks.distributed import kept_rows
from benchmarks.distributed.planted import skewed
from benchmarks.tables import distributed as tables


def test_few_nodes_of_a_skewed_graph_are_the_sources_of_most_edges_and_as_many_cross_as_asked():
    graph = skewed(4000, 2, 0.3)
    often = torch.bincount(graph.csc.indices.long(), minlength=4000).sort(descending=True).values
    assert int(often[:500].sum()) > graph.num_edges * 0.45
    into = torch.repeat_interleave(torch.arange(4000), graph.csc.indptr.diff())
    crossing = ((graph.csc.indices // 2000) != (into // 2000)).double().mean()
    assert float(crossing) == pytest.approx(0.3, abs=0.01)


def row_of(seconds, sending):
    rank = {"seconds": [seconds], "sent_bytes": 2e6, "received_bytes": 1e6, "hits": 0.5}
    return {
        "seconds": seconds,
        "processor_seconds": seconds / 2,
        "sending_seconds": sending,
        "by_longer": 1.1,
        "sent_by_foreseen": 1.0,
        "ranks": [rank, rank],
    }


def test_the_table_has_a_line_for_each_way(monkeypatch):
    ways = {way: row_of(0.2, 0.1) for way in kept_rows.WAYS}
    row = {
        "row": "2 ranks, 100 Mbit/s",
        "bits_per_second": 1e8,
        "ways": ways,
        "commit": "0",
        "date": "2026-11-27",
        "machine": {"cpu": "a", "cores": 2},
    }
    monkeypatch.setattr(tables, "read_rows", lambda _: [row])
    said = tables.kept_rows()
    assert "| 2 ranks, 100 Mbit/s | kept | 200 | 100 | 1.10 | 2.0 | 50 % | 1.000 |" in said
    assert "computing and sending: 100 Mbit/s (groups 1.10, kept 1.10)." in said
    assert "older" not in said
    del ways["kept"]["processor_seconds"]
    assert "These rows are older" in tables.kept_rows()


def test_epochs_that_no_rounds_make_are_refused(capsys):
    with pytest.raises(SystemExit):
        kept_rows.main(["--epochs", "3"])
    assert "--epochs must be a multiple of 2, not 3" in capsys.readouterr().err


@pytest.mark.slow
def test_ranks_of_one_machine_send_what_was_foreseen(tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    kept_rows.main(["--nodes", "3000", "--epochs", "2", "--rates", "--out", str(out)])
    (row,) = read_lines(out)
    ways = row["ways"]
    assert all(one["sent_by_foreseen"] == 1.0 for name, one in ways.items() if name != "all kept")
    sent = [max(rank["sent_bytes"] for rank in ways[way]["ranks"]) for way in kept_rows.WAYS]
    assert sent == sorted(sent, reverse=True)
    assert sent[-1] < sent[0] / 10  # rows that the first epoch had not read
    assert "sent by foreseen" in capsys.readouterr().out
