"""The sound things that API cases start from: one small graph in every form, made anew by each case."""

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphbraid.graph import Graph, ScaledFeatures, SparseFeatures
from graphbraid.graph.csc import Csc
from graphbraid.loader import NeighborLoader

NODES, EDGES, WIDTH, CLASSES = 60, 300, 8, 4


class World:
    """Everything is made at first use and is the same in every process."""

    @functools.cached_property
    def edge_index(self) -> Tensor:
        numbers = np.random.default_rng(0)
        return torch.from_numpy(numbers.integers(0, NODES, (2, EDGES)))

    @functools.cached_property
    def edge_weight(self) -> Tensor:
        return torch.from_numpy(np.random.default_rng(1).random(EDGES).astype(np.float32)) + 0.25

    @functools.cached_property
    def x(self) -> Tensor:
        x = torch.from_numpy(np.random.default_rng(2).normal(size=(NODES, WIDTH)).astype(np.float32))
        return torch.where(x > 0.2, x, torch.zeros(()))

    @functools.cached_property
    def y(self) -> Tensor:
        return torch.arange(NODES) % CLASSES

    @functools.cached_property
    def splits(self) -> dict[str, Tensor]:
        return {"train": torch.arange(20), "val": torch.arange(20, 40), "test": torch.arange(40, 60)}

    @functools.cached_property
    def graph(self) -> Graph:
        return Graph.from_edge_index(
            self.edge_index,
            NODES,
            x=self.x,
            y=self.y,
            splits=self.splits,
            edge_weight=self.edge_weight,
            name="small",
        )

    @functools.cached_property
    def plain_graph(self) -> Graph:
        return Graph.from_edge_index(self.edge_index, NODES, x=self.x, y=self.y, splits=self.splits)

    @functools.cached_property
    def typed_graph(self) -> Graph:
        edges = {("paper", "cites", "paper"): self.edge_index, ("author", "writes", "paper"): self.edge_index}
        counts = {"paper": NODES, "author": NODES}
        return Graph.from_relations(edges, counts, x={"paper": self.x}, y={"paper": self.y})

    @property
    def csc(self) -> Csc:
        return self.graph.csc

    @functools.cached_property
    def sparse_x(self) -> SparseFeatures:
        return SparseFeatures.from_dense(self.x)

    @functools.cached_property
    def scaled_x(self) -> ScaledFeatures:
        return ScaledFeatures.from_dense(self.x)

    @functools.cached_property
    def data(self) -> Any:
        return self.graph.to_pyg()

    @functools.cached_property
    def batch(self) -> Any:
        return next(iter(NeighborLoader(self.graph, [3, 3], "train", batch_size=8)))

    @functools.cached_property
    def batch_blocks(self) -> Any:
        return next(iter(NeighborLoader(self.graph, [3, 3], "train", batch_size=8, layout="blocks")))

    def model(self, name: str = "sage") -> nn.Module:
        from graphbraid.nn import make_model

        torch.manual_seed(0)
        options = {"heads": 2} if name in ("gat", "gatv2") else {}
        return make_model(name, WIDTH, CLASSES, hidden_channels=8, num_layers=2, **options)


def numbers_of(value: Any, depth: int = 0) -> Any:
    """What a result says in numbers, as nested lists of arrays, for comparison."""
    if depth > 6:
        return None
    inner = functools.partial(numbers_of, depth=depth + 1)
    if isinstance(value, Tensor):
        value = value.detach()
        if value.layout != torch.strided:
            value = value.to_dense()
        return value.double().numpy() if value.is_floating_point() else value.long().numpy()
    if isinstance(value, np.ndarray):
        return (
            value if value.dtype.kind in "OUS" else numbers_of(torch.from_numpy(np.ascontiguousarray(value)))
        )
    if isinstance(value, ScaledFeatures):
        return inner([value.values, value.scale])
    if isinstance(value, SparseFeatures):
        return inner([value.indptr, value.indices, value.values])
    if isinstance(value, Csc):
        return inner([value.indptr, value.indices, value.num_src, value.weight])
    if isinstance(value, Graph):
        fields = [value.csc, value.edge_id, value.x, value.y, dict(value.splits)]
        return inner(fields)
    if isinstance(value, nn.Module):
        return inner(list(value.parameters()))
    if isinstance(value, dict):
        return {str(key): inner(item) for key, item in value.items() if "seconds" not in str(key)}
    if isinstance(value, list | tuple):
        return [inner(item) for item in value]
    if isinstance(value, bool | int | float | str | None):
        return value
    if hasattr(value, "tocoo"):
        return inner(value.toarray())
    return type(value).__name__


def unequal(a: Any, b: Any, rtol: float = 2e-4) -> str:
    """Where two results of :func:`numbers_of` differ; an empty string where they agree."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.shape != b.shape:
            return f"shapes {a.shape} and {b.shape}"
        if a.dtype.kind in "OUS" or b.dtype.kind in "OUS":
            return "" if a.tolist() == b.tolist() else "texts differ"
        if a.dtype.kind != "f" and b.dtype.kind != "f":
            return "" if np.array_equal(a, b) else f"{int((a != b).sum())} whole numbers differ"
        return (
            ""
            if np.allclose(a, b, rtol, rtol * 0.1, equal_nan=True)
            else f"by up to {np.nanmax(np.abs(a - b)):g}"
        )
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return f"keys {sorted(a)} and {sorted(b)}"
        return next((f"{key}: {text}" for key in a if (text := unequal(a[key], b[key], rtol))), "")
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return f"lengths {len(a)} and {len(b)}"
        return next((f"[{i}]: {text}" for i in range(len(a)) if (text := unequal(a[i], b[i], rtol))), "")
    if isinstance(a, float) and isinstance(b, float):
        return "" if np.isclose(a, b, rtol, rtol * 0.1, equal_nan=True) else f"{a} and {b}"
    if type(a) is not type(b):
        return f"a {type(a).__name__} and a {type(b).__name__}"
    return "" if a == b else f"{a!r} and {b!r}"
