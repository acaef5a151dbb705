"""Measurements kept between runs: by their key, sealed, and measured again where they are damaged."""

import pytest

from graphbraid.machine.measurements import NOT_KEPT, Kept


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
