"""What ranks with hot rows on emulated devices train; each function is called with their communicator."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from tests.collective.cases import stage_times
from tests.distributed.training import BASE, fitted, graph_of, make

from graphbraid.collective import Profile, fixed_plan
from graphbraid.collective.hardware.emulated import EmulatedAccelerator
from graphbraid.sampling.shared_hot import SharedHotRows
from graphbraid.train import Trainer

INSTANT = stage_times(0.0005, 0.0005, 0.0005, 0.0005, workers=2)
ROW, MAP = 4 * 16, 4 * 600
"""Bytes of a row of the graph, and of the map of its nodes."""
SHM = Path("/dev/shm")


def device(**options) -> EmulatedAccelerator:
    rates = {"peer_bytes_per_second": 40e9, "link_bytes_per_second": 10e9}
    return EmulatedAccelerator(INSTANT, emulate_cpu=False, **(rates | options))


def plan_file(folder: str, share: float) -> str:
    """A plan in which the CPU prepares a share of the batches."""
    path = Path(folder) / f"plan-{share}-{os.getpid()}.json"
    fixed_plan(Profile(times=(INSTANT,)), 7, share).save(path)
    return str(path)


def ours_in_memory() -> list[str]:
    """Names of shared memory that belongs to processes of this user and looks like torch's."""
    return sorted(path.name for path in SHM.glob("torch_*")) if SHM.is_dir() else []


def run_once(comm, graph, *, accelerator=None, tiers=None, dropout=0.0, **options):
    trainer = Trainer(
        make("sage", graph, dropout=dropout),
        graph,
        accelerator=accelerator,
        tiers=tiers,
        **(BASE | {"test_at_end": True} | options),
    )
    return trainer, fitted(trainer)


def every_case(comm, folder: str) -> dict[str, object]:
    """Runs without a plan, by plans of both routes, and with hot rows; and what the last one says."""
    graph = graph_of()
    found: dict[str, object] = {"width": graph.num_features}
    _, found["plain"] = run_once(comm, graph)
    row = 4 * graph.num_features
    for share in (1.0, 0.5, 0.0):
        plan = plan_file(folder, share)
        _, found[f"plan {share}"] = run_once(comm, graph, accelerator=device(), plan=plan)
        trainer, found[f"hot {share}"] = run_once(
            comm, graph, accelerator=device(), plan=plan, hot=4 * 600 + 100 * row
        )
        found[f"counts {share}"] = trainer.tiers.counts._asdict()
        found[f"said {share}"] = trainer.explain()
        found[f"shared {share}"] = shared_of(trainer)
    _, found["few plain"] = run_once(comm, graph, batch_size=197)
    _, found["few hot"] = run_once(
        comm, graph, batch_size=197, accelerator=device(), plan="auto", hot=4 * 600 + 60 * row
    )
    gc.collect()
    return found


def shared_of(trainer) -> dict[str, object] | None:
    hot = trainer.tiers.hot
    if not isinstance(hot, SharedHotRows):
        return None
    return {
        "own": len(hot.own_ids),
        "shared": hot.num_shared,
        "here": hot.own_shared,
        "hot now": hot.num_rows,
        "ids": hot.ids.tolist(),
    }
