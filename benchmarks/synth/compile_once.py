"""A compiler's launcher: a source that was compiled before is copied, and its seconds are remembered.

    cmake -DCMAKE_CXX_COMPILER_LAUNCHER="PYTHON;benchmarks/synth/compile_once.py;FOLDER" ...

Programs of a benchmark have their kernels in common. Each is really compiled once in a run, and a program
that takes it along is told the seconds that this took: ``FOLDER/log`` has a line for each source of each
program, with what it took now and what it took to compile. Needs nothing but Python.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

WITH_PATHS = ("-o", "-c", "-MF", "-MT", "-isystem")
"""Options whose next word is a path."""


def key_of(command: list[str]) -> str:
    """What decides an object: the source's text and the options without paths."""
    digest = hashlib.sha256(Path(after(command, "-c")).read_bytes())
    is_path = False
    for word in command:
        if not is_path and word not in WITH_PATHS and not word.startswith("-I"):
            digest.update(word.encode() + b"\0")
        is_path = word in WITH_PATHS
    return digest.hexdigest()


def after(command: list[str], option: str) -> str:
    """The word behind an option."""
    return command[command.index(option) + 1]


def main() -> int:
    """Compile, or copy what was compiled."""
    started, folder, command = time.perf_counter(), Path(sys.argv[1]), sys.argv[2:]
    if "-c" not in command:
        return subprocess.run(command, check=False).returncode
    kept = folder / key_of(command)
    if kept.exists():
        shutil.copyfile(kept, after(command, "-o"))
        if "-MF" in command:
            Path(after(command, "-MF")).touch()
    else:
        code = subprocess.run(command, check=False).returncode
        if code != 0:
            return code
        seconds = time.perf_counter() - started
        shutil.copyfile(after(command, "-o"), kept)
        kept.with_suffix(".seconds").write_text(str(seconds))
    now = time.perf_counter() - started
    with (folder / "log").open("a") as log:
        log.write(f"{now} {kept.with_suffix('.seconds').read_text()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
