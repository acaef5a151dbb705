"""The fuzz itself: it covers all that is public, its inputs are sound, and it sees what it should."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.fuzz import api, files
from tests.fuzz.case import Name
from tests.fuzz.damage import damage
from tests.fuzz.targets import TARGETS
from tests.fuzz.verdict import judge
from tests.fuzz.world import World, numbers_of, unequal

from graphbraid.errors import DataError
from graphbraid.graph import Graph

PLANTED = """
import os, signal, sys, time
from pathlib import Path
from tests.fuzz import isolate
from tests.fuzz.case import Name, Planned, Verdict

def ends(run, patience=1.0):
    folder = Path(sys.argv[1]) / str(len(os.listdir(sys.argv[1])))
    case = isolate.start(Name("api", 0, 0), folder, lambda: Planned("planted", run), patience=patience)
    while not (ended := case.ended()):
        time.sleep(0.005)
    return ended[1].status

def loop():
    while True:
        pass

print(ends(lambda: Verdict("ok")))
print(ends(lambda: os.kill(os.getpid(), signal.SIGSEGV)))
print(ends(loop, patience=0.02))
print(ends(lambda: time.sleep(60), patience=0.02))
print(ends(lambda: os._exit(3)))
print(ends(lambda: 1 / 0))
"""


def test_everything_public_is_called():
    assert api.untouched() == []


def test_planted_faults_are_found(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", PLANTED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        env=_environment(),
    )
    assert done.stdout.split() == ["ok", "signal", "hang", "hang", "signal", "broken"], done.stderr


def _environment() -> dict[str, str]:
    root = Path(__file__).parents[1]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")]),
    }


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_call_that_cases_start_from_works(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    call = TARGETS[name](World())
    arguments = dict(call.arguments)
    positions = [arguments.pop(str(i)) for i in range(10) if str(i) in arguments]
    call.use(call.function(*positions, **arguments))


@pytest.mark.parametrize("name", sorted(files.KINDS))
def test_the_files_that_cases_start_from_are_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    kind = files.KINDS[name]
    folder = tmp_path / "sound"
    folder.mkdir()
    kind.write(folder, World())
    assert any(kind.is_damaged(path) for path in folder.rglob("*") if path.is_file())
    for reader, read in kind.readers.items():
        place = tmp_path / reader
        shutil.copytree(folder, place)
        got = numbers_of(read(place))
        if kind.independent is not None:
            assert not unequal(numbers_of(kind.independent(place)), got)


def test_damage_is_the_same_each_time_and_differs_between_cases(tmp_path: Path):
    seen = set()
    for number in range(40):
        name = Name("files", 3, number)
        results = []
        for copy in "ab":
            path = tmp_path / f"{number}{copy}.bin"
            path.write_bytes(bytes(range(200)))
            text = damage(path, name.random())
            results.append((text, path.read_bytes() if path.is_file() else None))
        assert results[0] == results[1]
        seen.add(results[0])
    assert len(seen) > 30


@pytest.mark.parametrize(
    ("made", "status"),
    [
        (lambda: _raise(DataError("x must be a Tensor")), "refused"),
        (lambda: _raise(DataError("")), "raw"),
        (lambda: None.shape, "raw"),
        (Graph.from_edge_index, "refused"),
        (lambda: _raise(ValueError("not of ours")), "raw"),
        (lambda: torch.empty(-1), "raw"),
        (lambda: _raise(MemoryError()), "refused"),
    ],
)
def test_a_raw_exception_is_told_from_a_clear_one(made, status):
    with pytest.raises(Exception) as raised:
        made()
    assert judge(raised.value).status == status


def _raise(error: Exception) -> None:
    raise error


def test_names_say_all(tmp_path: Path):
    name = Name.parse("api:3:17")
    assert str(name) == "api:3:17"
    assert name.random().random() == Name("api", 3, 17).random().random()
    assert api.plan(name.random(), 17, tmp_path).text == api.plan(name.random(), 17, tmp_path).text
