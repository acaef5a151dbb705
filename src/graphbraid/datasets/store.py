"""The on-disk store: a folder with one ``.npy`` file per array and a ``graph.json`` that describes them.

Opening maps the arrays into memory without reading them, so a graph larger than memory opens at once and
only the pages that are used are read. The mapping is private: nothing a program does to the tensors can
change the files. ``graph.json`` is written last, inside a folder that gets its name when it is complete;
see docs/datasets.md.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphbraid.datasets.ids import NodeIds
from graphbraid.errors import DataError, ResourceError
from graphbraid.files import IfExists, atomic_directory, require_free_space
from graphbraid.graph import Graph, SparseFeatures
from graphbraid.topology import Csc

MANIFEST = "graph.json"
FORMAT = "graphbraid-store"
VERSION = 1

_CHUNK = 1 << 24  # bytes written or checked at a time
_DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float32",
        "float16",
        "bfloat16",
        "float64",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
    )
}
_SPACE_FOR_REST = 1 << 20  # headers and graph.json


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreNames:
    """What a store knows beside the graph."""

    ids: NodeIds | None = None
    """The original id of each node, if nodes were renumbered."""
    class_names: tuple[str, ...] | None = None
    """The name of each class, if labels had names."""


def save_store(
    graph: Graph,
    path: str | os.PathLike[str],
    *,
    ids: NodeIds | None = None,
    class_names: Sequence[str] | None = None,
    if_exists: IfExists = "error",
) -> Path:
    """Write ``graph`` as a store: aside, then renamed, so that no reader sees half of one.

    Args:
        graph: The graph; tensors on other devices are copied to the CPU one by one.
        path: The folder to make.
        ids: Original node ids to keep beside it, one per node.
        class_names: Names of the classes to keep beside it.
        if_exists: ``"error"``, ``"replace"`` an earlier store, or ``"keep"`` it and write nothing over it.

    Returns:
        The folder.

    Raises:
        ResourceError: No space, no permission, or the folder exists.
        DataError: ``ids`` does not have one entry per node.
    """
    folder = Path(path)
    if ids is not None and len(ids) != graph.num_nodes:
        raise DataError(f"ids must have one entry per node ({graph.num_nodes}); got {len(ids)}")
    arrays = dict(_arrays_of(graph))
    if ids is not None:
        arrays.update({f"ids_{key}": array for key, array in ids.arrays().items()})
    size = sum(a.numel() * a.element_size() for a in arrays.values())
    require_free_space(folder, size + _SPACE_FOR_REST, f"storing the graph in {folder}")
    if if_exists == "replace":
        _refuse_other_folders(folder)
    with atomic_directory(folder, if_exists=if_exists) as temp:
        described = {name: _write_array(temp / f"{name}.npy", array) for name, array in arrays.items()}
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "name": graph.name,
            "num_nodes": graph.num_nodes,
            "num_edges": graph.num_edges,
            "num_features": graph.x.shape[1] if graph.x is not None else 0,
            "class_names": None if class_names is None else list(class_names),
            "arrays": described,
        }
        (temp / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return folder


def is_store(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a folder with a store's ``graph.json``."""
    return (Path(path) / MANIFEST).is_file()


def open_store(path: str | os.PathLike[str], *, mmap: bool = True, verify: bool | None = None) -> Graph:
    """Open a store.

    Args:
        path: The store's folder.
        mmap: Map the arrays instead of reading them. In-place changes to mapped tensors stay in this
            process: the files never change.
        verify: Compare every array with its checksum, which reads everything. None does so where everything
            is read anyway, that is without ``mmap``.

    Raises:
        DataError: The folder is no store, was written by a newer graphbraid, or a file of it is missing,
            truncated, not what ``graph.json`` says, or (with ``verify``) changed.
    """
    folder = Path(path)
    manifest = _read_manifest(folder)
    arrays = {name: _Array.parse(folder, name, entry) for name, entry in manifest["arrays"].items()}
    names = [name for name in arrays if not name.startswith("ids_")]
    tensors = {
        name: arrays[name].load(mapped=mmap, verify=not mmap if verify is None else verify) for name in names
    }
    return _graph_of(manifest, tensors, folder)


def open_names(path: str | os.PathLike[str]) -> StoreNames:
    """The original node ids and class names of a store; each None where it has none.

    Raises:
        DataError: As :func:`open_store`.
    """
    folder = Path(path)
    manifest = _read_manifest(folder)
    entries = {name[4:]: entry for name, entry in manifest["arrays"].items() if name.startswith("ids_")}
    ids = {
        key: _Array.parse(folder, f"ids_{key}", e).load(mapped=False, verify=True)
        for key, e in entries.items()
    }
    class_names = manifest.get("class_names")
    return StoreNames(
        ids=NodeIds.from_arrays(ids) if ids else None,
        class_names=None if class_names is None else tuple(class_names),
    )


@dataclass(frozen=True, slots=True)
class _Array:
    """One array as ``graph.json`` describes it, its file checked as far as that costs nothing."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    file_bytes: int
    crc32: int

    @classmethod
    def parse(cls, folder: Path, name: str, entry: Any) -> _Array:
        try:
            dtype = _DTYPES[entry["dtype"]]
            shape = tuple(int(n) for n in entry["shape"])
            array = cls(folder / str(entry["file"]), dtype, shape, int(entry["bytes"]), int(entry["crc32"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{folder / MANIFEST}: the entry of array {name!r} cannot be understood "
                f"({error!r}); store again"
            ) from error
        if Path(str(entry["file"])).name != entry["file"]:
            raise DataError(
                f"{folder / MANIFEST}: array {name!r} names a file outside the store: {entry['file']!r}"
            )
        return array

    def load(self, *, mapped: bool, verify: bool) -> Tensor:
        offset = self._checked_offset()
        count = int(np.prod(self.shape, dtype=np.int64))
        buffer: mmap.mmap | bytearray
        with self.path.open("rb") as file:
            if mapped:
                buffer = _map_private(file.fileno())
            else:
                buffer = bytearray(self.file_bytes)
                file.readinto(buffer)
        if verify:
            self._verify(buffer)
        if count == 0:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(buffer, dtype=self.dtype, count=count, offset=offset).view(self.shape)

    def _checked_offset(self) -> int:
        """Where the values start, once size and header agree with ``graph.json``."""
        try:
            actual = self.path.stat().st_size
        except OSError as error:
            raise DataError(
                f"{self.path} of the store cannot be read ({error.strerror}); store the graph again"
            ) from error
        if actual != self.file_bytes:
            what = "truncated" if actual < self.file_bytes else "longer than written"
            raise DataError(
                f"{self.path} is {what}: {actual} bytes, {self.file_bytes} were written; store again"
            )
        with self.path.open("rb") as file:
            try:
                version = np.lib.format.read_magic(file)
                if version != (1, 0):
                    raise ValueError(f"npy version {version}")
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
            except ValueError as error:
                raise DataError(f"{self.path} has no valid .npy header ({error}); store again") from error
            if shape != self.shape or fortran or dtype != _numpy_dtype(self.dtype):
                raise DataError(
                    f"{self.path} holds {dtype} of shape {shape}, but {MANIFEST} says {self.dtype} of shape "
                    f"{self.shape}; store again"
                )
            offset = file.tell()
        needed = offset + int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        if needed != self.file_bytes:
            raise DataError(f"{self.path} has {self.file_bytes} bytes; its shape {self.shape} needs {needed}")
        return offset

    def _verify(self, buffer: mmap.mmap | bytearray) -> None:
        crc = 0
        with memoryview(buffer) as view:
            for start in range(0, len(view), _CHUNK):
                crc = zlib.crc32(view[start : start + _CHUNK], crc)
        if crc != self.crc32:
            raise DataError(
                f"{self.path} has changed since it was written (CRC-32 {crc:08x}, was "
                f"{self.crc32:08x}); store again"
            )


def _arrays_of(graph: Graph) -> Iterator[tuple[str, Tensor]]:
    yield "indptr", graph.csc.indptr
    yield "indices", graph.csc.indices
    for name, tensor in (("weight", graph.csc.weight), ("edge_id", graph.edge_id), ("y", graph.y)):
        if tensor is not None:
            yield name, tensor
    if isinstance(graph.x, SparseFeatures):
        yield "x_indptr", graph.x.indptr
        yield "x_indices", graph.x.indices
        yield "x_values", graph.x.values
    elif graph.x is not None:
        yield "x", graph.x
    for split, ids in graph.splits.items():
        if not split.isidentifier():
            raise DataError(f"a stored split needs a name of letters, digits and _; got {split!r}")
        yield f"split_{split}", ids


def _graph_of(manifest: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Path) -> Graph:
    try:
        x: Tensor | SparseFeatures | None = tensors.get("x")
        if "x_indptr" in tensors:
            x = SparseFeatures(
                indptr=tensors["x_indptr"],
                indices=tensors["x_indices"],
                values=tensors["x_values"],
                num_cols=int(manifest["num_features"]),
            )
        return Graph(
            csc=Csc(tensors["indptr"], tensors["indices"], int(manifest["num_nodes"]), tensors.get("weight")),
            edge_id=tensors.get("edge_id"),
            x=x,
            y=tensors.get("y"),
            splits={name[6:]: ids for name, ids in tensors.items() if name.startswith("split_")},
            name=str(manifest.get("name", "")),
        )
    except KeyError as error:
        raise DataError(
            f"{folder / MANIFEST} describes no {error}; the store is not complete: store again"
        ) from error
    except DataError as error:
        raise DataError(f"{folder} does not hold a valid graph: {error}") from error


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        what = "no such folder" if not folder.exists() else f"it has no {MANIFEST}"
        raise DataError(f"{folder} is not a graphbraid store: {what}") from error
    except OSError as error:
        raise ResourceError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON ({error}); store the graph again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f'{folder} is not a graphbraid store: {MANIFEST} does not say "format": "{FORMAT}"')
    version = manifest.get("version")
    if not isinstance(version, int) or version > VERSION or version < 1:
        raise DataError(
            f"{folder} has store version {version}; this graphbraid reads versions up to {VERSION}. "
            "Upgrade graphbraid, or store the graph again with this one."
        )
    if not isinstance(manifest.get("arrays"), dict):
        raise DataError(f"{path} describes no arrays; store the graph again")
    return manifest


def _write_array(path: Path, tensor: Tensor) -> dict[str, Any]:
    """Write a ``.npy`` file and return its entry for ``graph.json``."""
    values = tensor.detach().cpu().contiguous()
    dtype = str(values.dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise DataError(f"{path.stem} has dtype {values.dtype}, which the store does not keep")
    array = (values.view(torch.int16) if values.dtype == torch.bfloat16 else values).numpy()
    header = {"descr": _numpy_dtype(values.dtype).str, "fortran_order": False, "shape": tuple(values.shape)}
    crc = 0
    with path.open("w+b", buffering=0) as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.seek(0)
        crc = zlib.crc32(file.read())
        data = array.reshape(-1).view(np.uint8).data
        for start in range(0, len(data), _CHUNK):
            rest = data[start : start + _CHUNK]
            crc = zlib.crc32(rest, crc)
            while rest:  # unbuffered writes may be short
                rest = rest[file.write(rest) :]
        size = file.tell()
    return {"file": path.name, "dtype": dtype, "shape": list(values.shape), "bytes": size, "crc32": crc}


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The dtype in the ``.npy`` header; bfloat16, which NumPy lacks, is kept as its 16 bits."""
    if dtype == torch.bfloat16:
        return np.dtype("<i2")
    return np.dtype(str(dtype).removeprefix("torch.")).newbyteorder("<")


def _map_private(descriptor: int) -> mmap.mmap:
    """Map a whole file copy-on-write: torch gets memory it may write to, the file stays as it is.

    Without a reservation (MAP_NORESERVE), since the system would otherwise refuse a file larger than memory.
    """
    if not sys.platform.startswith("linux"):
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)  # in Python from 3.13 on
    return mmap.mmap(
        descriptor, 0, flags=mmap.MAP_PRIVATE | no_reserve, prot=mmap.PROT_READ | mmap.PROT_WRITE
    )


def _refuse_other_folders(folder: Path) -> None:
    """Replacing deletes what is there: only ever a store, an empty folder or nothing."""
    if folder.exists() and not is_store(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise ResourceError(
            f"{folder} exists and is not a graphbraid store, so it is not replaced; choose another name"
        )
