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

MPI_TOOLS = ("mpicxx", "mpirun")
OPEN_MPI = {
    # By default Open MPI starts neither as root nor more ranks than cores, and binds each rank to one core.
    # Open MPI 4 reads what begins with OMPI, 5 what begins with PRTE.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


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
    environment = os.environ | OPEN_MPI | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        command_of(options), stdout=subprocess.PIPE, text=True, env=environment, check=False
    )
    if done.returncode != 0:
        sys.exit(f"the program ended with {done.returncode}")
    said = done.stdout
    epochs = re.findall(r"^epoch \d+ loss (\S+) seconds (\S+)$", said, re.MULTILINE)
    seconds = [float(taken) for _, taken in epochs][1:]
    (load,) = re.findall(r"^seconds to load (\S+)$", said, re.MULTILINE)
    (peak,) = re.findall(r"^peak memory (\d+) bytes", said, re.MULTILINE)
    sent = re.search(r"^bytes sent per epoch (\d+)$", said, re.MULTILINE)
    path = re.search(r"^input path (\w+): (.*)$", said, re.MULTILINE)
    figures = {
        "lib": "program",
        "epoch_s": sorted(seconds)[len(seconds) // 2],
        "epochs_s": seconds,
        "load_s": float(load),
        "peak_rss_gb": int(peak) / 1e9,
        "sent_bytes": sent and int(sent[1]),
        "losses": [float(loss) for loss, _ in epochs],
        "input_path": path and path[1],
        "input_why": path and path[2],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
