"""Sampled training on a GPU by where the feature rows are: copies from the CPU, zero-copy, and hot tiers.

    python -m benchmarks.gpu.tiers [--nodes N --edges E --features F] [--hot 0.05 0.1 0.25 0.5]
    python -m benchmarks.gpu.tiers --smoke      on the emulated accelerator, with a tiny graph

Every contender trains the same steps of an epoch from the same parameters, in turn; their losses must agree:

- ``copies``: the CPU samples and gathers, and the batches are copied to the device;
- ``zero-copy``: the device samples and reads every row page-locked on the host;
- ``hot S``: the same with a share S of the rows on the device, those that these steps read most;
- ``copies, hot S``: as ``copies``, which leave hot rows out.

Topology and labels are on the device. Beside each epoch's seconds stand the bytes of feature rows that
travel, counted from the batches, with their rate, how busy link and GPU were, and the load of the CPU, as in
Figures 8 and 10 of Min et al., "Graph Neural Network Training with Data Tiering". Gathers alone come first:
rows drawn evenly, all of them in device memory, none, or a share, checked and timed beside the limits of
memory and link. Features are random: what is learned does not matter here.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from benchmarks.common.options import parser_of
from benchmarks.common.rows import write_rows
from benchmarks.gpu.card import Limits, beside, goals_of, share_of, timed
from benchmarks.gpu.collective import (
    CHECKED_STEPS,
    DTYPES,
    Machine,
    Training,
    begin,
    make_loader,
    problem_of,
    run,
)
from graphbraid import features
from graphbraid.collective import Plan, Profile, fixed_plan
from graphbraid.collective.hardware.device_resident import part_bytes_of
from graphbraid.collective.plan.times import Duration, StageTimes
from graphbraid.collective.run.stages import Context
from graphbraid.graph import Graph
from graphbraid.loader import NeighborLoader
from graphbraid.ops.gather import Tier, TierTable, gather_tiered

GOAL = 2.0
"""Times as fast as zero-copy with a quarter of the rows hot, where the link limits."""
_ANY = Duration(seconds=0.001)


class Way(NamedTuple):
    """Who prepares the batches, and what share of the rows is hot."""

    by_cpu: bool
    hot: float


def ways_of(shares: list[float]) -> dict[str, Way]:
    """Every contender by name."""
    ways = {"copies": Way(by_cpu=True, hot=0.0), "zero-copy": Way(by_cpu=False, hot=0.0)}
    for share in shares:
        ways[f"hot {share:g}"] = Way(by_cpu=False, hot=share)
        ways[f"copies, hot {share:g}"] = Way(by_cpu=True, hot=share)
    return ways


def contender_of(
    graph: Graph, way: Way, reads: torch.Tensor, machine: Machine, options: argparse.Namespace
) -> tuple[NeighborLoader, Context, Plan]:
    """A loader, whose placed rows go with it, and what runs its batches."""
    tiers = None
    if way.hot:
        assert isinstance(graph.x, torch.Tensor)
        budget = 4 * graph.num_nodes + int(way.hot * graph.num_nodes) * graph.x[:1].nbytes
        tiers = features.TieredFeatures.build(graph, hot=budget, score=reads)
    loader, workers = make_loader(graph, machine, options, tiers=tiers), machine.num_cores
    context = loader.context(workers)
    sizes = part_bytes_of(context)
    room = sizes["topology"] + sizes["labels"] + 8 * graph.num_nodes  # no features but those that are hot
    times = StageTimes(workers=workers, cpu=_ANY, dma=_ANY, uva=_ANY, gpu=None, model=_ANY)
    plan = fixed_plan(Profile(times=(times,)), context.schedule.num_steps, 1.0 if way.by_cpu else 0.0)
    return loader, dataclasses.replace(context, hot_bytes=room), plan


def reads_of(graph: Graph, machine: Machine, options: argparse.Namespace) -> torch.Tensor:
    """How often the steps that are trained read each row."""
    with make_loader(graph, machine, options) as loader:
        context = loader.context(1)
    batches = features.batch_reads(
        graph, context.sampler, context.schedule, steps=range(min(options.steps, context.schedule.num_steps))
    )
    reads = torch.zeros(graph.num_nodes, dtype=torch.int64)
    for n_id in batches:
        reads += torch.bincount(n_id, minlength=graph.num_nodes)
    return reads


def gathers(options: argparse.Namespace, place: torch.device, limits: Limits) -> dict[str, dict[str, Any]]:
    """Rates of gathers by the share of rows in device memory, each of rows that were checked."""
    num_rows, num_ids = (1_000, 500) if options.smoke else (1 << 20, 1 << 18)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(num_rows, options.features, generator=draw).to(DTYPES[options.dtype])
    host = x.pin_memory() if place.type == "cuda" else x
    chosen = torch.randint(num_rows, (num_ids,), generator=draw)
    ids, found = chosen.to(place), {}
    for share in sorted({0.0, *options.hot, 1.0}):
        num_hot = round(share * num_rows)
        tiers = [Tier(parts=(x[:num_hot].to(place),)), Tier(parts=(host[num_hot:],))]
        table = TierTable(tiers, device=place)
        is_equal = torch.equal(gather_tiered(table, ids).cpu(), x[chosen])
        row: dict[str, Any] = {"hot": share, "problem": "" if is_equal else "other rows than asked for"}
        if is_equal:
            seconds = timed(functools.partial(gather_tiered, table, ids, trusted=True), 10, place)
            cold = int((chosen >= num_hot).sum()) * x[:1].nbytes
            memory = 2 * num_ids * x[:1].nbytes - cold  # what is written, and the hot rows that are read
            row |= {"seconds": seconds, "link": cold / seconds, "hbm": memory / seconds}
            rates = [f"{key} {beside(row[key], key, limits)}" for key in ("hbm", "link") if row[key]]
            print(f"  gather, {share:4.0%} hot {1e3 * seconds:9.3f} ms: {'; '.join(rates)}", flush=True)
        found[f"{share:g}"] = row
    return found


def compare(
    graph: Graph, machine: Machine, options: argparse.Namespace, ends: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every contender's repeats, bytes and utilisation, by name, as long as there is time."""
    reads, training = (
        reads_of(graph, machine, options),
        Training(graph, options.hidden, len(options.fanouts), machine.place),
    )
    assert isinstance(graph.x, torch.Tensor)
    row_bytes, num_reads = graph.x[:1].nbytes, int(reads.sum())
    losses: dict[str, list[float]] = {}
    whole: dict[str, list[float]] = {}
    for name, way in ways_of(options.hot).items():
        if time.perf_counter() > ends:
            print(f"left out for want of time: {name}")
            continue
        loader, context, plan = contender_of(graph, way, reads, machine, options)
        num_steps = context.schedule.num_steps
        steps = min(options.steps, num_steps)
        train = functools.partial(run, context, plan, training, num_steps)
        # Not timed: this also compiles kernels and copies hot rows.
        losses["cpu" if name == "copies" else name] = train(min(CHECKED_STEPS, steps)).losses
        problem = problem_of(losses, exactly=options.smoke)
        epochs = [] if problem else [train(steps) for _ in range(options.repeats)]
        if epochs:
            whole["cpu" if name == "copies" else name] = epochs[-1].losses
            problem = problem_of(whole, exactly=options.smoke)
        loader.close()
        [served] = features.coverage(reads, reads, (way.hot,))
        link_bytes = (1 - served) * num_reads * row_bytes
        row = {
            "hot": way.hot,
            "seconds": [epoch.seconds for epoch in epochs],
            "link_bytes": link_bytes,
            "busy": epochs[-1].busy if epochs else {},
            "problem": problem,
        }
        if epochs:
            row["link"] = link_bytes / statistics.median(row["seconds"])
        yield name, row


def show(name: str, found: dict[str, Any], limits: Limits) -> None:
    """A contender's line."""
    if found["problem"]:
        print(f"  {name:16} {found['problem']}", flush=True)
        return
    busy = ", ".join(f"{part} {share:4.0%}" for part, share in found["busy"].items())
    print(
        f"  {name:16} {statistics.median(found['seconds']):8.3f} s  {found['link_bytes'] / 1e6:10,.1f} MB of "
        f"rows, {beside(found['link'], 'link', limits)};  busy: {busy}",
        flush=True,
    )


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    parser.set_defaults(nodes=4_000_000, edges=60_000_000, features=256)
    parser.add_argument("--hot", type=float, nargs="+", default=[0.05, 0.1, 0.25, 0.5], help="shares of rows")
    started = time.perf_counter()
    options, machine, graph, setting = begin(parser, argv)
    limits, file = setting["gpu"]["limits"], f"gpu_tiers{'_smoke' * options.smoke}"
    row: dict[str, Any] = {**setting, "gathers": gathers(options, machine.place, limits), "ways": {}}
    for name, found in compare(graph, machine, options, started + options.budget):
        show(name, found, limits)
        row["ways"][name] = found
        write_rows(file, {"tiers": row}, repeats=options.repeats, out=options.out)
    seconds = {n: statistics.median(one["seconds"]) for n, one in row["ways"].items() if one["seconds"]}
    row["speedup_over_zero_copy"] = {
        name: seconds["zero-copy"] / own for name, own in seconds.items() if "zero-copy" in seconds
    }
    for name, speedup in row["speedup_over_zero_copy"].items():
        print(f"{name}: {speedup:.2f} times as fast as zero-copy")
    alone = row["gathers"]
    shares = {
        key: share_of(alone[end][key], key, limits) if key in alone[end] else None
        for end, key in (("1", "hbm"), ("0", "link"))
    }
    row["goals"] = goals_of(
        ("25 % hot over zero-copy", row["speedup_over_zero_copy"].get("hot 0.25"), GOAL, True),
        ("gather's share of the memory's rate", shares["hbm"], 0.8, True),
        ("zero-copy gather's share of the link's rate", shares["link"], 0.8, True),
    )
    path = write_rows(file, {"tiers": row}, repeats=options.repeats, out=options.out)
    print("wrote", path)
    return row


if __name__ == "__main__":
    made = main()
    sys.exit(any(one["problem"] for part in ("ways", "gathers") for one in made[part].values()))
