"""Tables of graphs with several node types and relations, or with times."""

from __future__ import annotations

from benchmarks.common.rows import read_rows
from benchmarks.tables.markdown import table, where

PEERS = {"graphbolt": "GraphBolt", "dgl": "DGL"}


def batches() -> str:
    """Mini-batches beside the peers: times of one, and what it holds."""
    rows = read_rows("typed_sampling")
    lines = []
    for row in rows:
        one = row["graphbraid"]["runs"][0]
        lines.append(
            [
                row["graph"],
                f"{one['nodes_per_batch']:,.0f} / {one['edges_per_batch']:,.0f}",
                str(row["workers"]),
                f"**{row['graphbraid']['ms_per_batch']:.2f} ms**",
                *[f"{row[p]['ms_per_batch']:.1f} ms ({row['ratio'][p]:.1f}x)" for p in PEERS],
            ]
        )
    heads = ("graph", "nodes / edges a batch", "workers", "graphbraid", *PEERS.values())
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.sampling.typed")])


def temporal_batches() -> str:
    """Mini-batches with neighbours up to each seed's time, beside GraphBolt: times of one, and of an edge."""
    rows = read_rows("temporal_sampling")
    lines = []
    for row in rows:
        own, theirs = row["graphbraid"], row["graphbolt"]
        lines.append(
            [
                row["graph"],
                ",".join(map(str, row["fanouts"])),
                str(row["workers"]),
                f"**{own['ms_per_batch']:.2f} ms**, {own['ns_per_edge']:.0f} ns",
                f"{theirs['ms_per_batch']:.1f} ms, {theirs['ns_per_edge']:,.0f} ns ({row['ratio']:.1f}x)",
            ]
        )
    heads = ("graph", "fanouts", "workers", "graphbraid: a batch, an edge", "GraphBolt (by edge)")
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.sampling.temporal")])


def accuracy() -> str:
    """Test accuracy of R-GCN beside PyG's training of the same model."""
    rows = read_rows("relational_accuracy")
    lines = []
    for row in rows:
        shares = [
            f"{row[f'{lib}_mean']:.2f} ± {row[f'{lib}_deviation']:.2f}" for lib in ("graphbraid", "pyg")
        ]
        apart = f"{row['difference']:+.2f} ± {row['standard_error']:.2f}"
        lines.append([row["dataset"], str(row["repeats"]), *shares, apart])
    heads = ("R-GCN, test accuracy in %", "seeds", "graphbraid", "PyG", "difference, standard error")
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.accuracy.relational")])
