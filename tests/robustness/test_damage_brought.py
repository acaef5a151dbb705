"""A flipped bit or a missing end in a file that users bring: an error that names the file, or the same data.

Of the formats that have checksums; plain CSV and Parquet pages without them have nothing to notice it by.
"""

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from tests.fuzz.file_kinds_brought import KINDS as BROUGHT
from tests.fuzz.file_kinds_brought import write_tables
from tests.fuzz.world import NODES, World
from tests.robustness.test_damage import flipped
from tests.suites import few_of

from graphbraid.datasets import from_tables, load_ogb
from graphbraid.errors import DataError
from graphbraid.graph import Graph

FLIPS, CUTS = 150, 15


def write_parquet(folder: Path) -> None:
    write_tables(folder, World())
    for path in list(folder.glob("*.csv")):
        table = pyarrow.csv.read_csv(path)
        pyarrow.parquet.write_table(table, path.with_suffix(".parquet"), write_page_checksum=True)
        path.unlink()


def read_tables(suffix: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        files = (folder / f"{name}.{suffix}" for name in ("edges", "nodes"))
        made = from_tables(*files, weight="w", features=["a", "b"], label="label", split="split")
        return in_numbers(made.graph), made.class_names, [made.ids[v] for v in range(NODES)]

    return read


def written_as(kind: str) -> Callable[[Path], None]:
    return lambda folder: BROUGHT[kind].write(folder, World())


def read_ogb(folder: Path) -> Any:
    return in_numbers(load_ogb(folder / "ogbn_mine"))


def in_numbers(graph: Graph) -> Any:
    csc = graph.csc
    tensors = [csc.indptr, csc.indices, csc.weight, graph.x, graph.y, *graph.splits.values()]
    return [None if t is None else t.tolist() for t in tensors], graph.name


KINDS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "csv.gz": (written_as("csv.gz"), read_tables("csv.gz")),
    "parquet": (write_parquet, read_tables("parquet")),
    "ogb text": (written_as("ogb, text"), read_ogb),
    "ogb binary": (written_as("ogb, binary"), read_ogb),
}


@pytest.mark.parametrize("kind", few_of(KINDS, {"csv.gz", "ogb binary"}))
def test_no_damage_gives_other_data(kind, tmp_path):
    write, read = KINDS[kind]
    write(tmp_path)
    good, draw = read(tmp_path), random.Random(0)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    for path in files:
        data = path.read_bytes()
        whole, refused = read(tmp_path), 0
        assert whole == good
        cases = damaged(data, draw, share=1 if len(files) < 4 or path.parent.name == "raw" else 5)
        for content in cases:
            path.write_bytes(content)
            try:
                with warnings.catch_warnings(action="ignore"):
                    assert read(tmp_path) == good, path
            except DataError as error:
                assert str(path) in str(error), error
                refused += 1
        path.write_bytes(data)
        assert refused > len(cases) / 4, path  # the rest: times, permissions, sizes nobody reads


def damaged(data: bytes, draw: random.Random, share: int) -> list[bytes]:
    places = draw.sample(range(len(data)), min(FLIPS // share, len(data)))
    cuts = draw.sample(range(len(data)), min(CUTS // share, len(data)))
    return [flipped(data, at, draw.randrange(8)) for at in places] + [data[:keep] for keep in cuts]


def test_a_directory_that_passes_over_an_array_is_damage(tmp_path):
    """An entry's length of comment, made larger, hides the entries that follow it."""
    written_as("ogb, binary")(tmp_path)
    path = tmp_path / "ogbn_mine" / "raw" / "data.npz"
    data = path.read_bytes()
    entry = data.rindex(b"PK\x01\x02", 0, data.index(b"node_feat.npy", data.index(b"PK\x01\x02")) - 46)
    last = data.rindex(b"PK\x05\x06")
    hidden = bytearray(data)
    length = int.from_bytes(data[entry + 28 : entry + 30], "little")
    hidden[entry + 32 : entry + 34] = (last - entry - 46 - length).to_bytes(2, "little")
    path.write_bytes(hidden)
    with pytest.raises(DataError, match=r"data\.npz is not a usable .npz .*does not list as many"):
        read_ogb(tmp_path)


def test_predictions_as_parquet_carry_checksums(tmp_path):
    from graphbraid.cli.table_files import write_parquet

    path = tmp_path / "p.parquet"
    write_parquet(path, {"node": np.arange(1000)})
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(OSError, match="CRC"):
        pyarrow.parquet.read_table(path, page_checksum_verification=True)
