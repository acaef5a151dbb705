"""What is measured: kept by its key, sealed, measured again where damaged; and what other programs take."""

import os
import subprocess
import sys
import time

import pytest

from graphbraid.machine import measurements as others
from graphbraid.machine.measurements import NOT_KEPT, Kept, OtherPrograms


def speed_of(content):
    if content["speed"] <= 0:
        raise ValueError(f"a speed of {content['speed']}")
    return content["speed"]


SPEEDS = Kept("speeds", lambda speed: {"speed": speed}, speed_of)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path))
    return tmp_path


def test_what_is_kept_is_found_by_its_key(caplog):
    assert SPEEDS.read(SPEEDS.file("one machine")) is None
    SPEEDS.write(SPEEDS.file("one machine"), 3.5)
    assert SPEEDS.read(SPEEDS.file("one machine")) == 3.5
    assert SPEEDS.read(SPEEDS.file("another")) is None
    assert not caplog.text


def test_each_kind_has_a_folder(cache):
    SPEEDS.write(SPEEDS.file("one machine"), 3.5)
    assert [path.parent for path in cache.rglob("*.json")] == [cache / "speeds"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text.replace("3.5", "3.6"), "its checksum"),
        (lambda text: text[:-4], "cannot be used"),
        (lambda _: '{"speed": 3.5}', "it has no checksum"),
        (lambda _: "[]", "it has no checksum"),
        (lambda _: "\udcff", "cannot be used"),
    ],
)
def test_what_is_damaged_is_said_and_counts_as_not_there(damage, said, caplog):
    file = SPEEDS.file("one machine")
    SPEEDS.write(file, 3.5)
    file.write_text(damage(file.read_text()), errors="surrogateescape")
    assert SPEEDS.read(file) is None
    said_first = f"the speeds kept in the cache {file} cannot be used: what it held is measured again"
    assert said_first in caplog.text
    assert said in caplog.text


def test_what_is_unsound_is_said_although_it_is_sealed(caplog):
    file = SPEEDS.file("one machine")
    SPEEDS.write(file, -1.0)
    assert SPEEDS.read(file) is None
    assert "a speed of -1.0" in caplog.text


def test_others_are_the_sound_ones_under_other_keys(caplog):
    for key, speed in (("a", 1.0), ("b", 2.0), ("c", -3.0)):
        SPEEDS.write(SPEEDS.file(key), speed)
    assert list(SPEEDS.read_others(SPEEDS.file("a"))) == [2.0]
    assert not caplog.text


def test_where_nothing_can_be_kept_the_caller_hears_it(cache, caplog):
    (cache / "speeds").write_text("a file where the folder should be")
    with pytest.raises(NOT_KEPT):
        SPEEDS.write(SPEEDS.file("one machine"), 1.0)
    SPEEDS.keep(SPEEDS.file("one machine"), 1.0, "the speed")
    assert "the speed could not be kept: " in caplog.text


# ---- how much of the cores other programs have: by a recorded clock, and by a real load


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
