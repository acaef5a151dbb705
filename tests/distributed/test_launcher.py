"""What a launcher says by its variables: the place of a process, and where its job meets."""

import itertools
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed
from tests.distributed.ranks import ROOT, run
from tests.distributed.training import trained_in_a_given_group
from tests.extras import PATIENCE
from tests.suites import few_of

from graphbraid.distributed.ranks import meeting
from graphbraid.distributed.ranks.meeting import Meeting, check_equal, in_ranges
from graphbraid.errors import ConfigError, RankError
from graphbraid.machine.launcher import RankPlace, address, first_node, interface_to, place, restartable_job

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29400"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
BATCH_SCRIPT = {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "1234567"}
SRUN = BATCH_SCRIPT | {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[003-004]",
}


@pytest.mark.parametrize(
    ("variables", "found", "meets"),
    [
        ({}, None, None),
        (TORCHRUN, (5, 8, 1), ("a", 29400)),
        (OPEN_MPI, (1, 2, 1), ("127.0.0.1", 29500)),
        (MPICH | {"MASTER_ADDR": "b"}, (3, 4, 1), ("b", 29500)),
        (SRUN, (3, 4, 1), ("gpu003", 29500 + 4567)),
        (BATCH_SCRIPT, None, None),
        (SRUN | OPEN_MPI, (1, 2, 1), ("127.0.0.1", 29500)),  # mpirun, started in a step
        (SRUN | OPEN_MPI | TORCHRUN, (5, 8, 1), ("a", 29400)),
    ],
)
def test_each_launcher_is_understood(variables, found, meets):
    here = place(variables)
    assert (here and (here.rank, here.size, here.local_rank)) == found
    assert (here and address(here, variables)) == meets


def test_ranks_of_several_machines_need_an_address():
    here = place(MPICH)
    with pytest.raises(ConfigError, match="Set MASTER_ADDR to its name for all ranks"):
        address(here, MPICH)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        (TORCHRUN | {"RANK": "first"}, "RANK must be a whole number; got 'first'"),
        ({k: v for k, v in TORCHRUN.items() if k != "MASTER_PORT"}, "but MASTER_PORT is not"),
        (SRUN | {"SLURM_STEP_NODELIST": ",[]"}, "must begin with the name of a machine"),
    ],
)
def test_variables_that_cannot_be_are_refused(variables, says):
    with pytest.raises(ConfigError, match=says):
        address(place(variables), variables)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("a", "a"),
        ("a,b", "a"),
        ("n[3,7-9]", "n3"),
        ("gpu[003-006,9]x,login", "gpu003x"),
        ("a-1.net,b", "a-1.net"),
    ],
)
def test_the_first_of_slurms_nodes(nodes, first):
    assert first_node(nodes) == first


def test_the_interface_to_this_machine_is_its_own():
    assert interface_to("127.0.0.1", 1) == "lo"
    assert interface_to("no.such.machine.invalid", 1) is None


def test_a_job_is_told_from_others_only_where_it_is_restarted(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_MAX_RESTARTS", raising=False)
    assert restartable_job() == ""
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    own = restartable_job()
    assert own.count("/") == 2
    assert restartable_job() == own
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "papers-7")
    assert restartable_job() == "papers-7"


def test_it_is_shown_who_is_missing(monkeypatch, caplog):
    monkeypatch.setattr(meeting, "_SHOWN_SECONDS", 0.1)
    store = torch.distributed.HashStore()
    for rank, machine in ((1, "host-a"), (3, "host-b"), (4, "host-b")):
        store.set(f"here/{rank}/who", f'["{machine}", {{}}]')
        store.set(f"size/{rank}", "8")
    first = Meeting(host="host-a", port=29500, rank=0, size=8, opens=False, seconds=0.5)
    with pytest.raises(RankError, match=r"of 8 ranks, 2, 5-7 did not come to host-a:29500 in 0\.5 s"):
        first.wait_for_all(store)
    (record,) = caplog.records
    title, *rows = record.getMessage().splitlines()
    assert title == "4 of 8 ranks have not come to host-a:29500 in 0.1 s; they are awaited for 0.5 s:"
    shown = dict(row.split(maxsplit=1) for row in rows)
    assert shown["host-b"] == "3-4"
    assert shown["missing"] == "2, 5-7"
    caplog.clear()
    second = Meeting(host="host-a", port=29500, rank=2, size=8, opens=False, seconds=0.5)
    with pytest.raises(RankError):
        second.wait_for_all(store)  # rank 0 says it for all
    assert not caplog.records


@pytest.mark.parametrize("died", ["after it joined", "before it joined"])
def test_ranks_that_are_started_again_leave_the_earlier_start_alone(died):
    store, numbers = torch.distributed.HashStore(), itertools.count()

    def ranks() -> list[Meeting]:
        options = {"host": "a", "port": 1, "size": 2, "opens": False, "seconds": PATIENCE, "restarts": True}
        return [Meeting(rank=rank, **options) for rank in range(2)]

    def met(rank: Meeting) -> str:
        mine = str(next(numbers))
        rank.meet(lambda: store)("room").set(mine, "here")
        return next(one for one in "12" if store.check([f"graphbraid/{one}/room/{mine}"]))

    with ThreadPoolExecutor(2) as pool:
        if died == "after it joined":
            assert [*pool.map(met, ranks())] == ["1", "1"]
        else:
            assert ranks()[0]._start(torch.distributed.PrefixStore("graphbraid", store)) == "1"
        first, second = ranks()
        early = pool.submit(met, second)
        time.sleep(0.3)
        assert not early.done()  # it finds the earlier start's number
        assert met(first) == early.result() == "2"


def test_nothing_starts_by_ssh_forks_or_names_shared_memory():
    """Users of other systems met a wrong Python behind ssh, crashes in forks, and a full /dev/shm."""
    found = re.compile(r"\bssh\b|os\.fork\(|\bshm_open\b|/dev/shm|multiprocessing\.(Process|Pool)\b")
    files = [path for kind in ("py", "cpp", "h", "inl") for path in (ROOT / "src").rglob(f"*.{kind}")]
    assert len(files) > 400
    assert [str(path) for path in files if found.search(path.read_text(encoding="utf-8"))] == []


def test_numbers_are_shown_in_ranges():
    assert in_ranges([7, 1, 2, 3]) == "1-3, 7"
    assert in_ranges([]) == ""


def test_the_first_difference_is_named():
    with pytest.raises(ConfigError, match=r"rank 0 has torch '2.13', rank 2 has None; advice\."):
        check_equal([{"torch": "2.13"}, {"torch": "2.13"}, {}], "advice")


@pytest.mark.distributed
@pytest.mark.parametrize("size", few_of((2, 3), {2}))
def test_a_process_group_that_exists_is_used(size):
    """As Ray Train makes one before it calls a training function."""
    said = run(size, trained_in_a_given_group, GIVEN_GROUP="1")
    results = [one.result for one in said]
    assert all(result == results[0] for result in results)
    assert results[0]["name"].startswith("gloo")
    assert results[0]["group_lives"]


def test_places_are_compared_by_their_fields():
    assert place(OPEN_MPI) == RankPlace("mpirun of Open MPI", 1, 2, 1, is_on_one_machine=True)
