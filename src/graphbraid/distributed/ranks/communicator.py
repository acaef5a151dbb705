"""Communicator: messages between the ranks of a job, over any transport."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

from graphbraid.arguments import as_count
from graphbraid.distributed.ranks.transport import (
    REDUCED,
    Pending,
    Reduction,
    Transport,
    as_bytes,
    check_contiguous,
    check_received,
    check_sent,
    packed,
    row_bytes,
    unpacked,
)
from graphbraid.distributed.ranks.watch import NoWatch, Watch
from graphbraid.errors import ConfigError, RankError

T = TypeVar("T")
_LATE_SECONDS = 0.5
"""Seconds that a wait goes on once a fault is known: a failed rank's last messages may show the cause."""


class Handle(Generic[T]):
    """An operation under way. Its tensors must not be touched before :meth:`wait` has returned."""

    def __init__(
        self, wait: Callable[[Pending, str], None], pending: Pending, what: str, result: Callable[[], T]
    ) -> None:
        self._wait, self._pending, self._what, self._result = wait, pending, what, result
        self._is_over = False

    def done(self) -> bool:
        """Return whether :meth:`wait` would return at once; calling it also makes progress."""
        return self._is_over or self._pending.done()

    def wait(self) -> T:
        """Wait for the operation and return its result.

        Raises:
            RankError: a rank was lost, has stalled or has failed.
        """
        if not self._is_over:
            self._wait(self._pending, self._what)
            self._is_over = True
        return self._result()


class Communicator:
    """The ranks of a job, and the messages between them.

    All ranks must call its methods in the same order and from one thread. Methods that return a
    :class:`Handle` begin an operation and never wait for other ranks. As a context manager it leaves the job
    in an orderly way or, if the body raises, tells the others why.

    Args:
        transport: library that moves the bytes. If None, this process is the only rank.
        watch: notices lost and stalled ranks. If None, only the transport's own errors end a wait.
        patience_seconds: longest wait for an operation while all ranks are alive.
        checks: whether ranks compare operation, shape and dtype before each collective operation, which
            costs two more. Without it, differing sizes are not noticed.
    """

    def __init__(
        self,
        transport: Transport | None = None,
        watch: Watch | NoWatch | None = None,
        *,
        patience_seconds: float = 1800.0,
        checks: bool = False,
    ) -> None:
        self.transport = transport = transport or Transport()
        """Library that moves the bytes, with its operations."""
        self._watch = watch or NoWatch()
        self._patience_seconds, self._checks, self._has_left = patience_seconds, checks, False
        self.rank = transport.rank
        """Number of this rank, from 0."""
        self.size = transport.size
        """Number of ranks, the world size."""
        self.name = transport.name
        """Library that moves the bytes: ``gloo``, ``mpi``, ``gloo+nccl`` or ``none``."""
        self.sent_bytes = 0
        """Bytes that :meth:`all_to_all` has sent from here to other ranks so far."""

    def __repr__(self) -> str:
        return f"Communicator(rank={self.rank}, size={self.size}, name={self.name!r})"

    # ---- tensors

    def all_reduce(self, tensor: Tensor, op: Reduction = "sum") -> Handle[Tensor]:
        """Begin to replace ``tensor`` by its reduction over all ranks, which has the same bits on each.

        Args:
            tensor: contiguous, any shape, float32, float64, int32 or int64; the same on all ranks.
            op: ``sum``, ``max`` or ``min``.

        Raises:
            ConfigError: the tensor or ``op`` does not fit; with ``checks``, those of the ranks differ.
        """
        check_contiguous(tensor, "tensor")
        if tensor.dtype not in REDUCED:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in REDUCED)
            raise ConfigError(
                f"all_reduce needs a tensor of {known}; got {tensor.dtype}. Convert it first: sums of half "
                "precision over many ranks would lose their last digits."
            )
        if op not in ("sum", "max", "min"):
            raise ConfigError(f"op must be 'sum', 'max' or 'min'; got {op!r}.")
        self._agree(f"all_reduce({op})", tensor, tuple(tensor.shape))
        return self._handle(self.transport.all_reduce(tensor, op), "all_reduce", lambda: tensor)

    def all_to_all(
        self,
        send: Tensor,
        send_rows: Sequence[int],
        receive_rows: Sequence[int],
        out: Tensor | None = None,
    ) -> Handle[Tensor]:
        """Begin to send rows to every rank and to receive rows from every rank.

        Args:
            send: ``(sum(send_rows), ...)`` contiguous, any dtype: the rows for rank 0 first.
            send_rows: number of rows for each rank, ``size`` of them; may be 0.
            receive_rows: number of rows from each rank, as that rank's ``send_rows`` says; :meth:`counts`
                finds out.
            out: ``(sum(receive_rows), ...)`` of the same dtype, contiguous, to receive into. If None, new.

        Returns:
            A handle of ``(sum(receive_rows), ...)``, rows of rank 0 first.

        Raises:
            ConfigError: an argument does not fit; with ``checks``, ranks expect other numbers than are sent.
        """
        send_rows, receive_rows = self._rows(send_rows, "send_rows"), self._rows(receive_rows, "receive_rows")
        check_sent(send, send_rows)
        self._agree("all_to_all", send, tuple(send.shape[1:]))
        if self._checks and (expected := self.counts(send_rows)) != receive_rows:
            r = next(r for r in range(self.size) if expected[r] != receive_rows[r])
            raise ConfigError(
                f"rank {self.rank} expects {receive_rows[r]} rows of rank {r}, which sends {expected[r]}."
            )
        if out is None:
            out = send.new_empty((sum(receive_rows), *send.shape[1:]))
        check_received(out, send, sum(receive_rows))
        self.sent_bytes += row_bytes(send) * (send.shape[0] - send_rows[self.rank])
        return self._all_to_all(send, send_rows, receive_rows, out)

    def counts(self, send_rows: Sequence[int]) -> list[int]:
        """Tell each rank how many rows it will get from here; return how many each will send."""
        send = torch.tensor(self._rows(send_rows, "send_rows"), dtype=torch.int64)
        ones, received = [1] * self.size, torch.empty_like(send)
        counts: list[int] = self._all_to_all(send, ones, ones, received).wait().tolist()
        return counts

    def broadcast(self, tensor: Tensor, root: int = 0) -> Handle[Tensor]:
        """Begin to replace ``tensor``, contiguous and of any dtype, by that of rank ``root``.

        Raises:
            ConfigError: an argument does not fit; with ``checks``, shapes or dtypes of the ranks differ.
        """
        check_contiguous(tensor, "tensor")
        root = self._rank(root, "root")
        self._agree(f"broadcast({root})", tensor, tuple(tensor.shape))
        pending = self.transport.broadcast(as_bytes(tensor), root)
        return self._handle(pending, "broadcast", lambda: tensor)

    # ---- small values, in JSON

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self._agree("barrier")
        self._handle(self.transport.all_reduce(torch.zeros(1), "sum"), "barrier", lambda: None).wait()

    def share(self, value: Any, root: int = 0) -> Any:
        """Return rank ``root``'s ``value``, made of plain values that JSON can hold; waits for it."""
        root = self._rank(root, "root")
        self._agree(f"share({root})")
        data = packed(value) if self.rank == root else torch.empty(0, dtype=torch.uint8)
        length = torch.tensor([data.numel()], dtype=torch.int64)
        self._handle(self.transport.broadcast(as_bytes(length), root), "share", lambda: None).wait()
        if self.rank != root:
            data = torch.empty(int(length), dtype=torch.uint8)
        self._handle(self.transport.broadcast(data, root), "share", lambda: None).wait()
        return unpacked(data)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank, made of plain values that JSON can hold; on every rank."""
        self._agree("gather")
        return self._gather(value)

    def twin(self) -> Communicator:
        """Return another communicator of the same ranks, for another thread; all ranks must call it together.

        Its operations have an order of their own, and it ends with this one.
        """
        return Communicator(
            self.transport.twin(), self._watch, patience_seconds=self._patience_seconds, checks=self._checks
        )

    # ---- the end

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks that this one has failed, so that they end, and close the transport."""
        if not isinstance(error, RankError):
            self._watch.report(f"rank {self.rank} failed: {str(error) or type(error).__name__}")
        self._has_left = True
        self._watch.close()
        self.transport.abort()

    def close(self) -> None:
        """Leave the job after all ranks have come here; a second call does nothing.

        Later operations are refused.

        Raises:
            RankError: a rank was lost on the way.
        """
        if not self._has_left:
            self.barrier()
            self._has_left = True
            self._watch.leave()
            self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.fail(error)

    # ---- details

    def _handle(self, pending: Pending, what: str, result: Callable[[], T]) -> Handle[T]:
        return Handle(self._wait, pending, what, result)

    def _wait(self, pending: Pending, what: str) -> None:
        started, until = time.monotonic(), None
        while not pending.done():
            waited = time.monotonic() - started
            if self._watch.knows_a_fault():
                # What a failed rank had sent before may be on its way; it often lets this one see the cause.
                until = until or waited + _LATE_SECONDS
                if waited > until:
                    self._watch.check()
            if waited > self._patience_seconds:
                raise self._watch.waited_too_long(what, waited)
            pending.rest(waited)
        try:
            pending.finish()
        except RuntimeError as error:
            raise self._watch.explained(error, what) from error

    def _all_to_all(
        self, send: Tensor, send_rows: Sequence[int], receive_rows: Sequence[int], received: Tensor
    ) -> Handle[Tensor]:
        width = row_bytes(send)
        self._begun("all_to_all")
        pending = self.transport.all_to_all(
            as_bytes(send),
            [rows * width for rows in send_rows],
            as_bytes(received),
            [rows * width for rows in receive_rows],
        )
        return self._handle(pending, "all_to_all", lambda: received)

    def _begun(self, what: str) -> None:
        """Note that an operation begins; ConfigError if this rank has left, so that none would answer."""
        if self._has_left and self.size > 1:
            raise ConfigError(
                f"this rank has left its job, and {what} needs the other ranks. Close the communicator (or "
                "end its with block) after all that ranks do together: a process joins one job"
            )
        self._watch.begun(what)

    def _gather(self, value: Any) -> list[Any]:
        data = packed(value)
        sizes = self.counts([data.numel()] * self.size)
        received = torch.empty(sum(sizes), dtype=torch.uint8)
        self._all_to_all(data.repeat(self.size), [data.numel()] * self.size, sizes, received).wait()
        return [unpacked(part) for part in torch.split(received, sizes)]

    def _agree(self, what: str, tensor: Tensor | None = None, shape: tuple[int, ...] = ()) -> None:
        """Note that a collective operation begins; with ``checks``, compare it with the other ranks'."""
        self._begun(what)
        if not self._checks:
            return
        mine = what if tensor is None else f"{what} of {tensor.dtype} {list(shape)}"
        for rank, theirs in enumerate(self._gather(mine)):
            if theirs != mine:
                raise ConfigError(
                    f"the ranks differ: rank {self.rank} calls {mine}, rank {rank} calls {theirs}. All ranks "
                    "must call the same, with the same shapes and dtypes."
                )

    def _rank(self, rank: int, name: str) -> int:
        return as_count(rank, name, most=self.size - 1)

    def _rows(self, rows: Sequence[int], name: str) -> list[int]:
        if len(rows) != self.size:
            raise ConfigError(f"{name} must have one number per rank ({self.size}); got {len(rows)}.")
        return [as_count(count, name) for count in rows]
