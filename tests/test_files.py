import errno
import logging
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests import warm

from graphbraid import datasets
from graphbraid.errors import ConfigError, ResourceError
from graphbraid.files import opening
from graphbraid.files import writing as files
from graphbraid.files.opening import cache_folder
from graphbraid.files.writing import (
    atomic_directory,
    atomic_write,
    format_bytes,
    require_free_space,
    require_place_for_file,
)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_atomic_write_makes_the_folder_and_replaces_the_file(tmp_path):
    path = tmp_path / "a" / "b.txt"
    for text in ("first", "second"):
        with atomic_write(path) as temp:
            assert temp.parent == path.parent
            temp.write_text(text)
        assert path.read_text() == text
    assert names(path.parent) == ["b.txt"]


def test_new_files_get_the_usual_permissions(tmp_path):
    with atomic_write(tmp_path / "ours") as temp:
        temp.write_text("x")
    (tmp_path / "plain").write_text("x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, FileNotFoundError])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "f"
    path.write_text("old")
    with pytest.raises(error), atomic_write(path) as temp:
        temp.write_text("half of")
        raise error
    assert path.read_text() == "old"
    assert names(tmp_path) == ["f"]


def test_a_killed_writer_leaves_the_old_file_and_the_next_write_cleans_up(tmp_path):
    path = tmp_path / "f"
    path.write_text("old")
    code = (
        "import sys, time; from graphbraid.files.writing import atomic_write\n"
        "with atomic_write(sys.argv[1]) as temp:\n"
        "    temp.write_text('half'); print('writing', flush=True); time.sleep(600)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout.readline() == "writing\n"
        (temp,) = tmp_path.glob(".f.*.tmp")
        os.utime(temp, (0, 0))
        files.remove_stale(path)
        assert temp.exists(), "the writer lives: its temporary must stay"
        child.send_signal(signal.SIGKILL)
    assert path.read_text() == "old"
    with atomic_write(path) as fresh:
        fresh.write_text("new")
    assert path.read_text() == "new"
    assert names(tmp_path) == ["f"]


def test_young_temporaries_of_others_stay(tmp_path):
    other = tmp_path / ".f.0123456789ab.tmp"
    other.write_text("being written")
    with atomic_write(tmp_path / "f") as temp:
        temp.write_text("x")
    assert other.exists()


def test_stale_names_are_matched_literally(tmp_path):
    other = tmp_path / ".fx.0123456789ab.tmp"
    other.write_text("")
    os.utime(other, (0, 0))
    with atomic_write(tmp_path / "f[x]*") as temp:
        temp.write_text("x")
    assert other.exists()


def test_a_parent_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ResourceError, match=r"cannot write .*file/x.*choose a place"),
        atomic_write(tmp_path / "file/x"),
    ):
        pass


def test_a_folder_without_permission_is_named(read_only_folder):
    with pytest.raises(ResourceError, match="you may not write there"), atomic_write(read_only_folder / "x"):
        pass


def test_a_target_that_is_a_folder_is_refused(tmp_path):
    with pytest.raises(ResourceError, match="it is a folder"), atomic_write(tmp_path):
        pass


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(ResourceError, match="the disk is full"), atomic_write(tmp_path / "x") as temp:
        temp.write_text("x")
    assert names(tmp_path) == []


def test_the_real_errors_of_a_full_device_are_understood(tmp_path):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full, a device of Linux that is always full")
    import numpy as np

    for write in (lambda: full.write_bytes(b"x" * 10), lambda: np.zeros(1 << 16).tofile(full)):
        with pytest.raises(ResourceError, match=r"full|ended early"), atomic_write(tmp_path / "x"):
            write()


@pytest.mark.slow
def test_torch_save_past_the_limit_is_understood(tmp_path):
    code = (
        "import resource, sys, torch\n"
        "from graphbraid.errors import ResourceError\n"
        "from graphbraid.files.writing import atomic_write\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n"
        "    with atomic_write(sys.argv[1]) as temp: torch.save(torch.zeros(1_000_000), temp)\n"
        "except ResourceError as error: print(error)\n"
    )
    done = warm.run(["-c", code, tmp_path / "x"])
    assert "cannot write" in done.stdout, done.stderr
    assert names(tmp_path) == []


def test_atomic_directory_appears_whole(tmp_path):
    path = tmp_path / "made" / "store"
    with atomic_directory(path) as temp:
        (temp / "deep").mkdir()
        (temp / "deep" / "a").write_text("1")
        assert not path.exists()
    assert (path / "deep" / "a").read_text() == "1"
    assert names(path.parent) == ["store"]


def test_atomic_directory_failing_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), atomic_directory(tmp_path / "s") as temp:
        (temp / "a").write_text("1")
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_an_existing_folder_is_refused_kept_or_replaced(tmp_path):
    path = tmp_path / "s"

    def write(text, if_exists):
        with atomic_directory(path, if_exists=if_exists) as temp:
            (temp / "a").write_text(text)

    write("first", "error")
    with pytest.raises(ResourceError, match="exists already"):
        write("second", "error")
    write("third", "keep")
    assert (path / "a").read_text() == "first"
    write("fourth", "replace")
    assert (path / "a").read_text() == "fourth"
    assert names(tmp_path) == ["s"]


def test_losing_a_race_to_another_process_is_an_error_or_fine_as_asked(tmp_path):
    path = tmp_path / "s"
    with pytest.raises(ResourceError, match="exists already"), atomic_directory(path) as temp:
        (temp / "a").write_text("ours")
        path.mkdir()  # even empty, which a plain rename would replace
    with atomic_directory(path, if_exists="keep") as temp:
        (temp / "a").write_text("ours")
    assert names(tmp_path) == ["s"]
    assert names(path) == []


def test_free_space_is_checked_on_the_disk_of_the_nearest_folder(tmp_path):
    require_free_space(tmp_path / "not" / "there", 1, "a test")
    with pytest.raises(
        ResourceError, match=r"a test needs 1024.0 TiB on the disk that holds .*; .* are free"
    ):
        require_free_space(tmp_path / "not" / "there", 1 << 50, "a test")


def test_where_a_file_may_be_written_is_known_before(tmp_path):
    (tmp_path / "there.csv").touch()
    for name in ("there.csv", "new.csv", "not/there/new.csv"):
        require_place_for_file(tmp_path / name)
    assert names(tmp_path) == ["there.csv"]
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "circle.csv").symlink_to("circle.csv")
    for name, why in [
        (".", "it is a folder"),
        ("pipe.csv", "it is a named pipe"),
        ("circle.csv", "it is a symbolic link"),
        ("there.csv/new.csv", "Not a directory"),
    ]:
        with pytest.raises(ResourceError, match=f"cannot write.*({why})"):
            require_place_for_file(tmp_path / name)


def test_a_folder_that_may_not_be_written_to_is_no_place_for_a_file(read_only_folder):
    for name in ("new.csv", "not/there/new.csv"):
        with pytest.raises(ResourceError, match=r"cannot write .*new\.csv: you may not write there"):
            require_place_for_file(read_only_folder / name)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 40, "3.0 TiB")],
)
def test_format_bytes(num_bytes, text):
    assert format_bytes(num_bytes) == text


def test_stale_age_is_measured_from_now(tmp_path):
    temp = tmp_path / ".f.0123456789ab.tmp"
    temp.mkdir()
    os.utime(temp, (time.time() - 2 * files._STALE_AFTER_SECONDS,) * 2)
    files.remove_stale(tmp_path / "f")
    assert not temp.exists()


# ---- where things are kept


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The temporary files' folder, and no cache of one's own yet."""
    monkeypatch.delenv("GRAPHBRAID_CACHE", raising=False)
    monkeypatch.setattr(opening.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(opening.tempfile, "tempdir", str(tmp_path))
    opening._cache_without_home.cache_clear()
    yield tmp_path
    opening._cache_without_home.cache_clear()


def no_home(monkeypatch):
    def raises():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(opening.Path, "home", staticmethod(raises))


def test_a_place_one_names_is_taken(monkeypatch, tmp_path):
    monkeypatch.setenv("GRAPHBRAID_CACHE", str(tmp_path / "mine"))
    assert cache_folder("rates") == tmp_path / "mine" / "rates"
    monkeypatch.setenv("GRAPHBRAID_CACHE", "~nobody-of-this-name/cache")
    with pytest.raises(ConfigError, match="GRAPHBRAID_CACHE='~nobody"):
        cache_folder("rates")


def test_a_user_without_a_home_has_a_folder_of_his_own(place, monkeypatch, caplog):
    no_home(monkeypatch)
    with caplog.at_level(logging.WARNING):
        folders = {cache_folder("rates").parent, cache_folder("datasets").parent}
    assert folders == {place / f"graphbraid-{os.getuid()}"}
    (folder,) = folders
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert caplog.text.count("there is no home folder") == 1


def test_a_home_that_cannot_be_written_is_not_needed(place, monkeypatch, caplog):
    monkeypatch.setenv("HOME", "/proc/1/nothing")
    monkeypatch.setattr(opening.os, "access", lambda *_: False)
    assert cache_folder("rates").parent == place / f"graphbraid-{os.getuid()}"
    assert "cannot be written" in caplog.text


@pytest.mark.parametrize("planted", ["link", "open", "file"])
def test_a_folder_that_another_may_have_planted_is_not_used(place, monkeypatch, planted):
    no_home(monkeypatch)
    theirs = place / f"graphbraid-{os.getuid()}"
    if planted == "link":
        (place / "theirs").mkdir()
        theirs.symlink_to(place / "theirs")
    elif planted == "open":
        theirs.mkdir()
        theirs.chmod(0o777)
    else:
        theirs.write_text("")
    assert theirs not in cache_folder("datasets").parents


@pytest.mark.parametrize("name", ["~no_such_user/x", "~no_such_user"])
def test_the_home_of_no_user_is_refused(name, monkeypatch):
    monkeypatch.setenv("GRAPHBRAID_CACHE", name)
    with pytest.raises(ConfigError, match="GRAPHBRAID_CACHE='~no_such_user"):
        cache_folder("rates")
    with pytest.raises(ConfigError, match="path='~no_such_user"):
        datasets.load(name)
