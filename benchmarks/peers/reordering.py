"""Renumbering a graph's nodes with ``dgl.reorder_graph``: seconds and peak memory; one JSON line.

    python -m benchmarks.peers.reordering GRAPH [--threads 2]

GRAPH is a folder of ``indptr.npy`` and ``indices.npy`` (CSC, int64). The order is given, by falling degree;
edges are put in the order of their destinations, so that the result's CSC stands in sequence. The digest
says which edges there are under which ids. Memory counts from where the library is imported.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FACTOR = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number


def degree_order(indices: Tensor, num_nodes: int) -> Tensor:
    """The nodes, those that are the source of most edges first."""
    return torch.bincount(indices, minlength=num_nodes).argsort(descending=True, stable=True)


def digest(indptr: Tensor, indices: Tensor, step: int = 1 << 18) -> int:
    """The same for the same edges, in whichever order a node's stand; made of some nodes at a time."""
    total = 0
    for begin in range(0, indptr.numel() - 1, step):
        ends = indptr[begin : begin + step + 1]
        rows = torch.arange(begin, begin + ends.numel() - 1).repeat_interleave(ends.diff())
        keys = (rows << 32 | indices[int(ends[0]) : int(ends[-1])].long()) * FACTOR
        keys ^= keys >> 29
        total += int((keys * FACTOR >> 3).sum())
    return total % 2**63


def resident_bytes(field: str) -> int:
    """``VmRSS`` or ``VmHWM`` of this process."""
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) * 1024


def peak_starts_here() -> None:
    """Make ``VmHWM`` count anew from now on."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    """Reorder and time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    import dgl

    before = resident_bytes("VmRSS")
    indptr, indices = (torch.from_numpy(np.load(options.graph / f"{n}.npy")) for n in ("indptr", "indices"))
    num_nodes, topology = indptr.numel() - 1, indptr.nbytes + indices.nbytes
    order = degree_order(indices, num_nodes)
    graph = dgl.graph(("csc", (indptr, indices, torch.tensor([], dtype=torch.int64))), num_nodes=num_nodes)
    del indptr, indices
    peak_starts_here()
    started = time.perf_counter()
    moved = dgl.reorder_graph(
        graph,
        node_permute_algo="custom",
        edge_permute_algo="dst",
        store_ids=False,
        permute_config={"nodes_perm": order},
    )
    seconds = time.perf_counter() - started
    peak = resident_bytes("VmHWM") - before
    started = time.perf_counter()
    indptr, indices, _ = moved.adj_tensors("csc")
    csc_seconds = time.perf_counter() - started
    found = {"seconds": seconds, "csc_seconds": csc_seconds, "num_edges": indices.numel()}
    found |= {"peak_bytes": peak, "topology_bytes": topology, "digest": digest(indptr, indices)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
