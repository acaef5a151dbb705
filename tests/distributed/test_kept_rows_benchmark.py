"""benchmarks.distributed.kept_rows: its graph, and a run within the machine."""

import pytest
import torch
from benchmarks.common.rows import read_lines
from benchmarks.distributed import kept_rows
from benchmarks.distributed.planted import skewed


def test_few_nodes_of_a_skewed_graph_are_the_sources_of_most_edges_and_as_many_cross_as_asked():
    graph = skewed(4000, 2, 0.3)
    often = torch.bincount(graph.csc.indices.long(), minlength=4000).sort(descending=True).values
    assert int(often[:500].sum()) > graph.num_edges * 0.45
    into = torch.repeat_interleave(torch.arange(4000), graph.csc.indptr.diff())
    crossing = ((graph.csc.indices // 2000) != (into // 2000)).double().mean()
    assert float(crossing) == pytest.approx(0.3, abs=0.01)


def test_epochs_that_no_rounds_make_are_refused(capsys):
    with pytest.raises(SystemExit):
        kept_rows.main(["--epochs", "3"])
    assert "--epochs must be a multiple of 2, not 3" in capsys.readouterr().err


@pytest.mark.long  # a whole benchmark: its parts have the other tests
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
