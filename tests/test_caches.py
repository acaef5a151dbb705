"""Where things are kept: in the home, the place one names, or a folder that nobody else can write."""

import logging
import os
import stat

import pytest

from graphbraid import datasets
from graphbraid.errors import ConfigError
from graphbraid.files import opening
from graphbraid.files.opening import cache_folder


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
