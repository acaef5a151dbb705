"""Ranks as threads of one process, which cost a test next to nothing; transports need processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from tests.extras import PATIENCE
from torch import Tensor

from graphbraid.distributed import Communicator


class _Board:
    """What the ranks have brought to each collective operation, by its number."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.brought: dict[int, dict[int, Any]] = {}
        self.failed = False
        self.twins: dict[int, _Board] = {}
        self.changed = threading.Condition()

    def bring(self, number: int, rank: int, what: Any) -> dict[int, Any]:
        with self.changed:
            there = self.brought.setdefault(number, {})
            there[rank] = what
            if len(there) == self.size:
                self.changed.notify_all()
        return there

    def fail(self) -> None:
        with self.changed:
            self.failed = True
            self.changed.notify_all()
        for twin in self.twins.values():
            twin.fail()

    def twin(self, number: int) -> _Board:
        with self.changed:
            return self.twins.setdefault(number, _Board(self.size))


class _Pending:
    def __init__(
        self, board: _Board, there: dict[int, Any], finish: Callable[[dict[int, Any]], None]
    ) -> None:
        self._board, self._there, self._finish = board, there, finish

    def done(self) -> bool:
        return self._board.failed or len(self._there) == self._board.size

    def rest(self, waited_seconds: float) -> None:
        # Woken, where ranks that ask again and again would keep the others from computing.
        with self._board.changed:
            self._board.changed.wait_for(self.done, timeout=1.0)

    def finish(self) -> None:
        if len(self._there) < self._board.size:
            raise RuntimeError("another rank has failed")
        self._finish(self._there)


class ThreadTransport:
    """A transport between threads; collective operations only."""

    name = "threads"

    def __init__(self, board: _Board, rank: int) -> None:
        self._board, self.rank, self.size = board, rank, board.size
        self._number = self._num_twins = 0

    def twin(self) -> ThreadTransport:
        self._num_twins += 1
        return ThreadTransport(self._board.twin(self._num_twins), self.rank)

    def _begin(self, what: Any, finish: Callable[[dict[int, Any]], None]) -> _Pending:
        self._number += 1
        return _Pending(self._board, self._board.bring(self._number, self.rank, what), finish)

    def all_reduce(self, tensor: Tensor, op: str) -> _Pending:
        join = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}[op]

        def finish(there: dict[int, Any]) -> None:
            total = there[0].clone()
            for rank in range(1, self.size):
                total = join(total, there[rank])
            tensor.copy_(total)

        return self._begin(tensor.clone(), finish)

    def all_to_all(self, send: Tensor, send_bytes: Any, receive: Tensor, receive_bytes: Any) -> _Pending:
        parts = torch.split(send.clone(), list(send_bytes))

        def finish(there: dict[int, Any]) -> None:
            parts = [there[rank][self.rank] for rank in range(self.size)]
            assert [part.numel() for part in parts] == list(receive_bytes)
            receive.copy_(torch.cat(parts))

        return self._begin(parts, finish)

    def broadcast(self, data: Tensor, root: int) -> _Pending:
        return self._begin(data.clone(), lambda there: data.copy_(there[root]))

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


def run_threads(size: int, function: Callable[[Communicator], Any]) -> list[Any]:
    """Return what ``function(comm)`` returns on each rank; raise the first error of one."""
    board, found, errors = _Board(size), [None] * size, list[BaseException]()

    def run(rank: int) -> None:
        try:
            found[rank] = function(Communicator(ThreadTransport(board, rank), patience_seconds=PATIENCE))
        except BaseException as error:  # reported below
            errors.append(error)
            board.fail()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    if errors:
        raise errors[0]
    return found


def noted_calls(monkeypatch: Any) -> tuple[dict[int, list[str]], Callable[[type, str, str], None]]:
    """Note calls as they come: what each thread did, and ``note(owner, method, what)``, which begins it."""
    seen: dict[int, list[str]] = {}

    def note(owner: type, method: str, what: str) -> None:
        call = getattr(owner, method)

        def noted(*arguments: Any, **options: Any) -> Any:
            seen.setdefault(threading.get_ident(), []).append(what)
            return call(*arguments, **options)

        monkeypatch.setattr(owner, method, noted)

    return seen, note
