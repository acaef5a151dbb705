"""Each case in a process of its own, forked from this warm one, with limits on memory and time."""

import contextlib
import ctypes
import faulthandler
import json
import os
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.case import Name, Planned, Verdict, shorten
from tests.fuzz.verdict import PACKAGE

MEMORY = 2 << 30
"""Bytes of address space a case may take beyond this process's own."""
SECONDS = 60.0
"""A case may take so long, and half of it of processor time."""
_OWN_FAULT = 70
_SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")


@dataclass
class Running:
    """A case under way."""

    name: Name
    folder: Path
    pid: int
    limit: float
    begin: float = field(default_factory=time.monotonic)

    def ended(self) -> tuple[str, Verdict] | None:
        """Its text and verdict once it is over; kills it when it is over its time."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if (
            pid == 0
            and time.monotonic() - self.begin < self.limit
            and _processor_seconds(self.pid) < self.limit / 2
        ):
            return None
        if pid == 0:
            _kill_group(self.pid)
            os.waitpid(self.pid, 0)
            return self._read(None)
        _kill_group(self.pid)  # what it started must not outlive it
        return self._read(status)

    def _read(self, status: int | None) -> tuple[str, Verdict]:
        text = _text(self.folder / "case.txt") or "(ended before it was planned)"
        output = _text(self.folder / "output.txt")
        try:
            if status is None:
                cause = f"no end {_deepest(output)}"
                return text, Verdict("hang", cause=cause, detail=shorten(output[-600:], 600))
            if (self.folder / "verdict.json").exists():
                return text, Verdict(**json.loads(_text(self.folder / "verdict.json")))
            if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _OWN_FAULT:
                return text, Verdict(
                    "broken",
                    cause=f"the fuzz itself: {output.strip().splitlines()[-1]}",
                    detail=output[-900:],
                )
            if os.WIFSIGNALED(status):
                what = signal.Signals(os.WTERMSIG(status)).name
            else:
                what = f"exit {os.WEXITSTATUS(status)}"
            return text, Verdict(
                "signal", cause=f"{what} {_deepest(output)}", detail=shorten(output[-900:], 900)
            )
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def start(name: Name, folder: Path, make: Callable[[], Planned], *, patience: float = 1.0) -> Running:
    """Fork a process that plans the case and runs it; ``patience`` multiplies the time it may take."""
    folder.mkdir(parents=True)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Running(name, folder, pid, limit=SECONDS * patience)
    _run_in_child(folder, make)
    raise AssertionError("not reached")


def in_child(work: Callable[[], None]) -> None:
    """Do something in a forked process and wait: this one starts no threads, so that it can be forked."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    if os.waitpid(pid, 0)[1]:
        raise SystemExit("the fuzz could not prepare its inputs; see above")


def _run_in_child(folder: Path, make: Callable[[], Planned]) -> None:
    code = _OWN_FAULT
    try:
        os.setpgid(0, 0)
        _die_with_parent()
        os.chdir(folder)
        output = os.open("output.txt", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        faulthandler.enable(file=2, all_threads=False)
        planned = make()
        Path("case.txt").write_text(planned.text, encoding="utf-8", errors="replace")
        faulthandler.dump_traceback_later(20, file=2, exit=False, repeat=True)
        limit_memory()
        verdict = planned.run()
        limit_memory(lift=True)
        Path("verdict.json").write_text(json.dumps(verdict.plain()), encoding="utf-8")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def limit_memory(*, lift: bool = False) -> None:
    if _SANITIZED:  # its shadow is terabytes of address space
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    soft = hard if lift else pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _die_with_parent() -> None:
    """A fuzz that is killed leaves no case behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _processor_seconds(pid: int) -> float:
    """What a process has used: shows a loop without end before a busy machine's clock would tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _kill_group(pid: int) -> None:
    for target in (-pid, pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(target, signal.SIGKILL)


def _text(path: Path) -> str:
    try:
        return path.read_bytes()[-20_000:].decode("utf-8", "replace")
    except OSError:
        return ""


def _deepest(output: str) -> str:
    """The innermost line of graphbraid in a stack of faulthandler's, or what C++ said last."""
    said = re.findall(r"what\(\):.*|Fatal Python error: .*|ERROR: AddressSanitizer: [\w-]+", output)
    frames = re.findall(r'File "([^"]+)", line \d+ in (\w+)', output)
    ours = [(file, name) for file, name in frames if file.startswith(PACKAGE)]
    place = f"in {Path(ours[0][0]).relative_to(PACKAGE)}:{ours[0][1]}" if ours else ""
    return " ".join((place, shorten(said[0], 80) if said else "")).strip()
