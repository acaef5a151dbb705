"""GradientSum: adds up the ranks' gradients while the backward pass computes the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from graphbraid.distributed.ranks.communicator import Communicator, Handle
from graphbraid.errors import ConfigError

BUCKET_BYTES = 4 << 20
"""Gradients sent together: enough to use a link well, and so little that later ones overlap the backward."""


class GradientSum:
    """The sum over all ranks of the gradients of a model's parameters, with a few numbers added to them.

    Parameters are divided into buckets, last layers first, as their gradients come first. As soon as a bucket
    is full and those before it are on their way, its all-reduce begins, while backward goes on; a model
    smaller than a bucket is sent as one. Sums are made in float32, or in float64 where parameters have it,
    and have the same bits on all ranks. A parameter that got no gradient on any rank keeps none.

    Args:
        comm: the ranks.
        parameters: parameters of the model, the same and in the same order on all ranks.
        num_extra: how many numbers go along.
        bucket_bytes: bytes of a bucket.
    """

    def __init__(
        self,
        comm: Communicator,
        parameters: Iterable[nn.Parameter],
        *,
        num_extra: int,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._comm = comm
        learned = [p for p in parameters if p.requires_grad]
        self._buckets = _divided(list(reversed(learned)), bucket_bytes, self._begin_full)
        self._tail = torch.zeros(len(learned) + num_extra, dtype=torch.float64)
        self._num_extra = num_extra
        self._begun: list[Handle[Tensor]] = []
        self._armed = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(bucket.has_got)  # type: ignore[no-untyped-call]
            for bucket in self._buckets
            for parameter in bucket.parameters
        ]

    def arm(self) -> None:
        """Let buckets go off during the next backward pass, which is the last of its step."""
        self._armed = True
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)

    def finish(self, extra: Sequence[float]) -> list[float]:
        """Replace all gradients by their sums over the ranks, and return the sums of ``extra``.

        Raises:
            RankError: a rank was lost.
        """
        self._armed = False
        for bucket in self._buckets[len(self._begun) :]:
            self._begin(bucket)
        parameters = [p for bucket in self._buckets for p in bucket.parameters]
        self._tail[:] = torch.tensor([*(p.grad is not None for p in parameters), *extra], dtype=torch.float64)
        last = self._comm.all_reduce(self._tail)
        for handle in self._begun:
            handle.wait()
        last.wait()
        self._begun = []
        counts = iter(self._tail.tolist())
        for bucket in self._buckets:
            bucket.unpack([next(counts) > 0 for _ in bucket.parameters])
        return list(counts)

    def close(self) -> None:
        """Let go of the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _begin_full(self) -> None:
        if not self._armed:
            return
        while len(self._begun) < len(self._buckets) and self._buckets[len(self._begun)].missing == 0:
            self._begin(self._buckets[len(self._begun)])

    def _begin(self, bucket: _Bucket) -> None:
        self._begun.append(self._comm.all_reduce(bucket.pack()))


class _Bucket:
    """Parameters whose gradients are sent together, and the memory for that."""

    def __init__(self, parameters: list[nn.Parameter], when_full: Callable[[], None]) -> None:
        self.parameters, self._when_full = parameters, when_full
        self.missing = len(parameters)
        first = parameters[0]
        total = sum(p.numel() for p in parameters)
        self._sums = torch.zeros(total, dtype=_dtype_of_sums(first), device=first.device)
        self._parts = [
            part.view(p.shape)
            for part, p in zip(
                torch.split(self._sums, [p.numel() for p in parameters]), parameters, strict=True
            )
        ]

    def has_got(self, parameter: Tensor) -> None:
        """Count a parameter whose gradient is complete; ``when_full`` is called with the last one."""
        self.missing -= 1
        if self.missing == 0:
            self._when_full()

    def pack(self) -> Tensor:
        for parameter, part in zip(self.parameters, self._parts, strict=True):
            if parameter.grad is None:
                part.zero_()
            elif parameter.grad.is_sparse:
                raise ConfigError(
                    "gradients of several ranks must be dense; make embeddings with sparse=False."
                )
            else:
                part.copy_(parameter.grad)
        return self._sums

    def unpack(self, got: Sequence[bool]) -> None:
        for parameter, part, any_has in zip(self.parameters, self._parts, got, strict=True):
            if any_has and parameter.grad is None:
                parameter.grad = part.to(parameter.dtype, copy=True)
            elif any_has and parameter.grad is not None:
                parameter.grad.copy_(part)


def _dtype_of_sums(parameter: Tensor) -> torch.dtype:
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32


def _divided(
    parameters: Sequence[nn.Parameter], bucket_bytes: int, when_full: Callable[[], None]
) -> list[_Bucket]:
    """Divide parameters, in order, into buckets of one dtype and one device each."""
    groups: list[list[nn.Parameter]] = []
    size = 0
    for parameter in parameters:
        fits = bool(groups) and size < bucket_bytes and _alike(groups[-1][0], parameter)
        if not fits:
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += parameter.numel() * _dtype_of_sums(parameter).itemsize
    return [_Bucket(group, when_full) for group in groups]


def _alike(a: Tensor, b: Tensor) -> bool:
    return _dtype_of_sums(a) == _dtype_of_sums(b) and a.device == b.device
