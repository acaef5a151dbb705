"""The kinds of files that graphbraid writes: how a sound one comes about, and what reads it."""

import dataclasses
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.fuzz.world import NODES, World

from graphbraid import collective, datasets
from graphbraid.collective.run import profiler
from graphbraid.estimates.machine import baseline_bytes
from graphbraid.fullgraph import rates
from graphbraid.graph import Graph
from graphbraid.train import Trainer

Reader = Callable[[Path], Any]


@dataclass(frozen=True)
class FileKind:
    """A folder with files of one kind."""

    write: Callable[[Path, World], None]
    readers: dict[str, Reader]
    """Each reads the folder and gives what it read, as numbers."""
    is_damaged: Callable[[Path], bool] = lambda path: True
    may_lack: tuple[str, ...] = ()
    """Names of files that a sound folder may be without: it then says something else."""
    independent: Reader | None = None
    """Another reader of files in which any change is other data; a text says why it cannot be read."""
    must_recover: bool = False
    """A cache: what is damaged is made anew."""


KINDS: dict[str, FileKind] = {}


def only(suffix: str) -> Callable[[Path], bool]:
    return lambda path: path.name.endswith(suffix)


# ---- npz


def npz_arrays(w: World) -> dict[str, Any]:
    splits = {f"{name}_idx": ids.numpy() for name, ids in w.splits.items()}
    return {"edge_index": w.edge_index.numpy(), "num_nodes": np.int64(NODES), "y": w.y.numpy(), **splits}


def _sparse_arrays(w: World) -> dict[str, Any]:
    s = w.sparse_x
    parts = {"x_data": s.values, "x_indices": s.indices, "x_indptr": s.indptr}
    return {name: part.numpy() for name, part in parts.items()} | {"x_shape": np.array([NODES, s.num_cols])}


_LOAD_NPZ = {"load": lambda f: datasets.load(f / "g.npz")}
KINDS["npz"] = FileKind(lambda f, w: np.savez(f / "g.npz", **npz_arrays(w), x=w.x.numpy()), _LOAD_NPZ)
KINDS["npz, compressed"] = FileKind(
    lambda f, w: np.savez_compressed(f / "g.npz", **npz_arrays(w), **_sparse_arrays(w)), _LOAD_NPZ
)


# ---- stores


def _write_store(f: Path, w: World) -> None:
    datasets.save_store(
        w.graph, f / "s", ids=datasets.NodeIds(np.arange(NODES) * 2), class_names=list("abcd")
    )


def _write_sparse_store(f: Path, w: World) -> None:
    ids = datasets.NodeIds(np.array([f"n{i}" for i in range(NODES)], dtype=object))
    datasets.save_store(w.plain_graph.replace(x=w.sparse_x), f / "s", ids=ids)


def _write_int8_store(f: Path, w: World) -> None:
    datasets.save_store(w.plain_graph, f / "s", features_dtype="int8", class_names=list("abcd"))


def _write_typed_store(f: Path, w: World) -> None:
    ids = datasets.NodeIds(np.array([f"n{i}" for i in range(NODES)], dtype=object))
    one, other = ("a", "to", "a"), ("a", "in", "b")
    graph = Graph.from_relations(
        {one: w.edge_index, other: torch.tensor([[0, 1, 2], [1, 1, 0]])},
        {"a": NODES, "b": 2},
        x={"a": w.x},
        y={"a": w.y},
        splits={"a": w.splits},
        node_time={"b": torch.tensor([3, 4])},
        edge_weight={other: torch.ones(3)},
        edge_splits={other: {"train": torch.tensor([0, 2])}},
    )
    datasets.save_store(graph, f / "s", names={"a": datasets.StoreNames(ids=ids)})


def _names(f: Path) -> Any:
    names = datasets.open_names(f / "s")
    kept = [names, *names.types.values()]
    return [[None if one.ids is None else one.ids.values, one.class_names] for one in kept]


_OPEN = {
    "open_store": lambda f: datasets.open_store(f / "s"),
    "open_store in memory": lambda f: datasets.open_store(f / "s", mmap=False),
    "open_names": _names,
}
KINDS["store"] = FileKind(_write_store, _OPEN)
KINDS["store, sparse"] = FileKind(_write_sparse_store, _OPEN)
KINDS["store, int8"] = FileKind(_write_int8_store, _OPEN)
KINDS["store, types"] = FileKind(_write_typed_store, _OPEN)


# ---- caches


def _in_cache(f: Path, call: Callable[[], Any]) -> Any:
    before = os.environ["GRAPHBRAID_CACHE"]
    os.environ["GRAPHBRAID_CACHE"] = str(f.absolute())
    try:
        return call()
    finally:
        os.environ["GRAPHBRAID_CACHE"] = before


def _embedded(f: Path) -> Any:
    graph = _in_cache(f, lambda: datasets.load_embedded("braid-10k"))
    return [graph.csc.indptr.clone(), graph.csc.indices.clone(), graph.x, graph.y]


KINDS["cached dataset"] = FileKind(
    lambda f, w: _embedded(f) and None, {"load_embedded": _embedded}, must_recover=True
)


def _profile() -> Any:
    d = collective.Duration
    times = collective.StageTimes(
        workers=2, cpu=d(seconds=0.01), dma=d(seconds=0.001), model=d(seconds=0.005)
    )
    return collective.Profile(times=(times,), host_batch_bytes=1000, device_batch_bytes=1000)


def _cached_profile(f: Path) -> Any:
    found = _in_cache(f, lambda: profiler.cached({"fuzz": 1}, _profile))
    return dataclasses.asdict(found)["times"], found.host_batch_bytes, found.device_batch_bytes


KINDS["cached profile"] = FileKind(
    lambda f, w: _cached_profile(f) and None, {"cached": _cached_profile}, must_recover=True
)


def keep_rates() -> None:
    """Put rates of no machine, and the memory of an empty run, into the cache: cases do not measure."""
    rates._KEPT.write(rates.rates_file(), _typical())
    for mode, task in (("sampled", "node"), ("full", "node"), ("sampled", "link")):
        baseline_bytes(mode, task=task)


def _typical() -> rates.MeasuredRates:
    return rates.MeasuredRates(rates=rates.Rates(), others=0.0, at=time.time())


def _rates(f: Path) -> Any:
    """What is measured anew is taken to be what was measured before."""
    rates._measured = lambda device: _typical()
    rates.measured_rates.cache_clear()
    return dataclasses.asdict(_in_cache(f, rates.machine_rates))


KINDS["cached rates"] = FileKind(
    lambda f, w: _rates(f) and None, {"machine_rates": _rates}, must_recover=True
)


# ---- plans


def _plan(f: Path) -> Any:
    return [dataclasses.asdict(collective.Plan.load(f / "plan.json"))]


def _saved_profile(f: Path) -> Any:
    found = collective.Profile.load(f / "profile.json")
    return dataclasses.asdict(found)["times"], found.host_batch_bytes


KINDS["plan"] = FileKind(
    lambda f, w: collective.make_plan(_profile(), 20).save(f / "plan.json"), {"Plan.load": _plan}
)
KINDS["profile"] = FileKind(
    lambda f, w: _profile().save(f / "profile.json"), {"Profile.load": _saved_profile}
)


# ---- runs


_QUICK = {
    "fanouts": (3, 3),
    "batch_size": 8,
    "threads": 1,
    "seed": 0,
    "optimizer": "adam",
    "scheduler": "plateau",
}


def _trainer(f: Path, w: World, epochs: int, **more: Any) -> Trainer:
    return Trainer(w.model(), w.graph, **_QUICK, epochs=epochs, out_dir=f / "run", **more)


def _resume(f: Path) -> Any:
    trainer = _trainer(f, World(), 3, resume=True)
    result = trainer.fit()
    return [list(trainer.model.parameters()), result.test, [row["train_loss"] for row in result.history]]


def _weights(f: Path) -> Any:
    trainer = Trainer(World().model(), World().graph, **_QUICK)
    trainer.load_weights(f / "run" / "checkpoints" / "best.pt")
    return trainer.predict(torch.arange(9))


def _full(f: Path, w: World, epochs: int, **more: Any) -> Trainer:
    options = {"mode": "full", "optimizer": "sgd", "threads": 1, "seed": 0}
    return Trainer(w.model("gin"), w.graph, **options, epochs=epochs, out_dir=f / "run", **more)


def _full_resume(f: Path) -> Any:
    trainer = _full(f, World(), 3, resume=True)
    result = trainer.fit()
    return [list(trainer.model.parameters()), result.test]


KINDS["checkpoint"] = FileKind(
    lambda f, w: _trainer(f, w, 2).fit() and None, {"resume": _resume}, is_damaged=only("last.pt")
)
KINDS["checkpoint, best"] = FileKind(
    lambda f, w: _trainer(f, w, 2).fit() and None, {"load_weights": _weights}, is_damaged=only("best.pt")
)
KINDS["checkpoint, full"] = FileKind(
    lambda f, w: _full(f, w, 2).fit() and None,
    {"resume": _full_resume},
    is_damaged=only("last.pt"),
)
