"""A flipped bit or a missing end in a file that users bring: an error that names the file, or the same data.

Of the formats that have checksums; plain CSV and Parquet pages without them have nothing to notice it by.
"""

from __future__ import annotations

import gzip
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
import torch
from tests.extras import NO_PYG
from tests.robustness.test_damage import flipped
from tests.suites import few_of

from graphbraid.datasets import from_tables, load_ogb
from graphbraid.errors import DataError
from graphbraid.graph import Graph

NODES = 40
FLIPS, CUTS = 150, 15
DRAWN = np.random.default_rng(0)
EDGES = DRAWN.integers(0, NODES, (2, 150))
X = DRAWN.normal(size=(NODES, 3)).astype(np.float32)
Y = np.arange(NODES) % 4
SPLIT = {"train": range(20), "valid": range(20, 30), "test": range(30, NODES)}


def frames() -> dict[str, pd.DataFrame]:
    edges = pd.DataFrame({"source": EDGES[0], "destination": EDGES[1], "w": DRAWN.random(150)})
    nodes = pd.DataFrame({"id": range(NODES), "a": X[:, 0], "label": [f"class {c}" for c in Y]})
    return {"edges": edges, "nodes": nodes}


def write_csv_gz(folder: Path) -> None:
    for name, frame in frames().items():
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(frame.to_csv(index=False).encode()))


def write_parquet(folder: Path) -> None:
    for name, frame in frames().items():
        table = pyarrow.Table.from_pandas(frame)
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet", write_page_checksum=True)


def read_tables(suffix: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        files = (folder / f"{name}.{suffix}" for name in ("edges", "nodes"))
        made = from_tables(*files, weight="w", features=["a"], label="label")
        return in_numbers(made.graph), made.class_names, [made.ids[v] for v in range(NODES)]

    return read


def write_splits(folder: Path) -> None:
    for part, ids in SPLIT.items():
        write_rows(folder / "split" / "time" / f"{part}.csv.gz", [[i] for i in ids])


def write_rows(path: Path, rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(pd.DataFrame(rows).to_csv(header=False, index=False).encode()))


def write_ogb_text(folder: Path) -> None:
    write_splits(folder)
    rows = {"edge": EDGES.T, "node-feat": X, "node-label": Y[:, None]}
    for name, content in (rows | {"num-node-list": [[NODES]], "num-edge-list": [[150]]}).items():
        write_rows(folder / "raw" / f"{name}.csv.gz", content)


def write_ogb_binary(folder: Path) -> None:
    write_splits(folder)
    (folder / "raw").mkdir()
    counts = {"num_nodes_list": [NODES], "num_edges_list": [150], "node_year": np.zeros((NODES, 1))}
    np.savez_compressed(folder / "raw" / "data.npz", edge_index=EDGES, **counts, node_feat=X)
    np.savez_compressed(folder / "raw" / "node-label.npz", node_label=Y[:, None].astype(float))


def write_ogb_processed(folder: Path) -> None:
    data = pytest.importorskip("torch_geometric.data", reason=NO_PYG)
    write_splits(folder)
    (folder / "processed").mkdir()
    y = torch.from_numpy(Y)[:, None]
    made = data.Data(edge_index=torch.from_numpy(EDGES), x=torch.from_numpy(X), y=y, num_nodes=NODES)
    collated = data.InMemoryDataset.collate([made])
    torch.save(collated, folder / "processed" / "geometric_data_processed.pt")


def read_ogb(folder: Path) -> Any:
    return in_numbers(load_ogb(folder))


def in_numbers(graph: Graph) -> Any:
    csc = graph.csc
    tensors = [csc.indptr, csc.indices, csc.weight, graph.x, graph.y, *graph.splits.values()]
    return [None if t is None else t.tolist() for t in tensors], graph.name


KINDS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "csv.gz": (write_csv_gz, read_tables("csv.gz")),
    "parquet": (write_parquet, read_tables("parquet")),
    "ogb text": (write_ogb_text, read_ogb),
    "ogb binary": (write_ogb_binary, read_ogb),
    "ogb processed": (write_ogb_processed, read_ogb),
}


@pytest.mark.parametrize("kind", few_of(KINDS, {"csv.gz", "ogb processed"}))
def test_no_damage_gives_other_data(kind: str, tmp_path: Path) -> None:
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
                with warnings.catch_warnings(action="ignore"):  # of torch and zipfile, about what is read
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


def test_a_directory_that_passes_over_an_array_is_damage(tmp_path: Path) -> None:
    """An entry's length of comment, made larger, hides the entries that follow it."""
    write_ogb_binary(tmp_path)
    path = tmp_path / "raw" / "data.npz"
    data = path.read_bytes()
    entry = data.rindex(b"PK\x01\x02", 0, data.index(b"node_feat.npy", data.index(b"PK\x01\x02")) - 46)
    last = data.rindex(b"PK\x05\x06")
    hidden = bytearray(data)
    length = int.from_bytes(data[entry + 28 : entry + 30], "little")
    hidden[entry + 32 : entry + 34] = (last - entry - 46 - length).to_bytes(2, "little")
    path.write_bytes(hidden)
    with pytest.raises(DataError, match=r"data\.npz is not a usable .npz .*does not list as many"):
        load_ogb(tmp_path)


def test_predictions_as_parquet_carry_checksums(tmp_path: Path) -> None:
    from graphbraid.cli.steps.table_files import write_parquet

    path = tmp_path / "p.parquet"
    write_parquet(path, {"node": np.arange(1000)})
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(OSError, match="CRC"):
        pyarrow.parquet.read_table(path, page_checksum_verification=True)
