"""The rows of a partition's parts: adjacency lists and features of own nodes, from which ranks draw batches.

``save_partition(rows=...)`` writes them beside the parts. In the folder stand what all ranks read: labels and
splits, scales of features of int8, and with ``lists="whole"`` the graph's adjacency lists. In the folder of
each part stand the features of its own nodes, and their lists with the edges' weights and features. A rank
opens the first and its own parts, and never the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from graphbraid.datasets.store.arrays import ArrayEntry, ArrayParts, FolderKind, write_array
from graphbraid.datasets.store.manifest import StoreManifest, StoreNames, manifest_of
from graphbraid.datasets.store.on_disk import sums_of, tensors_of
from graphbraid.errors import DataError
from graphbraid.files.schema import Count
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc, degrees_and_loops, index_dtype
from graphbraid.graph.identity import mark
from graphbraid.graph.scaled_features import stored_rows
from graphbraid.graph.types import ONLY_NODE_TYPE
from graphbraid.ops.gather import gather_rows

Lists = Literal["parts", "whole"]
"""Where adjacency lists are: with their nodes' part, or whole in the folder, for all ranks to map."""
SHARED = FolderKind(name="partition", manifest="shared.json", again="partition")
"""What all ranks read of a partition."""
ROWS = FolderKind(name="partition", manifest="rows.json", again="partition")
"""The lists and features of a part's own nodes."""
_BLOCK_BYTES = 1 << 25
DEGREES = ("src_degree", "src_loop")
"""What layers that normalise by degrees read of all nodes; see :class:`graphbraid.Csc`."""
_OF_EDGES = ("indptr", "indices", "weight", "edge_attr")


class SharedManifest(BaseModel):
    """The content of ``shared.json``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    part_of_xxh3: str
    lists: Lists
    graph: StoreManifest
    """The graph as a store describes it; its arrays are those that all ranks read."""
    marks: dict[str, str]
    """Mark of each array of edges or features of the whole graph."""
    has_edge_ids: bool
    """Whether edges have other ids than their positions, which parts do not hold."""
    num_edge_features: Count = 0
    """Number of columns of the edge features; 0 also where there are none."""


class RowsManifest(BaseModel):
    """The content of ``rows.json``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    part: Count
    part_of_xxh3: str
    marks: dict[str, str]
    """Those of ``shared.json``: parts of two graphs are told apart, also if they were divided alike."""
    arrays: dict[str, ArrayEntry]


def refuse_unfit(graph: Graph) -> None:
    """Refuse a graph whose batches could not be drawn from parts.

    Raises:
        DataError: it has several types, or no dense features.
    """
    graph.check_one_type("a partition")
    if stored_rows(graph.x) is None:
        kind = "none" if graph.x is None else type(graph.x).__name__
        raise DataError(f"parts hold rows of dense features; this graph's are {kind}. Give dense ones first")


def rows_bytes(graph: Graph, num_parts: int, lists: Lists) -> int:
    """Return the bytes that the rows of all parts take on disk."""
    assert graph.x is not None
    of_edges = graph.csc.nbytes + (0 if lists == "whole" else 16 * graph.num_nodes)
    of_edges += 0 if graph.edge_attr is None else graph.edge_attr.nbytes
    shared = sum(values.nbytes for values in (graph.y, *graph.splits.values()) if values is not None)
    return of_edges + graph.x.nbytes + shared + (1 << 14) * (num_parts + 1)


def marks_of(graph: Graph) -> dict[str, str]:
    """Return the mark of each array of edges or features."""
    return {
        name: mark(values, in_blocks=bool(sums_of(name)))
        for name, values in tensors_of(graph)
        if name in ("x", "x_scale", *_OF_EDGES)
    }


def write_shared(
    folder: Path, graph: Graph, *, lists: Lists, part_of_xxh3: str, marks: dict[str, str]
) -> None:
    """Write what all ranks read, into the folder of a partition."""
    arrays = dict[str, dict[str, Any]]()
    for name, values in tensors_of(graph):
        if name == "edge_id" and lists == "parts":
            continue
        if name != "x" and (name not in _OF_EDGES or lists == "whole"):
            arrays[name] = write_array(folder / f"{name}.npy", ArrayParts.whole(values))
    if lists == "parts":
        for name, found in zip(DEGREES, degrees_and_loops(graph.csc), strict=True):
            if found is not None:
                arrays[name] = write_array(folder / f"{name}.npy", ArrayParts.whole(found))
    names = StoreNames(class_names=graph.schema.class_names.get(ONLY_NODE_TYPE))
    manifest = {
        "part_of_xxh3": part_of_xxh3,
        "lists": lists,
        "graph": manifest_of(graph, names, graph.num_features, arrays),
        "marks": marks,
        "has_edge_ids": graph.edge_id is not None and lists == "parts",
        "num_edge_features": graph.num_edge_features,
    }
    SHARED.write(folder, manifest)


def write_rows(
    folder: Path,
    graph: Graph,
    owned: Tensor,
    part: int,
    *,
    lists: Lists,
    part_of_xxh3: str,
    marks: dict[str, str],
) -> None:
    """Write the lists and the features of a part's own nodes into its folder, block by block."""
    arrays = {"x": _features(graph, owned)}
    if lists == "parts":
        arrays |= _lists(graph, owned)
    described = {name: write_array(folder / f"{name}.npy", values) for name, values in arrays.items()}
    ROWS.write(folder, {"part": part, "part_of_xxh3": part_of_xxh3, "marks": marks, "arrays": described})


def _features(graph: Graph, owned: Tensor) -> ArrayParts:
    x = stored_rows(graph.x)
    assert x is not None
    at_a_time = max(1, _BLOCK_BYTES // max(1, x.shape[1] * x.element_size()))

    def parts() -> Iterator[Tensor]:
        return (gather_rows(x, ids, trusted=True) for ids in torch.split(owned, at_a_time))

    return ArrayParts(x.dtype, (owned.numel(), x.shape[1]), parts)


def _lists(graph: Graph, owned: Tensor) -> dict[str, ArrayParts]:
    """Return the in-edges of the own nodes, in the graph's order, with sources as ids in the whole graph."""
    csc = graph.csc
    first = csc.indptr[owned]
    indptr = torch.zeros(owned.numel() + 1, dtype=torch.int64)
    torch.cumsum(csc.indptr[owned + 1] - first, 0, out=indptr[1:])

    def parts(values: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
        edges_at_a_time, begin = _BLOCK_BYTES // max(16, values[:1].nbytes), 0
        while begin < owned.numel():
            most = int(indptr[begin]) + edges_at_a_time
            end = max(begin + 1, int(torch.searchsorted(indptr, most, right=True)) - 1)
            degrees = indptr[begin + 1 : end + 1] - indptr[begin:end]
            ahead = first[begin:end] - (indptr[begin:end] - indptr[begin])
            count = int(indptr[end] - indptr[begin])
            positions = torch.repeat_interleave(ahead, degrees, output_size=count) + torch.arange(count)
            yield values[positions].to(dtype)
            begin = end

    num_edges, ids = int(indptr[-1]), index_dtype(max(csc.num_src, 1))
    arrays = {
        "indptr": ArrayParts.whole(indptr),
        "first_edge": ArrayParts.whole(first),
        "indices": ArrayParts(ids, (num_edges,), lambda: parts(csc.indices, ids)),
    }
    weight, attr = csc.weight, graph.edge_attr
    if weight is not None:
        arrays["weight"] = ArrayParts(weight.dtype, (num_edges,), lambda: parts(weight, weight.dtype))
    if attr is not None:
        shape = (num_edges, attr.shape[1])
        arrays["edge_attr"] = ArrayParts(attr.dtype, shape, lambda: parts(attr, attr.dtype))
    return arrays


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class PartRows:
    """The lists and features of a part's own nodes, mapped from its folder."""

    owned: Tensor
    """``(num_owned,)`` int64 ids in the whole graph, ascending."""
    x: Tensor
    """``(num_owned, num_features)`` feature rows as they are stored: of int8 without their scales."""
    indptr: Tensor | None
    """``(num_owned + 1,)`` int64 offsets of the nodes' lists; None where lists are whole."""
    indices: Tensor | None
    """``(num_edges,)`` sources, as ids in the whole graph."""
    weight: Tensor | None
    """``(num_edges,)`` float32 weights of the edges, if the graph has some."""
    edge_attr: Tensor | None
    """``(num_edges, num_edge_features)`` features of the edges, if the graph has some."""
    first_edge: Tensor | None
    """``(num_owned,)`` int64 position of each node's first edge in the whole graph."""

    @classmethod
    def open(
        cls, folder: Path, part: int, owned: Tensor, part_of_xxh3: str, shared: SharedManifest
    ) -> PartRows:
        """Map the rows of a part, after each file was compared with its checksum.

        Raises:
            DataError: a file is missing, truncated, has changed or is of another partition.
        """
        manifest = ROWS.read(folder, RowsManifest)
        if manifest.part != part or manifest.part_of_xxh3 != part_of_xxh3:
            raise DataError(
                f"{folder} has the rows of part {manifest.part} of another partition; partition again"
            )
        if manifest.marks != shared.marks:
            raise DataError(f"{folder} has the rows of another graph that was divided alike; partition again")
        arrays = {
            name: ROWS.array(folder, entry).load(mapped=True, verify=True)
            for name, entry in manifest.arrays.items()
        }
        rows = cls(
            owned=owned,
            **{name: arrays.get(name) for name in ("x", "first_edge", *_OF_EDGES)},  # type: ignore[arg-type]
        )
        rows._check(folder, shared)
        return rows

    def _check(self, folder: Path, shared: SharedManifest) -> None:
        """Check that arrays fit each other and the graph."""
        count, graph = self.owned.numel(), shared.graph
        expected: dict[str, tuple[int, ...]] = {"x": (count, graph.num_features)}
        if shared.lists == "parts":
            edges = 0 if self.indptr is None or not self.indptr.numel() else int(self.indptr[-1])
            expected |= {"indptr": (count + 1,), "first_edge": (count,), "indices": (edges,)}
            if "weight" in shared.marks:
                expected["weight"] = (edges,)
            if "edge_attr" in shared.marks:
                expected["edge_attr"] = (edges, shared.num_edge_features)
        for name, shape in expected.items():
            values: Tensor | None = getattr(self, name)
            if values is None or tuple(values.shape) != shape:
                got = "is missing" if values is None else f"has shape {tuple(values.shape)}"
                raise DataError(f"{folder}: {name} {got}, and must have {shape}; partition again")
        if self.indices is not None and self.indptr is not None:
            Csc(self.indptr, self.indices, max(graph.num_nodes, 1), self.weight)  # checks order and ids
