"""GradientSum: adds up the ranks' gradients while the backward pass computes the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from graphbraid.distributed.ranks.communicator import Communicator, Handle
from graphbraid.errors import ConfigError

BUCKET_BYTES = 4 << 20
"""Gradients sent together: enough to use a link well, and so little that later ones overlap the backward."""
_TAIL_DTYPE = torch.float64


class GradientSum:
    """The sum over all ranks of the gradients of a model's parameters, with a few numbers added to them.

    Parameters are divided into buckets, last layers first, as their gradients come first. As soon as a bucket
    is full and those before it are on their way, its all-reduce begins, while backward goes on; a model
    smaller than a bucket is sent as one. With :meth:`begin` a single parameter's sum begins earlier, while
    the same backward pass still computes others' gradients. Sums are made in float32, or in float64 where
    parameters have it, and have the same bits on all ranks. A parameter that got no gradient on any rank
    keeps none. ``parameters`` are the same and in the same order on all ranks; ``num_extra`` numbers go
    along. With ``bucket_bytes=0`` each parameter is its own bucket, as :meth:`begin` needs.
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
        groups = in_buckets(parameters, bucket_bytes)
        self._buckets = [_Bucket(group, self._begin_full) for group in groups]
        self._alone = {id(b.parameters[0]): b for b in self._buckets if len(b.parameters) == 1}
        size = tail_bytes(sum(map(len, groups)), num_extra) // _TAIL_DTYPE.itemsize
        self._tail = torch.zeros(size, dtype=_TAIL_DTYPE)
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

    def begin(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Begin the sum of one parameter's gradient, to which its backward pass adds nothing more.

        Does nothing before :meth:`arm`, or for a parameter that shares its bucket. All ranks must begin the
        same parameters in the same order. If the gradient is another one in the end, as where the loss
        depends on the parameter in a second way, :meth:`finish` adds up the differences.
        """
        bucket = self._alone.get(id(parameter))
        if self._armed and bucket is not None and bucket.handle is None:
            bucket.handle = self._comm.all_reduce(bucket.pack_early(gradient))

    def finish(self, extra: Sequence[float], meanwhile: Callable[[], None] = lambda: None) -> list[float]:
        """Replace gradients by their sums over the ranks; return the sums of the numbers ``extra``.

        ``meanwhile`` is called once all sums are on their way. RankError: a rank was lost.
        """
        self._armed = False
        for bucket in self._buckets:
            self._begin(bucket)
        parameters = [p for bucket in self._buckets for p in bucket.parameters]
        got = [p.grad is not None for p in parameters]
        changed = [bucket.has_changed() for bucket in self._buckets for _ in bucket.parameters]
        self._tail[:] = torch.tensor([*got, *changed, *extra], dtype=_TAIL_DTYPE)
        last = self._comm.all_reduce(self._tail)
        meanwhile()
        for bucket in self._buckets:
            bucket.wait()
        last.wait()
        counts = self._tail.tolist()
        any_got, any_changed = iter(counts[: len(got)]), iter(counts[len(got) : 2 * len(got)])
        for bucket in self._buckets:
            if sum(next(any_changed) for _ in bucket.parameters):
                bucket.correct(self._comm)
            bucket.unpack([next(any_got) > 0 for _ in bucket.parameters])
        return counts[2 * len(got) :]

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _begin_full(self) -> None:
        if not self._armed:
            return
        for bucket in self._buckets:
            if bucket.missing > 0:
                break
            self._begin(bucket)

    def _begin(self, bucket: _Bucket) -> None:
        if bucket.handle is None:
            bucket.handle = self._comm.all_reduce(bucket.pack())


class _Bucket:
    """Parameters whose gradients are sent together, and the memory for that."""

    def __init__(self, parameters: list[nn.Parameter], when_full: Callable[[], None]) -> None:
        self.parameters, self._when_full = parameters, when_full
        self.missing = len(parameters)
        self.handle: Handle[Tensor] | None = None
        self._early: Tensor | None = None
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

    def pack_early(self, gradient: Tensor) -> Tensor:
        """Return the memory to be summed with the gradient of the only parameter, and remember that."""
        self._parts[0].copy_(gradient)
        self._early = self._sums.clone()
        return self._sums

    def has_changed(self) -> bool:
        """Return whether the gradient is another one than was begun with."""
        gradient = self.parameters[0].grad
        if self._early is None:
            return False
        return gradient is None or not torch.equal(self._early, gradient.reshape(-1).to(self._early.dtype))

    def correct(self, comm: Communicator) -> None:
        """Add the sum over the ranks of the gradient's change since the sum began."""
        if self._early is None:  # begun with the whole of it
            left = torch.zeros_like(self._sums)
        else:
            gradient = self.parameters[0].grad
            left = -self._early if gradient is None else gradient.reshape(-1) - self._early
        self._sums += comm.all_reduce(left).wait()

    def wait(self) -> None:
        assert self.handle is not None
        self.handle.wait()
        self.handle = None

    def pack(self) -> Tensor:
        """Return the memory to be summed, with the gradients of all parameters."""
        self._early = None
        for parameter, part in zip(self.parameters, self._parts, strict=True):
            if parameter.grad is None:
                part.zero_()
            elif parameter.grad.is_sparse:
                raise ConfigError(
                    "gradients of several ranks must be dense; make embeddings with sparse=False, or let "
                    "ranks divide the rows: graphbraid.nn.ShardedEmbedding(num_nodes, channels)."
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


def in_buckets(
    parameters: Iterable[nn.Parameter], bucket_bytes: int = BUCKET_BYTES
) -> list[list[nn.Parameter]]:
    """Divide those of a model's parameters that learn into buckets, last ones first.

    Each is of one dtype and one device. The next one begins once a bucket has ``bucket_bytes``.
    """
    groups: list[list[nn.Parameter]] = []
    size = 0
    for parameter in reversed([p for p in parameters if p.requires_grad]):
        fits = bool(groups) and size < bucket_bytes and _alike(groups[-1][0], parameter)
        if not fits:
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += bytes_of([parameter])
    return groups


def bytes_of(bucket: Sequence[nn.Parameter]) -> int:
    """Return the bytes that each rank adds to the sum of a bucket."""
    return sum(p.numel() * _dtype_of_sums(p).itemsize for p in bucket)


def tail_bytes(num_parameters: int, num_extra: int) -> int:
    """Return the bytes of the last sum of a step: who has got which gradient, and the further numbers."""
    return _TAIL_DTYPE.itemsize * (2 * num_parameters + num_extra)


def _alike(a: Tensor, b: Tensor) -> bool:
    return _dtype_of_sums(a) == _dtype_of_sums(b) and a.device == b.device
