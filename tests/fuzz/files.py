"""Files: one of every kind that graphbraid writes or reads, damaged; then read the same, or refused."""

import os
import random
import shutil
from pathlib import Path

from tests.fuzz import file_kinds_brought, file_kinds_tiers  # noqa: F401 - register their kinds
from tests.fuzz.case import Planned, Verdict, shorten
from tests.fuzz.damage import damage
from tests.fuzz.file_kinds import KINDS, FileKind
from tests.fuzz.verdict import judge
from tests.fuzz.world import World, numbers_of, unequal


def prepare(folder: Path) -> None:
    """Write every kind once."""
    for name, kind in KINDS.items():
        (folder / name).mkdir()
        kind.write(folder / name, World())


def plan(numbers: random.Random, number: int, folder: Path) -> Planned:
    name = sorted(KINDS)[number % len(KINDS)]
    kind = KINDS[name]
    place = Path("in")
    shutil.copytree(folder / name, place, symlinks=True)
    reader = numbers.choice(sorted(kind.readers))
    files = sorted(path for path in place.rglob("*") if path.is_file() and kind.is_damaged(path))
    hurt = numbers.choice(files)
    what = damage(hurt, numbers)
    text = f"{name}: {what} in {hurt.relative_to(place)}; {reader}"
    return Planned(text, lambda: _read(name, kind, reader, folder / name, place, hurt))


def _read(name: str, kind: FileKind, reader: str, sound: Path, damaged: Path, hurt: Path) -> Verdict:
    read = kind.readers[reader]
    try:
        got = numbers_of(read(damaged))
    except Exception as error:
        verdict = judge(error)
        if verdict.status == "refused" and kind.must_recover:
            return Verdict(
                "raw", cause=f"{name}: {reader} refuses instead of making it anew", detail=verdict.detail
            )
        return verdict
    if hurt.name in kind.may_lack and not os.path.lexists(hurt):
        return Verdict("ok")
    if kind.independent is not None:
        return _compared_with(kind, name, reader, damaged, got)
    wanted = numbers_of(read(_copy(sound)))
    if text := unequal(wanted, got, rtol=0.0):
        cause = f"{name}: {reader} gives other numbers after damage of {hurt.relative_to(damaged)}"
        return Verdict("differs", cause=cause, detail=shorten(text))
    return Verdict("ok")


def _copy(sound: Path) -> Path:
    """Readers may write, as a resumed run does."""
    place = Path("sound")
    shutil.copytree(sound, place, symlinks=True)
    return place


def _compared_with(kind: FileKind, name: str, reader: str, damaged: Path, got: object) -> Verdict:
    """A changed byte of text is other data: what counts is that a careful reader reads the same."""
    assert kind.independent is not None
    wanted = kind.independent(damaged)
    if isinstance(wanted, str):
        return Verdict("differs", cause=f"{name}: {reader} reads what cannot be read", detail=wanted)
    if text := unequal(numbers_of(wanted), got, rtol=1e-5):
        return Verdict(
            "differs", cause=f"{name}: {reader} reads other data than a careful reader", detail=shorten(text)
        )
    return Verdict("ok")
