"""Command-line options that several benchmarks share."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.common.contenders import ROOT

PEER_PYTHON = ROOT / ".peers" / "bin" / "python"
"""Where ``make peers`` puts it."""
PYKEEN_PYTHON = ROOT / ".peers-pykeen" / "bin" / "python"
"""Where ``make peers-pykeen`` puts it."""


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A parser that shows a module's docstring as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_graphs_argument(parser: argparse.ArgumentParser) -> None:
    """Where the graphs are."""
    parser.add_argument(
        "--graphs",
        type=absolute_path,
        required=True,
        help="folder with the graphs' folders; python -m benchmarks.graphs makes them",
    )


def add_data_argument(parser: argparse.ArgumentParser) -> None:
    """Where the archives are."""
    parser.add_argument(
        "--data", type=absolute_path, required=True, help="folder with the archives, NAME.npz"
    )


def add_peer_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the peers are."""
    parser.add_argument(
        "--peer-python",
        default=str(PEER_PYTHON),
        type=lambda given: str(absolute_path(given)),
        help="Python of the environment that `make peers` makes (DGL 2.1 and its GraphBolt)",
    )


def add_out_argument(parser: argparse.ArgumentParser) -> None:
    """Where the results go."""
    parser.add_argument("--out", type=Path, help="file of JSON lines; default: under benchmarks/results")


def absolute_path(given: str) -> Path:
    """A path that holds wherever a contender runs; links stay, a virtual environment's Python is one."""
    return Path(os.path.abspath(given))  # noqa: PTH100, resolve() would follow the link out of the environment
