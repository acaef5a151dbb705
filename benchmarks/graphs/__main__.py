"""Makes the folders of graphs that benchmarks read.

    python -m benchmarks.graphs GRAPHS corafull-like arxiv-like photo-like
    python -m benchmarks.graphs GRAPHS --data ARCHIVES web_cnr2000 web_cnr2000_shuffled

GRAPHS/NAME is left alone where it exists. Generated are the graphs of ``benchmarks.graphs.rmat`` and
photo-like and web-like of ``benchmarks.graphs.generated``; all others are archives ARCHIVES/NAME.npz.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.common.options import parser_of
from benchmarks.graphs import rmat
from benchmarks.graphs.make import make


def main(arguments: list[str] | None = None) -> None:
    """Make what is not there."""
    parser = parser_of(__doc__)
    parser.add_argument("graphs", type=Path)
    parser.add_argument("names", nargs="*", default=list(rmat.SPECS))
    parser.add_argument("--data", type=Path, help="folder of npz archives")
    options = parser.parse_intermixed_args(arguments)  # names may follow --data
    for name in options.names:
        try:
            print(make(name, options.graphs, options.data))
        except ValueError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
