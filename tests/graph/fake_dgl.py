"""The part of DGL that the conversion touches, behaving as DGL 2.1 was seen to; DGL needs an older torch.

The checks of dgl_checks.py hold both to the same: ``adj_tensors("csc")`` is ``(indptr, indices, ids)``, the
ids empty for a graph made from CSC without ids, and refused where the graph is restricted to other formats;
``dgl.graph`` wants one dtype for all three; edge data stands by id.
"""

from __future__ import annotations

import torch
from torch import Tensor


class DGLError(Exception):
    pass


class FakeGraph:
    """A homogeneous DGLGraph, held in CSC."""

    is_homogeneous = True
    canonical_etypes = (("_N", "_E", "_N"),)

    def __init__(self, indptr: Tensor, indices: Tensor, ids: Tensor, num_nodes: int) -> None:
        if not indptr.dtype == indices.dtype == ids.dtype:
            raise DGLError(f"Expected indices to be the same type as indptr({indptr.dtype})")
        if indptr.numel() != num_nodes + 1 or ids.numel() not in (0, indices.numel()):
            raise DGLError("sizes do not fit")
        self._csc = indptr, indices, ids
        self._formats: tuple[str, ...] = ("coo", "csr", "csc")
        self.ndata = _Frame(num_nodes)
        self.edata = _Frame(indices.numel())

    def num_nodes(self) -> int:
        return self._csc[0].numel() - 1

    def formats(self, form: str) -> FakeGraph:
        """A copy that may take this format only."""
        restricted = FakeGraph(*self._csc, self.num_nodes())
        restricted.ndata, restricted.edata, restricted._formats = self.ndata, self.edata, (form,)
        return restricted

    def adj_tensors(self, form: str) -> tuple[Tensor, Tensor, Tensor]:
        assert form == "csc"
        if form not in self._formats:
            raise DGLError(
                f"The graph have restricted sparse format {self._formats[0]}, cannot create CSC matrix."
            )
        return self._csc

    def edges(self) -> tuple[Tensor, Tensor]:
        """Sources and destinations in the order of edge ids."""
        indptr, indices, ids = self._csc
        dst = torch.repeat_interleave(torch.arange(self.num_nodes(), dtype=indices.dtype), indptr.diff())
        order = ids.argsort() if ids.numel() else torch.arange(indices.numel())
        return indices[order], dst[order]


class _Frame(dict):
    """Columns that must have a row per node or edge."""

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self._num_rows = num_rows

    def __setitem__(self, key: str, value: Tensor) -> None:
        if value.shape[0] != self._num_rows:
            raise DGLError(f"Expect number of features to match number of nodes or edges, {self._num_rows}")
        super().__setitem__(key, value)


def graph(data: tuple, *, num_nodes: int) -> FakeGraph:
    """``dgl.graph`` from ``("csc", (indptr, indices, ids))`` or from ``(src, dst)``."""
    if data[0] == "csc":
        return FakeGraph(*data[1], num_nodes)
    src, dst = data
    ids = dst.argsort(stable=True)
    counts = torch.bincount(dst, minlength=num_nodes)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).to(src.dtype)
    return FakeGraph(indptr, src[ids], ids.to(src.dtype), num_nodes)
