"""How much of the cores other programs have: by a recorded clock, and by a real load."""

import os
import subprocess
import sys
import time

import pytest

from graphbraid.machine import measurements as others
from graphbraid.machine.measurements import OtherPrograms


@pytest.fixture
def cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2}, raising=False)
    monkeypatch.setattr(os, "sysconf", lambda _: 100)


def write_stat(root, *busy):
    (root / "proc").mkdir(exist_ok=True)
    lines = [f"cpu{core} {ticks} 10 5 {90 * core} 7 1 1 2 0 0" for core, ticks in enumerate(busy)]
    (root / "proc/stat").write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *lines, "ctxt 12", ""]))


def test_the_share_is_of_the_usable_cores_without_our_own(tmp_path, cores, monkeypatch):
    now, own = [100.0], [1.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "process_time", lambda: own[0])
    write_stat(tmp_path, 1000, 1000, 1000)
    watched = OtherPrograms(root=tmp_path)
    now[0], own[0] = 100.4, 1.2
    assert watched.share() is None  # too early
    now[0], own[0] = 110.0, 4.0  # 20 seconds of two cores, 3 of them ours
    write_stat(tmp_path, 1500, 9000, 1200)  # 7 seconds busy on the cores that count
    assert watched.share() == pytest.approx(0.2)
    own[0] = 40.0  # counted on another core meanwhile
    assert watched.share() == 0.0


@pytest.mark.parametrize("text", ["", "cpu0 1 2 3\n", "cpu0 a b c d e f g h\n", "cpu7 1 2 3 4 5 6 7 8\n"])
def test_a_system_that_does_not_say_gives_none(tmp_path, cores, text, monkeypatch):
    monkeypatch.setattr(others, "LEAST_SECONDS", 0.0)
    assert OtherPrograms(root=tmp_path).share() is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(text)
    assert OtherPrograms(root=tmp_path).share() is None


@pytest.mark.slow
@pytest.mark.skipif(OtherPrograms()._busy is None, reason="the system has no /proc/stat")
def test_a_program_beside_us_is_seen():
    command = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(command) as program:
        try:
            watched = OtherPrograms()
            time.sleep(1.5)
            assert watched.share() > 0.25 / len(os.sched_getaffinity(0))
        finally:
            program.kill()
