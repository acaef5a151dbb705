"""What ranks with hot rows on emulated devices train; each function is called with their communicator."""

import gc
import logging
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from benchmarks.common.emulated import EmulatedAccelerator
from tests.collective.cases import stage_times
from tests.distributed.training import BASE, At, fitted, graph_of, make
from tests.features.tables import stored_graph

from graphbraid.collective import Profile, fixed_plan
from graphbraid.collective.run import replanner
from graphbraid.distributed import peers as probing
from graphbraid.estimates import choose as modes
from graphbraid.estimates import machine as rank_memory
from graphbraid.estimates import memory as sampled
from graphbraid.features import TieredFeatures
from graphbraid.features.tiers import device_sizing
from graphbraid.features.tiers.device_sizing import DeviceMemory
from graphbraid.graph import ScaledFeatures
from graphbraid.ops.gather import gather_tiered
from graphbraid.sampling.rows import device_cache
from graphbraid.sampling.rows.shared_cache import SharedDeviceCache
from graphbraid.train import TrainConfig, Trainer
from graphbraid.train.run.hot_sharing import HotSharing
from graphbraid.train.step.step import Share

INSTANT = stage_times(0.0005, 0.0005, 0.0005, 0.0005, workers=2)


def device(**options) -> EmulatedAccelerator:
    rates = {"peer_bytes_per_second": 40e9, "link_bytes_per_second": 10e9}
    return EmulatedAccelerator(INSTANT, emulate_cpu=False, **(rates | options))


def plan_file(folder: str, share: float) -> str:
    """A plan in which the CPU prepares a share of the batches."""
    path = Path(folder) / f"plan-{share}-{os.getpid()}.json"
    fixed_plan(Profile(times=(INSTANT,)), 7, share).save(path)
    return str(path)


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
    for share in (1.0, 0.5, 0.0):
        plan = plan_file(folder, share)
        _, found[f"plan {share}"] = run_once(comm, graph, accelerator=device(), plan=plan)
        trainer, found[f"hot {share}"] = run_once(
            comm, graph, accelerator=device(), plan=plan, hot=budget(graph, 100)
        )
        found[f"counts {share}"] = trainer.tiers.counts._asdict()
        found[f"said {share}"] = trainer.explain()
        found[f"shared {share}"] = shared_of(trainer)
    _, found["few plain"] = run_once(comm, graph, batch_size=197)
    _, found["few hot"] = run_once(
        comm, graph, batch_size=197, accelerator=device(), plan="auto", hot=budget(graph, 60)
    )
    found["left in memory"] = left_names()
    return found


def left_names(patience: float = 20.0) -> list[str]:
    """Names of memory that stays shared: a thread that ends holds what it read last for a moment."""
    until = time.monotonic() + patience
    gc.collect()
    while (left := shared_names()) and time.monotonic() < until:
        time.sleep(0.05)
        gc.collect()
    return left


def shared_names() -> list[str]:
    """Names of the memory that this process shares."""
    return [path.name for path in Path("/dev/shm").glob(f"torch_{os.getpid()}_*")]


def shared_of(trainer) -> dict[str, object] | None:
    hot = trainer.tiers.hot
    if not isinstance(hot, SharedDeviceCache):
        return None
    return {
        "own": len(hot.own_ids),
        "shared": hot.num_shared,
        "here": hot.own_shared,
        "hot now": hot.num_rows,
        "ids": hot.ids.tolist(),
    }


def budget(graph, num_rows: int) -> int:
    """A size that holds so many rows and the map that finds them."""
    return 4 * graph.num_nodes + num_rows * 4 * graph.num_features


def with_checkpoints(
    comm, folder: str, epochs: str, resume: str, num_rows: str, stop_at: str
) -> dict[str, object]:
    """Train into a folder that only the first rank can write to, with so many rows on each device."""
    graph, rows = graph_of(), int(num_rows)
    own = folder if comm.rank == 0 else f"{folder}-not-there/{comm.rank}"
    options = {"out_dir": own, "epochs": int(epochs), "resume": resume == "resume", "layout": "subgraph"}
    options |= {"accelerator": device(), "plan": "auto"} | ({"hot": budget(graph, rows)} if rows else {})
    trainer = Trainer(make("sage", graph, dropout=0.5), graph, **(BASE | options))
    trainer.callbacks.append(At(comm, comm.size - 1, int(stop_at), lambda trainer: trainer.request_stop()))
    return fitted(trainer)


def faulty(comm, what: str, folder: str) -> dict[str, object]:
    """Train with rows at peers, and something going wrong on the last rank while they are there."""
    graph = graph_of()
    (Path(folder) / f"{os.getpid()}.pid").touch()

    def act(trainer) -> None:
        assert trainer.tiers.hot.num_rows > 0
        assert shared_names()
        if what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("a user's own mistake")

    options = {"plan": plan_file(folder, 0.5), "hot": budget(graph, 100), "epochs": 3}
    if what == "memory" and comm.rank == 1:
        device_cache.free_bytes = lambda _: 1000
    callbacks = [] if what == "memory" else [At(comm, comm.size - 1, 9, act)]
    trainer = Trainer(
        make("sage", graph), graph, callbacks=callbacks, accelerator=device(), **(BASE | options)
    )
    return fitted(trainer)


def sized(comm, folder: str) -> dict[str, object]:
    """Runs whose rows on devices are sized by themselves: on a device each, on one for all, and with a store.

    A device's memory is made to hold what the run needs, so many rows, and the map that finds them.
    """
    sampled.baseline_bytes = lambda *_: 300 << 20
    device_sizing.LEAST_RESERVE_BYTES, device_sizing.LEAST_GAIN = 0, 0.0
    graph, plan, found = graph_of(), plan_file(folder, 0.5), dict[str, object]()

    def memory_for(graph, num_rows: int) -> int:
        config, share = TrainConfig(plan="auto", **BASE), Share(comm.rank, comm.size)
        whole = DeviceMemory(free_bytes=1 << 30, link_bytes_per_second=None)
        needed = modes.auto_tiers(make("sage", graph), graph, config, whole, share=share)[1].needed_bytes
        return round((needed + budget(graph, num_rows)) / 0.9)

    def case(name: str, graph, **options):
        trainer, ran = run_once(comm, graph, accelerator=device(**options), plan=plan, tiers="auto")
        found[name] = {"ran": ran, "said": trainer.explain(), "host": trainer.config.host}
        found[name] |= {"counts": trainer.tiers.counts._asdict(), "hot": trainer.config.hot}
        shared = shared_of(trainer)
        found[name]["rows"] = trainer.tiers.hot.num_rows if shared is None else shared["shared"] / comm.size

    _, found["plain"] = run_once(comm, graph)
    size = memory_for(graph, 100)
    case("own", graph, memory_bytes=size)
    case("one", graph, memory_bytes=size * comm.size, memory_name="the only one")
    trainer, found["full"] = run_once(
        comm, graph, accelerator=device(memory_bytes=1 << 10), plan=plan, tiers="auto"
    )
    found["full said"], found["full tiers"] = trainer.tiers_reason, trainer.tiers is None
    store = stored_graph(Path(folder) / str(comm.rank))
    _, found["plain store"] = run_once(comm, store)
    rank_memory.free_memory_bytes = modes.capacity_bytes = lambda: 300 << 20
    case("store", store, memory_bytes=memory_for(store, 30))
    return found


class Unread(EmulatedAccelerator):
    """An accelerator that does not say that others read its memory."""

    def __getattribute__(self, name: str):
        if name == "memory_device":
            raise AttributeError(name)
        return super().__getattribute__(name)


class Said(logging.Handler):
    """Keeps what is logged."""

    def __init__(self, said: list[str]) -> None:
        super().__init__(logging.INFO)
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        self._said.append(record.getMessage())


def odd_cases(comm, folder: str) -> dict[str, object]:
    """Runs in which ranks, devices or features are of many kinds, beside those that all come to the same."""
    graph = graph_of()
    plan = plan_file(folder, 0.5)
    found: dict[str, object] = {}

    def case(name: str, graph=graph, *, slower=None, accelerator=None, rows=100, **options):
        accelerator = accelerator or device(**({} if slower is None else {"peer_bytes_per_second": slower}))
        hot = {} if rows is None else {"hot": budget(graph, rows)}
        trainer, ran = run_once(comm, graph, accelerator=accelerator, plan=plan, **(hot | options))
        counts = None if trainer.tiers is None else trainer.tiers.counts._asdict()
        shared = None if trainer.tiers is None else shared_of(trainer)
        found[name] = {"ran": ran, "counts": counts, "shared": shared, "said": trainer.explain()}
        return trainer

    _, found["plain"] = run_once(comm, graph, epochs=1)
    _, ran = run_once(comm, graph)
    found["plain 2"] = ran
    trainer = case("slower peers", slower=12e9)
    before = trainer.predict([1, 2, 3])
    found["again"] = fitted(trainer)
    found["predicts"] = before.shape == (3, 3)
    one = {"epochs": 1}
    case("known by one", **one, accelerator=device(peer_bytes_per_second=None) if comm.rank else None)
    case("some without", **one, rows=100 if comm.rank != 1 else None)
    case("unequal", **one, rows=100 if comm.rank else 40)
    case("all fit", **one, rows=600)
    case("unread", **one, accelerator=Unread(INSTANT, emulate_cpu=False))
    own, probing.machine_name = probing.machine_name, lambda: f"machine {comm.rank % 2}"
    case("machines", **one)
    probing.machine_name = own
    trace = Path(folder) / f"trace-{comm.rank}.json"
    case("trace", trace=trace, epochs=1)
    found["trace"]["files"] = trace.exists()
    stops = {"patience": 1, "epochs": 8, "lr": 0.3}
    _, found["plain stopped"] = run_once(comm, graph, **stops)
    case("stopped", **stops)
    many = {"batch_size": 6, "epochs": 1}
    _, found["plain many"] = run_once(comm, graph, **many)
    slow, said = device(), list[str]()
    # However slow the machine is beside the device: any drift is planned for anew.
    gain, replanner.LEAST_GAIN = replanner.LEAST_GAIN, 0.0
    if comm.rank == 1:
        slow.slow_down("uva", 20.0)
        log = logging.getLogger("graphbraid.collective.run.executor")
        log.setLevel(logging.INFO)
        log.addHandler(handler := Said(said))
    case("replanned", accelerator=slow, **many)
    replanner.LEAST_GAIN = gain
    if comm.rank == 1:
        log.removeHandler(handler)
    found["replanned"]["messages"] = said
    narrow = graph.replace(x=ScaledFeatures.from_dense(graph.x))
    _, found["plain narrow"] = run_once(comm, narrow, **one)
    case("narrow", narrow, **one, hot=4 * 600 + 100 * (graph.num_features + 4))
    return found


def from_a_store(comm, folder: str) -> dict[str, object]:
    """Train on a store with rows on devices, some of the others in memory and the rest in its file."""
    graph = stored_graph(Path(folder) / str(comm.rank))
    found: dict[str, object] = {}
    _, found["plain"] = run_once(comm, graph)
    trainer, found["tiers"] = run_once(
        comm, graph, accelerator=device(), plan=plan_file(folder, 0.5), hot=budget(graph, 30), host=320_000
    )
    found["counts"], found["shared"] = trainer.tiers.counts._asdict(), shared_of(trainer)
    found["said"] = trainer.explain()
    return found


def between_two(comm, kind: str) -> dict[str, object]:
    """Rows of a graph that two ranks keep between them on the device that they share, read by both ways."""
    graph, card = graph_of(), torch.device(kind)
    tiers = TieredFeatures.build(graph, hot=budget(graph, 100), score=torch.arange(600.0))
    state = SimpleNamespace(
        comm=comm,
        config=SimpleNamespace(mode="sampled"),
        accelerator=device() if kind == "cpu" else None,
        graph=graph,
        runner=SimpleNamespace(rows=tiers, device=card),
    )
    with HotSharing(state, comm) as sharing:
        sharing.open()
        shared = tiers.hot
        assert isinstance(shared, SharedDeviceCache)
        ids = torch.randperm(600, generator=torch.Generator().manual_seed(comm.rank)).to(card)
        assert torch.equal(shared.assembled(ids, tiers.gather).cpu(), graph.x[ids.cpu()])
        table = shared.tier_table(shared.table_on(card), graph.x if kind == "cpu" else graph.x.pin_memory())
        assert torch.equal(gather_tiered(table, ids).cpu(), graph.x[ids.cpu()])
        del table
    return {"shared": shared.num_shared, "left": shared.num_rows, "said": shared.reason}
