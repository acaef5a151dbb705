"""Command lines: every command and option, as the application itself lists them, with values of every kind.

A command must end with one of the documented exit codes, also when it is interrupted, and leave what is the
user's as it was.
"""

import hashlib
import inspect
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import typing
from pathlib import Path
from typing import Any

import numpy as np
import typer
from tests.fuzz import file_kinds_brought as brought
from tests.fuzz.case import Planned, Verdict, shorten
from tests.fuzz.cli_words import NUMBERS, PATHS, REAL, TEXTS, WHOLE, YAML
from tests.fuzz.file_kinds import npz_arrays
from tests.fuzz.verdict import PACKAGE
from tests.fuzz.world import World

DOCUMENTED = (0, 2, 3, 4, 5, 6, 7, 130)
_INTERRUPT_AFTER = 15
_FRESH = 0.04
"""Share of the commands that get an interpreter of their own; the others run in a fork of this one."""
_QUICK = ("--hidden", "8", "--fanouts", "3,3", "--batch-size", "32", "--epochs", "1", "--threads", "1")
_TABLES = (
    "--nodes",
    "in/nodes.csv",
    "--weight",
    "w",
    "--features",
    "a,b",
    "--label",
    "label",
    "--split",
    "split",
)

BASELINES: dict[str, tuple[tuple[str, ...], ...]] = {
    "train": (
        ("--data", "in/data", "--out", "out", *_QUICK),
        ("--data", "in/g.npz", "--out", "out", *_QUICK, "--quiet"),
        (
            "--data",
            "in/data",
            "--out",
            "out",
            "--mode",
            "full",
            "--model",
            "gcn",
            "--hidden",
            "8",
            "--epochs",
            "2",
        ),
        ("--resume", "--out", "in/run", "--epochs", "3"),
        ("--config", "in/run.yaml", "--out", "out"),
    ),
    "plan": (("--data", "in/data", *_QUICK[:6]),),
    "predict": (
        ("--run", "in/run", "--data", "in/data", "--out", "p.csv"),
        ("--run", "in/run", "--data", "in/data", "--out", "p.npz", "--nodes", "in/ids.txt", "--scores"),
    ),
    "convert": (
        ("in/edges.csv", "made", *_TABLES),
        ("in/g.npz", "made", "--symmetrize"),
        ("in/data", "made"),
    ),
    "doctor": ((), ("--json",)),
}

_TURNS = (
    *("train", "convert", "train", "predict", "plan", "train", "convert", "train", "predict"),
    *("train", "doctor"),
)


def prepare(folder: Path) -> None:
    """A folder as a user has it: data in several forms, a run, and files of the user's own."""
    place, w = folder / "in", World()
    place.mkdir()
    brought.write_ids(place, w)
    brought.write_tables(place, w)
    np.savez(place / "g.npz", **npz_arrays(w), x=w.x.numpy())
    shutil.copy(place / "g.npz", place / "[bold].npz")
    (place / "run.yaml").write_text(
        "data: in/data\nhidden_channels: 8\nfanouts: [3, 3]\nbatch_size: 32\nepochs: 1\n"
    )
    (place / "loop").symlink_to("loop")
    (place / "nowhere").symlink_to("missing")
    (place / "empty").touch()
    user = folder / "user"
    user.mkdir()
    for name in ("config.json", "metrics.csv", "result.json", "thesis.txt", ".x.tmp", "graph.json"):
        (user / name).write_text(f"years of work: {name}")
    (user / "checkpoints").mkdir()
    (user / "checkpoints" / "last.pt").write_text("weights of another program")


def plan(numbers: random.Random, number: int, folder: Path) -> Planned:
    for name in ("in", "user"):
        shutil.copytree(folder / name, name, symlinks=True)
    command = _TURNS[number % len(_TURNS)]
    words = [command, *numbers.choice(BASELINES[command])]
    for _ in range(numbers.choice((1, 1, 1, 2, 3))):
        words = _changed(words, command, numbers)
    fresh = numbers.random() < _FRESH
    return Planned(f"graphbraid {' '.join(map(_shown, words))}", lambda: _run(words, fresh=fresh))


def _shown(word: str) -> str:
    return (
        repr(word if len(word) < 60 else word[:57] + "...") if not re.fullmatch(r"[\w./,:-]+", word) else word
    )


def options_of(command: str) -> list[tuple[str, tuple[str, ...], str]]:
    """Name, flags and type of each parameter of a command, from the application itself."""
    from graphbraid.cli.main import app

    parsed: Any = typer.main.get_command(app)
    parser = parsed.commands[command]
    hints = typing.get_type_hints(inspect.unwrap(parser.callback))
    found = []
    for parameter in parser.params:
        flags = (*parameter.opts, *parameter.secondary_opts)
        kind = str(hints.get(parameter.name, "str"))
        found.append((parameter.name, tuple(flag for flag in flags if flag.startswith("-")), kind))
    return [option for option in found if option[0] != "help"]


def _changed(words: list[str], command: str, numbers: random.Random) -> list[str]:
    """One option more or with another value, or a word of the line harmed."""
    way = numbers.random()
    if way < 0.72:
        known = options_of(command)
        anything = [option for option in known if option[0] == "assignments"]  # --set reaches most options
        return [*words, *_option(numbers.choice(anything if anything and way < 0.2 else known), numbers)]
    if way < 0.87 and len(words) > 2:
        at = numbers.randrange(1, len(words))
        return [*words[:at], numbers.choice(numbers.choice((NUMBERS, TEXTS, PATHS))), *words[at + 1 :]]
    if way < 0.94 and len(words) > 2:
        at = numbers.randrange(1, len(words))
        return words[:at] + words[at + 1 :]
    return [
        *words,
        numbers.choice(("--nope", "extra", "--", "--json", "--debug", "--help", "-", "--=", "--data")),
    ]


def _option(option: tuple[str, tuple[str, ...], str], numbers: random.Random) -> list[str]:
    name, flags, kind = option
    value = _value(name, kind, numbers)
    if not flags:  # an argument
        return [value]
    if "bool" in kind:
        return [numbers.choice(flags)]
    return [numbers.choice(flags), value]


def _value(name: str, kind: str, numbers: random.Random) -> str:
    if name == "assignments":
        from graphbraid.cli.run.settings import option_names

        return f"{numbers.choice([*option_names(), 'nope'])}={numbers.choice(YAML)}"
    if name == "fanouts":
        return ",".join(numbers.choice(WHOLE) for _ in range(numbers.choice((1, 2, 2, 3))))
    if "int" in kind or "float" in kind:
        sound = WHOLE if "int" in kind else REAL
        return numbers.choice(sound if numbers.random() < 0.8 else NUMBERS)
    if "Path" in kind or name in ("data", "plan", "checkpoint", "source_path"):
        return numbers.choice(PATHS if numbers.random() < 0.9 else TEXTS)
    return numbers.choice(numbers.choice((TEXTS, TEXTS, NUMBERS, PATHS)))


# ---- running


def _run(words: list[str], *, fresh: bool) -> Verdict:
    if any("\0" in word for word in words):
        return Verdict("refused", detail="no such word can be given")
    before = _contents(Path("user"))
    began = time.monotonic()
    code = _in_fresh_process(words) if fresh else _here(words)
    took = time.monotonic() - began
    lost = [name for name, digest in before.items() if _contents(Path("user")).get(name) != digest]
    lost = [
        name for name in lost if not any(word in (name, f"./{name}") for word in words)
    ]  # named to be written
    said = Path("output.txt").read_text(encoding="utf-8", errors="replace")
    if lost:
        return Verdict(
            "lost", cause=f"{words[0]}: files of the user's changed or gone", detail=", ".join(lost)
        )
    if took > 2.5 * _INTERRUPT_AFTER and code == 0 and not fresh:
        return Verdict("hang", cause=f"{words[0]} went on after an interrupt", detail=shorten(said[-300:]))
    return _judge(words, code, said, Path("stdout.txt").read_text(encoding="utf-8", errors="replace"))


def _judge(words: list[str], code: int, said: str, printed: str) -> Verdict:
    if code not in DOCUMENTED:
        return Verdict(
            "raw",
            cause=f"{words[0]} ends with {code}: {_where(said + printed)}",
            detail=shorten(_last(said + printed), 400),
        )
    if code == 2 and not said.strip() and not printed.strip():
        return Verdict("raw", cause=f"{words[0]} ends with {code} and says nothing")
    if "--json" in words and code != 130 and printed.strip() and "--help" not in words:
        try:
            json.loads(printed)
        except ValueError as error:
            return Verdict(
                "raw",
                cause=f"{words[0]} --json prints what is not JSON",
                detail=f"{error}: {shorten(printed)}",
            )
    return Verdict("ok" if code in (0, 130) else "refused", detail=shorten(_last(said)))


def _here(words: list[str]) -> int:
    """Run a command in this process, a fork, and interrupt it as Ctrl-C would if it goes on for long."""
    from graphbraid.cli.main import app

    out = os.open("stdout.txt", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.environ["GRAPHBRAID_DEBUG"] = "1"  # shows where a finding came from
    os.environ["HOME"] = str(Path.cwd())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    clock = _interrupt_later()
    code: Any = 0
    try:
        app(words, prog_name="graphbraid")
    except SystemExit as left:
        code = left.code
    except KeyboardInterrupt:
        code = 130
    finally:
        os.kill(clock, signal.SIGKILL)
        os.waitpid(clock, 0)
        sys.stdout.flush()
        sys.stderr.flush()
    return code if isinstance(code, int) else 0 if code is None else 1


def _interrupt_later() -> int:
    """A process that sends SIGINT to this one after a while, and again."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        for wait in (_INTERRUPT_AFTER, _INTERRUPT_AFTER):
            time.sleep(wait)
            os.kill(parent, signal.SIGINT)
    finally:
        os._exit(0)


def _in_fresh_process(words: list[str]) -> int:
    with Path("stdout.txt").open("wb") as out, Path("output.txt").open("ab") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "graphbraid", *words], stdout=out, stderr=err, env=_environment()
        )
        try:
            return process.wait(3 * _INTERRUPT_AFTER)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            return process.wait(2 * _INTERRUPT_AFTER)


def _environment() -> dict[str, str]:
    source = str(Path(PACKAGE).parent)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH")))),
        "GRAPHBRAID_DEBUG": "1",
    }


def _contents(folder: Path) -> dict[str, str]:
    return {
        str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def _where(said: str) -> str:
    """The error's class and the innermost frame of graphbraid in a traceback."""
    frames: list[tuple[str, str]] = re.findall(r'File "([^"]+)", line \d+, in (\S+)', said)
    ours = [(f, name) for f, name in frames if f.startswith(PACKAGE) and not f.endswith("common.py")]
    kinds: list[str] = re.findall(r"^(\w[\w.]*(?:Error|Exception|Interrupt|Warning))\b", said, flags=re.M)
    place = f"{Path(ours[-1][0]).relative_to(PACKAGE)}:{ours[-1][1]}" if ours else "?"
    return f"{kinds[-1] if kinds else '?'} in {place}"


def _last(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return " / ".join(lines[-3:])
