"""Reading ``.npy`` and ``.npz`` files that may be damaged, or of somebody who means harm.

Headers are read first: dtype, shape and the bytes that are there must agree before memory is taken for them.
"""

from __future__ import annotations

import errno
import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from graphbraid.datasets.memory import EDGE_BYTES, require_memory
from graphbraid.errors import DataError, ResourceError

Array = npt.NDArray[Any]
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError)
_MAGIC = b"\x93NUMPY"
_ZIP_END = b"PK\x05\x06"  # the record at a zip file's end; a comment of at most 65,535 bytes may follow
_ZIP_END_BYTES = 22


def read_npz(file: Path) -> dict[str, Array]:
    """All arrays of an ``.npz``.

    Raises:
        DataError: The file is missing, truncated, no ``.npz``, or holds pickled objects.
        ResourceError: It cannot be read, or its arrays are more than the free memory.
    """
    name = "the file"
    try:
        with file.open("rb") as stream:
            if stream.read(len(_MAGIC)) == _MAGIC:
                raise DataError(f"{file} is a single .npy array; a graph needs an .npz with edge_index")
        if not zipfile.is_zipfile(file) and file.stat().st_size and not _is_zip_like(file):
            raise ValueError("it is no zip file")
        with zipfile.ZipFile(file) as archive:
            members = {info.filename: info for info in archive.infolist()}
            if len(members) < len(archive.infolist()):
                raise ValueError("it holds an array twice")
            if _told_members(file) not in (len(members), 0xFFFF):  # 0xFFFF: too many to say
                raise ValueError("its directory does not list as many arrays as it says")
            edges = members.get("edge_index.npy")  # of four bytes an id at least
            building = 0 if edges is None else edges.file_size // 8 * EDGE_BYTES
            whole = sum(info.file_size for info in members.values())
            require_memory(whole + building, f"reading {file}")
            arrays = {}
            for name, info in members.items():
                if not name.endswith(".npy"):  # a damaged name would leave its array out
                    raise ValueError("it is no .npy array")
                with archive.open(info) as member:
                    arrays[name.removesuffix(".npy")] = _read(member, info.file_size)
            return arrays
    except FileNotFoundError as error:
        raise DataError(f"there is no file {file}") from error
    except _DAMAGE as error:
        where = name.removesuffix(".npy")
        raise DataError(
            f"{file} is truncated or damaged ({where}: {error}); copy or download it again"
        ) from error
    except (ValueError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, DataError | ResourceError):
            raise
        where = name.removesuffix(".npy")
        raise DataError(
            f"{file} is not a usable .npz ({where}: {error}); save plain arrays with numpy.savez"
        ) from error
    except OSError as error:
        if error.errno in (errno.EINVAL, None):  # a directory that points outside the file
            raise DataError(f"{file} is truncated or damaged ({error}); copy or download it again") from error
        raise ResourceError(f"{file} cannot be read: {error.strerror or error}") from error


def _told_members(file: Path) -> int:
    """How many files a zip file's last record says it has; a damaged directory may pass over some."""
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - _ZIP_END_BYTES - 0xFFFF))
        tail = stream.read()
    at = tail.rfind(_ZIP_END) + 10
    return int.from_bytes(tail[at : at + 2], "little")


def read_npy(file: Path) -> Array:
    """The array of a ``.npy`` file.

    Raises:
        DataError: The file is missing, truncated, no ``.npy``, or holds pickled objects.
        ResourceError: It cannot be read.
    """
    try:
        with file.open("rb") as stream:
            return _read(stream, file.stat().st_size)
    except FileNotFoundError as error:
        raise DataError(f"there is no file {file}") from error
    except ValueError as error:
        raise DataError(f"{file} is not a usable .npy file: {error}") from error
    except OSError as error:
        raise ResourceError(f"{file} cannot be read: {error.strerror or error}") from error


def _read(stream: IO[bytes], num_bytes: int) -> Array:
    """One array, whose file has ``num_bytes``.

    Raises:
        ValueError: Header and bytes do not agree, or it holds objects.
    """
    shape, is_fortran, dtype, header_bytes = _header(stream)
    if dtype.hasobject:
        raise ValueError("holds Python objects, which are never loaded")
    needed = header_bytes + math.prod(shape) * dtype.itemsize
    if needed != num_bytes:
        raise ValueError(
            f"its header says {dtype} of shape {shape}, which are {needed} bytes; {num_bytes} are there"
        )
    # Into an array of its own: what a stream gives cannot be written to.
    flat = np.empty(math.prod(shape), dtype)
    view, done = flat.view(np.uint8).data if flat.nbytes else memoryview(b""), 0
    while done < len(view):
        part = stream.read(min(len(view) - done, 1 << 22))
        if not part:
            raise ValueError(f"it ends after {header_bytes + done} of {num_bytes} bytes")
        view[done : done + len(part)] = part
        done += len(part)
    stream.read(1)  # the end, where a zip file's checksum is compared
    return flat.reshape(shape[::-1]).T if is_fortran else flat.reshape(shape)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether columns come first, dtype, and the bytes that the header takes."""
    try:
        version = np.lib.format.read_magic(stream)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, is_fortran, dtype = read(stream)
    except OSError:
        raise
    except _DAMAGE:
        raise
    except Exception as error:  # NumPy reads it as Python, so whatever that may meet
        raise ValueError(f"it has no valid .npy header ({error})") from error
    if any(n < 0 for n in shape):
        raise ValueError(f"its header says a shape of {shape}")
    return shape, is_fortran, dtype, stream.tell()


def _is_zip_like(file: Path) -> bool:
    """Whether a file begins as a zip file does, so that it is one that was cut off."""
    with file.open("rb") as stream:
        return stream.read(4) == b"PK\x03\x04"
