"""Threads: objects that several threads share, used at the same time, beside the same use by one thread.

Half of the cases share an object that keeps state between calls: an engine, a loader, tiers. The others call
a public callable of the API cases with the very same arguments from each thread.
"""

import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tests.fuzz import api
from tests.fuzz.case import Planned, Verdict, shorten
from tests.fuzz.isolate import limit_memory
from tests.fuzz.targets import TARGETS, Call
from tests.fuzz.targets_features import stored
from tests.fuzz.verdict import judge
from tests.fuzz.world import NODES, World, numbers_of, unequal

import graphbraid as gb
from graphbraid import features, loader

Work = Callable[[int], Any]
"""What item ``i`` gives: a function of ``i`` alone."""

_ITEMS = 24
_WRITES = ("save", "narrowing", "convert", "write", "folder", "synth", "reorder", "partition", "register")
"""Parts of the names of calls that write one path, or one registry, each time."""
_TRAINS = ("Trainer", "Trainer in full", "train.EarlyStopping")
"""Calls that train the model they are given, which is the user's race where threads share it."""


def _gradients(w: World, model: str, **options: Any) -> Work:
    torch.manual_seed(0)
    module = w.model(model)
    for part in module.modules():
        if isinstance(getattr(part, "p", None), float):
            part.p = 0.0
    module.dropout = 0.0
    engine, parameters = gb.compile(module, w.plain_graph, **options), list(module.parameters())

    def work(i: int) -> Any:
        out = engine()
        if i % 3 == 0:
            with torch.no_grad():
                return engine()
        return torch.autograd.grad((out * (i + 1)).sum(), parameters, allow_unused=True)

    return work


def _batches(made: Any) -> Work:
    return lambda i: [batch.n_id for batch in made.batches(i % 3)]


def _iterated(made: Any, read: Callable[[Any], Any]) -> Work:
    return lambda i: sorted(read(batch) for batch in made)


def _gathered(rows: Any) -> Work:
    return lambda i: rows.gather((torch.arange(20) * (i + 3)) % NODES)


def _trainer(w: World) -> Work:
    trainer = gb.Trainer(w.model(), w.plain_graph, fanouts=(3, 3), batch_size=8, threads=1, seed=0)
    return lambda i: trainer.predict([i, i + 1]) if i % 2 else trainer.evaluate("val")["accuracy"]


SHARED: dict[str, Callable[[World], Work]] = {
    **{
        f"engine of {name}": lambda w, name=name: _gradients(w, name)
        for name in ("gcn", "sage", "gat", "gin")
    },
    "engine of some nodes": lambda w: _gradients(w, "sage", nodes=torch.arange(20)),
    "NeighborLoader": lambda w: _batches(
        loader.NeighborLoader(w.graph, [3, 3], "train", batch_size=8, shuffle=True)
    ),
    "NeighborLoader with workers": lambda w: _batches(
        loader.NeighborLoader(w.graph, [3, 3], "train", batch_size=8, num_workers=2)
    ),
    "NeighborLoader of Data": lambda w: _iterated(
        loader.NeighborLoader(w.data, [3], batch_size=16, shuffle=False),
        lambda batch: batch.input_id.tolist(),
    ),
    "LinkNeighborLoader": lambda w: _iterated(
        loader.LinkNeighborLoader(w.data, [3], edge_label_index=w.edge_index, batch_size=99),
        lambda batch: batch.input_id.tolist(),
    ),
    "TieredFeatures": lambda w: _gathered(features.TieredFeatures.build(stored(w), host=300_000)),
    "RowCache": lambda w: _gathered(features.RowCache(features.DiskRows.behind(stored(w).x), 10)),
    "Graph": lambda w: lambda i: w.graph.symmetrized() if i % 2 else w.graph.with_self_loops(),
    "Trainer": _trainer,
}


def prepare(folder: Path) -> None:
    """Nothing is shared between cases."""


def plan(numbers: random.Random, number: int, folder: Path) -> Planned:
    threads = numbers.choice((2, 3, 4, 8))
    if number % 2:
        calls = sorted(
            name
            for name in TARGETS
            if name not in _TRAINS and not any(word in name.lower() for word in _WRITES)
        )
        name = calls[number // 2 % len(calls)]
        made: Callable[[], Work] = lambda: _call(TARGETS[name](World()))  # noqa: E731
        exact = TARGETS[name](World()).exact
    else:
        name = sorted(SHARED)[number // 2 % len(SHARED)]
        made, exact = lambda: SHARED[name](World()), True
    return Planned(f"{name} from {threads} threads", lambda: _compared(name, made, threads, exact))


def _call(call: Call) -> Work:
    return lambda i: api._result(replace(call), {})


def _in_folder(name: str, made: Callable[[], Work]) -> Work:
    """Made in a folder of its own: the same as in another one, since its random numbers begin anew."""
    Path(name).mkdir()
    os.chdir(name)
    torch.manual_seed(0)
    try:
        return made()
    finally:
        os.chdir("..")


def _compared(name: str, made: Callable[[], Work], threads: int, exact: bool) -> Verdict:
    limit_memory(
        lift=True
    )  # each thread has a stack and a heap of its own, a gigabyte of addresses for eight
    alone = _in_folder("alone", made)
    items = range(_ITEMS if name in SHARED else threads)
    wanted = [numbers_of(alone(i)) for i in items]
    try:
        together = _in_folder("together", made)
        with ThreadPoolExecutor(threads) as pool:
            found = [numbers_of(one) for one in pool.map(together, items)]
    except Exception as error:
        verdict = judge(error)
        return replace(verdict, status="raw") if verdict.status == "refused" and name in SHARED else verdict
    for i in items if exact else ():
        if text := unequal(wanted[i], found[i], rtol=1e-4):
            return Verdict(
                "differs", cause=f"{name}: threads change what it gives", detail=f"{i}: {shorten(text)}"
            )
    return Verdict("ok")
