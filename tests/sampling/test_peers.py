"""Rows of peers: two processes read a table that each keeps a half of."""

import pickle
import threading

import pytest
import torch
from tests.extras import PATIENCE
from torch import distributed, multiprocessing

from graphbraid.errors import ConfigError
from graphbraid.ops.gather.gather_tiered import gather_tiered
from graphbraid.sampling.rows import peers
from graphbraid.sampling.rows.hot import HotRows
from graphbraid.sampling.rows.peers import PeerRows

CPU = torch.device("cpu")
NUM_ROWS, NUM_LOCAL, NUM_SHARED = 60, 7, 21


def rows():
    return torch.arange(NUM_ROWS * 5.0).view(NUM_ROWS, 5)


def gathered_by(rank, num_peers, exchange, device, *, by_map):
    """Every row by id from a table of own rows, the peers' and the host's; what was asked of the source."""
    x, asked = rows(), []
    order = (
        torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(3))
        if by_map
        else torch.arange(NUM_ROWS)
    )

    def source(ids):
        asked.append(ids)
        return x[ids]

    hot = HotRows(order[:NUM_LOCAL], NUM_ROWS, x.__getitem__)
    shared = PeerRows(
        order[NUM_LOCAL : NUM_LOCAL + NUM_SHARED],
        source,
        rank=rank,
        num_peers=num_peers,
        device=device,
        exchange=exchange,
    )
    host = x if device.type == "cpu" else x.pin_memory()
    table = hot.tier_table(hot.table_on(device), host, shared)
    assert (table.positions is None) != by_map
    found = gather_tiered(table, torch.arange(NUM_ROWS, device=device)).cpu()
    del table
    shared.close()
    return found, asked


@pytest.mark.parametrize("by_map", [False, True])
@pytest.mark.parametrize("num_peers", [1, 2, 3])
def test_each_peer_keeps_its_part_and_reads_all(num_peers, by_map, monkeypatch):
    """In threads of one process, whose handles are the tensors themselves."""
    monkeypatch.setattr(peers, "handle_of", lambda part: part)
    monkeypatch.setattr(peers, "opened", lambda part: part)
    given, meet, found = [None] * num_peers, threading.Barrier(num_peers), [None] * num_peers

    def run(rank):
        def exchange(handle):
            given[rank] = handle
            meet.wait(PATIENCE)
            everyone = list(given)
            meet.wait(PATIENCE)
            return everyone

        found[rank] = gathered_by(rank, num_peers, exchange, CPU, by_map=by_map)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(num_peers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for values, _ in found:
        assert torch.equal(values, rows())
    asked = [len(ids) for _, [ids] in found]
    assert sum(asked) == NUM_SHARED
    assert max(asked) - min(asked) <= 1


def run_peer(rank, num_peers, folder, kind):
    """What each process runs."""
    multiprocessing.set_sharing_strategy("file_system")
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=num_peers
    )

    def exchange(handle):
        everyone = [None] * num_peers
        distributed.all_gather_object(everyone, handle)
        return everyone

    found, asked = gathered_by(rank, num_peers, exchange, torch.device(kind), by_map=True)
    (folder / f"{rank}.pickle").write_bytes(pickle.dumps((found.tolist(), [len(ids) for ids in asked])))
    distributed.destroy_process_group()


def check_two_processes(folder, kind):
    multiprocessing.spawn(run_peer, (2, folder, kind), nprocs=2)
    for rank, kept in ((0, 11), (1, 10)):
        found, asked = pickle.loads((folder / f"{rank}.pickle").read_bytes())
        assert torch.equal(torch.tensor(found), rows())
        assert asked == [kept]


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_read_each_others_rows(tmp_path):
    check_two_processes(tmp_path, "cpu")


@pytest.mark.gpu
@pytest.mark.distributed
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, which two processes share")
def test_two_processes_on_one_device_read_each_others_rows(tmp_path):
    check_two_processes(tmp_path, "cuda")


def test_ranks_and_devices_that_do_not_fit_are_refused(monkeypatch):
    options = {"device": CPU, "exchange": lambda handle: [handle]}
    with pytest.raises(ConfigError, match="rank must be"):
        PeerRows(torch.arange(3), rows().__getitem__, rank=1, num_peers=1, **options)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_: False)
    with pytest.raises(ConfigError, match="cuda:0 cannot read the memory of cuda:1"):
        peers.check_reads(torch.device("cuda:0"), torch.device("cuda:1"), "let each keep its own hot rows")
