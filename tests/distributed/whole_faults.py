"""What goes wrong on ranks that train the whole graph; each function is called with their communicator."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.distributed.training import At, graph_of
from tests.distributed.whole_training import make

from graphbraid.errors import RankError
from graphbraid.fullgraph.step.operations.row_exchange import RowExchange
from graphbraid.train import Trainer

STEP = 3
"""The step after which something goes wrong; each epoch is one."""


def faulty(comm, what: str, folder: str) -> None:
    """Train, with something going wrong on the last rank; the others note how long they took to say so."""
    root, is_odd = Path(folder), comm.rank == comm.size - 1

    def note(trainer: object) -> None:
        (root / "began").write_text(str(time.time()))

    acts: dict[str, Callable[[object], object]] = {
        "killed": lambda _: os.kill(os.getpid(), signal.SIGKILL),
        "killed while rows travel": lambda _: _end_in_travel(),
    }
    graph = graph_of()
    calls = [At(comm, comm.size - 1, STEP, act) for act in (note, acts[what])]
    options = {"mode": "full", "epochs": 6, "lr": 0.01, "out_dir": root / "run" if comm.rank == 0 else None}
    trainer = Trainer(make("gcn", graph, dropout=0.5), graph, callbacks=calls, **options)
    try:
        trainer.fit()
    except RankError:
        if not is_odd:
            took = time.time() - float((root / "began").read_text())
            (root / f"took-{comm.rank}").write_text(str(took))
        raise


def _end_in_travel() -> None:
    """End this process at its next exchange, once the others wait for its rows."""

    def begin(*_: object) -> None:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)

    RowExchange.begin = begin  # type: ignore[method-assign]


def resumed(comm, folder: str) -> int:
    """Go on with a run that a fault has ended; the number of its epochs."""
    graph = graph_of()
    own = Path(folder) / "run" if comm.rank == 0 else None
    options = {"mode": "full", "epochs": 6, "lr": 0.01, "out_dir": own, "resume": comm.rank == 0}
    return len(Trainer(make("gcn", graph, dropout=0.5), graph, **options).fit().history)
