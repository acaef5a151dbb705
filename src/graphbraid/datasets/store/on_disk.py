"""The on-disk store: a folder with one ``.npy`` file per array and a ``graph.json`` that describes them.

Opening maps the arrays into memory without reading them, so a graph larger than memory opens at once and
only the pages that are used are read. The mapping is private: changes to the tensors never reach the files.
``graph.json`` is written last, inside a temporary folder that is renamed when it is complete. Every file
carries a checksum; the first open verifies all of them, see docs/datasets.md.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from graphbraid.datasets.ids import NodeIds
from graphbraid.datasets.store.arrays import ArrayParts, StoredArray, write_array
from graphbraid.datasets.store.changed import Narrowing, bucket_bytes, renumbered_arrays, renumbered_ids
from graphbraid.datasets.store.manifest import (
    STORE,
    StoreManifest,
    StoreNames,
    ids_to_store,
    is_ids,
    manifest_of,
    names_to_store,
    stored_names,
)
from graphbraid.datasets.store.types import (
    is_rows_of_type,
    rows_by_type,
    rows_to_store,
    stored_features,
    stored_splits,
    tables_to_store,
    typed_graph_of,
    types_to_store,
    with_stored_tables,
)
from graphbraid.errors import ConfigError, DataError, ResourceError
from graphbraid.files.block_sums import BLOCK_BYTES, BlockSums
from graphbraid.files.checksums import sealed, unsealed
from graphbraid.files.opening import cache_folder, read_text
from graphbraid.files.writing import IfExists, atomic_directory, atomic_write, require_free_space
from graphbraid.graph import Graph
from graphbraid.graph.csc import Csc
from graphbraid.graph.scaled_features import stored_rows
from graphbraid.graph.schema import learned_columns
from graphbraid.graph.sparse_features import FEATURE_DTYPES
from graphbraid.signatures import typed

_log = logging.getLogger(__name__)
_SPACE_FOR_REST = 1 << 20  # headers and graph.json
_IF_RENUMBERED = (
    ". Is it the file of the store from before its nodes were renumbered? Then its entries belong to other "
    "nodes: put it into the store of before, and reorder that"
)
"""Hint for stores that keep original ids, as all do whose nodes were renumbered."""


@typed
def save_store(
    graph: Graph,
    path: str | os.PathLike[str],
    *,
    ids: NodeIds | None = None,
    class_names: Sequence[str] | None = None,
    names: Mapping[str, StoreNames] | None = None,
    order: Tensor | None = None,
    feature_parts: Iterable[Tensor] | None = None,
    features_dtype: Narrowing | str | None = None,
    if_exists: IfExists = "error",
) -> Path:
    """Write ``graph`` as a store, atomically, so that no reader sees an incomplete one.

    Args:
        graph: The graph; tensors on other devices are copied to the CPU one by one.
        path: The folder to make.
        ids: Original node ids to store, one per node.
        class_names: Names of the classes to store.
        names: Ids and class names by node type, for a graph with types; ``ids`` and ``class_names`` are for a
            graph without.
        order: ``(num_nodes,)`` int32 or int64 permutation: nodes are renumbered while they are written, so
            that ``order[i]`` becomes node ``i``. The original ids are stored: ``ids``, or else the ids in
            ``graph``. Arrays are made in parts, so a memory-mapped graph may be larger than memory.
        feature_parts: The features of a ``graph`` without ``x``: ``(rows, F)`` tensors of one dtype that
            together have a row per node, in the order of the nodes. Each is read when it is written, so that
            features may be larger than memory. Not with ``order``.
        features_dtype: ``"float16"``, ``"bfloat16"`` or ``"int8"`` (with a scale for each row): dtype to
            which dense features, of every type, are rounded as they are written. A :class:`Narrowing`
            afterwards tells the rounding errors. If None, features keep their dtype.
        if_exists: ``"error"`` raises if the folder exists, ``"replace"`` replaces an earlier store, and
            ``"keep"`` keeps it.

    Returns:
        The folder.

    Raises:
        ResourceError: There is no space or no permission, or the folder exists.
        DataError: ``ids`` does not have one entry per node, ``order`` is not a permutation of the nodes,
            ``feature_parts`` do not fit each other or the nodes, or ``features_dtype`` cannot hold a feature;
            names its row and column.
        ConfigError: ``feature_parts`` are given and ``graph`` has features, or ``order`` is given; no
            dtype is called ``features_dtype``; or an argument is for graphs with types, or for those without.
    """
    graph.check_whole("a store")
    narrowing = Narrowing(features_dtype) if isinstance(features_dtype, str) else features_dtype
    folder = Path(path)
    named = names_to_store(graph, ids, class_names, names)
    of_one_type = {"renumbering": order, "feature_parts": feature_parts}
    for what in (name for name, given in of_one_type.items() if given is not None):
        graph.check_one_type(what)
    if feature_parts is not None and (graph.x is not None or order is not None):
        raise ConfigError(
            "feature_parts are the features of a graph without x, in the order of its nodes; "
            + ("this graph has x" if graph.x is not None else "give no order, and reorder the store instead")
        )
    if order is None:
        arrays = {name: ArrayParts.whole(tensor) for name, tensor in tensors_of(graph)}
    else:
        arrays = dict(renumbered_arrays(graph, order, folder.parent))
        named = replace(named, ids=renumbered_ids(named.ids, order))
    if feature_parts is not None:
        rows = arrays["x"] = ArrayParts.of_rows(feature_parts, graph.num_nodes)
        if rows.dtype not in FEATURE_DTYPES:
            raise DataError(f"feature_parts must be float32, float16 or bfloat16; got {rows.dtype}")
    arrays.update((name, ArrayParts.whole(array)) for name, array in tables_to_store(graph))
    if narrowing is not None:
        _refuse_codes(graph, narrowing)
        arrays = narrowing.arrays(arrays, rows_by_type(graph))
    arrays.update((name, ArrayParts.whole(array)) for name, array in ids_to_store(named, graph.node_types))
    for name in (name for name in arrays if not name.isidentifier()):
        split = name.partition("split_")[2]
        raise DataError(f"a stored split needs a name of letters, digits and _; got {split!r}")
    size = sum(array.nbytes for array in arrays.values())
    size += sum(8 * (array.nbytes // BLOCK_BYTES) for name, array in arrays.items() if sums_of(name))
    size += 0 if order is None else bucket_bytes(stored_rows(graph.x))
    require_free_space(folder, size + _SPACE_FOR_REST, f"storing the graph in {folder}")
    if if_exists == "replace":
        STORE.refuse_others(folder)
    with atomic_directory(folder, if_exists=if_exists) as temp:
        described = {}
        for name, array in arrays.items():
            sums_name = sums_of(name)
            sums = BlockSums() if sums_name else None
            described[name] = write_array(temp / f"{name}.npy", array, sums)
            if sums is not None:
                described[sums_name] = write_array(
                    temp / f"{sums_name}.npy", ArrayParts.whole(torch.from_numpy(sums.all()))
                )
        num_features = arrays["x"].shape[1] if "x" in arrays else graph.num_features
        STORE.write(temp, manifest_of(graph, named, num_features, described))
    return folder


def _refuse_codes(graph: Graph, narrowing: Narrowing) -> None:
    """Refuse to round the numbers of categories: rounded ones would mean other categories."""
    for of, columns in graph.schema.columns.items():
        if codes := learned_columns(columns):
            names = ", ".join(name for at, name in enumerate(columns.names or ()) if at in codes)
            raise ConfigError(
                f"{narrowing.dtype} cannot hold the categories of {of!r} that have a learned row ({names}); "
                "give them the encoder one-hot, or leave the features as they are"
            )


def sums_of(name: str) -> str:
    """Return the name of the array with the sums of an array's blocks; "" if it has none.

    Arrays that are also read by rows or by edges have them: these reads compare the blocks with the sums.
    """
    return f"{name}_sums" if name in ("x", "indices") or is_rows_of_type(name) else ""


@typed
def is_store(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` is a folder with a store's ``graph.json``."""
    return STORE.is_at(path)


@typed
def open_store(path: str | os.PathLike[str], *, mmap: bool = True, verify: bool | None = None) -> Graph:
    """Open a store as a graph.

    Args:
        path: The store's folder.
        mmap: Map the arrays instead of reading them. In-place changes to mapped tensors stay in this
            process: the files never change.
        verify: Compare every array with its checksum, which reads everything. If None, only if no earlier
            open and no ``graphbraid convert`` has verified the files since they last changed.

    Raises:
        DataError: The folder is not a store, was written by a newer graphbraid, or a file of it is missing,
            truncated, not what ``graph.json`` says, or (if verified) changed.
    """
    folder = Path(path)
    manifest = STORE.read(folder, StoreManifest)
    arrays = {name: array for name, array in _arrays_in(folder, manifest).items() if not is_ids(name)}
    files = [folder / STORE.manifest, *(array.path for array in arrays.values())]
    if verify:
        open_names(folder)  # which compares the ids, else only read where they are asked for
    if verify is None:
        verify = not _is_verified(folder, files)
    before = _state([file for file in files if file.exists()])
    if missing := [name for name in arrays if sums_of(name) not in ("", *arrays)]:
        raise DataError(
            f"{folder} lacks {sums_of(missing[0])}, by which reads of {missing[0]} are checked; "
            f"{STORE.again} the graph again."
        )
    sums = {name: arrays[sums_of(name)].read for name in arrays if sums_of(name)}
    tensors = {
        name: array.load(mapped=mmap, verify=verify, sums=sums.get(name)) for name, array in arrays.items()
    }
    graph = graph_of_arrays(manifest, tensors, folder)
    if graph.num_edges != manifest.num_edges:
        raise DataError(
            f"{folder} does not hold a valid graph: {STORE.manifest} says num_edges {manifest.num_edges}, "
            f"and its arrays have {graph.num_edges}"
        )
    if verify:
        _note_verified(folder, files, before)
    return graph


@typed
def open_names(path: str | os.PathLike[str]) -> StoreNames:
    """Read the original node ids and the class names of a store, each None if it has none.

    Raises:
        DataError: As in :func:`open_store`.
    """
    folder = Path(path)
    manifest = STORE.read(folder, StoreManifest)
    entries = [] if manifest.types is None else manifest.types.nodes
    of_types = [(entry.name, entry.class_names) for entry in entries]
    arrays = {name: array.read() for name, array in _arrays_in(folder, manifest).items() if is_ids(name)}
    try:
        return stored_names(arrays, manifest.class_names, of_types)
    except DataError as error:
        raise DataError(f"{folder}: {error}; store again") from error


def _arrays_in(folder: Path, manifest: StoreManifest) -> dict[str, StoredArray]:
    hint = _IF_RENUMBERED if any(map(is_ids, manifest.arrays)) else ""
    return {name: STORE.array(folder, entry, hint) for name, entry in manifest.arrays.items()}


def tensors_of(graph: Graph) -> Iterator[tuple[str, Tensor]]:
    """Yield each array of a graph with the name that it has in a store."""
    yield "indptr", graph.csc.indptr
    yield "indices", graph.csc.indices
    by_name = {"weight": graph.csc.weight, "edge_id": graph.edge_id, "edge_attr": graph.edge_attr}
    for name, tensor in by_name.items():
        if tensor is not None:
            yield name, tensor
    if graph.types is None:
        yield from rows_to_store(graph.x, graph.y, graph.splits)
    else:
        yield from types_to_store(graph.types)


def graph_of_arrays(manifest: StoreManifest, tensors: Mapping[str, Tensor], folder: Path) -> Graph:
    """Return the graph that a manifest describes; DataError if an array is missing or they do not fit."""
    try:
        if manifest.types is not None:
            graph = typed_graph_of(manifest.types, tensors, manifest.num_nodes, manifest.name)
            schema = with_stored_tables(manifest.schema_of_graph, graph.node_types, tensors)
            return graph.replace(schema=schema)
        return Graph(
            csc=Csc(tensors["indptr"], tensors["indices"], manifest.num_nodes, tensors.get("weight")),
            edge_id=tensors.get("edge_id"),
            edge_attr=tensors.get("edge_attr"),
            x=stored_features(tensors, manifest.num_features),
            y=tensors.get("y"),
            splits=stored_splits(tensors),
            name=manifest.name,
            weight_name=manifest.weight_name,
            schema=manifest.schema_of_graph,
        )
    except KeyError as error:
        raise DataError(
            f"{folder / STORE.manifest} describes no {error}; the store is not complete: store again"
        ) from error
    except DataError as error:
        raise DataError(f"{folder} does not hold a valid graph: {error}") from error


# ---- notes of stores that were verified


def _is_verified(folder: Path, files: Sequence[Path]) -> bool:
    """Return whether these files of a store were verified and have not changed since.

    They are recognised by size, times and inode, which change with every write. The notes are kept in the
    cache, not in the store, which may be somebody else's or be copied.
    """
    try:
        noted = unsealed(json.loads(read_text(_note_of(folder))), _note_of(folder))
        return bool(noted["files"] == _state(files))
    except (OSError, ValueError, TypeError, KeyError, DataError):
        return False


def _note_verified(folder: Path, files: Sequence[Path], before: dict[str, list[int]]) -> None:
    """Note that these files were verified, unless they changed since ``before``, their state at the start."""
    try:
        now = _state(files)
        if now != before:
            return
        path = _note_of(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as aside:
            aside.write_text(json.dumps(sealed({"store": os.path.realpath(folder), "files": now}), indent=1))
    except (OSError, ResourceError) as error:
        _log.warning("the verification of %s cannot be recorded, so every open repeats it: %s", folder, error)


def _state(files: Sequence[Path]) -> dict[str, list[int]]:
    """Return the sizes, times and inodes that show whether files have changed."""
    found = {}
    for file in files:
        stat = file.stat()
        found[file.name] = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]
    return found


def _note_of(folder: Path) -> Path:
    name = hashlib.blake2b(os.fsencode(os.path.realpath(folder)), digest_size=12).hexdigest()
    return cache_folder("verified") / f"{name}.json"
