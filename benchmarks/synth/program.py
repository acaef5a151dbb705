"""A synthesised program as a contender: runs it and prints one JSON line of what it said and took.

python -m benchmarks.synth.program PROGRAM --data STORE --epochs 6
python -m benchmarks.synth.program PROGRAM --ranks 2 --epochs 6
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.common.peak import PeakMemory

MPI_TOOLS = ("mpicxx", "mpirun")


def mpi_tool(name: str) -> str | None:
    """The path of a tool of MPI, on the ``PATH`` or beside this Python."""
    return shutil.which(
        name, path=os.pathsep.join((os.environ.get("PATH", ""), str(Path(sys.executable).parent)))
    )


def command_of(options: argparse.Namespace) -> list[str]:
    """The command that runs the program."""
    command = [str(options.program / "build" / "train"), "--home", str(options.program)]
    command += ["--epochs", str(options.epochs)]
    if options.ranks:
        return [mpi_tool("mpirun") or "mpirun", "-n", str(options.ranks), *command]
    command += ["--data", str(options.data)]
    return [*command, "--input", options.input] if options.input else command


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path, help="the folder that graphbraid wrote, built in build/")
    parser.add_argument("--data", type=Path, help="the store; a program of several ranks has its own arrays")
    parser.add_argument("--epochs", type=int, default=6, help="the first is not timed")
    parser.add_argument("--threads", type=int, default=2, help="of all ranks together")
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument(
        "--input", default="", help="the input path; the program's own choice if it is not given"
    )
    options = parser.parse_args()
    threads = max(1, options.threads // max(1, options.ranks))
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen(command_of(options), stdout=subprocess.PIPE, text=True, env=environment)
    with PeakMemory(process, "train" if options.ranks else None) as peak:
        said, _ = process.communicate()
    if process.returncode != 0:
        sys.exit(f"the program ended with {process.returncode}")
    epochs = re.findall(r"^epoch \d+ loss (\S+) seconds (\S+)$", said, re.MULTILINE)
    seconds = [float(taken) for _, taken in epochs][1:]
    (load,) = re.findall(r"^seconds to load (\S+)$", said, re.MULTILINE)
    path = re.search(r"^input path (\w+): (.*)$", said, re.MULTILINE)
    figures = {
        "lib": "program",
        "epoch_s": sorted(seconds)[len(seconds) // 2],
        "epochs_s": seconds,
        "load_s": float(load),
        "peak_rss_gb": peak.resident_bytes / 1e9,
        "own_gb": peak.own_bytes / 1e9,
        "loss": float(epochs[-1][0]),
        "input_path": path and path[1],
        "input_why": path and path[2],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
