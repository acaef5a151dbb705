"""Progress of long work: library code says how much is done; the command line shows it and the time left.

Nothing is shown without a listener: in Python, in other threads, with ``--json`` or without a terminal.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Advance = Callable[[float], None]
"""Takes how much was done since the last call."""
Listener = Callable[[str, float | None], AbstractContextManager[Advance]]
"""Takes a stage's name and how much is to be done in it; None if that is not known."""
_listener: ContextVar[Listener | None] = ContextVar("progress", default=None)


def stage(name: str, total: float | None = None) -> AbstractContextManager[Advance]:
    """Begin a stage of work, which ends with its block.

    Args:
        name: name of the work, such as ``writing x``.
        total: how much is to be done, in any unit. If None, that is not known.
    """
    listener = _listener.get()
    return nullcontext(_unheard) if listener is None else listener(name, total)


def counted(items: Iterable[T], name: str, total: float | None) -> Iterator[T]:
    """Yield items of a stage; an item is done when the next one is asked for."""
    with stage(name, total) as advance:
        for item in items:
            yield item
            advance(1)


@contextmanager
def listening(listener: Listener | None) -> Generator[None]:
    """Give the stages of a block to a listener, or to none."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def _unheard(amount: float) -> None:
    """Ignore the progress."""
