"""A synthesised program as a contender: runs it and prints one JSON line of what it said and took.

python -m benchmarks.synth.program PROGRAM STORE --epochs 6
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.common.peak import PeakMemory


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path, help="the folder that graphbraid wrote, built in build/")
    parser.add_argument("store", type=Path)
    parser.add_argument("--epochs", type=int, default=6, help="the first is not timed")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    command = [str(options.program / "build" / "train"), "--home", str(options.program)]
    command += ["--data", str(options.store), "--epochs", str(options.epochs)]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    with PeakMemory(process) as peak:
        said, _ = process.communicate()
    if process.returncode != 0:
        sys.exit(f"the program ended with {process.returncode}")
    epochs = re.findall(r"^epoch \d+ loss (\S+) seconds (\S+)$", said, re.MULTILINE)
    seconds = [float(taken) for _, taken in epochs][1:]
    (load,) = re.findall(r"^seconds to load (\S+)$", said, re.MULTILINE)
    figures = {
        "lib": "program",
        "epoch_s": sorted(seconds)[len(seconds) // 2],
        "epochs_s": seconds,
        "load_s": float(load),
        "peak_rss_gb": peak.resident_bytes / 1e9,
        "own_gb": peak.own_bytes / 1e9,
        "loss": float(epochs[-1][0]),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
