"""Seconds of encoders of a million cells, by pyarrow and NumPy and by scikit-learn.

    python -m benchmarks.accuracy.encoders

Each encoder is fitted on a column and applied to it. scikit-learn has numbers in NumPy's arrays and texts in
arrays of objects. The median of the repeats counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table
from sklearn.preprocessing import OneHotEncoder, QuantileTransformer, StandardScaler

from benchmarks.common.options import add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from graphbraid.datasets.tables.column_types import ColumnChoice
from graphbraid.datasets.tables.encoding import applied, fitted

ROWS, CATEGORIES, REPEATS = 1_000_000, 40, 5


def seconds_of(work: Callable[[], object]) -> float:
    """The median of repeated runs."""
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def encode(kind: str, how: str, column: Any) -> None:
    """Fit our encoder, and apply it."""
    made = fitted("c", column, None, ColumnChoice(type=kind, encoder=how), None)
    assert made is not None
    applied(made, column, None)


def main() -> None:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    add_out_argument(parser)
    options = parser.parse_args()
    draw = np.random.default_rng(0)
    numbers = draw.lognormal(size=ROWS)
    texts = np.array([f"category {n}" for n in range(CATEGORIES)], object)[draw.integers(0, CATEGORIES, ROWS)]
    columns = {"number": pa.chunked_array([numbers]), "category": pa.chunked_array([pa.array(texts)])}
    peers = {
        ("number", "standard"): (StandardScaler(), numbers),
        ("number", "quantile"): (QuantileTransformer(n_quantiles=101), numbers),
        ("category", "one-hot"): (OneHotEncoder(sparse_output=False, dtype=np.float32), texts),
    }
    rows = {}
    for (kind, how), (peer, values) in peers.items():
        cells = values[:, None]
        rows[how] = {
            "graphbraid": seconds_of(lambda kind=kind, how=how: encode(kind, how, columns[kind])),  # type: ignore[misc]
            "scikit-learn": seconds_of(lambda peer=peer, cells=cells: peer.fit_transform(cells)),  # type: ignore[misc]
        }
    table = Table("encoder", "graphbraid, s", "scikit-learn, s")
    for how, row in rows.items():
        table.add_row(how, f"{row['graphbraid']:.3f}", f"{row['scikit-learn']:.3f}")
    Console(width=110).print(table)
    print("wrote", write_rows("encoders", rows, repeats=REPEATS, out=options.out))


if __name__ == "__main__":
    main()
