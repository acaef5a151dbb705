"""Our side of ``benchmarks.sampling.typed``: mini-batches of a graph with types; prints one JSON line."""

from __future__ import annotations

import torch

from benchmarks.sampling.timed import parse_options, print_epoch
from benchmarks.sampling.typed_graphs import read
from graphbraid.loader import NeighborLoader


def main() -> None:
    """An epoch to warm up, then one that counts."""
    options = parse_options(__doc__, batches=40)
    torch.set_num_threads(options.workers)
    graph, seed_type, seeds = read(options.graph)
    steps = min(options.batches, len(seeds) // options.batch_size)
    loader = NeighborLoader(
        graph,
        options.fanouts,
        input_nodes=(seed_type, seeds[: steps * options.batch_size]),
        batch_size=options.batch_size,
        num_workers=options.workers,
        layout="blocks",
        return_edge_id=False,
        seed=0,
    )
    print_epoch(loader, options, steps)


if __name__ == "__main__":
    main()
