"""Marks: checksums of a graph's arrays, by which objects built for another graph are refused."""

import torch
import xxhash
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from graphbraid.errors import DataError
from graphbraid.files.block_sums import BLOCK_BYTES
from graphbraid.files.mapped import header_bytes, numpy_dtype
from graphbraid.graph.csc import Csc, index_dtype
from graphbraid.graph.scaled_features import Features, ScaledFeatures
from graphbraid.graph.sparse_features import SparseFeatures

_AT_A_TIME = 1 << 22  # elements that are converted or copied at a time
_kept = WeakTensorKeyDictionary()
"""Array -> (its version, whether its values begin at a block, the dtype that is marked, its mark)."""


def mark(array: Tensor, *, in_blocks: bool = False, dtype: torch.dtype | None = None) -> str:
    """Return the checksum of the ``.npy`` file that holds an array, as a store's manifest has it.

    The array is read once, at the speed of memory, and again only after a change in place. For an array of
    a store nothing is read: the store knows the checksum (:func:`keep_mark`). A change that torch does not
    count, as through ``array.numpy()``, goes unnoticed.

    Args:
        array: any shape, dtype and device.
        in_blocks: whether the values begin at a block of the file, as features and sources do.
        dtype: dtype of the file; the array is converted to it part by part. If None, the array's own.
    """
    version = -1 if array.is_inference() else array._version
    key = version, in_blocks, dtype or array.dtype
    known: tuple[int, bool, torch.dtype, str] | None = _kept.get(array)  # type: ignore[no-untyped-call]
    if known is not None and known[:3] == key and version >= 0:
        return known[3]
    found = _checksum(array, key[2], in_blocks=in_blocks)
    _kept[array] = (*key, found)
    return found


def keep_mark(array: Tensor, found: str, *, in_blocks: bool) -> None:
    """Keep the mark of an array that was just read or mapped from a file with this checksum."""
    _kept[array] = (array._version, in_blocks, array.dtype, found)


def _checksum(array: Tensor, dtype: torch.dtype, *, in_blocks: bool) -> str:
    """Return the checksum of an array's ``.npy`` file, in ``dtype``, which is made part by part."""
    header = {"descr": numpy_dtype(dtype).str, "fortran_order": False, "shape": tuple(array.shape)}
    checksum = xxhash.xxh3_128(header_bytes(header, least=BLOCK_BYTES if in_blocks else 0))
    values = array.detach()
    whole = values.dtype == dtype and values.is_contiguous() and values.device.type == "cpu"
    rows = max(1, _AT_A_TIME // max(1, values[:1].numel())) if values.ndim else 1
    for part in (values,) if whole or not values.ndim else torch.split(values, rows):
        flat = part.to("cpu", dtype).reshape(-1)
        if flat.stride() != (1,):  # one element may have any stride
            flat = flat.clone(memory_format=torch.contiguous_format)
        checksum.update(flat.view(torch.uint8).numpy().data)
    return checksum.hexdigest()


def topology_mark(csc: Csc) -> str:
    """Return the mark of all edges and weights, which does not depend on the dtype of ids.

    It depends on the order of the edges within a row.
    """
    sources = mark(csc.indices, in_blocks=True, dtype=index_dtype(max(csc.num_src, csc.num_dst)))
    return _joined(mark(csc.indptr), sources, "none" if csc.weight is None else mark(csc.weight))


def features_mark(x: Features | None) -> str:
    """Return the mark of features of any kind."""
    if isinstance(x, SparseFeatures):
        return _joined(mark(x.indptr), mark(x.indices), mark(x.values), str(x.num_cols))
    if isinstance(x, ScaledFeatures):
        return _joined(mark(x.values, in_blocks=True), mark(x.scale))
    return "none" if x is None else mark(x, in_blocks=True)


def _joined(*marks: str) -> str:
    return xxhash.xxh3_128(" ".join(marks).encode()).hexdigest()


def check_made_for(made: object, here: Csc | Features | None, what: str) -> None:
    """Raise DataError if the ``mark`` of ``made`` is of another topology or other features than ``here``.

    Without a mark nothing is checked. ``what`` is subject and verb for the message, such as ``tiers were``.
    """
    made_for = getattr(made, "mark", "")
    if not isinstance(made_for, str):
        raise DataError(f"{what} made with a mark that is a {type(made_for).__name__}; it must be text")
    if made_for and made_for != (topology_mark(here) if isinstance(here, Csc) else features_mark(here)):
        differ = "edges or weights" if isinstance(here, Csc) else "features"
        raise DataError(
            f"{what} made for another graph: its {differ} differ from this graph's. Was the graph "
            "renumbered, or changed in place since? Make them anew from this graph"
        )
