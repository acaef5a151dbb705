"""Folders of arrays, such as stores: a ``.npy`` file for each, and a manifest with their checksums."""

from __future__ import annotations

import itertools
import json
import math
import mmap
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
import xxhash
from pydantic import BaseModel, TypeAdapter
from torch import Tensor

from graphbraid.arguments import shown
from graphbraid.errors import DataError, ResourceError
from graphbraid.files.block_sums import BLOCK_BYTES, BlockSums
from graphbraid.files.checksums import of_file, sealed, unsealed
from graphbraid.files.mapped import header_bytes, numpy_dtype, read_alone, remember, without_padding
from graphbraid.files.opening import open_file, read_text
from graphbraid.files.progress import stage
from graphbraid.files.schema import Count, FileModel, checked
from graphbraid.files.writing import restore
from graphbraid.graph.identity import keep_mark

_CHUNK = 1 << 24  # bytes written or checked at a time
DType = Literal[
    "float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool"
]
_Model = TypeVar("_Model", bound=BaseModel)
_DTYPES: tuple[str, ...] = DType.__args__  # type: ignore[attr-defined]


class ArrayEntry(FileModel):
    """The entry of an array in its folder's manifest."""

    file: str
    dtype: DType
    shape: list[Count]
    bytes: Count
    xxh3: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderKind:
    """A kind of folder of arrays, which a manifest in JSON describes."""

    name: str
    """The folder's name in messages."""
    manifest: str
    """File name of the manifest, which carries a checksum of its own."""
    again: str
    """The verb in messages for making the folder again, such as "store"."""
    version: int | None = None
    """Version of the format, which the manifest states; None for the manifest of a folder inside."""

    @property
    def header(self) -> dict[str, Any]:
        """The first fields of the manifest."""
        return {"format": f"graphbraid-{self.name}", "version": self.version}

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Return whether ``path`` is a folder with such a manifest."""
        restore(path)
        return (Path(path) / self.manifest).is_file()

    def refuse_others(self, folder: Path) -> None:
        """Raise ResourceError for a folder that is neither of this kind nor empty: replacing deletes it."""
        if folder.exists() and not self.is_at(folder) and not (folder.is_dir() and not any(folder.iterdir())):
            raise ResourceError(
                f"{folder} exists and is not a graphbraid {self.name}, so it is not replaced; choose another "
                "name"
            )

    def write(self, folder: Path, values: dict[str, Any]) -> None:
        """Write the manifest."""
        text = json.dumps(sealed(values), indent=1) + "\n"
        (folder / self.manifest).write_text(text, encoding="utf-8")

    def read(self, folder: Path, model: type[_Model]) -> _Model:
        """Read the manifest, compare its checksum, and check that it is what ``model`` says.

        Raises:
            DataError: there is none, it is damaged, or a newer graphbraid wrote it.
            ResourceError: it cannot be read.
        """
        path = folder / self.manifest
        restore(folder)
        try:
            values = json.loads(read_text(path))
        except FileNotFoundError as error:
            what = f"it has no {self.manifest}" if folder.exists() else "no such folder"
            raise DataError(f"{folder} is not a graphbraid {self.name}: {what}") from error
        except OSError as error:
            raise ResourceError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} is not valid JSON ({error}); {self.again} the graph again") from error
        if self.version is not None:
            self._check_version(folder, values)
        refuse = f"{path} cannot be understood: {{}}; {self.again} again"
        return checked(
            TypeAdapter(model), unsealed(values, path), lambda text: DataError(refuse.format(text))
        )

    def _check_version(self, folder: Path, values: Any) -> None:
        form = self.header["format"]
        if not isinstance(values, dict) or values.get("format") != form:
            raise DataError(
                f'{folder} is not a graphbraid {self.name}: {self.manifest} does not say "format": "{form}"'
            )
        version = values.get("version")
        if version != self.version:
            raise DataError(
                f"{folder} has {self.name} version {version}; this graphbraid reads version {self.version}. "
                f"Upgrade graphbraid, or {self.again} the graph again with this one."
            )

    def array(self, folder: Path, entry: ArrayEntry, hint: str = "") -> StoredArray:
        """Return the array of an entry of the manifest; DataError if its file is outside the folder."""
        if not entry.file or Path(entry.file).name != entry.file:
            raise DataError(f"{folder / self.manifest} names a file outside the {self.name}: {entry.file!r}")
        return StoredArray(folder / entry.file, entry, self, hint)


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array as the folder's manifest describes it."""

    path: Path
    entry: ArrayEntry
    kind: FolderKind
    hint: str = ""
    """Last sentence of the message about a changed file: why it may be another one than was written."""

    def load(self, *, mapped: bool, verify: bool, sums: Callable[[], Tensor] | None = None) -> Tensor:
        """Map or read the array; its size and header are checked even without ``verify``.

        ``mapped`` maps it and notes its file, ``verify`` compares it with its checksum, and ``sums`` returns
        the sums of its blocks. DataError: the file is missing, not what its entry says, or has changed.
        """
        offset = self._checked_offset()
        if verify:
            self._verify()
        shape, dtype = tuple(self.entry.shape), getattr(torch, self.entry.dtype)
        buffer: mmap.mmap | bytearray
        with open_file(self.path) as file:
            if mapped:
                buffer = _map_private(file.fileno())
            else:
                buffer = bytearray(self.entry.bytes)
                file.readinto(buffer)
        if math.prod(shape) == 0:
            return torch.empty(shape, dtype=dtype)
        values = torch.frombuffer(buffer, dtype=dtype, count=math.prod(shape), offset=offset).view(shape)
        if mapped:
            remember(buffer, values.data_ptr() - offset, len(buffer), self.path, sums)
        keep_mark(values, self.entry.xxh3, in_blocks=offset == BLOCK_BYTES)
        return values

    def read(self) -> Tensor:
        """The array, read and compared with its checksum; DataError as in :meth:`load`."""
        return self.load(mapped=False, verify=True)

    def _checked_offset(self) -> int:
        """Check size and header against the entry and return the offset of the values in bytes."""
        try:
            actual = self.path.stat().st_size
        except OSError as error:
            raise DataError(
                f"{self.path} of the {self.kind.name} cannot be read ({error.strerror}); "
                f"{self.kind.again} the graph again"
            ) from error
        written = self.entry.bytes
        if actual != written:
            what = "truncated" if actual < written else "longer than written"
            raise DataError(
                f"{self.path} is {what}: {actual} bytes, {written} were written; {self.kind.again} again"
            )
        shape, dtype = tuple(self.entry.shape), getattr(torch, self.entry.dtype)
        found, kept, offset = self._header()
        if found != shape or kept != numpy_dtype(dtype):
            raise DataError(
                f"{self.path} holds {kept} of shape {found}, but {self.kind.manifest} says {dtype} of shape "
                f"{shape}; {self.kind.again} again"
            )
        if offset + math.prod(shape) * dtype.itemsize != written:
            needed = offset + math.prod(shape) * dtype.itemsize
            raise DataError(f"{self.path} has {written} bytes; its shape {shape} needs {needed}")
        return offset

    def _header(self) -> tuple[tuple[int, ...], np.dtype[Any], int]:
        """Return shape and dtype according to the file's header, and the offset of the header's end."""
        with open_file(self.path) as file:
            try:
                version = np.lib.format.read_magic(file)
                if version != (1, 0):
                    raise ValueError(f"npy version {version}")
                read = np.lib.format.read_array_header_1_0
                shape, fortran, dtype = read_alone(read, without_padding(file))
                if fortran:
                    raise ValueError("columns before rows")
            except OSError:
                raise
            except Exception as error:  # NumPy parses it as Python, which may raise anything
                raise DataError(
                    f"{self.path} has no valid .npy header ({error}); {self.kind.again} again"
                ) from error
            return shape, dtype, file.tell()

    def _verify(self) -> None:
        was, now = self.entry.xxh3, of_file(self.path)
        if was != now:
            raise DataError(
                f"{self.path} has changed since it was written (its checksum is {now}, was {was}); "
                f"{self.kind.again} again{self.hint}"
            )


@dataclass(frozen=True, slots=True)
class ArrayParts:
    """An array to be written in parts. Each part is made only when it is written."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: Callable[[], Iterator[Tensor]]
    """Function that yields the parts, consecutive along the first dimension."""

    @classmethod
    def whole(cls, tensor: Tensor) -> ArrayParts:
        """Make an array of a tensor, in one part."""
        return cls(tensor.dtype, tuple(tensor.shape), lambda: iter((tensor,)))

    @classmethod
    def of_rows(cls, parts: Iterable[Tensor], num_rows: int) -> ArrayParts:
        """Make a ``(num_rows, F)`` array of parts that are read once, while it is written.

        Raises:
            DataError: there is no first part, or it is not 2-d. Later parts are checked as they come.
        """
        rest = iter(parts)
        first = next(rest, None)
        if not isinstance(first, Tensor) or first.ndim != 2:
            got = "none" if first is None else shown(first)
            raise DataError(f"parts of rows must be 2-d tensors; the first is {got}")
        checked = _checked_rows(itertools.chain((first,), rest), first, num_rows)
        return cls(first.dtype, (num_rows, first.shape[1]), lambda: checked)

    @property
    def nbytes(self) -> int:
        """Bytes of the values, without the header."""
        return math.prod(self.shape) * self.dtype.itemsize


def _checked_rows(parts: Iterator[Tensor], first: Tensor, num_rows: int) -> Iterator[Tensor]:
    """Yield parts that fit the first one and have ``num_rows`` rows together."""
    written = 0
    for number, part in enumerate(parts):
        if not isinstance(part, Tensor) or part.shape[1:] != first.shape[1:] or part.dtype != first.dtype:
            raise DataError(
                f"parts of rows must all be {first.dtype} with {first.shape[1]} columns; part {number} is "
                f"{shown(part)}"
            )
        written += len(part)
        if written > num_rows:
            raise DataError(
                f"parts of rows must have {num_rows} rows together; part {number} goes up to {written}"
            )
        yield part
    if written != num_rows:
        raise DataError(f"parts of rows must have {num_rows} rows together; they have {written}")


def write_array(path: Path, array: ArrayParts, sums: BlockSums | None = None) -> dict[str, Any]:
    """Write a ``.npy`` file and return its entry for the folder's manifest.

    With ``sums``, which takes in the file's bytes, the values begin at the start of a block: a row whose size
    divides the block's size never lies in two blocks.
    """
    dtype = str(array.dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise DataError(f"{path.stem} has dtype {array.dtype}, which the store does not keep")
    header = {"descr": numpy_dtype(array.dtype).str, "fortran_order": False, "shape": array.shape}
    checksum = xxhash.xxh3_128()
    writing = stage(f"writing {path.name}", array.nbytes)
    with path.open("w+b", buffering=0) as file, writing as advance:
        begin = header_bytes(header, least=0 if sums is None else BLOCK_BYTES)
        file.write(begin)
        checksum.update(begin)
        if sums is not None:
            sums.add(begin)
        needed = len(begin) + array.nbytes
        for part in array.parts():
            for data in _bytes_of(part):
                checksum.update(data)
                if sums is not None:
                    sums.add(data)
                rest = data
                while rest:  # unbuffered writes may be short
                    rest = rest[file.write(rest) :]
                advance(len(data))
        size = file.tell()
    assert size == needed, f"the parts of {path.stem} have {size} bytes and not {needed}"
    shape = list(array.shape)
    return {"file": path.name, "dtype": dtype, "shape": shape, "bytes": size, "xxh3": checksum.hexdigest()}


def _bytes_of(tensor: Tensor) -> Iterator[memoryview]:
    """Yield the bytes of a tensor in chunks."""
    values = tensor.detach().cpu().contiguous()
    array = (values.view(torch.int16) if values.dtype == torch.bfloat16 else values).numpy()
    data = array.reshape(-1).view(np.uint8).data
    for start in range(0, len(data), _CHUNK):
        yield data[start : start + _CHUNK]


def _map_private(descriptor: int) -> mmap.mmap:
    """Map a whole file copy-on-write, so that torch may write to the memory and the file does not change.

    Nothing is reserved (MAP_NORESERVE), since the system would otherwise refuse a file larger than memory.
    """
    if not sys.platform.startswith("linux"):
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python has it since 3.13
    return mmap.mmap(
        descriptor, 0, flags=mmap.MAP_PRIVATE | no_reserve, prot=mmap.PROT_READ | mmap.PROT_WRITE
    )
