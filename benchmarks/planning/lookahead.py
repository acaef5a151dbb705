"""Does look-ahead pay? Rows that batches share, what leaving them out saves, what finding them costs.

    python -m benchmarks.planning.lookahead --graphs FOLDER [--names products-lite rmat-1m ...]

For each graph and fanouts, on one thread as a worker has:

- the share of a batch's rows that are also in one of the 1, 2, 4, 8 batches before it, and the share that a
  ring of as many batches' rows gives (``graphbraid.collective.run.lookahead``);
- seconds of the CPU's batching without and with (measured, in turn on the same batches), and those of
  looking up that are in the latter;
- bytes of the copy, and its seconds on links of 12, 25 and 50 GB/s, computed: bytes over rate; with
  look-ahead, what the device reads and writes to put the batch together comes on top, at 600 GB/s. That rate
  is assumed; no device was there to measure it;
- the planner's epoch without and with, for 4 and 16 workers that sample as fast as the measured one, where
  the CPU prepares all batches and training takes 2 ms.

Then the executor runs steps with one worker, real sampling and gathering and an emulated link, without and
with, in turn: once with their batches compared to the bit, then timed. In the timed runs nothing is put
together, since here that would be the CPU's work.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.common.emulated import EmulatedAccelerator
from benchmarks.common.options import add_graphs_argument, add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.graphs.folder import load
from graphbraid.collective.plan.scheduler import fixed_plan
from graphbraid.collective.plan.times import Duration, Profile, StageTimes
from graphbraid.collective.run.executor import Executor
from graphbraid.collective.run.lookahead import KEPT_BATCHES, Directory, RowBuffer
from graphbraid.collective.run.operators import Operators
from graphbraid.graph import Graph
from graphbraid.loader import NeighborLoader
from graphbraid.sampling.minibatch.mini_batch import MiniBatch

WINDOWS = (1, 2, 4, 8)
LINKS = (12, 25, 50)
WORKERS = (4, 16)
NAMES = ("plain", "ahead")
MODEL_SECONDS = 0.002
DEVICE_RATE = 600e9
"""Bytes a second that a device reads and writes; assumed."""
CHECKED_STEPS = 12


class Overlap:
    """How many of each batch's rows were in one of the batches just before it."""

    def __init__(self, num_nodes: int) -> None:
        self._latest = torch.full((num_nodes,), -(1 << 30), dtype=torch.int64)
        self._step = 0
        self.shares: dict[int, list[float]] = {window: [] for window in WINDOWS}

    def add(self, n_id: Tensor) -> None:
        """The next batch."""
        age = self._step - self._latest[n_id]
        if self._step >= max(WINDOWS):
            for window, shares in self.shares.items():
                shares.append(float((age <= window).float().mean()))
        self._latest[n_id] = self._step
        self._step += 1


class Rings:
    """What rings of several sizes leave out."""

    def __init__(self, num_nodes: int, num_rows: int) -> None:
        self._directories = {kept: Directory(num_nodes, kept * num_rows) for kept in WINDOWS}
        self.shares: dict[int, list[float]] = {kept: [] for kept in WINDOWS}

    def add(self, n_id: Tensor, *, is_warm: bool) -> None:
        """The next batch."""
        for kept, directory in self._directories.items():
            if n_id.numel() <= directory.capacity:
                missing, _ = directory.look_up(n_id)
                if is_warm:
                    self.shares[kept].append(1.0 - missing.numel() / n_id.numel())


def timed(seconds: list[float], run: Callable[[], MiniBatch]) -> MiniBatch:
    """What ``run`` gives; its seconds are kept."""
    started = time.perf_counter()
    batch = run()
    seconds.append(time.perf_counter() - started)
    return batch


def measure(loader: NeighborLoader, steps: int) -> dict[str, Any]:
    """Shares and costs on one graph."""
    graph, warm_up = loader.graph, max(WINDOWS)
    operators = {name: operators_of(loader, name) for name in NAMES}
    seconds: dict[str, list[float]] = {name: [] for name in (*NAMES, "look_up")}
    overlap, rings, directory = Overlap(graph.num_nodes), None, None
    rows, left, sent = list[int](), list[int](), dict[str, list[int]]({name: [] for name in NAMES})
    for step in range(steps):
        for name in NAMES if step % 2 else reversed(NAMES):  # what comes second finds warm caches
            batch = timed(seconds[name], lambda ops=operators[name]: prepared(ops, step))  # type: ignore[misc]  # noqa: B023
            sent[name].append(batch.travelling_bytes)
        n_id = batch.n_id
        rings = rings or Rings(graph.num_nodes, n_id.numel())
        directory = directory or Directory(graph.num_nodes, KEPT_BATCHES * n_id.numel())
        overlap.add(n_id)
        rings.add(n_id, is_warm=step >= warm_up)
        started = time.perf_counter()
        missing, _ = directory.look_up(n_id)
        seconds["look_up"].append(time.perf_counter() - started)
        rows.append(n_id.numel())
        left.append(missing.numel())
    assert rings is not None
    assert isinstance(graph.x, Tensor)
    row_bytes = graph.x[:1].nbytes
    num_rows, num_left = statistics.mean(rows[warm_up:]), statistics.mean(left[warm_up:])
    return {
        "steps": steps,
        "rows": num_rows,
        "row_bytes": row_bytes,
        "share_of_earlier_batches": {w: statistics.mean(s) for w, s in overlap.shares.items()},
        "share_of_ring": {k: statistics.mean(s) for k, s in rings.shares.items() if s},
        "cpu_seconds": {name: statistics.median(found[warm_up:]) for name, found in seconds.items()},
        "copy_bytes": {name: statistics.mean(found[warm_up:]) for name, found in sent.items()},
        "device_bytes": 2 * row_bytes * (num_rows + num_left),
    }


def operators_of(loader: NeighborLoader, name: str) -> Operators:
    """The operators of one worker, with look-ahead or without."""
    return Operators.of(dataclasses.replace(loader.context(1), lookahead=name == "ahead"))


def prepared(operators: Operators, step: int) -> MiniBatch:
    """A step's batch, looked up where there is look-ahead."""
    operators.claim(0, step)
    return operators.prepare(0, step)


def predictions(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The planner's epochs with and without."""
    rows = []
    for link in LINKS:
        dma = {name: sent / (1e9 * link) for name, sent in found["copy_bytes"].items()}
        dma["ahead"] += found["device_bytes"] / DEVICE_RATE
        for workers in WORKERS:
            epochs = {}
            for name in NAMES:
                times = StageTimes(
                    workers=workers,
                    cpu=Duration(seconds=found["cpu_seconds"][name]),
                    dma=Duration(seconds=dma[name]),
                    model=Duration(seconds=MODEL_SECONDS),
                    lookahead=name == "ahead",
                )
                epochs[name] = fixed_plan(Profile(times=(times,)), 200, 1.0).predicted_seconds
            rows.append(
                {
                    "link_gb_per_s": link,
                    "workers": workers,
                    "dma_seconds": dma,
                    "epoch_seconds": epochs,
                    "speedup": epochs["plain"] / epochs["ahead"],
                }
            )
    return rows


class NothingPutTogether(RowBuffer):
    """Keeps the order of the ring, not its rows: that is the device's work."""

    def complete(self, moved: MiniBatch) -> None:
        """Count the rows."""
        if moved.row_part is not None:
            self._next = moved.row_part.first + len(moved.row_part.rows)


def run_epochs(loader: NeighborLoader, steps: int, link: float, repeats: int) -> dict[str, Any]:
    """Seconds of the executor's steps, in turn."""
    digests = {run_executor(loader, name, CHECKED_STEPS)[1] for name in NAMES}
    if len(digests) != 1:
        raise SystemExit("batches with look-ahead are not those without")
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    with patch("graphbraid.collective.run.operators.RowBuffer", NothingPutTogether):
        for _ in range(repeats):
            for name, runs in found.items():
                runs.append(run_executor(loader, name, steps, digest=False)[0])
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    return {
        "link_gb_per_s": link,
        "steps": steps,
        "seconds": found,
        "speedup": medians["plain"] / medians["ahead"],
    }


def run_executor(loader: NeighborLoader, name: str, steps: int, *, digest: bool = True) -> tuple[float, str]:
    """Seconds of some steps, and what their features were."""
    any_time = Duration(seconds=MODEL_SECONDS)
    times = StageTimes(workers=1, cpu=any_time, dma=any_time, model=any_time)
    plan = fixed_plan(Profile(times=(times,)), len(loader), 1.0)
    found = hashlib.sha256()
    executor = Executor(operators_of(loader, name), plan, num_steps=len(loader), stop=min(steps, len(loader)))
    with executor:
        for batch in executor:
            if digest:
                found.update(batch.x.numpy().tobytes())  # type: ignore[union-attr]
    return max(op.end for op in executor.ops), found.hexdigest()


def make_loader(graph: Graph, fanouts: list[int], options: argparse.Namespace) -> NeighborLoader:
    """A loader on an accelerator whose link is emulated."""
    zero = Duration(seconds=0.0)
    device = EmulatedAccelerator(
        StageTimes(workers=1, cpu=zero, dma=zero, model=Duration(seconds=MODEL_SECONDS)),
        emulate_cpu=False,
        link_bytes_per_second=1e9 * options.link,
    )
    return NeighborLoader(
        graph,
        fanouts,
        "train",
        batch_size=options.batch_size,
        shuffle=True,
        return_edge_id=False,
        seed=0,
        device=device,
    )


def show(name: str, fanouts: list[int], row: dict[str, Any]) -> None:
    def percent(shares: dict[int, float]) -> str:
        return " ".join(f"{100 * share:.0f}" for share in shares.values())

    ms = {stage: f"{1e3 * seconds:.1f}" for stage, seconds in row["cpu_seconds"].items()}
    print(
        f"{name} {fanouts}: {row['rows']:,.0f} rows of {row['row_bytes']} bytes; % in the last 1 2 4 8 "
        f"batches: {percent(row['share_of_earlier_batches'])}; in rings of them: "
        f"{percent(row['share_of_ring'])}; T_cpu {ms['plain']} -> {ms['ahead']} ms, of which "
        f"looking up {ms['look_up']}"
    )
    for p in row["predicted"]:
        dma = {n: f"{1e3 * s:.2f}" for n, s in p["dma_seconds"].items()}
        print(
            f"  {p['link_gb_per_s']} GB/s, {p['workers']} workers: T_dma {dma['plain']} -> {dma['ahead']} "
            f"ms, predicted epoch {p['speedup']:.2f} times as fast"
        )
    if "executed" in row:
        ran = row["executed"]
        print(f"  run with one worker and {ran['link_gb_per_s']} GB/s: {ran['speedup']:.2f} times as fast")


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Measure every graph, then write."""
    parser = parser_of(__doc__)
    add_graphs_argument(parser)
    parser.add_argument("--names", nargs="+", default=["products-lite", "reddit-lite", "rmat-1m"])
    parser.add_argument("--fanouts", type=int, nargs="+", action="append")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=40, help="batches, at most")
    parser.add_argument("--repeats", type=int, default=3, help="of the executor's run; 0: none")
    parser.add_argument("--link", type=float, default=12.0, help="GB/s of the executor's run")
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in options.names:
        graph = load(options.graphs / name)
        for fanouts in options.fanouts or [[15, 10, 5], [10, 10]]:
            with make_loader(graph, fanouts, options) as loader:
                steps = min(len(loader), options.steps)
                row = {"graph": name, "fanouts": fanouts, **measure(loader, steps)}
                row["predicted"] = predictions(row)
                if options.repeats:
                    row["executed"] = run_epochs(loader, steps, options.link, options.repeats)
            rows.append(row)
            show(name, fanouts, row)
    config = {name: getattr(options, name) for name in ("batch_size", "steps", "repeats")}
    config |= {"kept_batches": KEPT_BATCHES, "model_seconds": MODEL_SECONDS, "device_rate": DEVICE_RATE}
    named = {
        f"{row['graph']}, {'-'.join(map(str, row['fanouts']))}": {"config": config, **row} for row in rows
    }
    print("wrote", write_rows("lookahead", named, repeats=options.repeats, out=options.out))
    return rows


if __name__ == "__main__":
    main()
