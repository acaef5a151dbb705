"""The memory of a run on mini-batches: memory from the first step on, and the peak of each phase.

Batches are sampled; a step and a validation pass are tried on copies. If a trial may not fit, it uses fewer
seeds and is scaled by the nodes of a batch.
"""

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from graphbraid.estimates.machine import Allocation, allocation_of, baseline_bytes, may_be_tried
from graphbraid.estimates.records import Need, Needs
from graphbraid.estimates.sizes import FEWER, BatchSizes, batch_sizes, forward_bytes, sampled_pass
from graphbraid.estimates.trial import Trial, parameter_bytes, timed
from graphbraid.features.budgets import list_bytes
from graphbraid.files import mapped
from graphbraid.files.writing import format_bytes
from graphbraid.graph import Graph
from graphbraid.graph.scaled_features import stored_rows
from graphbraid.loader import BatchLoader
from graphbraid.machine.hardware import free_memory_bytes
from graphbraid.nn.module_traits import in_mode
from graphbraid.train import runtime
from graphbraid.train.inference.evaluate import PAIRS, EvalMode, beside_negatives, encoder_rows, ranking_of
from graphbraid.train.inference.infer import by_level, whole_bytes
from graphbraid.train.inference.metrics import AUC, metric_kinds
from graphbraid.train.inference.ranking import MOST_SCORES
from graphbraid.train.run.setup import most_bytes
from graphbraid.train.step.links.data import EdgeLabels
from graphbraid.train.step.links.runner import EdgeRunner, LinkRunner, runner_of
from graphbraid.train.step.step import make_loader

DEVICE_BATCHES = 2
"""Number of batches on a device: the one it trains on, and the next."""
STEP_BYTES = 4
"""Assumed bytes of a step for each byte of its batch if nothing was tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledNeeds:
    """Needs of a run on mini-batches with all rows and lists in memory."""

    host: Needs
    device: Needs
    """Needs on a device with the model and some batches, also if there is no device."""
    sizes: BatchSizes
    ahead: int
    """Number of batches prepared ahead."""
    file_bytes: int
    """Bytes of written files: checkpoints, activations beyond exact inference's budget."""


def sampled_needs(trial: Trial, *, ahead: int | None = None, software: bool = True) -> SampledNeeds:
    """Count the memory of a run on mini-batches; a training step on a real batch is tried on the copies.

    If ``ahead`` is None, as many batches are prepared ahead as by the loader of ``workers`` threads. With
    ``software``, a run without data is counted, for which a process may be started.
    """
    config, runner, workers = trial.config.updated(plan=None), trial.runner, trial.config.workers
    sizes = _sizes(trial)
    with make_loader(runner, config, trial.nodes) as loader:
        ahead = ahead or loader.ahead
        step = _step(trial, loader, sizes)
    in_flight, flying = sizes.in_flight(workers, ahead), min(ahead + 1, sizes.num_batches)
    evaluation, file_bytes = _evaluation_needs(trial)
    links: tuple[Need, ...] = ()
    set_up: tuple[Need, ...] = ()
    if isinstance(runner, LinkRunner | EdgeRunner):
        links, set_up = link_needs(trial, runner, in_flight=in_flight)
    learned, checkpoint_bytes = learned_needs(trial)
    degrees = 8 * trial.graph.num_nodes if runner.uses_degrees else 0
    training = Need(name="step", nbytes=step.peak, why="activations and gradients of a step, tried")
    batches = Need(
        name="batches",
        nbytes=in_flight,
        why=f"{flying} of up to {sizes.nodes:,} nodes, {sizes.edges:,} edges and "
        f"{format_bytes(sizes.feature_bytes)} of features",
    )
    on_host = trial.device.type == "cpu"
    host = Needs(
        held=(
            *((baseline_need("sampled", trial),) if software else ()),
            *graph_needs(trial.graph),
            *_attribute_needs(trial),
            *links,
            *(learned if on_host else ()),
            Need(name="degrees", nbytes=degrees, why="of all nodes, by which the model normalises"),
            batches,
        ),
        phases=(*set_up, *((training,) if on_host else ()), *evaluation),
    )
    device_batches = Need(
        name="batches", nbytes=DEVICE_BATCHES * sizes.nbytes, why=f"{DEVICE_BATCHES} at a time"
    )
    return SampledNeeds(
        host=host,
        device=Needs(held=(*learned, device_batches), phases=(training,)),
        sizes=sizes,
        ahead=ahead,
        file_bytes=file_bytes + checkpoint_bytes,
    )


def baseline_need(mode: str, trial: Trial) -> Need:
    """Return the need of a run without data."""
    task = {"edge": "link", "graph": "node"}.get(trial.config.task, trial.config.task)
    nbytes = baseline_bytes(mode, trial.device.type, task)
    return Need(name="software", nbytes=nbytes, why="interpreter, libraries and threads, measured")


def learned_needs(trial: Trial) -> tuple[tuple[Need, Need], int]:
    """Return the needs of model and optimizer, and the bytes of the kept checkpoints."""
    config, weights, state = trial.config, parameter_bytes(trial.runner.model), trial.state_bytes()
    best = weights if config.restore_best and config.out_dir is None and trial.val_nodes is not None else 0
    needs = (
        Need(name="model", nbytes=weights + best, why="parameters" + ", and the best epoch's" * bool(best)),
        Need(name="optimizer", nbytes=state, why="its state, after one step"),
    )
    return needs, 0 if config.out_dir is None else 2 * (weights + state)


def graph_needs(graph: Graph) -> tuple[Need, Need]:
    """Return the needs of topology, labels and splits, and of the features."""
    tables = [graph.x] if not graph.is_typed else [graph.nodes_of(one).x for one in graph.node_types]
    x_bytes = sum(x.nbytes for x in tables if x is not None)
    rows = sum(x.shape[0] for x in tables if x is not None)
    indices = graph.csc.indices
    of_file = mapped.find(indices.data_ptr(), indices.nbytes) is not None
    return (
        Need(name="graph", nbytes=graph.nbytes - x_bytes, why="edges, labels and splits", mapped=of_file),
        Need(name="features", nbytes=x_bytes, why=f"{rows:,} rows", mapped=are_mapped(graph)),
    )


def _attribute_needs(trial: Trial) -> tuple[Need, ...]:
    """Return the need of the attributes of many graphs except features, which :func:`graph_needs` counts."""
    if trial.graphs is None:
        return ()
    nbytes = sum(values.nbytes for name, values in trial.graphs.arrays() if name != "x")
    return (Need(name="attributes", nbytes=nbytes, why=f"of {len(trial.graphs):,} graphs, edges first"),)


def bytes_beside_graph(needs: Needs, graph: Graph) -> int:
    """Return the bytes of a run without features, and without adjacency lists in a file."""
    return needs.nbytes - needs.bytes_of("features") - list_bytes(graph)


def are_mapped(graph: Graph) -> bool:
    """Return whether a graph's features are dense and mapped from a file, such as an open store."""
    x = stored_rows(graph.x)
    return x is not None and mapped.find(x.data_ptr(), x.nbytes) is not None


# ---- bounds that need no trial


def may_try_steps(trial: Trial) -> bool:
    """Return whether the free memory holds trial steps and the batches prepared meanwhile."""
    free = free_memory_bytes()
    if free is None or 2 * most_bytes(trial.runner.model, trial.graph, trial.config) < free:
        return True
    sizes = _sizes(trial)
    with make_loader(trial.runner, trial.config.updated(plan=None), trial.nodes) as loader:
        return _scaled(trial, loader, sizes)[1]


# ---- steps


def _sizes(trial: Trial) -> BatchSizes:
    return batch_sizes(trial.runner, trial.config.updated(plan=None), trial.nodes)


def _step(trial: Trial, loader: BatchLoader, sizes: BatchSizes) -> Allocation:
    """Return the bytes of a step, tried on a real batch if a smaller one shows that it will fit."""
    scaled, fits = _scaled(trial, loader, sizes)
    return _tried(trial, loader)[0] if fits else Allocation(peak=scaled, kept=0)


def _scaled(trial: Trial, loader: BatchLoader, sizes: BatchSizes) -> tuple[int, bool]:
    """Return the expected bytes of a step, and whether it can be tried beside batches under way."""
    flying = sizes.in_flight(trial.config.workers, loader.ahead)
    if not may_be_tried(flying // FEWER):  # not even a small step can be tried
        return STEP_BYTES * sizes.nbytes, False
    few = trial.config.updated(mode="sampled", plan=None, batch_size=max(1, trial.config.batch_size // FEWER))
    with make_loader(trial.runner, few, trial.nodes) as smaller:
        tried, nodes = _tried(trial, smaller)
    scaled = int(tried.peak * max(1.0, sizes.nodes / max(nodes, 1)))
    return scaled, may_be_tried(flying + scaled)


def _tried(trial: Trial, loader: BatchLoader) -> tuple[Allocation, int]:
    """Return the bytes of a step after the optimizer's state is made, and the nodes of its batch."""
    batches = iter(loader.batches(0, 0, min(2, len(loader))))
    batch = next(batches)
    trial.step(batch)
    batch = next(batches, batch)
    trial.forget_gradients()
    return allocation_of(lambda: trial.step(batch), trial.device), batch.num_nodes


# ---- evaluations


class ExactNeeds(NamedTuple):
    """Needs of exact inference."""

    memory_bytes: int
    file_bytes: int
    """Bytes of activations beyond the budget, in a temporary file."""
    how: str


def exact_inference(trial: Trial) -> ExactNeeds:
    """Return the needs of exact inference over all nodes, by the method that the run will use."""
    runner, graph, budget = trial.runner, trial.graph, trial.config.memory_budget_bytes
    needed = whole_bytes(runner)
    if needed <= budget and graph.is_typed:
        return ExactNeeds(needed, 0, "one pass over the whole graph")
    if needed <= budget:
        return ExactNeeds(forward_bytes(trial), 0, "one pass over the whole graph, tried on a small one")
    with trial.evaluating():
        walk = by_level(runner, trial.config)
    if isinstance(walk, Exception):
        return ExactNeeds(budget, 0, "chunks of nodes with all their neighbours, up to the budget")
    passes = walk.passes(torch.arange(runner.labels.num_nodes))
    in_memory, in_files = walk.kept_bytes(passes)
    maps = 32 * graph.num_nodes  # places in a chunk, the nodes of a pass with their edges, and a factor
    chunk = min(budget // 2, 4 * graph.num_nodes * (graph.num_features + 3 * runner.widest))
    how = "layer by layer, in chunks of nodes that fit the budget"
    return ExactNeeds(maps + chunk + in_memory, in_files, how)


def _evaluation_needs(trial: Trial) -> tuple[tuple[Need, ...], int]:
    """Return the peak memory of a sampled run's evaluations, and the bytes of their files."""
    if isinstance(trial.runner, LinkRunner | EdgeRunner):
        return link_evaluation_needs(trial, trial.runner), 0
    needs, file_bytes, exact = list[Need](), 0, list[str]()
    is_sampled = trial.config.eval_mode == "sampled"
    for name, nodes, by_batches in (
        ("validation", trial.val_nodes, is_sampled),
        ("test", trial.test_nodes, False),
    ):
        if nodes is None:
            continue
        if not (by_batches or trial.graphs is not None):
            exact.append(name)
            continue
        tried = sampled_pass(trial, trial.runner, nodes)
        needs.append(Need(name=name, nbytes=tried.nbytes, why=f"{tried.batches} batches, a pass"))
    if exact:
        found = exact_inference(trial)
        file_bytes = found.file_bytes
        needs += [Need(name=name, nbytes=found.memory_bytes, why=found.how) for name in exact]
    return tuple(needs), file_bytes


_HOST = torch.device("cpu")
_COUNTING_BYTES = 16
"""Bytes per edge of NumPy's arrays while negatives are counted, which torch does not see."""


def link_needs(
    trial: Trial, runner: LinkRunner | EdgeRunner, *, in_flight: int
) -> tuple[tuple[Need, ...], tuple[Need, ...]]:
    """Return a run's memory for its links or edges, and the further memory of its set-up.

    A step of the trial was made. ``in_flight`` has the bytes of the batches that the run holds, but not its
    set-up.
    """
    config = trial.config
    ranks = isinstance(runner, LinkRunner) and (trial.val_nodes is not None or trial.test_nodes is not None)
    kept: list[object] = []

    def set_up() -> None:
        fresh = runner_of(runner.model, trial.graph, runtime.place_of(config), config)
        kept.append(fresh)
        if ranks and isinstance(fresh, LinkRunner):
            kept.append(fresh.negatives_of_evaluation())
        kept.append(make_loader(fresh, config.updated(plan=None), trial.nodes))

    found = allocation_of(set_up, _HOST)
    counted = _COUNTING_BYTES * (runner.data.whole.num_edges + runner.labels.num_nodes) if ranks else 0
    # Small blocks that the set-up frees stay with the process, and later ones fit into them only in part.
    stays = max(found.kept, found.heap)
    most = max(found.peak - stays, counted) - in_flight
    why = "links, edges that carry messages, look-ups of both, and what the C library keeps of making them"
    held = [Need(name="links", nbytes=stays, why=why)]
    if isinstance(runner, LinkRunner):
        memory = "of a step, in memory that the next one takes"
        held.append(Need(name="scores", nbytes=runner.kept_bytes, why=memory))
    return (
        tuple(held),
        (Need(name="set-up", nbytes=max(0, most), why="links are read and split; no batch is held yet"),),
    )


def link_evaluation_needs(trial: Trial, runner: LinkRunner | EdgeRunner) -> tuple[Need, ...]:
    """Return the peak memory of the evaluations of a run on links or edges."""
    parts: tuple[tuple[str, Tensor | None, EvalMode], ...] = (
        ("validation", trial.val_nodes, trial.config.eval_mode),
        ("test", trial.test_nodes, "exact"),
    )
    count = runner.data.ends.nodes.numel()
    what = "ranks among them" if isinstance(runner, LinkRunner) else "outputs of edges"
    return tuple(
        Need(
            name=name,
            nbytes=_evaluation_bytes(trial, runner, positions, mode),
            why=f"rows of up to {count:,} nodes, and {what}",
        )
        for name, positions, mode in parts
        if positions is not None
    )


def link_evaluation_seconds(
    trial: Trial, runner: LinkRunner, positions: Tensor, mode: EvalMode, *, most: float
) -> float:
    """Return the seconds of an evaluation; some rows and rankings are tried for about ``most`` seconds."""
    config, nodes = trial.config, runner.data.ends.nodes
    part = nodes
    if mode == "sampled":
        part = nodes[: 4 * config.eval_batch_size]
    encode = timed(lambda: encoder_rows(runner, config, part, mode))
    rows, some = _some_rows(trial, runner), positions[: _links_at_once(runner)]
    if not _ranks_links(trial):
        return encode * nodes.numel() / part.numel()
    with trial.evaluating():
        rank = timed(lambda: ranking_of(runner, some, rows))
        if rank < most / 4:
            rank = timed(lambda: ranking_of(runner, some, rows))
    return encode * nodes.numel() / part.numel() + rank * positions.numel() / some.numel()


def _evaluation_bytes(
    trial: Trial, runner: LinkRunner | EdgeRunner, positions: Tensor, mode: EvalMode
) -> int:
    rows = _some_rows(trial, runner)
    encoding, pooled = _encoding_bytes(trial, runner, mode, rows.nbytes)
    with in_mode(runner.model, training=False), torch.no_grad():
        if isinstance(runner, EdgeRunner):
            edges = allocation_of(lambda: _outputs_of(runner, positions[:PAIRS], rows), trial.device).peak
            return rows.nbytes + max(encoding, pooled + edges)
        pairs = allocation_of(
            lambda: beside_negatives(runner, trial.config, positions[:PAIRS], rows), trial.device
        ).peak
        some, ranks = positions[: _links_at_once(runner)], 0
        if _ranks_links(trial):
            ranks = allocation_of(lambda: ranking_of(runner, some, rows), trial.device).peak
    # The pool keeps what it held at most while the rows were made.
    return rows.nbytes + max(encoding, pooled + max(pairs, ranks))


def _outputs_of(runner: EdgeRunner, positions: Tensor, rows: Tensor) -> Tensor:
    attr = cast("EdgeLabels", runner.labels).edge_attr
    ends = rows[:1].expand(positions.numel(), -1).to(runner.device)
    return runner.decoded(ends, ends, None if attr is None else attr[positions])


def _encoding_bytes(
    trial: Trial, runner: LinkRunner | EdgeRunner, mode: EvalMode, rows_bytes: int
) -> tuple[int, int]:
    """Return the memory to make the rows beside their ``rows_bytes``, and the part that the pool keeps."""
    config, encoder, nodes = trial.config, runner.encoder_runner(), runner.data.ends.nodes
    if mode == "sampled":
        return sampled_pass(trial, encoder, nodes).nbytes, 0
    needed = whole_bytes(encoder)
    if needed > config.memory_budget_bytes:
        return config.memory_budget_bytes, 0
    if not may_be_tried(needed):
        return needed, 0
    made = allocation_of(lambda: encoder_rows(runner, config, nodes, "exact"), trial.device)
    return made.peak - rows_bytes, made.pooled


def _some_rows(trial: Trial, runner: LinkRunner | EdgeRunner) -> Tensor:
    """Return rows of the encoder's width for all nodes of links. Two such tables are made."""
    nodes = runner.data.ends.nodes
    found = encoder_rows(runner, trial.config.updated(plan=None), nodes[:2], "sampled")
    return found[:1].repeat(nodes.numel(), 1)


def _links_at_once(runner: LinkRunner) -> int:
    return max(1, MOST_SCORES // max(1, *runner.data.ends.counts))


def _ranks_links(trial: Trial) -> bool:
    return set(metric_kinds(trial.task, trial.config.metrics)) != {AUC}
