"""Sparse matrices in the place of an edge list: PyG's ``adj_t``, with a row for each destination.

A model may take it as ``torch_sparse.SparseTensor``, or as PyTorch's sparse CSR, CSC or COO. Its entries are
the graph's edges and weights. Calls that read nothing else are made on such a matrix once for each graph or
batch.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx

from graphbraid.fullgraph.program import NotLoweredError, run_call
from graphbraid.fullgraph.reading.aggregations import SHARES, shares_of
from graphbraid.fullgraph.reading.trace_context import names_in
from graphbraid.graph.interop.pyg import entries_of_any
from graphbraid.ops.spmm import Ties
from graphbraid.sampling.minibatch.pyg_forms import adj_t_of

LAYOUTS = (torch.sparse_csr, torch.sparse_csc, torch.sparse_coo)
"""Layouts of PyTorch's sparse matrices that have a form."""
NO_LIST = (
    "PyG makes no edge list of a matrix in layout CSC, nor of one that is not coalesced",
    "layout CSR, or coalesce()",
)
"""Why a layer's messages along a matrix run as written, and what they need."""
REDUCTIONS = {"sum": "sum", "add": "sum", "mean": "mean", "max": "max"}
"""Reductions of products of a sparse matrix and node rows, by their names."""


def is_matrix(value: Any) -> bool:
    """Return whether a value is a sparse matrix of PyTorch's own class, or torch-sparse's."""
    if isinstance(value, Tensor):
        return value.layout in LAYOUTS
    return isinstance(value, cast("type", names_in("torch_sparse").get("SparseTensor", ())))


@dataclass(frozen=True)
class MatrixKind:
    """The class of sparse matrix that a model takes, with what its calls can see.

    Attributes:
        kind: its class.
        layout: its layout, if it is one of PyTorch's.
        weighted: whether its values are weights. If not, they are ones, or none in torch-sparse's matrices.
        is_coalesced: whether a matrix in layout COO says that its entries are sorted and differ.
    """

    kind: type
    layout: torch.layout | None
    weighted: bool
    is_coalesced: bool = True

    @classmethod
    def of(cls, matrix: Any, *, weighted: bool) -> MatrixKind:
        """Return the kind of a matrix."""
        layout = matrix.layout if isinstance(matrix, Tensor) else None
        return cls(type(matrix), layout, weighted, layout != torch.sparse_coo or matrix.is_coalesced())

    @property
    def merges(self) -> bool:
        """Whether operations on such a matrix may add up its repeated entries."""
        return self.layout == torch.sparse_coo

    @property
    def has_no_list(self) -> bool:
        """Whether PyG makes no edge list of such a matrix, and its layers raise an error instead."""
        return self.layout == torch.sparse_csc or not self.is_coalesced

    def fails_in(self, layer: Any) -> bool:
        """Return whether PyG's layer raises an error on such a matrix.

        Layers that do not multiply by it need a list of its entries. ``gcn_norm``, which a layer's module has
        if the layer calls it, takes no CSC.
        """
        normalises = "gcn_norm" in names_in(type(layer).__module__) and getattr(layer, "normalize", True)
        needs_list = not getattr(layer, "fuse", True)
        return (normalises and self.layout == torch.sparse_csc) or (needs_list and self.has_no_list)

    def differs_by_loops(self, layer: Any) -> bool:
        """Return whether PyG's layer may add self-loops to such a matrix as it does not to a list.

        In torch-sparse's matrices it replaces them by others, which matters only if the weights are not 1.
        """
        replaces = self.layout is None and not self.weighted and not getattr(layer, "improved", False)
        return bool(getattr(layer, "add_self_loops", False)) and not replaces

    def made(self, edges: Tensor, weight: Tensor | None, num_nodes: int, dtype: torch.dtype) -> Any:
        """Return a matrix of this kind.

        ``edges`` are ``(2, num_edges)``, sources in row 0, in any order. ``weight`` has the number of each
        edge, if the kind is ``weighted``; ``dtype`` is that of other values.
        """
        is_sorted = self.layout is None or (self.layout == torch.sparse_coo and self.is_coalesced)
        # The sources of a row may stand in any order elsewhere: no call may count on their places.
        order = (edges[1] * num_nodes + edges[0] if is_sorted else edges[1]).argsort(stable=True)
        values = weight[order] if self.weighted and weight is not None else None
        if values is None and self.layout is not None:
            values = torch.ones(len(order), dtype=dtype, device=edges.device)
        matrix = adj_t_of(
            self.layout or self.kind, edges[:, order], values, (num_nodes, num_nodes), sorts=False
        )
        if self.layout == torch.sparse_coo and self.is_coalesced:
            matrix._coalesced_(True)
        return matrix

    @staticmethod
    def state_of(matrix: Any) -> Any:
        """Return what changes if the values of a matrix are written over."""
        values = entries_of_any(matrix)[2]
        # A matrix in layout COO that is marked as sorted counts as written over, too.
        is_coo = isinstance(matrix, Tensor) and matrix.layout == torch.sparse_coo
        return values is not None and (values.tolist() if is_coo else (values.data_ptr(), values._version))

    def small(self) -> Any:
        """Return a matrix of three nodes, with a self-loop."""
        edges = torch.tensor([[0, 1, 2, 0], [0, 2, 1, 2]])
        return self.made(edges, torch.ones(4), 3, torch.float32)

    def shown(self, name: str, node: fx.Node, reduce: str, like: Tensor) -> Ties | None:
        """Show that a call multiplies such a matrix by rows; return how a maximum shares its gradient.

        ``reduce`` says how the products are reduced. ``like`` is a parameter of the model.

        Raises:
            NotLoweredError: it gives something else, fails, or shares the gradient as no operation does.
        """

        def run(edges: list[list[int]], weight: Tensor, x: Tensor) -> Tensor:
            ends = torch.tensor(edges, device=like.device)
            args = [self.made(ends, weight, len(x), like.dtype), x, *node.args[2:]]
            out: Tensor = run_call(node.target, args, node.kwargs)
            return out

        x, weight = torch.arange(1.0, 9.0).to(like).view(4, 2), torch.tensor([2.0, 3.0, 5.0]).to(like)
        try:
            with torch.enable_grad(), torch.autocast("cpu", enabled=False):
                out = run([[0, 1, 3], [2, 2, 0]], weight, x)
                products = x[[0, 1, 3]] * (weight.view(-1, 1) if self.weighted else 1)
                two = products[:2]
                expected = torch.zeros_like(x)
                expected[0] = products[2]
                expected[2] = {"sum": two.sum(0), "mean": two.mean(0), "max": two.amax(0)}[reduce]
                shares = None
                if reduce == "max":
                    ones = weight[:2] * 0 + 1
                    shares = shares_of(lambda rows: run([[0, 1], [2, 2]], ones, rows)[2, 0], x[:3])
        except Exception as error:  # whatever it may raise
            raise NotLoweredError(name, f"it fails on a matrix of four nodes ({error})") from error
        if out.shape != expected.shape or not torch.allclose(out, expected):
            raise NotLoweredError(name, f"it is not the {reduce} of a matrix's products with rows")
        if shares is None:
            return None
        ties = SHARES.get(shares)
        if ties is None or (ties == "first" and like.device.type != "cpu"):
            raise NotLoweredError(name, f"its maximum shares the gradient of two equal ones as {shares}")
        return ties


def entries_of_matrix(matrix: Any) -> tuple[Tensor, Tensor | None]:
    """Return the edge list of a matrix, sources in row 0, and its values in the same order."""
    rows, columns, values = entries_of_any(matrix)
    return torch.stack((columns, rows)).long(), values


def entries_in(matrix: fx.Proxy) -> Any:
    """Return the edge list of a matrix in a trace, and its values; these are None in a matrix without any."""
    return matrix.tracer.create_proxy("call_function", entries_of_matrix, (matrix,), {})


def own_part(node: Any) -> str:
    """Return ``edges`` for the edge list of the graph's matrix, ``weights`` for its values, else ``""``."""
    if not isinstance(node, fx.Node) or node.target is not operator.getitem:
        return ""
    entries, place = node.args
    is_own = isinstance(entries, fx.Node) and entries.target is entries_of_matrix
    if not is_own or entries.args[0].op != "placeholder":  # type: ignore[union-attr]
        return ""
    return ("edges", "weights")[place]  # type: ignore[index]


def weighted_entries(matrix: Any) -> tuple[Tensor, Tensor]:
    """Return the edge list of a matrix and its values, which are ones in a matrix without any."""
    edges, values = entries_of_matrix(matrix)
    return edges, torch.ones(edges.shape[1], device=edges.device) if values is None else values


# ---- products with node rows

_PRODUCTS = {"matmul", "mm", "spmm", "__matmul__", "_sparse_mm"}
"""Names of functions and methods that multiply a sparse matrix by node rows."""


def product_of(node: fx.Node) -> tuple[Any, Any, str] | None:
    """Return matrix, rows and reduction of a call that multiplies a sparse matrix; None for other calls."""
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    if node.op not in ("call_function", "call_method") or name not in _PRODUCTS:
        return None
    if len(node.args) > 3:  # as torch_sparse.spmm(index, value, m, n, matrix)
        return None
    given = dict(zip(("src", "other", "reduce"), node.args, strict=False))
    names = {"input": "src", "self": "src", "mat1": "src", "mat2": "other", "sparse": "src", "dense": "other"}
    given |= {names.get(key, key): value for key, value in node.kwargs.items()}
    if not {"src", "other"} <= given.keys() <= {"src", "other", "reduce"}:
        return None
    reduce = given.get("reduce", "sum")
    return given["src"], given["other"], REDUCTIONS.get(reduce, "") if isinstance(reduce, str) else ""
