"""Rows of peers: two processes read a table that each keeps a half of."""

import pickle
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.extras import PATIENCE, in_threads
from torch import distributed, multiprocessing

from graphbraid.errors import ConfigError
from graphbraid.graph import ScaledFeatures
from graphbraid.machine import shared_tensors
from graphbraid.ops.gather import gather_tiered
from graphbraid.sampling.rows import shared_cache
from graphbraid.sampling.rows.device_cache import DeviceCache
from graphbraid.sampling.rows.shared_cache import PeerPlace, PeerRows, SharedDeviceCache

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
NUM_ROWS, NUM_LOCAL, NUM_SHARED = 60, 7, 21


def rows():
    return torch.arange(NUM_ROWS * 5.0).view(NUM_ROWS, 5)


def gathered_by(rank, num_peers, exchange, device, *, by_map, scaled=False):
    """Every row by id from a table of own rows, the peers' and the host's; what was asked of the source."""
    x, asked = (rows().to(torch.int8) if scaled else rows()), []
    order = (
        torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(3))
        if by_map
        else torch.arange(NUM_ROWS)
    )

    def source(ids):
        if len(ids) > 1:  # as more than one row is asked of each of the peers
            asked.append(ids)
        return x[ids]

    scale = torch.arange(1.0, NUM_ROWS + 1) if scaled else None
    kept = DeviceCache(torch.tensor([3]), NUM_ROWS, source, scale)
    hot = SharedDeviceCache(
        kept,
        order[: NUM_LOCAL + NUM_SHARED],
        NUM_LOCAL,
        PeerPlace(rank, num_peers, device, exchange),
    )
    shared = asked.pop()
    check_batches(hot, x, scale, device)
    host = x if device.type == "cpu" else x.pin_memory()
    if scaled:
        host = ScaledFeatures(values=host, scale=scale if device.type == "cpu" else scale.pin_memory())
    table = hot.tier_table(hot.table_on(device), host)
    assert (table.positions is None) != by_map
    ids = torch.arange(NUM_ROWS, device=device)
    found = gather_tiered(table, ids).cpu()
    before = hot.read.now()
    hot.count_in(table, ids)
    counted = hot.read.now()
    assert counted.own - before.own == NUM_LOCAL
    assert counted.peers - before.peers == NUM_SHARED
    assert counted.direct == NUM_ROWS - NUM_LOCAL - NUM_SHARED
    del table
    hot.close()
    assert hot.num_rows == NUM_LOCAL
    assert hot.num_shared == NUM_SHARED
    check_batches(hot, x, scale, device)
    return found, [shared]


def check_batches(hot, x, scale, device):
    """A batch that the CPU splits has its rows, from own ones, the peers' and those that travel."""
    ids = torch.randint(NUM_ROWS, (200,), generator=torch.Generator().manual_seed(4))
    wanted = x[ids] if scale is None else x[ids].float() * scale[ids, None]
    before = hot.read.now()
    assert torch.equal(hot.assembled(ids.to(device), lambda rows: widened(x, scale, rows)).cpu(), wanted)
    read, places = hot.read.now(), hot.slots(ids)
    assert read.reads - before.reads == 200
    assert read.own - before.own == int(((places >= 0) & (places < NUM_LOCAL)).sum())
    assert read.peers - before.peers == int((places >= NUM_LOCAL).sum())


def widened(x, scale, ids):
    return x[ids] if scale is None else x[ids].float() * scale[ids, None]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("by_map", [False, True])
@pytest.mark.parametrize("num_peers", [1, 2, 3])
def test_each_peer_keeps_its_part_and_reads_all(num_peers, by_map, scaled, monkeypatch):
    """The peers are threads of one process, whose handles are the tensors themselves."""
    known: dict[bytes, torch.Tensor] = {}

    def handle_of(part):
        handle = str(id(part)).encode()
        known[handle] = part
        return handle

    monkeypatch.setattr(shared_cache, "handle_of", handle_of)
    monkeypatch.setattr(shared_cache, "opened", known.__getitem__)
    given, meet = [None] * num_peers, threading.Barrier(num_peers)

    def run(rank):
        def exchange(handle):
            given[rank] = handle
            meet.wait(PATIENCE)
            everyone = list(given)
            meet.wait(PATIENCE)
            return everyone

        return gathered_by(rank, num_peers, exchange, CPU, by_map=by_map, scaled=scaled)

    found = in_threads(*(partial(run, rank) for rank in range(num_peers)))
    x = rows()
    wanted = x.to(torch.int8).float() * torch.arange(1.0, NUM_ROWS + 1)[:, None] if scaled else x
    for values, _ in found:
        assert torch.equal(values, wanted)
    asked = [len(ids) for _, [ids] in found]
    assert sum(asked) == NUM_SHARED
    assert max(asked) - min(asked) <= 1


def run_peer(rank, num_peers, folder, kind):
    """What each process runs, of its arguments."""
    rank, num_peers, folder = int(rank), int(num_peers), Path(folder)
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
    program = "import sys; from tests.sampling.test_peers import run_peer; run_peer(*sys.argv[1:])"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(rank), "2", str(folder), kind],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
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
        shared_cache.check_reads(
            torch.device("cuda:0"), torch.device("cuda:1"), "let each keep its own hot rows"
        )


def test_the_device_that_reads_is_given_the_access(monkeypatch):
    """PyTorch lets a copy's source access its destination: ``get_p2p_access(source, destination)``."""
    copies = []

    class On:
        def __init__(self, _, device):
            self.device = device

        def copy_(self, source):
            copies.append((str(source.device), str(self.device)))

    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_: True)
    monkeypatch.setattr(torch, "empty", On)
    shared_cache.check_reads(torch.device("cuda:0"), torch.device("cuda:1"), "")
    assert copies == [("cuda:0", "cuda:1")]


@pytest.mark.parametrize("num_shared", [0, 1, 2])
def test_a_peer_without_a_row_shares_nothing(num_shared, monkeypatch):
    """Memory of no rows has no handle."""
    monkeypatch.setattr(shared_cache, "handle_of", lambda part: b"x")
    monkeypatch.setattr(shared_cache, "opened", lambda _: rows()[:1])
    given = [b"x"] * num_shared + [b""] * (3 - num_shared)
    ids = torch.arange(num_shared)
    shared = PeerRows(ids, rows().__getitem__, rank=2, num_peers=3, device=CPU, exchange=lambda handle: given)
    assert [len(part) for part in shared.tier.parts] == [1] * num_shared + [0] * (3 - num_shared)
    assert shared.own_rows == 0
    shared.abandon()
    assert shared.nbytes == 0


@pytest.mark.parametrize("answer", ["late", "never", "error"])
def test_memory_is_shared_by_a_manager_that_answers_late(answer, monkeypatch):
    """PyTorch waits one second for the process that keeps shared memory; other errors are said at once."""
    tries = []

    def dumps(tensor):
        tries.append(tensor)
        if answer == "error":
            raise RuntimeError("unable to open shared memory")
        if answer == "never" or len(tries) < 3:
            raise RuntimeError("Shared memory manager connection has timed out")
        return b"handle"

    monkeypatch.setattr(shared_tensors.ForkingPickler, "dumps", dumps)
    if answer == "late":
        assert shared_tensors.handle_of(rows()) == b"handle"
    else:
        with pytest.raises(RuntimeError, match="timed out" if answer == "never" else "unable"):
            shared_tensors.handle_of(rows())
    assert len(tries) == {"late": 3, "never": 1 + shared_tensors._TRIES, "error": 1}[answer]
    assert multiprocessing.get_sharing_strategy() != "file_system"
