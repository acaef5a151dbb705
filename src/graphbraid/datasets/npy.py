"""Readers of ``.npy`` and ``.npz`` files that may be damaged or malicious, and checks of free memory.

Headers are read first: dtype, shape and file size must agree before memory is allocated for an array. In a
container, a process that exceeds the memory limit is killed without a message; a check beforehand fails with
one. The bytes per edge were measured as the peak with six million edges, including the arrays read, rounded
up.
"""

import errno
import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from graphbraid.errors import DataError, ResourceError
from graphbraid.files.mapped import read_alone
from graphbraid.files.opening import open_file
from graphbraid.files.writing import format_bytes
from graphbraid.machine.hardware import free_memory_bytes

EDGE_BYTES = 24
"""Bytes per edge beside the edge list itself: both ends, their order, the finished topology."""
TABLE_EDGE_BYTES = 75
"""Bytes per edge of reading an edge table: the columns of a batch, ids, and their numbers."""
CHANGED_EDGE_BYTES = 48
"""Bytes per edge of symmetrizing or deduplicating: the old graph and the new one."""
GENERATED_EDGE_BYTES = 24
"""Bytes per edge of generating an embedded dataset with its features."""
_SAMPLE = 1 << 16


_ELSEWHERE = "Use a machine or container with more, or convert the graph there and open the store here"


def require_memory(num_bytes: int, what: str, advice: str = _ELSEWHERE) -> None:
    """Raise ResourceError unless ``num_bytes`` of memory are free, within a container's limits."""
    free = free_memory_bytes()
    if free is not None and num_bytes > free:
        raise ResourceError(
            f"{what} takes about {format_bytes(num_bytes)} of memory; {format_bytes(free)} are free. {advice}"
        )


def table_bytes(file: Path) -> int:
    """Estimate the memory to read an edge table from its size and its first lines; 0 if not known."""
    if file.suffix not in (".csv", ".tsv", ".txt"):
        return 0
    with open_file(file) as stream:
        sample = stream.read(_SAMPLE)
    lines = max(1, sample.count(b"\n"))
    return file.stat().st_size * lines // max(1, len(sample)) * TABLE_EDGE_BYTES


Array = npt.NDArray[Any]
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError)
_MAGIC = b"\x93NUMPY"
_ZIP_END = b"PK\x05\x06"  # signature of the last record; a comment of at most 65,535 bytes may follow
_ZIP_END_BYTES = 22


def read_npz(file: Path) -> dict[str, Array]:
    """Read all arrays of an ``.npz`` file, without pickled objects.

    DataError: it is missing or damaged. ResourceError: it cannot be read, or needs more than the free memory.
    """
    name = "the file"
    try:
        with open_file(file) as stream:
            begin = stream.read(len(_MAGIC))
        if begin == _MAGIC:
            raise DataError(f"{file} is a single .npy array; a graph needs an .npz with edge_index")
        if begin and not zipfile.is_zipfile(file) and not begin.startswith(b"PK\x03\x04"):  # a truncated one
            raise ValueError("it is no zip file")
        with zipfile.ZipFile(file) as archive:
            members = {info.filename: info for info in archive.infolist()}
            if len(members) < len(archive.infolist()):
                raise ValueError("it holds an array twice")
            if _stated_members(file) not in (len(members), 0xFFFF):  # 0xFFFF: too many for the field
                raise ValueError("its directory does not list as many arrays as it says")
            edges = members.get("edge_index.npy")  # at least four bytes per id
            building = 0 if edges is None else edges.file_size // 8 * EDGE_BYTES
            whole = sum(info.file_size for info in members.values())
            require_memory(whole + building, f"reading {file}")
            arrays = {}
            for name, info in members.items():
                if not name.endswith(".npy"):  # an array with a damaged name must not be ignored
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
        if error.errno in (errno.EINVAL, None):  # the directory points outside the file
            raise DataError(f"{file} is truncated or damaged ({error}); copy or download it again") from error
        raise ResourceError(f"{file} cannot be read: {error.strerror or error}") from error


def _stated_members(file: Path) -> int:
    """Return the number of files that a zip file's last record states; a damaged directory may list fewer."""
    with open_file(file) as stream:
        stream.seek(max(0, file.stat().st_size - _ZIP_END_BYTES - 0xFFFF))
        tail = stream.read()
    at = tail.rfind(_ZIP_END) + 10
    return int.from_bytes(tail[at : at + 2], "little")


def read_npy(file: Path) -> Array:
    """Read the array of a ``.npy`` file; DataError if it is damaged, ResourceError if it cannot be read."""
    try:
        with open_file(file) as stream:
            return _read(stream, file.stat().st_size)
    except FileNotFoundError as error:
        raise DataError(f"there is no file {file}") from error
    except ValueError as error:
        raise DataError(f"{file} is not a usable .npy file: {error}") from error
    except OSError as error:
        raise ResourceError(f"{file} cannot be read: {error.strerror or error}") from error


def _read(stream: IO[bytes], num_bytes: int) -> Array:
    """Read one array; ValueError if header and size do not agree, or the array holds objects."""
    shape, is_fortran, dtype, header_bytes = _header(stream)
    if dtype.hasobject:
        raise ValueError("holds Python objects, which are never loaded")
    needed = header_bytes + math.prod(shape) * dtype.itemsize
    if needed != num_bytes:
        raise ValueError(
            f"its header says {dtype} of shape {shape}, which are {needed} bytes; {num_bytes} are there"
        )
    # Read into a new array, since the bytes that a stream returns are read-only.
    flat = np.empty(math.prod(shape), dtype)
    view, done = flat.view(np.uint8).data if flat.nbytes else memoryview(b""), 0
    while done < len(view):
        part = stream.read(min(len(view) - done, 1 << 22))
        if not part:
            raise ValueError(f"it ends after {header_bytes + done} of {num_bytes} bytes")
        view[done : done + len(part)] = part
        done += len(part)
    stream.read(1)  # at the end of a zip member, zipfile checks its CRC
    return flat.reshape(shape[::-1]).T if is_fortran else flat.reshape(shape)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, whether the order is Fortran's, dtype, and the header's size in bytes."""
    try:
        version = np.lib.format.read_magic(stream)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, is_fortran, dtype = read_alone(read, stream)
    except OSError:
        raise
    except _DAMAGE:
        raise
    except Exception as error:  # NumPy parses it as Python, which may raise anything
        raise ValueError(f"it has no valid .npy header ({error})") from error
    if any(n < 0 for n in shape):
        raise ValueError(f"its header says a shape of {shape}")
    return shape, is_fortran, dtype, stream.tell()
