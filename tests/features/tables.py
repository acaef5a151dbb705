"""Tables in files, for the tests of rows on disk."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphbraid import Graph
from graphbraid.datasets import open_store, save_store
from graphbraid.features import DiskOptions, DiskRows, TieredFeatures, TieredTopology
from graphbraid.files.block_sums import of_file
from graphbraid.graph.csc import Csc
from graphbraid.loader import BatchLoader, LoaderSettings
from graphbraid.nn import GraphSAGE
from graphbraid.sampling.minibatch.mini_batch import MiniBatch
from graphbraid.sampling.source import BatchSource

READERS = [
    DiskOptions(),
    DiskOptions(direct=False),
    DiskOptions(reader="threads"),
    DiskOptions(reader="threads", direct=False, depth=1),
    DiskOptions(depth=2, longest_bytes=4096, gap_blocks=0),
    DiskOptions(depth=3, longest_bytes=1 << 20, gap_blocks=40),
]


def table_of(num_rows: int, width: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Random rows, every value different from the others with near certainty."""
    rows = torch.randn(num_rows, width, generator=torch.Generator().manual_seed(seed))
    return rows.mul(1000).to(dtype)


def written(folder: Path, table: Tensor, first_byte: int = 128) -> Path:
    """A file with some bytes before the table."""
    path = folder / "table.bin"
    path.write_bytes(b"\1" * first_byte + table.contiguous().view(torch.uint8).numpy().tobytes())
    return path


def rows_of(
    path: Path,
    table: Tensor,
    first_byte: int = 128,
    options: DiskOptions | None = None,
    checked: bool = True,
) -> DiskRows:
    """The table of :func:`written`, read from its file."""
    sums = torch.from_numpy(of_file(path)) if checked else None
    return DiskRows(
        path,
        offset=first_byte,
        num_rows=len(table),
        row_shape=tuple(table.shape[1:]),
        dtype=table.dtype,
        sums=sums,
        options=options,
    )


def stored_graph(
    folder: Path, num_nodes: int = 300, width: int = 37, dtype: torch.dtype = torch.float32
) -> Graph:
    """A random graph with features and labels, opened from a store."""
    generator = torch.Generator().manual_seed(3)
    edges = torch.randint(num_nodes, (2, 6 * num_nodes), generator=generator)
    graph = Graph.from_edge_index(
        edges,
        num_nodes,
        x=table_of(num_nodes, width, dtype).div(1000),
        y=torch.randint(4, (num_nodes,), generator=generator),
        splits={
            "train": torch.arange(0, num_nodes // 2),
            "val": torch.arange(num_nodes // 2, 3 * num_nodes // 4),
            "test": torch.arange(3 * num_nodes // 4, num_nodes),
        },
    )
    return open_store(save_store(graph, folder / "store"))


def flip_a_byte(path: Path, at: int) -> None:
    """Change one bit of a file, as a failing disk does; a negative place counts from the end."""
    with path.open("r+b") as file:  # in place: it may be mapped
        file.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))


def same(a: Tensor, b: Tensor) -> bool:
    """Equal to the bit."""
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and np.array_equal(a.contiguous().view(torch.uint8).numpy(), b.contiguous().view(torch.uint8).numpy())
    )


def graph_without_features(num_nodes: int = 4) -> Graph:
    """Nodes only."""
    return Graph(
        csc=Csc(torch.zeros(num_nodes + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int32), num_nodes)
    )


def model_of(graph, width=16):
    torch.manual_seed(0)
    return GraphSAGE(graph.num_features, width, graph.num_classes, num_layers=2)


def losses_of(trainer):
    """The losses of a run's epochs, and its scores."""
    result = trainer.fit()
    return [epoch["train_loss"] for epoch in result.history], result.test


def batches_of(
    graph: Graph,
    rows: TieredFeatures | None = None,
    lists: TieredTopology | None = None,
    **options: Any,
) -> list[MiniBatch]:
    """The mini-batches of two epochs."""
    given: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 17, "input_nodes": "train", "seed": 5}
    source = BatchSource(graph=graph, rows=rows, lists=lists)
    with BatchLoader(source, LoaderSettings(**given | options)) as loader:
        return [batch for epoch in range(2) for batch in loader.batches(epoch)]
