"""Table of requests to the example service."""

from __future__ import annotations

from benchmarks.common.rows import read_rows
from benchmarks.tables.markdown import table, where


def requests() -> str:
    """Waiting times and rates by the number of clients."""
    rows = read_rows("serving")
    lines = [
        [
            row["kind"],
            str(row["clients"]),
            f"{row['p50_ms']:.1f} ms",
            f"{row['p99_ms']:.1f} ms",
            f"{row['requests_per_second']:,.0f}",
        ]
        for row in rows
    ]
    heads = ("a request is", "clients", "p50", "p99", "requests a second")
    return "\n\n".join([table(heads, lines), where(rows, "benchmarks.serving.service")])
