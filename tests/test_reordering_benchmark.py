"""The reordering benchmark: its contenders' digests tell graphs apart, and our side runs."""

import json
from pathlib import Path

import torch
from benchmarks.peers.reordering import degree_order, digest
from benchmarks.tiers import reordering, topology
from tests import warm

from graphbraid import Graph
from graphbraid.features import reorder

ROOT = Path(__file__).parents[1]


def test_a_digest_tells_edges_and_not_their_order_within_a_list(tmp_path):
    csc = topology.load(topology.make(tmp_path, 5000))
    found = digest(csc.indptr, csc.indices, step=7)
    assert found == digest(csc.indptr, csc.indices)
    backwards = Graph(csc=csc).csc.indices.flip(0)
    last = csc.indptr[-1]
    assert digest(last - csc.indptr.flip(0), backwards) != found
    turned = reorder(Graph(csc=csc), torch.arange(csc.num_dst - 1, -1, -1)).graph.csc
    again = reorder(Graph(csc=turned), torch.arange(csc.num_dst - 1, -1, -1), sort_neighbors=True).graph.csc
    assert digest(turned.indptr, turned.indices) != found
    assert digest(again.indptr, again.indices) == found


def test_our_side_prints_a_line_with_the_digest_of_the_reordered_graph(tmp_path):
    folder = topology.make(tmp_path, 5000)
    done = warm.run(["-m", "benchmarks.tiers.reordering_ours", folder], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    csc = topology.load(folder)
    expected = reorder(Graph(csc=csc), degree_order(csc.indices, csc.num_dst)).graph.csc
    assert row["digest"] == digest(expected.indptr, expected.indices)
    assert row["num_edges"] == csc.num_edges
    assert row["topology_bytes"] == csc.nbytes


def test_graphs_that_differ_are_no_result():
    run = {"seconds": 1.0, "digest": 1, "num_edges": 3, "peak_bytes": 8, "topology_bytes": 4}
    mine, theirs = (reordering.Contender(name, []) for name in ("graphbraid", "dgl"))
    mine.runs = [run | {"copy_seconds": 0.1, "lookup_seconds": 0.5}]
    theirs.runs = [run | {"seconds": 20.0}]
    row = reordering.summary(mine, theirs)
    assert (row["ratio"], row["dgl"]["peak_of_topology"], row["floor_seconds"]) == (20.0, 2.0, 0.5)
    theirs.runs.append(run | {"digest": 2})
    try:
        reordering.summary(mine, theirs)
    except SystemExit as stopped:
        assert "differ" in str(stopped)
    else:
        raise AssertionError("was taken")
