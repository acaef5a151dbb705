"""Ranks that hold parts of a graph that none of them could hold, each within a memory limit and a link.

    python -m benchmarks.distributed.sharded --folder /data/sharded --nodes 12000000 --limit 2.5e9

Each rank is a host of its own: a network namespace whose link is shaped, and a memory cgroup with a limit
that also counts the pages of files that it has read. Needs root; where cgroups or namespaces cannot be made,
the benchmark says so and ends. The graph is generated, stored and partitioned once, in ``--folder``, by a
process within the same limit. Pages of files that the system still holds are dropped before ranks start, so
that each rank's cgroup counts what it reads.

1. One process trains on the whole store, without limits.
2. The ranks train on their parts, with exact validation and test. Losses must be those of the one process.
3. One rank is killed after the first epoch; as many as are left go on from the checkpoint, and must end at
   the same losses.

Printed are losses, scores, seconds an epoch, and the peak memory of each rank: what its cgroup counted, which
has pages of files that it could have dropped, and what its process held (the kernel's VmHWM).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common.contenders import ROOT, last_json_line, ours
from benchmarks.common.options import absolute_path, add_out_argument, parser_of
from benchmarks.common.rows import write_rows
from benchmarks.distributed.links import INTERFACE, Links
from benchmarks.distributed.links import why_not as why_no_links
from graphbraid import datasets, distributed
from graphbraid.datasets.synthetic import BlockModel, generate_in_parts
from graphbraid.distributed import ShardedGraph
from graphbraid.nn import GraphSAGE
from graphbraid.train import Callback, Trainer

CGROUPS = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
"""Where groups are made: in the first version of cgroups, and in the second."""
EQUAL = 1e-6
"""Largest relative difference of losses, which are sums in another order. It holds for plain SGD. AdamW
divides by the size of each gradient, so rounding grows more."""
WAIT_SECONDS = 3600.0
MADE_BY = ("folder", "nodes", "features", "degree", "seeds", "parts", "strategy")
"""Options that the store and the parts depend on."""


class Losses(Callback):
    """Notes the loss of each step."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step_end(self, _trainer: Trainer, record: Any) -> None:
        """Note a loss."""
        self.losses.append(record.loss)


def made(folder: Path, options: argparse.Namespace) -> tuple[Path, Path]:
    """Generate, store and partition the graph unless that was done; return the store and the parts."""
    store, parts = folder / f"store-{options.nodes}", folder / f"parts-{options.nodes}-{options.parts}"
    if not datasets.is_store(store):
        spec = BlockModel(
            num_nodes=options.nodes,
            num_edges=options.degree * options.nodes,
            num_classes=8,
            blocks_per_class=options.parts,
            num_features=options.features,
        )
        graph, rows = generate_in_parts(spec, "sharded")
        few = graph.splits["train"][: options.seeds]
        val, test = (graph.splits[name][: options.seeds // 4] for name in ("val", "test"))
        graph = graph.replace(splits={"train": few, "val": val, "test": test})
        datasets.save_store(graph, store, feature_parts=rows)
    if not distributed.is_partition(parts):
        graph = datasets.open_store(store)
        divided = distributed.partition(graph, options.parts, strategy=options.strategy)
        distributed.save_partition(graph, divided, parts, rows="parts")
    return store, parts


def one(data: Path, out: Path | None, epochs: int, *, resume: bool) -> None:
    """Train as one rank of those that were started, or alone; the first prints what it found."""
    with distributed.init() as comm:
        torch.manual_seed(0)
        graph = ShardedGraph.open(data) if distributed.is_partition(data) else datasets.open_store(data)
        model = GraphSAGE(graph.num_features, 64, graph.num_classes, num_layers=2, dropout=0.0)
        noted = Losses()
        trainer = Trainer(
            model,
            graph,
            callbacks=[noted],
            mode="sampled",
            layout="blocks",
            fanouts=(10, 5),
            batch_size=1024,
            epochs=epochs,
            optimizer="sgd",
            lr=0.1,
            eval_mode="exact",
            memory_budget_bytes=1 << 28,
            out_dir=out,
            resume=resume,
        )
        result = trainer.fit()
        peaks = comm.gather(_peak_bytes())
    if comm.rank == 0:
        found = {
            "losses": noted.losses,
            "val": [row["val_loss"] for row in result.history],
            "test": result.test,
            "epoch_seconds": [row["epoch_seconds"] for row in result.history],
            "evaluate_seconds": [row["evaluate_seconds"] for row in result.history],
            "process_bytes": peaks,
        }
        print(json.dumps(found))


def dropped(folder: Path) -> int:
    """Drop the pages of a folder's files from the system's cache; return the bytes of the files."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)  # pages that are not written yet would stay
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
    return sum(path.stat().st_size for path in files)


def _peak_bytes() -> int:
    """Return the most memory that this process held so far."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return 0 if found is None else 1024 * int(found[1])


class MemoryGroups:
    """Memory cgroups with a limit, one for each rank.

    Args:
        num_groups: number of groups.
        limit: bytes that the processes of each may take, with the pages of files that they read.
    """

    def __init__(self, num_groups: int, limit: int) -> None:
        root = next(path for path in CGROUPS if path.is_dir())
        self._is_first = root == CGROUPS[0]
        self.folders = [root / f"graphbraid-{os.getpid()}-{number}" for number in range(num_groups)]
        for folder in self.folders:
            folder.mkdir()
            name = "memory.limit_in_bytes" if self._is_first else "memory.max"
            (folder / name).write_text(str(limit), encoding="utf-8")

    def command(self, number: int, command: list[str]) -> list[str]:
        """Return the command that runs another one in a group."""
        enter = f'echo $$ > "{self.folders[number]}/cgroup.procs" && exec "$@"'
        return ["sh", "-c", enter, "sh", *command]

    def peaks(self) -> list[int]:
        """Return the most bytes that each group has counted."""
        name = "memory.max_usage_in_bytes" if self._is_first else "memory.peak"
        return [int((folder / name).read_text(encoding="utf-8")) for folder in self.folders]

    def __enter__(self) -> MemoryGroups:
        return self

    def __exit__(self, *error: object) -> None:
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()


def why_not() -> str:
    """Return why ranks cannot be limited here; empty if they can."""
    try:
        with MemoryGroups(1, 1 << 30) as groups:
            subprocess.run(groups.command(0, ["true"]), check=True, capture_output=True)
    except (OSError, StopIteration, subprocess.CalledProcessError) as error:
        return f"no memory cgroup can be made: {error}"
    return why_no_links()


@contextlib.contextmanager
def started(
    num_ranks: int, groups: MemoryGroups, rate: float, arguments: list[str]
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start ranks, each in a group and behind a link; all are ended at last."""
    cores = sorted(os.sched_getaffinity(0))
    with Links(num_ranks, rate) as links:
        network = {"MASTER_ADDR": links.address(0), "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": INTERFACE}
        processes = []
        for rank in range(num_ranks):
            environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"} | network
            environment |= {"RANK": str(rank), "WORLD_SIZE": str(num_ranks), "GRAPHBRAID_RANK_MEMORY": "0"}
            command = ours("distributed.sharded", *arguments)
            command = ["taskset", "-c", str(cores[rank % len(cores)]), *command]
            command = links.command(rank, groups.command(rank, command))
            output = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
            processes.append(subprocess.Popen(command, stdout=output, env=environment, cwd=ROOT, text=True))
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()
                process.communicate()


def said(processes: Sequence[subprocess.Popen[str]]) -> dict[str, Any]:
    """Wait for ranks, and return what the first one printed."""
    text, _ = processes[0].communicate(timeout=WAIT_SECONDS)
    codes = [process.wait(WAIT_SECONDS) for process in processes]
    if any(codes):
        raise SystemExit(f"{len(codes)} ranks ended with {codes}")
    found: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return found


def killed(processes: Sequence[subprocess.Popen[str]], out: Path) -> float:
    """Kill the last rank once the first epoch is saved; return the seconds until all others have ended."""
    until = time.monotonic() + WAIT_SECONDS
    while not _epochs_in(out):
        if time.monotonic() > until or any(process.poll() is not None for process in processes):
            raise SystemExit("the ranks ended before the first epoch was over")
        time.sleep(0.05)
    processes[-1].send_signal(signal.SIGKILL)
    begun = time.monotonic()
    for process in processes:
        process.wait(WAIT_SECONDS)
    return time.monotonic() - begun


def _epochs_in(out: Path) -> int:
    table, saved = out / "metrics.csv", out / "checkpoints" / "best.pt"
    if not (table.exists() and saved.exists()):
        return 0
    with table.open(encoding="utf-8", newline="") as file:
        return sum(1 for _ in csv.DictReader(file))


def check_equal(found: Sequence[float], expected: Sequence[float], what: str) -> float:
    """Return the largest relative difference of two lists of losses; end if it is not rounding."""
    if len(found) != len(expected):
        raise SystemExit(f"{what}: {len(found)} losses, and {len(expected)} were expected")
    most = max(abs(a / b - 1) for a, b in zip(found, expected, strict=True))
    if most > EQUAL:
        raise SystemExit(f"{what}: losses differ by {most:.1e}, more than rounding")
    return most


def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Train alone, on ranks, and with one rank killed; return a row of each."""
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    epochs, limit = str(options.epochs), int(options.limit)
    env = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    with MemoryGroups(1, limit) as groups:
        wanted = (f"--{name}={getattr(options, name)}" for name in MADE_BY)
        command = groups.command(0, ours("distributed.sharded", "--make", *wanted))
        store, parts = map(Path, last_json_line("making the parts", command, env))
        making = groups.peaks()
    sizes = {
        "num_nodes": options.nodes,
        "num_edges": datasets.open_store(store).num_edges,
        "features": options.features,
        "seeds": options.seeds,
        "graph_bytes": dropped(store),
        "limit_bytes": limit,
        "making_bytes": making[0],
    }
    command = ours("distributed.sharded", "--one", str(store), "--epochs", epochs)
    alone = last_json_line("one process", command, env)
    rows = {"one process, no limit": sizes | alone}
    out = folder / f"run-{os.getpid()}"
    with MemoryGroups(options.ranks, limit) as groups:
        arguments = ["--one", str(parts), "--epochs", epochs]
        dropped(parts)
        with started(options.ranks, groups, options.rate, arguments) as processes:
            found = said(processes)
        most = check_equal(found["losses"], alone["losses"], f"{options.ranks} ranks")
        check_equal([found["test"]["loss"]], [alone["test"]["loss"]], "test")
        rows[f"{options.ranks} ranks"] = (
            sizes | found | {"most_difference": most, "group_bytes": groups.peaks()}
        )
    with MemoryGroups(options.ranks, limit) as groups:
        dropped(parts)
        with started(options.ranks, groups, options.rate, [*arguments, "--run", str(out)]) as processes:
            noticed = killed(processes, out)
        fewer = [*arguments, "--run", str(out), "--resume"]
        dropped(parts)
        with started(options.ranks - 1, groups, options.rate, fewer) as processes:
            resumed = said(processes)
        rest = alone["losses"][-len(resumed["losses"]) :]
        most = check_equal(resumed["losses"], rest, f"{options.ranks - 1} ranks that went on")
        rows[f"{options.ranks - 1} ranks that went on"] = (
            sizes
            | resumed
            | {"most_difference": most, "noticed_seconds": noticed, "group_bytes": groups.peaks()}
        )
    return rows


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Print the table."""
    table = Table(
        "", "first and last loss", "test", "epoch, s", "GB of groups", "GB of processes", "noticed, s"
    )
    for name, row in rows.items():
        gigabytes = (
            " ".join(f"{count / 1e9:.2f}" for count in row.get(key, ()))
            for key in ("group_bytes", "process_bytes")
        )
        table.add_row(
            name,
            f"{row['losses'][0]:.6f} {row['losses'][-1]:.6f}",
            f"{row['test']['loss']:.6f} {row['test']['accuracy']:.4f}",
            f"{row['epoch_seconds'][-1]:.1f}",
            *gigabytes,
            f"{row['noticed_seconds']:.1f}" if "noticed_seconds" in row else "",
        )
    Console(width=160).print(table)


def main(arguments: list[str] | None = None) -> None:
    """Make the graph, and train on it in each way."""
    parser = parser_of(__doc__)
    parser.add_argument("--folder", type=absolute_path, help="where graph and parts are made")
    parser.add_argument("--nodes", type=int, default=12_000_000)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--degree", type=int, default=4)
    parser.add_argument(
        "--seeds", type=int, default=20_000, help="training nodes; a quarter each to validate and test"
    )
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--strategy", default="streaming")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--limit", type=float, default=2.5e9, help="bytes of each rank's cgroup")
    parser.add_argument("--rate", type=float, default=1e9, help="bits per second of each link")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    add_out_argument(parser)
    options = parser.parse_args(arguments)
    if options.one is not None:
        one(options.one, options.run, options.epochs, resume=options.resume)
        return
    if options.folder is None:
        parser.error("--folder is needed")
    if options.make:
        print(json.dumps([str(path) for path in made(options.folder, options)]))
        return
    if reason := why_not():
        raise SystemExit(f"ranks cannot be limited here: {reason}")
    rows = measure(options)
    show(rows)
    write_rows("distributed_sharded", rows, repeats=1, out=options.out)


if __name__ == "__main__":
    main()
