"""Ranks read each other's rows where they are: equal sums and gradients, rows that are there when read."""

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.distributed import peers
from tests.distributed.ranks import run
from tests.distributed.threads import run_threads
from tests.extras import NO_TRITON
from tests.ops.graphs import values
from tests.ops.peers import COEFFICIENTS, divided_maps, owned_by, share_of
from tests.suites import few_of

from graphbraid.distributed import Communicator
from graphbraid.distributed.peers import PeerMap, Peers, PeerSum, SharedRows, places_of_halo, reversed_edges
from graphbraid.errors import ConfigError, DataError
from graphbraid.ops.peers import PipelineConfig

PART_OF = torch.arange(peers.NUM_NODES) % 3
X, WEIGHING = (values(peers.NUM_NODES, peers.WIDTH, seed=seed) for seed in (1, 9))


@pytest.fixture
def in_threads(monkeypatch):
    peers.share_in_threads(monkeypatch)


def put_together(part_of, num_ranks, of_ranks):
    whole = torch.full((part_of.numel(), of_ranks[0].shape[1]), torch.nan)
    for own, rows in zip(owned_by(part_of, num_ranks), of_ranks, strict=True):
        whole[own] = rows
    return whole


def assert_as_the_whole_graph(how, part_of, num_ranks, x, weighing, config):
    found = run_threads(num_ranks, lambda comm: peers.computed(comm, how, part_of, x, weighing, [config]))
    for i, whole in enumerate(peers.expected(how, x, weighing)):
        together = put_together(part_of, num_ranks, [rank[0][i] for rank in found])
        torch.testing.assert_close(together, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("wanted", COEFFICIENTS)
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_sums_and_gradients_are_the_whole_graphs(in_threads, num_ranks, wanted):
    part_of = torch.arange(peers.NUM_NODES) % num_ranks
    assert_as_the_whole_graph(peers.map_of(wanted), part_of, num_ranks, X, WEIGHING, PipelineConfig(ps=3))


@pytest.mark.slow
def test_sums_and_gradients_are_the_whole_graphs_for_any_graph_and_owners(in_threads):
    @settings(max_examples=25)
    @given(case=divided_maps(), ps=st.integers(1, 12))
    def check(case, ps):
        how, part_of, num_ranks = case
        x, weighing = (values(how.csc.num_src, 2, seed=seed) for seed in (1, 9))
        assert_as_the_whole_graph(how, part_of, num_ranks, x, weighing, PipelineConfig(ps=ps))

    check()


@pytest.mark.parametrize("wanted", ["scales", "plain"])
def test_edges_reversed_twice_are_the_edges(in_threads, wanted):
    how = peers.map_of(wanted)

    def both(comm):
        edges, _ = share_of(how, PART_OF, comm.rank, 3)
        return edges, reversed_edges(comm, reversed_edges(comm, edges))

    for edges, twice in run_threads(3, both):
        assert (twice.rows_read, twice.num_rows) == (edges.rows_read, edges.num_rows)
        assert (twice.remote_factor is None) == (wanted == "plain")
        for csc, owner, again, owner_again in (
            (edges.local, None, twice.local, None),
            (edges.remote, edges.owner, twice.remote, twice.owner),
        ):
            ends = [
                sorted(zip(one.destinations().tolist(), one.indices.tolist(), who, strict=True))
                for one, who in (
                    (csc, [0] * csc.num_edges if owner is None else owner.tolist()),
                    (again, [0] * again.num_edges if owner_again is None else owner_again.tolist()),
                )
            ]
            assert ends[0] == ends[1]


def test_ranks_tell_each_other_where_the_rows_of_halos_are():
    sent = {0: ([4, 5, 1], [0, 2, 1]), 1: ([7], [1, 0, 0]), 2: ([], [0, 0, 0])}
    received = {0: [0, 1, 0], 1: [2, 0, 0], 2: [1, 0, 0]}

    def run(comm):
        rows, counts = sent[comm.rank]
        send = torch.tensor(rows, dtype=torch.int64)
        return [t.tolist() for t in places_of_halo(comm, send, counts, received[comm.rank])]

    assert run_threads(3, run) == [[[1], [7]], [[0, 0], [4, 5]], [[0], [1]]]


def test_rows_are_read_only_when_all_have_written_and_written_only_when_all_have_read(in_threads):
    def run(comm):
        rows, seen = SharedRows(Peers(comm, peers.HOST), comm.rank + 1, 2), []
        for step in range(6):
            time.sleep(0.002 * ((comm.rank + step) % 3))  # each is the slowest in turn
            rows.writable().fill_(10 * step + comm.rank)
            rows.publish()
            time.sleep(0.002 * ((comm.rank + step) % 2))
            seen.append([sorted(set(part.flatten().tolist())) for part in rows.readable().parts])
        rows.close()
        rows.close()  # has nothing left to do
        return seen

    expected = [[[10 * step + rank] for rank in range(3)] for step in range(6)]
    assert run_threads(3, run) == [expected] * 3


def test_an_exchange_between_two_others_meets_once(in_threads):
    def run(comm):
        group = Peers(comm, peers.HOST)
        one, other = SharedRows(group, 1, 1), SharedRows(group, 1, 1)
        met = group.num_meetings
        for _ in range(5):
            for rows in (one, other):
                rows.writable()
                rows.publish()
                rows.readable()
        return group.num_meetings - met, one.nbytes

    assert run_threads(2, run) == [(10, 4)] * 2


def test_a_rank_alone_reads_its_own_rows():
    how, part_of = peers.map_of("all"), torch.zeros(peers.NUM_NODES, dtype=torch.int64)
    comm = Communicator()
    [(out, grad)] = peers.computed(comm, how, part_of, X, WEIGHING, [PipelineConfig()])
    whole = peers.expected(how, X, WEIGHING)
    torch.testing.assert_close((out, grad), whole, rtol=1e-5, atol=1e-5)


def test_a_sum_without_a_gradient_shares_one_matrix(in_threads):
    how = peers.map_of("mean")

    def run(comm):
        edges, _ = share_of(how, PART_OF, comm.rank, 3)
        summed = PeerSum(PeerMap(Peers(comm, peers.HOST), edges, learns=False), peers.WIDTH)
        out = summed.forward(X[owned_by(PART_OF, 3)[comm.rank]], addend=torch.ones(2, peers.WIDTH))
        with pytest.raises(AssertionError, match="without a gradient"):
            summed.backward(out)
        summed.close()
        return out

    whole = how.forward(X)
    for own, out in zip(owned_by(PART_OF, 3), run_threads(3, run), strict=True):
        torch.testing.assert_close(out[:2], whole[own][:2] + 1, rtol=1e-5, atol=1e-5)


def test_rows_and_edges_that_do_not_fit_are_refused():
    comm = Communicator()
    edges, _ = share_of(peers.map_of("plain"), torch.zeros(peers.NUM_NODES, dtype=torch.int64), 0, 1)
    summed = PeerSum(PeerMap(Peers(comm, peers.HOST), edges), peers.WIDTH)
    with pytest.raises(DataError, match=r"rows must be torch.float32 of shape \(24, 5\); got torch.float64"):
        summed(X.double())
    other, _ = share_of(peers.map_of("plain"), PART_OF, 1, 3)
    with pytest.raises(DataError, match="edges are of rank 1 of 3; this is rank 0 of 1"):
        PeerMap(Peers(comm, peers.HOST), other)


# ---- processes


@pytest.mark.distributed
@pytest.mark.parametrize("size", few_of((2, 3), {2}))
def test_processes_read_each_others_rows_through_shared_memory(size):
    for said in run(size, peers.check_in_processes, "twin", "all"):
        assert said.result["checked"] == 2


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("size", [3, pytest.param(2, marks=pytest.mark.long)])
def test_the_interpreted_kernel_reads_the_rows_of_other_processes(size):
    pytest.importorskip("triton", reason=NO_TRITON)
    said = run(size, peers.check_in_processes, "interpreted", "scales", TRITON_INTERPRET="1")
    assert [one.result["rows"] for one in said] == {2: [24, 0], 3: [12, 12, 0]}[size]


@pytest.mark.slow
@pytest.mark.distributed
def test_a_rank_that_fails_ends_the_wait_for_its_rows():
    first, second = run(2, peers.failing)
    assert (first.code, second.code) == (8, 2)
    assert "rank 1 failed: no rows today" in first.stderr


NO_CARD = "needs a CUDA device, which two processes share"


@pytest.mark.gpu
@pytest.mark.distributed
@pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_CARD)
def test_processes_on_one_card_read_each_others_rows(tmp_path):
    for said in peers.run_on_one_card(2, tmp_path, peers.check_in_processes, "compiled", "all"):
        assert said["checked"] == 2


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(
    ("what", "why"),
    few_of(
        [
            ("nothing", ""),
            ("machine", "rank 1 is on another machine than rank 0"),
            ("sharing", "rank 0: rank 1 cannot share its memory"),
            ("opening", "rank 1: no such memory"),
            (
                "memory",
                "rank 1: the memory of rank 0 does not hold what it wrote there; rows are exchanged instead",
            ),
        ],
        {"memory"},
    ),
)
def test_all_ranks_know_why_they_cannot_read_each_other(what, why):
    assert [said.result for said in run(2, peers.probed, what)] == [why] * 2


def test_ranks_on_other_kinds_of_devices_are_no_peers_and_share_nothing(monkeypatch):
    monkeypatch.setattr("graphbraid.distributed.peers._card", lambda device: "")

    def run(comm):
        group = Peers(comm, torch.device("cpu" if comm.rank else "cuda"))
        with pytest.raises(ConfigError, match="let rows travel between these ranks"):
            SharedRows(group, 1, 1)
        return group.why_not

    assert run_threads(2, run) == ["rank 1 computes on cpu and rank 0 on cuda"] * 2


@pytest.mark.parametrize(
    ("kind", "cards", "name", "by_host"),
    [
        ("cpu", ["", ""], "gloo", False),  # the stand-in, whose rows are on the host
        ("cuda", ["a", "b"], "gloo+nccl", False),
        ("cuda", ["a", "a"], "gloo+nccl", True),  # NCCL refuses two ranks on one card
        ("cuda", ["a", "b"], "mpi", True),
    ],
)
def test_rows_of_devices_travel_by_the_host_unless_nccl_moves_them(monkeypatch, kind, cards, name, by_host):
    monkeypatch.setattr("graphbraid.distributed.peers._card", lambda device: next(given))
    monkeypatch.setattr(Peers, "_why_not", lambda self: "not tried")
    given = iter(cards)

    def run(comm):
        comm.name = name
        return Peers(comm, torch.device(kind)).by_host

    assert run_threads(2, run) == [by_host] * 2
