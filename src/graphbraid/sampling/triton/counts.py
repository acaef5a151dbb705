"""Counts: the numbers of nodes and edges of a batch, kept on the device and read once at the end."""

from __future__ import annotations

import torch


class Counts:
    """Running numbers of nodes and edges after each hop, which kernels read and write.

    Attributes:
        nodes: ``(hops + 2,)`` int64: 0, the number of seeds, then the batch's nodes after each hop.
        edges: ``(hops + 1,)`` int64: 0, then the batch's edges after each hop.
    """

    def __init__(self, num_hops: int, device: torch.device) -> None:
        split = (num_hops + 3) // 2 * 2  # aligns edges to 16 bytes, which kernels are compiled for
        self._counts = torch.zeros(split + num_hops + 1, dtype=torch.int64, device=device)
        self.nodes, self.edges = self._counts[: num_hops + 2], self._counts[split:]
        self._split, self._num_hops = split, num_hops
        self._host = self._counts
        self._copied: torch.cuda.Event | None = None

    def send(self) -> None:
        """Start the copy to the host; the batch must be complete in stream order."""
        if self._counts.is_cuda:
            self._host = torch.empty(self._counts.shape, dtype=torch.int64, pin_memory=True)
            self._host.copy_(self._counts, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> tuple[list[int], list[int]]:
        """Return ``nodes`` and ``edges`` as lists; waits for the copy that :meth:`send` started."""
        if self._copied is not None:
            self._copied.synchronize()
        numbers = self._host.tolist()
        return numbers[: self._num_hops + 2], numbers[self._split :]
