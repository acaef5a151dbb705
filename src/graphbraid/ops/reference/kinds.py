"""Kinds of arrays that kernels take: the annotations of the twins, whose signatures are those of the kernels.

A test walks the twins and compares each with the compiled kernel's entry and with Triton's launcher: names,
order, defaults, numbers of dimensions and dtypes.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor


class Kind(NamedTuple):
    """Requirements on an array."""

    dimensions: int
    dtypes: tuple[torch.dtype, ...]


_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

Indptr = Annotated[Tensor, Kind(1, (torch.int64,))]
"""``(num_rows + 1,)``: row ``v`` has the edges ``[indptr[v], indptr[v + 1])``."""
Indices = Annotated[Tensor, Kind(1, (torch.int32, torch.int64))]
"""``(num_edges,)`` node at the other end of each edge."""
Ids = Annotated[Tensor, Kind(1, (torch.int64,))]
"""``(count,)`` numbers of rows or of edges."""
RowPlaces = Annotated[Tensor, Kind(1, (torch.int32,))]
"""``(count,)`` numbers of rows, -1 for none."""
Vector = Annotated[Tensor, Kind(1, _FLOATS)]
"""``(count,)``: a value per node, edge or column, in the dtype of the sums."""
Matrix = Annotated[Tensor, Kind(2, _FLOATS)]
"""``(num_nodes or num_edges, width)``, or a value per node or edge and head; head by head."""
Vector32 = Annotated[Tensor, Kind(1, (torch.float32,))]
Matrix32 = Annotated[Tensor, Kind(2, (torch.float32,))]
"""A matrix of the kernels that multiply, or that widen rows."""
WordMatrix = Annotated[Tensor, Kind(2, (torch.int32,))]
"""Bits, 32 to a word, or a count or a position for each element."""
StepMatrix = Annotated[Tensor, Kind(2, (torch.int64,))]
"""Steps of a message."""
ByteMatrix = Annotated[Tensor, Kind(2, (torch.uint8,))]
"""Rows of any dtype as bytes."""
Matrix8 = Annotated[Tensor, Kind(2, (torch.int8,))]
"""Rows of int8, which scales multiply."""
