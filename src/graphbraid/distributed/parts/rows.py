"""The rows of a partition's parts: adjacency lists and features of own nodes, from which ranks draw batches.

``save_partition(rows=...)`` writes them beside the parts. In the folder stand what all ranks read: labels and
splits, scales of features of int8, and with ``lists="whole"`` the graph's adjacency lists. In the folder of
each part stand the features of its own nodes, and their lists with the edges' weights and features. A rank
opens the first and its own parts, and never the graph.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from graphbraid.datasets.store.arrays import ArrayEntry, ArrayParts, FolderKind, write_array
from graphbraid.datasets.store.manifest import StoreManifest, manifest_of, names_to_store
from graphbraid.datasets.store.on_disk import sums_of, tensors_of
from graphbraid.datasets.store.types import is_rows_of_type
from graphbraid.errors import DataError
from graphbraid.features.rows.disk import DiskRows
from graphbraid.files.schema import Count, FileModel
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc, degrees_and_loops, index_dtype, indptr_of, ranges
from graphbraid.graph.identity import mark
from graphbraid.graph.scaled_features import stored_rows
from graphbraid.graph.types import Relation, first_ids, placed, rows_of_nodes
from graphbraid.ops.gather import gather_rows

Lists = Literal["parts", "whole"]
"""Where adjacency lists are: with their nodes' part, or whole in the folder, for all ranks to map."""
SHARED = FolderKind(name="partition", manifest="shared.json", again="partition")
"""Data of a partition that all ranks read."""
ROWS = FolderKind(name="partition", manifest="rows.json", again="partition")
"""The lists and features of a part's own nodes."""
_BLOCK_BYTES = 1 << 25
DEGREES = ("src_degree", "src_loop")
"""Degrees of all nodes for layers that normalise by them; see :class:`graphbraid.Csc`."""
_OF_EDGES = ("indptr", "rows_indptr", "indices", "weight", "edge_attr", "edge_id")
_OF_RELATION = re.compile(r"edge\d+_\w+")


class SharedManifest(FileModel):
    """The content of ``shared.json``."""

    part_of_xxh3: str
    lists: Lists
    graph: StoreManifest
    """The graph as a store describes it; its arrays are those that all ranks read."""
    marks: dict[str, str]
    """Mark of each array of edges or features of the whole graph."""
    num_edge_features: Count = 0
    """Number of columns of the edge features; 0 also where there are none."""

    @property
    def counts(self) -> list[int]:
        """Number of nodes of each type."""
        types = self.graph.types
        return [self.graph.num_nodes] if types is None else [one.num_nodes for one in types.nodes]

    @property
    def feature_names(self) -> list[str]:
        """Names that the arrays of the node types' features have, where there are some."""
        types = self.graph.types
        return ["x"] if types is None else [f"node{number}_x" for number in range(len(types.nodes))]

    def relations(self, counts: list[int]) -> list[Relation]:
        """Return where each relation stands among rows of ``counts`` nodes by type; none without types."""
        if (types := self.graph.types) is None:
            return []
        return placed(counts, [one.name for one in types.nodes], [one.key for one in types.edges])

    def rows_of(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows by relation of nodes, and how many each has, as :func:`.types.rows_of_nodes`."""
        return rows_of_nodes(self.relations(self.counts), first_ids(self.counts), ids)


class RowsManifest(FileModel):
    """The content of ``rows.json``."""

    part: Count
    part_of_xxh3: str
    marks: dict[str, str]
    """Those of ``shared.json``: parts of two graphs are told apart, also if they were divided alike."""
    arrays: dict[str, ArrayEntry]


def refuse_unfit(graph: Graph) -> None:
    """Raise DataError for a graph without dense features, whose batches no parts can draw."""
    for name in graph.node_types:
        x = graph.nodes_of(name).x
        if stored_rows(x) is None and not (x is None and graph.is_typed):
            kind = "none" if x is None else type(x).__name__
            of = f"those of {name!r}" if graph.is_typed else "this graph's"
            raise DataError(f"parts hold rows of dense features; {of} are {kind}. Give dense ones first")


def rows_bytes(graph: Graph, num_parts: int, lists: Lists) -> int:
    """Return the bytes that the rows of all parts take on disk."""
    size = sum(values.nbytes for name, values in tensors_of(graph) if _place_of(name, lists, graph.is_typed))
    return size + (16 * graph.num_nodes if lists == "parts" else 0) + (1 << 14) * (num_parts + 1)


def _place_of(name: str, lists: Lists, is_typed: bool) -> Literal["parts", "shared", ""]:
    """Return where an array of the graph lies: in the parts, or once for all ranks; empty: nowhere."""
    of_relation = _OF_RELATION.fullmatch(name)
    if name == "x" or is_rows_of_type(name):
        return "parts"
    if lists == "whole":
        return "shared"
    if name in _OF_EDGES or (of_relation and name.endswith("_attr")):
        return "" if is_typed and name == "edge_id" else "parts"  # nobody reads ids by relation
    return "" if of_relation else "shared"


def divided_by_type(ids: Tensor, first_ids: list[int]) -> list[Tensor]:
    """Divide ids in the whole graph, in their order, into ids within each type, by the types' first ids."""
    kinds = torch.bucketize(ids, torch.tensor(first_ids[1:-1]), right=True)
    return [ids[kinds == number] - first for number, first in enumerate(first_ids[:-1])]


def write_shared(folder: Path, graph: Graph, lists: Lists, part_of_xxh3: str) -> dict[str, Any]:
    """Write the data that all ranks read into the folder of a partition; return the manifest."""
    arrays, marks = dict[str, dict[str, Any]](), dict[str, str]()
    for name, values in tensors_of(graph):
        if _place_of(name, lists, graph.is_typed) == "shared":
            arrays[name] = write_array(folder / f"{name}.npy", ArrayParts.whole(values))
        if _place_of(name.removesuffix("_scale"), "parts", graph.is_typed) == "parts":  # of edges or features
            marks[name] = mark(values, in_blocks=bool(sums_of(name)))
    if lists == "parts" and not graph.is_typed:  # layers by relation normalise by no degrees
        for name, found in zip(DEGREES, degrees_and_loops(graph.csc), strict=True):
            if found is not None:
                arrays[name] = write_array(folder / f"{name}.npy", ArrayParts.whole(found))
    names = names_to_store(graph, None, None, None)
    manifest = {
        "part_of_xxh3": part_of_xxh3,
        "lists": lists,
        "graph": manifest_of(graph, names, graph.num_features, arrays),
        "marks": marks,
        "num_edge_features": graph.num_edge_features,
    }
    SHARED.write(folder, manifest)
    return manifest


def write_rows(folder: Path, graph: Graph, owned: Tensor, part: int, shared: Mapping[str, Any]) -> None:
    """Write the lists and the features of a part's own nodes into its folder, block by block.

    ``shared`` is the manifest of :func:`write_shared`.
    """
    arrays = dict[str, ArrayParts]()
    by_type = divided_by_type(owned, graph.all_types.first_ids)
    for number, (name, ids) in enumerate(zip(graph.node_types, by_type, strict=True)):
        if (x := stored_rows(graph.nodes_of(name).x)) is not None:
            one_each = torch.arange(ids.numel() + 1)
            arrays[f"node{number}_x" if graph.is_typed else "x"] = _of_lists(x.detach(), ids, one_each)
    if shared["lists"] == "parts":
        arrays |= _lists(graph, owned)
    described = {name: write_array(folder / f"{name}.npy", values) for name, values in arrays.items()}
    same = {name: shared[name] for name in ("part_of_xxh3", "marks")}
    ROWS.write(folder, {"part": part, "arrays": described, **same})


def _lists(graph: Graph, owned: Tensor) -> dict[str, ArrayParts]:
    """Return the in-edges of the own nodes, in the graph's order, with sources as ids in the whole graph.

    Features of a typed graph's edges lie by relation, in the order of the nodes' lists.
    """
    csc, types = graph.csc, graph.types
    first, indptr = _begins(csc.indptr, owned)
    arrays = {
        "indptr": ArrayParts.whole(indptr),
        "first_edge": ArrayParts.whole(first),
        "indices": _of_lists(csc.indices, first, indptr, dtype=index_dtype(max(csc.num_src, 1))),
    }
    ids = None if graph.is_typed else graph.edge_id
    for name, values in (("weight", csc.weight), ("edge_attr", graph.edge_attr), ("edge_id", ids)):
        if values is not None:
            arrays[name] = _of_lists(values, first, indptr)
    if types is not None:
        relations, by_type = types.relations(), divided_by_type(owned, types.first_ids)
        rows, _ = rows_of_nodes(relations, types.first_ids, owned)
        arrays["rows_indptr"] = ArrayParts.whole(_begins(types.rows.indptr, rows)[1])
        for one in relations:
            if (attr := types.edges[one.edge_type].edge_attr) is not None:
                begins = _begins(types.rows.indptr, one.first_row + by_type[one.destination] * one.stride)
                arrays[f"edge{one.number}_attr"] = _of_lists(attr, *begins, ids=graph.edge_id)
    return arrays


def _begins(indptr: Tensor, lists: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first position of some lists, and their offsets if they follow each other."""
    first = indptr[lists]
    return first, indptr_of(indptr[lists + 1] - first)


def _of_lists(
    values: Tensor,
    first: Tensor,
    indptr: Tensor,
    *,
    ids: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> ArrayParts:
    """Return the values of lists that begin at ``first``, as ``dtype`` at ``indptr``, read by blocks.

    ``ids`` say where the values of each position stand; with None they stand there.
    """
    as_written, at_a_time = dtype or values.dtype, _BLOCK_BYTES // max(16, values[:1].nbytes)

    def parts() -> Iterator[Tensor]:
        begin = 0
        while begin < first.numel():
            ends = torch.searchsorted(indptr, int(indptr[begin]) + at_a_time, right=True)
            end = max(begin + 1, int(ends) - 1)
            at = ranges(first[begin:end], indptr[begin : end + 1].diff())
            yield values[at if ids is None else ids[at]].to(as_written)
            begin = end

    return ArrayParts(as_written, (int(indptr[-1]), *values.shape[1:]), parts)


class JoinedRows:
    """Rows of the parts that a rank holds, contiguous and mapped, as one table, in the order of the parts."""

    def __init__(self, tables: Sequence[Tensor], *, from_disk: bool = False) -> None:
        self.tables = tables
        self.on_disk = [DiskRows.behind(one) if from_disk and one.nbytes else None for one in tables]

    @property
    def mapped(self) -> Tensor | None:
        """All rows as they are mapped; None if they are in several tables or on disk, or exceed int32."""
        first, *others = self.tables
        return None if others or self.on_disk[0] is not None or len(first) >= 1 << 31 else first

    def new(self, count: int) -> Tensor:
        """Return room for rows, ``(count, ...)`` in the dtype in which they are stored."""
        return self.tables[0].new_empty(count, *self.tables[0].shape[1:])

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of these numbers, ``(num_rows,)`` int64, as they are stored."""
        if len(self.tables) == 1:
            return self._read(0, rows)
        out, first = self.new(rows.numel()), 0
        for number, table in enumerate(self.tables):
            here = ((rows >= first) & (rows < first + len(table))).nonzero().squeeze(1)
            out[here] = self._read(number, rows[here] - first)
            first += len(table)
        return out

    def _read(self, number: int, rows: Tensor) -> Tensor:
        table = self.tables[number]
        if (disk := self.on_disk[number]) is not None:
            return disk.gather(rows)
        return gather_rows(table, rows, trusted=True) if table.ndim == 2 else table[rows]


class PartRows(NamedTuple):
    """The lists and features of a part's own nodes, mapped from its folder."""

    owned: Tensor
    """``(num_owned,)`` int64 ids in the whole graph, ascending."""
    by_type: list[Tensor]
    """The same within each node type."""
    arrays: dict[str, Tensor]
    """Feature rows of own nodes as they are stored (``x``, or ``node0_x``), of int8 without their scales.
    Unless lists are whole also their lists: ``indptr``, ``indices`` with sources as ids in the whole graph,
    ``weight``, ``edge_attr``, ``edge_id``, and ``first_edge``, the position of each node's first edge in the
    whole graph. In a graph with types ``rows_indptr`` has offsets by relation, in the order of
    :func:`.types.rows_of_nodes`, and ``edge0_attr`` the features of a relation's edges."""
    relations: list[Relation]
    """Where the relations of a typed graph stand among ``rows_indptr``; empty without types."""

    @classmethod
    def open(
        cls, folder: Path, part: int, owned: Tensor, part_of_xxh3: str, shared: SharedManifest
    ) -> PartRows:
        """Map a part's rows; DataError if a file is damaged, has changed or is of another partition."""
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
            if name == "first_edge" or name in shared.marks
        }
        by_type = divided_by_type(owned, first_ids(shared.counts))
        relations = shared.relations([*map(len, by_type)]) if shared.lists == "parts" else []
        found = cls(owned, by_type, arrays, relations)
        found._check(folder, shared)
        return found

    def lists_of(self, number: int | None) -> tuple[Tensor, Tensor]:
        """Return where own nodes' lists begin in the whole graph, and their offsets in the part's arrays.

        Those of a relation, by its number, are the lists of own nodes of its destinations' type.
        """
        first, indptr = self.arrays["first_edge"], self.arrays["indptr"]
        if number is None:
            return first, indptr
        relation = self.relations[number]
        begin, own = sum(map(len, self.by_type[: relation.destination])), self.by_type[relation.destination]
        nodes = slice(begin, begin + len(own))
        lists = relation.first_row + torch.arange(len(own)) * relation.stride
        begins, offsets = _begins(self.arrays["rows_indptr"], lists)
        return first[nodes] + begins - indptr[nodes], offsets

    def _check(self, folder: Path, shared: SharedManifest) -> None:
        """Check that arrays fit each other and the graph."""
        graph, arrays, zeros = shared.graph, self.arrays, torch.zeros(1, dtype=torch.int64)
        count, indptr = len(self.owned), arrays.get("indptr", zeros)
        widths = [graph.num_features] if graph.types is None else [n.num_features for n in graph.types.nodes]
        shapes = zip(map(len, self.by_type), widths, strict=True)
        expected: dict[str, tuple[int, ...]] = dict(zip(shared.feature_names, shapes, strict=True))
        if shared.lists == "parts":
            edges = int(indptr[-1]) if indptr.numel() else 0
            expected |= {"indptr": (count + 1,), "first_edge": (count,), "indices": (edges,)}
            expected |= {"weight": (edges,), "edge_attr": (edges, shared.num_edge_features)}
            expected["edge_id"] = (edges,)
            if graph.types is not None:
                begins = indptr_of(shared.rows_of(self.owned)[1])
                expected["rows_indptr"] = (int(begins[-1]) + 1,)
        for name, shape in expected.items():
            values, is_held = arrays.get(name), name == "first_edge" or name in shared.marks
            if is_held and (values is None or tuple(values.shape) != shape):
                raise _shape_error(folder, name, values, f"{shape}")
        if shared.lists == "whole":
            return
        num_src = max(graph.num_nodes, 1)
        csc = Csc(indptr, arrays["indices"], num_src, arrays.get("weight"))  # checks order and ids
        if graph.types is not None:
            by_row = Csc(arrays["rows_indptr"], csc.indices, num_src)
            if not torch.equal(by_row.indptr[begins], csc.indptr):
                raise DataError(f"{folder}: rows_indptr does not fit indptr; partition again")
            for one in self.relations:
                if (name := f"edge{one.number}_attr") in shared.marks:
                    edges, attr = int(self.lists_of(one.number)[1][-1]), arrays.get(name)
                    if attr is None or attr.ndim != 2 or attr.shape[0] != edges:
                        raise _shape_error(folder, name, attr, f"{edges} rows")


def _shape_error(folder: Path, name: str, values: Tensor | None, needed: str) -> DataError:
    got = "is missing" if values is None else f"has shape {tuple(values.shape)}"
    return DataError(f"{folder}: {name} {got}, and must have {needed}; partition again")
