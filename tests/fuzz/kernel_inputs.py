"""What kernel cases draw: graphs with isolated nodes, hubs, loops and repeated edges; rows of every dtype."""

import random
from typing import Any

import torch
from torch import Tensor

from graphbraid.graph import SparseFeatures
from graphbraid.graph.csc import Csc

DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
WIDTHS = (0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 48, 63, 64, 65, 100, 127, 128, 130, 200, 257)
COUNTS = (0, 1, 2, 3, 8, 30, 31, 100, 257, 600)


class Inputs:
    """Draws by one random generator, and keeps in words what it drew."""

    def __init__(self, numbers: random.Random) -> None:
        self.numbers = numbers
        self.said: list[str] = []
        self.terms = 64.0
        """Number of terms in the longest sum."""
        self.coarsest: torch.dtype | None = None
        """Results in finer dtypes are compared in this one."""
        self._generator = torch.Generator().manual_seed(numbers.randrange(2**62))

    def one_of(self, name: str, choices: Any) -> Any:
        value = self.numbers.choice(choices)
        self.said.append(f"{name} {value}")
        return value

    def maybe(self, name: str, share: float = 0.5) -> bool:
        drawn = self.numbers.random() < share
        if drawn:
            self.said.append(name)
        return drawn

    def count(self, name: str = "rows") -> int:
        count: int = self.one_of(name, COUNTS)
        self.terms = max(self.terms, count)
        return count

    def width(self, name: str = "width") -> int:
        width: int = self.one_of(name, WIDTHS)
        self.terms = max(self.terms, width)
        return width

    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.one_of("", DTYPES)
        return dtype

    def cancels(self, dtype: torch.dtype, channels: int) -> None:
        """Gradients of a softmax's logits are differences of dot products of rows: their rounding stays."""
        self.coarsest = dtype
        self.terms *= channels

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        drawn = torch.randn(shape, generator=self._generator, dtype=torch.float64)
        zeros = torch.rand(shape, generator=self._generator) < 0.1
        return drawn.masked_fill(zeros, 0.0).to(dtype)

    def below(self, high: int, *shape: int) -> Tensor:
        return torch.randint(0, max(high, 1), shape, generator=self._generator)

    def rows(self, count: int, width: int, dtype: torch.dtype) -> Tensor:
        """A leaf that wants a gradient; now and then its rows stand apart in memory, or columns do."""
        how = self.numbers.random()
        if how < 0.15:
            self.said.append("rows apart")
            rows = self.normal(count, width + 5, dtype=dtype)[:, :width]
        elif how < 0.25:
            self.said.append("columns first")
            rows = self.normal(width, count, dtype=dtype).t()
        else:
            rows = self.normal(count, width, dtype=dtype)
        return rows.requires_grad_()

    def csc(self, *, square: bool = False, weighted: bool = False) -> Csc:
        num_dst = self.count("destinations")
        num_src = num_dst if square else max(num_dst, self.count("sources")) if num_dst else self.count()
        ids = self.one_of("ids", (torch.int32, torch.int32, torch.int64))
        most = self.one_of("degrees to", (0, 1, 2, 5, 20)) if num_src else 0
        degrees = self.below(most + 1, num_dst)
        if num_dst and num_src and self.maybe("a hub", 0.4):
            degrees[int(self.below(num_dst, 1))] = int(self.below(1500, 1))
        indptr = torch.zeros(num_dst + 1, dtype=torch.int64)
        indptr[1:] = degrees.cumsum(0)
        self.terms = max(self.terms, float(degrees.max()) if num_dst else 0.0)
        among = min(num_src, 4) if self.maybe("few sources", 0.2) else num_src
        indices = self.below(among, int(indptr[-1])).to(ids)
        if self.maybe("loops", 0.3):
            own = torch.repeat_interleave(torch.arange(num_dst), degrees)
            indices = torch.where(self.below(4, indices.numel()) == 0, own.to(ids) % max(num_src, 1), indices)
        weight = self.normal(int(indptr[-1])).abs() if weighted and self.maybe("weighted") else None
        return Csc(indptr, indices, num_src, weight)

    def sparse(self, count: int, width: int) -> SparseFeatures:
        share = self.one_of("density", (0.0, 0.05, 0.5))
        dense = self.normal(count, width)
        kept = torch.rand(count, width, generator=self._generator) < share
        return SparseFeatures.from_dense(dense.masked_fill(~kept, 0.0))
