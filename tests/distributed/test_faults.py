"""A rank that is lost, stopped, stuck or failed ends the job on every rank, with a message that says so."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from benchmarks.distributed.links import Links, why_not
from tests.distributed import training
from tests.distributed.contract import every_case
from tests.distributed.ranks import PROGRAM, environment, run
from tests.extras import PATIENCE, ran

from graphbraid.distributed.ranks.meeting import Meeting
from graphbraid.errors import RankError

pytestmark = pytest.mark.distributed
LIMIT = {"GRAPHBRAID_RANK_LIMIT": "6"}
"""A rank that is silent for so many seconds counts as lost: one that a busy machine holds up must not."""
MEETING = {"GRAPHBRAID_RANK_MEETING": "5"}
"""Seconds to wait for ranks that do not come; those that do come are there by then."""
SOON = PATIENCE
"""Seconds from the start to the end of the last rank, with all training before."""


@pytest.mark.slow
def test_a_killed_rank_is_named_and_a_restart_goes_on(tmp_path):
    first, second, third = run(3, training.faulty, "killed", tmp_path)
    assert third.code == -signal.SIGKILL
    for said in (first, second):
        assert said.code == 8, said.stderr
        assert "rank 2 is lost: its process" in said.stderr
        # torch may warn of a store that went away, if rank 0 ends first; no traceback comes with ours.
        *_, last = said.stderr.splitlines()
        assert last.startswith("RankError: ")
        assert said.stderr.count("RankError") == 1
        assert "Traceback" not in said.stderr
        assert said.seconds < SOON
    assert not [path for path in tmp_path.rglob("*") if "tmp" in path.name]
    again = run(2, training.with_checkpoints, tmp_path / "run", 3, "resume")
    assert [len(one.result["losses"]) for one in again] == [14, 14]  # from the end of the first epoch


@pytest.mark.slow
def test_a_rank_that_is_lost_while_ranks_connect_is_missed():
    """Gloo alone would wait for it until its own timeout, 31 minutes."""
    *others, lost = run(3, every_case, each={2: {"LOST_AT_GROUP": "1"}}, **LIMIT)
    assert lost.code == -signal.SIGKILL
    for said in others:
        assert said.code == 8, said.stderr
        assert "rank 2 is lost" in said.stderr or "which rank 0 holds, is lost" in said.stderr
        assert said.seconds < SOON


@pytest.mark.slow
def test_the_rank_that_holds_the_meeting_point_is_missed(tmp_path):
    _, *others = run(3, training.faulty, "first killed", tmp_path, **LIMIT)
    for said in others:
        assert said.code == 8, said.stderr
        assert "rank 0 is lost" in said.stderr or "which rank 0 holds, is lost" in said.stderr
        assert said.seconds < SOON


@pytest.mark.slow
def test_a_stopped_rank_is_missed(tmp_path):
    first, second, _ = run(3, training.faulty, "stopped", tmp_path, STOPPED="1", **LIMIT)
    for said in (first, second):
        assert said.code == 8, said.stderr
        assert "rank 2 has given no sign of life for" in said.stderr
        assert said.seconds < SOON


@pytest.mark.slow
def test_a_stopped_rank_is_missed_where_ranks_share_no_memory(tmp_path):
    """Gloo would wait for it until its own timeout, at the latest when its process group is destroyed."""
    limits = {"GRAPHBRAID_RANK_MEMORY": "0", **LIMIT}
    said, _ = run(2, training.faulty, "stopped", tmp_path, STOPPED="1", **limits)
    assert said.code == 8, said.stderr
    assert "rank 1 has given no sign of life for" in said.stderr
    assert said.seconds < SOON


@pytest.mark.slow
def test_a_rank_that_is_stuck_is_named_when_patience_ends(tmp_path):
    # Long beside what ranks may wait for each other at the start of a busy machine's run.
    first, _ = run(2, training.faulty, "stuck", tmp_path, STOPPED="1", GRAPHBRAID_RANK_PATIENCE="8")
    assert first.code == 8
    assert "rank 0 has waited 8 s in all_reduce" in first.stderr
    assert "not there yet: rank 1 (" in first.stderr
    assert first.seconds < SOON


@pytest.mark.parametrize(
    ("what", "says"),
    [
        pytest.param("memory", "rank 1 failed: [enforce fail", marks=pytest.mark.slow),
        ("raises", "rank 1 failed: a user's own mistake"),
    ],
)
def test_what_a_rank_raises_is_told_by_all(what, says, tmp_path):
    first, second = run(2, training.faulty, what, tmp_path)
    assert first.code == 8
    assert says in first.stderr
    assert second.code == 1
    assert first.seconds < SOON


@pytest.mark.slow
def test_replicas_that_drift_apart_are_noticed(tmp_path):
    for said in run(2, training.faulty, "drifts", tmp_path):
        assert said.code == 8
        assert "rank 1 no longer holds the same parameters as rank 0 at the end of epoch 1" in said.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "status"),
    [pytest.param("asks to stop", "stopped", marks=pytest.mark.slow), ("terminated", "interrupted")],
)
def test_all_ranks_stop_after_the_same_step(what, status, tmp_path):
    said = run(2, training.faulty, what, tmp_path)
    first, second = (one.result for one in said)
    assert first == second
    assert first["status"] == status
    assert first["steps"] in (10, 11)  # agreed within the next step


@pytest.mark.slow
def test_a_port_in_use_is_said():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        first, second = run(2, every_case, MASTER_PORT=port, GRAPHBRAID_RANK_MEETING="3")
    assert first.code == 4
    assert f"port {port} is in use by another program on this machine" in first.stderr
    assert second.code == 8
    assert "found nobody at" in second.stderr


def rubbish(server: socket.socket) -> None:
    """Answer as another program does, as long as somebody calls."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()


@pytest.mark.parametrize("stranger", [True, False])
def test_a_rank_that_finds_no_meeting_point_says_so_in_one_line(stranger):
    """As it is started by hand: torch printed stack traces, and aborted the process as it ended."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # nobody listens there, and no other program takes the port
        port = server.getsockname()[1]
        if stranger:
            server.listen()
            threading.Thread(target=rubbish, args=(server,), daemon=True).start()
        meeting = Meeting(host="127.0.0.1", port=port, rank=1, size=2, opens=False, seconds=0.3)
        with pytest.raises(RankError, match="found nobody at") as caught:
            meeting.store()
        why = "another program answers there|reset by peer" if stranger else "Connection refused"
        assert re.search(why, str(caught.value))
        assert not [t for t in threading.enumerate() if t.name == "graphbraid-meeting"]


@pytest.mark.slow
def test_ranks_that_do_not_come_are_named():
    each = {0: {"WORLD_SIZE": "3"}, 1: {"WORLD_SIZE": "3"}}
    said = run(2, every_case, each=each, **MEETING)
    assert [one.code for one in said] == [8, 8], said
    assert "of 3 ranks, 2 did not come to" in said[0].stderr
    assert "of 3 ranks, 2 did not come to" in said[1].stderr
    assert [one.stderr.count("\n") for one in said] == [1, 1]  # no stack trace of a store that went away


def test_ranks_that_count_differently_are_told_so():
    said = run(2, every_case, each={1: {"WORLD_SIZE": "3"}})
    assert [one.code for one in said] == [2, 2], said
    assert "rank 0 was started as one of 2 ranks, rank 1 as one of 3" in said[0].stderr
    assert "rank 1 was started as one of 3 ranks, rank 0 as one of 2" in said[1].stderr
    assert [one.stderr.count("\n") for one in said] == [1, 1]  # no stack trace of a store that went away


@pytest.mark.slow
def test_two_processes_with_one_number_are_refused():
    said = run(3, every_case, each={2: {"RANK": "1"}}, **MEETING)
    assert said[0].code == 8  # rank 2 does not come
    assert sorted(one.code for one in said[1:]) == [2, 8], said
    assert "two processes say that they are rank 1 at" in said[1].stderr + said[2].stderr


def test_different_versions_are_refused():
    for said in run(2, every_case, each={1: {"PRETENDED_VERSION": "0.0.9"}}):
        assert said.code == 2
        assert (
            "rank 0 has graphbraid '0.1.0', rank 1 has '0.0.9'; install the same on all machines."
            in said.stderr
        )


@pytest.mark.slow
def test_torchrun_starts_the_ranks_again_and_they_go_on(tmp_path):
    """Also with ``overwrite``: the run is the job's own. Another job would replace it."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    called = [PROGRAM, 0, training.__name__, training.restarted.__name__, tmp_path / "run"]
    before = set(Path("/dev/shm").iterdir())
    done = ran([sys.executable, *map(str, (*launch, *called))], env=environment())
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert [json.loads(line) for line in lines] == [{"attempt": "1", "steps": 6}] * 2  # of 14, 8 were saved
    assert done.stderr.count("RankError") <= 1  # torchrun may end the other rank before it has said it
    logged = (tmp_path / "run" / "steps.jsonl").read_text().splitlines()
    assert [json.loads(line)["global_step"] for line in logged] == list(range(14))
    assert not [path for path in set(Path("/dev/shm").iterdir()) - before if "graphbraid" in path.name]


HOSTS = 3


def seconds_without_core(process: subprocess.Popen[bytes]) -> float:
    """Return the seconds in which a process's main thread could run and other programs had the cores."""
    try:
        return 1e-9 * int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[1])
    except (OSError, IndexError):  # it has ended, or the kernel does not count
        return 0.0


def seconds_of_ends(processes: list[subprocess.Popen[bytes]], errors: list[Path]) -> list[float]:
    """Wait until all processes end; return the seconds that each took.

    Until a process prints its error, all seconds count. After that it only frees its memory, and seconds in
    which it waits for a core do not count: other programs cause them.
    """
    began, ends, at_message = time.monotonic(), dict[int, float](), dict[int, float]()
    held_up = dict.fromkeys(range(len(processes)), 0.0)
    while len(ends) < len(processes):
        assert time.monotonic() < began + PATIENCE
        for place, process in enumerate(processes):
            if place in ends:
                continue
            without_core = seconds_without_core(process)
            if errors[place].stat().st_size:
                before = at_message.setdefault(place, without_core)
                held_up[place] = max(held_up[place], without_core - before)
            if process.poll() is not None:
                ends[place] = time.monotonic() - began - held_up[place]
        time.sleep(0.05)
    return list(ends.values())


@pytest.mark.long
@pytest.mark.parametrize("what", ["killed", "stopped", "unplugged", "first killed", "while ranks connect"])
def test_a_rank_lost_on_another_machine_ends_all_within_half_a_minute(what, tmp_path):
    """Each rank in a network of its own, over plain Gloo, with the limits that users have."""
    if why := why_not():
        pytest.skip(why)
    lost = 0 if what == "first killed" else HOSTS - 1
    act = "killed" if what == "while ranks connect" else what
    processes, errors = [], []
    with Links(HOSTS, 1e9) as links:
        for rank in range(HOSTS):
            own = {"RANK": str(rank), "WORLD_SIZE": str(HOSTS), "MASTER_ADDR": links.address(0)}
            own |= {"MASTER_PORT": "29500", "TORCH_CPP_LOG_LEVEL": "ERROR"}
            own |= {"LOST_AT_GROUP": "1"} if what == "while ranks connect" and rank == lost else {}
            command = [sys.executable, PROGRAM, 0, training.__name__, training.faulty.__name__, act, tmp_path]
            errors.append((tmp_path / f"{rank}.err").open("w+"))
            variables = environment(**own)
            del variables["GLOO_SOCKET_IFNAME"]  # it is found out
            processes.append(
                subprocess.Popen(
                    links.command(rank, list(map(str, command))),
                    env=variables,
                    stdout=subprocess.DEVNULL,
                    stderr=errors[-1],
                )
            )
        marked = tmp_path / "lost"
        until = time.monotonic() + PATIENCE
        while not marked.exists() and processes[lost].poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        ranks = [rank for rank in range(HOSTS) if rank != lost or what == "unplugged"]
        others = [processes[rank] for rank in ranks]
        seconds = max(seconds_of_ends(others, [Path(errors[rank].name) for rank in ranks]))
        codes = [process.wait() for process in others]
        for process in processes:
            process.kill()
            process.wait()
    assert codes == [8] * len(others)
    print(f"{what}: all others ended after {seconds:.1f} s")  # docs/distributed.md has a table of these
    assert seconds < 30
    for rank, file in enumerate(errors):
        file.seek(0)
        said = file.read().splitlines()
        file.close()
        if rank != lost or what == "unplugged":
            assert [line.partition(":")[0] for line in said] == ["RankError"], said


@pytest.mark.long
def test_torchrun_of_two_machines_starts_the_ranks_again_and_they_go_on(tmp_path):
    """Torchrun counts a restart on the machine of the killed rank alone, where it is the first to see it."""
    if why := why_not():
        pytest.skip(why)
    called = [PROGRAM, 0, training.__name__, training.restarted.__name__, tmp_path / "run"]
    with Links(2, 1e9) as links:
        processes = []
        for node in range(2):
            launch = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
            launch += ["--max-restarts", "1", "--rdzv-backend", "c10d", "--rdzv-id", "job-1"]
            launch += ["--rdzv-endpoint", f"{links.address(0)}:29400", "--local-addr", links.address(node)]
            launch += ["--rdzv-conf", f"is_host={node == 0}"]
            command = links.command(node, [sys.executable, *map(str, (*launch, *called))])
            variables = environment()
            del variables["GLOO_SOCKET_IFNAME"]
            pipe = subprocess.PIPE
            processes.append(subprocess.Popen(command, env=variables, stdout=pipe, stderr=pipe, text=True))
        said = [process.communicate(timeout=PATIENCE) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    found = [json.loads(line) for out, _ in said for line in out.splitlines() if line.startswith("{")]
    assert [one["steps"] for one in found] == [6, 6]
