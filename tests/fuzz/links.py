"""Links: commands that find a link, a pipe, a folder or a device where they read or write a file of theirs.

No command may change what a link of another's leads to, nor wait for a pipe without an end.
"""

import json
import os
import random
import shutil
import socket
import stat
from pathlib import Path

from tests.fuzz import cli
from tests.fuzz.case import Planned, Verdict

_QUICK = cli._QUICK
_LINES: tuple[tuple[str, ...], ...] = (
    ("train", "--data", "in/data", "--out", "out", *_QUICK),
    ("train", "--data", "in/data", "--out", "in/run", "--overwrite", *_QUICK),
    ("train", "--resume", "--out", "in/run", "--epochs", "3"),
    ("train", "--resume", "--out", "in/run", "--epochs", "3", "--tensorboard"),
    ("train", "--config", "in/run.yaml", "--out", "out"),
    ("predict", "--run", "in/run", "--data", "in/data", "--out", "p.csv"),
    ("predict", "--run", "in/run", "--data", "in/data", "--out", "p.npz", "--nodes", "in/ids.txt"),
    ("convert", "in/g.npz", "made"),
    ("convert", "in/g.npz", "in/data", "--overwrite"),
    ("convert", "in/edges.csv", "made", *cli._TABLES),
    ("reorder", "--data", "in/data", "--by", "degree", "--out", "made"),
    ("reorder", "--data", "in/data", "--by", "degree", "--out", "in/data", "--overwrite"),
    ("partition", "--data", "in/data", "--parts", "2", "in/parts"),
    ("partition", "--data", "in/data", "--parts", "3", "--overwrite", "in/parts"),
    ("plan", "--data", "in/data", *_QUICK[:6], "--out", "plan.json", "--save-profile", "profile.json"),
    ("synth", "--model", "gcn", "--data", "in/data", "--layers", "8,8,4", "--out", "built"),
    ("info", "in/data", "--check"),
)
_FORMS = ("symbolic", "hard", "dangling", "loop", "pipe", "socket", "folder", "device")
_WRITTEN = "written.json"


def prepare(folder: Path) -> None:
    """The folder of the command lines, with a partition; and the files that each line here writes."""
    cli.prepare(folder)
    os.chdir(folder)
    _do(("partition", "--data", "in/data", "--parts", "2", "in/parts"))
    written = []
    for number, words in enumerate(_LINES):
        place = folder / f"sound-{number}"
        shutil.copytree(folder / "in", place / "in", symlinks=True)
        os.chdir(place)
        began = _files()
        _do(words)
        # A file that the line itself names may be a link on purpose, which is then followed.
        changed = {path for path, when in _files().items() if began.get(path) != when}
        written.append(sorted(changed - set(words)))
        os.chdir(folder)
        shutil.rmtree(place)
    (folder / _WRITTEN).write_text(json.dumps(written))


def _do(words: tuple[str, ...]) -> None:
    """Run a command, which must succeed, in a fork of this process."""
    pid = os.fork()
    if not pid:
        os.dup2(os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os._exit(cli._here(list(words)))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 0, (words, code, Path("output.txt").read_text())


def _files() -> dict[str, int]:
    """Regular files below this folder, each with the time of its last change."""
    found = [
        path for path in Path().rglob("*") if path.is_file() and path.name not in ("stdout.txt", "output.txt")
    ]
    return {str(path): path.stat().st_mtime_ns for path in found}


def plan(numbers: random.Random, number: int, folder: Path) -> Planned:
    for name in ("in", "user"):
        shutil.copytree(folder / name, name, symlinks=True)
    at = number % len(_LINES)
    words = list(_LINES[at])
    read = [
        path for path in _files() if path.startswith("in") and any(path.startswith(word) for word in words)
    ]
    written = json.loads((folder / _WRITTEN).read_text())[at]
    target = Path(numbers.choice(written if written and numbers.random() < 0.6 else sorted(read)))
    form = numbers.choice(_FORMS)
    return Planned(f"{form} at {target}: graphbraid {' '.join(words)}", lambda: _run(words, target, form))


def _run(words: list[str], target: Path, form: str) -> Verdict:
    _plant(target, form)
    before = _owned()
    verdict = cli._run(words, fresh=False)
    after = _owned()
    lost = [name for name, what in before.items() if after.get(name) != what] + [
        n for n in after if n not in before
    ]
    if lost:
        return Verdict("lost", cause=f"{words[0]}: a {form} link or file is followed", detail=", ".join(lost))
    if "nterrupt" in verdict.detail and verdict.status == "ok":
        return Verdict("hang", cause=f"{words[0]} waits for a {form}", detail=verdict.detail)
    return verdict


def _owned() -> dict[str, tuple[int, bytes]]:
    """What the user has: kind and bytes of each file."""
    found = [path for path in Path("user").rglob("*") if not path.is_dir()]
    return {
        str(path): (stat.S_IFMT(path.lstat().st_mode), path.read_bytes() if path.is_file() else b"")
        for path in found
    }


def _plant(target: Path, form: str) -> None:
    """Put something else where the file is, or would be; links lead to a file of the user's."""
    thesis = Path("user/thesis.txt").absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_file() and form in ("symbolic", "hard"):  # what a reader finds there is what it looks for
        shutil.copyfile(target, thesis)
    target.unlink(missing_ok=True)
    if form == "symbolic":
        target.symlink_to(thesis)
    elif form == "hard":
        target.hardlink_to(thesis)
    elif form == "dangling":
        target.symlink_to(thesis.parent / "new.txt")
    elif form == "loop":
        target.symlink_to(target.name)
    elif form == "pipe":
        os.mkfifo(target)
    elif form == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(os.path.relpath(target))
    elif form == "folder":
        target.mkdir()
    else:
        target.symlink_to("/dev/full")
